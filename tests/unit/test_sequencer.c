/* SPDX-License-Identifier: Apache-2.0
 * The sequencer alone, for 4 nodes. Its messages are recorded here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/timings.h"
#include "coord/sequencer.h"
#include "proto/task.h"

#define NODES 4

static struct sequencer *sequencer;
static uint64_t now;

/* The messages sent, in order. */
enum kind { PREPARE, LAUNCH, FAILED, ASK, CLOSED, WAITING };

static struct sent_message {
	uint32_t node;
	enum kind kind;
	uint64_t of; /* PREPARE, LAUNCH: a request's number; otherwise a communicator */
	struct launch_time at;
	struct operation_key key;
	struct failed_note note;
	uint32_t places[NODES], n;
} sent[32];
static unsigned nsent, nread;

static struct sent_message *note(uint32_t node, enum kind kind, uint64_t of)
{
	assert_true(nsent < sizeof(sent) / sizeof(sent[0]));
	sent[nsent] = (struct sent_message){.node = node, .kind = kind, .of = of};
	return &sent[nsent++];
}

static void note_prepare(void *arg, uint32_t node, uint64_t number)
{
	(void)arg;
	note(node, PREPARE, number);
}

static void note_launch(void *arg, uint32_t node, uint64_t number, const struct launch_time *at)
{
	(void)arg;
	note(node, LAUNCH, number)->at = *at;
}

static void note_failed(void *arg, uint32_t node, uint64_t internode_id,
			const struct operation_key *key, const struct failed_note *why)
{
	(void)arg;
	struct sent_message *s = note(node, FAILED, internode_id);
	s->key = *key;
	s->note = *why;
}

static void note_ask(void *arg, uint32_t node, uint64_t internode_id,
		     const struct operation_key *key, const ncclsvc_status *why)
{
	(void)arg;
	struct sent_message *s = note(node, ASK, internode_id);
	s->key = *key;
	s->note.status = *why;
}

static void note_closed(void *arg, uint32_t node, uint64_t internode_id)
{
	(void)arg;
	note(node, CLOSED, internode_id);
}

static void note_waiting(void *arg, uint32_t node, uint64_t internode_id,
			 const struct operation_key *key, const uint32_t *places, uint32_t n)
{
	(void)arg;
	struct sent_message *s = note(node, WAITING, internode_id);
	s->key = *key;
	s->n = n;
	memcpy(s->places, places, n * sizeof(places[0]));
}

static const struct sequencer_ops ops = {note_prepare, note_launch, note_failed,
					 note_ask,     note_closed, note_waiting};

static const struct sent_message *says(uint32_t node, enum kind kind, uint64_t of)
{
	assert_true(nread < nsent);
	const struct sent_message *s = &sent[nread++];
	assert_int_equal(s->node, node);
	assert_int_equal(s->kind, kind);
	assert_int_equal(s->of, of);
	return s;
}

static void says_nothing(void)
{
	assert_int_equal(nread, nsent);
}

/* Communicators 100 and 200 span nodes 1 and 2; 300 spans 1, 2 and 3. A node has one rank in each.
 */
static const uint32_t members[] = {1, 2, 3}, places[] = {0, 1, 2};

static void lead(uint64_t internode_id, uint32_t nnodes)
{
	sequencer_lead(sequencer,
		       &(struct sequencer_comm){internode_id, nnodes, nnodes, members, places});
}

/* Answers each pending PREPARE by proposing that time. */
static void propose_all(uint64_t time)
{
	for (; nread < nsent && sent[nread].kind == PREPARE; nread++)
		sequencer_propose(sequencer, sent[nread].node, sent[nread].of, time);
}

/* Expects n PREPAREs, answers them, and expects n LAUNCHes. */
static void launches(unsigned n)
{
	assert_int_equal(nsent - nread, n);
	propose_all(1);
	assert_int_equal(nsent - nread, n);
	for (; nread < nsent; nread++)
		assert_int_equal(sent[nread].kind, LAUNCH);
}

static struct svc_record record(uint64_t count)
{
	return (struct svc_record){
		.op = NCCLSVC_ALL_REDUCE, .type = NCCLSVC_FLOAT32, .count = count};
}

static struct operation_key collective(uint64_t seq)
{
	return (struct operation_key){-1, -1, seq, 0};
}

/* The node's part in the first Send from rank a to rank b. */
static struct request_entry pair(uint32_t node, uint64_t internode_id, int32_t a, int32_t b)
{
	return (struct request_entry){.internode_id = internode_id,
				      .key = {.a = a, .b = b},
				      .rank = (int32_t)node - 1,
				      .count = 1,
				      .record = record(8)};
}

/* The node's part in the seq-th collective. */
static struct request_entry at(uint32_t node, uint64_t internode_id, uint64_t seq)
{
	return (struct request_entry){.internode_id = internode_id,
				      .key = collective(seq),
				      .rank = (int32_t)node - 1,
				      .count = 1,
				      .record = record(8)};
}

static void request(uint32_t node, uint64_t number, struct request_entry one)
{
	sequencer_request(sequencer, now, node, number, false, &one, 1);
}

static void request_two(uint32_t node, uint64_t number, struct request_entry a,
			struct request_entry b)
{
	const struct request_entry two[] = {a, b};
	sequencer_request(sequencer, now, node, number, false, two, 2);
}

/* number is 0: the node fails it. missing: one of its missing ranks, or -1. */
static void withdraw(uint32_t node, uint64_t internode_id, uint64_t seq, uint64_t number,
		     int result, int32_t missing)
{
	struct failed_note why = {.status = {.result = result, .rank_a = -1, .rank_b = -1}};
	const struct operation_key key = collective(seq);
	if (missing >= 0)
		why.status.missing[why.status.missing_count++] = missing;
	sequencer_withdraw(sequencer, now, node, internode_id, &key, number, &why);
}

static void leave(uint32_t node, uint64_t internode_id)
{
	sequencer_leave(sequencer, node, internode_id);
}

static int begin(void **state)
{
	(void)state;
	now = 1;
	sequencer = sequencer_create(&ops, NULL);
	nsent = nread = 0;
	if (!sequencer)
		return -1;
	lead(100, 2);
	lead(200, 2);
	lead(300, 3);
	return 0;
}

static int end(void **state)
{
	(void)state;
	says_nothing();
	sequencer_free(sequencer);
	return 0;
}

/* ---- Launching ---- */

static void launches_when_all_have_requested(void **state)
{
	(void)state;
	request(1, 7, at(1, 100, 0));
	request(1, 8, at(1, 100, 1)); /* another one, of other members */
	says_nothing();
	request(2, 3, at(2, 100, 1));
	launches(2);
	request(2, 4, at(2, 100, 0));
	launches(2);
}

/* ... at the latest of the times that they propose. */
static void launches_when_all_have_proposed(void **state)
{
	(void)state;
	for (uint32_t node = 1; node <= 3; node++)
		request(node, 5, at(node, 300, 0));
	nread = 3;
	sequencer_propose(sequencer, 2, 5, 9);
	sequencer_propose(sequencer, 2, 5, 11); /* it has proposed a time before */
	sequencer_propose(sequencer, 3, 5, 4);
	says_nothing();
	sequencer_propose(sequencer, 1, 5, 8);
	const struct launch_time first = says(3, LAUNCH, 5)->at;
	assert_int_equal(first.time, 9);
	assert_memory_equal(&says(1, LAUNCH, 5)->at, &first, sizeof(first));
	assert_memory_equal(&says(2, LAUNCH, 5)->at, &first, sizeof(first));
	/* Another set with the same time is distinguishable from it. */
	request(1, 6, at(1, 300, 1));
	request(2, 6, at(2, 300, 1));
	request(3, 6, at(3, 300, 1));
	propose_all(9);
	const struct launch_time second = sent[nread].at;
	assert_int_equal(second.time, 9);
	assert_true(second.set > first.set);
	nread = nsent;
}

/* A lost node proposes nothing; one that has dropped its request proposes 0. */
static void does_not_wait_for_the_time_of_a_lost_node(void **state)
{
	(void)state;
	for (uint32_t node = 1; node <= 3; node++)
		request(node, 5, at(node, 300, 0));
	nread = 3;
	sequencer_propose(sequencer, 1, 5, 7);
	sequencer_propose(sequencer, 2, 5, 0);
	says_nothing();
	sequencer_lose_node(sequencer, 3);
	assert_int_equal(says(3, LAUNCH, 5)->at.time, 7);
	says(1, LAUNCH, 5);
	says(2, LAUNCH, 5);
}

/* Node 2 has both in one group, node 1 has each separately, and node 3 only has the second. */
static void launches_what_is_connected(void **state)
{
	(void)state;
	request_two(2, 1, at(2, 300, 0), pair(2, 300, 0, 1));
	request(1, 1, at(1, 300, 0));
	request(3, 1, at(3, 300, 0));
	says_nothing();
	request(1, 2, pair(1, 300, 0, 1));
	launches(4);
}

/* Each node launches in the order of its own requests, whichever of the others comes last: node 1
 * has a pair with each other node, in two requests; node 2 has both of its pairs in one, as node 3
 * does. */
static void launches_in_the_order_of_requests(void **state)
{
	(void)state;
	request(1, 1, pair(1, 300, 0, 1));
	request(1, 2, pair(1, 300, 0, 2));
	request_two(3, 1, pair(3, 300, 1, 2), pair(3, 300, 0, 2));
	says_nothing();
	request_two(2, 1, pair(2, 300, 0, 1), pair(2, 300, 1, 2));
	propose_all(3);
	assert_int_equal(nsent - nread, 4);
	for (uint64_t last = 0; nread < nsent; nread++)
		if (sent[nread].node == 1)
			assert_int_equal(sent[nread].of, ++last);
}

/* The order also holds if a request was void and came again after a later one. */
static void a_new_number_is_no_later_order(void **state)
{
	struct request_entry x1 = pair(1, 300, 0, 1), y1 = pair(1, 300, 1, 0),
			     x2 = pair(2, 300, 0, 1), y2 = pair(2, 300, 1, 0);
	(void)state;
	x1.order = x2.order = 1;
	y1.order = y2.order = 2;
	request(1, 1, y1);
	request(1, 2, x1);
	says_nothing();
	request_two(2, 1, x2, y2);
	propose_all(1);
	assert_int_equal(nsent - nread, 3);
	for (unsigned next = 2; nread < nsent; nread++)
		if (sent[nread].node == 1)
			assert_int_equal(sent[nread].of, next--);
}

static void a_request_may_come_in_parts(void **state)
{
	(void)state;
	const struct request_entry a = at(2, 100, 0), b = at(2, 100, 1);
	request_two(1, 1, at(1, 100, 0), at(1, 100, 1));
	sequencer_request(sequencer, now, 2, 9, true, &a, 1);
	says_nothing();
	sequencer_request(sequencer, now, 2, 9, false, &b, 1);
	launches(2);
}

/* A communicator to be created does not belong to the internode communicator with the same number.
 */
static void makes_when_all_have_requested(void **state)
{
	const struct request_entry make = {
		.internode_id = 100, .key = {.subop = OPERATION_MAKE}, .nvoters = 3};
	(void)state;
	sequencer_request(sequencer, now, 1, 1, false, &make, 1);
	request(1, 2, at(1, 100, 0));
	request(2, 1, at(2, 100, 0));
	launches(2);
	leave(1, 100);
	leave(2, 100);
	says(1, CLOSED, 100);
	says(2, CLOSED, 100);
	sequencer_request(sequencer, now, 2, 2, false, &make, 1);
	says_nothing();
	sequencer_request(sequencer, now, 3, 1, false, &make, 1);
	launches(3);
	/* No communicator may be created after node 1's request is forgotten. */
	sequencer_request(sequencer, now, 1, 3, false, &make, 1);
	sequencer_forget(sequencer, 1, 3);
	sequencer_request(sequencer, now, 2, 3, false, &make, 1);
	sequencer_request(sequencer, now, 3, 3, false, &make, 1);
}

/* ---- Failing ---- */

static void records_that_differ_fail_on_all(void **state)
{
	(void)state;
	struct request_entry other = at(2, 300, 0);
	other.record.count = 9;
	request(1, 1, at(1, 300, 0));
	request(2, 1, other);
	request(3, 1, at(3, 300, 0));
	for (uint32_t node = 1; node <= 3; node++) {
		const struct sent_message *s = says(node, FAILED, 300);
		ncclsvc_status st;
		assert_int_equal(s->note.status.result, NCCLSVC_MISMATCH);
		assert_true(mismatch_status(&s->note.posted, 3, &st));
		assert_int_equal(st.field, NCCLSVC_FIELD_COUNT);
		assert_int_equal(st.missing_count, 1);
		assert_int_equal(st.missing[0], 1);
	}
}

/* A node fails it with the records of its two members, which differ. */
static void differs(uint32_t node)
{
	struct failed_note note = {
		.status = {.result = NCCLSVC_MISMATCH, .field = NCCLSVC_FIELD_COUNT}};
	const struct svc_record usual = record(8), other = record(9);
	const struct operation_key key = collective(0);
	mismatch_add(&note.posted, &other, (int32_t)node - 1, 1);
	mismatch_add(&note.posted, &usual, 3, 1);
	sequencer_withdraw(sequencer, now, node, 300, &key, 0, &note);
}

static void all_fail_with_odd(int32_t odd)
{
	for (uint32_t node = 1; node <= 3; node++) {
		const struct sent_message *s = says(node, FAILED, 300);
		ncclsvc_status st;
		assert_true(mismatch_status(&s->note.posted, 4, &st));
		assert_int_equal(st.rank_b, odd);
		assert_int_equal(st.missing_count, 1);
	}
}

/* Only all records tell which rank is the odd one out. */
static void records_of_one_node_that_differ_wait_for_all(void **state)
{
	(void)state;
	request(1, 1, at(1, 300, 0));
	differs(2);
	says_nothing();
	request(3, 1, at(3, 300, 0));
	all_fail_with_odd(1);
}

static void records_of_one_node_that_differ_come_last(void **state)
{
	(void)state;
	request(1, 1, at(1, 300, 0));
	request(3, 1, at(3, 300, 0));
	differs(2);
	all_fail_with_odd(1);
	withdraw(2, 300, 0, WAITS_NO_MORE, NCCLSVC_TIMEOUT, -1); /* it has not heard yet */
}

/* A deadline passes on that node: the missing rank is then the cause, not the difference. */
static void records_that_differ_wait_for_a_deadline(void **state)
{
	(void)state;
	differs(2);
	request(1, 1, at(1, 300, 0));
	says_nothing();
	withdraw(2, 300, 0, WAITS_NO_MORE, NCCLSVC_TIMEOUT, -1);
	says(3, ASK, 300);
	withdraw(3, 300, 0, 0, NCCLSVC_TIMEOUT, 2);
	for (uint32_t node = 1; node <= 3; node++) {
		const struct sent_message *s = says(node, FAILED, 300);
		assert_int_equal(s->note.status.result, NCCLSVC_TIMEOUT);
		assert_int_equal(s->note.status.missing_count, 1);
		assert_int_equal(s->note.status.missing[0], 2);
	}
}

static void a_send_and_its_recv_must_agree(void **state)
{
	struct request_entry send = pair(1, 100, 0, 1), receive = pair(2, 100, 0, 1);
	(void)state;
	receive.record.count = 7;
	request(1, 1, send);
	request(2, 1, receive);
	for (uint32_t node = 1; node <= 2; node++) {
		const struct sent_message *s = says(node, FAILED, 100);
		assert_int_equal(s->note.status.result, NCCLSVC_MISMATCH);
		assert_int_equal(s->note.status.field, NCCLSVC_FIELD_COUNT);
		assert_int_equal(s->note.status.value_a, 8);
		assert_int_equal(s->note.status.value_b, 7);
	}
}

/* All other nodes are asked, and all missing ranks are named. */
static void a_withdrawal_asks_all_nodes(void **state)
{
	(void)state;
	request(1, 1, at(1, 300, 0));
	withdraw(1, 300, 0, 1, NCCLSVC_TIMEOUT, -1);
	says(2, ASK, 300);
	says(3, ASK, 300);
	withdraw(3, 300, 0, 0, NCCLSVC_TIMEOUT, 2);
	withdraw(1, 300, 0, 1, NCCLSVC_TIMEOUT, -1); /* once is enough */
	says_nothing();
	withdraw(2, 300, 0, 0, NCCLSVC_TIMEOUT, 1);
	for (uint32_t node = 1; node <= 3; node++) {
		const struct sent_message *s = says(node, FAILED, 300);
		assert_int_equal(s->note.status.result, NCCLSVC_TIMEOUT);
		assert_int_equal(s->note.status.missing_count, 2);
		assert_false(s->note.ends_epoch);
	}
	request(1, 2, at(1, 300, 1)); /* and the next one is another */
	request(2, 1, at(2, 300, 1));
	says_nothing();
	request(3, 1, at(3, 300, 1));
	launches(3);
}

/* A node that was asked has requested it meanwhile: it proceeds. */
static void complete_operations_are_still_launched(void **state)
{
	(void)state;
	request(1, 1, at(1, 100, 0));
	withdraw(1, 100, 0, 1, NCCLSVC_CANCELLED, -1);
	says(2, ASK, 100);
	request(2, 1, at(2, 100, 0));
	withdraw(1, 100, 0, 1, NCCLSVC_CANCELLED, -1); /* too late */
	launches(2);
	withdraw(1, 100, 0, 1, NCCLSVC_CANCELLED, -1); /* likewise */
}

/* It is requested on both nodes, but not what must be launched with it. */
static void incomplete_operations_fail(void **state)
{
	(void)state;
	request_two(1, 1, at(1, 100, 0), at(1, 100, 1));
	request(2, 1, at(2, 100, 0));
	says_nothing();
	withdraw(2, 100, 0, 1, NCCLSVC_TIMEOUT, -1);
	assert_int_equal(says(1, FAILED, 100)->note.status.field, NCCLSVC_FIELD_GROUP);
	assert_int_equal(says(2, FAILED, 100)->note.status.field, NCCLSVC_FIELD_GROUP);
	/* Node 1 requests the rest again. */
	request(2, 2, at(2, 100, 1));
	says_nothing();
	request(1, 2, at(1, 100, 1));
	launches(2);
}

/* A request that is void because another operation of it failed no longer counts; a node that had
 * asked for the rest to fail asks again. */
static void questions_are_repeated(void **state)
{
	(void)state;
	request_two(1, 1, at(1, 100, 0), at(1, 100, 1));
	withdraw(2, 100, 1, 0, NCCLSVC_TIMEOUT, 1); /* node 1 has requested it: it fails */
	says(1, FAILED, 100);
	says(2, FAILED, 100);
	withdraw(1, 100, 0, 1, NCCLSVC_TIMEOUT, -1); /* for the request that is void */
	says_nothing();
	withdraw(1, 100, 0, 0, NCCLSVC_TIMEOUT, -1);
	says(2, ASK, 100);
	withdraw(2, 100, 0, 0, NCCLSVC_TIMEOUT, 1);
	says(1, FAILED, 100);
	says(2, FAILED, 100);
}

static void a_silent_node_ends_the_epoch(void **state)
{
	(void)state;
	request(1, 1, at(1, 300, 0));
	withdraw(1, 300, 0, 1, NCCLSVC_TIMEOUT, -1);
	says(2, ASK, 300);
	says(3, ASK, 300);
	withdraw(2, 300, 0, 0, NCCLSVC_TIMEOUT, 1);
	now += NODE_ANSWER_NS - 1;
	sequencer_look(sequencer, now);
	assert_int_equal(sent[nread].kind, WAITING);
	nread = nsent;
	now += SEQUENCER_LOOK_NS;
	sequencer_look(sequencer, now);
	for (uint32_t node = 1; node <= 3; node++) {
		const struct sent_message *s = says(node, FAILED, 300);
		assert_true(s->note.ends_epoch);
		assert_int_equal(s->note.node, 2); /* its place */
	}
	now += NODE_ANSWER_NS;
	sequencer_look(sequencer, now);
	says_nothing();
}

/* Node 3 has requested it, and does not propose a time. */
static void a_node_without_a_proposal_ends_the_epoch(void **state)
{
	(void)state;
	for (uint32_t node = 1; node <= 3; node++)
		request(node, 1, at(node, 300, 0));
	nread = nsent;
	sequencer_propose(sequencer, 1, 1, 1);
	sequencer_propose(sequencer, 2, 1, 1);
	withdraw(1, 300, 0, 1, NCCLSVC_TIMEOUT, -1);
	sequencer_look(sequencer, now += SEQUENCER_LOOK_NS);
	nread = nsent; /* WAITING */
	sequencer_look(sequencer, now += NODE_ANSWER_NS);
	for (uint32_t node = 1; node <= 3; node++) {
		const struct sent_message *s = says(node, FAILED, 300);
		assert_true(s->note.ends_epoch);
		assert_int_equal(s->note.node, 2); /* its place */
	}
}

/* ---- Waiting ranks ---- */

static void waiting_ranks_learn_who_is_there(void **state)
{
	(void)state;
	request(1, 1, at(1, 300, 0));
	sequencer_look(sequencer, now += SEQUENCER_LOOK_NS);
	const struct sent_message *s = says(1, WAITING, 300);
	assert_int_equal(s->n, 1);
	assert_int_equal(s->places[0], 0);
	sequencer_look(sequencer, now += SEQUENCER_LOOK_NS);
	says_nothing();
	request(3, 1, at(3, 300, 0));
	sequencer_look(sequencer, now += SEQUENCER_LOOK_NS);
	s = says(1, WAITING, 300);
	assert_int_equal(s->n, 2);
	assert_int_equal(s->places[1], 2);
	says(3, WAITING, 300);
}

/* ---- Ends ---- */

static void closes_when_all_have_left(void **state)
{
	(void)state;
	request(1, 1, at(1, 100, 0));
	leave(1, 100);
	says_nothing();
	leave(2, 100);
	says(1, CLOSED, 100);
	says(2, CLOSED, 100);
	request(2, 1, at(2, 100, 0)); /* too late */
	leave(2, 100);
	leave(1, 200);
	leave(2, 200);
	says(1, CLOSED, 200);
	says(2, CLOSED, 200);
	assert_true(sequencer_awaited(sequencer));
	for (uint32_t node = 1; node <= 3; node++)
		leave(node, 300);
	for (uint32_t node = 1; node <= 3; node++)
		says(node, CLOSED, 300);
	assert_false(sequencer_awaited(sequencer));
}

/* No node has been told to launch what still waits for a proposal. */
static void closed_before_all_have_proposed(void **state)
{
	(void)state;
	request(1, 1, at(1, 100, 0));
	request(2, 1, at(2, 100, 0));
	nread = nsent;
	sequencer_propose(sequencer, 1, 1, 4);
	leave(1, 100);
	leave(2, 100);
	says(1, CLOSED, 100);
	says(2, CLOSED, 100);
	sequencer_propose(sequencer, 2, 1, 5);
}

static void does_not_wait_for_who_is_gone(void **state)
{
	(void)state;
	request(2, 1, at(2, 100, 0));
	leave(1, 100);
	sequencer_lose_node(sequencer, 2);
	says(1, CLOSED, 100);
}

/* Node 2 lost this node for a moment, and ended the communicator without proposing a time. */
static void closes_without_a_node_that_does_not_leave(void **state)
{
	(void)state;
	request(1, 1, at(1, 100, 0));
	request(2, 1, at(2, 100, 0));
	nread = nsent;
	leave(1, 100);
	sequencer_look(sequencer, now += SEQUENCER_LOOK_NS);
	nread = nsent; /* WAITING */
	sequencer_look(sequencer, now += EPOCH_CLOSE_NS - 1);
	says_nothing();
	sequencer_look(sequencer, now += SEQUENCER_LOOK_NS);
	says(1, CLOSED, 100);
	says(2, CLOSED, 100);
	sequencer_propose(sequencer, 2, 1, 3);
}

/* ---- Messages that no node of ours sends ---- */

static void nonsense_is_ignored(void **state)
{
	const struct operation_key key = collective(0), stranger = {.a = 0, .b = 2};
	const struct failed_note why = {.status = {.result = NCCLSVC_TIMEOUT}};
	const struct request_entry make = {.internode_id = 9, .key = {.subop = OPERATION_MAKE}};
	(void)state;
	request(3, 1, at(3, 100, 0));	   /* it has no member */
	request(1, 1, pair(1, 100, 0, 2)); /* there is no rank 2 */
	request(1, 2, pair(1, 100, 0, 0));
	request(1, 3, pair(1, 100, -1, 0));
	request(1, 4, pair(1, 300, 1, 2)); /* it takes no part */
	request(1, 5, at(1, 400, 0));	   /* nobody leads it here */
	request(1, 6, make);		   /* nvoters is 0 */
	request_two(1, 7, at(1, 100, 0), at(1, 200, 0));
	sequencer_request(sequencer, now, 1, 8, false, NULL, 0);
	sequencer_propose(sequencer, 1, 9, 1);
	sequencer_withdraw(sequencer, now, 3, 100, &key, 0, &why);
	sequencer_withdraw(sequencer, now, 1, 100, &stranger, 0, &why);
	sequencer_withdraw(sequencer, now, 1, 400, &key, 0, &why);
	sequencer_leave(sequencer, 3, 100);
	sequencer_leave(sequencer, 1, 400);
	sequencer_forget(sequencer, 1, 99);
	says_nothing();
	/* The same entry twice: only the first counts. */
	request(1, 10, at(1, 100, 0));
	request(1, 11, at(1, 100, 0));
	request(2, 1, at(2, 100, 0));
	request(2, 2, at(2, 100, 0));
	launches(2);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(launches_when_all_have_requested),
		TEST(launches_when_all_have_proposed),
		TEST(does_not_wait_for_the_time_of_a_lost_node),
		TEST(launches_what_is_connected),
		TEST(launches_in_the_order_of_requests),
		TEST(a_new_number_is_no_later_order),
		TEST(a_request_may_come_in_parts),
		TEST(makes_when_all_have_requested),
		TEST(records_that_differ_fail_on_all),
		TEST(records_of_one_node_that_differ_wait_for_all),
		TEST(records_of_one_node_that_differ_come_last),
		TEST(records_that_differ_wait_for_a_deadline),
		TEST(a_send_and_its_recv_must_agree),
		TEST(a_withdrawal_asks_all_nodes),
		TEST(complete_operations_are_still_launched),
		TEST(incomplete_operations_fail),
		TEST(questions_are_repeated),
		TEST(a_silent_node_ends_the_epoch),
		TEST(a_node_without_a_proposal_ends_the_epoch),
		TEST(waiting_ranks_learn_who_is_there),
		TEST(closes_when_all_have_left),
		TEST(closed_before_all_have_proposed),
		TEST(does_not_wait_for_who_is_gone),
		TEST(closes_without_a_node_that_does_not_leave),
		TEST(nonsense_is_ignored),
	};
	return cmocka_run_group_tests_name("sequencer", tests, NULL, NULL);
}
