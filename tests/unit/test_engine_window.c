/* SPDX-License-Identifier: Apache-2.0
 * The engine and windows: which tasks are in them, and what the workers are asked, in which order.
 */
#include "engine_gpus.h"

#define LENT  20 /* regions */
#define OTHER 21
#define MIB   0x100000u

static uint64_t base_of(uint32_t trainer, uint32_t region)
{
	return UINT64_C(0x700000000) + trainer * 0x10000000u + region * 0x1000000u;
}

static struct svc_record sum(uint32_t region)
{
	struct svc_record r = record(0, NCCLSVC_ALL_REDUCE, 0);
	r.type = NCCLSVC_FLOAT32;
	r.src_region = r.dst_region = region;
	return r;
}

/* The same from both members; their GPUs are through with it. */
static void both_submit(struct svc_record r)
{
	uint64_t heads[2] = {head(0), head(1)}, n[2];
	for (uint32_t i = 0; i < 2; i++)
		n[i] = submit_one(i, r);
	for (uint32_t i = 0; i < 2; i++)
		launched(i, heads[i] + 1);
	for (uint32_t i = 0; i < 2; i++) {
		run_all(i);
		ends(i, n[i], 0);
	}
}

static const struct launch *last(uint32_t device)
{
	return launch(device, head(device) - 1);
}

/* Waits for the next launch on both, which is that for windows. */
static void both_asked(uint64_t n, uint8_t op, uint8_t window)
{
	for (uint32_t i = 0; i < 2; i++) {
		launched(i, n);
		assert_int_equal(last(i)->op, op);
		assert_int_equal(last(i)->src_window, window);
		assert_int_equal(last(i)->slot, 0);
		assert_int_equal(last(i)->flags, 0);
	}
}

static void run_both(void)
{
	run_all(0);
	run_all(1);
}

static void next_event(enum event_kind kind)
{
	struct event ev;
	for (uint64_t until = now_ns() + WAIT_NS; !engine->next_event(engine, &ev);
	     pause_ns(100000))
		assert_true(now_ns() < until);
	assert_int_equal(ev.kind, kind);
}

static void no_event(void)
{
	struct event ev;
	pause_ns(QUIET_NS);
	assert_false(engine->next_event(engine, &ev));
}

static void remove_region(uint32_t trainer, uint32_t region)
{
	command((struct command){
		.kind = COMMAND_REGION_DEL, .session = trainer, .region = {.region = region}});
	next_event(EVENT_REGION_GONE);
}

static void begin(void)
{
	for (uint32_t i = 0; i < 2; i++) {
		add_trainer(i);
		lend(i, LENT, (int32_t)i, base_of(i, LENT), 4 * MIB);
		lend(i, OTHER, (int32_t)i, base_of(i, OTHER), 4 * MIB);
	}
	START(0, 2, LIST(0, 1), LIST(0, 1));
}

/* Up to where the workers have prepared one: 5 launches. */
static void prepare(void)
{
	begin();
	for (uint64_t i = 0; i < 4; i++) {
		both_submit(sum(LENT));
		assert_int_equal(launch(0, i)->src_window, 0);
	}
	both_asked(5, LAUNCH_PREPARE, 1);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(last(i)->src, base_of(i, LENT));
		assert_int_equal(last(i)->count, 4 * MIB);
	}
	run_both();
}

/* Up to where it is used: 6 launches. */
static void get_ready(void)
{
	prepare();
	both_asked(6, LAUNCH_REGISTER, 1);
	run_both();
	/* When both have, and the engine has seen it. */
	for (uint64_t until = now_ns() + WAIT_NS; !atomic_load(&progress_pages[0][1].windows);)
		assert_true(now_ns() < until);
}

static void a_window_comes_after_a_few_uses(void **state)
{
	(void)state;
	prepare();
	both_asked(6, LAUNCH_REGISTER, 1);
	/* Until all have, it is not used. */
	uint64_t a = submit_one(0, sum(LENT)), b = submit_one(1, sum(LENT));
	launched(0, 7);
	launched(1, 7);
	assert_int_equal(last(0)->src_window, 0);
	assert_int_equal(last(1)->src_window, 0);
	run_both();
	ends(0, a, 0);
	ends(1, b, 0);
	a = submit_one(0, sum(LENT));
	b = submit_one(1, sum(LENT));
	for (uint32_t i = 0; i < 2; i++) {
		launched(i, 8);
		assert_int_equal(last(i)->op, NCCLSVC_ALL_REDUCE);
		assert_int_equal(last(i)->src_window, 1);
		assert_int_equal(last(i)->dst_window, 1);
		assert_int_equal(last(i)->src, base_of(i, LENT));
	}
	run_both();
	ends(0, a, 0);
	ends(1, b, 0);
}

static void only_what_gains_by_it_is_in_windows(void **state)
{
	(void)state;
	get_ready();
	struct svc_record r = sum(LENT);
	r.src_offset = r.dst_offset = 4096; /* on both */
	both_submit(r);
	assert_int_equal(last(1)->src_window, 1);
	r = sum(LENT);
	r.count = MIB / 4;
	both_submit(r);
	assert_int_equal(last(1)->src_window, 1);
	r.count++; /* too large */
	both_submit(r);
	assert_int_equal(last(1)->src_window, 0);
	r = sum(LENT);
	r.type = NCCLSVC_INT32; /* NCCL has no kernel */
	both_submit(r);
	assert_int_equal(last(1)->src_window, 0);
	r = sum(LENT);
	r.redop = NCCLSVC_MAX;
	both_submit(r);
	assert_int_equal(last(1)->src_window, 0);
	r = sum(LENT);
	r.dst_region = OTHER; /* half of it */
	both_submit(r);
	assert_int_equal(last(1)->src_window, 0);
}

/* Other places, and memory that is no worker's. */
static void members_that_differ_use_no_windows(void **state)
{
	(void)state;
	get_ready();
	for (int i = 0; i < 2; i++) {
		struct svc_record mine = sum(LENT), other = sum(LENT);
		if (i)
			other.src_offset = 4096;
		else
			other.src_region = REGION + 1;
		uint64_t a = submit_one(0, mine), b = submit_one(1, other);
		launched(0, 7 + (uint64_t)i);
		launched(1, 7 + (uint64_t)i);
		for (uint32_t d = 0; d < 2; d++) {
			assert_int_equal(last(d)->src_window, 0);
			assert_int_equal(last(d)->dst_window, 0);
		}
		run_both();
		ends(0, a, 0);
		ends(1, b, 0);
	}
}

static void what_one_cannot_prepare_none_registers(void **state)
{
	(void)state;
	begin();
	gpus[1].says = WINDOW_BAD;
	for (int i = 0; i < 4; i++)
		both_submit(sum(LENT));
	both_asked(5, LAUNCH_PREPARE, 1);
	run_both();
	both_asked(6, LAUNCH_DROP, 1);
	run_both();
	for (int i = 0; i < 8; i++) /* nor is it asked again */
		both_submit(sum(LENT));
	nothing_comes();
	no_event();
	assert_int_equal(head(0), 14);
}

static void what_one_cannot_register_none_uses(void **state)
{
	(void)state;
	prepare();
	gpus[1].says = WINDOW_BAD;
	both_asked(6, LAUNCH_REGISTER, 1);
	run_both();
	both_asked(7, LAUNCH_DROP, 1);
	run_both();
	for (int i = 0; i < 8; i++)
		both_submit(sum(OTHER));
	assert_int_equal(last(0)->src_window, 0);
	nothing_comes();
	no_event();
}

static void nothing_is_registered_while_something_flies(void **state)
{
	(void)state;
	begin();
	for (int i = 0; i < 4; i++)
		both_submit(sum(LENT));
	both_asked(5, LAUNCH_PREPARE, 1);
	submit_one(0, sum(LENT));
	submit_one(1, sum(LENT));
	launched(0, 6);
	launched(1, 6);
	run_to(0, 5);
	run_to(1, 5);
	nothing_comes();
	run_all(0);
	nothing_comes();
	run_all(1);
	both_asked(7, LAUNCH_REGISTER, 1);
}

static void memory_that_goes_takes_its_window_along(void **state)
{
	(void)state;
	get_ready();
	submit_one(0, sum(LENT));
	submit_one(1, sum(LENT));
	launched(0, 7);
	launched(1, 7);
	assert_int_equal(last(1)->src_window, 1);
	run_all(0);
	pause_ns(QUIET_NS); /* until it has landed */
	remove_region(0, LENT);
	nothing_comes(); /* the other's GPU is still at it */
	run_all(1);
	both_asked(8, LAUNCH_DROP, 1);
	run_both();
	assert_int_equal(atomic_load(&progress_pages[0][0].windows), 0);
	/* Another allocation in its place is another window. */
	lend(0, LENT, 0, base_of(0, LENT), 4 * MIB);
	for (uint64_t i = 0; i < 4; i++) {
		both_submit(sum(LENT));
		assert_int_equal(launch(0, 8 + i)->src_window, 0);
	}
	both_asked(13, LAUNCH_PREPARE, 1);
}

/* Memory is not kept for as long as somebody's task takes. */
static void a_window_does_not_wait_for_ever(void **state)
{
	(void)state;
	get_ready();
	submit_one(0, sum(OTHER));
	submit_one(1, sum(OTHER));
	launched(0, 7);
	launched(1, 7);
	remove_region(1, LENT);
	nothing_comes();
	both_asked(8, LAUNCH_DROP, 1);
	run_both();
	nothing_comes();
}

static void memory_that_goes_early_is_not_registered(void **state)
{
	(void)state;
	begin();
	for (int i = 0; i < 4; i++)
		both_submit(sum(LENT));
	both_asked(5, LAUNCH_PREPARE, 1);
	remove_region(1, LENT);
	run_both();
	both_asked(6, LAUNCH_DROP, 1);
	run_both();
	nothing_comes();
	no_event();
}

/* Who takes NCCL's communicator next must not find them. */
static void an_epoch_is_gone_after_its_windows(void **state)
{
	(void)state;
	get_ready();
	end_epoch(0, NCCLSVC_PEER_GONE, 1);
	both_asked(7, LAUNCH_DROP, 1);
	no_event();
	run_all(0);
	no_event();
	run_all(1);
	next_event(EVENT_EPOCH_GONE);
	no_event();
}

static void windows_of_a_dead_epoch_are_forgotten(void **state)
{
	(void)state;
	prepare();
	both_asked(6, LAUNCH_REGISTER, 1);
	run_all(0); /* the other one never does it */
	end_epoch(0, NCCLSVC_WORKER_LOST, 1);
	nothing_comes();
	command((struct command){.kind = COMMAND_EPOCH_DEAD, .epoch_end = {.comm = 0}});
	next_event(EVENT_EPOCH_GONE);
	no_event();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ENGINE_TEST(a_window_comes_after_a_few_uses),
		ENGINE_TEST(only_what_gains_by_it_is_in_windows),
		ENGINE_TEST(members_that_differ_use_no_windows),
		ENGINE_TEST(what_one_cannot_prepare_none_registers),
		ENGINE_TEST(what_one_cannot_register_none_uses),
		ENGINE_TEST(nothing_is_registered_while_something_flies),
		ENGINE_TEST(memory_that_goes_takes_its_window_along),
		ENGINE_TEST(a_window_does_not_wait_for_ever),
		ENGINE_TEST(memory_that_goes_early_is_not_registered),
		ENGINE_TEST(an_epoch_is_gone_after_its_windows),
		ENGINE_TEST(windows_of_a_dead_epoch_are_forgotten),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
