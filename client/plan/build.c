/* SPDX-License-Identifier: Apache-2.0
 * Plans of a session, and planning, which is entirely local. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "member_plan.h"
#include "proto/names.h"

ncclsvc_result plan_usable(const ncclsvc_plan *p, const char *function)
{
	if (!p)
		return error_argument("%s: the plan is NULL", function);
	if (p->over)
		return error_argument("%s: the plan has been terminated", function);
	if (!p->comm)
		return error_argument("%s: the plan's communicator has been left", function);
	return NCCLSVC_OK;
}

ncclsvc_result plan_lock(ncclsvc_plan *p, const char *function)
{
	if (!p)
		return plan_usable(p, function);
	session_lock(p->session);
	p->calls++;
	session_back(p->session); /* the watcher commits it to the next daemon */
	ncclsvc_result r = plan_usable(p, function);
	if (r)
		plan_unlock(p);
	return r;
}

void plan_unlock(ncclsvc_plan *p)
{
	p->calls--;
	session_unlock(p->session);
}

void plan_free(ncclsvc_plan *p)
{
	bounces_free(p);
	free(p->tasks);
	free(p->first);
	free(p->missing);
	free(p->alike);
	free(p->full);
	free(p->numbers);
	free(p->orders);
	free(p);
}

static void leave(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	for (ncclsvc_plan *p = s->plans; p; p = p->next)
		if (p->comm == comm)
			p->comm = NULL;
	pthread_cond_broadcast(&s->changed); /* threads may wait for a launch */
}

static void free_all(ncclsvc_session *s)
{
	while (s->plans) {
		ncclsvc_plan *p = s->plans;
		s->plans = p->next;
		plan_free(p);
	}
}

static void copy_label(const ncclsvc_session *s, const struct slot *slot,
		       char label[NCCLSVC_LABEL_BYTES])
{
	const uint32_t index = slot->plan_slot - 1u;
	for (const ncclsvc_plan *p = s->plans; p; p = p->next)
		if (p->numbers && index < p->ntasks && p->numbers[index] == slot->number)
			memcpy(label, p->tasks[index].label, NCCLSVC_LABEL_BYTES);
}

static const struct plan_callbacks callbacks = {.comm_left = leave,
						.closing = free_all,
						.label = copy_label,
						.away = plans_away,
						.in_force = plan_in_force_on,
						.rests = plan_rests_on,
						.drop = plan_drop_on,
						.continues = plan_continues,
						.history = plans_history,
						.commit_again = plan_commit_again,
						.committed_again = plan_committed_again,
						.back = plans_back};

ncclsvc_result ncclsvc_plan_start(ncclsvc_comm *comm, ncclsvc_plan **plan)
{
	if (!comm || !plan)
		return error_argument("ncclsvc_plan_start: the communicator or plan is NULL");
	ncclsvc_plan *p = calloc(1, sizeof(*p));
	if (!p)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	ncclsvc_session *s = comm->session;
	p->session = s;
	p->comm = comm;
	session_lock(s);
	p->next = s->plans;
	s->plans = p;
	s->plan_callbacks = &callbacks;
	session_unlock(s);
	*plan = p;
	return NCCLSVC_OK;
}

static ncclsvc_result open_for_change(const ncclsvc_plan *p, const char *function)
{
	ncclsvc_result r = plan_usable(p, function);
	if (!r && p->phase != PLAN_OPEN)
		r = error_argument("%s: the plan has ended and cannot be changed", function);
	return r;
}

ncclsvc_result ncclsvc_plan_group_start(ncclsvc_plan *p)
{
	ncclsvc_result r = open_for_change(p, "ncclsvc_plan_group_start");
	if (r)
		return r;
	if (p->group_open)
		return error_argument(
			"ncclsvc_plan_group_start: group %u is still open: groups do not nest",
			p->ngroups - 1);
	if (p->ngroups == SVC_PLAN_TASKS)
		return error_set(NCCLSVC_LIMIT, "a plan has at most %d groups", SVC_PLAN_TASKS);
	p->ngroups++;
	p->group_open = true;
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_plan_group_end(ncclsvc_plan *p)
{
	ncclsvc_result r = open_for_change(p, "ncclsvc_plan_group_end");
	if (r)
		return r;
	if (!p->group_open)
		return error_argument("ncclsvc_plan_group_end: no group is open");
	p->group_open = false;
	return NCCLSVC_OK;
}

static ncclsvc_result grow(ncclsvc_plan *p)
{
	if (p->ntasks < p->room)
		return NCCLSVC_OK;
	uint32_t room = p->room ? 2 * p->room : 16;
	struct svc_plan_task *tasks = realloc(p->tasks, room * sizeof(*tasks));
	if (!tasks)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	p->tasks = tasks;
	p->room = room;
	return NCCLSVC_OK;
}

static uint32_t tasks_in_group(const ncclsvc_plan *p)
{
	uint32_t n = 0;
	while (n < p->ntasks && p->tasks[p->ntasks - 1 - n].group == p->ngroups - 1)
		n++;
	return n;
}

ncclsvc_result plan_add(ncclsvc_plan *p, const struct svc_plan_task *task, const char *function)
{
	ncclsvc_result r = open_for_change(p, function);
	if (r)
		return r;
	if (!p->group_open)
		return error_argument("%s: no group is open: call ncclsvc_plan_group_start first",
				      function);
	if (task->peer < 0 || task->peer >= p->comm->nranks)
		return error_argument("%s: the peer is %d: it must be a rank from 0 to %d",
				      function, task->peer, p->comm->nranks - 1);
	if (p->ntasks == SVC_PLAN_TASKS)
		return error_set(NCCLSVC_LIMIT, "a plan has at most %d tasks", SVC_PLAN_TASKS);
	if (p->ntasks >= SVC_GROUP_TASKS && tasks_in_group(p) >= SVC_GROUP_TASKS)
		return error_set(NCCLSVC_LIMIT, "a group has at most %d tasks", SVC_GROUP_TASKS);
	r = grow(p);
	if (r)
		return r;
	p->tasks[p->ntasks] = *task;
	p->tasks[p->ntasks++].group = p->ngroups - 1;
	return NCCLSVC_OK;
}

static ncclsvc_result add(ncclsvc_plan *p, unsigned op, size_t count, ncclsvc_type type, int peer,
			  const char *function)
{
	const bool any = count == NCCLSVC_PLAN_ANY;
	if (!any && !svc_type_size(type))
		return error_argument("%s: the element type %d is unknown", function, (int)type);
	return plan_add(p,
			&(struct svc_plan_task){.op = (uint8_t)op,
						.type = any ? 0 : (uint8_t)type,
						.peer = peer,
						.count = any ? SVC_PLAN_ANY : count},
			function);
}

ncclsvc_result ncclsvc_plan_send(ncclsvc_plan *plan, size_t count, ncclsvc_type type, int peer)
{
	return add(plan, NCCLSVC_SEND, count, type, peer, "ncclsvc_plan_send");
}

ncclsvc_result ncclsvc_plan_recv(ncclsvc_plan *plan, size_t count, ncclsvc_type type, int peer)
{
	return add(plan, NCCLSVC_RECV, count, type, peer, "ncclsvc_plan_recv");
}

ncclsvc_result ncclsvc_plan_label(ncclsvc_plan *p, const char *label)
{
	char text[NCCLSVC_LABEL_BYTES] = "";
	ncclsvc_result r = open_for_change(p, "ncclsvc_plan_label");
	if (r)
		return r;
	if (!p->ntasks)
		return error_argument("ncclsvc_plan_label: no task is planned yet");
	if (!label)
		return error_argument("ncclsvc_plan_label: the label is NULL");
	memcpy(text, label, strnlen(label, sizeof(text)));
	if (!svc_label_ok(text, sizeof(text)))
		return error_argument(
			"ncclsvc_plan_label: a label can have up to %d printable ASCII characters",
			NCCLSVC_LABEL_BYTES - 1);
	memcpy(p->tasks[p->ntasks - 1].label, text, sizeof(text));
	return NCCLSVC_OK;
}

/* ---- Ending the plan ---- */

int plan_compare_kinds(const struct svc_plan_task *a, const struct svc_plan_task *b)
{
	if (a->op != b->op)
		return a->op < b->op ? -1 : 1;
	if (a->peer != b->peer)
		return a->peer < b->peer ? -1 : 1;
	if (!a->agreement != !b->agreement)
		return a->agreement ? 1 : -1;
	if (svc_plan_is_ahead(a) != svc_plan_is_ahead(b))
		return svc_plan_is_ahead(a) ? 1 : -1;
	return a->tag < b->tag ? -1 : a->tag > b->tag;
}

static int by_kind(const void *pa, const void *pb, void *arg)
{
	const struct svc_plan_task *tasks = arg;
	const uint32_t i = *(const uint32_t *)pa, k = *(const uint32_t *)pb;
	const int order = plan_compare_kinds(&tasks[i], &tasks[k]);
	return order ? order : i < k ? -1 : i > k;
}

/* calloc(0) may return NULL. */
static void *array(size_t n, size_t size)
{
	return calloc(n ? n : 1, size);
}

ncclsvc_result plan_complete(ncclsvc_plan *p)
{
	if (p->group_open)
		return error_argument("ncclsvc_plan_end: group %u is open: end it first",
				      p->ngroups - 1);
	p->first = array((size_t)p->ngroups + 1, sizeof(*p->first));
	p->missing = array(p->ngroups, sizeof(*p->missing));
	p->alike = array(p->ntasks, sizeof(*p->alike));
	p->full = array(p->ntasks, sizeof(*p->full));
	p->numbers = array(p->ntasks, sizeof(*p->numbers));
	p->orders = array(p->ntasks, sizeof(*p->orders));
	if (!p->first || !p->missing || !p->alike || !p->full || !p->numbers || !p->orders) {
		free(p->first);
		free(p->missing);
		free(p->alike);
		free(p->full);
		free(p->numbers);
		free(p->orders);
		p->first = p->missing = p->alike = p->full = NULL;
		p->numbers = p->orders = NULL;
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	}
	for (uint32_t i = 0; i < p->ntasks; i++) {
		p->first[p->tasks[i].group + 1]++;
		p->alike[i] = i;
	}
	for (uint32_t g = 0; g < p->ngroups; g++)
		p->first[g + 1] += p->first[g];
	qsort_r(p->alike, p->ntasks, sizeof(*p->alike), by_kind, p->tasks);
	p->phase = PLAN_ENDED;
	return NCCLSVC_OK;
}

const char *kind_text(const struct svc_plan_task *t, char text[SLOT_TEXT])
{
	char label[SVC_QUOTED_BYTES];
	int n = snprintf(text, SLOT_TEXT, "%s%s %s rank %d", svc_op_name(t->op),
			 svc_label_quote(t->label, label), t->op == NCCLSVC_SEND ? "to" : "from",
			 t->peer);
	if (t->agreement)
		snprintf(text + n, SLOT_TEXT - (size_t)n, " of a list (%s, tag %lld)",
			 svc_plan_is_ahead(t) ? "shapes ahead" : "static shapes",
			 (long long)t->tag);
	return text;
}

const char *slot_text(const ncclsvc_plan *p, uint32_t slot, char text[SLOT_TEXT])
{
	const struct svc_plan_task *t = &p->tasks[slot];
	kind_text(t, text);
	const size_t n = strlen(text);
	snprintf(text + n, SLOT_TEXT - n, " in group %u", t->group);
	return text;
}
