/* SPDX-License-Identifier: Apache-2.0
 * Task groups: operations kept until the thread ends its group. */
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

ncclsvc_result group_add(struct thread_state *t, const struct op *op)
{
	if (t->nops == SVC_GROUP_TASKS)
		return error_argument("a group has at most %d tasks", SVC_GROUP_TASKS);
	if (t->nops == t->room) {
		unsigned room = t->room ? 2 * t->room : 16;
		struct op *grown = realloc(t->ops, room * sizeof(*grown));
		if (!grown)
			return error_set(NCCLSVC_NO_MEMORY, "out of memory");
		t->ops = grown;
		t->room = room;
	}
	t->ops[t->nops++] = *op;
	return NCCLSVC_OK;
}

void group_refuse(struct thread_state *t, ncclsvc_result why)
{
	if (t->refused)
		return;
	t->refused = why;
	snprintf(t->refusal, sizeof(t->refusal), "%s", ncclsvc_last_error());
}

ncclsvc_result ncclsvc_group_begin(ncclsvc_session *s)
{
	if (!s)
		return error_argument("ncclsvc_group_begin: the session is NULL");
	ncclsvc_result r = NCCLSVC_OK;
	session_lock(s);
	struct thread_state *t = thread_make(s);
	if (!t) {
		r = error_set(NCCLSVC_NO_MEMORY, "out of memory");
	} else if (t->grouping) {
		r = error_argument("this thread has begun a group already: groups do not nest");
	} else {
		t->grouping = true;
		t->nops = 0;
		t->refused = NCCLSVC_OK;
	}
	session_unlock(s);
	return r;
}

ncclsvc_result ncclsvc_group_end(ncclsvc_session *s)
{
	if (!s)
		return error_argument("ncclsvc_group_end: the session is NULL");
	ncclsvc_result r = NCCLSVC_OK;
	session_lock(s);
	struct thread_state *t = thread_find(s);
	if (!t || !t->grouping) {
		session_unlock(s);
		return error_argument("this thread has begun no group");
	}
	if (t->refused)
		r = error_set(t->refused, "%s", t->refusal);
	else if (t->nops)
		r = ops_submit(s, t->ops, t->nops);
	t->grouping = false;
	t->nops = 0;
	thread_tidy(s, t);
	session_unlock(s);
	return r;
}
