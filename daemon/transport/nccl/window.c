/* SPDX-License-Identifier: Apache-2.0
 *
 * Small collectives on lent memory, in NCCL's symmetric windows. A window is one allocation of each
 * member, all of one size, and NCCL's kernels for it need the same place in all of them. When a
 * communicator has used such allocations together a few times, and none of its tasks is in flight,
 * its workers are asked to prepare a window, each by itself; if all could, to register it, each
 * with all others; and if all have, tasks use it from then on. These requests go through the
 * workers' queues, at one place in the order of launches on all of them: a worker that registers
 * waits for the others.
 *
 * A window goes when one of its allocations does, or the epoch, or for one that is used more.
 */
#include <stdlib.h>
#include <utlist.h>

#include "names.h"
#include "task.h"
#include "window.h"

/* Larger operations are faster without windows: 297 GB/s instead of 252 at 256 MiB. */
#define WINDOW_BYTES (UINT64_C(1) << 20)
#define WINDOW_USES  4 /* before it pays to register */

/* ---- Which tasks ---- */

/* As NCCL 2.28 has symmetric kernels: others would run as ever, and gain nothing. */
static bool has_kernel(const struct svc_record *r, uint32_t nranks)
{
	if (!r->count || svc_task_bytes(r, nranks) > WINDOW_BYTES)
		return false;
	switch (r->op) {
	case NCCLSVC_ALL_GATHER:
		return true;
	case NCCLSVC_ALL_REDUCE:
	case NCCLSVC_REDUCE_SCATTER:
		return r->redop == NCCLSVC_SUM &&
		       (r->type == NCCLSVC_FLOAT16 || r->type == NCCLSVC_FLOAT32 ||
			r->type == NCCLSVC_BFLOAT16 || r->type == NCCLSVC_FLOAT8E4M3 ||
			r->type == NCCLSVC_FLOAT8E5M2);
	}
	return false;
}

static const struct region *region_of(const struct task *t, bool dst)
{
	return &t->session->regions[dst ? t->record.dst_region : t->record.src_region];
}

static bool any_refuses(struct task *const *tasks, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++)
		if (tasks[k]->record.flags & SVC_TASK_NO_WINDOW)
			return true;
	return false;
}

/* Lent memory, one place in all allocations, which are of one size. */
static bool alike(struct task *const *tasks, uint32_t n, bool dst)
{
	const struct region *first = region_of(tasks[0], dst);
	uint64_t at = dst ? tasks[0]->record.dst_offset : tasks[0]->record.src_offset;
	for (uint32_t k = 0; k < n; k++) {
		const struct svc_record *r = &tasks[k]->record;
		const struct region *g = region_of(tasks[k], dst);
		if (!g->lent || g->bytes != first->bytes ||
		    (dst ? r->dst_offset : r->src_offset) != at)
			return false;
	}
	return true;
}

/* Or at least within the same allocations. */
static bool in_place(struct task *const *tasks, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++)
		if (region_of(tasks[k], false) != region_of(tasks[k], true))
			return false;
	return true;
}

static bool is_of(const struct window *w, struct task *const *tasks, uint32_t n, bool dst)
{
	for (uint32_t k = 0; w && k < n; k++)
		if (w->parts[k].lent != region_of(tasks[k], dst)->lent)
			return false;
	return w;
}

/* ---- Choosing ---- */

static struct windows *make_windows(struct engine *e, struct comm *c)
{
	struct windows *w = calloc(1, sizeof(*w) + c->nranks * sizeof(w->seqs[0]));
	if (!w)
		return NULL;
	w->comm = c;
	c->windows = w;
	DL_APPEND(nccl_of(e)->windowed, w);
	return w;
}

/* Where the least recently used of those that are only counted was. */
static struct window **make_seen(struct windows *w, struct task *const *tasks, bool dst)
{
	const uint32_t n = w->comm->nranks;
	uint32_t oldest = 0;
	for (uint32_t i = 0; i < WINDOWS_SEEN && w->seen[oldest]; i++)
		if (!w->seen[i] || w->seen[i]->used < w->seen[oldest]->used)
			oldest = i;
	struct window *window = calloc(1, sizeof(*window) + n * sizeof(window->parts[0]));
	if (!window)
		return NULL;
	free(w->seen[oldest]);
	w->seen[oldest] = window;
	window->since = w->choices;
	window->bytes = region_of(tasks[0], dst)->bytes;
	for (uint32_t k = 0; k < n; k++) {
		const struct region *r = region_of(tasks[k], dst);
		window->parts[k] = (struct window_part){r->lent, (uint64_t)(uintptr_t)r->base};
	}
	return &w->seen[oldest];
}

/* Takes a slot: a free one, or soon that of a window that was not used as long as this was seen. */
static void want(const struct engine *e, struct windows *w, struct window **seen)
{
	struct window *oldest = NULL, *window = *seen;
	bool leaving = false;
	for (uint32_t i = 0; i < WORKER_WINDOWS; i++) {
		struct window *at = w->slots[i];
		if (!at) {
			w->slots[i] = window;
			window->stage = WANTED;
			*seen = NULL;
			return;
		}
		leaving = leaving || at->stage == LEAVING;
		if (at->stage == READY && (!oldest || at->used < oldest->used))
			oldest = at;
	}
	if (!leaving && oldest && oldest->used < window->since)
		window_go(e, oldest);
}

/* 1 + the slot of the window in which the tasks' memory lies; 0: none, or not yet. */
static uint8_t find(const struct engine *e, struct windows *w, struct task *const *tasks, bool dst)
{
	const uint32_t n = w->comm->nranks;
	struct window **seen = NULL;
	for (uint32_t i = 0; i < WORKER_WINDOWS; i++)
		if (is_of(w->slots[i], tasks, n, dst)) {
			w->slots[i]->used = w->choices;
			return w->slots[i]->stage == READY ? (uint8_t)(i + 1) : 0;
		}
	for (uint32_t i = 0; i < WINDOWS_SEEN && !seen; i++)
		if (is_of(w->seen[i], tasks, n, dst))
			seen = &w->seen[i];
	if (!seen && !(seen = make_seen(w, tasks, dst)))
		return 0;
	(*seen)->used = w->choices;
	(*seen)->uses++;
	if ((*seen)->stage == SEEN && (*seen)->uses >= WINDOW_USES)
		want(e, w, seen);
	return 0;
}

void window_choose(struct engine *e, struct comm *c, struct task *const *tasks, uint32_t ntasks)
{
	struct windows *w = c->windows;
	if (!c->may_window || nccl_of(e)->windows_failed >= WINDOW_FAILURES || c->internode ||
	    c->ended || ntasks != c->nranks || ntasks < 2 || (w && w->off))
		return;
	if (!has_kernel(&tasks[0]->record, ntasks) || any_refuses(tasks, ntasks) ||
	    !alike(tasks, ntasks, false) || !alike(tasks, ntasks, true) ||
	    (!w && !(w = make_windows(e, c))))
		return;
	w->choices++;
	uint8_t src = find(e, w, tasks, false);
	uint8_t dst = in_place(tasks, ntasks) ? src : find(e, w, tasks, true);
	if (!src || !dst)
		return;
	for (uint32_t k = 0; k < ntasks; k++) {
		tasks[k]->src_window = src;
		tasks[k]->dst_window = dst;
	}
	w->slots[src - 1]->in_flight += ntasks;
	w->slots[dst - 1]->in_flight += ntasks;
}

void window_completed(const struct task *t)
{
	struct windows *w = t->comm->windows;
	if (!t->src_window)
		return;
	w->slots[t->src_window - 1]->in_flight--;
	w->slots[t->dst_window - 1]->in_flight--;
}
