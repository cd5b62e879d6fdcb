/* SPDX-License-Identifier: Apache-2.0
 * The MPS control daemon that a daemon with GPUs starts, finds, takes over, watches and ends. */
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workers.h"

#define PID_FILE "nvidia-cuda-mps-control.pid"

/* ---- The scene ---- */

/* Makes the stand-in available through PATH only, if `installed` is set. */
static void prepare(struct rank_group *c, bool installed)
{
	char path[1024];
	snprintf(path, sizeof(path), "%s%s/usr/bin:/bin",
		 installed ? program("NCCLSVC_FAKE_MPS") : "", installed ? ":" : "");
	setenv("PATH", path, 1);
	unsetenv("NCCLSVCD_MPS");
	unsetenv("CUDA_MPS_PIPE_DIRECTORY");
	ranks_prepare(c, 1);
}

static ncclsvc_daemon_info info_of(const struct rank_group *c)
{
	ncclsvc_daemon_info info;
	ncclsvc_session *session = session_open(&c->d);
	CHECK_EQ(ncclsvc_daemon(session, &info), NCCLSVC_OK);
	ncclsvc_close(session);
	return info;
}

/* Waits until the daemon reports that it has started the control daemon that many times. */
static ncclsvc_daemon_info started(const struct rank_group *c, uint32_t times)
{
	ncclsvc_daemon_info info = info_of(c);
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;
	     (info.mps != NCCLSVC_MPS_OWN || info.mps_starts < times) && now_ns() < end;
	     sleep_ms(5))
		info = info_of(c);
	CHECK_EQ(info.mps, NCCLSVC_MPS_OWN);
	CHECK_EQ(info.mps_starts, times);
	return info;
}

static void says(const char *text, const char *part)
{
	if (!strstr(text, part))
		check_failed(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", text, part);
}

static void directory_of(const struct rank_group *c, char *path, size_t size)
{
	snprintf(path, size, "%s.mps", c->d.socket);
}

/* Ends the daemon. Keeps its directory for the next one unless `last` is set. */
static void end_daemon(struct rank_group *c, bool last)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/kept", c->d.dir);
	FILE *f = fopen(path, "we");
	CHECK(f && !fclose(f));
	kill(c->d.pid, SIGTERM);
	daemon_wait_exit(&c->d, 0);
	unlink(path);
	if (last)
		CHECK(!rmdir(c->d.dir));
}

static bool exists(const char *path)
{
	return !access(path, F_OK);
}

static void await_gone(pid_t pid)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; !kill(pid, 0); sleep_ms(5)) {
		char state = process_state(pid);
		if (!state || state == 'Z')
			return;
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "the control daemon %d lives on", pid);
	}
}

/* ---- Another user's control daemon, and its clients ---- */

static pid_t control_start(const char *directory)
{
	char path[1024], pid_file[256];
	snprintf(path, sizeof(path), "%s/nvidia-cuda-mps-control", program("NCCLSVC_FAKE_MPS"));
	CHECK(!mkdir(directory, 0700));
	setenv("CUDA_MPS_PIPE_DIRECTORY", directory, 1);
	pid_t pid = fork();
	if (!pid) {
		execl(path, path, "-f", NULL);
		_exit(127);
	}
	CHECK(pid > 0);
	unsetenv("CUDA_MPS_PIPE_DIRECTORY");
	snprintf(pid_file, sizeof(pid_file), "%s/control", directory);
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; !exists(pid_file); sleep_ms(2))
		CHECK(now_ns() < end);
	return pid;
}

static void control_end(pid_t pid)
{
	kill(pid, SIGKILL);
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

/* Connects like a GPU process that uses this control daemon. Returns -1 if refused. */
static int become_client(const char *directory)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char welcome = 0;
	int n = snprintf(address.sun_path, sizeof(address.sun_path), "%s/control", directory);
	CHECK(n > 0 && (size_t)n < sizeof(address.sun_path));
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) ||
	    recv(fd, &welcome, 1, 0) != 1 || welcome != 'y') {
		close(fd);
		return -1;
	}
	return fd;
}

/* ---- Tests ---- */

/* The control daemon outlives the daemon, so it must not inherit descriptors whose close others
 * wait for. */
static void it_inherits_nothing(void **state)
{
	struct rank_group c;
	int ends[2];
	char byte;
	(void)state;
	prepare(&c, true);
	CHECK(!pipe(ends));
	ranks_start_daemon(&c, NULL);
	close(ends[1]);
	const pid_t control = started(&c, 1).mps_pid;
	daemon_kill(&c.d);
	struct pollfd end = {.fd = ends[0], .events = POLLIN};
	CHECK_EQ(poll(&end, 1, WAIT_MS), 1);
	CHECK_EQ(read(ends[0], &byte, 1), 0);
	close(ends[0]);
	kill(control, SIGKILL);
	await_gone(control);
	daemon_restart(&c.d, "--device", "cuda", NULL);
	end_daemon(&c, true); /* this daemon lacks the pipe that the first had */
	ranks_stop(&c);
}

static void one_of_its_own(void **state)
{
	struct rank_group c;
	struct stat st;
	char directory[128];
	(void)state;
	prepare(&c, true);
	ranks_start_daemon(&c, NULL);
	ncclsvc_daemon_info info = started(&c, 1);
	directory_of(&c, directory, sizeof(directory));
	says(info.mps_text, directory);
	CHECK(!lstat(directory, &st));
	CHECK_EQ(st.st_mode & 07777, 0700);
	CHECK(daemon_says(&c.d, "shares the GPU through MPS"));
	CHECK_EQ(device_of(&c, 0).mps, NCCLSVC_MPS_ACTIVE);
	ranks_stop(&c);
	await_gone(info.mps_pid);
	CHECK(!exists(directory));
}

static void two_daemons_share_nothing(void **state)
{
	struct rank_group c;
	struct daemon other;
	(void)state;
	prepare(&c, true);
	ranks_start_daemon(&c, NULL);
	daemon_start(&other, "--device", "cuda", NULL);
	struct rank_group view = {.d = other};
	CHECK(info_of(&view).mps_pid != info_of(&c).mps_pid);
	CHECK_EQ(info_of(&view).mps, NCCLSVC_MPS_OWN);
	daemon_stop(&other);
	started(&c, 1);
	ranks_stop(&c);
}

/* After a process opens a session, its environment names the daemon's MPS directory. Its
 * children inherit it. */
static void another_daemons_is_not_found(void **state)
{
	struct rank_group c;
	struct daemon other;
	char directory[128];
	(void)state;
	prepare(&c, true);
	ranks_start_daemon(&c, NULL);
	directory_of(&c, directory, sizeof(directory));
	ncclsvc_session *session = session_open(&c.d);
	CHECK(!strcmp(getenv("CUDA_MPS_PIPE_DIRECTORY"), directory));
	ncclsvc_close(session);
	daemon_start(&other, "--device", "cuda", NULL);
	struct rank_group view = {.d = other};
	CHECK_EQ(info_of(&view).mps, NCCLSVC_MPS_OWN);
	CHECK(info_of(&view).mps_pid != info_of(&c).mps_pid);
	daemon_stop(&other);
	ranks_stop(&c);
}

static void none_is_installed(void **state)
{
	struct rank_group c;
	(void)state;
	if (exists("/usr/bin/nvidia-cuda-mps-control"))
		skip();
	prepare(&c, false);
	ranks_start_daemon(&c, NULL);
	CHECK(daemon_says(&c.d, "no MPS: nvidia-cuda-mps-control is not installed"));
	ncclsvc_daemon_info info = info_of(&c);
	CHECK_EQ(info.mps, NCCLSVC_MPS_NOBODY);
	says(info.mps_text, "not installed");
	CHECK_EQ(device_of(&c, 0).mps, NCCLSVC_MPS_NONE);
	ranks_stop(&c);
}

static void none_is_wanted(void **state)
{
	struct rank_group c;
	char directory[128];
	(void)state;
	prepare(&c, true);
	ranks_start_daemon(&c, "--mps", "off", NULL);
	ncclsvc_daemon_info info = info_of(&c);
	directory_of(&c, directory, sizeof(directory));
	CHECK_EQ(info.mps, NCCLSVC_MPS_NOBODY);
	says(info.mps_text, "mps = off");
	CHECK(!exists(directory));
	ranks_stop(&c);
}

static void a_killed_daemons_is_taken_over(void **state)
{
	struct rank_group c;
	char directory[128];
	(void)state;
	prepare(&c, true);
	ranks_start_daemon(&c, NULL);
	directory_of(&c, directory, sizeof(directory));
	const pid_t control = started(&c, 1).mps_pid;
	const int client = become_client(directory);
	CHECK(client >= 0);
	daemon_kill(&c.d);
	daemon_restart(&c.d, "--device", "cuda", NULL);
	CHECK(daemon_says(&c.d, "which an earlier ncclsvcd started"));
	ncclsvc_daemon_info info = started(&c, 0);
	CHECK_EQ(info.mps_pid, control);
	CHECK_EQ(device_of(&c, 0).mps, NCCLSVC_MPS_ACTIVE);
	close(client);
	ranks_stop(&c);
	await_gone(control);
	CHECK(!exists(directory));
}

static void a_killed_one_is_started_again(void **state)
{
	struct rank_group c;
	(void)state;
	prepare(&c, true);
	ranks_start_daemon(&c, NULL);
	ncclsvc_daemon_info info = started(&c, 1);
	const int worker = device_of(&c, 0).pid;
	kill(info.mps_pid, SIGKILL);
	CHECK(daemon_logged(&c.d, "was ended by signal 9"));
	info = started(&c, 2);
	CHECK(!kill(info.mps_pid, 0));
	CHECK_EQ(worker_replaced(&c, 0, worker).mps, NCCLSVC_MPS_ACTIVE);
	/* The daemon does not keep restarting a short-lived control daemon without a pause. */
	const uint64_t since = now_ns();
	kill(info.mps_pid, SIGKILL);
	info = started(&c, 3);
	CHECK((now_ns() - since) / 1000000 >= 900);
	ranks_stop(&c);
}

static void it_ends_at_once(void **state)
{
	struct rank_group c;
	char directory[128], path[1024];
	(void)state;
	prepare(&c, true);
	/* A failing program replaces it. */
	snprintf(directory, sizeof(directory), "%s/bin", c.fake);
	CHECK(!mkdir(directory, 0700));
	snprintf(path, sizeof(path), "%s/nvidia-cuda-mps-control", directory);
	FILE *f = fopen(path, "we");
	CHECK(f);
	fputs("#!/bin/sh\necho no GPU for you\nexit 3\n", f);
	CHECK(!fclose(f) && !chmod(path, 0700));
	snprintf(path, sizeof(path), "%s:/usr/bin:/bin", directory);
	setenv("PATH", path, 1);
	ranks_start_daemon(&c, NULL);
	CHECK(daemon_logged(&c.d, "exited with code 3: no GPU for you"));
	ncclsvc_daemon_info info = info_of(&c);
	CHECK_EQ(info.mps, NCCLSVC_MPS_NOBODY);
	says(info.mps_text, "exited with code 3");
	CHECK_EQ(device_of(&c, 0).mps, NCCLSVC_MPS_NONE);
	/* The daemon retries, and succeeds once the program works. */
	snprintf(path, sizeof(path), "%s/nvidia-cuda-mps-control", directory);
	unlink(path);
	char real[1024];
	snprintf(real, sizeof(real), "%s/nvidia-cuda-mps-control", program("NCCLSVC_FAKE_MPS"));
	CHECK(!symlink(real, path));
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; info.mps != NCCLSVC_MPS_OWN;
	     sleep_ms(20)) {
		CHECK(now_ns() < end);
		info = info_of(&c);
	}
	end_daemon(&c, true); /* the daemon has one fd more than at first */
	ranks_stop(&c);
	unlink(path);
	rmdir(directory);
}

static void who_has_other_clients_ends_with_them(void **state)
{
	struct rank_group c;
	char directory[128], left[160];
	(void)state;
	prepare(&c, true);
	ranks_start_daemon(&c, NULL);
	directory_of(&c, directory, sizeof(directory));
	const pid_t control = started(&c, 1).mps_pid;
	const int client = become_client(directory);
	CHECK(client >= 0);
	snprintf(left, sizeof(left), "%s.%d", directory, control);
	end_daemon(&c, false);
	CHECK(!exists(directory) && exists(left));
	CHECK(!kill(control, 0));
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;; sleep_ms(5)) {
		const int one_more = become_client(left);
		if (one_more < 0)
			break;
		close(one_more);
		CHECK(now_ns() < end);
	}
	/* The next daemon starts its own at once. */
	daemon_restart(&c.d, "--device", "cuda", NULL);
	const pid_t next = started(&c, 1).mps_pid;
	CHECK(next != control);
	CHECK(exists(left));
	close(client);
	await_gone(control);
	end_daemon(&c, false);
	/* The daemon after that cleans up. */
	daemon_restart(&c.d, "--device", "cuda", NULL);
	started(&c, 1);
	CHECK(!exists(left));
	ranks_stop(&c);
}

static void one_that_is_found(void **state)
{
	struct rank_group c;
	char directory[96];
	(void)state;
	prepare(&c, true);
	snprintf(directory, sizeof(directory), "%s/pipes", c.fake);
	const pid_t control = control_start(directory);
	setenv("CUDA_MPS_PIPE_DIRECTORY", directory, 1);
	ranks_start_daemon(&c, NULL);
	ncclsvc_daemon_info info = info_of(&c);
	CHECK_EQ(info.mps, NCCLSVC_MPS_FOUND);
	CHECK_EQ(info.mps_pid, 0);
	says(info.mps_text, directory);
	CHECK_EQ(device_of(&c, 0).mps, NCCLSVC_MPS_ACTIVE);
	end_daemon(&c, false);
	CHECK_EQ(waitpid(control, NULL, WNOHANG), 0);
	control_end(control);
	/* A control daemon that is gone does not count: the daemon starts its own again. */
	daemon_restart(&c.d, "--device", "cuda", NULL);
	started(&c, 1);
	end_daemon(&c, true);
	ranks_stop(&c);
}

static void one_that_is_given(void **state)
{
	struct rank_group c;
	char directory[96];
	(void)state;
	prepare(&c, true);
	snprintf(directory, sizeof(directory), "%s/pipes", c.fake);
	ranks_start_daemon(&c, "--mps", directory, NULL);
	CHECK(daemon_says(&c.d, "no control daemon answers in"));
	ncclsvc_daemon_info info = info_of(&c);
	CHECK_EQ(info.mps, NCCLSVC_MPS_NOBODY);
	says(info.mps_text, "none answers in");
	CHECK_EQ(device_of(&c, 0).mps, NCCLSVC_MPS_NONE);
	const pid_t control = control_start(directory);
	CHECK_EQ(info_of(&c).mps, NCCLSVC_MPS_FOUND);
	/* The next worker uses the control daemon. */
	const int before = device_of(&c, 0).pid;
	worker_kill(&c, 0);
	CHECK_EQ(worker_replaced(&c, 0, before).mps, NCCLSVC_MPS_ACTIVE);
	end_daemon(&c, true); /* that worker has one fd more than the first */
	ranks_stop(&c);
	control_end(control);
}

/* In a directory like /tmp, any user may create the path first. */
static void a_directory_that_others_may_write(void **state)
{
	struct rank_group c;
	char directory[128];
	(void)state;
	prepare(&c, true);
	ranks_start_daemon(&c, NULL);
	directory_of(&c, directory, sizeof(directory));
	end_daemon(&c, false);
	CHECK(!mkdir(directory, 0700) && !chmod(directory, 0770));
	daemon_restart(&c.d, "--device", "cuda", NULL);
	CHECK(daemon_says(&c.d, "is not a directory that only this user can access"));
	CHECK_EQ(info_of(&c).mps, NCCLSVC_MPS_NOBODY);
	end_daemon(&c, false);
	CHECK(!rmdir(directory) && !symlink(c.fake, directory));
	daemon_restart(&c.d, "--device", "cuda", NULL);
	CHECK(daemon_says(&c.d, "is not a directory that only this user can access"));
	CHECK(exists(directory));
	unlink(directory);
	end_daemon(&c, true);
	ranks_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RANKS_TEST(one_of_its_own),
		RANKS_TEST(it_inherits_nothing),
		RANKS_TEST(two_daemons_share_nothing),
		RANKS_TEST(another_daemons_is_not_found),
		RANKS_TEST(none_is_installed),
		RANKS_TEST(none_is_wanted),
		RANKS_TEST(a_killed_daemons_is_taken_over),
		RANKS_TEST(a_killed_one_is_started_again),
		RANKS_TEST(it_ends_at_once),
		RANKS_TEST(who_has_other_clients_ends_with_them),
		RANKS_TEST(one_that_is_found),
		RANKS_TEST(one_that_is_given),
		RANKS_TEST(a_directory_that_others_may_write),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
