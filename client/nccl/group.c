/* SPDX-License-Identifier: Apache-2.0
 * Groups: a thread's calls between ncclGroupStart and the outermost ncclGroupEnd. */
#include <stdio.h>
#include <stdlib.h>

#include "group.h"

struct group {
	unsigned depth;
	ncclResult_t failed; /* the first refusal, for ncclGroupEnd */
	char text[1024];
	struct operation *operations;
	unsigned noperations, room;
	struct start *starts, **starts_end;
};

bool group_is_open(void)
{
	const struct group *g = own()->group;
	return g && g->depth;
}

static void drop_operations(const struct operation *operations, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		redop_release(&operations[i]);
		handle_unref(operations[i].comm);
	}
}

void group_free(struct group *g)
{
	if (!g)
		return;
	drop_operations(g->operations, g->noperations);
	free(g->operations);
	free(g);
}

void group_note(ncclResult_t result)
{
	if (!group_is_open() || !result || result == ncclInProgress)
		return;
	struct group *g = own()->group;
	if (g->failed)
		return;
	g->failed = result;
	snprintf(g->text, sizeof(g->text), "%s", last_sentence());
}

ncclResult_t group_add_operation(const struct operation *operation)
{
	struct group *g = own()->group;
	if (g->noperations == g->room) {
		unsigned room = g->room ? 2 * g->room : 16;
		struct operation *grown = realloc(g->operations, room * sizeof(*grown));
		if (!grown)
			return fail(ncclSystemError, "out of memory");
		g->operations = grown;
		g->room = room;
	}
	g->operations[g->noperations] = *operation;
	handle_ref(g->operations[g->noperations++].comm);
	return ncclSuccess;
}

static void add_start(struct start *start)
{
	struct group *g = own()->group;
	if (!g->starts)
		g->starts_end = &g->starts;
	*g->starts_end = start;
	g->starts_end = &start->next;
}

ncclResult_t group_begin_start(struct start *s)
{
	if (s->parent) {
		pthread_mutex_lock(&s->parent->lock);
		s->parent->pending++;
		pthread_mutex_unlock(&s->parent->lock);
	}
	if (s->out)
		*s->out = s->comm;
	if (!group_is_open())
		return starts_run(s);
	add_start(s);
	return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
	struct own *o = own();
	if (!o->group)
		o->group = calloc(1, sizeof(*o->group));
	if (!o->group)
		return fail(ncclSystemError, "out of memory");
	if (!o->group->depth++)
		o->group->failed = ncclSuccess;
	return ncclSuccess;
}
NCCL_TWIN(ncclGroupStart);

/* The starts fail together, as if they had never begun. */
static void drop_starts(struct start *list, ncclResult_t why, const char *text)
{
	while (list) {
		struct start *s = list;
		list = s->next;
		start_drop(s, why, text);
	}
}

/* The group is already closed: a failure in here is not recorded in it. */
static ncclResult_t run(struct start *starts, struct operation *operations, unsigned n)
{
	ncclResult_t r = starts ? starts_run(starts) : ncclSuccess;
	if (n && (!r || r == ncclInProgress)) {
		ncclResult_t submitted = operations_submit(operations, n);
		r = submitted ? submitted : r;
	}
	return r;
}

ncclResult_t ncclGroupEnd(void)
{
	struct group *g = own()->group;
	if (!g || !g->depth)
		return fail(ncclInvalidUsage, "ncclGroupEnd: there is no open ncclGroupStart");
	if (--g->depth)
		return ncclSuccess;
	struct start *starts = g->starts;
	unsigned n = g->noperations;
	ncclResult_t r = g->failed;
	g->starts = NULL;
	g->noperations = 0; /* a thread that makes one group makes more, so keep the array */
	if (r) {
		fail(r, "%s", g->text);
		drop_starts(starts, r, g->text);
	} else {
		r = run(starts, g->operations, n);
	}
	drop_operations(g->operations, n);
	return r;
}
NCCL_TWIN(ncclGroupEnd);

/* Only the daemon's NCCL can estimate how long a group takes. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
	if (!info || info->magic != NCCL_SIM_MAGIC)
		return fail(ncclInvalidArgument, "ncclGroupSimulateEnd: the info was not "
						 "initialized with NCCL_SIM_INFO_INITIALIZER");
	return fail(ncclInvalidUsage, "ncclGroupSimulateEnd: the daemon plans a group only when it "
				      "runs: time it, or use NCCL's own library");
}
NCCL_TWIN(ncclGroupSimulateEnd);
