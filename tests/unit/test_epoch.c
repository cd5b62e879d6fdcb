/* SPDX-License-Identifier: Apache-2.0
 * The epoch's transition table is complete and consistent, and matches the drawing in its header.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/epoch.h"
#include "proto/names.h"

enum { FIRST = NCCLSVC_EPOCH_IDLE, LAST = NCCLSVC_EPOCH_GONE };
enum { CAUSE_FIRST = NCCLSVC_CAUSE_JOINED, CAUSE_LAST = NCCLSVC_CAUSE_SUSPENDED };

/* The possible members when something happens in the state. */
static uint32_t possible_members(ncclsvc_epoch_state state)
{
	switch (state) {
	case NCCLSVC_EPOCH_IDLE:
		return MEMBERS_NONE;
	case NCCLSVC_EPOCH_RUNNING:
		return MEMBERS_NONE | MEMBERS_REMOTE | MEMBERS_HELD;
	case NCCLSVC_EPOCH_LEFT:
		return MEMBERS_NONE | MEMBERS_REMOTE;
	default:
		return MEMBERS_NONE | MEMBERS_HELD | MEMBERS_WAITING | MEMBERS_ALL;
	}
}

static void test_rows_do_not_overlap(void **state)
{
	(void)state;
	for (size_t i = 0; i < epoch_table_rows; i++)
		for (size_t k = 0; k < i; k++) {
			const struct epoch_transition *a = &epoch_table[i], *b = &epoch_table[k];
			if (a->from == b->from && a->causes & b->causes && a->members & b->members)
				fail_msg("rows \"%s\" and \"%s\" say different things of one case",
					 b->meaning, a->meaning);
		}
}

static uint32_t reachable_from(ncclsvc_epoch_state first)
{
	uint32_t reached = 1U << first, before;
	do {
		before = reached;
		for (size_t i = 0; i < epoch_table_rows; i++)
			if (reached >> epoch_table[i].from & 1)
				reached |= 1U << epoch_table[i].to;
	} while (reached != before);
	return reached;
}

static void test_every_state_is_reached_and_left(void **state)
{
	(void)state;
	const uint32_t reached = reachable_from(NCCLSVC_EPOCH_IDLE);
	for (unsigned at = FIRST; at <= LAST; at++) {
		assert_string_not_equal(svc_epoch_state_name(at), "?");
		if (!(reached >> at & 1))
			fail_msg("%s is never reached", svc_epoch_state_name(at));
		if (!(reachable_from(at) >> NCCLSVC_EPOCH_GONE & 1))
			fail_msg("%s has no way to the end", svc_epoch_state_name(at));
	}
	for (size_t i = 0; i < epoch_table_rows; i++)
		assert_int_not_equal(epoch_table[i].from, NCCLSVC_EPOCH_GONE);
}

static void test_every_cause_is_used(void **state)
{
	(void)state;
	uint32_t used = 0;
	for (size_t i = 0; i < epoch_table_rows; i++) {
		assert_true(epoch_table[i].causes != 0 && epoch_table[i].members != 0);
		used |= epoch_table[i].causes;
	}
	for (unsigned cause = CAUSE_FIRST; cause <= CAUSE_LAST; cause++) {
		assert_string_not_equal(svc_epoch_cause_name(cause), "?");
		if (!(used >> cause & 1))
			fail_msg("the table never asks for %s", svc_epoch_cause_name(cause));
	}
	assert_string_equal(svc_epoch_cause_name(CAUSE_LAST + 1), "?");
	assert_string_equal(svc_epoch_state_name(LAST + 1), "?");
}

/* A member's death, a deadline, a node's loss and the daemon's end have a row in every state that
 * has members, whichever other members there are. */
static void test_losses_have_rows(void **state)
{
	static const ncclsvc_epoch_cause losses[] = {
		NCCLSVC_CAUSE_MEMBER_DIED, NCCLSVC_CAUSE_DEADLINE, NCCLSVC_CAUSE_NODE_LOST};
	(void)state;
	for (unsigned at = FIRST; at < LAST; at++) {
		assert_non_null(epoch_find(at, NCCLSVC_CAUSE_DAEMON_ENDS, MEMBERS_CLOSED));
		for (size_t i = 0; at != NCCLSVC_EPOCH_IDLE && i < 3; i++)
			for (uint32_t members = 1; members < MEMBERS_CLOSED; members <<= 1)
				if (possible_members(at) & members &&
				    !epoch_find(at, losses[i], members))
					fail_msg("%s has no row for %s with members %u",
						 svc_epoch_state_name(at),
						 svc_epoch_cause_name(losses[i]), members);
	}
	assert_non_null(epoch_find(NCCLSVC_EPOCH_IDLE, NCCLSVC_CAUSE_DEADLINE, MEMBERS_NONE));
}

/* Once nobody is left, nothing waits: each loss leaves the state. A draining epoch only waits for
 * the scheduler. */
static void test_losses_lead_out(void **state)
{
	static const ncclsvc_epoch_cause losses[] = {
		NCCLSVC_CAUSE_MEMBER_DIED, NCCLSVC_CAUSE_DEADLINE, NCCLSVC_CAUSE_NODE_LOST,
		NCCLSVC_CAUSE_DAEMON_ENDS};
	(void)state;
	for (unsigned at = FIRST + 1; at < LAST; at++)
		for (size_t i = 0; i < 4; i++) {
			struct epoch_life e = {.state = at};
			const bool ends = losses[i] == NCCLSVC_CAUSE_DAEMON_ENDS;
			assert_true(
				epoch_step(&e, losses[i], ends ? MEMBERS_CLOSED : MEMBERS_NONE, 1));
			assert_true(e.state == NCCLSVC_EPOCH_DRAINING || e.state != at);
			if (e.state == NCCLSVC_EPOCH_DRAINING)
				assert_true(epoch_step(&e, NCCLSVC_CAUSE_RELEASED,
						       ends ? MEMBERS_CLOSED : MEMBERS_NONE, 2));
			assert_int_equal(e.state, ends ? NCCLSVC_EPOCH_GONE : NCCLSVC_EPOCH_IDLE);
		}
}

/* The scheduler is notified of an epoch's end once, and releases it once. */
static void test_only_draining_is_released(void **state)
{
	(void)state;
	for (unsigned at = FIRST; at < LAST; at++)
		for (uint32_t members = 1; members <= MEMBERS_CLOSED; members <<= 1) {
			const bool row = epoch_find(at, NCCLSVC_CAUSE_RELEASED, members);
			assert_true(!row || at == NCCLSVC_EPOCH_DRAINING);
		}
	for (size_t i = 0; i < epoch_table_rows; i++) {
		const struct epoch_life from = {.state = epoch_table[i].from};
		const struct epoch_life to = {.state = epoch_table[i].to};
		const uint32_t released = 1U << NCCLSVC_CAUSE_RELEASED;
		const uint32_t forgotten = 1U << NCCLSVC_CAUSE_FORGOTTEN;
		if (epoch_held(&from) && !epoch_held(&to))
			assert_int_equal(epoch_table[i].causes & ~(released | forgotten), 0);
		if (!epoch_held(&from) && epoch_held(&to))
			assert_int_equal(epoch_table[i].causes, 1U << NCCLSVC_CAUSE_STARTED);
	}
}

static void test_what_is_not_in_the_table_changes_nothing(void **state)
{
	(void)state;
	struct epoch_life e, was;
	epoch_begin(&e, 5);
	was = e;
	assert_false(epoch_step(&e, NCCLSVC_CAUSE_RELEASED, MEMBERS_NONE, 6));
	assert_false(epoch_step(&e, NCCLSVC_CAUSE_STARTED, MEMBERS_ALL, 6));
	assert_false(epoch_step(&e, NCCLSVC_CAUSE_JOINED, MEMBERS_NONE, 6));
	assert_int_equal(e.faults, 3);
	was.faults = e.faults;
	assert_memory_equal(&e, &was, sizeof(e));
	/* The end is final. */
	assert_true(epoch_step(&e, NCCLSVC_CAUSE_DAEMON_ENDS, MEMBERS_CLOSED, 7));
	assert_true(epoch_step(&e, NCCLSVC_CAUSE_JOINED, MEMBERS_ALL, 8));
	assert_int_equal(e.state, NCCLSVC_EPOCH_GONE);
	assert_int_equal(e.since_ns, 7);
}

static void test_last_steps(void **state)
{
	(void)state;
	struct epoch_step steps[NCCLSVC_EPOCH_STEPS];
	struct epoch_life e;
	epoch_begin(&e, 0);
	assert_int_equal(epoch_last_steps(&e, steps), 0);
	for (uint64_t t = 1; t <= 21; t += 2) {
		assert_true(epoch_step(&e, NCCLSVC_CAUSE_JOINED, MEMBERS_WAITING, t));
		assert_true(
			epoch_step(&e, NCCLSVC_CAUSE_JOINED, MEMBERS_WAITING, t)); /* no change */
		assert_true(epoch_step(&e, NCCLSVC_CAUSE_LEFT, MEMBERS_NONE, t + 1));
	}
	assert_int_equal(epoch_last_steps(&e, steps), NCCLSVC_EPOCH_STEPS);
	for (uint32_t i = 0; i < NCCLSVC_EPOCH_STEPS; i++) {
		assert_int_equal(steps[i].at_ns, 22 - i);
		assert_int_equal(steps[i].to, i % 2 ? NCCLSVC_EPOCH_FORMING : NCCLSVC_EPOCH_IDLE);
		assert_int_equal(steps[i].cause, i % 2 ? NCCLSVC_CAUSE_JOINED : NCCLSVC_CAUSE_LEFT);
	}
	assert_int_equal(e.since_ns, 22);
}

/* Text that grows. */
struct drawing {
	char text[8192];
	size_t n;
};

__attribute__((format(printf, 2, 3))) static void put(struct drawing *d, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	d->n += (size_t)vsnprintf(d->text + d->n, sizeof(d->text) - d->n, format, args);
	va_end(args);
	assert_true(d->n < sizeof(d->text));
}

/* All causes that lead from one state to the other. */
static uint32_t causes_between(unsigned from, unsigned to)
{
	uint32_t causes = 0;
	for (size_t i = 0; i < epoch_table_rows; i++)
		if (epoch_table[i].from == from && epoch_table[i].to == to)
			causes |= epoch_table[i].causes;
	return causes;
}

static void put_causes(struct drawing *d, uint32_t causes)
{
	const char *between = ": ";
	if ((causes & EPOCH_GIVEN_UP) == EPOCH_GIVEN_UP) {
		put(d, "%sgiven up", between);
		causes &= ~(EPOCH_GIVEN_UP & ~EPOCH_LOSS);
		between = ", ";
		if ((causes & EPOCH_LOSS) != EPOCH_LOSS)
			causes &= ~EPOCH_GIVEN_UP;
	}
	if ((causes & EPOCH_LOSS) == EPOCH_LOSS) {
		put(d, "%slost", between);
		causes &= ~EPOCH_LOSS;
		between = ", ";
	}
	for (unsigned cause = CAUSE_FIRST; cause <= CAUSE_LAST; cause++)
		if (causes >> cause & 1) {
			put(d, "%s%s", between, svc_epoch_cause_name(cause));
			between = ", ";
		}
	put(d, "\n");
}

static void draw(struct drawing *d)
{
	put(d, "stateDiagram-v2\n    [*] --> idle\n");
	for (unsigned from = FIRST; from <= LAST; from++)
		for (unsigned to = FIRST; to <= LAST; to++) {
			const uint32_t causes = causes_between(from, to);
			if (from == to || !causes)
				continue;
			put(d, "    %s --> %s", svc_epoch_state_name(from),
			    svc_epoch_state_name(to));
			put_causes(d, causes);
		}
	put(d, "    gone --> [*]\n");
}

static void test_page_draws_the_table(void **state)
{
	static char page[65536];
	static struct drawing drawn;
	(void)state;
	FILE *f = fopen(SOURCE_ROOT "/ARCHITECTURE.md", "r");
	assert_non_null(f);
	page[fread(page, 1, sizeof(page) - 1, f)] = '\0';
	fclose(f);
	draw(&drawn);
	if (!strstr(page, drawn.text)) {
		fputs(drawn.text, stderr);
		fail_msg("ARCHITECTURE.md should draw the above");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows_do_not_overlap),
		cmocka_unit_test(test_every_state_is_reached_and_left),
		cmocka_unit_test(test_every_cause_is_used),
		cmocka_unit_test(test_losses_have_rows),
		cmocka_unit_test(test_losses_lead_out),
		cmocka_unit_test(test_only_draining_is_released),
		cmocka_unit_test(test_what_is_not_in_the_table_changes_nothing),
		cmocka_unit_test(test_last_steps),
		cmocka_unit_test(test_page_draws_the_table),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
