/* SPDX-License-Identifier: Apache-2.0
 * The order of batches: each waits for those before it (batch.h). */
#include <stdlib.h>

#include "base/error.h"
#include "batch.h"
#include "core/session_handle.h"
#include "core/thread.h"
#include "list_request.h"
#include "planned.h"

void lists_go_on(ncclsvc_tensors *l)
{
	struct batch *b;
	if (l->allocating) /* called from allocate: the request that called it already makes
			      progress */
		return;
	while ((b = l->queue) && batch_go_on(b) && batch_submit_data(b)) {
		l->queue = b->next;
		batch_close(b);
	}
	planned_go_on(l);
}

static void append(ncclsvc_tensors *l, struct batch *b)
{
	struct batch **at = &l->queue;
	while (*at)
		at = &(*at)->next;
	*at = b;
}

static bool others_go_on(const struct batch *b, const struct ncclsvc_request *r)
{
	for (const struct ncclsvc_request *q = b->first; q; q = q->next_in_batch)
		if (q != r && !request_settled(q))
			return true;
	return false;
}

bool lists_await_others(const ncclsvc_tensors *l, const struct ncclsvc_request *r)
{
	bool others = l->queue && others_go_on(l->queue, r);
	for (const struct batch *b = l->planned; b && !others; b = b->next)
		others = others_go_on(b, r);
	return others;
}

ncclsvc_result lists_callable(const ncclsvc_tensors *l)
{
	return l->allocating ? error_argument("a list function is called within allocate, which "
					      "may only call ncclsvc_tensors_allocate")
			     : NCCLSVC_OK;
}

ncclsvc_result lists_usable(const ncclsvc_tensors *l, bool waits)
{
	const ncclsvc_result r = lists_callable(l);
	if (r)
		return r;
	return waits ? thread_plain(l->session) : thread_untimed(l->session);
}

bool request_is_open(const struct ncclsvc_request *r)
{
	return r->batch && r->batch->open;
}

bool request_is_held(const struct ncclsvc_request *r)
{
	return r->batch && !r->batch->begun;
}

/* ---- The end of a task group ---- */

static ncclsvc_result join(struct thread_state *t)
{
	ncclsvc_result result = NCCLSVC_OK;
	for (ncclsvc_tensors *l = t->lists; !result && l; l = l->next_in_group) {
		lists_go_on(l);
		if (l->queue)
			return error_set(NCCLSVC_BUSY,
					 "a list with its shapes ahead is in progress, and the "
					 "group has plain operations, which must not overtake it: "
					 "wait for it first; nothing of the group was submitted");
		result = batch_check(l->open);
		if (!result)
			result = batch_join(l->open, t);
	}
	return result;
}

static void end_one(ncclsvc_tensors *l, struct batch *b, bool joined, bool withdrawn,
		    ncclsvc_result result)
{
	b->open = false;
	if (withdrawn) { /* nothing of the group has happened */
		batch_give_up(b, result);
		batch_close(b);
		return;
	}
	batch_group_ended(b, joined, result);
	append(l, b);
	lists_go_on(l);
}

static void ended(ncclsvc_tensors *l, bool joined, bool withdrawn, ncclsvc_result result)
{
	struct error why;
	error_keep(&why);
	for (ncclsvc_tensors *next; l; l = next) {
		struct batch *b = l->open;
		next = l->next_in_group;
		l->open = NULL;
		l->next_in_group = NULL;
		if (result)
			error_again(&why);
		end_one(l, b, joined, withdrawn, result);
	}
	if (result)
		error_again(&why);
}

static const struct list_callbacks list_callbacks = {.join = join, .ended = ended};

/* ---- Beginning ---- */

/* Removes the request as if it had never existed. */
static ncclsvc_result drop(struct ncclsvc_request *r, ncclsvc_result result)
{
	request_drop(r);
	return result;
}

static ncclsvc_result begin(struct ncclsvc_request *r, struct batch *b)
{
	ncclsvc_tensors *l = r->lists;
	const bool refused = r->result;
	struct error why;
	lists_go_on(l);
	if (!l->queue && !batch_begin(b) && !refused) {
		free(b);
		return drop(r, NCCLSVC_AGAIN);
	}
	if (b->begun && !b->ahead)
		batch_close(b);
	else
		append(l, b);
	if (!r->result || r->ntasks)
		return NCCLSVC_OK;
	ncclsvc_result result = request_result(r);
	if (r->ended)
		return drop(r, result);
	r->forgotten = true;
	error_keep(&why);
	lists_go_on(l);
	return error_again(&why);
}

static struct thread_state *open_group(ncclsvc_session *s)
{
	session_lock(s);
	struct thread_state *t = thread_find(s);
	session_unlock(s);
	return t && t->grouping ? t : NULL;
}

ncclsvc_result request_begin(struct ncclsvc_request *r, ncclsvc_result prepared)
{
	ncclsvc_tensors *l = r->lists;
	struct thread_state *t = open_group(l->session);
	if (prepared)
		request_fail(r, prepared);
	struct batch *b = t && l->open ? l->open : batch_new(l);
	if (!b)
		return drop(r, NCCLSVC_NO_MEMORY);
	batch_add(b, r);
	if (!t)
		return begin(r, b);
	if (!l->open) {
		b->open = true;
		l->open = b;
		l->next_in_group = t->lists;
		t->lists = l;
		session_lock(l->session);
		l->session->list_callbacks = &list_callbacks;
		session_unlock(l->session);
	}
	if (!prepared)
		return NCCLSVC_OK;
	r->forgotten = true;
	return request_result(r);
}
