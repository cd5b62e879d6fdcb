/* SPDX-License-Identifier: Apache-2.0
 * How long waiting threads poll, on made-up timelines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "proto/spin.h"

#define US 1000u
#define MS 1000000u

/* A thread that waits repeatedly, and does nothing else. */
struct line {
	struct spin spin;
	uint64_t now, polled_ns;
	unsigned parked; /* waits that polling did not end */
};

static struct line line_on(unsigned cores)
{
	struct line l = {.now = 5 * (uint64_t)MS};
	spin_init(&l.spin, SPIN_AUTO, cores);
	return l;
}

static void wait_once(struct line *l, uint64_t ns)
{
	const uint64_t budget = spin_budget_ns(&l->spin, l->now);
	l->polled_ns += ns <= budget ? ns : budget;
	l->parked += ns > budget;
	l->now += ns;
	spin_waited(&l->spin, ns);
}

static void waits(struct line *l, unsigned n, uint64_t ns)
{
	while (n--)
		wait_once(l, ns);
}

/* The cost of polling, in thousandths of a core. */
static unsigned share(const struct line *l, uint64_t since)
{
	return (unsigned)(l->polled_ns * 1000 / (l->now - since));
}

static void a_lone_core_is_never_polled_on(void **state)
{
	(void)state;
	struct line l = line_on(1);
	waits(&l, 1000, 2 * US);
	assert_int_equal(l.parked, 1000);
	assert_int_equal(l.polled_ns, 0);
	assert_int_equal(line_on(0).spin.budget_ns, 0);
}

static void short_waits_are_polled_through(void **state)
{
	(void)state;
	static const unsigned cores[] = {2, 8, 32};
	for (unsigned i = 0; i < 3; i++) {
		struct line l = line_on(cores[i]);
		waits(&l, 1000, 5 * US);
		assert_int_equal(l.parked, 0);
		waits(&l, 1000, 40 * US);
		assert_in_range(l.parked, 1, 3);
	}
}

/* The longest wait that is worth polling depends on the number of cores. */
static void more_cores_poll_for_longer(void **state)
{
	(void)state;
	static const struct {
		unsigned cores;
		uint64_t polled, parked;
	} rows[] = {{2, 170 * US, 220 * US}, {3, 260 * US, 320 * US}, {32, 260 * US, 320 * US}};
	for (unsigned i = 0; i < 3; i++) {
		struct line l = line_on(rows[i].cores);
		waits(&l, 100, rows[i].polled);
		l.parked = 0;
		waits(&l, 100, rows[i].polled);
		assert_int_equal(l.parked, 0);
		waits(&l, 100, rows[i].parked);
		l.parked = 0;
		waits(&l, 100, rows[i].parked);
		assert_int_equal(l.parked, 100);
	}
}

static void tasks_every_few_ms_cost_next_to_nothing(void **state)
{
	(void)state;
	static const unsigned cores[] = {2, 32};
	for (unsigned i = 0; i < 2; i++) {
		struct line l = line_on(cores[i]);
		waits(&l, 1000, 5 * US); /* what was before is soon forgotten */
		l.polled_ns = 0;
		const uint64_t since = l.now;
		for (unsigned step = 0; step < 20; step++) {
			waits(&l, 25, 5 * MS);
			wait_once(&l, 75 * MS);
		}
		assert_in_range(share(&l, since), 0, 5);
	}
}

/* Two ranks submit 0.1 ms apart, then pause: as in a training step. */
static void a_pair_of_tasks_every_few_ms_costs_little(void **state)
{
	(void)state;
	for (unsigned cores = 2; cores <= 32; cores *= 4) {
		struct line l = line_on(cores);
		for (unsigned i = 0; i < 500; i++) {
			wait_once(&l, 100 * US);
			wait_once(&l, 6 * MS);
		}
		assert_in_range(share(&l, 5 * MS), 0, 50);
	}
}

/* After pauses of seconds and occasional tasks, the next burst is delayed by no more than some
 * wake-ups, and its end costs no more than some unsuccessful polls. */
static void a_burst_after_a_pause_polls_again(void **state)
{
	(void)state;
	struct line l = line_on(2);
	for (unsigned round = 0; round < 5; round++) {
		waits(&l, 100, 20 * MS);
		wait_once(&l, 3000 * (uint64_t)MS);
		l.parked = 0;
		waits(&l, 200, 30 * US);
		assert_in_range(l.parked, 1, 8);
		l.polled_ns = 0;
		waits(&l, 100, 20 * MS);
		assert_in_range(l.polled_ns, 1, 100 * SPIN_BASE_NS + 40 * 100 * US);
	}
}

/* In any pattern, unsuccessful polling is paid for by the wake-ups that polling saved. */
static void polling_costs_no_more_than_the_wake_ups_would(void **state)
{
	(void)state;
	srand(17);
	for (unsigned trial = 0; trial < 50; trial++) {
		struct line l = line_on(2 + (unsigned)rand() % 30);
		const uint64_t worth = l.spin.worth_ns;
		const unsigned percent = (unsigned)rand() % 101, n = 5000;
		const uint64_t most_short = 1 + (uint64_t)rand() % worth;
		for (unsigned i = 0; i < n; i++) {
			const bool is_short = (unsigned)rand() % 100 < percent;
			wait_once(&l, is_short ? 1 + (uint64_t)rand() % most_short
					       : worth + (uint64_t)rand() % (20 * MS));
		}
		const uint64_t always_parked = n * (SPIN_BASE_NS + worth);
		assert_true(l.polled_ns + l.parked * worth <= always_parked * 21 / 20);
	}
}

static void a_lost_core_is_not_polled_on_for_a_while(void **state)
{
	(void)state;
	struct line l = line_on(32);
	spin_looked(&l.spin, 50 * US, l.now); /* an interrupt */
	waits(&l, 10, 5 * US);
	assert_int_equal(l.parked, 0);

	spin_looked(&l.spin, 3 * MS, l.now);
	const uint64_t since = l.now;
	while (!spin_budget_ns(&l.spin, l.now))
		wait_once(&l, 5 * US);
	assert_in_range(l.now - since, 10 * MS, 100 * MS);
	assert_int_equal(l.polled_ns, 10 * 5 * US);
	l.parked = 0;
	waits(&l, 10, 5 * US);
	assert_int_equal(l.parked, 0);

	/* A debugger, or a suspended machine, is no reason to park for minutes. */
	spin_looked(&l.spin, 3600 * UINT64_C(1000000000), l.now);
	l.now += 500 * MS;
	assert_true(spin_budget_ns(&l.spin, l.now) > 0);
}

static void a_configured_time_is_always_polled(void **state)
{
	(void)state;
	struct line l = {0};
	spin_init(&l.spin, 40, 1);
	spin_looked(&l.spin, 3 * MS, l.now);
	waits(&l, 100, 39 * US);
	assert_int_equal(l.parked, 0);
	waits(&l, 100, 5 * MS);
	assert_int_equal(l.polled_ns, 100 * 39 * US + 100 * 40 * US);

	spin_init(&l.spin, 0, 32);
	waits(&l, 100, 2 * US);
	assert_int_equal(spin_budget_ns(&l.spin, l.now), 0);
}

/* A client learns from the daemon what a wake-up costs, and at first does not know it. */
static void the_worth_may_change(void **state)
{
	(void)state;
	struct line l = {0};
	waits(&l, 10, 2 * US);
	waits(&l, 10, 2 * MS);
	assert_int_equal(l.polled_ns, 0);
	spin_value(&l.spin, 100 * US);
	assert_int_equal(spin_budget_ns(&l.spin, l.now), SPIN_BASE_NS);
	waits(&l, 100, 60 * US);
	assert_in_range(spin_budget_ns(&l.spin, l.now), 60 * US, 80 * US);
	spin_value(&l.spin, 3 * US); /* less than every wait polls */
	assert_in_range(spin_budget_ns(&l.spin, l.now), 0, 3 * US);
	spin_value(&l.spin, 0);
	assert_int_equal(spin_budget_ns(&l.spin, l.now), 0);
}

static void naps_are_a_small_share_of_the_wait(void **state)
{
	(void)state;
	unsigned naps = 0;
	uint64_t at = SPIN_BASE_NS;
	for (; at < 5 * MS; naps++) {
		const uint64_t nap = spin_nap_ns(at, 16);
		assert_true(nap <= at / 16 || nap == SPIN_NAP_MIN_NS);
		at += nap;
	}
	assert_in_range(naps, 1, 80);
	assert_int_equal(spin_nap_ns(0, 16), SPIN_NAP_MIN_NS);
	assert_int_equal(spin_nap_ns(UINT64_MAX, 4), SPIN_NAP_MAX_NS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_lone_core_is_never_polled_on),
		cmocka_unit_test(short_waits_are_polled_through),
		cmocka_unit_test(more_cores_poll_for_longer),
		cmocka_unit_test(tasks_every_few_ms_cost_next_to_nothing),
		cmocka_unit_test(a_pair_of_tasks_every_few_ms_costs_little),
		cmocka_unit_test(a_burst_after_a_pause_polls_again),
		cmocka_unit_test(polling_costs_no_more_than_the_wake_ups_would),
		cmocka_unit_test(a_lost_core_is_not_polled_on_for_a_while),
		cmocka_unit_test(a_configured_time_is_always_polled),
		cmocka_unit_test(the_worth_may_change),
		cmocka_unit_test(naps_are_a_small_share_of_the_wait),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
