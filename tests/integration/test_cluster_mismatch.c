/* SPDX-License-Identifier: Apache-2.0
 * One rank submits a different collective than all others. On one node and on several, the error
 * names this rank to all ranks, whatever the order of submission. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node_daemons.h"

#define NODES	  3
#define RANKS_MAX 8
#define LATE_MS	  30
/* Longer than ranks take to exit on the error. */
#define LONGER_MS 200
#define NOT_LATE  (-1)

/* ---- The table ---- */

static const struct variant {
	ncclsvc_field field;
	uint64_t usual, odd;
} variants[] = {
	{NCCLSVC_FIELD_COUNT, 8, 9},
	{NCCLSVC_FIELD_TYPE, NCCLSVC_FLOAT32, NCCLSVC_INT32},
	{NCCLSVC_FIELD_OP, NCCLSVC_ALL_REDUCE, NCCLSVC_BROADCAST},
	{NCCLSVC_FIELD_ROOT, 0, 1},
	{NCCLSVC_FIELD_REDOP, NCCLSVC_SUM, NCCLSVC_MAX},
};
#define VARIANTS (sizeof(variants) / sizeof(variants[0]))

struct attempt {
	const struct variant *variant;
	int odd, late; /* ranks */
};

static ncclsvc_result submit(const struct variant *v, uint64_t mine, void *data, ncclsvc_comm *comm,
			     ncclsvc_task *task)
{
	const size_t count = v->field == NCCLSVC_FIELD_COUNT ? mine : 8;
	const ncclsvc_type type =
		v->field == NCCLSVC_FIELD_TYPE ? (ncclsvc_type)mine : NCCLSVC_FLOAT32;
	const ncclsvc_redop redop =
		v->field == NCCLSVC_FIELD_REDOP ? (ncclsvc_redop)mine : NCCLSVC_SUM;
	const bool broadcasts = v->field == NCCLSVC_FIELD_ROOT ||
				(v->field == NCCLSVC_FIELD_OP && mine == NCCLSVC_BROADCAST);
	return broadcasts ? ncclsvc_broadcast(data, data, count, type,
					      v->field == NCCLSVC_FIELD_ROOT ? (int)mine : 0, comm,
					      task)
			  : ncclsvc_all_reduce(data, data, count, type, redop, comm, task);
}

/* With two ranks, either may be named as the odd one. */
static void check_names_the_odd_one(const struct client *me, const struct attempt *at,
				    const uint64_t *pids, const ncclsvc_status *st)
{
	const struct variant *v = at->variant;
	const bool two = me->nranks == 2;
	const int odd = two && st->rank_b != at->odd ? st->rank_a : st->rank_b;
	const int other = odd == st->rank_a ? st->rank_b : st->rank_a;
	if (st->result != NCCLSVC_MISMATCH || odd != at->odd || other < 0 || other == odd)
		check_failed(__FILE__, __LINE__, "field %u, odd %d, late %d: rank %d is told: %s",
			     v->field, at->odd, at->late, me->rank, ncclsvc_last_error());
	CHECK_EQ(st->field, v->field);
	CHECK_EQ(st->pid_a, pids[st->rank_a]);
	CHECK_EQ(st->pid_b, pids[st->rank_b]);
	CHECK_EQ(odd == st->rank_a ? st->value_a : st->value_b, v->odd);
	CHECK_EQ(odd == st->rank_a ? st->value_b : st->value_a, v->usual);
	CHECK_EQ(st->missing_count, !two);
	CHECK_EQ(st->missing[0], two ? 0 : at->odd);
}

static void attempt(struct client *me, ncclsvc_session *s, ncclsvc_comm *comm, void *data,
		    const struct attempt *at, const uint64_t *pids, unsigned late_ms)
{
	const struct variant *v = at->variant;
	ncclsvc_task task;
	if (at->late == me->rank)
		sleep_ms(late_ms);
	CHECK_OK(submit(v, at->odd == me->rank ? v->odd : v->usual, data, comm, &task));
	ncclsvc_wait(s, task, WAIT_MS);
	const ncclsvc_status st = status_of(s, task);
	check_names_the_odd_one(me, at, pids, &st);
}

static void hear_pids(struct client *me, uint64_t *pids)
{
	for (int k = 0; k < me->nranks; k++)
		pids[k] = hear(me);
}

static void say_pids(struct client *clients, int n)
{
	for (int i = 0; i < n; i++)
		for (int k = 0; k < n; k++)
			say(&clients[i], (uint64_t)clients[k].pid);
}

/* ---- Ranks that go on after the error ---- */

static void all_attempts(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	void *data = shared(s, 4096);
	uint64_t pids[RANKS_MAX];
	hear_pids(me, pids);
	for (size_t i = 0; i < VARIANTS; i++)
		for (int odd = 0; odd < me->nranks; odd++) {
			for (int late = NOT_LATE; late < me->nranks; late++) {
				/* With many ranks, only a third of the combinations is tried. */
				if (me->nranks > 3 && late != NOT_LATE &&
				    (late + odd + (int)i) % 3 != 0)
					continue;
				const struct attempt at = {&variants[i], odd, late};
				attempt(me, s, comm, data, &at, pids, LATE_MS);
			}
			check_usable(s, comm);
		}
	ncclsvc_close(s);
}

static void go_on(int nodes)
{
	struct cluster c;
	time_limit(300);
	cluster_start(&c, nodes, NULL);
	for (int n = 2; n <= RANKS_MAX; n = n == 2 ? 3 : n + 5)
		for (enum layout layout = IN_BLOCKS; layout <= (nodes == 1 ? IN_BLOCKS : IN_TURN);
		     layout++) {
			struct client clients[RANKS_MAX];
			cluster_clients(clients, n, &c, layout, all_attempts, NULL);
			say_pids(clients, n);
			clients_end_within(clients, n, 120000);
		}
	cluster_stop(&c);
}

static void one_node_names_the_odd_one(void **state)
{
	(void)state;
	go_on(1);
}

static void several_nodes_name_the_odd_one(void **state)
{
	(void)state;
	go_on(NODES);
}

/* ---- Ranks that exit on the error ---- */

static void one_attempt(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	void *data = shared(s, 4096);
	uint64_t pids[RANKS_MAX];
	hear_pids(me, pids);
	attempt(me, s, comm, data, me->arg, pids, LONGER_MS);
	_exit(0); /* without closing the session */
}

static void exit_at_once(int nodes, int nranks, int late_after)
{
	struct cluster c;
	time_limit(300);
	cluster_start(&c, nodes, NULL);
	for (int odd = 0; odd < nranks; odd++) {
		struct client clients[RANKS_MAX];
		struct attempt at = {&variants[odd % VARIANTS], odd, (odd + late_after) % nranks};
		cluster_clients(clients, nranks, &c, IN_TURN, one_attempt, &at);
		say_pids(clients, nranks);
		clients_end(clients, nranks);
	}
	cluster_stop(&c);
}

static void ranks_that_exit_on_it_hide_nothing(void **state)
{
	(void)state;
	for (int late_after = 0; late_after < 3; late_after++)
		exit_at_once(NODES, 3, late_after);
	for (int late_after = 0; late_after < 8; late_after += 3)
		exit_at_once(NODES, 8, late_after);
	exit_at_once(1, 3, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(one_node_names_the_odd_one),
		TEST(several_nodes_name_the_odd_one),
		TEST(ranks_that_exit_on_it_hide_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
