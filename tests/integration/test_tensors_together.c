/* SPDX-License-Identifier: Apache-2.0
 * Lists of tensors in both directions, by one thread: begun one after the other and waited for in
 * any order, and in task groups. */
#include <string.h>

#include "letters.h"
#include "proto/wire.h"

enum { READY = 1, GO };

/* ---- Without groups ---- */

/* The ranks begin in matching orders, and wait in any order. */
static void waiting_in_any_order(struct client *me)
{
	struct side x = side_open(me);
	const bool first = me->rank == 0;
	struct letter l[4];
	for (unsigned round = 0; round < 24; round++) {
		for (unsigned i = 0; i < 4; i++)
			letter_begin(&x, &l[i], (i % 2 == 0) == first, x.peer,
				     round >> i & 1 ? S : A, i, round % 3 == 0 ? 100 : 3,
				     10 * round + i);
		for (unsigned i = 0; i < 4; i++) {
			const unsigned k = (first ? i : 3 - i) ^ (round % 4);
			if (round % 5 == 0)
				while (ncclsvc_request_test(l[k].request) == NCCLSVC_IN_PROGRESS)
					;
			letter_end(&l[k]);
		}
	}
	check_in_step(&x, 5);
	side_close(&x);
}

static void requests_drive_each_other(void **state)
{
	(void)state;
	run_pair(waiting_in_any_order);
}

/* A blocking call is held back by a list whose peer is late, until the call's own timeout. */
static void held(struct client *me)
{
	struct side x = side_open(me);
	struct letter first, second;
	letter_make(&second, me->rank == 0, x.peer, S, 2, 3, 5);
	letter_fill(&second);
	if (me->rank == 1) {
		letter_begin(&x, &first, false, 0, A, 1, 3, 4);
		CHECK_RESULT(ncclsvc_tensors_recv(x.lists, &second.message, 30, NULL),
			     NCCLSVC_TIMEOUT);
		says("an earlier one still waits for its shapes");
		CHECK_OK(ncclsvc_comm_set_timeout(x.comm, 30));
		CHECK_RESULT(ncclsvc_tensors_recv(x.lists, &second.message, -1, NULL),
			     NCCLSVC_TIMEOUT);
		CHECK_OK(ncclsvc_comm_set_timeout(x.comm, -1));
		say(me, READY);
		letter_end(&first);
	} else {
		CHECK_EQ(hear(me), GO);
		letter_begin(&x, &first, true, 1, A, 1, 3, 4);
		letter_end(&first);
		for (int i = 0; i < 2;
		     i++) { /* depending on whether its deadline is seen before or after */
			const ncclsvc_result r =
				ncclsvc_tensors_send(x.lists, &second.message, WAIT_MS, NULL);
			CHECK(r == NCCLSVC_INVALID_ARGUMENT || r == NCCLSVC_TIMEOUT);
			says("rank 1");
		}
	}
	letter_free(&second);
	check_in_step(&x, 4);
	side_close(&x);
}

static void a_list_that_is_held_back_keeps_its_deadline(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, held, NULL);
	CHECK_EQ(hear(&clients[1]), READY);
	say(&clients[0], GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

enum { RING_LEAST = 16 };

/* Rank 0's ring has room for the shapes only, until its oldest task ends. */
static void starved(struct client *me)
{
	struct side x = side_on(me, session_with_ring(me->daemon, RING_LEAST));
	struct letter l;
	ncclsvc_comm *other;
	ncclsvc_task oldest = 0, task;
	int32_t in, v = 0;
	CHECK_OK(ncclsvc_comm_split(x.comm, 0, me->rank, WAIT_MS, &other));
	for (int send = 0; send < 2; send++) {
		if (me->rank == 0)
			CHECK_OK(ncclsvc_recv(&in, 1, NCCLSVC_INT32, 1, other, &oldest));
		for (int i = 0; i < RING_LEAST - 2; i++) {
			CHECK_OK(me->rank ? ncclsvc_recv(&v, 1, NCCLSVC_INT32, 0, x.comm, &task)
					  : ncclsvc_send(&v, 1, NCCLSVC_INT32, 1, x.comm, &task));
			wait_for(x.s, task, NCCLSVC_OK);
		}
		if (me->rank == 0) {
			letter_make(&l, send, 1, A, 1, 3, 4);
			letter_fill(&l);
			CHECK_EQ(hear(me), GO); /* the shapes do not wait for the peer */
			CHECK_RESULT(send ? ncclsvc_tensors_send(x.lists, &l.message, 200, NULL)
					  : ncclsvc_tensors_recv(x.lists, &l.message, 200, NULL),
				     NCCLSVC_TIMEOUT);
			says("the ring is full");
			say(me, READY);
			wait_for(x.s, oldest, NCCLSVC_OK);
			letter_free(&l);
		} else {
			letter_begin(&x, &l, !send, 0, A, 1, 3, 4);
			say(me, READY);
			CHECK_EQ(hear(me), GO);
			CHECK_OK(ncclsvc_send(&v, 1, NCCLSVC_INT32, 0, other, &task));
			wait_for(x.s, task, NCCLSVC_OK);
		}
		check_in_step(&x, 4);
		if (!me->rank)
			continue;
		/* The result depends on whether the refusal arrives before or after this side
		 * submits its data. */
		const ncclsvc_result r = ncclsvc_request_wait(l.request, WAIT_MS);
		CHECK(r == NCCLSVC_INVALID_ARGUMENT || r == NCCLSVC_TIMEOUT);
		says("rank 0");
		letter_free(&l);
	}
	CHECK_OK(ncclsvc_comm_leave(other));
	side_close(&x);
}

static void a_full_ring_does_not_hold_up_the_deadline(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, starved, NULL);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(hear(&clients[1]), READY);
		say(&clients[0], GO);
		CHECK_EQ(hear(&clients[0]), READY);
		say(&clients[1], GO);
	}
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- In groups ---- */

/* Both ranks send first. The bits of `modes` select the lists with shapes ahead; a plain exchange
 * may be in the group too. */
static void exchange(struct side *x, unsigned modes, size_t n, bool plain)
{
	struct letter out[2], in[2];
	int32_t sent = 70 + x->me->rank, got = 0;
	const unsigned first = 2 * (unsigned)x->me->rank, other = 2 - first;
	ncclsvc_task task = 0;
	CHECK_OK(ncclsvc_group_begin(x->s));
	for (unsigned i = 0; i < 2; i++)
		letter_begin(x, &out[i], true, x->peer, modes >> (first + i) & 1 ? A : S, i, n,
			     first + i + modes);
	if (plain) {
		CHECK_OK(ncclsvc_send(&sent, 1, NCCLSVC_INT32, x->peer, x->comm, NULL));
		CHECK_OK(ncclsvc_recv(&got, 1, NCCLSVC_INT32, x->peer, x->comm, &task));
	}
	for (unsigned i = 0; i < 2; i++)
		letter_begin(x, &in[i], false, x->peer, modes >> (other + i) & 1 ? A : S, i, n,
			     other + i + modes);
	CHECK_OK(ncclsvc_group_end(x->s));
	for (unsigned i = 0; i < 2; i++) {
		letter_end(x->me->rank ? &out[i] : &in[1 - i]);
		letter_end(x->me->rank ? &in[i] : &out[1 - i]);
	}
	if (plain) {
		wait_for(x->s, task, NCCLSVC_OK);
		CHECK_EQ(got, 70 + x->peer);
	}
}

static void exchanging(struct client *me)
{
	struct side x = side_open(me);
	for (unsigned modes = 0; modes < 16; modes++) {
		exchange(&x, modes, 3, false);
		exchange(&x, modes, 150, true);
	}
	CHECK_OK(ncclsvc_group_begin(x.s));
	CHECK_OK(ncclsvc_group_end(x.s));
	check_in_step(&x, 5);
	side_close(&x);
}

static void lists_in_groups_cross(void **state)
{
	(void)state;
	run_pair(exchanging);
}

/* Several groups are begun before the first is waited for. */
static void queued(struct client *me)
{
	enum { GROUPS = 6 };
	struct side x = side_open(me);
	static struct letter out[GROUPS], in[GROUPS];
	for (unsigned g = 0; g < GROUPS; g++) {
		const ncclsvc_shapes mode = g % 3 ? A : S;
		CHECK_OK(ncclsvc_group_begin(x.s));
		letter_begin(&x, &out[g], true, x.peer, mode, g, 3, 2 * g + (unsigned)me->rank);
		letter_begin(&x, &in[g], false, x.peer, mode, g, 3, 2 * g + (unsigned)x.peer);
		CHECK_OK(ncclsvc_group_end(x.s));
	}
	for (unsigned g = GROUPS; g-- > 0;) {
		letter_end(&in[g]);
		letter_end(&out[g]);
	}
	side_close(&x);
}

static void groups_of_lists_queue_up(void **state)
{
	(void)state;
	run_pair(queued);
}

/* ---- A pipeline: one forward, one backward ---- */

enum { STAGES = 4, MICRO = 8 };

/* Stage `from` sends this for micro-batch m: activations have their shapes ahead. */
static void part(struct side *x, struct letter *l, bool send, int from, int to, unsigned m)
{
	const bool forward = to > from;
	letter_begin(x, l, send, send ? to : from, forward ? A : S, m, forward ? 70 : 4,
		     100 * (unsigned)from + m + (forward ? 0 : 50));
}

static void stage(struct client *me)
{
	struct side x = side_open(me);
	const int s = me->rank, next = s + 1, last = s - 1;
	const unsigned warmup = (unsigned)(STAGES - 1 - s);
	const bool has_next = s<STAGES - 1, has_last = s> 0;
	struct letter l[4];
	unsigned forward = 0, backward = 0;
	for (; forward < warmup; forward++) {
		if (has_last) {
			part(&x, &l[0], false, last, s, forward);
			letter_end(&l[0]);
		}
		part(&x, &l[0], true, s, next, forward);
		letter_end(&l[0]);
	}
	if (has_last) {
		part(&x, &l[0], false, last, s, forward);
		letter_end(&l[0]);
	}
	for (; backward < MICRO; backward++) {
		const bool more = forward < MICRO, comes = forward + 1 < MICRO;
		if (has_next) {
			CHECK_OK(ncclsvc_group_begin(x.s));
			if (more)
				part(&x, &l[0], true, s, next, forward);
			part(&x, &l[1], false, next, s, backward);
			CHECK_OK(ncclsvc_group_end(x.s));
			letter_end(&l[1]);
			if (more)
				letter_end(&l[0]);
		}
		if (has_last) {
			CHECK_OK(ncclsvc_group_begin(x.s));
			part(&x, &l[2], true, s, last, backward);
			if (comes)
				part(&x, &l[3], false, last, s, forward + 1);
			CHECK_OK(ncclsvc_group_end(x.s));
			if (comes)
				letter_end(&l[3]);
			letter_end(&l[2]);
		}
		forward += more;
	}
	side_close(&x);
}

static void a_pipeline_needs_no_thread(void **state)
{
	(void)state;
	run_ranks(STAGES, stage);
}

/* ---- Collectives beside lists ---- */

static void with_collectives(struct client *me)
{
	struct side x = side_open(me);
	const int64_t dim = 5;
	for (int mode = S; mode <= A; mode++) {
		struct letter out, in;
		int32_t v[5] = {1, 2, 3, 4, 5 + me->rank};
		ncclsvc_tensor t = {v, NCCLSVC_INT32, 1, &dim};
		ncclsvc_request *sum;
		CHECK_OK(ncclsvc_group_begin(x.s));
		letter_begin(&x, &out, true, x.peer, (ncclsvc_shapes)mode, 1, 3,
			     (unsigned)me->rank);
		CHECK_OK(ncclsvc_tensors_all_reduce(x.lists, &t, NULL, 1, NCCLSVC_SUM, 0, &sum));
		letter_begin(&x, &in, false, x.peer, (ncclsvc_shapes)mode, 1, 3, (unsigned)x.peer);
		CHECK_OK(ncclsvc_group_end(x.s));
		CHECK_OK(ncclsvc_request_wait(sum, WAIT_MS));
		CHECK_OK(ncclsvc_request_free(sum));
		CHECK_EQ(v[4], 11);
		letter_end(&out);
		letter_end(&in);
	}
	side_close(&x);
}

static void collectives_join_groups(void **state)
{
	(void)state;
	run_pair(with_collectives);
}

/* ---- Refusals ---- */

/* Each rank sends three lists. Rank 0's second list is refused: by the call, by allocate, or
 * because of its tag. */
static void refusing(struct client *me)
{
	struct side x = side_open(me);
	enum { SIGNAL, ALLOCATE, TAG, KINDS };
	const bool guilty = me->rank == 0;
	for (unsigned i = 0; i < 2 * 8 * KINDS; i++) {
		const unsigned kind = i % KINDS, modes = i / KINDS % 8;
		const bool send = (i / KINDS / 8 == 0) == guilty;
		const ncclsvc_shapes bad = modes >> 1 & 1 ? A : S;
		struct letter l[4];
		if (kind == ALLOCATE && (bad == S || send == guilty))
			continue; /* the side at fault is the receiver */
		CHECK_OK(ncclsvc_group_begin(x.s));
		for (unsigned k = 0; k < 3; k++) {
			letter_make(&l[k], send, x.peer, modes >> k & 1 ? A : S,
				    kind == TAG && guilty && k == 1 ? 77 : k, 3, i + k);
			letter_fill(&l[k]);
			l[k].message.input_signal = !(kind == SIGNAL && guilty && k == 1);
			if (kind == ALLOCATE && guilty && k == 1)
				l[k].got.refuse = NCCLSVC_NO_MEMORY;
			const ncclsvc_result r =
				send ? ncclsvc_tensors_isend(x.lists, &l[k].message, &l[k].request)
				     : ncclsvc_tensors_irecv(x.lists, &l[k].message, &l[k].request);
			if (l[k].message.input_signal)
				CHECK_EQ(r, NCCLSVC_OK);
			else
				CHECK_EQ(r, NCCLSVC_INVALID_ARGUMENT);
		}
		/* In the other direction, everything succeeds. */
		letter_begin(&x, &l[3], !send, x.peer, modes & 1 ? A : S, 9, 3, i);
		CHECK_OK(ncclsvc_group_end(x.s));
		letter_end(&l[3]);
		letter_end(&l[0]);
		letter_end(&l[2]);
		if (kind == TAG)
			letter_fails(&l[1], NCCLSVC_MISMATCH, "tag differs");
		else if (!guilty)
			letter_fails(&l[1],
				     kind == ALLOCATE ? NCCLSVC_NO_MEMORY
						      : NCCLSVC_INVALID_ARGUMENT,
				     "rank 0");
		else if (kind == ALLOCATE)
			letter_fails(&l[1], NCCLSVC_NO_MEMORY, "the receiver's allocate callback");
		else
			letter_free(&l[1]);
		check_in_step(&x, i + 1);
	}
	side_close(&x);
}

static void a_refused_list_takes_its_turn_in_the_group(void **state)
{
	(void)state;
	run_pair(refusing);
}

enum { MANY = SVC_GROUP_TASKS / 2 + 2, RING = 16384 };

/* One side submits a group of lists that is too large, the other single lists. */
static void crowded(struct client *me)
{
	static ncclsvc_request *requests[MANY];
	static int32_t v[MANY];
	const int64_t one = 1;
	struct side x = side_on(me, session_with_ring(me->daemon, RING));
	if (me->rank == 0)
		CHECK_OK(ncclsvc_group_begin(x.s));
	for (int i = 0; i < MANY; i++) {
		const ncclsvc_tensor t = {&v[i], NCCLSVC_INT32, 1, &one};
		const ncclsvc_message m = message(&x, S, i, 1, &t);
		CHECK_OK(me->rank ? ncclsvc_tensors_irecv(x.lists, &m, &requests[i])
				  : ncclsvc_tensors_isend(x.lists, &m, &requests[i]));
	}
	if (me->rank == 0)
		CHECK_OK(ncclsvc_group_end(x.s));
	for (int i = 0; i < MANY; i++) {
		CHECK_RESULT(ncclsvc_request_wait(requests[i], WAIT_MS), NCCLSVC_INVALID_ARGUMENT);
		says(me->rank ? "rank 0" : "at most 4096 tasks");
		CHECK_OK(ncclsvc_request_free(requests[i]));
	}
	check_in_step(&x, 3);
	side_close(&x);
}

static void a_group_that_is_too_large_is_the_peers_error_too(void **state)
{
	(void)state;
	run_pair(crowded);
}

/* The group call itself is refused, or the group is still open. */
static void bad_groups(struct client *me)
{
	struct side x = side_open(me);
	struct letter out, in, other;
	int32_t v = 0;
	for (int mode = S; mode <= A; mode++) {
		CHECK_OK(ncclsvc_group_begin(x.s));
		letter_begin(&x, &out, true, x.peer, (ncclsvc_shapes)mode, 1, 3, 1);
		letter_begin(&x, &in, false, x.peer, (ncclsvc_shapes)mode, 1, 3, 1);
		CHECK_RESULT(ncclsvc_request_test(in.request), NCCLSVC_INVALID_ARGUMENT);
		CHECK_RESULT(ncclsvc_request_wait(in.request, 0), NCCLSVC_INVALID_ARGUMENT);
		says("ncclsvc_group_end first");
		CHECK_RESULT(ncclsvc_request_free(in.request), NCCLSVC_BUSY);
		CHECK_RESULT(ncclsvc_tensors_close(x.lists), NCCLSVC_BUSY);
		/* Rank 0 has an invalid plain operation: its lists fail, and so do rank 1's. */
		if (me->rank == 0)
			CHECK_RESULT(ncclsvc_send(&v, 1, NCCLSVC_INT32, 99, x.comm, NULL),
				     NCCLSVC_INVALID_ARGUMENT);
		CHECK_RESULT(ncclsvc_group_end(x.s),
			     me->rank ? NCCLSVC_OK : NCCLSVC_INVALID_ARGUMENT);
		letter_fails(&out, NCCLSVC_INVALID_ARGUMENT, me->rank ? "rank 0" : "peer");
		letter_fails(&in, NCCLSVC_INVALID_ARGUMENT, me->rank ? "rank 0" : "peer");
		check_in_step(&x, 3);
		/* An abandoned group has no effect, although only one side has begun it. */
		if (me->rank == 0) {
			CHECK_OK(ncclsvc_group_begin(x.s));
			letter_begin(&x, &out, true, x.peer, (ncclsvc_shapes)mode, 1, 3, 1);
			CHECK_OK(ncclsvc_send(&v, 1, NCCLSVC_INT32, 1, x.comm, NULL));
			CHECK_OK(ncclsvc_group_abandon(x.s));
			letter_fails(&out, NCCLSVC_CANCELLED, "abandoned");
		}
		check_in_step(&x, 3);
	}
	/* A plain operation must not overtake a list that waits for its shapes. */
	if (me->rank == 1) {
		letter_begin(&x, &in, false, 0, A, 1, 3, 8);
		CHECK_OK(ncclsvc_group_begin(x.s));
		letter_begin(&x, &other, true, 0, S, 1, 3, 9);
		CHECK_OK(ncclsvc_send(&v, 1, NCCLSVC_INT32, 0, x.comm, NULL));
		CHECK_RESULT(ncclsvc_group_end(x.s), NCCLSVC_BUSY);
		says("must not overtake");
		letter_fails(&other, NCCLSVC_BUSY, "must not overtake");
		say(me, READY);
		letter_end(&in);
	} else {
		CHECK_EQ(hear(me), GO);
		letter_begin(&x, &out, true, 1, A, 1, 3, 8);
		letter_end(&out);
	}
	check_in_step(&x, 4);
	side_close(&x);
}

static void groups_that_cannot_be(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, bad_groups, NULL);
	CHECK_EQ(hear(&clients[1]), READY);
	say(&clients[0], GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- A peer that dies ---- */

static void bereaved(struct client *me)
{
	struct side x = side_open(me);
	struct letter l[5];
	exchange(&x, 5, 3, false);
	say(me, READY);
	if (me->rank == 1) {
		hear(me); /* the test kills this client here */
		return;
	}
	CHECK_OK(ncclsvc_group_begin(x.s));
	letter_begin(&x, &l[0], true, 1, A, 0, 3, 1);
	letter_begin(&x, &l[1], true, 1, S, 0, 3, 1);
	letter_begin(&x, &l[2], false, 1, A, 0, 3, 1);
	CHECK_OK(ncclsvc_group_end(x.s));
	letter_begin(&x, &l[3], true, 1, S, 0, 3, 1); /* held back */
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	/* No list call notices the end of the epoch, so the unsubmitted lists belong to a past
	 * epoch. */
	while (!ncclsvc_comm_error(x.comm))
		sleep_ms(1);
	CHECK_OK(ncclsvc_comm_rejoin(x.comm, WAIT_MS));
	CHECK_OK(ncclsvc_tensors_rejoin(x.lists, WAIT_MS));
	letter_fails(&l[3], NCCLSVC_STALE_EPOCH, "the list belongs to an epoch");
	letter_fails(&l[1], NCCLSVC_PEER_GONE, "rank 1");
	letter_fails(&l[0], NCCLSVC_PEER_GONE, "rank 1");
	letter_fails(&l[2], NCCLSVC_PEER_GONE, "rank 1");
	exchange(&x, 10, 3, true);
	side_close(&x);
}

static void newcomer(struct client *me)
{
	struct side x = side_open(me);
	exchange(&x, 10, 3, true);
	side_close(&x);
}

static void a_peer_that_dies_ends_the_group(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, bereaved, NULL);
	hear_all(clients, 2, READY);
	CHECK_EQ(hear(&clients[0]), READY);
	client_kill(&clients[1]);
	say(&clients[0], GO);
	client_start(&clients[1], newcomer);
	clients_end(clients, 2);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(requests_drive_each_other),
		TEST(a_list_that_is_held_back_keeps_its_deadline),
		TEST(a_full_ring_does_not_hold_up_the_deadline),
		TEST(lists_in_groups_cross),
		TEST(groups_of_lists_queue_up),
		TEST(a_pipeline_needs_no_thread),
		TEST(collectives_join_groups),
		TEST(a_refused_list_takes_its_turn_in_the_group),
		TEST(a_group_that_is_too_large_is_the_peers_error_too),
		TEST(groups_that_cannot_be),
		TEST(a_peer_that_dies_ends_the_group),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
