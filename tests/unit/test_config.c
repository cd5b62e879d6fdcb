/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/paths.h"
#include "server/config_table.h"

#define ARGS_MAX 16

/* One load: its output and result. */
struct outcome {
	struct config c;
	int rc;
	char out[8192], err[8192];
};

static char *no_env[] = {"XDG_RUNTIME_DIR=/run/user/1", "CONFIGURATION_DIRECTORY=/nonexistent",
			 NULL};

static int make_argv(char *argv[], const char *const args[])
{
	int argc = 1;

	argv[0] = "ncclsvcd";
	for (; args[argc - 1]; argc++) {
		assert_true(argc < ARGS_MAX - 1);
		argv[argc] = (char *)(uintptr_t)args[argc - 1];
	}
	argv[argc] = NULL;
	return argc;
}

static void load(struct outcome *o, const char *const args[], char *env[])
{
	char *argv[ARGS_MAX];
	int argc = make_argv(argv, args);
	FILE *out, *err;

	memset(o, 0, sizeof(*o));
	out = fmemopen(o->out, sizeof(o->out) - 1, "w");
	err = fmemopen(o->err, sizeof(o->err) - 1, "w");
	assert_non_null(out);
	assert_non_null(err);
	o->rc = config_load(&o->c, argc, argv, env, out, err);
	fclose(out);
	fclose(err);
}
#define LOAD(o, env, ...) load(o, (const char *const[]){__VA_ARGS__, NULL}, env)

static void expect_errors(const struct outcome *o, unsigned n, const char *const texts[])
{
	unsigned lines = 0;

	assert_int_equal(o->rc, 2);
	assert_string_equal(o->out, "");
	for (const char *p = o->err; *p; p++)
		lines += *p == '\n';
	for (unsigned i = 0; i < n; i++)
		if (!strstr(o->err, texts[i]))
			fail_msg("no '%s' in:\n%s", texts[i], o->err);
	assert_int_equal(lines, n);
}
#define EXPECT_ERRORS(o, ...)                                                                      \
	expect_errors(o, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *),                   \
		      (const char *const[]){__VA_ARGS__})

static char file[64];

static int make_file(void **state)
{
	int fd;

	(void)state;
	snprintf(file, sizeof(file), "/tmp/test_config.XXXXXX");
	fd = mkstemp(file);
	return fd < 0 || close(fd);
}

static int drop_file(void **state)
{
	(void)state;
	return unlink(file);
}

static void write_file(const char *text)
{
	FILE *f = fopen(file, "we");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static void test_defaults(void **state)
{
	static struct outcome o;
	cpu_set_t set;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
	int cpus = CPU_COUNT(&set);
	LOAD(&o, no_env, NULL);
	assert_int_equal(o.rc, -1);
	assert_string_equal(o.err, "");
	assert_string_equal(o.c.file, "");
	assert_int_equal(o.c.device, CONFIG_DEVICE_AUTO);
	assert_int_equal(o.c.ranks, 4);
	assert_int_equal(o.c.host_threads, cpus > 4 ? 4 : cpus);
	assert_int_equal(o.c.spin_us, -1);
	assert_int_equal(o.c.log_level, LOG_LEVEL_INFO);
	assert_int_equal(o.c.sessions_max, 4096);
	assert_int_equal(o.c.access, CONFIG_ACCESS_OWNER);
	assert_true(o.c.user_region_bytes >= 4096);
	assert_string_equal(o.c.socket, geteuid() ? "/run/user/1/ncclsvc/ncclsvcd.sock"
						  : "/run/ncclsvc/ncclsvcd.sock");
}

static void test_order_of_sources(void **state)
{
	char *env[] = {no_env[0], no_env[1], "NCCLSVCD_TASKS_MAX=3", NULL};
	static struct outcome o;

	(void)state;
	write_file("ranks = 2\nsessions_max=11\n; note\n[ncclsvcd]\ncomms_max = 12 ; "
		   "why\ntasks_max = 13\n");
	LOAD(&o, env, "--config", file, "--comms-max", "22", "--tasks-max=23", "--socket",
	     "/tmp/s");
	assert_string_equal(o.err, "");
	assert_int_equal(o.rc, -1);
	assert_int_equal(o.c.ranks, 2);
	assert_int_equal(o.c.sessions_max, 11);
	assert_int_equal(o.c.comms_max, 22);
	assert_int_equal(o.c.tasks_max, 3);
	assert_string_equal(o.c.socket, "/tmp/s");
	assert_string_equal(o.c.file, file);
	assert_int_equal(o.c.source[config_key_find("ranks")], CONFIG_FILE);
	assert_int_equal(o.c.line[config_key_find("sessions_max")], 2);
	assert_int_equal(o.c.source[config_key_find("comms_max")], CONFIG_OPTION);
	assert_int_equal(o.c.source[config_key_find("tasks_max")], CONFIG_ENVIRONMENT);
	assert_int_equal(o.c.source[config_key_find("device")], CONFIG_DEFAULT);
}

static void test_config_from_environment(void **state)
{
	char variable[128];
	char *env[] = {no_env[0], variable, NULL};
	static struct outcome o;

	(void)state;
	snprintf(variable, sizeof(variable), "NCCLSVCD_CONFIG=%s", file);
	write_file("ranks=9\n");
	LOAD(&o, env, "--config", "/nonexistent/weaker");
	assert_int_equal(o.rc, -1);
	assert_int_equal(o.c.ranks, 9);
}

static void test_check_config_round_trip(void **state)
{
	static struct outcome first, second;

	(void)state;
	write_file("[ncclsvcd]\nlog_level = debug\nuser_region_bytes = 2G\nspin_us=auto\n");
	LOAD(&first, no_env, "--check-config", "--config", file, "--device", "host",
	     "--ring-max=64", "--access", "any", "--drain-seconds=0");
	assert_int_equal(first.rc, 0);
	assert_string_equal(first.err, "");
	assert_non_null(strstr(first.out, "; from the file, line 2"));
	assert_non_null(strstr(first.out, "; from --device"));
	assert_non_null(strstr(first.out, "; from default"));

	write_file(first.out);
	LOAD(&second, no_env, "--config", file);
	assert_string_equal(second.err, "");
	assert_int_equal(second.rc, -1);
	for (unsigned i = 0; i < config_keys_n; i++) {
		assert_true(config_key_equal(&first.c, &second.c, i));
		assert_int_equal(second.c.source[i], CONFIG_FILE);
		assert_non_null(strstr(first.out, config_keys[i].name));
	}
	assert_int_equal(second.c.log_level, LOG_LEVEL_DEBUG);
	assert_int_equal(second.c.user_region_bytes, UINT64_C(2) << 30);
	assert_int_equal(second.c.drain_seconds, 0);
}

static void test_quiet_check_prints_errors_only(void **state)
{
	static struct outcome o;

	(void)state;
	write_file("ranks = 3\n");
	LOAD(&o, no_env, "--check-config", "--quiet", "--config", file);
	assert_int_equal(o.rc, 0);
	assert_string_equal(o.out, "");
	assert_string_equal(o.err, "");
	write_file("ranks = many\n");
	LOAD(&o, no_env, "--check-config", "--quiet", "--config", file);
	assert_int_equal(o.rc, 2);
	assert_string_equal(o.out, "");
	assert_non_null(strstr(o.err, "ranks"));
}

static void test_all_errors_are_listed(void **state)
{
	char *env[] = {no_env[0], no_env[1], "NCCLSVCD_LOG_LEVLE=debug", "NCCLSVCD_RANKS=none",
		       NULL};
	static struct outcome o;

	(void)state;
	write_file("sesions_max = 1\nranks = 0\n\ndevice = gpu\nranks = 2\n[other]\nranks = 3\n");
	LOAD(&o, env, "--check-config", "--config", file, "--drain-second", "--rank", "3",
	     "--ring-max=100", "left-over");
	EXPECT_ERRORS(&o, ":1: unknown key 'sesions_max': did you mean 'sessions_max'?",
		      ":2: ranks: '0' is not allowed: give 1..",
		      ":4: device: 'gpu' is not allowed: give auto|cuda|host",
		      ":5: ranks: already given in line 2", ":7: unknown section [other]",
		      "--drain-seconds: '--rank' is not allowed", "unexpected argument '3'",
		      "--ring-max: '100' is not allowed: give a power of two, 16..65536",
		      "unexpected argument 'left-over'",
		      "NCCLSVCD_LOG_LEVLE: did you mean NCCLSVCD_LOG_LEVEL?",
		      "NCCLSVCD_RANKS: 'none' is not allowed");
}

static void test_the_world_has_a_section(void **state)
{
	static struct outcome o;

	(void)state;
	write_file(
		"ranks = 8\n[world]\ndata = 4\npipeline = 2\n[ncclsvcd]\nworld_horizontal = 1\n");
	LOAD(&o, no_env, "--config", file);
	assert_int_equal(o.rc, -1);
	assert_int_equal(o.c.world_data, 4);
	assert_int_equal(o.c.world_horizontal, 1);
	assert_int_equal(o.c.world_pipeline, 2);
	LOAD(&o, no_env, "--config", file, "--world-data", "auto");
	assert_int_equal(o.c.world_data, 0);
	/* Indented, and with the full name */
	write_file("ranks = 8\n[world]\n  data = 4\n\tworld_pipeline = 2\n");
	LOAD(&o, no_env, "--config", file);
	assert_int_equal(o.rc, -1);
	assert_int_equal(o.c.world_data, 4);
	assert_int_equal(o.c.world_pipeline, 2);
	write_file("[world]\ndata = 0\nranks = 3\npipelin = 2\n");
	LOAD(&o, no_env, "--config", file);
	EXPECT_ERRORS(&o, ":2: world_data: '0' is not allowed",
		      ":3: unknown key 'ranks' in [world]: put it before all sections",
		      ":4: unknown key 'pipelin' in [world]: did you mean 'world_pipeline'?");
}

static void test_option_errors(void **state)
{
	static struct outcome o;

	(void)state;
	LOAD(&o, no_env, "--sesions-max=3", "--check-config=yes", "-x", "--zzzzzzzzzzzz",
	     "--ranks");
	EXPECT_ERRORS(&o, "unknown option --sesions-max: did you mean --sessions-max?",
		      "--check-config takes no value", "unknown option -x",
		      "unknown option --zzzzzzzzzzzz; --help lists the options",
		      "--ranks needs a value");
	LOAD(&o, no_env, "--he", "--world=3", "--ranks=5");
	EXPECT_ERRORS(&o, "ambiguous option --he: --hello-seconds, --help",
		      "ambiguous option --world: --world-data, --world-horizontal, "
		      "--world-pipeline");
	LOAD(&o, no_env, "--rank", "7"); /* an abbreviation of one option is accepted */
	assert_int_equal(o.rc, -1);
	assert_int_equal(o.c.ranks, 7);
}

static void test_file_errors(void **state)
{
	static struct outcome o;
	static char text[1000];

	(void)state;
	LOAD(&o, no_env, "--config=/nonexistent/file");
	EXPECT_ERRORS(&o, "/nonexistent/file: No such file or directory");

	LOAD(&o, no_env, "--config=/");
	EXPECT_ERRORS(&o, "it is not a regular file");

	write_file("ranks = 1\nnonsense\n");
	LOAD(&o, no_env, "--config", file);
	EXPECT_ERRORS(&o, ":2: not 'key = value', a [section] or a comment");

	memset(text, 'x', sizeof(text) - 1);
	memcpy(text, "\nranks = ", 9);
	memcpy(text + sizeof(text) - 12, "\nranks = 7\n", 11);
	write_file(text);
	LOAD(&o, no_env, "--config", file);
	EXPECT_ERRORS(&o, ":2: the line is longer than");
	assert_int_equal(o.c.ranks, 7);
}

/* The error comes soon for any path, even a FIFO. */
static void test_no_file(void **state)
{
	static struct outcome o;
	char fifo[sizeof(file) + 8], text[1000];

	(void)state;
	snprintf(fifo, sizeof(fifo), "%s.fifo", file);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	LOAD(&o, no_env, "--check-config", "--config", fifo);
	EXPECT_ERRORS(&o, "it is not a regular file");
	unlink(fifo);
	LOAD(&o, no_env, "--config=/dev/zero");
	EXPECT_ERRORS(&o, "it is not a regular file");

	LOAD(&o, no_env, "--config=/dev/null");
	assert_int_equal(o.rc, -1);
	write_file("");
	LOAD(&o, no_env, "--config", file);
	assert_int_equal(o.rc, -1);
	assert_int_equal(truncate(file, 1 << 20), 0);
	LOAD(&o, no_env, "--config", file);
	assert_null(strstr(o.err, "the file is longer"));
	assert_int_equal(truncate(file, (1 << 20) + 1), 0);
	LOAD(&o, no_env, "--config", file);
	EXPECT_ERRORS(&o, "the file is longer than 1048576 bytes");

	for (size_t i = 0; i < sizeof(text) - 5; i += 4)
		memcpy(text + i, "a=1\n", 5);
	write_file(text);
	LOAD(&o, no_env, "--config", file);
	assert_int_equal(o.rc, 2);
	assert_non_null(strstr(o.err, "too many errors: the rest is not read"));
	assert_null(strstr(o.err, ":101:"));
}

static void takes_value(const char *key, const char *text, const char *formatted)
{
	struct config c = {0};
	char why[256], got[128];
	int k = config_key_find(key);

	assert_true(k >= 0);
	if (config_key_set(&c, (unsigned)k, text, why, sizeof(why)))
		fail_msg("%s = %s: %s", key, text, why);
	assert_string_equal(config_key_format(&c, (unsigned)k, got, sizeof(got)), formatted);
}

static void refuses_value(const char *key, const char *text)
{
	struct config c, before;
	char why[256] = "";
	int k = config_key_find(key);

	assert_true(k >= 0);
	memset(&c, 0x5a, sizeof(c));
	before = c;
	if (!config_key_set(&c, (unsigned)k, text, why, sizeof(why)))
		fail_msg("%s = %s was taken", key, text);
	assert_string_not_equal(why, "");
	assert_memory_equal(&c, &before, sizeof(c));
}

static void test_values(void **state)
{
	(void)state;
	takes_value("user_region_bytes", "4096", "4096");
	takes_value("user_region_bytes", "4k", "4096");
	takes_value("user_region_bytes", "3M", "3145728");
	takes_value("user_region_bytes", "64T", "70368744177664");
	takes_value("staging_bytes", "8M", "8388608");
	takes_value("transport", "mpi", "mpi");
	takes_value("transport", "nccl", "nccl");
	refuses_value("transport", "tcp");
	refuses_value("staging_bytes", "8388607");
	takes_value("peer_bytes", "auto", "auto");
	takes_value("peer_bytes", "0", "0");
	takes_value("peer_bytes", "8M", "8388608");
	refuses_value("peer_bytes", "2G");
	takes_value("spin_us", "auto", "auto");
	takes_value("spin_us", "0", "0");
	takes_value("mps", "auto", "auto");
	takes_value("mps", "off", "off");
	takes_value("mps", "/run/ncclsvc-mps", "/run/ncclsvc-mps");
	refuses_value("mps", "");
	refuses_value("mps", "on");
	refuses_value("mps", "run/ncclsvc-mps");
	refuses_value("mps",
		      "/A-directory-in-which-an-MPS-control-daemon-could-not-make-its-sockets-"
		      "for-its-name-is-89");
	takes_value("comms_max", "65536", "65536");
	takes_value("ring_max", "16", "16");
	takes_value("log_level", "warning", "warning");
	takes_value("user-region-bytes", "1G", "1073741824");

	static const char *const not_bytes[] = {"",
						"4095",
						"65T",
						"K",
						"4KB",
						"-1",
						"0%",
						"101%",
						"5%%",
						" 4K",
						"4 K",
						"1e9",
						"18446744073709551616",
						"18014398509481984K"};
	for (unsigned i = 0; i < sizeof(not_bytes) / sizeof(*not_bytes); i++)
		refuses_value("user_region_bytes", not_bytes[i]);

	static const char *const not_ranks[] = {"",
						"0",
						"-1",
						"65537",
						"4x",
						"0x4",
						" 4",
						"+4",
						"auto",
						"4294967297",
						"99999999999999999999"};
	for (unsigned i = 0; i < sizeof(not_ranks) / sizeof(*not_ranks); i++)
		refuses_value("ranks", not_ranks[i]);
	refuses_value("ring_max", "24");
	refuses_value("ring_max", "131072");
	refuses_value("spin_us", "-1");
	refuses_value("log_level", "inf");
	refuses_value("log_level", "INFO");
}

static void test_percent_of_ram(void **state)
{
	struct config half = {0}, all = {0};
	unsigned k = (unsigned)config_key_find("user_region_bytes");
	char why[256];

	(void)state;
	assert_int_equal(config_key_set(&half, k, "50%", why, sizeof(why)), 0);
	assert_int_equal(config_key_set(&all, k, "100%", why, sizeof(why)), 0);
	assert_true(all.user_region_bytes / 2 - half.user_region_bytes < 100);
}

static void test_scheduler_threads(void **state)
{
	struct config c = {0};
	unsigned k = (unsigned)config_key_find("host_threads");
	char why[256];
	cpu_set_t all, one;

	(void)state;
	assert_int_equal(config_key_set(&c, k, "auto", why, sizeof(why)), 0);
	assert_true(c.host_threads >= 1 && c.host_threads <= 4);
	/* Binds this process as srun binds a task. */
	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	CPU_ZERO(&one);
	for (int cpu = CPU_SETSIZE; cpu-- > 0 && !CPU_COUNT(&one);)
		if (CPU_ISSET(cpu, &all))
			CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(config_key_set(&c, k, "auto", why, sizeof(why)), 0);
	assert_int_equal(c.host_threads, 1);
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
	assert_int_equal(config_key_set(&c, k, "17", why, sizeof(why)), 0);
	assert_int_equal(c.host_threads, 17);
	refuses_value("host_threads", "0");
}

static void test_nearest(void **state)
{
	(void)state;
	assert_string_equal(config_key_nearest("loglevel"), "log_level");
	assert_string_equal(config_key_nearest("SESSION_MAX"), "sessions_max");
	assert_string_equal(config_key_nearest("rank"), "ranks");
	assert_null(config_key_nearest("zzzzzzzzzzzzzzzz"));
	assert_null(config_key_nearest(
		"a_key_so_long_that_nobody_could_have_meant_any_of_those_we_have_here"));
}

static void test_socket_paths(void **state)
{
	char *user[] = {"XDG_RUNTIME_DIR=/run/user/7", NULL};
	char *service[] = {"RUNTIME_DIRECTORY=/run/one:/run/two", "XDG_RUNTIME_DIR=/x", NULL};
	char *none[] = {"XDG_RUNTIME_DIR=", "XDG_RUNTIME_DIRECTORY=/x", NULL};
	char path[108], why[256], longest[109];

	(void)state;
	assert_int_equal(paths_default_socket(path, sizeof(path), 7, user, why, sizeof(why)), 0);
	assert_string_equal(path, "/run/user/7/ncclsvc/ncclsvcd.sock");
	assert_int_equal(paths_default_socket(path, sizeof(path), 0, user, why, sizeof(why)), 0);
	assert_string_equal(path, "/run/ncclsvc/ncclsvcd.sock");
	assert_int_equal(paths_default_socket(path, sizeof(path), 7, service, why, sizeof(why)), 0);
	assert_string_equal(path, "/run/one/ncclsvcd.sock");
	assert_int_equal(paths_default_socket(path, sizeof(path), 7, none, why, sizeof(why)), -1);
	assert_non_null(strstr(why, "--socket PATH"));

	memset(longest, 'a', sizeof(longest));
	longest[0] = '/';
	longest[107] = '\0';
	takes_value("socket", longest, longest);
	longest[107] = 'a';
	longest[108] = '\0';
	refuses_value("socket", longest);
	assert_int_equal(paths_check_socket(longest, why, sizeof(why)), -1);
	assert_non_null(strstr(why, "has 108 bytes, but a socket's path can have at most 107"));
	refuses_value("socket", "relative.sock");
	refuses_value("socket", "");
	refuses_value("socket", "/tmp/");
}

static void test_config_paths(void **state)
{
	char *xdg[] = {"HOME=/home/u", "XDG_CONFIG_HOME=/cfg", NULL};
	char *home[] = {"HOME=/home/u", NULL};
	char *service[] = {"CONFIGURATION_DIRECTORY=/etc/ncclsvc", "HOME=/home/u", NULL};
	char *none[] = {NULL};
	char path[256], tiny[8];

	(void)state;
	assert_int_equal(paths_default_config(path, sizeof(path), 7, xdg), 0);
	assert_string_equal(path, "/cfg/ncclsvc/ncclsvcd.conf");
	assert_int_equal(paths_default_config(path, sizeof(path), 7, home), 0);
	assert_string_equal(path, "/home/u/.config/ncclsvc/ncclsvcd.conf");
	assert_int_equal(paths_default_config(path, sizeof(path), 7, service), 0);
	assert_string_equal(path, "/etc/ncclsvc/ncclsvcd.conf");
	assert_int_equal(paths_default_config(path, sizeof(path), 0, home), 0);
	assert_non_null(strstr(path, "/ncclsvc/ncclsvcd.conf"));
	assert_null(strstr(path, "/home/u"));
	assert_int_equal(paths_default_config(path, sizeof(path), 7, none), -1);
	assert_int_equal(paths_default_config(tiny, sizeof(tiny), 7, home), -1);
}

static void test_make_socket_dir(void **state)
{
	char dir[] = "/tmp/test_config.XXXXXX", path[128], sub[64];
	struct stat st;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(sub, sizeof(sub), "%s/ncclsvc", dir);
	snprintf(path, sizeof(path), "%s/x.sock", sub);
	assert_int_equal(paths_make_socket_dir(path, 0700), 0);
	assert_int_equal(paths_make_socket_dir(path, 0700), 0);
	assert_int_equal(stat(sub, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	snprintf(path, sizeof(path), "%s/missing/deep/x.sock", dir);
	assert_true(paths_make_socket_dir(path, 0700) < 0);
	assert_int_equal(rmdir(sub), 0);
	assert_int_equal(rmdir(dir), 0);
}

static void test_shared_socket_dir(void **state)
{
	char dir[] = "/tmp/test_config.XXXXXX", path[128];

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/x.sock", dir);
	assert_false(paths_socket_dir_shared(path));
	assert_int_equal(chmod(dir, 01777),
			 0); /* the sticky bit does not stop others from being first */
	assert_true(paths_socket_dir_shared(path));
	assert_int_equal(chmod(dir, 0775), 0); /* a group is chosen */
	assert_false(paths_socket_dir_shared(path));
	if (!geteuid()) {
		assert_int_equal(chown(dir, 65533, 65533), 0);
		assert_false(paths_socket_dir_shared(path));
		assert_int_equal(seteuid(65532), 0);
		assert_true(paths_socket_dir_shared(path));
		assert_int_equal(seteuid(0), 0);
		assert_int_equal(seteuid(65533), 0);
		assert_false(paths_socket_dir_shared(path));
		assert_int_equal(seteuid(0), 0);
	}
	assert_int_equal(rmdir(dir), 0);
	assert_false(paths_socket_dir_shared(path));
}

static void test_passed_socket_needs_no_path(void **state)
{
	char pid[32];
	char *env[] = {no_env[1], "LISTEN_FDS=1", pid, NULL};
	static struct outcome o;

	(void)state;
	snprintf(pid, sizeof(pid), "LISTEN_PID=%d", (int)getpid());
	LOAD(&o, env, "--check-config");
	assert_int_equal(o.rc, 0);
	assert_string_equal(o.c.socket, "");
	assert_non_null(strstr(o.out, "; socket is passed by systemd"));
}

static void test_help_and_version(void **state)
{
	static struct outcome o;

	(void)state;
	LOAD(&o, no_env, "--help", "--nonsense");
	assert_int_equal(o.rc, 0);
	for (unsigned i = 0; i < config_keys_n; i++)
		assert_non_null(strstr(o.out, config_keys[i].help));
	assert_non_null(strstr(o.out, "--user-sessions-max VALUE"));
	LOAD(&o, no_env, "-V");
	assert_int_equal(o.rc, 0);
	assert_int_equal(strncmp(o.out, "ncclsvcd ", 9), 0);
}

static void test_reload(void **state)
{
	const char *const args[] = {"--config", file, "--tasks-max", "5", NULL};
	struct config_changes changes;
	static struct outcome o;
	struct config before;
	char *argv[ARGS_MAX];
	char err[1024] = "";
	FILE *e;
	int argc;

	(void)state;
	write_file("log_level = info\nranks = 2\ntasks_max = 7\n");
	load(&o, args, no_env);
	assert_int_equal(o.rc, -1);
	argc = make_argv(argv, args);

	assert_int_equal(config_reload(&o.c, argc, argv, no_env, stderr, &changes), 0);
	assert_string_equal(changes.applied, "");
	assert_string_equal(changes.restart, "");

	write_file("ranks = 3\nlog_level = debug\ncomms_max=9\ntasks_max = 8\nhost_threads = 13\n");
	assert_int_equal(config_reload(&o.c, argc, argv, no_env, stderr, &changes), 0);
	assert_string_equal(changes.applied, "log_level, comms_max");
	assert_string_equal(changes.restart, "ranks, host_threads");
	assert_int_equal(o.c.log_level, LOG_LEVEL_DEBUG);
	assert_int_equal(o.c.comms_max, 9);
	assert_int_equal(o.c.tasks_max, 5);
	assert_int_equal(o.c.ranks, 2);

	write_file("ranks = 3\nlog_level = loud\n");
	before = o.c;
	e = fmemopen(err, sizeof(err) - 1, "w");
	assert_non_null(e);
	assert_int_equal(config_reload(&o.c, argc, argv, no_env, e, &changes), -1);
	fclose(e);
	assert_non_null(strstr(err, ":2: log_level: 'loud' is not allowed"));
	assert_memory_equal(&before, &o.c, sizeof(before));
	assert_string_equal(changes.applied, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test_setup_teardown(test_order_of_sources, make_file, drop_file),
		cmocka_unit_test_setup_teardown(test_config_from_environment, make_file, drop_file),
		cmocka_unit_test_setup_teardown(test_check_config_round_trip, make_file, drop_file),
		cmocka_unit_test_setup_teardown(test_quiet_check_prints_errors_only, make_file,
						drop_file),
		cmocka_unit_test_setup_teardown(test_all_errors_are_listed, make_file, drop_file),
		cmocka_unit_test(test_the_world_has_a_section),
		cmocka_unit_test(test_option_errors),
		cmocka_unit_test_setup_teardown(test_file_errors, make_file, drop_file),
		cmocka_unit_test_setup_teardown(test_no_file, make_file, drop_file),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_percent_of_ram),
		cmocka_unit_test(test_scheduler_threads),
		cmocka_unit_test(test_nearest),
		cmocka_unit_test(test_socket_paths),
		cmocka_unit_test(test_config_paths),
		cmocka_unit_test(test_make_socket_dir),
		cmocka_unit_test(test_shared_socket_dir),
		cmocka_unit_test(test_passed_socket_needs_no_path),
		cmocka_unit_test(test_help_and_version),
		cmocka_unit_test_setup_teardown(test_reload, make_file, drop_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
