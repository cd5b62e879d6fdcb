/* SPDX-License-Identifier: Apache-2.0
 * Lists in plans. Everything that a plan knows of a list is matched at the commit, so a static list
 * is one task, whose data fills its place. If the shapes go ahead, the announcement travels outside
 * the plan, and the data fills the place once the shapes are known. The announcements of one group
 * of the plan form one task group, in the order of their places; they are sent when all these lists
 * are present and all earlier groups are complete. So both sides match in any order of submission,
 * as if each group were preceded by a group of its announcements. (Sent one by one, three ranks
 * could wait for each other in a circle.) */
#include "planned.h"

#include "base/error.h"
#include "core/session.h"
#include "core/thread.h"
#include "proto/wire.h"
#include "request.h"

/* ---- Planning ---- */

static uint64_t digest_types(const struct list *l)
{
	uint64_t digest = digest_add(DIGEST_START, l->n);
	for (size_t i = 0; i < l->n; i++)
		digest = digest_add(digest, l->tensors[i].type);
	return digest;
}

/* Describes the plan's task for such a list. */
static ncclsvc_result describe(struct svc_plan_task *task, unsigned op, ncclsvc_shapes shapes,
			       int64_t tag, const ncclsvc_tensor *tensors, size_t n, int peer)
{
	struct list list;
	const bool ahead = shapes == NCCLSVC_SHAPES_AHEAD;
	ncclsvc_result r = shapes_check(shapes);
	if (!r)
		r = list_take(&list, tensors, n, ahead);
	if (r)
		return r;
	*task = (struct svc_plan_task){.op = (uint8_t)op,
				       .type = ahead ? 0 : NCCLSVC_UINT8,
				       .peer = peer,
				       .count = ahead ? SVC_PLAN_ANY : list.total,
				       .tag = tag};
	task->agreement = ahead ? agreement(AGREED_SHAPES, digest_types(&list))
				: agreement(AGREED_STATIC, digest_tensors(list.tensors, n));
	list_free(&list);
	return NCCLSVC_OK;
}

static ncclsvc_result plan(ncclsvc_plan *p, unsigned op, ncclsvc_shapes shapes, int64_t tag,
			   const ncclsvc_tensor *tensors, size_t n, int peer, const char *function)
{
	struct svc_plan_task task;
	ncclsvc_result r = describe(&task, op, shapes, tag, tensors, n, peer);
	if (!r && p && p->comm)
		r = peer_check(p->comm, peer, op == NCCLSVC_SEND);
	return r ? r : plan_add(p, &task, function);
}

ncclsvc_result ncclsvc_plan_tensors_send(ncclsvc_plan *p, ncclsvc_shapes shapes, int64_t tag,
					 const ncclsvc_tensor *tensors, size_t n, int peer)
{
	return plan(p, NCCLSVC_SEND, shapes, tag, tensors, n, peer, "ncclsvc_plan_tensors_send");
}

ncclsvc_result ncclsvc_plan_tensors_recv(ncclsvc_plan *p, ncclsvc_shapes shapes, int64_t tag,
					 const ncclsvc_tensor *tensors, size_t n, int peer)
{
	return plan(p, NCCLSVC_RECV, shapes, tag, tensors, n, peer, "ncclsvc_plan_tensors_recv");
}

/* ---- Running ---- */

static ncclsvc_result submit(struct ncclsvc_request *r)
{
	struct op op = r->data;
	op.task = r->result ? NULL : &r->tasks[r->ntasks];
	op.quiet = r->result;
	ncclsvc_result result = list_slot_submit(&r->slot, &op);
	if (op.entered)
		r->ntasks += !r->result;
	if (!result)
		r->has_data = r->owes_data = false;
	return result;
}

/* If its data cannot be submitted, the request fills its place with a refusal. False: the ring is
 * full. */
static bool submit_or_refuse(struct ncclsvc_request *r)
{
	ncclsvc_result result = r->has_data ? submit(r) : NCCLSVC_OK;
	if (result && result != NCCLSVC_AGAIN) {
		request_fail(r, result);
		result = submit(r);
	}
	if (result == NCCLSVC_AGAIN)
		return false;
	if (result) {
		list_slot_drop(&r->slot);
		request_waive(r);
	}
	return true;
}

/* The plan is over for these requests: nobody waits for their places. */
static void give_up(struct batch *b, ncclsvc_result result)
{
	for (struct ncclsvc_request *r = b->first; r; r = r->next_in_batch) {
		request_fail(r, result);
		request_waive(r);
	}
}

/* True: all data is in its place. */
static bool go_on(struct batch *b)
{
	bool all = true;
	ncclsvc_result turn = b->begun ? NCCLSVC_OK : list_slot_turn(&b->first->slot);
	if (turn == NCCLSVC_IN_PROGRESS)
		return false;
	if (turn) {
		give_up(b, turn);
		return true;
	}
	if (!batch_go_on(b))
		return false;
	for (struct ncclsvc_request *r = b->first; r; r = r->next_in_batch)
		all = submit_or_refuse(r) && all;
	return all;
}

void planned_go_on(ncclsvc_tensors *l)
{
	struct batch **at = &l->planned;
	while (*at) {
		struct batch *b = *at;
		if (go_on(b)) {
			*at = b->next;
			batch_close(b);
		} else {
			at = &b->next;
		}
	}
}

/* The batch of the request's group in this iteration. NULL: out of memory. */
static struct batch *batch_of(ncclsvc_tensors *l, const struct ncclsvc_request *r)
{
	const uint32_t group = list_slot_group(&r->slot);
	struct batch *b = l->planned;
	while (b && (b->group != group || b->iteration != r->slot.iteration))
		b = b->next;
	if (b || !(b = batch_new(l)))
		return b;
	b->group = group;
	b->iteration = r->slot.iteration;
	b->ahead = true;
	b->next = l->planned;
	l->planned = b;
	return b;
}

static ncclsvc_result join(struct ncclsvc_request *r)
{
	struct batch *b = batch_of(r->lists, r);
	if (!b)
		return NCCLSVC_NO_MEMORY;
	struct ncclsvc_request **at = &b->first;
	while (*at && (*at)->slot.index < r->slot.index)
		at = &(*at)->next_in_batch;
	r->next_in_batch = *at;
	*at = r;
	r->batch = b;
	return NCCLSVC_OK;
}

static ncclsvc_result begin(struct ncclsvc_request *r, ncclsvc_plan *plan, const ncclsvc_message *m,
			    const char *function)
{
	struct svc_plan_task task;
	const bool ahead = m->shapes == NCCLSVC_SHAPES_AHEAD;
	ncclsvc_result result = message_check(m, r->op == NCCLSVC_SEND);
	if (!result)
		result = describe(&task, r->op, m->shapes, m->tag, m->tensors, m->n, r->peer);
	if (!result)
		result = list_slot_take(plan, &r->slot, r->lists->comm, &task, r->stream.handle,
					function);
	if (!result)
		result = message_prepare(r, m);
	if (!result)
		result = ahead ? join(r) : submit(r);
	return result;
}

static ncclsvc_result call(ncclsvc_plan *plan, ncclsvc_tensors *l, const ncclsvc_message *m,
			   bool send, ncclsvc_request **out, const char *function)
{
	struct ncclsvc_request *r = NULL;
	if (!plan || !out)
		return error_argument("%s: the plan or the request is NULL", function);
	ncclsvc_result result = message_request(l, m, send, NCCLSVC_NO_TIMEOUT, true, &r);
	if (result)
		return result;
	r->planned = true;
	r->owes_ahead = m->shapes == NCCLSVC_SHAPES_AHEAD;
	r->owes_data = true;
	result = begin(r, plan, m, function);
	if (result) {
		request_end(r, result);
		request_drop(r);
		return result;
	}
	*out = r;
	planned_go_on(l);
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_plan_submit_tensors_send(ncclsvc_plan *plan, ncclsvc_tensors *lists,
						const ncclsvc_message *message,
						ncclsvc_request **request)
{
	return call(plan, lists, message, true, request, "ncclsvc_plan_submit_tensors_send");
}

ncclsvc_result ncclsvc_plan_submit_tensors_recv(ncclsvc_plan *plan, ncclsvc_tensors *lists,
						const ncclsvc_message *message,
						ncclsvc_request **request)
{
	return call(plan, lists, message, false, request, "ncclsvc_plan_submit_tensors_recv");
}
