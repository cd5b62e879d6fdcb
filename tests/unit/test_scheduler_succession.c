/* SPDX-License-Identifier: Apache-2.0
 * The sequencer's node is lost when one node has received its message and another has not. Node 0
 * is the sequencer, without members; nodes 1 and 2 have one each. */
#include <stdlib.h>

#include "scheduler_cluster.h"

static int begin(void **state)
{
	(void)state;
	return nodes_begin(TRANSPORT_NCCL, 2, (const uint32_t[])LIST(1, 2));
}

/* Node 2 does not receive it. */
static void lose_sequencer(void)
{
	for (uint32_t node = 1; node < NODES; node++)
		command_node(node, (struct command){.kind = COMMAND_NODE_LOST, .node = {0}});
}

static void end_on(uint32_t node)
{
	scheduler = schedulers[node];
	end_epoch(0, NCCLSVC_PEER_GONE, 0);
}

/* Waits for the epoch's end on that node. */
static bool ends_in_order(uint32_t node)
{
	struct event ev = {0};
	bool dirty = false;
	for (uint64_t until = now_ns() + WAIT_NS; ev.kind != EVENT_EPOCH_GONE;) {
		assert_true(now_ns() < until);
		if (!next_event_of(schedulers[node], &ev))
			pause_ns(100000);
		else
			dirty |= ev.kind == EVENT_EPOCH_DIRTY;
	}
	return !dirty;
}

/* ---- The end of an epoch ---- */

/* Node 1 knows that all have left, and has forgotten the communicator. */
static void communicators_closed_for_one_close_for_all(void **state)
{
	uint64_t n[2];
	(void)state;
	stop_clock(); /* otherwise nodes wait for each other only for a while */
	for (uint32_t k = 0; k < nranks; k++)
		n[k] = sum(k);
	for (uint32_t k = 0; k < nranks; k++)
		goes_well(k, n[k]);
	hold_from(0, 2, INTERNODE_CLOSED);
	end_on(1);
	end_on(2);
	assert_true(ends_in_order(1));
	lose_sequencer();
	assert_true(ends_in_order(2));
}

/* ---- Failures ---- */

static uint64_t recv_within(uint32_t rank, int32_t peer, uint64_t timeout_ns)
{
	struct svc_record r = task_of(rank, NCCLSVC_RECV, peer);
	r.timeout_ns = timeout_ns;
	return submit_one(rank, r);
}

/* Node 1, which has not posted its Send, learns twice that the pair has failed. */
static void a_repeated_failure_is_remembered_once(void **state)
{
	(void)state;
	hold_from(0, 2, INTERNODE_FAILED);
	const uint64_t received = recv_within(1, 0, QUIET_NS);
	await_sent(INTERNODE_FAILED, 2);
	quiet_nodes(); /* node 1 receives it */
	lose_sequencer();
	ends(1, received, NCCLSVC_TIMEOUT);
	quiet_nodes();
	const uint64_t sent = send_to(0, 1);
	ends(0, sent, NCCLSVC_TIMEOUT);
	usable();
}

/* Another communicator, between rank 0's trainer on node 1 and a member on node 0 that is gone. */
static void begin_another(uint32_t comm)
{
	for (uint32_t node = 0; node < 2; node++) {
		struct command c = {.kind = COMMAND_EPOCH_START};
		struct epoch_member *members = calloc(2, sizeof(*members));
		assert_non_null(members);
		for (uint32_t k = 0; k < 2; k++)
			members[k] =
				(struct epoch_member){.session = k && node ? 0 : EPOCH_ELSEWHERE,
						      .handle = comm + 1,
						      .device = (int32_t)k,
						      .node = k};
		c.epoch_start.comm = comm;
		c.epoch_start.nranks = 2;
		c.epoch_start.epoch = 1;
		c.epoch_start.uid = 2;
		c.epoch_start.members = members;
		c.epoch_start.progress = progress_pages[NODES + node];
		c.epoch_start.internode_id = 1000 + comm;
		c.epoch_start.transport = scheduler_transport;
		command_node(node, c);
	}
}

/* Node 1 learns of one communicator's failure, then of many of another. */
static void failures_of_one_epoch_push_out_no_others(void **state)
{
	struct svc_record other = p2p(1, NCCLSVC_RECV, 1, 0);
	const unsigned others = 300;
	(void)state;
	begin_another(1);
	other.timeout_ns = QUIET_NS;
	hold_from(0, 2, INTERNODE_FAILED);
	const uint64_t received = recv_within(1, 0, QUIET_NS);
	await_sent(INTERNODE_FAILED, 2);
	for (unsigned i = 0; i < others; i++)
		submit_one(0, other);
	await_sent(INTERNODE_FAILED, 2 + others);
	quiet_nodes(); /* node 1 receives it */
	lose_sequencer();
	ends(1, received, NCCLSVC_TIMEOUT);
	const uint64_t sent = send_to(0, 1);
	ends(0, sent, NCCLSVC_TIMEOUT);
	usable();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLUSTER_TEST(communicators_closed_for_one_close_for_all, begin),
		CLUSTER_TEST(a_repeated_failure_is_remembered_once, begin),
		CLUSTER_TEST(failures_of_one_epoch_push_out_no_others, begin),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
