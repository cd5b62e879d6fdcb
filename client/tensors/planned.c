/* SPDX-License-Identifier: Apache-2.0
 * Lists in plans. Everything that a plan knows of a list is matched at the commit, so a static list
 * is one task, whose data fills its slot. If the shapes go ahead, the announcement travels outside
 * the plan, and the data fills the slot once the shapes are known. The announcements of one group
 * of the plan form one task group, in the order of their slots; they are sent when all these lists
 * are present and all earlier groups are complete. So both sides match in any order of submission,
 * as if each group were preceded by a group of its announcements. (Sent one by one, three ranks
 * could wait for each other in a circle.) */
#include "planned.h"

#include "batch.h"
#include "list_request.h"

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

/* If its data cannot be submitted, the request fills its slot with a refusal. False: the ring is
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

/* True: all data is in its slot. */
static bool go_on(struct batch *b)
{
	bool all = true;
	ncclsvc_result turn = b->begun ? NCCLSVC_OK : list_slot_turn(&b->first->slot);
	if (turn == NCCLSVC_IN_PROGRESS)
		return false;
	if (turn) { /* the plan is over for these requests: no peer waits for their slots */
		batch_give_up(b, turn);
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

ncclsvc_result planned_begin(struct ncclsvc_request *r)
{
	return r->shapes == NCCLSVC_SHAPES_AHEAD ? join(r) : submit(r);
}
