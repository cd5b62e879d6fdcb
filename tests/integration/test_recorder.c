/* SPDX-License-Identifier: Apache-2.0
 * The flight recorder: operations of dead processes are still shown, only to their user, and are
 * written to files when an operation fails. */
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"

enum { READY = 1, GO };
#define RANKS  3
#define NOBODY 65534

static ncclsvc_session *administer(const struct daemon *d)
{
	ncclsvc_session *s;
	ncclsvc_options options = {.size = sizeof(options), .no_ring = true};
	char path[140];
	snprintf(path, sizeof(path), "%s.admin", d->socket);
	options.socket = path;
	CHECK_OK(ncclsvc_open(&options, &s));
	return s;
}

/* The clients' pids, for use after the clients have ended. */
static int32_t pids[RANKS];

static void start(struct client *clients, int n, const struct daemon *d, client_main *main)
{
	clients_start(clients, n, d, main, NULL);
	for (int k = 0; k < n; k++)
		pids[k] = clients[k].pid;
}

struct shown {
	ncclsvc_operation_info *list;
	size_t n;
};

/* Lists the clients' operations, without the Barriers that daemon_start has run. */
static struct shown ask(ncclsvc_session *s)
{
	struct shown shown;
	size_t n;
	CHECK_OK(ncclsvc_list_operations(s, &shown.list, &n));
	shown.n = 0;
	for (size_t i = 0; i < n; i++)
		if (shown.list[i].op != NCCLSVC_BARRIER)
			shown.list[shown.n++] = shown.list[i];
	return shown;
}

/* The rank's operation with that sequence number, pending or not; NULL: none. */
static const ncclsvc_operation_info *find(const struct shown *shown, int32_t rank, uint64_t seq)
{
	const ncclsvc_operation_info *found = NULL;
	for (size_t i = 0; i < shown->n; i++)
		if (shown->list[i].rank == rank && shown->list[i].seq == seq)
			found = &shown->list[i];
	return found;
}

static size_t count(const struct shown *shown, int32_t pid)
{
	size_t n = 0;
	for (size_t i = 0; i < shown->n; i++)
		n += shown->list[i].pid == pid;
	return n;
}

static void reduce(struct client *me, ncclsvc_session *s, ncclsvc_comm *comm, float *v, int n)
{
	ncclsvc_task task;
	(void)me;
	for (int i = 0; i < n; i++) {
		CHECK_OK(ncclsvc_all_reduce(v, v, 10 + (size_t)i, NCCLSVC_FLOAT32, NCCLSVC_SUM,
					    comm, &task));
		wait_for(s, task, NCCLSVC_OK);
	}
}

/* ---- A killed rank ---- */

static void loses_a_rank(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	float *v = shared(s, 4096);
	ncclsvc_task task;
	reduce(me, s, comm, v, 5);
	if (me->rank != 1)
		CHECK_OK(ncclsvc_broadcast(v, v, 7, NCCLSVC_FLOAT32, 2, comm, &task));
	say(me, READY);
	if (me->rank != 1)
		wait_for(s, task, NCCLSVC_PEER_GONE);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

static void check_done(const struct shown *shown, int rank)
{
	for (uint64_t seq = 0; seq < 5; seq++) {
		const ncclsvc_operation_info *x = find(shown, rank, seq);
		CHECK(x);
		CHECK_EQ(x->pid, pids[rank]);
		CHECK_EQ(x->uid, getuid());
		CHECK_EQ(x->op, NCCLSVC_ALL_REDUCE);
		CHECK_EQ(x->type, NCCLSVC_FLOAT32);
		CHECK_EQ(x->count, 10 + seq);
		CHECK_EQ(x->bytes, 40 + 4 * seq);
		CHECK_EQ(x->collective, seq);
		CHECK_EQ(x->peer, -1);
		CHECK_EQ(x->nranks, RANKS);
		CHECK_EQ(x->result, NCCLSVC_OK);
		CHECK_EQ(x->state, NCCLSVC_DONE);
		CHECK_EQ(x->transport, NCCLSVC_OPERATION_HOST);
		CHECK(x->comm && x->epoch && x->comm_label[0] && !x->wrapped);
		CHECK(x->submitted_ns && x->submitted_ns <= x->matched_ns);
		CHECK(x->matched_ns <= x->started_ns && x->started_ns <= x->done_ns);
	}
}

static void a_killed_ranks_operations_are_still_shown(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, NULL);
	ncclsvc_session *s = session_open(&d);
	start(clients, RANKS, &d, loses_a_rank);
	hear_all(clients, RANKS, READY);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 2);
	struct shown before = ask(s);
	for (int k = 0; k < RANKS; k++)
		check_done(&before, k);
	const ncclsvc_operation_info *x = find(&before, 0, 5);
	CHECK(x && !find(&before, 1, 5));
	CHECK_EQ(x->result, NCCLSVC_IN_PROGRESS);
	CHECK_EQ(x->state, NCCLSVC_WAITING_PEERS);
	CHECK_EQ(x->op, NCCLSVC_BROADCAST);
	CHECK_EQ(x->peer, 2);
	CHECK_EQ(x->collective, 5);
	CHECK_EQ(x->transport, NCCLSVC_OPERATION_HOST);
	CHECK(x->submitted_ns && !x->matched_ns && !x->started_ns && !x->done_ns);
	ncclsvc_list_free(before.list);
	client_kill(&clients[1]);
	CHECK_EQ(hear(&clients[0]), READY);
	CHECK_EQ(hear(&clients[2]), READY);
	members_reach(s, NCCLSVC_MEMBER_BROKEN, 2);
	struct shown after = ask(s);
	for (int k = 0; k < RANKS; k++)
		check_done(&after, k);
	x = find(&after, 0, 5);
	CHECK_EQ(x->result, NCCLSVC_PEER_GONE);
	CHECK_EQ(x->state, NCCLSVC_FAILED);
	CHECK(x->done_ns && !x->started_ns && !x->matched_ns);
	ncclsvc_list_free(after.list);
	say(&clients[0], GO);
	say(&clients[2], GO);
	clients_end(clients, RANKS);
	/* All clients have ended. */
	struct shown last = ask(s);
	for (int k = 0; k < RANKS; k++)
		check_done(&last, k);
	ncclsvc_list_free(last.list);
	ncclsvc_close(s);
	daemon_stop(&d);
}

/* ---- The ring goes round ---- */

#define MANY 3000

static void does_many(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	float *v = shared(s, 65536);
	ncclsvc_task task = 0;
	for (int i = 0; i < MANY; i++) {
		CHECK_OK(ncclsvc_all_reduce(v, v, 10, NCCLSVC_FLOAT32, NCCLSVC_SUM, comm, &task));
		if (i % 64 == 63)
			wait_for(s, task, NCCLSVC_OK);
	}
	wait_for(s, task, NCCLSVC_OK);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

static void the_last_ones_stay(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	ncclsvc_session *s = session_open(&d);
	start(clients, 2, &d, does_many);
	hear_all(clients, 2, READY);
	struct shown shown = ask(s);
	CHECK_EQ(shown.n, 2 * 2047);
	for (uint64_t seq = MANY - 2047; seq < MANY; seq++) {
		const ncclsvc_operation_info *x = find(&shown, seq % 2, seq);
		CHECK(x && x->wrapped);
	}
	CHECK(!find(&shown, 0, MANY - 2048));
	ncclsvc_list_free(shown.list);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	ncclsvc_close(s);
	daemon_stop(&d);
}

/* ---- Users ---- */

static void reduces_alone(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	reduce(me, s, comm, shared(s, 4096), 3);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

static void sees_its_own(struct client *me)
{
	CHECK_EQ(setgroups(0, NULL), 0);
	CHECK_EQ(setresgid(NOBODY, NOBODY, NOBODY), 0);
	CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
	ncclsvc_session *s = session_open(me->daemon);
	struct shown shown = ask(s);
	CHECK_EQ(shown.n, 0);
	ncclsvc_comm *comm = comm_join(me, s);
	reduce(me, s, comm, shared(s, 4096), 4);
	shown = ask(s);
	CHECK_EQ(shown.n, 4);
	for (size_t i = 0; i < shown.n; i++)
		CHECK_EQ(shown.list[i].uid, NOBODY);
	ncclsvc_list_free(shown.list);
	ncclsvc_close(s);
}

static void a_user_sees_no_others(void **state)
{
	struct daemon d;
	struct client mine, other;
	(void)state;
	if (getuid())
		skip_because("it takes root to act as another user");
	daemon_start(&d, "--access", "any", NULL);
	CHECK_EQ(chmod(d.dir, 0711), 0);
	clients_start(&mine, 1, &d, reduces_alone, NULL);
	CHECK_EQ(hear(&mine), READY);
	start(&other, 1, &d, sees_its_own);
	clients_end(&other, 1);
	ncclsvc_session *s = session_open(&d);
	struct shown shown = ask(s);
	CHECK_EQ(shown.n, 3);
	CHECK_EQ(count(&shown, mine.pid), 3);
	ncclsvc_list_free(shown.list);
	ncclsvc_session *admin = administer(&d);
	shown = ask(admin);
	CHECK_EQ(count(&shown, mine.pid), 3);
	CHECK_EQ(count(&shown, pids[0]), 4);
	ncclsvc_list_free(shown.list);
	ncclsvc_close(admin);
	ncclsvc_close(s);
	say(&mine, GO);
	clients_end(&mine, 1);
	daemon_stop(&d);
}

/* ---- Files ---- */

static void disagrees(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	float *v = shared(s, 4096);
	ncclsvc_task task;
	reduce(me, s, comm, v, 3);
	CHECK_OK(ncclsvc_all_reduce(v, v, me->rank == 1 ? 8 : 9, NCCLSVC_FLOAT32, NCCLSVC_SUM, comm,
				    &task));
	wait_for(s, task, NCCLSVC_MISMATCH);
	ncclsvc_close(s);
}

/* Returns the number of files in the directory, and the path of the newest. */
static int files(const char *dir, char newest[300])
{
	int n = 0;
	DIR *entries = opendir(dir);
	CHECK(entries);
	newest[0] = '\0';
	for (const struct dirent *e; (e = readdir(entries));) {
		char path[300];
		if (e->d_name[0] == '.')
			continue;
		n++;
		snprintf(path, sizeof(path), "%s/%.200s", dir, e->d_name);
		if (strcmp(path, newest) > 0)
			strcpy(newest, path);
	}
	closedir(entries);
	return n;
}

static char text[1 << 20];

static void read_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	const ssize_t n = read(fd, text, sizeof(text) - 1);
	CHECK(n >= 0);
	text[n] = '\0';
	close(fd);
}

static int times(const char *what)
{
	int n = 0;
	for (const char *at = text; (at = strstr(at, what)); at++)
		n++;
	return n;
}

static void a_failure_is_written_to_a_file(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	char dir[] = "/tmp/ncclsvc-dumps-XXXXXX", path[300], before[300] = "", what[64];
	(void)state;
	CHECK(mkdtemp(dir));
	daemon_start(&d, "--dump-dir", dir, "--dump-max-files", "2", NULL);
	for (int i = 0; i < 4; i++) {
		start(clients, RANKS, &d, disagrees);
		clients_end(clients, RANKS);
		const uint64_t since = now_ns();
		while (files(dir, path) < (i ? 2 : 1) || !strcmp(path, before)) {
			CHECK(now_ns() - since < WAIT_MS * UINT64_C(1000000));
			sleep_ms(10);
		}
		strcpy(before, path);
		CHECK_EQ(files(dir, path), i ? 2 : 1);
		read_file(path);
		CHECK_EQ(times("\"op\":\"AllReduce\""), 4 * RANKS);
		CHECK_EQ(times("\"result\":\"OK\""), 3 * RANKS);
		CHECK_EQ(times("\"result\":\"MISMATCH\""), RANKS + 1);
		for (int k = 0; k < RANKS; k++) {
			snprintf(what, sizeof(what), "\"rank\":%d,\"pid\":%d", k, pids[k]);
			CHECK(times(what) >= 4);
		}
	}
	while (files(dir, path))
		CHECK_EQ(unlink(path), 0);
	CHECK_EQ(rmdir(dir), 0);
	daemon_stop(&d);
}

static void ends_well(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	reduce(me, s, comm, shared(s, 4096), 3);
	ncclsvc_close(s);
}

static void a_killed_rank_is_written_to_a_file(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	char dir[] = "/tmp/ncclsvc-dumps-XXXXXX", path[300];
	(void)state;
	CHECK(mkdtemp(dir));
	daemon_start(&d, "--dump-dir", dir, NULL);
	start(clients, RANKS, &d, ends_well);
	clients_end(clients, RANKS);
	ncclsvc_session *s = session_open(&d);
	start(clients, RANKS, &d, loses_a_rank);
	hear_all(clients, RANKS, READY);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 2);
	client_kill(&clients[1]);
	CHECK_EQ(hear(&clients[0]), READY);
	CHECK_EQ(hear(&clients[2]), READY);
	for (const uint64_t since = now_ns(); !files(dir, path); sleep_ms(10))
		CHECK(now_ns() - since < WAIT_MS * UINT64_C(1000000));
	read_file(path);
	CHECK_EQ(times("\"op\":\"AllReduce\""), 5 * RANKS);
	CHECK_EQ(times("\"op\":\"Broadcast\""), 2);
	CHECK_EQ(times("\"result\":\"PEER_GONE\""), 2 + 1);
	CHECK_EQ(times("IN_PROGRESS"), 0);
	say(&clients[0], GO);
	say(&clients[2], GO);
	clients_end(clients, RANKS);
	ncclsvc_close(s);
	daemon_stop(&d);
	CHECK_EQ(files(dir, path), 1); /* no other failure, before or after, wrote a file */
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(rmdir(dir), 0);
}

/* The clients are not delayed, and the log says why there is no file. */
static void a_directory_that_is_not_there(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, "--dump-dir", "/nowhere/at/all", NULL);
	start(clients, RANKS, &d, disagrees);
	clients_end(clients, RANKS);
	CHECK(daemon_logged(&d, "cannot be written to /nowhere/at/all (dump_dir): No such file"));
	daemon_stop(&d);
}

/* ---- ncclsvc-ctl dump ---- */

static void ctl(const struct daemon *d, const char *a, const char *b, const char *c)
{
	char *argv[] = {(char *)program("NCCLSVC_CTL"),
			"--socket",
			(char *)d->socket,
			"dump",
			(char *)a,
			(char *)b,
			(char *)c,
			NULL};
	CHECK_EQ(run_program(argv, text, sizeof(text)), 0);
}

static void the_tool_shows_and_writes_them(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	char dir[] = "/tmp/ncclsvc-pytorch-XXXXXX", path[300], pid[16];
	(void)state;
	CHECK(mkdtemp(dir));
	daemon_start(&d, NULL);
	ctl(&d, "--pid", "1", NULL);
	CHECK_EQ(times("No operation matches.\n"), 1);
	start(clients, RANKS, &d, disagrees);
	clients_end(clients, RANKS);
	ctl(&d, NULL, NULL, NULL);
	CHECK_EQ(times("AllReduce"), 4 * RANKS);
	CHECK_EQ(times(" MISMATCH\n"), RANKS);
	snprintf(pid, sizeof(pid), "%d", pids[2]);
	ctl(&d, "--json", "--pid", pid);
	CHECK_EQ(times("\"rank\":2,"), 4);
	CHECK_EQ(times("\"rank\":"), 4);
	ctl(&d, "--pytorch", dir, NULL);
	CHECK_EQ(times("Wrote 3 of 3 ranks"), 1);
	CHECK_EQ(files(dir, path), RANKS);
	while (files(dir, path)) {
		CHECK(strstr(path, "/nccl_trace_rank_"));
		CHECK_EQ(unlink(path), 0);
	}
	CHECK_EQ(rmdir(dir), 0);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_killed_ranks_operations_are_still_shown),
		TEST(the_last_ones_stay),
		TEST(a_user_sees_no_others),
		TEST(a_failure_is_written_to_a_file),
		TEST(a_killed_rank_is_written_to_a_file),
		TEST(a_directory_that_is_not_there),
		TEST(the_tool_shows_and_writes_them),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
