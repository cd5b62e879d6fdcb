/* SPDX-License-Identifier: Apache-2.0
 * Batches: requests that take their turns together (batch.h), either those of a task group or a
 * single one. If all shapes are static, a batch is done when it is submitted. If some requests send
 * their shapes ahead, the data of all waits until these are known, and is then submitted as one
 * task group: if two ranks sending to each other both began with their Sends, NCCL would wait
 * forever. A group that also has plain operations is submitted by ncclsvc_group_end together with
 * what its lists submit first. */
#include <stdlib.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "batch.h"
#include "comm/group.h"
#include "comm/submit.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "core/thread.h"
#include "list_request.h"

#define OPS_EACH 2 /* of one request in one submission */
#define OPS_FEW	 8 /* this many without an allocation */

enum { AHEAD = 1, DATA = 2 }; /* what is submitted of each request */

/* ---- Submission ---- */

static uint64_t timeout_of(const struct ncclsvc_request *r)
{
	if (!r->has_deadline)
		return atomic_load_explicit(&r->lists->comm->timeout_ns, memory_order_relaxed);
	uint64_t now = now_ns();
	return now < r->deadline ? r->deadline - now : 1;
}

/* The result of a refusal is ignored. */
static unsigned gather(struct ncclsvc_request *r, unsigned stages, struct op *ops)
{
	unsigned n = 0;
	if (stages & AHEAD && r->has_ahead)
		ops[n++] = r->ahead;
	if (stages & DATA && r->has_data)
		ops[n++] = r->data;
	for (unsigned i = 0; i < n; i++) {
		ops[i].record.timeout_ns = timeout_of(r);
		ops[i].task = r->result ? NULL : &r->tasks[r->ntasks + i];
		ops[i].quiet = r->result;
	}
	return n;
}

/* On a GPU, received data is copied in stream order: at once, unless the caller waits anyway. */
static void submitted(struct ncclsvc_request *r, unsigned stages)
{
	const bool data = stages & DATA && r->has_data;
	if (stages & AHEAD && r->has_ahead) {
		r->ntasks += !r->result;
		r->has_ahead = r->owes_ahead = false;
	}
	if (!data)
		return;
	r->ntasks += !r->result;
	r->has_data = r->owes_data = false;
	if (r->result || !on_gpu(r->lists) || r->waited)
		return;
	r->lists->stream = r->stream;
	ncclsvc_result result = request_copy_out(r, r->tasks[r->ntasks - 1]);
	if (result)
		request_fail(r, result);
}

static struct ncclsvc_request *next_of(const struct ncclsvc_request *r, bool alone)
{
	return alone ? NULL : r->next_in_batch;
}

/* A new epoch has different turns. Locked. */
static ncclsvc_result check_epochs(const struct batch *b)
{
	const ncclsvc_tensors *l = b->first->lists;
	if (l->missed_epoch == l->comm->epoch)
		return error_set(NCCLSVC_STALE_EPOCH,
				 "an earlier list ended with LIMIT and did not take its turn on "
				 "communicator %s: leave and join it again",
				 l->comm->label);
	if (b->epoch == l->comm->epoch && b->host_epoch == l->host->epoch)
		return NCCLSVC_OK;
	return error_set(NCCLSVC_STALE_EPOCH,
			 "the list belongs to an epoch of communicator %s that is over",
			 l->comm->label);
}

/* Submits this request alone, or with those behind it: all or nothing. */
static ncclsvc_result submit(struct ncclsvc_request *first, bool alone, unsigned stages)
{
	ncclsvc_session *s = first->lists->session;
	struct op few[OPS_FEW], *ops = few;
	unsigned n = 0, room = 0;
	ncclsvc_result result;
	for (struct ncclsvc_request *r = first; r; r = next_of(r, alone))
		room += OPS_EACH;
	if (room > OPS_FEW && !(ops = calloc(room, sizeof(*ops))))
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	session_lock(s);
	for (struct ncclsvc_request *r = first; r; r = next_of(r, alone))
		n += gather(r, stages, ops + n);
	result = check_epochs(first->batch);
	if (!result && n > SVC_GROUP_TASKS)
		result = error_argument("a group has at most %d tasks: these lists have %u",
					SVC_GROUP_TASKS, n);
	if (!result && n)
		result = ops_submit(s, ops, n);
	session_unlock(s);
	if (ops != few)
		free(ops);
	for (struct ncclsvc_request *r = first; !result && r; r = next_of(r, alone))
		submitted(r, stages);
	return result;
}

/* The same; if that fails, each request fails and submits its refusal on its own. False: the ring
 * is full. */
static bool submit_or_refuse(struct ncclsvc_request *first, bool alone, unsigned stages)
{
	ncclsvc_result result = submit(first, alone, stages);
	if (!result || result == NCCLSVC_AGAIN)
		return !result;
	for (struct ncclsvc_request *r = first; r; r = next_of(r, alone))
		request_fail(r, result);
	for (struct ncclsvc_request *r = first; r; r = next_of(r, alone)) {
		result = submit(r, true, stages);
		if (result == NCCLSVC_AGAIN)
			return false;
		if (result)
			request_waive(r);
	}
	return true;
}

/* ---- Batches ---- */

struct batch *batch_new(ncclsvc_tensors *l)
{
	struct batch *b = calloc(1, sizeof(*b));
	if (!b) {
		error_set(NCCLSVC_NO_MEMORY, "out of memory");
		return NULL;
	}
	session_lock(l->session);
	b->epoch = l->comm->epoch;
	b->host_epoch = l->host->epoch;
	session_unlock(l->session);
	return b;
}

void batch_close(struct batch *b)
{
	struct ncclsvc_request *next;
	for (struct ncclsvc_request *r = b->first; r; r = next) {
		next = r->next_in_batch;
		r->batch = NULL;
		if (r->result && r->nseen == r->ntasks)
			request_end(r, r->result);
		if (r->forgotten)
			request_drop(r);
	}
	free(b);
}

void batch_add(struct batch *b, struct ncclsvc_request *r)
{
	struct ncclsvc_request **at = &b->first;
	while (*at)
		at = &(*at)->next_in_batch;
	*at = r;
	r->batch = b;
	b->ahead = b->ahead || r->shapes == NCCLSVC_SHAPES_AHEAD;
}

static unsigned first_stages(const struct batch *b)
{
	return b->ahead ? AHEAD : AHEAD | DATA;
}

bool batch_begin(struct batch *b)
{
	b->begun = b->begun || submit_or_refuse(b->first, false, first_stages(b));
	return b->begun;
}

static bool any_ahead(const struct batch *b)
{
	for (const struct ncclsvc_request *r = b->first; r; r = r->next_in_batch)
		if (r->has_ahead)
			return true;
	return false;
}

bool batch_go_on(struct batch *b)
{
	bool ended = batch_begin(b), more = b->ahead;
	while (ended && more) {
		for (struct ncclsvc_request *r = b->first; r; r = r->next_in_batch)
			ended = request_step(r) && ended;
		more = any_ahead(b);
		if (ended && more)
			ended = submit_or_refuse(b->first, false, AHEAD);
	}
	return ended;
}

bool batch_submit_data(struct batch *b)
{
	return !b->ahead || submit_or_refuse(b->first, false, DATA);
}

/* ---- Of a task group ---- */

ncclsvc_result batch_check(const struct batch *b)
{
	ncclsvc_session *s = b->first->lists->session;
	session_lock(s);
	const ncclsvc_result result = check_epochs(b);
	session_unlock(s);
	return result;
}

ncclsvc_result batch_join(struct batch *b, struct thread_state *t)
{
	struct op ops[OPS_EACH];
	ncclsvc_result result = NCCLSVC_OK;
	for (struct ncclsvc_request *r = b->first; !result && r; r = r->next_in_batch) {
		const unsigned n = gather(r, first_stages(b), ops);
		for (unsigned i = 0; !result && i < n; i++)
			result = group_add(t, &ops[i]);
	}
	return result;
}

void batch_give_up(struct batch *b, ncclsvc_result result)
{
	for (struct ncclsvc_request *r = b->first; r; r = r->next_in_batch) {
		request_fail(r, result);
		request_waive(r);
	}
}

void batch_group_ended(struct batch *b, bool joined, ncclsvc_result result)
{
	b->begun = joined && !result;
	for (struct ncclsvc_request *r = b->first; r; r = r->next_in_batch)
		if (result)
			request_fail(r, result);
		else if (joined)
			submitted(r, first_stages(b));
}
