/* SPDX-License-Identifier: Apache-2.0
 * Lists in plans: planning them, and submitting them (planned.c). */
#include "base/error.h"
#include "list_request.h"
#include "planned.h"

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

/* ---- Submitting ---- */

static ncclsvc_result begin(struct ncclsvc_request *r, ncclsvc_plan *plan, const ncclsvc_message *m,
			    const char *function)
{
	struct svc_plan_task task;
	ncclsvc_result result = message_check(m, r->op == NCCLSVC_SEND);
	if (!result)
		result = describe(&task, r->op, m->shapes, m->tag, m->tensors, m->n, r->peer);
	if (!result)
		result = list_slot_take(plan, &r->slot, r->lists->comm, &task, r->stream.handle,
					function);
	if (!result)
		result = message_prepare(r, m);
	if (!result)
		result = planned_begin(r);
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
