/* SPDX-License-Identifier: Apache-2.0
 * A list operation in progress. It consists of tasks, some of which depend on the results of
 * others. Its turns on the communicators are counted. If it ends before it has taken all of them,
 * it submits refusals for the rest, so that the peers' tasks end and the next lists match again. */
#include <stdlib.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "comm/submit.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "core/thread.h"
#include "list_request.h"
#include "profiler_ranges.h"
#include "proto/task.h"

struct ncclsvc_request *request_new(ncclsvc_tensors *l, uint8_t op, int peer, int timeout_ms)
{
	struct ncclsvc_request *r = calloc(1, sizeof(*r));
	if (!r) {
		error_set(NCCLSVC_NO_MEMORY, "out of memory");
		return NULL;
	}
	r->lists = l;
	r->op = op;
	r->peer = peer;
	r->owes_data = true;
	r->has_deadline = timeout_ms >= 0;
	r->deadline = deadline_in(timeout_ms);
	session_lock(l->session);
	const struct thread_state *t = thread_find(l->session);
	if (t)
		r->stream =
			(struct list_stream){t->stream, t->stream_flags & NCCLSVC_STREAM_DETACHED};
	session_unlock(l->session);
	l->stream = r->stream;
	r->next = l->requests;
	l->requests = r;
	return r;
}

void request_drop(struct ncclsvc_request *r)
{
	struct ncclsvc_request **at = &r->lists->requests;
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	list_slot_drop(&r->slot);
	buffer_put(r->buffer);
	list_free(&r->list);
	list_free(&r->outputs);
	list_free(&r->allowed);
	free(r->pieces);
	free(r->through);
	free(r->through_to);
	free(r->words);
	free(r);
}

/* ---- Preparing ---- */

static ncclsvc_result prepare(struct ncclsvc_request *r, struct op *op, ncclsvc_comm *comm,
			      const void *src, void *dst, uint64_t count, ncclsvc_type type,
			      uint64_t word)
{
	*op = (struct op){
		.record = {.op = r->op,
			   .type = (uint8_t)type,
			   .redop = (uint8_t)r->redop,
			   .flags = SVC_TASK_AGREE,
			   .peer = r->peer,
			   .count = count,
			   .agreement = word,
			   .tag = r->tag},
		.comm = comm,
		.src = src,
		.dst = dst,
	};
	if (comm->device >= 0) {
		op->stream = r->stream.handle;
		op->detached = r->stream.detached;
	}
	return op_check(op);
}

ncclsvc_result request_ahead(struct ncclsvc_request *r, const void *src, void *dst, uint64_t nwords,
			     uint64_t word)
{
	r->has_ahead = true;
	return prepare(r, &r->ahead, r->lists->host, src, dst, nwords, NCCLSVC_UINT64, word);
}

ncclsvc_result request_data(struct ncclsvc_request *r, const void *src, void *dst, uint64_t count,
			    ncclsvc_type type, uint64_t word)
{
	r->has_data = true;
	return prepare(r, &r->data, r->lists->comm, src, dst, count, type, word);
}

/* ---- Ending ---- */

static void set_result(struct ncclsvc_request *r, ncclsvc_result result)
{
	if (r->result || !result)
		return;
	r->result = result;
	error_keep(&r->why);
}

/* The refusal that the other members see. */
static uint64_t refusal_word(const struct ncclsvc_request *r)
{
	return refusal_describe(r->lists, svc_refusal(r->result, r->refusal), r->why.text);
}

void request_fail(struct ncclsvc_request *r, ncclsvc_result result)
{
	set_result(r, result);
	const uint64_t word = r->owes_ahead || r->owes_data ? refusal_word(r) : 0;
	r->redop = NCCLSVC_SUM; /* the caller's reduction may be unknown */
	r->has_ahead = r->has_data = false;
	if (r->owes_ahead)
		request_ahead(r, NULL, NULL, 0, word);
	if (r->owes_data)
		request_data(r, NULL, NULL, 0, NCCLSVC_UINT8, word);
}

void request_waive(struct ncclsvc_request *r)
{
	r->owes_ahead = r->owes_data = false;
	r->has_ahead = r->has_data = false;
}

void request_end(struct ncclsvc_request *r, ncclsvc_result result)
{
	set_result(r, result);
	r->ended = true;
	buffer_put(r->buffer);
	r->buffer = NULL;
	nvtx_stop(r->range);
	r->range = 0;
}

ncclsvc_result request_result(const struct ncclsvc_request *r)
{
	return r->result ? error_again(&r->why) : NCCLSVC_OK;
}

/* ---- Progress ---- */

/* The daemon has no room for the task, and no peer sees it, so later lists would match the wrong
 * ones. */
static void check_turn(const struct ncclsvc_request *r, ncclsvc_task task)
{
	ncclsvc_status st;
	ncclsvc_tensors *l = r->lists;
	if (ncclsvc_task_status(l->session, task, &st) || st.field == NCCLSVC_FIELD_REFUSAL)
		return;
	session_lock(l->session);
	l->missed_epoch = l->comm->epoch;
	session_unlock(l->session);
}

/* IN_PROGRESS, or OK when everything submitted has ended, successfully or not. */
static ncclsvc_result look(struct ncclsvc_request *r)
{
	for (; r->nseen < r->ntasks; r->nseen++) {
		ncclsvc_task task = r->tasks[r->nseen];
		ncclsvc_result result = ncclsvc_test(r->lists->session, task);
		if (result == NCCLSVC_IN_PROGRESS)
			return result;
		if (result == NCCLSVC_LIMIT)
			check_turn(r, task);
		if (result)
			request_fail(r, r->result ? result : agreement_explain(r, task, result));
	}
	return NCCLSVC_OK;
}

bool request_settled(const struct ncclsvc_request *r)
{
	return !r->has_ahead && r->nseen == r->ntasks &&
	       (r->has_data || (r->result && !r->owes_data));
}

bool request_step(struct ncclsvc_request *r)
{
	r->lists->stream = r->stream;
	while (!r->has_ahead && !request_settled(r)) {
		if (look(r))
			return false;
		if (r->result || r->has_data)
			continue;
		ncclsvc_result result = r->proceed(r);
		if (result)
			request_fail(r, result);
	}
	return true;
}

ncclsvc_result request_copy_out(struct ncclsvc_request *r, ncclsvc_task after)
{
	ncclsvc_result result = NCCLSVC_OK;
	uint64_t range = nvtx_start(r->peer < 0 ? "Memcpy" : "RecvMemcpy", r->tag, r->peer);
	if (r->nthrough)
		result = copy_through(r->lists, r->through, r->through_to, r->nthrough);
	if (!result && r->copies_out)
		result = copy_out(r->lists, r->buffer, r->pieces, r->npieces, after, &r->event);
	r->copies_out = false;
	r->nthrough = 0;
	nvtx_stop(range);
	return result;
}

ncclsvc_result request_close(struct ncclsvc_request *r)
{
	ncclsvc_result result;
	r->lists->stream = r->stream;
	while (!r->ended) {
		if (look(r))
			return NCCLSVC_IN_PROGRESS;
		result = copy_done(r->lists, &r->event);
		if (result == NCCLSVC_IN_PROGRESS)
			return result;
		if (!result && !r->result)
			result = r->proceed(r);
		set_result(r, result);
		if (r->result)
			request_end(r, r->result);
	}
	return NCCLSVC_OK;
}
