/* SPDX-License-Identifier: Apache-2.0
 * MISMATCH, TIMEOUT and stale epochs: ranks that disagree, or come late. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness_raw.h"

enum { READY = 1, GO, DONE };

/* ---- MISMATCH ---- */

struct variant {
	const char *what;
	ncclsvc_field field;
	uint64_t values[2]; /* of rank 0 and of rank 1 */
};

static const struct variant variants[] = {
	{"operation", NCCLSVC_FIELD_OP, {NCCLSVC_ALL_REDUCE, NCCLSVC_BROADCAST}},
	{"count", NCCLSVC_FIELD_COUNT, {8, 9}},
	{"type", NCCLSVC_FIELD_TYPE, {NCCLSVC_FLOAT32, NCCLSVC_INT32}},
	{"reduction", NCCLSVC_FIELD_REDOP, {NCCLSVC_SUM, NCCLSVC_MAX}},
	{"root", NCCLSVC_FIELD_ROOT, {0, 1}},
};
#define VARIANTS (sizeof(variants) / sizeof(variants[0]))

static ncclsvc_result submit_variant(const struct variant *v, uint64_t mine, void *src, void *dst,
				     ncclsvc_comm *comm, ncclsvc_task *task)
{
	size_t count = v->field == NCCLSVC_FIELD_COUNT ? mine : 8;
	ncclsvc_type type = v->field == NCCLSVC_FIELD_TYPE ? (ncclsvc_type)mine : NCCLSVC_FLOAT32;
	ncclsvc_redop redop = v->field == NCCLSVC_FIELD_REDOP ? (ncclsvc_redop)mine : NCCLSVC_SUM;
	int root = v->field == NCCLSVC_FIELD_ROOT ? (int)mine : 0;
	if (v->field == NCCLSVC_FIELD_ROOT ||
	    (v->field == NCCLSVC_FIELD_OP && mine == NCCLSVC_BROADCAST))
		return ncclsvc_broadcast(src, dst, count, type, root, comm, task);
	return ncclsvc_all_reduce(src, dst, count, type, redop, comm, task);
}

static void mismatches(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	unsigned char *src = shared(s, 4096), *dst = shared(s, 4096);
	say(me, (uint64_t)me->pid);
	uint64_t pids[2] = {hear(me), hear(me)};
	for (size_t i = 0; i < VARIANTS; i++) {
		const struct variant *v = &variants[i];
		ncclsvc_task task, next;
		memset(src, 1, 4096);
		memset(dst, 0x77, 4096);
		CHECK_OK(submit_variant(v, v->values[me->rank], src, dst, comm, &task));
		/* The task behind it is not affected by the failure. */
		CHECK_OK(ncclsvc_barrier(comm, &next));
		wait_for(s, task, NCCLSVC_MISMATCH);
		CHECK(strstr(ncclsvc_last_error(), v->what));
		CHECK(strstr(ncclsvc_last_error(), "rank 0"));
		CHECK(strstr(ncclsvc_last_error(), "rank 1"));
		ncclsvc_status st = status_of(s, task);
		CHECK_EQ(st.field, v->field);
		int a = st.rank_a, b = st.rank_b;
		CHECK((a == 0 && b == 1) || (a == 1 && b == 0));
		CHECK_EQ(st.pid_a, pids[a]);
		CHECK_EQ(st.pid_b, pids[b]);
		CHECK_EQ(st.value_a, v->values[a]);
		CHECK_EQ(st.value_b, v->values[b]);
		CHECK_EQ(st.started_ns, 0);
		for (int k = 0; k < 4096; k++)
			CHECK_EQ(dst[k], 0x77);
		wait_for(s, next, NCCLSVC_OK);
		check_usable(s, comm);
	}
	ncclsvc_close(s);
}

static void a_mismatch_names_ranks_and_field_before_anything_runs(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, mismatches, NULL);
	hear(&clients[0]);
	hear(&clients[1]);
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < 2; k++)
			say(&clients[i], (uint64_t)clients[k].pid);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void the_odd_one(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task task;
	CHECK_OK(ncclsvc_all_reduce(v, v, me->rank == 3 ? 2 : 1, NCCLSVC_INT32, NCCLSVC_SUM, comm,
				    &task));
	wait_for(s, task, NCCLSVC_MISMATCH);
	ncclsvc_status st = status_of(s, task);
	/* Rank 3 differs from four others, and is one of the two that are named. */
	CHECK(st.rank_a == 3 || st.rank_b == 3);
	CHECK(st.rank_a != st.rank_b);
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void of_five_ranks_the_odd_one_is_named(void **state)
{
	struct daemon d;
	struct client clients[5];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 5, &d, the_odd_one, NULL);
	clients_end(clients, 5);
	daemon_stop(&d);
}

/* Checks that this rank, for which the others wait, is shown as refused. */
static void shows_refusal(ncclsvc_session *s, int32_t rank, const char *text)
{
	ncclsvc_comm_info *list;
	size_t n, found = 0;
	CHECK_OK(ncclsvc_list_comms(s, &list, &n));
	for (size_t i = 0; i < n; i++) {
		if (!list[i].refused[0])
			continue;
		found++;
		CHECK_EQ(list[i].refused_rank, rank);
		CHECK_EQ(list[i].refused_pid, getpid());
		CHECK(strstr(list[i].refused, text));
	}
	/* On several nodes, only one of them knows this. */
	CHECK(found == 1 || (!found && getenv("NCCLSVC_TEST_NODES")));
	ncclsvc_list_free(list);
}

static void other_nranks(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = NULL;
	if (me->rank == 0) {
		CHECK_RESULT(ncclsvc_comm_join(s, &me->id, 2, 0, WAIT_MS, &comm), NCCLSVC_MISMATCH);
		CHECK(strstr(ncclsvc_last_error(), "nranks differs: rank 1"));
		say(me, DONE);
		comm = comm_join(me, s);
		check_usable(s, comm);
	} else {
		CHECK_EQ(hear(me), GO);
		CHECK_RESULT(ncclsvc_comm_join(s, &me->id, 3, 1, WAIT_MS, &comm), NCCLSVC_MISMATCH);
		CHECK(strstr(ncclsvc_last_error(), "nranks"));
		CHECK(!comm);
		say(me, DONE);
		CHECK_EQ(hear(me), GO);
		CHECK_RESULT(ncclsvc_comm_join(s, &me->id, 2, 0, WAIT_MS, &comm),
			     NCCLSVC_RANK_TAKEN);
		CHECK(!comm);
		shows_refusal(s, 0, "is held by pid");
		comm = comm_join(me, s);
		check_usable(s, comm);
	}
	ncclsvc_close(s);
}

static void a_join_of_other_nranks_or_a_taken_rank_is_refused(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, other_nranks, NULL);
	ncclsvc_session *s = session_open(&d);
	members_reach(s, NCCLSVC_MEMBER_JOINING, 1);
	say(&clients[1], GO);
	CHECK_EQ(hear(&clients[0]), DONE);
	CHECK_EQ(hear(&clients[1]), DONE);
	members_reach(s, NCCLSVC_MEMBER_JOINING, 1);
	say(&clients[1], GO);
	clients_end(clients, 2);
	ncclsvc_close(s);
	daemon_stop(&d);
}

/* ---- TIMEOUT ---- */

/* Checks that the status and the error name the late rank and its process. */
static void check_late(ncclsvc_session *s, const ncclsvc_status *st)
{
	ncclsvc_member_info *members;
	size_t n;
	bool found = false;
	char who[48];
	CHECK_EQ(st->rank_b, st->missing[0]);
	CHECK_OK(ncclsvc_list_members(s, &members, &n));
	for (size_t i = 0; i < n; i++)
		found |= members[i].rank == st->rank_b && members[i].pid == st->pid_b;
	ncclsvc_list_free(members);
	CHECK(found);
	snprintf(who, sizeof(who), "%d (pid %d)", st->rank_b, st->pid_b);
	CHECK(st->pid_b > 0 && strstr(ncclsvc_last_error(), who));
}

static void late_rank(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task task, next;
	v[0] = 9;
	v[1] = me->rank;
	/* Rank 2 submits first, then rank 0; rank 1 submits when it is too late. */
	if (me->rank != 2)
		CHECK_EQ(hear(me), GO);
	if (me->rank != 1)
		CHECK_OK(ncclsvc_comm_set_timeout(comm, me->rank ? WAIT_MS : 200));
	uint64_t start = now_ns();
	CHECK_OK(ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
	CHECK_OK(ncclsvc_comm_set_timeout(comm, NCCLSVC_NO_TIMEOUT));
	if (me->rank == 2)
		say(me, READY);
	CHECK_OK(ncclsvc_all_reduce(v + 1, v + 1, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &next));
	wait_for(s, task, NCCLSVC_TIMEOUT);
	/* The first deadline to pass counts for all; and the late rank gets the same result. */
	ncclsvc_status st = status_of(s, task);
	check_late(s, &st);
	CHECK_EQ(st.rank_a, 0);
	if (me->rank == 0)
		CHECK(now_ns() - start >= UINT64_C(200000000));
	CHECK_EQ(st.result, NCCLSVC_TIMEOUT);
	CHECK_EQ(st.missing_count, 1);
	CHECK_EQ(st.missing[0], 1);
	CHECK_EQ(st.started_ns, 0);
	CHECK_EQ(v[0], 9);
	say(me, DONE);
	/* The next task still matches on all ranks. */
	wait_for(s, next, NCCLSVC_OK);
	CHECK_EQ(v[1], 3);
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_deadline_names_the_missing_ranks(void **state)
{
	struct daemon d;
	struct client clients[3];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 3, &d, late_rank, NULL);
	CHECK_EQ(hear(&clients[2]), READY);
	ncclsvc_session *s = session_open(&d);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 1);
	ncclsvc_close(s);
	say(&clients[0], GO);
	CHECK_EQ(hear(&clients[0]), DONE);
	CHECK_EQ(hear(&clients[2]), DONE);
	say(&clients[1], GO);
	clients_end(clients, 3);
	daemon_stop(&d);
}

static void joins_late(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = NULL;
	if (me->rank == 0) {
		CHECK_RESULT(ncclsvc_comm_join(s, &me->id, 3, 0, 200, &comm), NCCLSVC_TIMEOUT);
		CHECK(!comm);
		CHECK(strstr(ncclsvc_last_error(), "1, 2"));
		CHECK_RESULT(ncclsvc_comm_join(s, &me->id, 3, 0, 0, &comm), NCCLSVC_TIMEOUT);
		say(me, DONE);
	} else {
		CHECK_EQ(hear(me), GO);
	}
	comm = comm_join(me, s);
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_join_deadline_names_the_missing_ranks(void **state)
{
	struct daemon d;
	struct client clients[3];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 3, &d, joins_late, NULL);
	CHECK_EQ(hear(&clients[0]), DONE);
	say(&clients[1], GO);
	say(&clients[2], GO);
	clients_end(clients, 3);
	daemon_stop(&d);
}

/* ---- The odd one out ---- */

#define ODD_RANKS 5

/* In round i, rank i comes last and submits something different from all others. */
static void asks_oddly(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task task;
	char text[256], want[128];
	check_usable(s, comm);
	for (int odd = 0; odd < ODD_RANKS; odd++) {
		uint64_t pid = hear(me);
		CHECK_OK(ncclsvc_all_reduce(v, v, me->rank == odd ? 5 : 4, NCCLSVC_INT32,
					    NCCLSVC_SUM, comm, &task));
		if (me->rank != odd)
			say(me, READY);
		wait_for(s, task, NCCLSVC_MISMATCH);
		ncclsvc_status st = status_of(s, task);
		CHECK_EQ(st.rank_b, odd);
		CHECK_EQ(st.missing_count, 1);
		CHECK_EQ(st.missing[0], odd);
		snprintf(want, sizeof(want),
			 "count differs: rank %d (pid %d) has 5, all others have 4", odd, (int)pid);
		ncclsvc_status_sentence(&st, text, sizeof(text));
		if (!strstr(text, want))
			check_failed(__FILE__, __LINE__, "'%s' is not in: %s", want, text);
		say(me, DONE);
	}
	/* All differ, so no single rank is to blame. */
	CHECK_EQ(hear(me), GO);
	CHECK_OK(ncclsvc_all_reduce(v, v, (size_t)me->rank + 1, NCCLSVC_INT32, NCCLSVC_SUM, comm,
				    &task));
	wait_for(s, task, NCCLSVC_MISMATCH);
	CHECK_EQ(status_of(s, task).missing_count, 0);
	CHECK(!strstr(ncclsvc_last_error(), "all others"));
	check_usable(s, comm);
	ncclsvc_close(s);
}

/* Waits until the other ranks' tasks wait, on every node. */
static void others_wait(struct client *clients, int odd)
{
	for (int i = 0; i < ODD_RANKS; i++) {
		size_t n = 0;
		for (int k = 0; k < ODD_RANKS; k++)
			n += k != odd && clients[k].daemon == clients[i].daemon;
		ncclsvc_session *s = session_open(clients[i].daemon);
		if (n)
			tasks_reach(s, NCCLSVC_WAITING_PEERS, n);
		ncclsvc_close(s);
	}
}

static void the_odd_one_out_is_named(void **state)
{
	struct daemon d;
	struct client clients[ODD_RANKS];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, ODD_RANKS, &d, asks_oddly, NULL);
	for (int odd = 0; odd < ODD_RANKS; odd++) {
		for (int i = 0; i < ODD_RANKS; i++)
			if (i != odd)
				say(&clients[i], (uint64_t)clients[odd].pid);
		for (int i = 0; i < ODD_RANKS; i++)
			if (i != odd)
				CHECK_EQ(hear(&clients[i]), READY);
		others_wait(clients, odd);
		say(&clients[odd], (uint64_t)clients[odd].pid);
		hear_all(clients, ODD_RANKS, DONE);
	}
	say_all(clients, ODD_RANKS, GO);
	clients_end(clients, ODD_RANKS);
	daemon_stop(&d);
}

/* ---- Joining in time ---- */

#define ALIKE 5

/* Rank 3 does not join; the others' deadlines pass one after the other, within a few ms. */
static void expires_with_others(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = NULL;
	if (me->rank != 3) {
		CHECK_RESULT(ncclsvc_comm_join(s, &me->id, ALIKE, me->rank, 400, &comm),
			     NCCLSVC_TIMEOUT);
		const char *list = strstr(ncclsvc_last_error(), "'s deadline: ");
		if (!list || strcmp(list, "'s deadline: 3") != 0)
			check_failed(__FILE__, __LINE__, "not rank 3 alone: %s",
				     ncclsvc_last_error());
		say(me, DONE);
	}
	CHECK_EQ(hear(me), GO);
	/* Rank 3 joins when rank 0 has given up, so that now rank 0 is missing. */
	if (me->rank == 0) {
		CHECK_RESULT(ncclsvc_comm_join(s, &me->id, ALIKE, 0, 200, &comm), NCCLSVC_TIMEOUT);
		say(me, DONE);
		CHECK_EQ(hear(me), GO);
	} else if (me->rank == 1) {
		CHECK_RESULT(ncclsvc_comm_join(s, &me->id, ALIKE, 1, 1500, &comm), NCCLSVC_TIMEOUT);
		if (!strstr(ncclsvc_last_error(), "given up before rank 1's deadline: 0"))
			check_failed(__FILE__, __LINE__, "not rank 0: %s", ncclsvc_last_error());
		say(me, DONE);
	}
	comm = comm_join(me, s);
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void joins_that_expire_together_name_the_same_ranks(void **state)
{
	struct daemon d;
	struct client clients[ALIKE];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, ALIKE, &d, expires_with_others, NULL);
	for (int i = 0; i < ALIKE; i++)
		if (i != 3)
			CHECK_EQ(hear(&clients[i]), DONE);
	say(&clients[1], GO);
	say(&clients[0], GO);
	CHECK_EQ(hear(&clients[0]), DONE);
	for (int i = 2; i < ALIKE; i++)
		say(&clients[i], GO);
	CHECK_EQ(hear(&clients[1]), DONE);
	say(&clients[0], GO);
	clients_end(clients, ALIKE);
	daemon_stop(&d);
}

/* Rank 2 gives a different number of ranks: it is refused, and the ranks that wait for it are
 * notified at once. */
static void waits_for_refused(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = NULL;
	char want[80];
	say(me, (uint64_t)me->pid);
	uint64_t refused = hear(me); /* rank 2's pid */
	if (me->rank == 2) {
		CHECK_RESULT(ncclsvc_comm_join(s, &me->id, 4, 2, WAIT_MS, &comm), NCCLSVC_MISMATCH);
		CHECK_EQ(hear(me), GO);
	} else {
		CHECK_RESULT(ncclsvc_comm_join(s, &me->id, 3, me->rank, NCCLSVC_NO_TIMEOUT, &comm),
			     NCCLSVC_MISMATCH);
		snprintf(want, sizeof(want), "nranks differs: rank 2 (pid %d", (int)refused);
		if (!strstr(ncclsvc_last_error(), want))
			check_failed(__FILE__, __LINE__, "'%s' is not in: %s", want,
				     ncclsvc_last_error());
		say(me, DONE);
		CHECK_EQ(hear(me), GO);
	}
	comm = comm_join(me, s);
	check_usable(s, comm);
	ncclsvc_close(s);
}

/* How many ranks have joined or wait, as the daemon knows. */
static uint32_t joined(const struct client *c)
{
	ncclsvc_session *s = session_open(c->daemon);
	ncclsvc_comm_info *list;
	uint32_t found = 0;
	size_t n;
	CHECK_OK(ncclsvc_list_comms(s, &list, &n));
	for (size_t i = 0; i < n; i++)
		if (!memcmp(list[i].id, c->id.bytes, sizeof(list[i].id)))
			found = list[i].joined;
	ncclsvc_list_free(list);
	ncclsvc_close(s);
	return found;
}

/* One of their daemons is where the ranks gather: waits until it knows of both. */
static void await_both(const struct client *clients)
{
	const uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	while (joined(&clients[0]) < 2 && joined(&clients[1]) < 2) {
		CHECK(now_ns() < end);
		sleep_ms(1);
	}
}

static void waiting_ranks_learn_of_a_refused_join(void **state)
{
	struct daemon d;
	struct client clients[3];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 3, &d, waits_for_refused, NULL);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(hear(&clients[i]), clients[i].pid);
	say(&clients[0], (uint64_t)clients[2].pid);
	say(&clients[1], (uint64_t)clients[2].pid);
	await_both(clients);
	say(&clients[2], (uint64_t)clients[2].pid);
	CHECK_EQ(hear(&clients[0]), DONE);
	CHECK_EQ(hear(&clients[1]), DONE);
	say_all(clients, 3, GO);
	clients_end(clients, 3);
	daemon_stop(&d);
}

/* ---- Stale epochs, by hand ---- */

static void late_tasks_get_the_same_status(void **state)
{
	struct daemon d;
	struct raw r[2];
	struct raw_reply reply;
	ncclsvc_unique_id id;
	uint32_t request_id[2];
	(void)state;
	daemon_start(&d, NULL);
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int k = 0; k < 2; k++) {
		struct svc_join join = raw_join_request(&id, 2, k);
		raw_open(&r[k], &d);
		raw_attach(&r[k], 16);
		request_id[k] = raw_send(&r[k], SVC_JOIN, &join, sizeof(join), NULL, 0);
	}
	for (int k = 1; k >= 0; k--)
		raw_reply_to(&r[k], request_id[k], &reply);
	struct svc_record task = {.comm = reply.join.comm,
				  .epoch = reply.join.epoch,
				  .op = NCCLSVC_BARRIER,
				  .peer = -1};
	raw_close(&r[1]);
	CHECK(raw_next(&r[0], &reply));
	CHECK_EQ(reply.header.opcode, SVC_EVENT_COMM);
	/* As far as the daemon knows, these were submitted before the client read the event; the
	 * last two as a group. */
	uint64_t numbers[3];
	for (int i = 0; i < 3; i++) {
		task.flags = i == 1 ? SVC_TASK_MORE : 0;
		numbers[i] = raw_ring_submit(&r[0], task);
	}
	for (int i = 0; i < 3; i++) {
		ncclsvc_status st = raw_ring_wait(&r[0], numbers[i]);
		CHECK_EQ(st.result, NCCLSVC_PEER_GONE);
		CHECK_EQ(st.rank_a, 1);
		CHECK_EQ(st.pid_a, getpid());
	}
	raw_close(&r[0]);
	daemon_stop(&d);
}

static void a_stale_epoch_is_refused(void **state)
{
	struct daemon d;
	struct raw r;
	struct raw_reply reply;
	(void)state;
	daemon_start(&d, NULL);
	raw_open(&r, &d);
	raw_attach(&r, 16);
	struct svc_join_reply comm = raw_join_alone(&r);
	struct svc_record task = {
		.comm = comm.comm, .epoch = comm.epoch, .op = NCCLSVC_BARRIER, .peer = -1};
	CHECK_EQ(raw_submit_wait(&r, task).result, NCCLSVC_OK);
	task.epoch++;
	raw_call(&r, SVC_SUBMIT, &task, sizeof(task), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_STALE_EPOCH);
	CHECK_EQ(raw_ring_wait(&r, raw_ring_submit(&r, task)).result, NCCLSVC_STALE_EPOCH);
	task.epoch = comm.epoch;
	CHECK_EQ(raw_ring_wait(&r, raw_ring_submit(&r, task)).result, NCCLSVC_OK);
	raw_close(&r);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_mismatch_names_ranks_and_field_before_anything_runs),
		TEST(of_five_ranks_the_odd_one_is_named),
		TEST(a_join_of_other_nranks_or_a_taken_rank_is_refused),
		TEST(a_deadline_names_the_missing_ranks),
		TEST(a_join_deadline_names_the_missing_ranks),
		TEST(the_odd_one_out_is_named),
		TEST(joins_that_expire_together_name_the_same_ranks),
		TEST(waiting_ranks_learn_of_a_refused_join),
		TEST(late_tasks_get_the_same_status),
		TEST(a_stale_epoch_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
