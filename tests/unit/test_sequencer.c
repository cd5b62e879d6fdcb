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
enum kind { LAUNCH, FAILED, ASK, CLOSED, WAITING, GOES_ON };

static struct sent_message {
	uint32_t node;
	enum kind kind;
	uint64_t of; /* LAUNCH: a request's number; otherwise a communicator */
	uint64_t grant;
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

static void note_launch(void *arg, uint32_t node, uint64_t number, uint64_t grant)
{
	(void)arg;
	note(node, LAUNCH, number)->grant = grant;
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

static void note_goes_on(void *arg, uint32_t node)
{
	(void)arg;
	note(node, GOES_ON, 0);
}

static const struct sequencer_ops ops = {note_launch, note_failed,  note_ask,
					 note_closed, note_waiting, note_goes_on};

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
static const uint32_t members[] = {1, 2, 3};

static uint32_t nodes_of(uint64_t internode_id)
{
	return internode_id == 300 ? 3 : 2;
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

/* The node's part in the seq-th collective. */
static struct request_entry at(uint32_t node, uint64_t internode_id, uint64_t seq)
{
	return (struct request_entry){.internode_id = internode_id,
				      .key = collective(seq),
				      .nvoters = nodes_of(internode_id),
				      .place = node - 1,
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
	sequencer_withdraw(sequencer, now, node, internode_id, &key, number, &why, members,
			   nodes_of(internode_id));
}

static void leave(uint32_t node, uint64_t internode_id)
{
	sequencer_leave(sequencer, node, internode_id, members, nodes_of(internode_id));
}

static int begin(void **state)
{
	(void)state;
	now = 1;
	sequencer = sequencer_create(&ops, NULL, NODES, true);
	nsent = nread = 0;
	return sequencer ? 0 : -1;
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
	says(2, LAUNCH, 3);
	says(1, LAUNCH, 8);
	request(2, 4, at(2, 100, 0));
	says(2, LAUNCH, 4);
	says(1, LAUNCH, 7);
}

/* Node 2 has both in one group, node 1 has each separately, and node 3 only has the third
 * collective. */
static void launches_what_hangs_together(void **state)
{
	(void)state;
	request_two(2, 1, at(2, 100, 0), at(2, 300, 0));
	request(1, 1, at(1, 100, 0));
	request(3, 1, at(3, 300, 0));
	says_nothing();
	request(1, 2, at(1, 300, 0));
	assert_int_equal(nsent, 4);
	for (unsigned i = 0; i < nsent; i++)
		assert_int_equal(sent[i].kind, LAUNCH);
	nread = nsent;
}

/* Each node launches in the order of its own requests, whichever of the others comes last: node 1
 * has 100 and 300 in one group and then 200, node 2 has 100 first, and then 200 and 400 in one;
 * node 3 has 300 and 400 in one. */
static void launches_in_the_order_of_requests(void **state)
{
	struct request_entry x1 = at(1, 100, 0), x2 = at(2, 100, 0), y1 = at(1, 200, 0),
			     y2 = at(2, 200, 0);
	struct request_entry z1 = at(1, 500, 0), z3 = at(1, 500, 0), w2 = at(1, 600, 0),
			     w3 = at(1, 600, 0);
	(void)state;
	z3.place = w3.place = 1;
	request_two(1, 1, x1, z1);
	request(1, 2, y1);
	request(2, 1, x2);
	request_two(2, 2, y2, w2);
	says_nothing();
	request_two(3, 1, z3, w3);
	assert_int_equal(nsent, 5);
	for (uint32_t node = 1; node <= 2; node++) {
		uint64_t last = 0;
		for (unsigned i = 0; i < nsent; i++)
			if (sent[i].node == node) {
				assert_int_equal(sent[i].of, last + 1);
				last = sent[i].of;
			}
		assert_int_equal(last, 2);
	}
	nread = nsent;
}

/* The order also holds if a request was void and came again after a later one. */
static void a_new_number_is_no_later_order(void **state)
{
	struct request_entry x1 = at(1, 100, 0), y1 = at(1, 200, 0), x2 = at(2, 100, 0),
			     y2 = at(2, 200, 0);
	(void)state;
	x1.order = x2.order = 1;
	y1.order = y2.order = 2;
	request(1, 1, y1);
	request(1, 2, x1);
	says_nothing();
	request_two(2, 1, x2, y2);
	assert_int_equal(nsent, 3);
	for (unsigned i = 0, next = 2; i < nsent; i++)
		if (sent[i].node == 1)
			assert_int_equal(sent[i].of, next--);
	nread = nsent;
}

static void a_request_may_come_in_parts(void **state)
{
	(void)state;
	const struct request_entry a = at(2, 100, 0), b = at(2, 100, 1);
	request_two(1, 1, at(1, 100, 0), at(1, 100, 1));
	sequencer_request(sequencer, now, 2, 9, true, &a, 1);
	says_nothing();
	sequencer_request(sequencer, now, 2, 9, false, &b, 1);
	says(1, LAUNCH, 1);
	says(2, LAUNCH, 9);
}

/* A communicator to be created does not belong to the internode communicator with the same number.
 */
static void makes_when_all_have_requested(void **state)
{
	const struct request_entry make = {
		.internode_id = 100, .key = {.subop = OPERATION_MAKE}, .nvoters = 3};
	(void)state;
	sequencer_request(sequencer, now, 1, 1, false, &make, 1);
	assert_false(sequencer_awaited(sequencer));
	request(1, 2, at(1, 100, 0));
	request(2, 1, at(2, 100, 0));
	says(2, LAUNCH, 1);
	says(1, LAUNCH, 2);
	leave(1, 100);
	leave(2, 100);
	says(1, CLOSED, 100);
	says(2, CLOSED, 100);
	sequencer_request(sequencer, now, 2, 2, false, &make, 1);
	says_nothing();
	sequencer_request(sequencer, now, 3, 1, false, &make, 1);
	says(3, LAUNCH, 1);
	says(1, LAUNCH, 1);
	says(2, LAUNCH, 2);
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
	sequencer_withdraw(sequencer, now, node, 300, &key, 0, &note, members, 3);
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
	struct request_entry send = {.internode_id = 100,
				     .key = {.a = 0, .b = 1},
				     .nvoters = 2,
				     .rank = 0,
				     .count = 1,
				     .record = record(8)};
	struct request_entry receive = send;
	(void)state;
	receive.place = 1;
	receive.rank = 1;
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
	assert_int_equal(nsent - nread, 3);
	nread = nsent;
}

/* A node that was asked has requested it meanwhile: it proceeds. */
static void complete_operations_are_still_launched(void **state)
{
	(void)state;
	request(1, 1, at(1, 100, 0));
	withdraw(1, 100, 0, 1, NCCLSVC_CANCELLED, -1);
	says(2, ASK, 100);
	request(2, 1, at(2, 100, 0));
	says(2, LAUNCH, 1);
	says(1, LAUNCH, 1);
	withdraw(1, 100, 0, 1, NCCLSVC_CANCELLED, -1); /* too late */
	says_nothing();
}

/* It is requested on both nodes, but not what must be launched with it. */
static void incomplete_operations_fail(void **state)
{
	(void)state;
	request_two(1, 1, at(1, 100, 0), at(1, 200, 0));
	request(2, 1, at(2, 100, 0));
	says_nothing();
	withdraw(2, 100, 0, 1, NCCLSVC_TIMEOUT, -1);
	assert_int_equal(says(1, FAILED, 100)->note.status.field, NCCLSVC_FIELD_GROUP);
	assert_int_equal(says(2, FAILED, 100)->note.status.field, NCCLSVC_FIELD_GROUP);
	/* Node 1 requests the rest again. */
	request(2, 2, at(2, 200, 0));
	says_nothing();
	request(1, 2, at(1, 200, 0));
	says(1, LAUNCH, 2);
	says(2, LAUNCH, 2);
}

/* A request that is void because another operation of it failed no longer counts; a node that had
 * asked for the rest to fail asks again. */
static void questions_are_repeated(void **state)
{
	(void)state;
	request_two(1, 1, at(1, 100, 0), at(1, 200, 0));
	withdraw(2, 200, 0, 0, NCCLSVC_TIMEOUT, 1); /* node 1 has requested it: it fails */
	says(1, FAILED, 200);
	says(2, FAILED, 200);
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
		assert_int_equal(s->note.node, 3);
	}
	now += NODE_ANSWER_NS;
	sequencer_look(sequencer, now);
	says_nothing();
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
	request_two(1, 1, at(1, 100, 0), at(1, 200, 0));
	assert_true(sequencer_awaited(sequencer));
	leave(1, 100);
	says_nothing();
	leave(2, 100);
	says(1, CLOSED, 100);
	says(2, CLOSED, 100);
	/* Node 1's request is gone too; node 1 requests the rest of it again. */
	request(2, 1, at(2, 200, 0));
	says_nothing();
	request(1, 2, at(1, 200, 0));
	says(2, LAUNCH, 1);
	says(1, LAUNCH, 2);
	leave(1, 200);
	leave(2, 200);
	says(1, CLOSED, 200);
	says(2, CLOSED, 200);
	assert_false(sequencer_awaited(sequencer));
}

static void does_not_wait_for_who_is_gone(void **state)
{
	(void)state;
	request(2, 1, at(2, 100, 0));
	leave(1, 100);
	sequencer_lose_node(sequencer, 2, false);
	says(1, CLOSED, 100);
	request(1, 1, at(1, 100, 0)); /* and node 2's request is gone too */
	says_nothing();
}

/* ---- Succession ---- */

/* This is node 1, and node 0 was the sequencer. */
static void succeed(void)
{
	sequencer_free(sequencer);
	sequencer = sequencer_create(&ops, NULL, NODES, false);
	assert_non_null(sequencer);
}

static void report(uint32_t node, uint64_t number, uint64_t internode_id, uint64_t seq)
{
	const struct grant g = {number, internode_id, collective(seq)};
	sequencer_report(sequencer, node, &g, 1, true);
}

static void reported(uint32_t node)
{
	sequencer_report(sequencer, node, NULL, 0, false);
}

static void goes_on(void)
{
	for (uint32_t node = 1; node < NODES; node++)
		says(node, GOES_ON, 0);
}

/* Node 1 received two launches, node 2 the first of them, node 3 none. */
static void decisions_known_to_some_reach_all(void **state)
{
	(void)state;
	succeed();
	report(3, 0, 0, 0);
	request(3, 1, at(3, 300, 0));
	request(3, 2, at(3, 300, 1));
	request(3, 3, at(3, 300, 2));
	reported(3);
	report(2, 7, 300, 0);
	request(2, 2, at(2, 300, 1));
	request(2, 3, at(2, 300, 2));
	reported(2);
	says_nothing();
	sequencer_lose_node(sequencer, 0, true);
	says_nothing();
	report(1, 8, 300, 1);
	report(1, 7, 300, 0);
	request(1, 3, at(1, 300, 2));
	reported(1);
	assert_int_equal(says(3, LAUNCH, 1)->grant, 7);
	assert_int_equal(says(2, LAUNCH, 2)->grant, 8);
	assert_int_equal(says(3, LAUNCH, 2)->grant, 8);
	goes_on();
	/* Launches that no node was told of are decided now. */
	for (int i = 0; i < 3; i++)
		assert_int_equal(sent[nread + (unsigned)i].grant, 9);
	nread += 3;
}

/* Two depended on each other on node 1; node 3 received the one that it takes part in. */
static void connected_launches_are_repeated_together(void **state)
{
	(void)state;
	succeed();
	sequencer_lose_node(sequencer, 0, true);
	report(3, 7, 300, 0);
	reported(3);
	request_two(1, 1, at(1, 100, 0), at(1, 300, 0));
	reported(1);
	request(2, 1, at(2, 300, 0));
	request(2, 2, at(2, 100, 0));
	reported(2);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(sent[i].kind, LAUNCH);
		assert_int_equal(sent[i].grant, 7);
	}
	nread = 3;
	goes_on();
}

/* Nodes repeat their withdrawals and departures. */
static void withdrawn_operations_fail_later(void **state)
{
	(void)state;
	succeed();
	request(1, 1, at(1, 100, 0));
	withdraw(1, 100, 0, 1, NCCLSVC_TIMEOUT, -1);
	leave(1, 200);
	reported(1);
	sequencer_lose_node(sequencer, 0, true);
	leave(2, 200);
	reported(3);
	says_nothing();
	reported(2);
	goes_on();
	says(2, ASK, 100);
	says(1, CLOSED, 200);
	says(2, CLOSED, 200);
	withdraw(2, 100, 0, 0, NCCLSVC_TIMEOUT, 1);
	says(1, FAILED, 100);
	says(2, FAILED, 100);
}

/* Node 1 learned that it had failed, and has forgotten it; node 2 has requested it, node 3 has
 * failed it. */
static void failed_operations_fail_again(void **state)
{
	const struct failed_note before = {.status = {.result = NCCLSVC_MISMATCH}, .node = -1};
	const struct operation_key key = collective(0), other = collective(1);
	(void)state;
	succeed();
	sequencer_lose_node(sequencer, 0, true);
	sequencer_withdraw(sequencer, now, 1, 300, &key, FAILED_BEFORE, &before, NULL, 0);
	sequencer_withdraw(sequencer, now, 1, 300, &other, FAILED_BEFORE, &before, NULL, 0);
	reported(1);
	request(2, 1, at(2, 300, 0));
	reported(2);
	withdraw(3, 300, 0, 0, NCCLSVC_TIMEOUT, 2);
	reported(3);
	for (uint32_t node = 1; node <= 3; node++)
		assert_int_equal(says(node, FAILED, 300)->note.status.result, NCCLSVC_MISMATCH);
	goes_on();
}

static void does_not_wait_for_the_report_of_who_is_gone(void **state)
{
	(void)state;
	succeed();
	sequencer_lose_node(sequencer, 0, true);
	reported(1);
	reported(2);
	says_nothing();
	sequencer_lose_node(sequencer, 3, false);
	says(1, GOES_ON, 0);
	says(2, GOES_ON, 0);
}

/* Node 2 has told a previous sequencer that it leaves, and forgotten the communicator. */
static void closes_without_a_node_that_does_not_leave(void **state)
{
	(void)state;
	request(1, 1, at(1, 100, 0));
	leave(1, 100);
	sequencer_look(sequencer, now += SEQUENCER_LOOK_NS);
	says(1, WAITING, 100);
	sequencer_look(sequencer, now += EPOCH_CLOSE_NS - 1);
	says_nothing();
	sequencer_look(sequencer, now += SEQUENCER_LOOK_NS);
	says(1, CLOSED, 100);
	says(2, CLOSED, 100);
	assert_false(sequencer_awaited(sequencer));
}

/* ---- Messages that no node of ours sends ---- */

static void nonsense_is_ignored(void **state)
{
	struct request_entry one = at(1, 100, 0);
	const uint32_t strangers[] = {1, 77};
	const struct operation_key key = collective(0);
	const struct failed_note why = {.status = {.result = NCCLSVC_TIMEOUT}};
	(void)state;
	one.nvoters = NODES + 1;
	request(1, 1, one);
	one.nvoters = 2;
	one.place = 2;
	request(1, 2, one);
	one = at(1, 100, 0);
	one.key.a = one.key.b = 1;
	one.nvoters = 3;
	request(1, 3, one);
	sequencer_withdraw(sequencer, now, 1, 100, &key, 0, &why, strangers, 2);
	sequencer_withdraw(sequencer, now, 3, 100, &key, 0, &why, members,
			   2); /* it is not a member */
	sequencer_leave(sequencer, 1, 100, strangers, 2);
	sequencer_forget(sequencer, 1, 99);
	/* The same entry twice: it is never launched. */
	request(1, 4, at(1, 100, 0));
	request(1, 5, at(1, 100, 0));
	request(3, 1, at(2, 100, 0));
	request(2, 1, at(2, 100, 0));
	assert_int_equal(nsent, 2);
	nread = nsent;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(launches_when_all_have_requested),
		TEST(launches_what_hangs_together),
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
		TEST(waiting_ranks_learn_who_is_there),
		TEST(closes_when_all_have_left),
		TEST(does_not_wait_for_who_is_gone),
		TEST(decisions_known_to_some_reach_all),
		TEST(connected_launches_are_repeated_together),
		TEST(withdrawn_operations_fail_later),
		TEST(failed_operations_fail_again),
		TEST(does_not_wait_for_the_report_of_who_is_gone),
		TEST(closes_without_a_node_that_does_not_leave),
		TEST(nonsense_is_ignored),
	};
	return cmocka_run_group_tests_name("sequencer", tests, NULL, NULL);
}
