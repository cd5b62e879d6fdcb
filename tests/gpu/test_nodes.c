/* SPDX-License-Identifier: Apache-2.0
 * Communicators whose GPUs are on several nodes: daemons on this machine that have some each. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

const struct gpu_test node_tests[] = {
	{"nodes/values_2", test_values_2, 2, 180, TEST_QUICK},
	{"nodes/values_4", test_values_4, 4, 240, 0},
	{"nodes/random_2", test_random_2, 2, 120, TEST_QUICK},
	{"nodes/random_4", test_random_4, 4, 180, TEST_QUICK},
	{"nodes/mismatch", test_mismatch, 2, 60, TEST_QUICK},
	{0},
};
