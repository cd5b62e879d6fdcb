/* SPDX-License-Identifier: Apache-2.0
 * The sequencer alone: node 0 of 3. What it would send is kept here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sched/span.h"

#define NODES 3

static bool lost[NODES];
static struct engine engine;

/* What was said, in order. */
static struct said_by_it {
	uint32_t node;
	enum span_kind kind;
	uint64_t span, number;
} said[16];
static unsigned nsaid, nheard;

static void note(uint32_t node, enum span_kind kind, uint64_t span, uint64_t number)
{
	assert_true(nsaid < sizeof(said) / sizeof(said[0]));
	said[nsaid++] = (struct said_by_it){node, kind, span, number};
}

void span_send_node(struct engine *e, uint32_t node, const struct span_header *h, const void *body)
{
	(void)e;
	(void)body;
	note(node, h->kind, h->span, h->key.seq);
}

void sequence_be_told(struct engine *e, enum span_kind kind, uint64_t span, uint64_t number)
{
	note(e->config.node, kind, span, number);
}

static void says(uint32_t node, enum span_kind kind, uint64_t of)
{
	assert_true(nheard < nsaid);
	assert_int_equal(said[nheard].node, node);
	assert_int_equal(said[nheard].kind, kind);
	assert_int_equal(kind == SPAN_CLOSED ? said[nheard].span : said[nheard].number, of);
	nheard++;
}

static void says_nothing(void)
{
	assert_int_equal(nheard, nsaid);
}

/* The seq-th collective of a span of two nodes. */
static struct crossing at(uint64_t span, uint64_t seq)
{
	return (struct crossing){.span = span, .key = {-1, -1, seq, 0}, .nparts = 2};
}

static void wish_one(uint32_t node, uint64_t number, uint64_t span, uint64_t seq)
{
	const struct crossing one = at(span, seq);
	sequencer_wish(&engine, node, number, false, &one, 1);
}

static void wish_two(uint32_t node, uint64_t number, struct crossing a, struct crossing b)
{
	const struct crossing two[] = {a, b};
	sequencer_wish(&engine, node, number, false, two, 2);
}

static int begin(void **state)
{
	(void)state;
	memset(&engine, 0, sizeof(engine));
	memset(lost, 0, sizeof(lost));
	engine.config.nodes = NODES;
	engine.lost = lost;
	nsaid = nheard = 0;
	return 0;
}

static int end(void **state)
{
	(void)state;
	says_nothing();
	sequencer_finish(&engine);
	return 0;
}

static void launches_when_all_have_wished(void **state)
{
	(void)state;
	wish_one(1, 7, 100, 0);
	wish_one(1, 8, 100, 1); /* another one, of other members */
	says_nothing();
	wish_one(2, 3, 100, 1);
	says(2, SPAN_LAUNCH, 3);
	says(1, SPAN_LAUNCH, 8);
	wish_one(2, 4, 100, 0);
	says(2, SPAN_LAUNCH, 4);
	says(1, SPAN_LAUNCH, 7);
}

/* Node 0 has both in one group, node 1 each by itself, node 2 the second and a third with node 0.
 */
static void launches_what_hangs_together(void **state)
{
	(void)state;
	wish_two(0, 1, at(100, 0), at(200, 0));
	wish_one(1, 1, 100, 0);
	wish_two(2, 1, at(200, 0), at(200, 1));
	says_nothing();
	wish_one(0, 2, 200, 1);
	assert_int_equal(nsaid, 4);
	for (unsigned i = 0; i < nsaid; i++)
		assert_int_equal(said[i].kind, SPAN_LAUNCH);
	nheard = nsaid;
}

static void a_wish_may_come_in_parts(void **state)
{
	(void)state;
	const struct crossing a = at(100, 0), b = at(100, 1);
	wish_two(1, 1, a, b);
	sequencer_wish(&engine, 2, 9, true, &a, 1);
	says_nothing();
	sequencer_wish(&engine, 2, 9, false, &b, 1);
	says(2, SPAN_LAUNCH, 9);
	says(1, SPAN_LAUNCH, 1);
}

static void what_is_void_is_not_launched(void **state)
{
	(void)state;
	wish_two(1, 1, at(100, 0), at(200, 0));
	sequencer_unwish(&engine, 1, 1);
	says(1, SPAN_UNWISHED, 1);
	wish_one(2, 1, 100, 0);
	says_nothing();
	wish_one(1, 2, 100, 0);
	says(1, SPAN_LAUNCH, 2);
	says(2, SPAN_LAUNCH, 1);
	sequencer_unwish(&engine, 1, 2); /* too late */
	says(1, SPAN_UNWISHED, 2);
}

static void closes_when_all_have_left(void **state)
{
	const uint32_t nodes[] = {1, 2};
	(void)state;
	wish_two(1, 1, at(100, 0), at(200, 0));
	assert_true(sequencer_awaited(&engine));
	sequencer_leave(&engine, 1, 100, nodes, 2);
	says_nothing();
	sequencer_leave(&engine, 2, 100, nodes, 2);
	says(1, SPAN_CLOSED, 100);
	says(2, SPAN_CLOSED, 100);
	/* The wish went with it; what is left of it is wished for again. */
	wish_one(2, 1, 200, 0);
	says_nothing();
	wish_one(1, 2, 200, 0);
	says(1, SPAN_LAUNCH, 2);
	says(2, SPAN_LAUNCH, 1);
	sequencer_leave(&engine, 1, 200, nodes, 2);
	sequencer_leave(&engine, 2, 200, nodes, 2);
	says(1, SPAN_CLOSED, 200);
	says(2, SPAN_CLOSED, 200);
	assert_false(sequencer_awaited(&engine));
}

/* A communicator with the number of a span is no part of it. */
static void makes_when_all_have_wished(void **state)
{
	const struct crossing make = {.span = 100, .key = {.part = CROSSING_MAKE}, .nparts = 2};
	const uint32_t nodes[] = {1, 2};
	(void)state;
	sequencer_wish(&engine, 1, 1, false, &make, 1);
	assert_false(sequencer_awaited(&engine));
	wish_one(1, 2, 100, 0);
	wish_one(2, 1, 100, 0);
	says(2, SPAN_LAUNCH, 1);
	says(1, SPAN_LAUNCH, 2);
	sequencer_leave(&engine, 1, 100, nodes, 2);
	sequencer_leave(&engine, 2, 100, nodes, 2);
	says(1, SPAN_CLOSED, 100);
	says(2, SPAN_CLOSED, 100);
	sequencer_wish(&engine, 2, 2, false, &make, 1);
	says(2, SPAN_LAUNCH, 2);
	says(1, SPAN_LAUNCH, 1);
	/* One that is not to be. */
	sequencer_wish(&engine, 1, 3, false, &make, 1);
	sequencer_unwish(&engine, 1, 3);
	says(1, SPAN_UNWISHED, 3);
	sequencer_wish(&engine, 2, 3, false, &make, 1);
}

static void does_not_wait_for_who_is_gone(void **state)
{
	const uint32_t nodes[] = {1, 2};
	(void)state;
	wish_one(2, 1, 100, 0);
	sequencer_leave(&engine, 1, 100, nodes, 2);
	lost[2] = true;
	sequencer_node_lost(&engine, 2);
	says(1, SPAN_CLOSED, 100);
	wish_one(1, 1, 100, 0); /* and node 2's wish went with it */
	says_nothing();
}

static void the_lowest_that_lives_is_it(void **state)
{
	(void)state;
	assert_int_equal(sequencer_of(&engine), 0);
	lost[0] = true;
	assert_int_equal(sequencer_of(&engine), 1);
	lost[1] = true;
	assert_int_equal(sequencer_of(&engine), 2);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(launches_when_all_have_wished), TEST(launches_what_hangs_together),
		TEST(a_wish_may_come_in_parts),	     TEST(what_is_void_is_not_launched),
		TEST(closes_when_all_have_left),     TEST(does_not_wait_for_who_is_gone),
		TEST(makes_when_all_have_wished),    TEST(the_lowest_that_lives_is_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
