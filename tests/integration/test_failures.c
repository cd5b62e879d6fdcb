/* SPDX-License-Identifier: Apache-2.0
 * The record of failures: the cause of each, how its rank ended, and which ends only followed from
 * it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

#define RANKS 4

enum { READY = 1, GO };

/* ---- The record ---- */

/* Waits until n failures are recorded, and returns the last. */
static ncclsvc_failure_info failures_reach(const struct daemon *d, size_t n)
{
	ncclsvc_session *s = session_open(d);
	ncclsvc_failure_info *list, last = {0};
	size_t have = 0;
	for (int ms = 0; ms < WAIT_MS; ms += 10, sleep_ms(10)) {
		CHECK_OK(ncclsvc_list_failures(s, 0, &list, &have));
		if (have)
			last = list[have - 1];
		ncclsvc_list_free(list);
		if (have >= n)
			break;
	}
	CHECK_EQ(have, n);
	CHECK_OK(ncclsvc_list_failures(s, last.failure + 1, &list, &have));
	CHECK_EQ(have, 0);
	ncclsvc_close(s);
	return last;
}

/* Returns the last of n failures, once `ended` ranks have ended after it. */
static ncclsvc_failure_info followed(const struct daemon *d, size_t n, uint32_t ended)
{
	for (int ms = 0; ms < WAIT_MS; ms += 10, sleep_ms(10))
		if (failures_reach(d, n).ended >= ended)
			break;
	const ncclsvc_failure_info f = failures_reach(d, n);
	CHECK_EQ(f.ended, ended);
	return f;
}

/* ---- How a rank ends ---- */

struct end {
	ncclsvc_ending ending;
	int code;
	const char *says;
};

static const struct end ends[] = {
	{NCCLSVC_ENDED_KILLED, SIGKILL, "was killed by SIGKILL"},
	{NCCLSVC_ENDED_KILLED, SIGSEGV, "was killed by SIGSEGV"},
	{NCCLSVC_ENDED_EXITED, 0, "exited with status 0"},
	{NCCLSVC_ENDED_EXITED, 7, "exited with status 7"},
	{NCCLSVC_ENDED_CLOSED, 0, "closed its session"},
	{NCCLSVC_ENDED_ABORTED, 0, "aborted the communicator"},
};

/* A forked child ends like this, because the test would report the client's own end as an error. */
static void end_as(const struct daemon *d, const struct client *me, const struct end *end)
{
	const pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid)
		return;
	struct client own = *me;
	own.pid = getpid();
	ncclsvc_session *s = session_open(d);
	ncclsvc_comm *comm = comm_join(&own, s);
	check_usable(s, comm);
	say(&own, (uint64_t)getpid());
	CHECK_EQ(hear(&own), GO);
	if (end->ending == NCCLSVC_ENDED_KILLED)
		kill(getpid(), end->code);
	if (end->ending == NCCLSVC_ENDED_CLOSED)
		ncclsvc_close(s);
	if (end->ending == NCCLSVC_ENDED_ABORTED)
		ncclsvc_comm_abort(comm);
	if (end->ending == NCCLSVC_ENDED_EXITED)
		_exit(end->code);
	sleep_ms(WAIT_MS); /* the test kills it before */
	_exit(0);
}

static void ends_or_waits(struct client *me)
{
	const struct end *end = me->arg;
	char want[64];
	ncclsvc_task task;
	if (me->rank == RANKS - 1) {
		end_as(me->daemon, me, end);
		return;
	}
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	check_usable(s, comm);
	CHECK_OK(ncclsvc_barrier(comm, &task));
	say(me, READY);
	wait_for(s, task, NCCLSVC_PEER_GONE);
	const ncclsvc_status st = status_of(s, task);
	CHECK_EQ(st.rank_a, RANKS - 1);
	CHECK_EQ(st.ending, end->ending);
	CHECK_EQ(st.ending_code, end->code);
	snprintf(want, sizeof(want), " %s;", end->says);
	if (!strstr(ncclsvc_last_error(), want))
		check_failed(__FILE__, __LINE__, "no \"%s\" in %s", want, ncclsvc_last_error());
	_exit(0); /* as programs do on an error: without leaving */
}

static void each_way_to_end_is_distinguished(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		struct daemon d;
		struct client clients[RANKS];
		char want[128];
		daemon_start(&d, NULL);
		clients_start(clients, RANKS, &d, ends_or_waits, (void *)(uintptr_t)&ends[i]);
		hear_all(clients, RANKS - 1, READY);
		const int32_t pid = (int32_t)hear(&clients[RANKS - 1]);
		ncclsvc_session *s = session_open(&d);
		tasks_reach(s, NCCLSVC_WAITING_PEERS, RANKS - 1);
		ncclsvc_close(s);
		say(&clients[RANKS - 1], GO);
		const ncclsvc_failure_info f = followed(&d, 1, RANKS - 1);
		CHECK_EQ(f.kind, NCCLSVC_FAILURE_EPOCH);
		CHECK_EQ(f.result, NCCLSVC_PEER_GONE);
		CHECK_EQ(f.rank, RANKS - 1);
		CHECK_EQ(f.pid, pid);
		CHECK_EQ(f.ending, ends[i].ending);
		CHECK_EQ(f.ending_code, ends[i].code);
		CHECK_EQ(f.pending, RANKS - 1);
		CHECK_EQ(f.cause, 0);
		snprintf(want, sizeof(want), "rank 3 (pid %d) %s", pid, ends[i].says);
		if (!strstr(f.text, want))
			check_failed(__FILE__, __LINE__, "no \"%s\" in %s", want, f.text);
		kill(pid, SIGKILL);
		clients_end(clients, RANKS);
		CHECK(daemon_logged(&d, "after failure 1, ranks 0-2 ended, too"));
		daemon_stop(&d);
	}
}

/* ---- Ends that are no failures ---- */

static void leaves_or_exits(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	check_usable(s, comm);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	if (me->rank % 2)
		ncclsvc_comm_leave(comm);
	_exit(0);
}

static void a_clean_end_is_no_failure(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, RANKS, &d, leaves_or_exits, NULL);
	hear_all(clients, RANKS, READY);
	say_all(clients, RANKS, GO);
	clients_end(clients, RANKS);
	daemon_finishes(&d);
	failures_reach(&d, 0);
	daemon_stop(&d);
}

/* ---- Consequences ---- */

/* All ranks exit on a MISMATCH, which is the only cause, also for their second communicator. */
static void exits_on_mismatch(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	me->id.bytes[0]++;
	ncclsvc_comm *other = comm_join(me, s);
	check_usable(s, other);
	int32_t *v = shared(s, 64);
	ncclsvc_task task;
	CHECK_OK(ncclsvc_all_reduce(v, v, me->rank == 1 ? 2 : 1, NCCLSVC_INT32, NCCLSVC_SUM, comm,
				    &task));
	wait_for(s, task, NCCLSVC_MISMATCH);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	_exit(0);
}

static void exits_on_an_error_are_no_causes(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, RANKS, &d, exits_on_mismatch, NULL);
	hear_all(clients, RANKS, READY);
	const pid_t culprit = clients[1].pid;
	say_all(clients, RANKS, GO);
	clients_end(clients, RANKS);
	const ncclsvc_failure_info f = followed(&d, 1, RANKS - 1); /* all but the culprit */
	CHECK_EQ(f.kind, NCCLSVC_FAILURE_TASK);
	CHECK_EQ(f.result, NCCLSVC_MISMATCH);
	CHECK_EQ(f.op, NCCLSVC_ALL_REDUCE);
	CHECK_EQ(f.rank, 1);
	CHECK_EQ(f.pid, culprit);
	CHECK(f.comms >= 1);
	daemon_stop(&d);
}

/* ---- A later epoch ---- */

/* Ranks 0 and 1 rejoin after a failure: the end of their next epoch is another failure. */
static void rejoins(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_task task;
	check_usable(s, comm);
	CHECK_OK(ncclsvc_barrier(comm, &task));
	say(me, READY);
	wait_for(s, task, NCCLSVC_PEER_GONE);
	CHECK_OK(ncclsvc_comm_rejoin(comm, WAIT_MS));
	if (me->rank == 0)
		kill(getpid(), SIGKILL);
	CHECK_OK(ncclsvc_barrier(comm, &task));
	wait_for(s, task, NCCLSVC_PEER_GONE);
	CHECK_EQ(status_of(s, task).rank_a, 0);
	_exit(0);
}

static void waits_to_be_killed(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	check_usable(s, comm);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
}

static void either(struct client *me)
{
	if (me->rank == 2)
		waits_to_be_killed(me);
	else
		rejoins(me);
}

static void comes_back(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_task task;
	CHECK_OK(ncclsvc_barrier(comm, &task));
	wait_for(s, task, NCCLSVC_PEER_GONE);
	_exit(0);
}

static void a_rank_that_has_rejoined_is_a_cause(void **state)
{
	struct daemon d;
	struct client clients[3];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 3, &d, either, NULL);
	hear_all(clients, 3, READY);
	const pid_t first = clients[2].pid, second = clients[0].pid;
	client_kill(&clients[2]);
	CHECK_EQ(failures_reach(&d, 1).pid, first);
	clients[2].rank = 2;
	client_start(&clients[2], comes_back);
	const ncclsvc_failure_info f = failures_reach(&d, 2);
	CHECK_EQ(f.pid, second);
	CHECK_EQ(f.rank, 0);
	CHECK_EQ(f.ending, NCCLSVC_ENDED_KILLED);
	CHECK_EQ(f.epoch, 2);
	int status;
	CHECK_EQ(waitpid(second, &status, 0), second);
	clients[0].pid = 0;
	clients_end(clients, 3);
	daemon_stop(&d);
}

/* ---- Over a restart ---- */

static void dies(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	check_usable(s, comm);
	if (me->rank == 1)
		kill(getpid(), SIGKILL);
	CHECK_EQ(hear(me), GO);
	_exit(0);
}

static void ctl_says(const struct daemon *d, const char *option, const char *want)
{
	char out[16384];
	char *argv[] = {(char *)program("NCCLSVC_CTL"),
			"--socket",
			(char *)d->socket,
			"failures",
			(char *)option,
			NULL};
	CHECK_EQ(run_program(argv, out, sizeof(out)), 0);
	if (!strstr(out, want))
		check_failed(__FILE__, __LINE__, "no \"%s\" in %s", want, out);
}

static void a_restarted_daemon_remembers(void **state)
{
	struct daemon d;
	struct client clients[2];
	char directory[] = "/tmp/ncclsvc-failures-XXXXXX", path[64], want[128];
	(void)state;
	CHECK(mkdtemp(directory));
	CHECK_EQ(setenv("STATE_DIRECTORY", directory, 1), 0);
	daemon_start(&d, NULL);
	ctl_says(&d, NULL, "No failures.");
	clients_start(clients, 2, &d, dies, NULL);
	const ncclsvc_failure_info before = failures_reach(&d, 1);
	CHECK_EQ(before.pid, clients[1].pid);
	clients[1].pid = 0;
	say(&clients[0], GO);
	clients_end(clients, 1);
	followed(&d, 1, 1);
	daemon_stop(&d); /* a killed daemon may lose its last write */
	daemon_start(&d, NULL);
	const ncclsvc_failure_info after = failures_reach(&d, 1);
	CHECK_EQ(after.failure, before.failure);
	CHECK_EQ(after.unix_ns, before.unix_ns);
	CHECK_EQ(after.ended, 1);
	CHECK_EQ(after.comm, 0);
	snprintf(want, sizeof(want), "rank 1 (pid %d) was killed by SIGKILL", before.pid);
	ctl_says(&d, NULL, want);
	ctl_says(&d, NULL, "Then rank 0 ended, too.");
	ctl_says(&d, "--since=1h", want);
	ctl_says(&d, "--since=2999-01-01", "No failures.");
	ctl_says(&d, "--json", "\"ending\":\"killed\",\"ending_code\":9");
	/* The daemon replaces a damaged file by an empty one. */
	daemon_kill(&d);
	snprintf(path, sizeof(path), "%s/failures", directory);
	CHECK_EQ(truncate(path, 100), 0);
	daemon_restart(&d, NULL);
	ctl_says(&d, NULL, "No failures.");
	daemon_stop(&d);
	CHECK_EQ(unsetenv("STATE_DIRECTORY"), 0);
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(rmdir(directory), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(each_way_to_end_is_distinguished), TEST(a_clean_end_is_no_failure),
		TEST(exits_on_an_error_are_no_causes),	TEST(a_rank_that_has_rejoined_is_a_cause),
		TEST(a_restarted_daemon_remembers),
	};
	return cmocka_run_group_tests_name("failures", tests, NULL, NULL);
}
