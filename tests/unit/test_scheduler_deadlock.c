/* SPDX-License-Identifier: Apache-2.0
 * Members on several nodes that all wait for each other, and some that only seem to. */
#include "base/timings.h"
#include "scheduler_cluster.h"

#define LOOKS ((long)(8 * DEADLOCK_LOOK_NS)) /* by then a deadlock would have been found */
#define MANY  600			     /* more than fit into one message */
#define TOO   MANY_MAX			     /* twice this exceeds what a node reports */

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

/* The first node has two members: ranks 0 and 3. */
static int begin_four(void **state)
{
	(void)state;
	return nodes_begin(TRANSPORT_INTERNODE, RANKS, (const uint32_t[])LIST(0, 1, 2, 0));
}

/* The last node has two: ranks 2 and 3. */
static int begin_pair(void **state)
{
	(void)state;
	return nodes_begin(TRANSPORT_INTERNODE, RANKS, (const uint32_t[])LIST(0, 1, 2, 2));
}

static ncclsvc_status deadlock(uint32_t rank, uint64_t n)
{
	ends(rank, n, NCCLSVC_MISMATCH);
	const ncclsvc_status st = status_of_task(rank, n);
	assert_int_equal(st.field, NCCLSVC_FIELD_ORDER);
	return st;
}

static void all_completed_alike(const uint64_t *n)
{
	const ncclsvc_status first = deadlock(0, n[0]);
	for (uint32_t k = 1; k < nranks; k++) {
		const ncclsvc_status st = deadlock(k, n[k]);
		assert_int_equal(st.rank_a, first.rank_a);
		assert_int_equal(st.rank_b, first.rank_b);
		assert_int_equal(st.value_a, first.value_a);
		assert_int_equal(st.value_b, first.value_b);
	}
}

/* Checks that no deadlock is reported. */
static void none_is_found(void)
{
	quiet_nodes();
	const unsigned asked = sent_of(INTERNODE_ASK), failed = sent_of(INTERNODE_FAILED);
	pause_ns(LOOKS);
	assert_int_equal(sent_of(INTERNODE_ASK), asked);
	assert_int_equal(sent_of(INTERNODE_FAILED), failed);
}

/* ---- Deadlocks ---- */

static void a_ring_of_recvs(void **state)
{
	(void)state;
	uint64_t n[NODES];
	for (uint32_t k = 0; k < NODES; k++)
		n[k] = recv_from(k, (int32_t)(k + 1) % NODES);
	all_completed_alike(n);
	const ncclsvc_status st = deadlock(0, n[0]);
	assert_int_equal(st.rank_a, 0);
	assert_int_equal(st.rank_b, 2);
	assert_int_equal(st.value_a, NCCLSVC_RECV);
	assert_int_equal(st.value_b, NCCLSVC_RECV);
	usable();
}

/* The group's second collective, which no other node knows of, ends too. */
static void collectives_against_recvs(void **state)
{
	(void)state;
	for (unsigned round = 1; round < 3; round++) {
		uint64_t n[NODES];
		n[0] = many(0, NCCLSVC_ALL_REDUCE, -1, round);
		for (uint32_t k = 1; k < NODES; k++)
			n[k] = recv_from(k, 0);
		all_completed_alike(n);
		const ncclsvc_status st = deadlock(0, n[0] + round - 1);
		assert_int_equal(st.value_a, NCCLSVC_ALL_REDUCE);
		assert_int_equal(st.value_b, NCCLSVC_RECV);
		assert_int_equal(st.rank_b, 1);
		assert_int_equal(st.pid_a, 100);
		assert_int_equal(st.pid_b, 101);
		usable();
	}
}

/* Rank 3 waits for rank 0 on its own node, of which other nodes know nothing. */
static void some_wait_for_members_of_their_node(void **state)
{
	(void)state;
	uint64_t n[RANKS];
	n[0] = recv_from(0, 1);
	n[1] = sum(1);
	n[2] = sum(2);
	n[3] = sum(3);
	all_completed_alike(n);
	usable();
	n[0] = recv_from(0, 3);
	n[1] = recv_from(1, 2);
	n[2] = recv_from(2, 1);
	n[3] = recv_from(3, 0);
	all_completed_alike(n);
	usable();
}

/* Reports and questions take several messages. */
static void many_wait(void **state)
{
	(void)state;
	uint64_t n[NODES];
	n[0] = recv_from(0, 1);
	n[1] = many(1, NCCLSVC_RECV, 0, MANY);
	n[2] = many(2, NCCLSVC_RECV, 0, MANY);
	all_completed_alike(n);
	deadlock(1, n[1] + MANY - 1);
	deadlock(2, n[2] + MANY - 1);
	usable();
}

static void the_same_again(void **state)
{
	for (int i = 0; i < 3; i++)
		a_ring_of_recvs(state);
}

/* One node learns of the deadlock when another node's operation fails. (On GPUs, node 0 is the
 * sequencer, and node 2 receives everything from it.) */
static void a_late_decision(void **state)
{
	(void)state;
	uint64_t n[NODES];
	hold_from(0, 2, INTERNODE_ASK);
	n[0] = recv_from(0, 1);
	n[1] = many(1, NCCLSVC_RECV, 2, 2);
	n[2] = recv_from(2, 1);
	const uint64_t next = sum(2); /* this one must not be affected */
	deadlock(0, n[0]);
	deadlock(1, n[1]);
	deadlock(1, n[1] + 1);
	deadlock(2, n[2]);
	pause_ns(LOOKS);
	hold(0, 2, false);
	pause_ns(LOOKS);
	assert_false(over(2, next));
	n[0] = sum(0);
	n[1] = sum(1);
	goes_well(0, n[0]);
	goes_well(1, n[1]);
	goes_well(2, next);
	usable();
}

/* Rank 1 sends to rank 2 as soon as its task ends, and node 0's message reaches node 2 after that.
 */
static void the_next_task_comes_early(void **state)
{
	(void)state;
	hold_from(0, 2, INTERNODE_ASK);
	const uint64_t n[] = {recv_from(0, 1), recv_from(1, 0), recv_from(2, 0)};
	deadlock(0, n[0]);
	deadlock(1, n[1]);
	const uint64_t sent = send_to(1, 2);
	pause_ns(LOOKS);
	hold(0, 2, false);
	all_completed_alike(n);
	const uint64_t received = recv_from(2, 1);
	goes_well(1, sent);
	goes_well(2, received);
	usable();
}

/* ---- None ---- */

static void waiting_for_a_working_rank_is_no_deadlock(void **state)
{
	(void)state;
	const uint64_t a = sum(0), b = sum(1);
	none_is_found();
	const uint64_t c = sum(2);
	goes_well(0, a);
	goes_well(1, b);
	goes_well(2, c);
}

/* Node 2 has not learned that node 1 is ready for a collective, which the others have finished. */
static void a_collective_is_under_way(void **state)
{
	(void)state;
	uint64_t first[NODES], second[NODES];
	usable();
	hold(1, 2, true);
	for (uint32_t k = 0; k < NODES; k++)
		first[k] = sum(k);
	if (scheduler_transport == TRANSPORT_INTERNODE) {
		goes_well(0, first[0]);
		goes_well(1, first[1]);
	}
	second[0] = sum(0);
	second[1] = sum(1);
	none_is_found();
	hold(1, 2, false);
	second[2] = sum(2);
	for (uint32_t k = 0; k < NODES; k++) {
		goes_well(k, first[k]);
		goes_well(k, second[k]);
	}
}

/* The same with a Send, which has ended for its sender. */
static void a_send_is_under_way(void **state)
{
	(void)state;
	uint64_t n[NODES];
	usable();
	hold(1, 2, true);
	const uint64_t sent = send_to(1, 2), received = recv_from(2, 1);
	if (scheduler_transport == TRANSPORT_INTERNODE)
		goes_well(1, sent);
	n[0] = sum(0);
	n[1] = sum(1);
	none_is_found();
	hold(1, 2, false);
	n[2] = sum(2);
	goes_well(1, sent);
	goes_well(2, received);
	for (uint32_t k = 0; k < NODES; k++)
		goes_well(k, n[k]);
}

/* Node 1 waited for node 0, and has reported it. Now it works, and the others wait for it. */
static void a_report_is_old(void **state)
{
	(void)state;
	const uint64_t old = recv_from(1, 0);
	await_sent(INTERNODE_DEADLOCK, 1);
	const uint64_t sent = send_to(0, 1);
	goes_well(1, old);
	goes_well(0, sent);
	const uint64_t a = recv_from(0, 1), c = recv_from(2, 1);
	none_is_found();
	goes_well(1, send_to(1, 0));
	goes_well(1, send_to(1, 2));
	goes_well(0, a);
	goes_well(2, c);
	usable();
}

/* The first node's question is in flight when node 1 continues. */
static void a_question_is_old(void **state)
{
	(void)state;
	uint64_t n[NODES];
	hold_from(0, 1, INTERNODE_DEADLOCK);
	for (uint32_t k = 0; k < NODES; k++)
		n[k] = recv_from(k, (int32_t)(k + 1) % NODES);
	await_sent(INTERNODE_DEADLOCK, 2 * (NODES - 1)); /* reports, and questions */
	command_node(1,
		     (struct command){.kind = COMMAND_CANCEL, .cancel = {.kind = SVC_CANCEL_COMM}});
	ends(1, n[1], NCCLSVC_CANCELLED);
	hold(0, 1, false);
	none_is_found();
	goes_well(1, send_to(1, 0));
	goes_well(0, n[0]);
	goes_well(0, send_to(0, 2));
	goes_well(2, n[2]);
	usable();
}

/* Rank 2's collective is cancelled, and node 1 has not answered: rank 2 is about to continue. Then
 * it waits for rank 3 on its own node to post the next one. */
static void a_failure_is_under_way(void **state)
{
	(void)state;
	const uint64_t a = recv_from(0, 1), b = recv_from(1, 0), cancelled = sum(2);
	await_sent(INTERNODE_DEADLOCK, 1);
	await_taken(2, 1);
	pause_ns(LOOKS); /* node 0 has told itself */
	hold(1, 2, true);
	hold(2, 0, true);
	hold(2, 1, true);
	command_node(2,
		     (struct command){.kind = COMMAND_CANCEL, .cancel = {.kind = SVC_CANCEL_COMM}});
	await_sent(INTERNODE_FAILED, NODES - 1);
	const uint64_t d = recv_from(3, 0);
	pause_ns(LOOKS);
	hold(2, 0, false);
	await_sent(INTERNODE_FAILED, NODES * (NODES - 1));
	none_is_found();
	hold(1, 2, false);
	hold(2, 1, false);
	ends(2, cancelled, NCCLSVC_CANCELLED);
	deadlock(0, a);
	deadlock(1, b);
	deadlock(3, d);
	usable();
}

/* A Send-Recv pair of ranks 0 and 1 must be launched together with a collective that rank 1 has
 * queued behind it; deadlines end the wait. Nodes report that they wait once, not repeatedly. */
static void a_set_is_not_whole(void **state)
{
	(void)state;
	uint64_t n[NODES];
	const struct svc_record set[] = {task_of(0, NCCLSVC_SEND, 1),
					 task_of(0, NCCLSVC_ALL_REDUCE, -1)};
	n[0] = submit(0, set, 2);
	n[1] = recv_from(1, 0);
	sum(1);
	n[2] = sum(2);
	await_sent(INTERNODE_DEADLOCK, NODES - 1);
	unsigned sent;
	const uint64_t until = now_ns() + WAIT_NS;
	do {
		assert_true(now_ns() < until);
		sent = sent_of(INTERNODE_DEADLOCK);
		none_is_found();
	} while (sent_of(INTERNODE_DEADLOCK) != sent);
	for (uint32_t k = 0; k < NODES; k++)
		assert_false(over(k, n[k]));
}

/* Only deadlines and cancellations end a deadlock with that many waits. */
static void too_many_wait(void **state)
{
	(void)state;
	uint64_t n[RANKS];
	n[0] = many(0, NCCLSVC_RECV, 1, TOO);
	n[1] = recv_from(1, 0);
	n[2] = recv_from(2, 0);
	n[3] = many(3, NCCLSVC_RECV, 1, TOO);
	none_is_found();
	command_node(2,
		     (struct command){.kind = COMMAND_CANCEL, .cancel = {.kind = SVC_CANCEL_COMM}});
	ends(2, n[2], NCCLSVC_CANCELLED);
	assert_false(over(1, n[1]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLUSTER_TEST(a_ring_of_recvs, begin),
		CLUSTER_TEST(a_ring_of_recvs, begin_gpus),
		CLUSTER_TEST(collectives_against_recvs, begin),
		CLUSTER_TEST(collectives_against_recvs, begin_gpus),
		CLUSTER_TEST(some_wait_for_members_of_their_node, begin_four),
		CLUSTER_TEST(many_wait, begin),
		CLUSTER_TEST(many_wait, begin_gpus),
		CLUSTER_TEST(the_same_again, begin),
		CLUSTER_TEST(a_late_decision, begin),
		CLUSTER_TEST(waiting_for_a_working_rank_is_no_deadlock, begin),
		CLUSTER_TEST(waiting_for_a_working_rank_is_no_deadlock, begin_gpus),
		CLUSTER_TEST(a_collective_is_under_way, begin),
		CLUSTER_TEST(a_collective_is_under_way, begin_gpus),
		CLUSTER_TEST(a_send_is_under_way, begin),
		CLUSTER_TEST(a_send_is_under_way, begin_gpus),
		CLUSTER_TEST(the_next_task_comes_early, begin),
		CLUSTER_TEST(a_report_is_old, begin),
		CLUSTER_TEST(a_report_is_old, begin_gpus),
		CLUSTER_TEST(a_question_is_old, begin),
		CLUSTER_TEST(a_failure_is_under_way, begin_pair),
		CLUSTER_TEST(a_set_is_not_whole, begin_gpus),
		CLUSTER_TEST(too_many_wait, begin_four),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
