/* SPDX-License-Identifier: Apache-2.0 */
#include "captured_group.h"

#include <stdlib.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "base/session_memory.h"
#include "capture_graph.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "core/session_timeline.h"
#include "proto/names.h"
#include "proto/operation.h"

/* A group's operations on one communicator, which the daemon keeps for a graph. The graph's user
 * object holds it. */
struct captured_group {
	struct captured_group *next;
	struct capture *capture;
	uint32_t number;
	atomic_bool gone;	    /* the graph is gone */
	bool forgotten;		    /* the daemon is gone, or has forgotten the group */
	uint32_t kept_by;	    /* the connection to whose daemon it was last sent again */
	struct svc_record *records; /* those that the daemon keeps, for the next daemon */
	unsigned nrecords;
	unsigned nentries;
	uint16_t entries[]; /* of its operations' regions, from 1 */
};

static int by_comm(const void *a, const void *b)
{
	const struct op *x = a, *y = b;
	if ((x->comm->nranks == 1) != (y->comm->nranks == 1))
		return x->comm->nranks == 1 ? -1 : 1;
	if (x->route.stream_started != y->route.stream_started)
		return x->route.stream_started ? 1 : -1;
	if (x->comm->key != y->comm->key)
		return x->comm->key < y->comm->key ? -1 : 1;
	return x->route.group_index < y->route.group_index ? -1 : 1;
}

void captured_groups_sort(struct op *ops, unsigned n)
{
	qsort(ops, n, sizeof(*ops), by_comm);
}

/* How many operations outside graphs wait for their streams to start them, or run. */
static uint32_t pending_on(const ncclsvc_session *s, const struct capture *c)
{
	/* Timelines of another connection belong to other streams. */
	const uint32_t timeline = c->connections == session_connections(s) ? c->groups.timeline : 0;
	return timeline && s->timelines[timeline]->pending ? tasks_on_timeline(s, timeline) : 0;
}

/* ---- The end of captured groups ---- */

void captured_group_gone(void *arg)
{
	struct captured_group *group = arg;
	struct capture *c = group->capture;
	atomic_store_explicit(&group->gone, true, memory_order_release);
	atomic_fetch_add_explicit(&c->groups.gone, 1,
				  memory_order_release); /* this may be the last reference to c */
}

static void unpin(ncclsvc_session *s, struct captured_group *group)
{
	/* Entries of another table are other regions. */
	for (unsigned i = 0; i < group->nentries && group->capture->table == s->generation; i++)
		device_entry_unpin(s, group->entries[i]);
	group->nentries = 0;
	group->forgotten = true;
}

static void group_free(struct captured_group *group)
{
	free(group->records);
	free(group);
}

bool captured_groups_due(ncclsvc_session *s, struct capture *c, uint64_t clock)
{
	if (!c || c->groups.due_clock == clock)
		return c && c->groups.due;
	if (c->groups.swept != atomic_load_explicit(&c->groups.gone, memory_order_acquire))
		captured_groups_sweep(s, c);
	c->groups.due_clock = clock;
	c->groups.due = captured_groups_live(c) || pending_on(s, c);
	return c->groups.due;
}

#define UNANSWERED_MAX 64

void captured_groups_sweep(ncclsvc_session *s, struct capture *c)
{
	if (s->away) /* the watcher has the next daemon keep them again */
		return;
	/* If the socket has no room for a deletion, a later sweep sends it; also if its answer
	 * could take the room of an operation's answer, for which the daemon does not wait. */
	for (struct captured_group **link = &c->groups.first, *group; (group = *link);) {
		if (!atomic_load_explicit(&group->gone, memory_order_acquire)) {
			link = &group->next;
			continue;
		}
		if (!group->forgotten && c->connections == session_connections(s) && !s->lost &&
		    (s->forgotten >= UNANSWERED_MAX ||
		     !call_forget(s, SVC_CAPTURED_GROUP_DEL,
				  &(struct svc_captured_group_del){.timeline = c->groups.timeline,
								   .value = group->number})))
			return;
		unpin(s, group);
		*link = group->next;
		group_free(group);
		c->groups.swept++;
	}
}

void captured_groups_forget(ncclsvc_session *s, struct capture *c)
{
	for (struct captured_group *group = c->groups.first; group; group = group->next)
		if (!group->forgotten)
			unpin(s, group);
}

void captured_groups_free(struct capture *c)
{
	while (c->groups.first) {
		struct captured_group *group = c->groups.first;
		c->groups.first = group->next;
		group_free(group);
	}
	if (c->groups.page)
		atomic_fetch_or_explicit(&c->groups.page->given, UINT64_C(1) << c->groups.timeline,
					 memory_order_release);
	page_unref(c->groups.page);
}

/* ---- Keeping ---- */

/* Creates the member's timeline in this epoch. */
static ncclsvc_result timeline_make(ncclsvc_session *s, const ncclsvc_comm *comm, struct capture *c)
{
	struct gpu *g = s->gpu;
	struct svc_timeline *words;
	uint32_t timeline;
	if (c->groups.timeline)
		return NCCLSVC_OK;
	ncclsvc_result r = page_register(s, g, comm->device);
	if (!r)
		r = stream_timeline(s, g, &timeline);
	if (r)
		return r;
	words = stream_counters(g, timeline);
	CUresult e = cuda_push(c->cuda, c->context);
	if (!e) {
		e = c->cuda->cuMemHostGetDevicePointer(&c->groups.words, words, 0);
		cuda_pop(c->cuda, c->context);
	}
	if (e)
		return cuda_error(c->cuda, e, "the GPU cannot access the timelines");
	c->groups.timeline = timeline;
	c->groups.page = page_ref(g->page);
	s->timelines[timeline]->last =
		SVC_CAPTURED_GROUP_DEAD; /* the value that releases its streams */
	return NCCLSVC_OK;
}

/* Numbers of one graph are consecutive and exclusive to it. graph 0: in no graph. */
static uint32_t next_number(struct capture *c, uint32_t graph)
{
	const bool follows = graph && graph == c->groups.graph;
	c->groups.graph = graph;
	c->groups.newest += follows ? 1 : 2;
	if (c->groups.newest < 2) /* the counter has wrapped */
		c->groups.newest = 2;
	return c->groups.newest;
}

static struct captured_group *captured_group_new(ncclsvc_session *s, struct op *ops, unsigned n,
						 uint32_t graph)
{
	struct capture *c = ops->comm->capture;
	struct captured_group *group = malloc(sizeof(*group) + 2 * n * sizeof(group->entries[0]));
	struct svc_record *records = malloc(n * sizeof(*records));
	if (!group || !records) {
		free(group);
		free(records);
		return NULL;
	}
	*group = (struct captured_group){.next = c->groups.first,
					 .capture = c,
					 .number = next_number(c, graph),
					 .records = records};
	for (unsigned i = 0; i < 2 * n; i++) {
		const uint16_t entry = ops[i / 2].regions.entries[i % 2];
		if (!entry)
			continue;
		device_entry_pin(s, entry);
		group->entries[group->nentries++] = entry;
	}
	for (unsigned i = 0; i < n; i++) {
		ops[i].kept.number = group->number;
		ops[i].kept.group = group;
	}
	c->groups.first = group;
	return group;
}

static struct svc_timeline *words_of(const struct capture *c)
{
	return &c->groups.page->timelines[c->groups.timeline];
}

/* Locked; yields. */
static ncclsvc_result submit(ncclsvc_session *s, const struct svc_record *r)
{
	struct call call = {.fd = -1};
	return call_run(s, &call, SVC_SUBMIT, r, -1, deadline_in(REQUEST_MS));
}

/* Locked; yields. */
static ncclsvc_result send(ncclsvc_session *s, const struct op *op,
			   const struct capture_position *at)
{
	const struct capture *c = op->comm->capture;
	struct captured_group *group = op->kept.group;
	struct svc_record r = op->record;
	r.comm = op->comm->handle;
	r.epoch = op->comm->epoch;
	r.flags |= SVC_TASK_TIMELINE | SVC_TASK_CAPTURED_GROUP;
	r.timeline = c->groups.timeline;
	r.value = op->kept.number;
	r.graph = at->graph;
	r.graph_place = at->operation;
	atomic_store(&words_of(c)->captured_groups, SVC_CAPTURED_USED);
	const ncclsvc_result result = submit(s, &r);
	if (!result)
		group->records[group->nrecords++] = r;
	return result;
}

/* No graph will contain this group, but its number follows those of a graph, whose launches must
 * not reuse it. Keeps the last error. Locked; yields. */
static void take_back(ncclsvc_session *s, struct captured_group *group)
{
	const struct svc_captured_group_del request = {.timeline = group->capture->groups.timeline,
						       .value = group->number};
	struct call call = {.fd = -1};
	struct error why;
	error_keep(&why);
	if (!group->forgotten && group->capture->connections == session_connections(s))
		call_run(s, &call, SVC_CAPTURED_GROUP_DEL, &request, -1, deadline_in(REQUEST_MS));
	error_again(&why);
	if (!group->forgotten)
		unpin(s, group);
	captured_group_gone(group);
}

static ncclsvc_result keep(ncclsvc_session *s, struct op *ops, unsigned n)
{
	struct capture *c = ops->comm->capture;
	struct capture_position at;
	ncclsvc_result r = capture_position(ops, &at);
	struct captured_group *group = r ? NULL : captured_group_new(s, ops, n, at.graph);
	if (!group)
		return r ? r : error_set(NCCLSVC_NO_MEMORY, "out of memory");
	c->refs++;
	for (unsigned i = 0; !r && i < n; i++, at.operation++)
		r = send(s, &ops[i], &at);
	/* From here on it counts as a graph's: if something fails later, releasing its user object
	 * frees it. */
	atomic_fetch_add_explicit(&c->groups.made, 1, memory_order_release);
	if (r)
		take_back(s, group);
	capture_unref(c);
	return r;
}

void captured_groups_take_back(ncclsvc_session *s, const struct op *ops, unsigned n)
{
	for (unsigned i = 0; i < n; i += captured_group_run(&ops[i], n - i))
		take_back(s, ops[i].kept.group);
}

ncclsvc_result captured_groups_check(ncclsvc_session *s, const struct op *ops, unsigned n)
{
	if (!cuda_captures(s->gpu->cuda))
		return capture_unsupported();
	for (unsigned i = 0; i < n; i++) {
		/* By the time of a launch, another reduction with another scalar may have this
		 * number. */
		if (op_is_premulsum(&ops[i]))
			return error_set(
				NCCLSVC_UNSUPPORTED,
				"%s: premulsum on NCCL cannot be captured into a CUDA graph: "
				"scale the input in a kernel, then use sum",
				svc_op_name(ops[i].record.op));
	}
	return NCCLSVC_OK;
}

static ncclsvc_result keep_all(ncclsvc_session *s, struct op *ops, unsigned n)
{
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0; !r && i < n; i++) {
		struct capture *c = ops[i].comm->capture;
		captured_groups_sweep(s, c);
		r = timeline_make(s, ops[i].comm, c);
	}
	for (unsigned i = 0, k; !r && i < n; i += k) {
		k = captured_group_run(&ops[i], n - i);
		r = keep(s, &ops[i], k);
		if (r)
			captured_groups_take_back(s, ops, i);
	}
	return r;
}

ncclsvc_result captured_groups_keep(ncclsvc_session *s, struct op *ops, unsigned n)
{
	const int mode = relaxed_begin(s->gpu->cuda);
	ncclsvc_result r = keep_all(s, ops, n);
	relaxed_end(s->gpu->cuda, mode);
	return r;
}

/* ---- Outside graphs ---- */

/* Each puts five entries on its stream, whose queue holds about a thousand. */
#define PENDING_MAX 128

ncclsvc_result captured_group_prepare(ncclsvc_session *s, struct op *op)
{
	struct capture *c = op->comm->capture;
	op->capture = c;
	if (s->timelines[c->groups.timeline]->pending >= PENDING_MAX &&
	    pending_on(s, c) >= PENDING_MAX)
		return error_set(NCCLSVC_AGAIN,
				 "%d operations beside CUDA graphs are pending on "
				 "%s: wait for a task",
				 PENDING_MAX, op->comm->label);
	return NCCLSVC_OK;
}

void captured_groups_number(struct op *ops, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct capture *c = ops[i].capture;
		const bool first = !i || ops[i - 1].comm != ops[i].comm;
		ops[i].kept.group = NULL;
		ops[i].kept.number = first ? next_number(c, 0) : c->groups.newest;
		ops[i].record.timeline = c->groups.timeline;
		ops[i].record.value = ops[i].kept.number;
		ops[i].record.flags |= SVC_TASK_TIMELINE | SVC_TASK_CAPTURED_GROUP;
	}
}

/* ---- After a restart of the daemon ---- */

/* Whether the newest launch is still waiting on the GPU for its stream, so it has not begun. */
static bool waits_ahead(const struct svc_timeline *t, uint32_t launched)
{
	return atomic_load(&t->taken_launch) != launched &&
	       !(atomic_load(&t->ready) && !atomic_load(&t->go));
}

/* The daemon took the number, but launched nothing. */
static void start_again(struct svc_timeline *t, uint32_t taken)
{
	atomic_store(&t->go, 1);
	atomic_store(&t->ready, taken);
}

/* For a launch that ran before the daemon saw its number. Meanwhile the stream may write the next.
 */
static void forget_ran_ahead(struct svc_timeline *t)
{
	uint64_t ready = atomic_load(&t->ready);
	if (ready && !atomic_load(&t->go))
		atomic_compare_exchange_strong(&t->ready, &ready, 0);
}

bool captured_groups_settle(const struct capture *c, uint64_t *done)
{
	if (!c || !c->groups.timeline)
		return true;
	struct svc_timeline *t = words_of(c);
	const uint64_t launches = atomic_load(&t->launched);
	const uint32_t launched = (uint32_t)launches, ended = atomic_load(&t->ended);
	if (atomic_load(&t->done) >= SVC_CAPTURED_GROUP_DEAD)
		return false;
	if (launched == ended) {
		const uint32_t taken = atomic_load(&t->taken);
		if (taken && atomic_load(&t->taken_launch) == launched + 1)
			start_again(t, taken);
		else
			forget_ran_ahead(t);
	} else if (launched == ended + 1 && waits_ahead(t, launched)) {
		atomic_store(&t->launched, launches - 1);
		atomic_store(&t->did, atomic_load(&t->did_before));
	} else {
		return false;
	}
	atomic_store(&t->taken, 0);
	atomic_store(&t->taken_launch, atomic_load(&t->ended));
	*done += atomic_load(&t->did);
	return true;
}

bool captured_group_ran(const struct capture *c, uint64_t number)
{
	const struct svc_timeline *t = words_of(c);
	const uint32_t once = atomic_load(&t->once);
	return (uint32_t)atomic_load(&t->launched) == atomic_load(&t->ended) && once &&
	       (int32_t)(once - (uint32_t)number) >= 0;
}

static struct captured_group *next_to_keep(struct capture *c, uint32_t connections)
{
	struct captured_group *group = c->groups.first;
	while (group && (group->kept_by == connections || group->forgotten ||
			 atomic_load_explicit(&group->gone, memory_order_acquire)))
		group = group->next;
	return group;
}

/* *any: the daemon keeps some of it. */
static ncclsvc_result keep_again(ncclsvc_session *s, const ncclsvc_comm *comm,
				 const struct captured_group *group, bool *any)
{
	ncclsvc_result r = NCCLSVC_OK;
	const unsigned n = group->nrecords;
	struct svc_record *records = malloc((n ? n : 1) * sizeof(*records));
	if (!records)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	memcpy(records, group->records, n * sizeof(*records));
	for (unsigned i = 0; !r && i < n; i++) {
		records[i].epoch = comm->epoch;
		r = submit(s, &records[i]);
		*any |= !r;
	}
	free(records);
	return r;
}

ncclsvc_result captured_groups_again(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	struct capture *c = comm->capture;
	struct captured_group *group;
	const uint32_t connections = session_connections(s);
	ncclsvc_result r = NCCLSVC_OK;
	bool any = false;
	c->connections = connections;
	if (!c->groups.timeline)
		return NCCLSVC_OK;
	c->refs++;
	atomic_store(&words_of(c)->captured_groups, SVC_CAPTURED_PARTLY);
	while (!r && (group = next_to_keep(c, connections))) {
		group->kept_by = connections;
		r = keep_again(s, comm, group, &any);
	}
	if (r && !any) /* the daemon keeps none, so it will never release the timeline */
		atomic_store(&words_of(c)->captured_groups, SVC_CAPTURED_NONE);
	capture_unref(c);
	return r;
}

void captured_groups_go_on(const struct capture *c)
{
	if (c && c->groups.timeline)
		atomic_store(&words_of(c)->captured_groups, SVC_CAPTURED_USED);
}
