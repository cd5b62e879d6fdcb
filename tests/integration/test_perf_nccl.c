/* SPDX-License-Identifier: Apache-2.0
 *
 * ncclsvc-perf's baseline on GPUs, as ncclsvc-perf sees it: the processes of ncclsvc-perf-nccl,
 * on the stand-ins for CUDA and NCCL. Environment: NCCLSVC_PERF_NCCL, LD_LIBRARY_PATH. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "child_process.h"
#include "perf_ranks.h"

#define RANKS	   3
#define BYTES	   (1 << 20)
#define TIMEOUT_MS 20000

static const int gpus[RANKS] = {0, 1, 2};
static struct ranks ranks;

static int start(void **state)
{
	(void)state;
	/* private_dir is emptied at the end, with the stand-ins' files in it. */
	const char *dir = private_dir();
	if (!dir || setenv("NCCLSVC_FAKE_DIR", dir, 1) || setenv("NCCLSVC_FAKE_GPUS", "3", 1))
		return -1;
	if (!ranks_start_nccl(&ranks, gpus, RANKS, TIMEOUT_MS))
		return -1;
	return ranks_join(&ranks) && ranks_buffers(&ranks, BYTES) ? 0 : -1;
}

static int stop(void **state)
{
	(void)state;
	ranks_stop(&ranks);
	remove_private_dir();
	return 0;
}

static struct work work_of(unsigned op, unsigned type, unsigned redop)
{
	return (struct work){.op = (uint8_t)op,
			     .type = (uint8_t)type,
			     .redop = (uint8_t)redop,
			     .root = work_has_root(op) ? RANKS - 1 : 0,
			     .nranks = RANKS,
			     .count = work_count(op, type, RANKS, 100000)};
}

static void check(struct work w)
{
	for (int place = 0; place < 2; place++) {
		w.in_place = (uint8_t)place;
		if (place && !(work_can_be_in_place(w.op) && work_nccl_can(&w)))
			continue;
		for (uint8_t sync = SYNC_EACH; sync <= SYNC_LAST; sync++) {
			struct command command = {
				.kind = COMMAND_CHECK, .sync = sync, .seed = 7 + sync, .work = w};
			if (!ranks_do(&ranks, &command))
				fail_msg("op %u type %u redop %u place %d failed", w.op, w.type,
					 w.redop, place);
			if (ranks_wrong(&ranks))
				fail_msg("op %u type %u redop %u place %d: %llu wrong", w.op,
					 w.type, w.redop, place,
					 (unsigned long long)ranks_wrong(&ranks));
		}
	}
}

static void test_operations(void **state)
{
	(void)state;
	for (unsigned op = NCCLSVC_ALL_REDUCE; op <= NCCLSVC_BARRIER; op++) {
		if (op != NCCLSVC_RECV)
			check(work_of(op, NCCLSVC_FLOAT32, NCCLSVC_SUM));
	}
}

/* Averages over three ranks are exact, and so checked, for integers only. */
static void test_types(void **state)
{
	(void)state;
	for (unsigned type = NCCLSVC_INT8; type <= NCCLSVC_FLOAT8E5M2; type++) {
		bool integer = type <= NCCLSVC_UINT64;
		for (unsigned redop = NCCLSVC_SUM; redop <= NCCLSVC_AVG; redop++) {
			if (redop != NCCLSVC_AVG || integer)
				check(work_of(NCCLSVC_ALL_REDUCE, type, redop));
		}
		check(work_of(NCCLSVC_ALL_GATHER, type, NCCLSVC_SUM));
	}
	for (unsigned type = NCCLSVC_BOOL; type <= NCCLSVC_UINT4; type++) {
		check(work_of(NCCLSVC_ALL_GATHER, type, NCCLSVC_SUM));
		check(work_of(PERF_SENDRECV, type, NCCLSVC_SUM));
	}
}

/* The check must detect a rank with different inputs. */
static void test_wrong(void **state)
{
	(void)state;
	struct command command = {.kind = COMMAND_CHECK,
				  .seed = 1,
				  .work = work_of(NCCLSVC_ALL_GATHER, NCCLSVC_INT32, NCCLSVC_SUM)};
	ranks_tell(&ranks, 1, RANKS - 1, &command);
	command.seed = 2;
	ranks_tell(&ranks, 0, 1, &command);
	assert_true(ranks_collect(&ranks));
	assert_true(ranks_wrong(&ranks) > command.work.count);
}

static void test_times(void **state)
{
	(void)state;
	struct work w = work_of(NCCLSVC_ALL_REDUCE, NCCLSVC_FLOAT32, NCCLSVC_SUM);
	struct command time = {
		.kind = COMMAND_TIME, .fill = 1, .iters = 20, .warmup = 2, .work = w};
	for (uint8_t sync = SYNC_EACH; sync <= SYNC_LAST; sync++) {
		time.sync = sync;
		assert_true(ranks_do(&ranks, &time));
		assert_true(ranks_mean(&ranks, REPLY(elapsed_ns)) > 2000);
	}
	assert_true(ranks_mean(&ranks, REPLY(cpu_ns)) > 200);
	assert_true(ranks_mean(&ranks, REPLY(cpu_ns)) <=
		    ranks_mean(&ranks, REPLY(elapsed_ns)) * 1.5);
}

static void test_start(void **state)
{
	(void)state;
	assert_true(ranks.start_ms > 0);
}

/* Kernels on another stream: alone, and beside operations. */
static void test_compute(void **state)
{
	(void)state;
	struct command command = {
		.kind = COMMAND_TIME,
		.sync = SYNC_STREAM,
		.kernels = 10,
		.spins = 100000,
		.work = work_of(NCCLSVC_ALL_REDUCE, NCCLSVC_FLOAT32, NCCLSVC_SUM)};
	assert_true(ranks_do(&ranks, &command));
	double compute = ranks_mean(&ranks, REPLY(elapsed_ns));
	assert_true(compute > 1e6);
	command.iters = 5;
	assert_true(ranks_do(&ranks, &command));
	assert_true(ranks_mean(&ranks, REPLY(elapsed_ns)) > compute / 2);
}

/* Runs last, because it ends the ranks. */
static void test_refusal(void **state)
{
	(void)state;
	struct command command = {.kind = COMMAND_TIME,
				  .iters = 1,
				  .work = work_of(NCCLSVC_ALL_REDUCE, NCCLSVC_INT8, NCCLSVC_SUM)};
	command.work.count = BYTES + 1;
	assert_false(ranks_do(&ranks, &command));
	assert_non_null(strstr(ranks.members[0].reply.text, "too small"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_operations), cmocka_unit_test(test_types),
		cmocka_unit_test(test_wrong),	   cmocka_unit_test(test_times),
		cmocka_unit_test(test_start),	   cmocka_unit_test(test_compute),
		cmocka_unit_test(test_refusal),
	};
	return cmocka_run_group_tests_name("perf_nccl", tests, start, stop);
}
