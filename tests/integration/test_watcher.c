/* SPDX-License-Identifier: Apache-2.0
 * The watcher logs each wait once when it becomes stuck, and once when it is over. The daemon runs
 * the ncclsvc-ctl in its own program's folder, so each test has a folder with a copy of the daemon.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"

#define STUCK "--stuck-after", "1"

enum { READY = 1, GO, DONE };

static char log_text[1 << 20];
static char folder[64], daemon_path[96], ctl_path[96];

/* ---- A folder with both programs ---- */

static void copy(const char *from, const char *to)
{
	static char bytes[1 << 16];
	const int in = open(from, O_RDONLY | O_CLOEXEC);
	const int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
	CHECK(in >= 0 && out >= 0);
	for (ssize_t n; (n = read(in, bytes, sizeof(bytes))) > 0;)
		CHECK_EQ(write(out, bytes, (size_t)n), n);
	close(in);
	close(out);
}

/* ctl: the contents of ncclsvc-ctl in that folder; NULL: a link to the real one. */
static void start(struct daemon *d, const char *ctl)
{
	snprintf(folder, sizeof(folder), "/tmp/ncclsvc-watcher-XXXXXX");
	CHECK(mkdtemp(folder));
	CHECK_EQ(chmod(folder, 0755), 0);
	snprintf(daemon_path, sizeof(daemon_path), "%s/ncclsvcd", folder);
	snprintf(ctl_path, sizeof(ctl_path), "%s/ncclsvc-ctl", folder);
	copy(program("NCCLSVCD"), daemon_path);
	if (ctl) {
		const int fd = open(ctl_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
		CHECK(fd >= 0);
		CHECK_EQ(write(fd, ctl, strlen(ctl)), strlen(ctl));
		close(fd);
	} else {
		CHECK_EQ(symlink(program("NCCLSVC_CTL"), ctl_path), 0);
	}
	char *before = strdup(program("NCCLSVCD"));
	CHECK_EQ(setenv("NCCLSVCD", daemon_path, 1), 0);
	daemon_start(d, STUCK, NULL);
	CHECK_EQ(setenv("NCCLSVCD", before, 1), 0);
	free(before);
}

static void stop(struct daemon *d)
{
	daemon_stop(d);
	unlink(daemon_path);
	unlink(ctl_path);
	rmdir(folder);
}

/* ---- The log ---- */

static int lines(const struct daemon *d, const char *what)
{
	size_t n = 0;
	int found = 0;
	const int fd = open(d->log, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	for (ssize_t k; n < sizeof(log_text) - 1 &&
			(k = read(fd, log_text + n, sizeof(log_text) - 1 - n)) > 0;)
		n += (size_t)k;
	close(fd);
	log_text[n] = '\0';
	for (const char *at = log_text; (at = strstr(at, what)); found++)
		at += strcspn(at, "\n");
	return found;
}

static void one_line(const struct daemon *d, const char *what)
{
	if (!daemon_logged(d, what) || lines(d, what) != 1)
		check_failed(__FILE__, __LINE__, "%d lines have \"%s\": %s", lines(d, what), what,
			     log_text);
}

static void no_line(const struct daemon *d, const char *what)
{
	if (lines(d, what))
		check_failed(__FILE__, __LINE__, "\"%s\" is in: %s", what, log_text);
}

/* ---- A wait ---- */

static ncclsvc_comm *join_as(struct client *me, ncclsvc_session *s, const char *label)
{
	ncclsvc_comm *comm;
	ncclsvc_comm_label_next(label);
	CHECK_OK(ncclsvc_comm_join(s, &me->id, me->nranks, me->rank, WAIT_MS, &comm));
	return comm;
}

/* Rank 1 comes late. */
static void waits(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = join_as(me, s, "watched");
	ncclsvc_task task;
	if (me->rank == 1)
		CHECK_EQ(hear(me), GO);
	CHECK_OK(ncclsvc_barrier(comm, &task));
	wait_for(s, task, NCCLSVC_OK);
	say(me, DONE);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

static void idles(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = join_as(me, s, "idle");
	check_usable(s, comm);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

static void a_wait_is_logged_at_its_beginning_and_its_end(void **state)
{
	struct daemon d;
	struct client late[2], idle[2];
	char culprit[32];
	(void)state;
	start(&d, NULL);
	clients_start(idle, 2, &d, idles, NULL);
	hear_all(idle, 2, READY);
	clients_start(late, 2, &d, waits, NULL);
	snprintf(culprit, sizeof(culprit), "pid %d", late[1].pid);
	one_line(&d, culprit);
	one_line(&d, "watched");
	sleep_ms(3000); /* some looks */
	one_line(&d, "watched");
	no_line(&d, "which waited");
	say(&late[1], GO);
	hear_all(late, 2, DONE);
	one_line(&d, "which waited");
	one_line(&d, "): Barrier #0, which waited ");
	one_line(&d, " s for rank 1, has completed");
	const int before = lines(&d, "idle"); /* on a busy machine it may have waited once */
	sleep_ms(2500);
	CHECK_EQ(lines(&d, "watched"), 2);
	CHECK_EQ(lines(&d, "idle"), before);
	say_all(late, 2, GO);
	say_all(idle, 2, GO);
	clients_end(late, 2);
	clients_end(idle, 2);
	stop(&d);
}

/* Rank 1 never comes: it dies. */
static void waits_in_vain(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = join_as(me, s, "watched");
	ncclsvc_task task;
	if (me->rank == 1)
		hear(me);
	CHECK_OK(ncclsvc_barrier(comm, &task));
	wait_for(s, task, NCCLSVC_PEER_GONE);
	ncclsvc_close(s);
}

static void a_wait_that_fails_says_how(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	start(&d, NULL);
	clients_start(clients, 2, &d, waits_in_vain, NULL);
	CHECK(daemon_logged(&d, "watched"));
	client_kill(&clients[1]);
	clients_end(clients, 2);
	one_line(&d, "which waited");
	one_line(&d, " s for rank 1, has failed: its epoch is over (member-died)");
	stop(&d);
}

static void times_out(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = join_as(me, s, "watched");
	ncclsvc_task task;
	CHECK_OK(ncclsvc_comm_set_timeout(comm, 12000)); /* it is logged before that */
	if (me->rank == 0) {
		CHECK_OK(ncclsvc_barrier(comm, &task));
		wait_for(s, task, NCCLSVC_TIMEOUT);
		say(me, DONE);
	}
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

static void a_task_that_fails_says_how(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	start(&d, NULL);
	clients_start(clients, 2, &d, times_out, NULL);
	CHECK(daemon_logged(&d, "watched"));
	CHECK_EQ(hear(&clients[0]), DONE);
	one_line(&d, " s for rank 1, has failed: TIMEOUT: the deadline passed waiting for rank 1");
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	stop(&d);
}

/* ---- JOIN ---- */

static void joins_late(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	if (me->rank == 1)
		CHECK_EQ(hear(me), GO);
	join_as(me, s, "watched");
	say(me, DONE);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

static void a_join_is_watched_too(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	start(&d, NULL);
	clients_start(clients, 2, &d, joins_late, NULL);
	one_line(&d, "watched");
	say(&clients[1], GO);
	hear_all(clients, 2, DONE);
	one_line(&d, "its JOIN, which waited ");
	one_line(&d, "is over: all ranks have joined");
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	stop(&d);
}

/* ---- ncclsvc-ctl fails ---- */

static void with_ctl(const char *ctl, const char *complaint)
{
	struct daemon d;
	struct client clients[2];
	start(&d, ctl);
	clients_start(clients, 2, &d, waits, NULL);
	if (complaint) {
		one_line(&d, "what is stuck cannot be logged");
		one_line(&d, complaint);
	} else {
		sleep_ms(4000);
		no_line(&d, "what is stuck cannot be logged");
	}
	say(&clients[1], GO);
	hear_all(clients, 2, DONE);
	no_line(&d, "watched");
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	stop(&d);
}

static void the_daemon_goes_on_without_it(void **state)
{
	(void)state;
	with_ctl("not a program", "has failed with exit code 127"); /* a shell tries */
	with_ctl("#!/no/such/interpreter\n", "no such file or directory");
	with_ctl("#!/bin/sh\nexit 1\n", "has failed with exit code 1");
	with_ctl("#!/bin/sh\nexec sleep 600\n", "has not answered in time");
}

static void nonsense_is_not_logged(void **state)
{
	(void)state;
	/* The daemon reads only a limited part of this endless output. */
	with_ctl("#!/bin/sh\nexec yes '4\tx\t0\tBarrier\t0\t1\trunning\twatched'\n", NULL);
	with_ctl("#!/bin/sh\nprintf '\\n\\t\\t\\n1\\t0\\t0\\tBarrier\\t99\\t\\t\\twatched\\n'\n"
		 "printf "
		 "'99\\t0\\t0\\tBarrier\\t0\\t\\t\\twatched\\n2\\t0\\t0\\tBarrier\\t\\t\\t\\t'\n"
		 "exit 3\n",
		 NULL);
}

/* The daemon exits while ncclsvc-ctl runs. */
static void the_end_does_not_wait_for_it(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	start(&d, "#!/bin/sh\ntouch $2.runs\nexec sleep 600\n");
	clients_start(clients, 2, &d, waits, NULL);
	char mark[128];
	struct stat st;
	snprintf(mark, sizeof(mark), "%s.runs", d.socket);
	for (int i = 0; stat(mark, &st) && i < WAIT_MS / 10; i++)
		sleep_ms(10);
	CHECK_EQ(unlink(mark), 0);
	say(&clients[1], GO);
	hear_all(clients, 2, DONE);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	CHECK_EQ(kill(d.pid, SIGTERM), 0);
	daemon_wait_exit(&d, 0);
	d.pid = 0;
	unlink(daemon_path);
	unlink(ctl_path);
	rmdir(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_wait_is_logged_at_its_beginning_and_its_end),
		TEST(a_wait_that_fails_says_how),
		TEST(a_task_that_fails_says_how),
		TEST(a_join_is_watched_too),
		TEST(the_daemon_goes_on_without_it),
		TEST(nonsense_is_not_logged),
		TEST(the_end_does_not_wait_for_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
