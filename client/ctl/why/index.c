/* SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define SEARCH_STEPS 8 /* a binary search */

static int order_u64(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

static int order_place(uint64_t comm_a, int32_t rank_a, uint64_t comm_b, int32_t rank_b)
{
	int order = order_u64(comm_a, comm_b);
	return order ? order : (rank_a > rank_b) - (rank_a < rank_b);
}

static int by_queue(const void *pa, const void *pb)
{
	const ncclsvc_task_info *a = *(const ncclsvc_task_info *const *)pa;
	const ncclsvc_task_info *b = *(const ncclsvc_task_info *const *)pb;
	int order = order_place(a->comm, a->rank, b->comm, b->rank);
	if (!order)
		order = order_u64(a->seq, b->seq);
	return order ? order : order_u64(a->task, b->task);
}

static int by_session(const void *pa, const void *pb)
{
	const ncclsvc_member_info *a = *(const ncclsvc_member_info *const *)pa;
	const ncclsvc_member_info *b = *(const ncclsvc_member_info *const *)pb;
	int order = order_u64(a->session, b->session);
	return order ? order : order_place(a->comm, a->rank, b->comm, b->rank);
}

void why_index(struct why *w, const struct why_input *in, uint64_t *steps)
{
	const struct snapshot *s = in->s;
	*w = (struct why){.in = in, .s = s, .steps = steps};
	w->tasks = ctl_calloc(s->ntasks, sizeof(w->tasks[0]));
	for (size_t i = 0; i < s->ntasks; i++)
		if (task_is_pending(&s->tasks[i]))
			w->tasks[w->ntasks++] = &s->tasks[i];
	qsort(w->tasks, w->ntasks, sizeof(w->tasks[0]), by_queue);
	w->by_session = ctl_calloc(s->nmembers, sizeof(w->by_session[0]));
	for (size_t i = 0; i < s->nmembers; i++)
		w->by_session[i] = &s->members[i];
	qsort(w->by_session, s->nmembers, sizeof(w->by_session[0]), by_session);
	w->seen = ctl_calloc(s->nmembers, sizeof(w->seen[0]));
}

void why_index_free(struct why *w)
{
	free(w->tasks);
	free(w->by_session);
	free(w->seen);
}

const ncclsvc_task_info **why_tasks(const struct why *w, uint64_t comm, int32_t rank, size_t *n)
{
	size_t low = 0, high = w->ntasks;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const ncclsvc_task_info *t = w->tasks[middle];
		if (order_place(t->comm, t->rank, comm, rank) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	size_t end = low;
	while (end < w->ntasks && w->tasks[end]->comm == comm && w->tasks[end]->rank == rank &&
	       (end == low || w->tasks[end]->state != NCCLSVC_QUEUED))
		end++;
	*n = end - low;
	*w->steps += SEARCH_STEPS + *n;
	return w->tasks + low;
}

const ncclsvc_member_info *why_members(const struct why *w, uint64_t comm, size_t *n)
{
	const ncclsvc_member_info *m = snapshot_members(w->s, comm, n);
	*w->steps += SEARCH_STEPS + *n;
	return m;
}

const ncclsvc_member_info *why_member(const struct why *w, uint64_t comm, int32_t rank)
{
	*w->steps += SEARCH_STEPS;
	return snapshot_member(w->s, comm, rank);
}

const ncclsvc_member_info **why_memberships(const struct why *w, uint32_t session, size_t *n)
{
	size_t low = 0, high = w->s->nmembers;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (w->by_session[middle]->session < session)
			low = middle + 1;
		else
			high = middle;
	}
	size_t end = low;
	while (end < w->s->nmembers && w->by_session[end]->session == session)
		end++;
	*n = end - low;
	*w->steps += SEARCH_STEPS + *n;
	return w->by_session + low;
}

static const struct process unseen = {.state = PROCESS_UNSEEN, .cpu = -1};

const struct process *why_process(const struct why *w, const ncclsvc_member_info *m)
{
	const ncclsvc_session_info *s =
		m && m->elsewhere ? snapshot_session(w->s, m->session) : NULL;
	if (!m || (m->elsewhere && !s))
		return &unseen;
	return s ? &w->far[s - w->s->sessions] : why_look_at(w, m->pid, false);
}

const struct process *why_look_at(const struct why *w, int32_t pid, bool closely)
{
	return w->in->look && pid > 0 ? w->in->look(pid, closely, w->in->arg) : &unseen;
}
