/* SPDX-License-Identifier: Apache-2.0 */
#include "turns.h"

#include <stdio.h>
#include <stdlib.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/loop.h"
#include "base/timings.h"
#include "memory.h"

/* One tenant's requests to one worker. */
struct turns {
	struct memory *memory;
	struct gpu *gpu;
	const struct account *account; /* a key: it may no longer exist */
	unsigned asked;		       /* calls not answered by the worker yet */
	bool busy;		       /* the waiting calls are being processed */
	struct region_call *waiting;   /* in order */
	struct region_call *passed;    /* the first one moved behind the others; NULL: none was */
	UT_hash_handle hh;
};

static void append(struct turns *t, struct region_call *call)
{
	DL_APPEND(t->waiting, call);
	DL_APPEND2(call->session->region_calls, call, prev_own, next_own);
}

static void take_out(struct turns *t, struct region_call *call)
{
	DL_DELETE(t->waiting, call);
	DL_DELETE2(call->session->region_calls, call, prev_own, next_own);
}

static void answer(struct turns *t, struct region_call *call, const struct worker_message *m)
{
	if (call->region)
		gpu_region_answered(t->gpu, call, m);
	else
		gpu_session_answered(t->gpu, call, m);
}

static void answer_gone(struct turns *t, struct region_call *call)
{
	struct worker_message m = {.result = NCCLSVC_INVALID_ARGUMENT};
	snprintf(m.text, sizeof(m.text), "some parts of the range no longer exist");
	answer(t, call, &m);
}

static void put_off(struct turns *t)
{
	struct memory *s = t->memory;
	if (s->turns_ns)
		return;
	s->turns_ns = clock_now() + SEND_AGAIN_NS;
	loop_deadline(s->loop, s->turns_ns);
}

/* All waiting calls depend on earlier calls, so one of them can continue, or one is at the worker;
 * otherwise all of them are invalid. */
static bool pass(struct turns *t, struct region_call *call)
{
	if (!t->asked && t->passed == call) {
		t->passed = NULL;
		answer_gone(t, call);
		return true;
	}
	if (!t->passed)
		t->passed = call;
	append(t, call);
	return !t->asked;
}

/* False: the others must wait, too. */
static bool give_turn(struct turns *t, struct region_call *call)
{
	struct session *c = call->session;
	take_out(t, call);
	t->asked++; /* the answer may come at once */
	switch (c->state == SESSION_OPEN ? gpu_region_ask(t->gpu, c, call) : TURN_GONE) {
	case TURN_ASKED:
		t->passed = NULL;
		return true;
	case TURN_LATER:
		t->asked--;
		DL_PREPEND(t->waiting, call);
		DL_APPEND2(c->region_calls, call, prev_own, next_own);
		put_off(t);
		return false;
	case TURN_PARTS:
		t->asked--;
		return pass(t, call);
	case TURN_GONE:
		break;
	}
	t->asked--;
	answer_gone(t, call);
	return true;
}

static void go_on(struct turns *t)
{
	if (t->busy)
		return;
	t->busy = true;
	while (t->waiting && t->asked < TURN_CALLS && give_turn(t, t->waiting))
		;
	t->busy = false;
	if (t->waiting || t->asked)
		return;
	HASH_DEL(t->memory->turns[t->gpu->index], t);
	free(t);
}

void turns_add(struct gpu *g, struct session *c, struct region_call *call)
{
	struct turns **users = &call->memory->turns[g->index], *t;
	HASH_FIND_PTR(*users, &c->account, t);
	if (!t) {
		t = nofail_calloc(1, sizeof(*t), "a user's requests to a worker");
		t->memory = call->memory;
		t->gpu = g;
		t->account = c->account;
		HASH_ADD_PTR(*users, account, t);
	}
	call->session = c;
	call->turns = t;
	append(t, call);
	go_on(t);
}

void turns_answered(struct gpu *g, void *arg, const struct worker_message *m)
{
	struct region_call *call = arg;
	struct turns *t = call->turns;
	(void)g;
	answer(t, call, m);
	t->asked--;
	go_on(t);
}

void turns_forget(struct session *c)
{
	while (c->region_calls) {
		struct region_call *call = c->region_calls;
		struct turns *t = call->turns;
		if (t->passed == call)
			t->passed = NULL;
		take_out(t, call);
		free(call);
		go_on(t);
	}
}

uint64_t turns_retry(struct memory *s, uint64_t now)
{
	struct turns *t, *next;
	if (!s->turns_ns || now < s->turns_ns)
		return s->turns_ns;
	s->turns_ns = 0;
	for (uint32_t i = 0; i < s->gpus->ngpus; i++)
		HASH_ITER (hh, s->turns[i], t, next)
			go_on(t);
	return s->turns_ns;
}
