/* SPDX-License-Identifier: Apache-2.0
 * Task groups: operations kept until the thread ends its group. */
#include <stdlib.h>

#include "base/error.h"
#include "core/op.h"
#include "core/refusal.h"
#include "core/session_handle.h"
#include "core/thread.h"
#include "group.h"
#include "submit.h"

struct op *group_room(struct thread_state *t, ncclsvc_result *why)
{
	if (t->nops == t->room) {
		unsigned room = t->room ? 2 * t->room : 16;
		struct op *grown = realloc(t->ops, room * sizeof(*grown));
		if (!grown) {
			*why = error_set(NCCLSVC_NO_MEMORY, "out of memory");
			return NULL;
		}
		t->ops = grown;
		t->room = room;
	}
	return &t->ops[t->nops];
}

ncclsvc_result group_add(struct thread_state *t, const struct op *op)
{
	ncclsvc_result why = NCCLSVC_OK;
	struct op *room = group_room(t, &why);
	if (!room)
		return why;
	*room = *op;
	t->nops++;
	return NCCLSVC_OK;
}

void group_refuse(struct thread_state *t, ncclsvc_result why)
{
	if (t->refused)
		return;
	t->refused = why;
	error_keep(&t->refusal);
}

ncclsvc_result ncclsvc_group_begin(ncclsvc_session *s)
{
	if (!s)
		return error_argument("ncclsvc_group_begin: the session is NULL");
	struct thread_state *t = thread_own(s);
	if (!t) {
		session_lock(s);
		t = thread_make(s);
		session_unlock(s);
	}
	if (!t)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	if (t->grouping)
		return error_argument("this thread already has an open group: groups do not nest");
	t->grouping = true;
	t->nops = 0;
	t->lists = NULL;
	t->refused = NCCLSVC_OK;
	return NCCLSVC_OK;
}

/* Once for each run of operations of one communicator. */
static void tell_refusals(const struct thread_state *t)
{
	for (unsigned i = 0; i < t->nops; i++)
		if (!i || t->ops[i].comm != t->ops[i - 1].comm)
			refusal_tell(&t->ops[i]);
}

/* Locked; yields. */
static ncclsvc_result submit(ncclsvc_session *s, struct thread_state *t)
{
	ncclsvc_result r = NCCLSVC_OK;
	if (t->refused)
		return error_again(&t->refusal);
	if (t->lists && t->nops) {
		session_unlock(s);
		r = s->list_callbacks->join(t);
		session_lock(s);
	}
	return r || !t->nops ? r : ops_submit(s, t->ops, t->nops);
}

static ncclsvc_result end(ncclsvc_session *s, bool submits)
{
	session_lock(s);
	struct thread_state *t = thread_find(s);
	if (!t || !t->grouping) {
		session_unlock(s);
		return error_argument("this thread has no open group");
	}
	struct ncclsvc_tensors *lists = t->lists;
	const bool joined = t->nops;
	const ncclsvc_result r =
		submits ? submit(s, t)
			: error_set(NCCLSVC_CANCELLED, "the task group was abandoned");
	if (r && submits)
		tell_refusals(t);
	const bool withdrawn = !submits || r == NCCLSVC_AGAIN || r == NCCLSVC_BUSY;
	t->grouping = false;
	t->nops = 0;
	t->lists = NULL;
	thread_tidy(s, t);
	session_unlock(s);
	if (lists)
		s->list_callbacks->ended(lists, joined, withdrawn, r);
	return submits ? r : NCCLSVC_OK;
}

ncclsvc_result ncclsvc_group_end(ncclsvc_session *s)
{
	return s ? end(s, true) : error_argument("ncclsvc_group_end: the session is NULL");
}

ncclsvc_result ncclsvc_group_abandon(ncclsvc_session *s)
{
	return s ? end(s, false) : error_argument("ncclsvc_group_abandon: the session is NULL");
}
