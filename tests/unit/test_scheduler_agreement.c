/* SPDX-License-Identifier: Apache-2.0
 * Operations across nodes when messages cross: a cancellation, a deadline, a member's leaving and
 * the end of the epoch have the same result on all nodes. */
#include "scheduler_cluster.h"

#define LATER_NS 300000000 /* a deadline that passes after the clock has started again */

static int begin(void **state)
{
	(void)state;
	return nodes_begin(TRANSPORT_INTERNODE, NODES, (const uint32_t[])LIST(0, 1, 2));
}

static int begin_gpus(void **state)
{
	(void)state;
	return nodes_begin(TRANSPORT_NCCL, NODES, (const uint32_t[])LIST(0, 1, 2));
}

/* Two members on each of two nodes. */
static int begin_two(void **state)
{
	(void)state;
	return nodes_begin(TRANSPORT_INTERNODE, 4, (const uint32_t[])LIST(0, 1, 0, 1));
}

static int begin_two_gpus(void **state)
{
	(void)state;
	return nodes_begin(TRANSPORT_NCCL, 4, (const uint32_t[])LIST(0, 1, 0, 1));
}

/* ---- Members ---- */

static uint64_t sum_within(uint32_t rank, uint64_t timeout_ns)
{
	struct svc_record r = task_of(rank, NCCLSVC_ALL_REDUCE, -1);
	r.timeout_ns = timeout_ns;
	return submit_one(rank, r);
}

/* Cancels what the node's members have on the communicator. */
static void cancel(uint32_t node)
{
	command_node(node,
		     (struct command){.kind = COMMAND_CANCEL, .cancel = {.kind = SVC_CANCEL_COMM}});
}

static void leaves(uint32_t node, int32_t rank)
{
	command_node(node, (struct command){.kind = COMMAND_MEMBER_LEFT, .left = {.rank = rank}});
}

static void all_end_alike(const uint64_t *n, int32_t result)
{
	for (uint32_t k = 0; k < nranks; k++) {
		ends(k, n[k], result);
		const ncclsvc_status st = status_of_task(k, n[k]), first = status_of_task(0, n[0]);
		assert_int_equal(st.field, first.field);
		assert_int_equal(st.rank_a, first.rank_a);
		assert_int_equal(st.rank_b, first.rank_b);
		assert_int_equal(st.value_a, first.value_a);
		assert_int_equal(st.value_b, first.value_b);
		assert_int_equal(st.missing_count, first.missing_count);
	}
}

/* ---- Cancellations and deadlines ---- */

/* Ranks 0 and 1 are ready, and both want to give up. Node 2 learns of one of them first. */
static void two_give_up(int first, int32_t result)
{
	uint64_t n[NODES];
	hold(0, 2, true);
	hold(1, 2, true);
	stop_clock();
	n[0] = sum_within(0, LATER_NS);
	n[1] = sum(1);
	await_sent(INTERNODE_READY, 2 * (NODES - 1));
	start_clock();
	cancel(1);
	await_sent(INTERNODE_ASK, 2);
	assert_false(over(0, n[0]) || over(1, n[1]));
	hold(first, 2, false);
	await_sent(INTERNODE_FAILED, NODES - 1);
	hold(1 - first, 2, false);
	n[2] = sum(2);
	all_end_alike(n, result);
	usable();
}

static void a_deadline_comes_before_a_cancellation(void **state)
{
	(void)state;
	two_give_up(0, NCCLSVC_TIMEOUT);
}

static void a_cancellation_comes_before_a_deadline(void **state)
{
	(void)state;
	two_give_up(1, NCCLSVC_CANCELLED);
}

/* The result depends on which the sequencer learns of first. */
static void a_deadline_and_a_cancellation(void **state)
{
	(void)state;
	uint64_t n[NODES];
	hold(0, 2, true);
	stop_clock();
	n[0] = sum_within(0, LATER_NS);
	n[1] = sum(1);
	await_taken(0, 1);
	await_sent(INTERNODE_REQUEST, 1);
	start_clock();
	cancel(1);
	await_sent(INTERNODE_WITHDRAW, 1);
	pause_ns(2 * LATER_NS);
	assert_false(over(0, n[0]) || over(1, n[1]));
	hold(0, 2, false);
	await_sent(INTERNODE_WITHDRAW, 2);
	n[2] = sum(2);
	for (uint64_t until = now_ns() + WAIT_NS; !over(0, n[0]); pause_ns(100000))
		assert_true(now_ns() < until);
	const int32_t result = status_of_task(0, n[0]).result;
	assert_true(result == NCCLSVC_TIMEOUT || result == NCCLSVC_CANCELLED);
	all_end_alike(n, result);
	usable();
}

/* Neither node is ready, and each fails the collective for its own reason. */
static void both_have_failed_it(void **state)
{
	(void)state;
	uint64_t n[RANKS];
	hold(0, 1, true);
	hold(1, 0, true);
	n[0] = sum_within(0, LATER_NS);
	n[1] = sum(1);
	await_taken(1, 1);
	cancel(1);
	await_sent(INTERNODE_FAILED, 2);
	hold(0, 1, false);
	hold(1, 0, false);
	n[2] = sum(2);
	n[3] = sum(3);
	all_end_alike(n, NCCLSVC_TIMEOUT);
	usable();
}

/* Node 2 becomes ready before it is asked to fail, but no other node knows this yet. Node 2 does
 * not know that node 1 is ready. */
static void a_cancellation_comes_too_late(void **state)
{
	(void)state;
	uint64_t n[NODES];
	hold(2, 0, true);
	hold(2, 1, true);
	hold(1, 2, true);
	for (uint32_t k = 0; k < NODES; k++)
		n[k] = sum(k);
	await_sent(INTERNODE_READY, NODES * (NODES - 1));
	cancel(0);
	await_sent(INTERNODE_ASK, 1);
	quiet_nodes();
	assert_false(over(0, n[0]) || over(1, n[1]));
	hold(2, 0, false);
	hold(2, 1, false);
	hold(1, 2, false);
	for (uint32_t k = 0; k < NODES; k++)
		goes_well(k, n[k]);
	usable();
}

/* The sequencer learns that node 2 is ready before node 2 receives the question. */
static void a_cancellation_comes_too_late_for_the_sequencer(void **state)
{
	(void)state;
	uint64_t n[NODES];
	hold(0, 2, true);
	n[0] = sum(0);
	n[1] = sum(1);
	await_taken(0, 1);
	await_sent(INTERNODE_REQUEST, 1);
	cancel(1);
	await_sent(INTERNODE_WITHDRAW, 1);
	quiet_nodes();
	n[2] = sum(2);
	await_sent(INTERNODE_REQUEST, 2);
	quiet_nodes();
	hold(0, 2, false);
	for (uint32_t k = 0; k < NODES; k++)
		goes_well(k, n[k]);
	usable();
}

static void records_differ(void **state)
{
	(void)state;
	uint64_t n[NODES];
	struct svc_record less = task_of(1, NCCLSVC_ALL_REDUCE, -1);
	less.count = 32;
	n[0] = sum(0);
	n[1] = submit_one(1, less);
	n[2] = sum(2);
	all_end_alike(n, NCCLSVC_MISMATCH);
	const ncclsvc_status st = status_of_task(0, n[0]);
	assert_int_equal(st.field, NCCLSVC_FIELD_COUNT);
	assert_true(st.rank_a == 1 || st.rank_b == 1);
	usable();
}

/* Two members can share a GPU only in operations that fail. */
static void two_usable(void)
{
	if (scheduler_transport == TRANSPORT_INTERNODE)
		usable();
}

static uint64_t less(uint32_t rank)
{
	struct svc_record r = task_of(rank, NCCLSVC_ALL_REDUCE, -1);
	r.count = 32;
	return submit_one(rank, r);
}

/* Ranks 0 and 2 share a node, which cannot tell which of the two is the odd one out. */
static void records_of_one_node_differ(void **state)
{
	(void)state;
	stop_clock(); /* otherwise the node waits for rank 3 only for a while */
	for (uint32_t odd = 0; odd <= 2; odd += 2) {
		uint64_t n[RANKS];
		n[odd] = less(odd);
		n[2 - odd] = sum(2 - odd);
		n[1] = sum(1);
		quiet_nodes();
		for (uint32_t k = 0; k < 3; k++)
			assert_false(over(k, n[k]));
		n[3] = sum(3);
		all_end_alike(n, NCCLSVC_MISMATCH);
		const ncclsvc_status st = status_of_task(3, n[3]);
		assert_int_equal(st.rank_b, odd);
		assert_int_equal(st.missing_count, 1);
		assert_int_equal(st.missing[0], odd);
		two_usable();
	}
}

/* Rank 3 never posts: it is reported missing, whatever the others' records are. */
static void records_differ_and_a_deadline_passes(void **state)
{
	(void)state;
	uint64_t n[RANKS];
	stop_clock();
	n[0] = sum_within(0, LATER_NS);
	n[2] = less(2);
	n[1] = sum(1);
	quiet_nodes();
	start_clock();
	for (uint32_t k = 0; k < 3; k++) {
		ends(k, n[k], NCCLSVC_TIMEOUT);
		const ncclsvc_status st = status_of_task(k, n[k]);
		assert_int_equal(st.missing_count, 1);
		assert_int_equal(st.missing[0], 3);
	}
	n[3] = sum(3);
	ends(3, n[3], NCCLSVC_TIMEOUT);
	two_usable();
}

/* Without a deadline, the node waits for NODE_ANSWER_NS. No rank is called the odd one out then. */
static void records_differ_and_a_rank_does_not_come(void **state)
{
	(void)state;
	uint64_t n[RANKS];
	n[0] = sum(0);
	n[2] = less(2);
	n[1] = sum(1);
	for (uint32_t k = 0; k < 3; k++) {
		ends(k, n[k], NCCLSVC_MISMATCH);
		assert_int_equal(status_of_task(k, n[k]).missing_count, 0);
		assert_int_equal(status_of_task(k, n[k]).rank_b, 2);
	}
	n[3] = sum(3);
	ends(3, n[3], NCCLSVC_MISMATCH);
	two_usable();
}

/* ---- A member leaves ---- */

static void ends_without(uint32_t rank, uint64_t n, int32_t gone)
{
	ends(rank, n, NCCLSVC_PEER_GONE);
	assert_int_equal(status_of_task(rank, n).rank_a, gone);
}

static void others_have_pairs(void)
{
	const uint64_t a = send_to(0, 2), b = recv_from(2, 0);
	goes_well(0, a);
	goes_well(2, b);
}

/* The scheduler notifies the supervisor of a departure it may not know yet: rank 0 may rejoin at
 * once. */
static void hears_of_departure(uint32_t node, int32_t rank)
{
	struct event ev;
	for (uint64_t until = now_ns() + WAIT_NS; !next_event_of(schedulers[node], &ev);
	     pause_ns(100000))
		assert_true(now_ns() < until);
	assert_int_equal(ev.kind, EVENT_MEMBER_LEFT);
	assert_int_equal(ev.left.rank, rank);
}

static void a_member_leaves_whom_a_recv_waits_for(void **state)
{
	(void)state;
	const uint64_t n = recv_from(0, 1);
	await_taken(0, 1);
	leaves(1, 1);
	leaves(2, 1);
	if (scheduler_transport == TRANSPORT_NCCL) /* node 1 knows of no operation */
		leaves(0, 1);
	ends_without(0, n, 1);
	if (scheduler_transport == TRANSPORT_INTERNODE)
		hears_of_departure(0, 1);
	leaves(0, 1);
	others_have_pairs();
}

static void a_recv_waits_for_a_member_that_has_left(void **state)
{
	(void)state;
	leaves(1, 1);
	quiet_nodes();
	a_member_leaves_whom_a_recv_waits_for(state);
}

static void a_member_leaves_a_collective(void **state)
{
	(void)state;
	const uint64_t a = sum(0), c = sum(2);
	await_taken(0, 1);
	await_taken(2, 1);
	leaves(1, 1);
	leaves(2, 1);
	ends_without(2, c, 1);
	ends_without(0, a, 1);
	hears_of_departure(0, 1);
	leaves(0, 1);
	others_have_pairs();
}

/* Rank 1 sends before it leaves, but rank 0's node has not received the message. */
static void a_member_leaves_that_has_sent(void **state)
{
	(void)state;
	hold(1, 0, true);
	const uint64_t received = recv_from(0, 1), sent = send_to(1, 0);
	goes_well(1, sent);
	leaves(1, 1);
	leaves(0, 1);
	leaves(2, 1);
	quiet_nodes();
	assert_false(over(0, received));
	hold(1, 0, false);
	goes_well(0, received);
	others_have_pairs();
}

/* ---- The end of an epoch ---- */

/* Each node ends the epoch at a different time. An operation completes on all nodes if all were
 * ready for it, and on none otherwise. */
static void operations_that_all_are_ready_for_complete(void **state)
{
	(void)state;
	uint64_t first[NODES], second[NODES];
	stop_clock(); /* otherwise nodes wait for each other only for a while */
	hold(1, 2, true);
	hold(1, 0, true);
	for (uint32_t k = 0; k < NODES; k++)
		first[k] = sum(k);
	await_sent(INTERNODE_READY, NODES * (NODES - 1));
	second[0] = sum(0);
	second[1] = sum(1);
	await_taken(0, 2);
	await_taken(1, 2);
	for (uint32_t k = NODES; k-- > 0;) {
		scheduler = schedulers[k];
		end_epoch(0, NCCLSVC_PEER_GONE, 2);
	}
	await_sent(INTERNODE_OVER, NODES * (NODES - 1));
	hold(1, 2, false);
	hold(1, 0, false);
	for (uint32_t k = 0; k < NODES; k++)
		goes_well(k, first[k]);
	ends_without(0, second[0], 2);
	ends_without(1, second[1], 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLUSTER_TEST(a_deadline_comes_before_a_cancellation, begin),
		CLUSTER_TEST(a_cancellation_comes_before_a_deadline, begin),
		CLUSTER_TEST(a_deadline_and_a_cancellation, begin_gpus),
		CLUSTER_TEST(both_have_failed_it, begin_two),
		CLUSTER_TEST(a_cancellation_comes_too_late, begin),
		CLUSTER_TEST(a_cancellation_comes_too_late_for_the_sequencer, begin_gpus),
		CLUSTER_TEST(records_differ, begin),
		CLUSTER_TEST(records_differ, begin_gpus),
		CLUSTER_TEST(records_of_one_node_differ, begin_two),
		CLUSTER_TEST(records_of_one_node_differ, begin_two_gpus),
		CLUSTER_TEST(records_differ_and_a_deadline_passes, begin_two),
		CLUSTER_TEST(records_differ_and_a_deadline_passes, begin_two_gpus),
		CLUSTER_TEST(records_differ_and_a_rank_does_not_come, begin_two),
		CLUSTER_TEST(records_differ_and_a_rank_does_not_come, begin_two_gpus),
		CLUSTER_TEST(a_member_leaves_whom_a_recv_waits_for, begin),
		CLUSTER_TEST(a_member_leaves_whom_a_recv_waits_for, begin_gpus),
		CLUSTER_TEST(a_recv_waits_for_a_member_that_has_left, begin),
		CLUSTER_TEST(a_recv_waits_for_a_member_that_has_left, begin_gpus),
		CLUSTER_TEST(a_member_leaves_a_collective, begin),
		CLUSTER_TEST(a_member_leaves_a_collective, begin_gpus),
		CLUSTER_TEST(a_member_leaves_that_has_sent, begin),
		CLUSTER_TEST(operations_that_all_are_ready_for_complete, begin),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
