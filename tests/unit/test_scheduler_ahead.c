/* SPDX-License-Identifier: Apache-2.0
 * Collectives on GPUs of several nodes: a member's next ones are requested while the first still
 * waits for the sequencer's answer. */
#include "scheduler_cluster.h"

#define AHEAD_MAX 16 /* HEAD_MAX of order.c */
#define LINE	  1  /* timeline */

static int begin_gpus(void **state)
{
	(void)state;
	return nodes_begin(TRANSPORT_NCCL, NODES, (const uint32_t[])LIST(0, 1, 2));
}

/* Waits until nodes 1 and 2 have sent n requests, and checks that no more follow. (Node 0 sends
 * none: it leads.) */
static void requested(unsigned n)
{
	await_sent(INTERNODE_REQUEST, n);
	quiet_nodes();
	assert_int_equal(sent_of(INTERNODE_REQUEST), n);
}

static void collectives_need_not_wait_for_a_launch(void **state)
{
	(void)state;
	uint64_t n[NODES];
	hold_from(0, 1, INTERNODE_LAUNCH);
	for (uint32_t k = 0; k < NODES; k++) {
		sum(k);
		n[k] = sum(k);
	}
	requested(4);
	hold(0, 1, false);
	for (uint32_t k = 0; k < NODES; k++)
		goes_well(k, n[k]);
	usable();
}

static void there_is_a_limit(void **state)
{
	(void)state;
	uint64_t n[NODES];
	for (unsigned i = 0; i < 2 * AHEAD_MAX; i++)
		for (uint32_t k = 1; k < NODES; k++)
			n[k] = sum(k);
	requested(2 * AHEAD_MAX);
	for (unsigned i = 0; i < 2 * AHEAD_MAX; i++)
		n[0] = sum(0);
	for (uint32_t k = 0; k < NODES; k++)
		goes_well(k, n[k]);
	usable();
}

/* The sequencer does not keep pairs in order, since not all nodes request them. */
static void pairs_wait_for_their_turn(void **state)
{
	(void)state;
	uint64_t n[NODES];
	sum(1);
	send_to(1, 2);
	n[1] = sum(1);
	requested(1);
	sum(2);
	recv_from(2, 1);
	n[2] = sum(2);
	requested(2);
	hold_from(0, 1, INTERNODE_LAUNCH);
	sum(0);
	requested(3); /* node 2's Recv; node 1 does not know that its collective is launched */
	hold(0, 1, false);
	n[0] = sum(0);
	for (uint32_t k = 0; k < NODES; k++)
		goes_well(k, n[k]);
	usable();
}

static void the_first_fails(void **state)
{
	(void)state;
	uint64_t first[NODES], second[NODES];
	struct svc_record less = task_of(0, NCCLSVC_ALL_REDUCE, -1);
	less.count = 32;
	for (uint32_t k = 1; k < NODES; k++) {
		first[k] = sum(k);
		second[k] = sum(k);
	}
	requested(4);
	first[0] = submit_one(0, less);
	second[0] = sum(0);
	for (uint32_t k = 0; k < NODES; k++) {
		ends(k, first[k], NCCLSVC_MISMATCH);
		goes_well(k, second[k]);
	}
	usable();
}

static void the_first_times_out(void **state)
{
	(void)state;
	uint64_t first[NODES], second[NODES];
	struct svc_record hasty = task_of(1, NCCLSVC_ALL_REDUCE, -1);
	hasty.timeout_ns = 1000000000;
	first[1] = submit_one(1, hasty);
	second[1] = sum(1);
	first[2] = sum(2);
	second[2] = sum(2);
	requested(4);
	for (uint32_t k = 1; k < NODES; k++)
		ends(k, first[k], NCCLSVC_TIMEOUT);
	first[0] = sum(0);
	second[0] = sum(0);
	ends(0, first[0], NCCLSVC_TIMEOUT);
	for (uint32_t k = 0; k < NODES; k++)
		goes_well(k, second[k]);
	usable();
}

static uint64_t done(uint32_t rank)
{
	return atomic_load(&svc_timelines(trainers[rank].ring)[LINE].done);
}

/* The streams must not pass the first one, which is launched later. */
static void the_second_fails_first(void **state)
{
	(void)state;
	uint64_t first[NODES], second[NODES];
	struct svc_record r;
	for (uint32_t k = 1; k < NODES; k++) {
		first[k] = submit_one(k, on_timeline(task_of(k, NCCLSVC_ALL_REDUCE, -1), k, LINE));
		second[k] = submit_one(k, on_timeline(task_of(k, NCCLSVC_ALL_REDUCE, -1), k, LINE));
	}
	requested(4);
	hold_from(2, 0, INTERNODE_PROPOSE);
	first[0] = submit_one(0, on_timeline(task_of(0, NCCLSVC_ALL_REDUCE, -1), 0, LINE));
	r = on_timeline(task_of(0, NCCLSVC_ALL_REDUCE, -1), 0, LINE);
	r.count = 32;
	second[0] = submit_one(0, r);
	for (uint32_t k = 0; k < NODES; k++) {
		ends(k, second[k], NCCLSVC_MISMATCH);
		assert_int_equal(done(k), 0);
	}
	hold(2, 0, false);
	for (uint32_t k = 0; k < NODES; k++)
		goes_well(k, first[k]);
	for (uint32_t k = 0; k < NODES; k++)
		assert_int_equal(done(k), trainers[k].values[LINE]);
	usable();
}

/* NCCL could run a group in another way than single calls. */
static void one_node_groups_them(void **state)
{
	(void)state;
	hold_from(0, 1, INTERNODE_PREPARE);
	for (uint32_t k = 1; k < NODES; k++) {
		sum(k);
		sum(k);
	}
	requested(4);
	many(0, NCCLSVC_ALL_REDUCE, -1, 2);
	await_taken(0, 2);
	quiet_nodes();
	assert_int_equal(sent_of(INTERNODE_PREPARE), 0);
	hold(0, 1, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLUSTER_TEST(collectives_need_not_wait_for_a_launch, begin_gpus),
		CLUSTER_TEST(there_is_a_limit, begin_gpus),
		CLUSTER_TEST(pairs_wait_for_their_turn, begin_gpus),
		CLUSTER_TEST(the_first_fails, begin_gpus),
		CLUSTER_TEST(the_first_times_out, begin_gpus),
		CLUSTER_TEST(the_second_fails_first, begin_gpus),
		CLUSTER_TEST(one_node_groups_them, begin_gpus),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
