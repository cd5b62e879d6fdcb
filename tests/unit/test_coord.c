/* SPDX-License-Identifier: Apache-2.0
 * A single coordinator. tests/simulation tests several of them with all their messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/timings.h"
#include "coord/coord.h"
#include "coord/rendezvous.h"

static unsigned refused;
static uint64_t now;

static void take(void *arg, uint32_t node, enum control_kind kind, const void *body, size_t size)
{
	(void)arg;
	(void)node;
	(void)body;
	(void)size;
	refused += kind == CONTROL_REFUSE;
}

static uint32_t lost_node = UINT32_MAX;

static bool is_lost(void *arg, uint32_t node)
{
	(void)arg;
	return node == lost_node;
}

static uint64_t clock_of_test(void *arg)
{
	(void)arg;
	return ++now;
}

static void no_deadline(void *arg, uint64_t at_ns)
{
	(void)arg;
	(void)at_ns;
}

static uint64_t next_uid(void *arg)
{
	(void)arg;
	return ++now;
}

static const struct coord_ops ops = {
	.send = take,
	.gone = is_lost,
	.now_ns = clock_of_test,
	.deadline = no_deadline,
	.new_uid = next_uid,
};

/* A member of this user joins one of many communicators. */
static void user_joins(struct coord *c, uint32_t uid, uint32_t number, uint32_t nranks)
{
	struct control_join m = {.nranks = nranks, .session = 1, .pid = 1, .uid = uid};
	memcpy(m.id, &number, sizeof(number));
	coord_handle(c, 0, CONTROL_JOIN, &m);
}

static void join(struct coord *c, uint32_t number)
{
	user_joins(c, 0, number, 2);
}

static void leave(struct coord *c, uint32_t number)
{
	struct control_withdraw m = {.session = 1};
	memcpy(m.id, &number, sizeof(number));
	coord_handle(c, 0, CONTROL_WITHDRAW, &m);
}

static void test_idle_communicators_give_way(void **state)
{
	struct coord c;
	(void)state;
	coord_init(&c, &ops, NULL, 0, 1);
	for (uint32_t i = 0; i < 2 * SVC_COMMS_MAX; i++) {
		join(&c, i);
		leave(&c, i);
	}
	assert_int_equal(refused, 0);
	for (uint32_t i = 0; i < SVC_COMMS_MAX; i++)
		join(&c, i);
	assert_int_equal(refused, 0);
	join(&c, SVC_COMMS_MAX); /* all are in use */
	assert_int_equal(refused, 1);
	coord_free(&c);
}

static const struct rendezvous *find(const struct coord *c, uint32_t number)
{
	uint8_t id[NCCLSVC_ID_BYTES] = {0};
	memcpy(id, &number, sizeof(number));
	return rendezvous_find(c, id);
}

static void join_as(struct coord *c, uint32_t number, uint32_t rank, uint32_t uid, uint32_t admit)
{
	struct control_join m = {.nranks = 3,
				 .rank = rank,
				 .session = rank + 1,
				 .pid = 1,
				 .uid = uid,
				 .admit = admit};
	memcpy(m.id, &number, sizeof(number));
	coord_handle(c, 0, CONTROL_JOIN, &m);
}

/* Between nodes, the first JOIN of all decides whether it admits other users. */
static void test_the_first_join_admits_other_users(void **state)
{
	struct coord c;
	(void)state;
	coord_init(&c, &ops, NULL, 0, 1);
	refused = 0;
	join_as(&c, 1, 0, 7, NCCLSVC_ADMIT_USER);
	join_as(&c, 1, 1, 7, NCCLSVC_ADMIT_TENANT);
	assert_int_equal(refused, 0);
	join_as(&c, 1, 2, 8, NCCLSVC_ADMIT_ANY);
	assert_int_equal(refused, 1);
	join_as(&c, 2, 0, 7, NCCLSVC_ADMIT_ANY);
	join_as(&c, 2, 1, 8, NCCLSVC_ADMIT_TENANT);
	join_as(&c, 2, 2, 9, NCCLSVC_ADMIT_TENANT);
	assert_int_equal(refused, 1);
	assert_true(find(&c, 2)->running);
	coord_free(&c);
	refused = 0;
}

/* Communicators without members are kept for a while. One user's idle ones take no more memory than
 * those that the user may hold, and never displace another user's. */
static void test_one_users_idle_communicators_give_way_first(void **state)
{
	const uint32_t others = 1, ranks = 1024, most = SVC_USER_RANKS / ranks;
	struct coord c;
	(void)state;
	coord_init(&c, &ops, NULL, 0, 1);
	refused = 0;
	user_joins(&c, 1, others, 2);
	leave(&c, others);
	for (uint32_t i = 0; i < 4 * most; i++) {
		user_joins(&c, 2, others + 1 + i, ranks);
		leave(&c, others + 1 + i);
		assert_true(HASH_COUNT(c.rendezvous) <= most + 1);
	}
	assert_non_null(find(&c, others));
	assert_null(find(&c, others + 1));
	assert_non_null(find(&c, others + 4 * most)); /* the last */
	/* Small ones take memory too. */
	for (uint32_t i = 0; i < SVC_COMMS_MAX; i++) {
		user_joins(&c, 3, 1000000 + i, 1);
		leave(&c, 1000000 + i);
	}
	assert_true(HASH_COUNT(c.rendezvous) < SVC_COMMS_MAX / 2);
	assert_non_null(find(&c, others));
	/* The next join gets it. */
	user_joins(&c, 3, others, 2);
	leave(&c, others);
	assert_null(find(&c, 1000000 + SVC_COMMS_MAX / 2));
	assert_non_null(find(&c, others));
	assert_int_equal(refused, 0);
	coord_free(&c);
}

/* The other member's node was lost before START came, so no node repeats that the epoch is over.
 * The same holds for an epoch that has not begun here before the next START. */
static void test_coordinator_ends(void **state)
{
	struct coord c;
	_Alignas(8) char room[sizeof(struct control_start) + 2 * sizeof(struct control_member)] = {
		0};
	struct control_start *m = (void *)room;
	m->epoch = 1;
	m->nranks = 2;
	m->members[1].node = 1;
	(void)state;
	coord_init(&c, &ops, NULL, 0, 2);
	coord_handle(&c, 0, CONTROL_START, m);
	assert_non_null(c.coordinators);
	coord_node_lost(&c, 1);
	assert_null(c.coordinators);
	lost_node = 1;
	coord_handle(&c, 0, CONTROL_START, m);
	assert_null(c.coordinators);
	lost_node = UINT32_MAX;
	coord_handle(&c, 0, CONTROL_START, m);
	m->epoch = 2; /* whose coordinator is the other node */
	m->members[0].node = 1;
	coord_handle(&c, 0, CONTROL_START, m);
	assert_null(c.coordinators);
	coord_free(&c);
}

/* A request has overtaken a START that never comes. Epochs that have started are unaffected. */
static void test_the_unstarted_are_forgotten(void **state)
{
	struct coord c;
	_Alignas(8) char room[sizeof(struct control_start) + 2 * sizeof(struct control_member)] = {
		0};
	struct control_start *start = (void *)room;
	struct control_split split = {.of = {.id = "another", .epoch = 1, .nranks = 2}};
	(void)state;
	start->epoch = 1;
	start->nranks = 2;
	coord_init(&c, &ops, NULL, 0, 2);
	coord_handle(&c, 0, CONTROL_START, start);
	assert_null(c.unstarted);
	assert_int_equal(coord_expire(&c), 0);
	coord_handle(&c, 1, CONTROL_SPLIT, &split);
	assert_non_null(c.unstarted);
	const uint64_t end = coord_expire(&c);
	assert_in_range(end, now, now + RENDEZVOUS_KEPT_NS);
	now = end;
	assert_int_equal(coord_expire(&c), 0);
	assert_null(c.unstarted);
	assert_non_null(c.coordinators);
	coord_handle(&c, 1, CONTROL_SPLIT, &split);
	memcpy(start->id, split.of.id, sizeof(start->id));
	coord_handle(&c, 0, CONTROL_START, start);
	assert_null(c.unstarted);
	coord_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_idle_communicators_give_way),
		cmocka_unit_test(test_one_users_idle_communicators_give_way_first),
		cmocka_unit_test(test_the_first_join_admits_other_users),
		cmocka_unit_test(test_coordinator_ends),
		cmocka_unit_test(test_the_unstarted_are_forgotten),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
