/* SPDX-License-Identifier: Apache-2.0
 * Machines whose driver or NCCL is missing or too old, and what the daemon does: without the driver
 * it has no GPUs, without NCCL it stages their memory through the host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "workers.h"

static void says(const char *text, const char *part)
{
	if (!strstr(text, part))
		check_failed(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", text, part);
}

/* With that option the daemon exits and logs why. */
static void does_not_start(const struct rank_group *c, const char *key, const char *value,
			   const char *what, const char *why, const char *more)
{
	static char out[1 << 16];
	char socket[108];
	snprintf(socket, sizeof(socket), "%s/refused.s", c->fake);
	char *argv[] = {(char *)(uintptr_t)program("NCCLSVCD"),
			"--socket",
			socket,
			"--log-target",
			"stderr",
			(char *)(uintptr_t)key,
			(char *)(uintptr_t)value,
			NULL};
	CHECK(run_program(argv, out, sizeof(out)) != 0);
	says(out, what);
	says(out, why);
	says(out, more);
	CHECK(!strstr(out, "Sanitizer"));
}

/* With device = auto the daemon runs and reports why it has no GPU. */
static void refuses(const struct rank_group *c, const char *why, const char *more)
{
	struct daemon d;
	does_not_start(c, "--device", "cuda", "no GPU can be used", why, more);
	daemon_start(&d, "--device", "auto", NULL);
	CHECK(daemon_says(&d, "no GPU is used"));
	CHECK(daemon_says(&d, why));
	CHECK(daemon_says(&d, more));
	daemon_stop(&d);
}

/* Without NCCL, unless it is required, the daemon runs and reports the lack everywhere. */
static void goes_without(struct rank_group *c, const char *why, const char *more)
{
	static char out[1 << 16];
	does_not_start(c, "--transport", "nccl", "transport = nccl, but NCCL cannot be used", why,
		       more);
	char *doctor[] = {(char *)(uintptr_t)program("NCCLSVC_CTL"), "doctor", "--socket", NULL,
			  NULL};
	ranks_start_daemon(c, NULL);
	ranks_create(c, 2);
	ranks_join(c, 1, 3, 0);
	CHECK(daemon_says(&c->d, "NCCL cannot be used"));
	CHECK(daemon_says(&c->d, why));
	CHECK(daemon_says(&c->d, more));
	CHECK(daemon_says(&c->d, "staged through host memory"));
	CHECK_EQ(device_of(c, 1).transport, NCCLSVC_TRANSPORT_MPI);
	CHECK_EQ(device_of(c, 1).nccl_version, 0);
	doctor[3] = c->d.socket;
	run_program(doctor, out, sizeof(out));
	says(out, "The daemon has no usable NCCL");
	/* Memory of cuMemCreate does not depend on NCCL either. */
	for (int i = 0; i < 2; i++)
		ranks_must(c, i, ORDER_ALLOC, NCCLSVC_OK, 1 << 20);
	ranks_try(c, 3, 0);
	ranks_kill(c, 1);
	ranks_replace(c, 1);
	ranks_begin(c, 1, ORDER_JOIN, 1, 2, 1, 1, WAIT_MS, 0);
	ranks_rejoin(c, 1, 0);
	ranks_ended(c, 1, NCCLSVC_OK);
	ranks_try(c, 3, 0);
}

static void host_ignores_it(void)
{
	struct daemon d;
	daemon_start(&d, "--device", "host", "--log-level", "debug", NULL);
	CHECK(!daemon_says(&d, "GPU"));
	daemon_stop(&d);
}

static void old_driver(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_prepare(&c, 2);
	fault_on(&c, "driver-old", 0);
	refuses(&c, "11.4", "12.0 is needed");
	host_ignores_it();
	ranks_stop(&c);
}

static void old_nccl(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_prepare(&c, 2);
	fault_on(&c, "nccl-old", 0);
	host_ignores_it();
	goes_without(&c, "2.15.0", "is needed");
	ranks_stop(&c);
}

/* Finds the library in a search path. */
static void find_in(const char *search, const char *name, char *to, size_t size)
{
	for (const char *at = search; *at; at += strspn(at, ":")) {
		size_t n = strcspn(at, ":");
		snprintf(to, size, "%.*s/%s", (int)n, at, name);
		if (!access(to, R_OK))
			return;
		at += n;
	}
	check_failed(__FILE__, __LINE__, "%s is not in %s", name, search);
}

/* Tests dlopen with a missing, valid or broken copy of each library. */
static void with_libraries(const char *cuda, const char *nccl, const char *why, const char *more,
			   bool staged)
{
	struct rank_group c;
	char dir[64], path[256], old[1024];
	const char *libraries[][2] = {{"libcuda.so.1", cuda}, {"libnccl.so.2", nccl}};
	ranks_prepare(&c, 2);
	snprintf(old, sizeof(old), "%s", getenv("LD_LIBRARY_PATH"));
	memcpy(dir, c.fake, sizeof(dir));
	for (int i = 0; i < 2; i++) {
		char to[2048];
		const char *name = libraries[i][0];
		snprintf(path, sizeof(path), "%s/%s", dir, name);
		find_in(old, name, to, sizeof(to));
		if (!strcmp(libraries[i][1], "good")) {
			CHECK_EQ(symlink(to, path), 0);
		} else {
			FILE *f = fopen(path, "we");
			CHECK(f);
			fputs("no library", f);
			fclose(f);
		}
	}
	setenv("LD_LIBRARY_PATH", dir, 1);
	host_ignores_it();
	if (staged)
		goes_without(&c, why, more);
	else
		refuses(&c, why, more);
	setenv("LD_LIBRARY_PATH", old, 1);
	ranks_stop(&c);
}

static void no_driver(void **state)
{
	(void)state;
	with_libraries("bad", "good", "libcuda.so.1", "too short", false);
}

static void no_nccl(void **state)
{
	(void)state;
	with_libraries("good", "bad", "libnccl.so.2", "too short", true);
}

static bool system_has(const char *library)
{
	static char out[1 << 18];
	char *argv[] = {"/sbin/ldconfig", "-p", NULL};
	return run_program(argv, out, sizeof(out)) || strstr(out, library);
}

static void nothing_at_all(void **state)
{
	struct rank_group c;
	char old[1024];
	(void)state;
	if (system_has("libcuda.so.1"))
		skip_because("this machine has a driver");
	ranks_prepare(&c, 2);
	snprintf(old, sizeof(old), "%s", getenv("LD_LIBRARY_PATH"));
	setenv("LD_LIBRARY_PATH", c.fake, 1);
	refuses(&c, "libcuda.so.1", "");
	setenv("LD_LIBRARY_PATH", old, 1);
	ranks_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RANKS_TEST(old_driver), RANKS_TEST(old_nccl),	    RANKS_TEST(no_driver),
		RANKS_TEST(no_nccl),	RANKS_TEST(nothing_at_all),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
