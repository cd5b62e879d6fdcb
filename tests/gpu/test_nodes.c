/* SPDX-License-Identifier: Apache-2.0
 * Communicators whose GPUs are on several nodes: daemons on this machine that have some each. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failures.h"
#include "nodes.h"

enum word { READY = 1, GO };

static void on_nodes(int n, int each, client_main *main, void *arg)
{
	struct nodes w;
	struct client ranks[RANKS_MAX];
	nodes_start(&w, n, each);
	nodes_clients(&w, ranks, main, arg);
	crew_end(ranks, n * each);
	nodes_stop(&w);
}

static void test_values_2(void)
{
	on_nodes(2, 1, values_rank, NULL);
}

static void test_values_4(void)
{
	on_nodes(2, 2, values_rank, NULL);
}

static void test_random_2(void)
{
	on_nodes(2, 1, random_rank, NULL);
}

static void test_random_4(void)
{
	on_nodes(2, 2, random_rank, NULL);
}

static void test_mismatch(void)
{
	on_nodes(2, 1, mismatch_rank, NULL);
}

/* ---- Somebody dies ---- */

static void test_trainer_idle(void)
{
	failure_rounds(2, 1, IDLE, false);
}

static void test_trainer_between(void)
{
	failure_rounds(2, 1, BETWEEN, false);
}

static void test_trainer_waiting(void)
{
	failure_rounds(2, 1, WAITING, false);
}

static void test_trainer_awaited(void)
{
	failure_rounds(2, 1, AWAITED, false);
}

static void test_trainer_inside(void)
{
	failure_rounds(2, 1, INSIDE, false);
}

static void test_worker_idle(void)
{
	failure_rounds(2, 1, IDLE, true);
}

static void test_worker_between(void)
{
	failure_rounds(2, 1, BETWEEN, true);
}

static void test_worker_inside(void)
{
	failure_rounds(2, 1, INSIDE, true);
}

static void test_trainer_inside_4(void)
{
	failure_rounds(2, 2, INSIDE, false);
}

static void test_worker_inside_4(void)
{
	failure_rounds(2, 2, INSIDE, true);
}

const struct gpu_test node_tests[] = {
	{"nodes/values_2", test_values_2, 2, 180, TEST_QUICK},
	{"nodes/values_4", test_values_4, 4, 240, 0},
	{"nodes/random_2", test_random_2, 2, 120, TEST_QUICK},
	{"nodes/random_4", test_random_4, 4, 180, TEST_QUICK},
	{"nodes/mismatch", test_mismatch, 2, 60, TEST_QUICK},
	{"nodes/trainer_idle", test_trainer_idle, 2, 120, 0},
	{"nodes/trainer_between", test_trainer_between, 2, 120, 0},
	{"nodes/trainer_waiting", test_trainer_waiting, 2, 120, 0},
	{"nodes/trainer_awaited", test_trainer_awaited, 2, 120, 0},
	{"nodes/trainer_inside", test_trainer_inside, 2, 120, TEST_QUICK},
	{"nodes/worker_idle", test_worker_idle, 2, 120, 0},
	{"nodes/worker_between", test_worker_between, 2, 120, 0},
	{"nodes/worker_inside", test_worker_inside, 2, 120, TEST_QUICK},
	{"nodes/trainer_inside_4", test_trainer_inside_4, 4, 120, 0},
	{"nodes/worker_inside_4", test_worker_inside_4, 4, 120, 0},
	{0},
};
