/* SPDX-License-Identifier: Apache-2.0
 * The scheduler, and epochs that have an NCCL communicator only while they need it. */
#include "scheduler_gpus.h"

#define SLOT 5 /* of the workers */

static bool take_event(struct event *ev)
{
	while (next_event_of(scheduler, ev))
		if (ev->kind == EVENT_NCCL_WANTED || ev->kind == EVENT_NCCL_TAKEN)
			return true;
	return false;
}

static struct event next_event(enum event_kind kind)
{
	struct event ev;
	const uint64_t end = now_ns() + WAIT_NS;
	while (!take_event(&ev)) {
		assert_true(now_ns() < end);
		pause_ns(100000);
	}
	assert_int_equal(ev.kind, kind);
	assert_int_equal(ev.nccl.comm, 0);
	assert_int_equal(ev.nccl.epoch, 1);
	return ev;
}

static void no_event(void)
{
	struct event ev;
	quiet();
	assert_false(take_event(&ev));
}

static void give(uint32_t slot)
{
	command((struct command){.kind = COMMAND_NCCL_GIVE, .nccl = {0, 1, slot}});
}

static bool taken(void)
{
	command((struct command){.kind = COMMAND_NCCL_TAKE, .nccl = {0, 1, 0}});
	return next_event(EVENT_NCCL_TAKEN).nccl.taken;
}

static void imported(uint32_t trainer, uint32_t device, uint64_t base)
{
	command((struct command){.kind = COMMAND_REGION_ADD,
				 .session = trainer,
				 .region = {.region = REGION + device,
					    .base = (void *)(uintptr_t)base,
					    .absent = !base,
					    .bytes = BYTES,
					    .device = (int32_t)device}});
}

static int setup_without(void **state)
{
	const int result = setup(state);
	scheduler_without_nccl = true;
	add_trainer(0);
	add_trainer(1);
	for (uint32_t k = 0; k < 2; k++)
		imported(k, k, 0);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	return result;
}

static int teardown_without(void **state)
{
	scheduler_without_nccl = false;
	return teardown(state);
}

static uint64_t sum(uint32_t k)
{
	return submit_one(k, on_timeline(record(0, NCCLSVC_ALL_REDUCE, k), k, 1));
}

/* Both ranks' operation waits, and is launched when there is a communicator, with the addresses
 * that the memory has by then. */
static void operations_wait(void **state)
{
	(void)state;
	no_event();
	const uint64_t a = sum(0);
	next_event(EVENT_NCCL_WANTED);
	const uint64_t b = sum(1);
	nothing_comes();
	no_event(); /* it asks once */
	imported(0, 0, 0x50000000);
	imported(1, 1, 0x60000000);
	give(SLOT);
	launched(0, 1);
	launched(1, 1);
	assert_int_equal(launch(0, 0)->slot, SLOT);
	assert_int_equal(launch(0, 0)->src, 0x50000000);
	assert_int_equal(launch(1, 0)->src, 0x60000000);
	run_to(0, 1);
	run_to(1, 1);
	ends(0, a, 0);
	ends(1, b, 0);
}

static void what_is_used_is_not_taken(void **state)
{
	(void)state;
	operations_wait(state);
	const uint64_t a = sum(0);
	quiet();
	assert_false(taken());
	const uint64_t b = sum(1);
	launched(0, 2);
	quiet();
	assert_false(taken());
	run_to(0, 2);
	run_to(1, 2);
	ends(0, a, 0);
	ends(1, b, 0);
	quiet();
	assert_true(taken());
	assert_true(taken()); /* harmless */
	const uint64_t c = sum(0);
	next_event(EVENT_NCCL_WANTED);
	give(SLOT + 1);
	const uint64_t d = sum(1);
	launched(0, 3);
	launched(1, 3);
	assert_int_equal(launch(0, 2)->slot, SLOT + 1);
	give(SLOT); /* it has one */
	run_to(0, 3);
	run_to(1, 3);
	ends(0, c, 0);
	ends(1, d, 0);
}

static void operations_that_wait_have_deadlines(void **state)
{
	(void)state;
	struct svc_record r = on_timeline(record(0, NCCLSVC_ALL_REDUCE, 0), 0, 1);
	r.timeout_ns = 20000000;
	const uint64_t a = submit_one(0, r);
	const uint64_t b = sum(1);
	ends(0, a, NCCLSVC_TIMEOUT);
	ends(1, b, NCCLSVC_TIMEOUT);
	goes_on(0, 1, 1);
	goes_on(1, 1, 1);
	give(SLOT);
	nothing_comes();
}

static void operations_that_wait_end_with_their_epoch(void **state)
{
	(void)state;
	const uint64_t a = sum(0), b = sum(1);
	quiet();
	end_epoch(0, NCCLSVC_WORKER_LOST, -1);
	ends(0, a, NCCLSVC_WORKER_LOST);
	ends(1, b, NCCLSVC_WORKER_LOST);
	goes_on(0, 1, 1);
	goes_on(1, 1, 1);
	give(SLOT); /* too late */
	nothing_comes();
}

static void memory_that_is_gone_fails_its_operation(void **state)
{
	(void)state;
	const uint64_t a = sum(0), b = sum(1);
	quiet();
	imported(0, 0, 0x50000000); /* the other is not imported */
	give(SLOT);
	ends(0, a, NCCLSVC_INVALID_ARGUMENT);
	ends(1, b, NCCLSVC_INVALID_ARGUMENT);
	ends(1, sum(1), NCCLSVC_INVALID_ARGUMENT);
	nothing_comes();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_without, teardown_without)

static void imported_again(uint32_t trainer, uint32_t device, uint64_t base)
{
	command((struct command){.kind = COMMAND_REGION_ADD,
				 .session = trainer,
				 .region = {.region = REGION + device,
					    .base = (void *)(uintptr_t)base,
					    .again = true,
					    .bytes = BYTES,
					    .device = (int32_t)device}});
}

static void delete_region(uint32_t trainer, uint32_t device, enum event_kind answer)
{
	struct event ev = {0};
	const uint64_t end = now_ns() + WAIT_NS;
	command((struct command){.kind = COMMAND_REGION_DEL,
				 .session = trainer,
				 .region = {.region = REGION + device}});
	while (!next_event_of(scheduler, &ev) ||
	       (ev.kind != EVENT_REGION_GONE && ev.kind != EVENT_REGION_BUSY))
		assert_true(now_ns() < end);
	assert_int_equal(ev.kind, answer);
}

/* The worker's answer may come after the region's end, and before the supervisor knows of that. */
static void imports_bring_no_region_back(void **state)
{
	(void)state;
	const uint64_t a = sum(0);
	next_event(EVENT_NCCL_WANTED);
	delete_region(0, 0, EVENT_REGION_BUSY); /* so its import counts */
	delete_region(1, 1, EVENT_REGION_GONE);
	imported_again(0, 0, 0x50000000);
	imported_again(1, 1, 0x60000000);
	ends(1, sum(1), NCCLSVC_INVALID_ARGUMENT);
	imported(1, 1, 0x70000000);
	const uint64_t b = sum(1);
	give(SLOT);
	launched(0, 1);
	launched(1, 1);
	assert_int_equal(launch(0, 0)->src, 0x50000000);
	assert_int_equal(launch(1, 0)->src, 0x70000000);
	run_to(0, 1);
	run_to(1, 1);
	ends(0, a, 0);
	ends(1, b, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(operations_wait),
		TEST(what_is_used_is_not_taken),
		TEST(operations_that_wait_have_deadlines),
		TEST(operations_that_wait_end_with_their_epoch),
		TEST(memory_that_is_gone_fails_its_operation),
		TEST(imports_bring_no_region_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
