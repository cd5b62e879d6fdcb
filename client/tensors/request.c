/* SPDX-License-Identifier: Apache-2.0
 *
 * A list operation under way. It is made of tasks, some of which follow from what others brought;
 * it goes on whenever its owner looks.
 *
 * Its turns on the communicators are counted. If it ends before it has taken all of them, it takes
 * the rest by saying that it refuses: so the peers' tasks end, and the next lists match again. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/submit.h"
#include "core/comm.h"
#include "core/op.h"
#include "core/session.h"
#include "core/thread.h"
#include "cuda/gpu.h"
#include "nvtx.h"
#include "proto/names.h"
#include "proto/task.h"
#include "request.h"

#define TRIES  1000
#define NAP_NS 1000000

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
	r->due_data = 1;
	r->has_deadline = timeout_ms >= 0;
	r->deadline = deadline_in(timeout_ms);
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
	buffer_put(r->buffer);
	list_free(&r->list);
	list_free(&r->outputs);
	list_free(&r->allowed);
	free(r->parts);
	free(r->through);
	free(r->through_to);
	free(r->words);
	free(r);
}

/* ---- Submission ---- */

void request_op(struct ncclsvc_request *r, ncclsvc_comm *comm, unsigned op, const void *src,
		void *dst, uint64_t count, ncclsvc_type type, uint64_t word)
{
	r->ops[r->nops++] = (struct op){
		.record = {.op = (uint8_t)op,
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
}

static uint64_t timeout_of(const struct ncclsvc_request *r)
{
	if (!r->has_deadline)
		return r->lists->comm->timeout_ns;
	uint64_t now = now_ns();
	return now < r->deadline ? r->deadline - now : 1;
}

/* All that is prepared, or nothing. */
static ncclsvc_result submit(struct ncclsvc_request *r)
{
	ncclsvc_session *s = r->lists->session;
	ncclsvc_result result = NCCLSVC_OK;
	session_lock(s);
	const struct thread_state *t = thread_find(s);
	for (unsigned i = 0; !result && i < r->nops; i++) {
		struct op *op = &r->ops[i];
		op->task = &r->tasks[i];
		op->record.timeout_ns = timeout_of(r);
		result = op_check(op);
		if (!result && op->comm->device >= 0)
			result = stream_choose(op, t);
	}
	if (!result)
		result = ops_submit(s, r->ops, r->nops);
	session_unlock(s);
	if (result)
		return result;
	r->ntasks = r->nops;
	r->nseen = r->nops = 0;
	r->due_host = r->left_host;
	r->due_data = r->left_data;
	return NCCLSVC_OK;
}

static void set_result(struct ncclsvc_request *r, ncclsvc_result result)
{
	if (r->result || !result)
		return;
	r->result = result;
	error_keep(&r->why);
}

ncclsvc_result request_copy_out(struct ncclsvc_request *r, ncclsvc_task after)
{
	ncclsvc_result result = NCCLSVC_OK;
	uint64_t range = nvtx_start(r->peer < 0 ? "Memcpy" : "RecvMemcpy", r->tag, r->peer);
	if (r->nthrough)
		result = copy_through(r->lists, r->through, r->through_to, r->nthrough);
	if (!result && r->copies_out)
		result = copy_out(r->lists, r->buffer, r->parts, r->nparts, after, &r->event);
	r->copies_out = false;
	r->nthrough = 0;
	nvtx_stop(range);
	return result;
}

/* On a GPU, what comes is copied in stream order: at once, unless the caller waits for it anyhow.
 */
static ncclsvc_result submit_all(struct ncclsvc_request *r)
{
	ncclsvc_result result = submit(r);
	if (!result && on_gpu(r->lists) && !r->waited)
		set_result(r, request_copy_out(r, r->tasks[r->ntasks - 1]));
	return result;
}

/* What the other members are told. */
static uint64_t refusal_word(const struct ncclsvc_request *r)
{
	ncclsvc_session *s = r->lists->session;
	session_lock(s);
	const bool reasons = s->connection->version >= 2;
	session_unlock(s);
	return reasons ? svc_refusal(r->result, r->refusal) : SVC_AGREEMENT_REFUSED;
}

/* Takes the turns that are left, so that no other request waits for them. The results of these
 * tasks are ignored. */
static void refuse(struct ncclsvc_request *r)
{
	ncclsvc_task former[OPS_MAX];
	unsigned ntasks = r->ntasks, nseen = r->nseen;
	const uint64_t word = refusal_word(r);
	memcpy(former, r->tasks, sizeof(former));
	r->nops = r->left_host = r->left_data = 0;
	r->redop = NCCLSVC_SUM;
	for (; r->due_host; r->due_host--)
		request_op(r, r->lists->host, r->op, NULL, NULL, 0, NCCLSVC_UINT8, word);
	for (; r->due_data; r->due_data--)
		request_op(r, r->lists->comm, r->op, NULL, NULL, 0, NCCLSVC_UINT8, word);
	for (unsigned i = 0; i < r->nops; i++)
		r->ops[i].quiet = true;
	ncclsvc_result result = r->nops ? submit(r) : NCCLSVC_OK;
	for (int i = 0; result == NCCLSVC_AGAIN && i < TRIES; i++) {
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
		result = submit(r);
	}
	r->nops = 0;
	r->ntasks = ntasks;
	r->nseen = nseen;
	memcpy(r->tasks, former, sizeof(former));
}

/* ---- Ending ---- */

void request_end(struct ncclsvc_request *r, ncclsvc_result result)
{
	set_result(r, result);
	if (r->due_host || r->due_data)
		refuse(r);
	r->ended = true;
	r->undecided = false;
	buffer_put(r->buffer);
	r->buffer = NULL;
	nvtx_stop(r->range);
	r->range = 0;
}

static ncclsvc_result told(const struct ncclsvc_request *r)
{
	return r->result ? error_again(&r->why) : NCCLSVC_OK;
}

ncclsvc_result request_begin(struct ncclsvc_request *r, ncclsvc_result prepared)
{
	ncclsvc_result result = prepared;
	if (!result)
		result = submit_all(r);
	if (!result)
		return NCCLSVC_OK;
	if (result == NCCLSVC_AGAIN) /* as if it had never been */
		r->due_host = r->due_data = 0;
	request_end(r, result);
	result = told(r);
	request_drop(r);
	return result;
}

/* ---- Going on ---- */

/* IN_PROGRESS, or OK when all that was submitted has ended, well or not. */
static ncclsvc_result look(struct ncclsvc_request *r)
{
	for (; r->nseen < r->ntasks; r->nseen++) {
		ncclsvc_task task = r->tasks[r->nseen];
		ncclsvc_result result = ncclsvc_test(r->lists->session, task);
		if (result == NCCLSVC_IN_PROGRESS)
			return result;
		if (result)
			set_result(r, agreement_explain(r->lists->session, task, result));
	}
	return NCCLSVC_OK;
}

/* IN_PROGRESS, or OK when it has ended. */
static ncclsvc_result go_on(struct ncclsvc_request *r)
{
	while (!r->ended) {
		ncclsvc_result result = look(r);
		if (result == NCCLSVC_IN_PROGRESS)
			return result;
		if (r->event && (result = copy_done(r->lists, &r->event))) {
			if (result == NCCLSVC_IN_PROGRESS)
				return result;
			set_result(r, result);
		}
		if (!r->result && !r->nops)
			set_result(r, r->proceed(r));
		if (!r->result && r->event)
			continue; /* copies are under way */
		if (!r->result && r->nops) {
			result = submit_all(r);
			if (result == NCCLSVC_AGAIN)
				return NCCLSVC_IN_PROGRESS;
			set_result(r, result);
		}
		if (r->result && !r->ended)
			request_end(r, r->result);
	}
	return NCCLSVC_OK;
}

ncclsvc_result requests_finished(ncclsvc_tensors *l, int peer)
{
	for (struct ncclsvc_request *r = l->requests; r; r = r->next)
		if (r->undecided && (peer < 0 || r->peer == peer) && go_on(r) && r->undecided)
			return error_set(NCCLSVC_BUSY,
					 "a list with its shapes ahead is under way with rank %d: "
					 "wait for it first",
					 r->peer);
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_request_test(ncclsvc_request *r)
{
	if (!r)
		return error_argument("ncclsvc_request_test: the request is NULL");
	return go_on(r) ? NCCLSVC_IN_PROGRESS : told(r);
}

/* An event of copies has not ended since then; 0: this is the first look. */
static void await_event(struct ncclsvc_request *r, uint64_t *since)
{
	ncclsvc_session *s = r->lists->session;
	struct spin *spin = &r->lists->spin;
	const uint64_t now = now_ns();
	if (!*since) {
		*since = now;
		session_lock(s);
		spin_value(spin, s->spin.worth_ns);
		session_unlock(s);
	} else if (now - *since >= spin_budget_ns(spin, now)) {
		const uint64_t ns = spin_nap_ns(now - *since, SPIN_NAP_SHARE);
		nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
	}
}

ncclsvc_result ncclsvc_request_wait(ncclsvc_request *r, int timeout_ms)
{
	if (!r)
		return error_argument("ncclsvc_request_wait: the request is NULL");
	uint64_t deadline = deadline_in(timeout_ms), since = 0;
	while (go_on(r)) {
		int left = deadline_left_ms(deadline);
		if (!left)
			return error_set(NCCLSVC_TIMEOUT,
					 "the list has not ended within the time of "
					 "this wait; it goes on");
		if (r->nseen < r->ntasks) {
			ncclsvc_wait(r->lists->session, r->tasks[r->nseen], left);
			since = 0;
		} else {
			await_event(r, &since);
		}
	}
	if (since)
		spin_waited(&r->lists->spin, now_ns() - since);
	return told(r);
}

ncclsvc_result ncclsvc_request_free(ncclsvc_request *r)
{
	if (!r)
		return NCCLSVC_OK;
	if (go_on(r))
		return error_set(NCCLSVC_BUSY, "the list is under way: wait for it first");
	request_drop(r);
	return NCCLSVC_OK;
}

ncclsvc_result request_finish(struct ncclsvc_request *r)
{
	ncclsvc_result result = ncclsvc_request_wait(r, NCCLSVC_NO_TIMEOUT);
	request_drop(r);
	return result;
}
