/* SPDX-License-Identifier: Apache-2.0
 * transport = mpi: repeats other tests on one node and between two. */
#include <stdlib.h>
#include <string.h>

#include "staged_setup.h"

/* nodes: NULL for one daemon, else the number of daemons, each with all GPUs, which take the ranks
 * in turn. */
static void again(const struct gpu_test *table, const char *name, const char *nodes)
{
	stage_memory(NULL);
	if (nodes) {
		need_mpi();
		setenv("NCCLSVC_TEST_NODES", nodes, 1);
	}
	while (table->name && strcmp(table->name, name) != 0)
		table++;
	CHECK(table->name);
	table->run();
}

#define ONCE_MORE(function, table, name)                                                           \
	static void function(void)                                                                 \
	{                                                                                          \
		again(table, name, NULL);                                                          \
	}

#define AGAIN(function, table, name)                                                               \
	ONCE_MORE(function, table, name)                                                           \
	static void function##_across(void)                                                        \
	{                                                                                          \
		again(table, name, "2");                                                           \
	}

AGAIN(values_2, values_tests, "values/2")
AGAIN(values_4, values_tests, "values/4")
AGAIN(random_2, random_tests, "random/2")
AGAIN(random_4, random_tests, "random/4")
AGAIN(same_stream, order_tests, "order/same_stream")
AGAIN(other_stream, order_tests, "order/other_stream")
AGAIN(exchange, order_tests, "groups/exchange")
AGAIN(mixed, order_tests, "groups/mixed")
AGAIN(mismatch, member_tests, "members/mismatch")
AGAIN(timeout, member_tests, "members/timeout")
AGAIN(trainer_inside, failure_tests, "failures/trainer_inside")
AGAIN(trainer_waiting, failure_tests, "failures/trainer_waiting")

ONCE_MORE(values_1, values_tests, "values/1")
ONCE_MORE(worker_inside, failure_tests, "failures/worker_inside")
ONCE_MORE(worker_idle, failure_tests, "failures/worker_idle")
ONCE_MORE(lost_inside, killed_daemon_tests, "killed_daemon/inside")
ONCE_MORE(plan_streams, plan_tests, "plan/streams")
ONCE_MORE(drop_in, nccl_tests, "nccl/mixed")
ONCE_MORE(memory_again, memory_tests, "memory/again")

const struct gpu_test staged_again_tests[] = {
	{"staged/values/1", values_1, 1, 120, TEST_ONE_NODE},
	{"staged/values/2", values_2, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/values/4", values_4, 4, 180, TEST_QUICK | TEST_ONE_NODE},
	{"staged/random/2", random_2, 2, 90, TEST_QUICK | TEST_ONE_NODE},
	{"staged/random/4", random_4, 4, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/same_stream", same_stream, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/other_stream", other_stream, 2, 60, TEST_ONE_NODE},
	{"staged/exchange", exchange, 2, 60, TEST_ONE_NODE},
	{"staged/mixed", mixed, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/plan", plan_streams, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/drop_in", drop_in, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/memory", memory_again, 2, 60, TEST_ONE_NODE},
	{"staged/mismatch", mismatch, 2, 60, TEST_ONE_NODE},
	{"staged/timeout", timeout, 2, 60, TEST_ONE_NODE},
	{"staged/trainer_inside", trainer_inside, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/trainer_waiting", trainer_waiting, 2, 120, TEST_ONE_NODE},
	{"staged/worker_inside", worker_inside, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/worker_idle", worker_idle, 2, 120, TEST_ONE_NODE},
	{"staged/killed_daemon", lost_inside, 2, 90, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/values/2", values_2_across, 2, 180, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/values/4", values_4_across, 4, 240, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/random/2", random_2_across, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/random/4", random_4_across, 4, 180, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/same_stream", same_stream_across, 2, 60, TEST_ONE_NODE},
	{"staged/nodes/other_stream", other_stream_across, 2, 60, TEST_ONE_NODE},
	{"staged/nodes/exchange", exchange_across, 2, 60, TEST_ONE_NODE},
	{"staged/nodes/mixed", mixed_across, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/mismatch", mismatch_across, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/timeout", timeout_across, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"staged/nodes/trainer_inside", trainer_inside_across, 2, 120, TEST_ONE_NODE},
	{"staged/nodes/trainer_waiting", trainer_waiting_across, 2, 120, TEST_ONE_NODE},
	{0},
};
