/* SPDX-License-Identifier: Apache-2.0
 * Groups: a thread's calls between ncclGroupStart and the outermost ncclGroupEnd. */
#include <stdlib.h>

#include "nccl_group.h"

/* A thread's open group. On the heap, like struct thread_errors. */
struct group {
	struct operation *operations;
	unsigned noperations, room;
	struct start *starts, **starts_end;
};

static pthread_key_t key;
static _Thread_local struct group *mine; /* NULL before the thread's first */

bool group_is_open(void)
{
	return mine && thread_errors()->group_depth > 0;
}

static void drop_operations(const struct operation *operations, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		redop_release(&operations[i]);
		handle_unref(operations[i].comm);
	}
}

static void group_free(void *arg)
{
	struct group *g = arg;
	drop_operations(g->operations, g->noperations);
	free(g->operations);
	free(g);
	mine = NULL;
}

static void make_key(void)
{
	pthread_key_create(&key, group_free);
}

static struct group *group_get(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	if (mine)
		return mine;
	pthread_once(&once, make_key);
	mine = calloc(1, sizeof(*mine));
	if (mine)
		pthread_setspecific(key, mine);
	return mine;
}

ncclResult_t group_add_operation(const struct operation *operation)
{
	struct group *g = mine;
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
	if (!mine->starts)
		mine->starts_end = &mine->starts;
	*mine->starts_end = start;
	mine->starts_end = &start->next;
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
	struct thread_errors *e = thread_errors();
	if (!group_get())
		return fail(ncclSystemError, "out of memory");
	if (!e->group_depth++)
		e->group_failed = ncclSuccess;
	return ncclSuccess;
}
NCCL_ALIAS(ncclGroupStart);

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
	struct thread_errors *e = thread_errors();
	struct group *g = mine;
	if (!group_is_open())
		return fail(ncclInvalidUsage, "ncclGroupEnd: there is no open ncclGroupStart");
	if (--e->group_depth)
		return ncclSuccess;
	struct start *starts = g->starts;
	unsigned n = g->noperations;
	ncclResult_t r = e->group_failed;
	g->starts = NULL;
	g->noperations = 0; /* a thread that makes one group makes more, so keep the array */
	if (r) {
		fail(r, "%s", e->group_text);
		drop_starts(starts, r, e->group_text);
	} else {
		r = run(starts, g->operations, n);
	}
	drop_operations(g->operations, n);
	return r;
}
NCCL_ALIAS(ncclGroupEnd);

/* Only the daemon's NCCL can estimate how long a group takes. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
	if (!info || info->magic != NCCL_SIM_MAGIC)
		return fail(ncclInvalidArgument, "ncclGroupSimulateEnd: the info was not "
						 "initialized with NCCL_SIM_INFO_INITIALIZER");
	return fail(ncclInvalidUsage, "ncclGroupSimulateEnd: the daemon plans a group only when it "
				      "runs: time it, or use NCCL's own library");
}
NCCL_ALIAS(ncclGroupSimulateEnd);
