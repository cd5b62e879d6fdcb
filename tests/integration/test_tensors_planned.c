/* SPDX-License-Identifier: Apache-2.0
 * Lists of tensors in plans: matched at the commit, submitted in any order by one thread; and what
 * happens to them when plans or epochs end. */
#include <stdlib.h>
#include <string.h>

#include "letters.h"
#include "ncclsvc_plan.h"

enum { READY = 1, GO };

struct desk {
	struct side x;
	ncclsvc_plan *plan;
};

static struct desk desk_open(struct client *me)
{
	struct desk d = {.x = side_open(me)};
	CHECK_OK(ncclsvc_plan_start(d.x.comm, &d.plan));
	return d;
}

static void launch(struct desk *d)
{
	CHECK_OK(ncclsvc_plan_end(d->plan, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(d->plan));
}

static void desk_close(struct desk *d)
{
	CHECK_OK(ncclsvc_plan_terminate(d->plan, WAIT_MS));
	side_close(&d->x);
}

static ncclsvc_result plan_letter(ncclsvc_plan *p, const struct letter *l)
{
	const ncclsvc_message *m = &l->message;
	return l->send ? ncclsvc_plan_tensors_send(p, m->shapes, m->tag, m->tensors, m->n,
						   m->remote_rank)
		       : ncclsvc_plan_tensors_recv(p, m->shapes, m->tag, m->tensors, m->n,
						   m->remote_rank);
}

static void plan_part(struct desk *d, bool send, int peer, ncclsvc_shapes shapes, int64_t tag,
		      size_t n)
{
	struct letter l;
	letter_make(&l, send, peer, shapes, tag, n, 1);
	CHECK_OK(plan_letter(d->plan, &l));
}

static ncclsvc_result submit(struct desk *d, struct letter *l)
{
	return l->send ? ncclsvc_plan_submit_tensors_send(d->plan, d->x.lists, &l->message,
							  &l->request)
		       : ncclsvc_plan_submit_tensors_recv(d->plan, d->x.lists, &l->message,
							  &l->request);
}

static void submit_part(struct desk *d, struct letter *l, bool send, int peer,
			ncclsvc_shapes shapes, int64_t tag, size_t n, unsigned seed)
{
	letter_make(l, send, peer, shapes, tag, n, seed);
	letter_fill(l);
	CHECK_OK(submit(d, l));
}

/* ---- Both ways ---- */

enum { GROUPS = 3, EACH = 2 };

static ncclsvc_shapes mode_of(unsigned g, unsigned i, bool first)
{
	return (g + i + first) % 2 ? A : S;
}

static size_t count_of(unsigned g)
{
	return g == 1 ? 90 : 3;
}

/* In each group, two lists in each direction, and plain tasks in the last one. */
static void plan_exchange(struct desk *d)
{
	const bool first = d->x.me->rank == 0;
	const int peer = d->x.peer;
	for (unsigned g = 0; g < GROUPS; g++) {
		CHECK_OK(ncclsvc_plan_group_start(d->plan));
		for (unsigned i = 0; i < EACH; i++) {
			plan_part(d, true, peer, mode_of(g, i, first), 10 * g + i, count_of(g));
			plan_part(d, false, peer, mode_of(g, i, !first), 10 * g + i, count_of(g));
		}
		if (g == GROUPS - 1) {
			CHECK_OK(ncclsvc_plan_send(d->plan, 1, NCCLSVC_INT32, peer));
			CHECK_OK(ncclsvc_plan_recv(d->plan, NCCLSVC_PLAN_ANY, 0, peer));
		}
		CHECK_OK(ncclsvc_plan_group_end(d->plan));
	}
}

/* One iteration; `order` selects the order in which the lists are submitted and waited for. */
static void exchange(struct desk *d, unsigned order)
{
	enum { ALL = GROUPS * EACH * 2 };
	static struct letter l[ALL];
	const unsigned me = (unsigned)d->x.me->rank;
	int32_t out = 5 + (int32_t)me, in = 0;
	for (unsigned k = 0; k < ALL; k++) {
		const unsigned j = (k * (order % 2 ? 5 : 7) + order) % ALL;
		const unsigned g = j / 4, i = j / 2 % 2, from = j % 2 ? 1 - me : me;
		submit_part(d, &l[j], from == me, d->x.peer, mode_of(g, i, from == 0), 10 * g + i,
			    count_of(g), 1000 * (order / 2) + 10 * g + 4 * i + from);
		if (k == 4)
			CHECK_OK(ncclsvc_plan_submit_send(d->plan, &out, 1, NCCLSVC_INT32,
							  d->x.peer, NULL));
		if (k == 1)
			CHECK_OK(ncclsvc_plan_submit_recv(d->plan, &in, 1, NCCLSVC_INT32, d->x.peer,
							  NULL));
	}
	for (unsigned k = 0; k < ALL; k++)
		letter_end(&l[(k * 5 + order + me) % ALL]);
	CHECK_OK(ncclsvc_plan_reset(d->plan, WAIT_MS));
	CHECK_EQ(in, 5 + d->x.peer);
}

static void exchanging(struct client *me)
{
	struct desk d = desk_open(me);
	plan_exchange(&d);
	launch(&d);
	for (unsigned i = 0; i < 6; i++)
		exchange(&d, 2 * i + (unsigned)me->rank);
	CHECK_EQ(ncclsvc_plan_iterations(d.plan), 6);
	check_in_step(&d.x, 3);
	desk_close(&d);
}

static void planned_lists_cross(void **state)
{
	(void)state;
	run_pair(exchanging);
}

/* ---- A pipeline ---- */

enum { STAGES = 3, MICRO = 5 };

/* Activations send their shapes ahead, gradients do not. */
struct step {
	bool send;
	int from, to;
	unsigned micro;
	unsigned group;
};

static unsigned add_step(struct step *s, unsigned n, bool send, int from, int to, unsigned micro,
			 unsigned group)
{
	s[n] = (struct step){send, from, to, micro, group};
	return n + 1;
}

/* One forward, one backward, as the plan's groups. */
static unsigned schedule(int s, struct step *steps)
{
	const unsigned warmup = (unsigned)(STAGES - 1 - s);
	const bool has_next = s<STAGES - 1, has_last = s> 0;
	unsigned n = 0, g = 0, forward = 0;
	for (; forward < warmup; forward++) {
		if (has_last)
			n = add_step(steps, n, false, s - 1, s, forward, g++);
		n = add_step(steps, n, true, s, s + 1, forward, g++);
	}
	if (has_last)
		n = add_step(steps, n, false, s - 1, s, forward, g++);
	for (unsigned backward = 0; backward < MICRO; backward++) {
		if (has_next && forward < MICRO)
			n = add_step(steps, n, true, s, s + 1, forward, g);
		if (has_next)
			n = add_step(steps, n, false, s + 1, s, backward, g++);
		if (has_last)
			n = add_step(steps, n, true, s, s - 1, backward, g);
		if (has_last && forward + 1 < MICRO)
			n = add_step(steps, n, false, s - 1, s, forward + 1, g);
		g += has_last;
		forward += forward < MICRO;
	}
	return n;
}

static void stage(struct client *me)
{
	struct desk d = desk_open(me);
	struct step steps[8 * MICRO];
	static struct letter l[8 * MICRO];
	const unsigned n = schedule(me->rank, steps);
	for (unsigned i = 0; i < n; i++) {
		const struct step *s = &steps[i];
		const bool forward = s->to > s->from;
		if (!i || s->group != s[-1].group)
			CHECK_OK(ncclsvc_plan_group_start(d.plan));
		plan_part(&d, s->send, s->send ? s->to : s->from, forward ? A : S, forward, 4);
		if (i + 1 == n || s->group != s[1].group)
			CHECK_OK(ncclsvc_plan_group_end(d.plan));
	}
	launch(&d);
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0, first = 0; i < n; i++) {
			const struct step *s = &steps[i];
			const bool forward = s->to > s->from;
			submit_part(&d, &l[i], s->send, s->send ? s->to : s->from, forward ? A : S,
				    forward, 4, 100 * round + 10 * s->micro + (unsigned)s->from);
			/* Completes each group before the next, which needs its data. */
			for (; (i + 1 == n || s->group != s[1].group) && first <= i; first++)
				letter_end(&l[first]);
		}
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	}
	CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
	side_close(&d.x);
}

static void a_planned_pipeline_needs_no_thread(void **state)
{
	(void)state;
	run_ranks(STAGES, stage);
}

/* ---- Mismatches ---- */

struct clash {
	ncclsvc_shapes shapes[2];
	int64_t tag[2], dim[2];
	ncclsvc_type type[2];
	size_t n[2];
	const char *why;
};

#define F NCCLSVC_FLOAT32

static const struct clash clashes[] = {
	{{S, A}, {1, 1}, {4, 4}, {F, F}, {1, 1}, "static shapes, tag 1"},
	{{S, S}, {1, 2}, {4, 4}, {F, F}, {1, 1}, "static shapes, tag 2"},
	{{A, A}, {1, INT64_MIN}, {4, 4}, {F, F}, {1, 1}, "tag -9223372036854775808"},
	{{S, S}, {1, 1}, {4, 5}, {F, F}, {1, 1}, "differ in types or shapes"},
	{{S, S}, {1, 1}, {4, 4}, {F, NCCLSVC_INT32}, {1, 1}, "differ in types or shapes"},
	{{A, A}, {1, 1}, {4, 4}, {F, NCCLSVC_INT32}, {1, 1}, "number or types"},
	{{A, A}, {1, 1}, {4, 4}, {F, F}, {2, 1}, "number or types"},
};

static void clashing(struct client *me)
{
	struct side x = side_open(me);
	const int k = me->rank;
	ncclsvc_plan *p;
	for (size_t i = 0; i <= sizeof(clashes) / sizeof(clashes[0]); i++) {
		const bool last = i == sizeof(clashes) / sizeof(clashes[0]);
		const struct clash *c = &clashes[last ? 0 : i];
		const ncclsvc_tensor t[2] = {{NULL, c->type[k], 1, &c->dim[k]},
					     {NULL, c->type[k], 1, &c->dim[k]}};
		CHECK_OK(ncclsvc_plan_start(x.comm, &p));
		CHECK_OK(ncclsvc_plan_group_start(p));
		if (last && k)
			CHECK_OK(ncclsvc_plan_recv(p, NCCLSVC_PLAN_ANY, 0, 0));
		else if (k)
			CHECK_OK(ncclsvc_plan_tensors_recv(p, c->shapes[k], c->tag[k], t, c->n[k],
							   0));
		else
			CHECK_OK(ncclsvc_plan_tensors_send(p, c->shapes[k], c->tag[k], t, c->n[k],
							   1));
		CHECK_OK(ncclsvc_plan_group_end(p));
		CHECK_RESULT(ncclsvc_plan_end(p, WAIT_MS), NCCLSVC_MISMATCH);
		says(last ? "no list of tensors" : c->why);
		says("in its group 0");
		CHECK_OK(ncclsvc_plan_terminate(p, WAIT_MS));
	}
	check_in_step(&x, 3);
	side_close(&x);
}

static void plans_that_do_not_match(void **state)
{
	(void)state;
	run_pair(clashing);
}

static void bad_planning(ncclsvc_plan *p, int peer)
{
	const int64_t bad_dim = -2, dim = 4;
	ncclsvc_tensor t = {NULL, F, 1, &dim};
	CHECK_RESULT(ncclsvc_plan_tensors_send(p, (ncclsvc_shapes)7, 0, &t, 1, peer),
		     NCCLSVC_INVALID_ARGUMENT);
	says("shapes is 7");
	CHECK_RESULT(ncclsvc_plan_tensors_send(NULL, S, 0, &t, 1, peer), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_plan_tensors_send(p, S, 0, NULL, 1, peer), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_plan_tensors_recv(p, S, 0, &t, 1, 9), NCCLSVC_INVALID_ARGUMENT);
	says("the peer is 9");
	CHECK_RESULT(ncclsvc_plan_tensors_send(p, A, 0, &t, 1, 1 - peer), NCCLSVC_INVALID_ARGUMENT);
	says("sending data to rank");
	CHECK_RESULT(ncclsvc_plan_tensors_recv(p, S, 0, &t, 1, 1 - peer), NCCLSVC_INVALID_ARGUMENT);
	says("receiving data from rank");
	t.dims = &bad_dim;
	CHECK_RESULT(ncclsvc_plan_tensors_send(p, S, 0, &t, 1, peer), NCCLSVC_INVALID_ARGUMENT);
	says("tensor 0");
	t.dims = &dim;
	t.type = (ncclsvc_type)99;
	CHECK_RESULT(ncclsvc_plan_tensors_recv(p, A, 0, &t, 1, peer), NCCLSVC_INVALID_ARGUMENT);
}

/* ---- Lists without a place in the plan ---- */

static void misplaced(struct client *me)
{
	struct desk d = desk_open(me);
	const bool send = me->rank == 0;
	struct letter l[3], other;
	char byte = 0;
	ncclsvc_timeline *timeline;
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	bad_planning(d.plan, d.x.peer);
	plan_part(&d, send, d.x.peer, S, 1, 3);
	plan_part(&d, send, d.x.peer, A, 2, 3);
	CHECK_OK(send ? ncclsvc_plan_send(d.plan, NCCLSVC_PLAN_ANY, 0, 1)
		      : ncclsvc_plan_recv(d.plan, NCCLSVC_PLAN_ANY, 0, 0));
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	letter_make(&l[0], send, d.x.peer, S, 1, 3, 1);
	letter_fill(&l[0]);
	CHECK_RESULT(submit(&d, &l[0]), NCCLSVC_INVALID_ARGUMENT);
	says("not been launched");
	launch(&d);
	/* No refused list takes a place. */
	letter_make(&other, send, d.x.peer, S, 3, 3, 1);
	letter_fill(&other);
	CHECK_RESULT(submit(&d, &other), NCCLSVC_INVALID_ARGUMENT);
	says("(static shapes, tag 3) is not in the plan");
	other.message.tag = 2;
	CHECK_RESULT(submit(&d, &other), NCCLSVC_INVALID_ARGUMENT);
	says("is not in the plan");
	other.message.tag = 1;
	other.message.n = 2;
	CHECK_RESULT(submit(&d, &other), NCCLSVC_INVALID_ARGUMENT);
	says("was planned with tensors of different types or shapes");
	other.message.n = 3;
	other.dims[1][0]++;
	CHECK_RESULT(submit(&d, &other), NCCLSVC_INVALID_ARGUMENT);
	says("in group 0 was planned with");
	other.dims[1][0]--;
	other.message.input_signal = false;
	CHECK_RESULT(submit(&d, &other), NCCLSVC_INVALID_ARGUMENT);
	other.message.input_signal = true;
	other.message.remote_rank = me->rank;
	CHECK_RESULT(submit(&d, &other), NCCLSVC_INVALID_ARGUMENT);
	letter_free(&other);
	letter_make(&other, send, d.x.peer, A, 2, 2, 1);
	letter_fill(&other);
	CHECK_RESULT(submit(&d, &other), NCCLSVC_INVALID_ARGUMENT);
	says("a different number of tensors");
	letter_free(&other);
	CHECK_OK(ncclsvc_group_begin(d.x.s));
	CHECK_RESULT(submit(&d, &l[0]), NCCLSVC_INVALID_ARGUMENT);
	says("task group");
	CHECK_OK(ncclsvc_group_end(d.x.s));
	CHECK_OK(ncclsvc_timeline_create(d.x.s, &timeline));
	CHECK_OK(ncclsvc_timeline_set(d.x.s, timeline, 1));
	CHECK_RESULT(submit(&d, &l[0]), NCCLSVC_UNSUPPORTED);
	CHECK_OK(ncclsvc_timeline_set(d.x.s, NULL, 0));
	/* Each kind of list has its own place, and only one. */
	CHECK_OK(submit(&d, &l[0]));
	CHECK_RESULT(send ? ncclsvc_plan_submit_send(d.plan, &byte, 1, NCCLSVC_INT8, 0, NULL)
			  : ncclsvc_plan_submit_recv(d.plan, &byte, 1, NCCLSVC_INT8, 1, NULL),
		     NCCLSVC_INVALID_ARGUMENT);
	CHECK_OK(send ? ncclsvc_plan_submit_send(d.plan, &byte, 1, NCCLSVC_INT8, 1, NULL)
		      : ncclsvc_plan_submit_recv(d.plan, &byte, 1, NCCLSVC_INT8, 0, NULL));
	CHECK_RESULT(send ? ncclsvc_plan_submit_send(d.plan, &byte, 1, NCCLSVC_INT8, 1, NULL)
			  : ncclsvc_plan_submit_recv(d.plan, &byte, 1, NCCLSVC_INT8, 0, NULL),
		     NCCLSVC_INVALID_ARGUMENT);
	says("all 1 planned tasks");
	letter_make(&other, send, d.x.peer, S, 1, 3, 1);
	letter_fill(&other);
	CHECK_RESULT(submit(&d, &other), NCCLSVC_INVALID_ARGUMENT);
	says("all 1 planned tasks");
	letter_free(&other);
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, 20), NCCLSVC_TIMEOUT);
	says("of a list (shapes ahead, tag 2)");
	submit_part(&d, &l[1], send, d.x.peer, A, 2, 3, 9);
	letter_end(&l[1]);
	letter_end(&l[0]);
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	check_in_step(&d.x, 4);
	desk_close(&d);
}

static void lists_have_places_of_their_own(void **state)
{
	(void)state;
	run_pair(misplaced);
}

/* ---- Planned and unplanned lists together ---- */

/* The ranks submit a planned and a plain list in different orders; the messages that follow
 * would not match either. */
static void beside_plain_of(struct client *me, ncclsvc_shapes shapes)
{
	struct desk d = desk_open(me);
	struct letter planned, plain;
	const bool first = me->rank == 0;
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	plan_part(&d, first, d.x.peer, A, 1, 3);
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	launch(&d);
	if (first)
		submit_part(&d, &planned, first, d.x.peer, A, 1, 3, 5);
	letter_begin(&d.x, &plain, first, d.x.peer, shapes, 1, 3, 6);
	if (!first)
		submit_part(&d, &planned, first, d.x.peer, A, 1, 3, 5);
	letter_fails(&planned, NCCLSVC_MISMATCH, "a planned list with its shapes ahead");
	letter_fails(&plain, NCCLSVC_MISMATCH, "a planned list with its shapes ahead");
	ncclsvc_plan_terminate(d.plan, WAIT_MS);
	ncclsvc_tensors_close(d.x.lists);
	ncclsvc_close(d.x.s);
}

static void beside_plain(struct client *me)
{
	beside_plain_of(me, A);
}

static void beside_static(struct client *me)
{
	beside_plain_of(me, S);
}

static void plain_lists_keep_the_order(void **state)
{
	(void)state;
	run_pair(beside_plain);
	run_pair(beside_static);
}

/* ---- Refusals once the shapes are known ---- */

static void refusing(struct client *me)
{
	struct desk d = desk_open(me);
	plan_exchange(&d);
	launch(&d);
	for (unsigned round = 0; round < 2; round++) {
		static struct letter l[GROUPS * EACH * 2];
		const unsigned rank = (unsigned)me->rank;
		for (unsigned j = 0; j < GROUPS * EACH * 2; j++) {
			const unsigned g = j / 4, i = j / 2 % 2, from = j % 2 ? 1 - rank : rank;
			letter_make(&l[j], from == rank, d.x.peer, mode_of(g, i, from == 0),
				    10 * g + i, count_of(g), 100 + j / 2 * 2 + from);
			letter_fill(&l[j]);
			/* Rank 1 receives the long list of group 1, and refuses. */
			if (g == 1 && from == 0 && rank == 1 && l[j].message.shapes == A)
				l[j].got.refuse = NCCLSVC_NO_MEMORY;
			CHECK_OK(submit(&d, &l[j]));
		}
		int32_t v[2] = {1, 0};
		CHECK_OK(ncclsvc_plan_submit_send(d.plan, &v[0], 1, NCCLSVC_INT32, d.x.peer, NULL));
		CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &v[1], 1, NCCLSVC_INT32, d.x.peer, NULL));
		for (unsigned j = 0; j < GROUPS * EACH * 2; j++) {
			const bool bad =
				j / 4 == 1 && l[j].send == (rank == 0) && l[j].message.shapes == A;
			if (!bad)
				letter_end(&l[j]);
			else
				letter_fails(&l[j], NCCLSVC_NO_MEMORY,
					     rank ? "the receiver's allocate callback" : "rank 1");
		}
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
		CHECK_EQ(v[1], 1);
	}
	exchange(&d, 3);
	desk_close(&d);
}

static void a_refusal_takes_the_place(void **state)
{
	(void)state;
	run_pair(refusing);
}

/* ---- Ends ---- */

/* One list each way, with shapes ahead, in one group. */
static void plan_pair(struct desk *d)
{
	CHECK_OK(ncclsvc_plan_group_start(d->plan));
	plan_part(d, true, d->x.peer, A, 1, 3);
	plan_part(d, false, d->x.peer, A, 1, 3);
	CHECK_OK(ncclsvc_plan_group_end(d->plan));
}

static void iterate(struct desk *d, unsigned seed)
{
	struct letter l[2];
	submit_part(d, &l[0], true, d->x.peer, A, 1, 3, seed + (unsigned)d->x.me->rank);
	submit_part(d, &l[1], false, d->x.peer, A, 1, 3, seed + (unsigned)d->x.peer);
	letter_end(&l[1]);
	letter_end(&l[0]);
	CHECK_OK(ncclsvc_plan_reset(d->plan, WAIT_MS));
}

static void newcomer(struct client *me)
{
	struct desk d = desk_open(me);
	plan_pair(&d);
	launch(&d);
	iterate(&d, 9);
	desk_close(&d);
}

static void bereaved(struct client *me)
{
	struct desk d = desk_open(me);
	struct letter l[2];
	plan_pair(&d);
	launch(&d);
	iterate(&d, 1);
	if (me->rank == 1) {
		say(me, READY);
		hear(me); /* the test kills this client here */
		return;
	}
	submit_part(&d, &l[0], true, 1, A, 1, 3, 5);
	CHECK_RESULT(ncclsvc_request_wait(l[0].request, 30), NCCLSVC_TIMEOUT);
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, 20), NCCLSVC_TIMEOUT);
	submit_part(&d, &l[1], false, 1, A, 1, 3, 5);
	CHECK_RESULT(ncclsvc_request_wait(l[1].request, 30), NCCLSVC_TIMEOUT);
	say(me, READY);
	letter_fails(&l[1], NCCLSVC_PEER_GONE, "rank 1");
	CHECK_OK(ncclsvc_comm_rejoin(d.x.comm, WAIT_MS));
	CHECK_OK(ncclsvc_tensors_rejoin(d.x.lists, WAIT_MS));
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	/* The request was not checked until now. */
	letter_fails(&l[0], NCCLSVC_PEER_GONE, "rank 1");
	iterate(&d, 9);
	desk_close(&d);
}

static void a_peer_that_dies(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, bereaved, NULL);
	hear_all(clients, 2, READY);
	client_kill(&clients[1]);
	client_start(&clients[1], newcomer);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* Checks that the daemon lists the tasks whose list sends its shapes ahead: the first of each
 * rank. */
static void check_ahead(const struct desk *d)
{
	ncclsvc_plan_task_info *tasks;
	size_t n;
	CHECK_OK(ncclsvc_list_plan_tasks(d->x.s, &tasks, &n));
	for (size_t i = 0; i < n; i++)
		CHECK_EQ(tasks[i].ahead, tasks[i].task == 0);
	ncclsvc_list_free(tasks);
}

/* A submitted list whose shapes are late does not count as missing on this rank. */
static void late_shapes(struct client *me)
{
	struct desk d = desk_open(me);
	struct letter l;
	int32_t v = 0;
	const bool first = me->rank == 0;
	CHECK_OK(ncclsvc_plan_group_start(d.plan));
	plan_part(&d, first, d.x.peer, A, 1, 3);
	CHECK_OK(first ? ncclsvc_plan_recv(d.plan, NCCLSVC_PLAN_ANY, 0, 1)
		       : ncclsvc_plan_send(d.plan, NCCLSVC_PLAN_ANY, 0, 0));
	CHECK_OK(ncclsvc_plan_group_end(d.plan));
	launch(&d);
	if (first) {
		submit_part(&d, &l, true, 1, A, 1, 3, 5);
		CHECK_RESULT(ncclsvc_plan_reset(d.plan, 50), NCCLSVC_TIMEOUT);
		says("has not submitted the Recv from rank 1");
		CHECK_OK(ncclsvc_plan_submit_recv(d.plan, &v, 1, NCCLSVC_INT32, 1, NULL));
		CHECK_RESULT(ncclsvc_plan_reset(d.plan, 50), NCCLSVC_TIMEOUT);
		says("in group 0 waits for its shapes: rank 1 has not");
		check_ahead(&d);
		say(me, READY);
		CHECK_EQ(hear(me), GO);
	} else {
		CHECK_EQ(hear(me), GO);
		submit_part(&d, &l, false, 0, A, 1, 3, 5);
		CHECK_OK(ncclsvc_plan_submit_send(d.plan, &v, 1, NCCLSVC_INT32, 0, NULL));
	}
	letter_end(&l);
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	desk_close(&d);
}

static void a_list_without_its_shapes_is_not_blamed(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, late_shapes, NULL);
	CHECK_EQ(hear(&clients[0]), READY);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* The list's epoch ends while the list waits for the rest of its group. */
static void left_over(struct client *me)
{
	struct desk d = desk_open(me);
	struct letter l;
	plan_pair(&d);
	launch(&d);
	submit_part(&d, &l, true, d.x.peer, A, 1, 3, 5);
	CHECK_RESULT(ncclsvc_request_test(l.request), NCCLSVC_IN_PROGRESS);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	CHECK_OK(ncclsvc_reattach(d.x.s, WAIT_MS));
	CHECK_OK(ncclsvc_tensors_rejoin(d.x.lists, WAIT_MS));
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	letter_fails(&l, NCCLSVC_STALE_EPOCH, "committed again");
	iterate(&d, 3);
	/* The plan is terminated while the list waits; the list's place is freed with the plan. */
	submit_part(&d, &l, false, d.x.peer, A, 1, 3, 5);
	CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
	letter_fails(&l, NCCLSVC_CANCELLED, "terminated");
	CHECK_OK(ncclsvc_plan_start(d.x.comm, &d.plan));
	plan_exchange(&d);
	launch(&d);
	exchange(&d, 1);
	/* Static lists, whose tasks are held. */
	letter_make(&l, false, d.x.peer, mode_of(2, 1, me->rank), 21, count_of(2), 1);
	CHECK_EQ(l.message.shapes, me->rank ? S : A);
	letter_fill(&l);
	CHECK_OK(submit(&d, &l));
	ncclsvc_plan_terminate(d.plan, WAIT_MS);
	const ncclsvc_result r = ncclsvc_request_wait(l.request, WAIT_MS);
	CHECK(r == NCCLSVC_CANCELLED ||
	      r == NCCLSVC_NOT_FOUND); /* depending on whether it was seen before or after */
	letter_free(&l);
	side_close(&d.x);
}

static void plans_that_end_before_their_lists(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	if (getenv("NCCLSVC_TEST_NODES"))
		skip_because("the only daemon is killed, and started again");
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, left_over, NULL);
	hear_all(clients, 2, READY);
	daemon_kill(&d);
	daemon_restart(&d, NULL);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(planned_lists_cross),
		TEST(a_planned_pipeline_needs_no_thread),
		TEST(plans_that_do_not_match),
		TEST(lists_have_places_of_their_own),
		TEST(plain_lists_keep_the_order),
		TEST(a_refusal_takes_the_place),
		TEST(a_peer_that_dies),
		TEST(a_list_without_its_shapes_is_not_blamed),
		TEST(plans_that_end_before_their_lists),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
