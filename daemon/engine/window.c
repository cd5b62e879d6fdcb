/* SPDX-License-Identifier: Apache-2.0
 *
 * Small collectives on lent memory, in NCCL's symmetric windows. A window is one allocation of each
 * member, all of one size, and NCCL's kernels for it need the same place in all of them. When a
 * communicator has used such allocations together a few times, and nothing of it flies, its
 * workers are asked to prepare a window, each by itself; if all could, to register it, each with
 * all others; and if all have, tasks use it from then on. What is asked goes through the workers'
 * queues, so that all have it at one place in the order of what is launched.
 *
 * A worker that registers waits for the others, as one does that makes a communicator, and the
 * supervisor asks for the latter by another way. So registering needs its permission: a turn.
 *
 * A window goes when one of its allocations does, or the epoch, or for one that is used more.
 */
#include <stdlib.h>
#include <utlist.h>

#include "names.h"
#include "state.h"
#include "worker/queue.h"

/* What lies in larger operations than this is faster without: 252 GB/s against 297 at 256 MiB. */
#define WINDOW_BYTES	(UINT64_C(1) << 20)
#define WINDOW_USES	4		     /* before it pays to register */
#define WINDOWS_SEEN	32		     /* that are counted */
#define WINDOW_FAILURES 3		     /* one after the other: then this machine has none */
#define TURN_NS		UINT64_C(2000000)    /* for what flies to land */
#define LEAVE_NS	UINT64_C(3000000000) /* for all that flies, before a window goes */

enum stage {
	SEEN,	  /* uses are counted */
	REFUSED,  /* the workers could not: not to be asked again */
	WANTED,	  /* from here on, it has a slot */
	PREPARED, /* by all workers */
	READY,
	LEAVING,
};

struct window {
	enum stage stage;
	bool refused; /* while leaving: why */
	uint32_t uses, flying;
	uint64_t since, used; /* in choices of the communicator */
	uint64_t left_ns;     /* since when it is leaving */
	uint64_t bytes;
	struct part {
		uint64_t lent; /* as in struct region */
		uint64_t base;
	} parts[]; /* by rank */
};

struct windows {
	struct windows *prev, *next;
	struct comm *comm;
	uint64_t choices;
	struct window *slots[WORKER_WINDOWS]; /* as the workers count them */
	struct window *seen[WINDOWS_SEEN];
	bool off;	  /* there will be no more */
	bool waits;	  /* for its turn */
	uint64_t turn_ns; /* since when it has it; 0: it has not */
	uint8_t asked;	  /* LAUNCH_*, of all workers, and not done by all; 0: nothing */
	uint32_t slot;
	uint64_t seqs[]; /* by rank: of the launch */
};

/* ---- Which tasks ---- */

/* As NCCL 2.28 has symmetric kernels: others would run as ever, and gain nothing. */
static bool has_kernel(const struct svc_record *r, uint32_t nranks)
{
	uint64_t bytes = r->count * svc_type_size(r->type); /* intake has checked that they fit */
	if (r->op != NCCLSVC_ALL_REDUCE)
		bytes *= nranks;
	if (!r->count || bytes > WINDOW_BYTES)
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

/* ---- Asking the workers ---- */

static void count_ready(const struct windows *w)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < WORKER_WINDOWS; i++)
		n += w->slots[i] && w->slots[i]->stage == READY;
	for (uint32_t k = 0; k < w->comm->nranks; k++)
		atomic_store_explicit(&w->comm->members[k].board->windows, n, memory_order_relaxed);
}

/* If a queue is full now, it will not be for long. */
static void ask(struct engine *e, struct windows *w, uint8_t what, uint32_t slot)
{
	struct comm *c = w->comm;
	const struct window *window = w->slots[slot];
	device_watch(e, c);
	for (uint32_t k = 0; k < c->nranks; k++)
		if (!device_has_room(e, &c->members[k]))
			return;
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct launch *l = device_next_launch(e, &c->members[k]);
		l->op = what;
		l->src = window->parts[k].base;
		l->count = window->bytes;
		l->src_window = (uint8_t)(slot + 1);
		w->seqs[k] = l->seq;
	}
	w->asked = what;
	w->slot = slot;
	device_ring(e);
}

static bool all_have_done(const struct engine *e, const struct windows *w)
{
	for (uint32_t k = 0; k < w->comm->nranks; k++)
		if (atomic_load_explicit(&device_progress(e, &w->comm->members[k])->completed,
					 memory_order_acquire) < w->seqs[k])
			return false;
	return true;
}

static bool all_could(const struct engine *e, const struct windows *w)
{
	for (uint32_t k = 0; k < w->comm->nranks; k++)
		if (atomic_load(&device_progress(e, &w->comm->members[k])->window) != WINDOW_GOOD)
			return false;
	return true;
}

static void end_turn(struct engine *e, struct windows *w)
{
	if (w)
		w->turn_ns = 0;
	e->met_new = true; /* what was held up meanwhile */
	engine_event(e, &(struct event){.kind = EVENT_WINDOW_OVER});
}

static void leave(const struct engine *e, struct window *w)
{
	if (w->stage != LEAVING)
		w->left_ns = e->now;
	w->stage = LEAVING;
}

static void leave_all(const struct engine *e, struct windows *w)
{
	w->off = true;
	for (uint32_t i = 0; i < WORKER_WINDOWS; i++)
		if (w->slots[i])
			leave(e, w->slots[i]);
}

/* Not to be tried again and again. */
static void keep_refused(struct windows *w, struct window *window)
{
	window->stage = REFUSED;
	window->used = w->choices;
	for (uint32_t i = 0; i < WINDOWS_SEEN; i++)
		if (!w->seen[i]) {
			w->seen[i] = window;
			return;
		}
	free(window);
}

static void finish(struct engine *e, struct windows *w)
{
	struct window *window = w->slots[w->slot];
	const uint8_t what = w->asked;
	const bool good = all_could(e, w);
	w->asked = 0;
	if (what == LAUNCH_REGISTER)
		end_turn(e, w);
	if (what == LAUNCH_REGISTER)
		e->windows_failed = good ? 0 : e->windows_failed + 1;
	if (what == LAUNCH_REGISTER && !good)
		leave_all(e, w); /* who knows what the others are worth */
	if (what == LAUNCH_DROP) {
		w->slots[w->slot] = NULL;
		if (window->refused)
			keep_refused(w, window);
		else
			free(window);
	} else if (!good) {
		window->refused = true;
		leave(e, window);
	} else if (window->stage != LEAVING) { /* an allocation may be gone meanwhile */
		window->stage = what == LAUNCH_PREPARE ? PREPARED : READY;
	}
	count_ready(w);
}

static void ask_turn(struct engine *e, struct windows *w)
{
	if (w->waits)
		return;
	w->waits = true;
	engine_event(e, &(struct event){.kind = EVENT_WINDOW_WANTED,
					.window = {w->comm->slot, w->comm->epoch}});
}

static bool ask_next(struct engine *e, struct windows *w, enum stage stage, uint8_t what)
{
	for (uint32_t i = 0; i < WORKER_WINDOWS; i++)
		if (w->slots[i] && w->slots[i]->stage == stage) {
			ask(e, w, what, i);
			return true;
		}
	return false;
}

static bool any_prepared(const struct windows *w)
{
	for (uint32_t i = 0; i < WORKER_WINDOWS; i++)
		if (w->slots[i] && w->slots[i]->stage == PREPARED)
			return true;
	return false;
}

/* While nothing flies. False: there is nothing to be done. */
static bool do_next(struct engine *e, struct windows *w)
{
	if (w->turn_ns && ask_next(e, w, PREPARED, LAUNCH_REGISTER))
		return true;
	if (w->turn_ns)
		end_turn(e, w);
	if (ask_next(e, w, LEAVING, LAUNCH_DROP) || ask_next(e, w, WANTED, LAUNCH_PREPARE))
		return true;
	if (any_prepared(w))
		ask_turn(e, w);
	return false;
}

/* While others fly, and may do so for long. */
static void drop_overdue(struct engine *e, struct windows *w)
{
	for (uint32_t i = 0; i < WORKER_WINDOWS && !w->asked; i++) {
		const struct window *at = w->slots[i];
		if (at && at->stage == LEAVING && !at->flying && e->now - at->left_ns > LEAVE_NS)
			ask(e, w, LAUNCH_DROP, i);
	}
}

bool window_step(struct engine *e, struct comm *c, bool flying)
{
	struct windows *w = c->windows;
	if (!w)
		return false;
	if (w->asked && !all_have_done(e, w))
		return true;
	if (w->asked)
		finish(e, w);
	/* What flies may wait for somebody's input, and others for the turn. */
	if (flying && w->turn_ns && e->now - w->turn_ns > TURN_NS)
		end_turn(e, w);
	/* The driver may wait for all that flies. */
	if (flying)
		drop_overdue(e, w);
	if (flying || do_next(e, w))
		return true;
	if (c->ended)
		window_free(e, c);
	return false;
}

void window_turn(struct engine *e, struct comm *c, uint32_t epoch)
{
	struct windows *w = c && c->epoch == epoch ? c->windows : NULL;
	if (!w) {
		end_turn(e, NULL);
		return;
	}
	w->waits = false;
	w->turn_ns = e->now;
	device_watch(e, c);
}

bool window_holds(const struct comm *c)
{
	return c->windows && c->windows->turn_ns;
}

/* ---- Choosing ---- */

static struct windows *make_windows(struct engine *e, struct comm *c)
{
	struct windows *w = calloc(1, sizeof(*w) + c->nranks * sizeof(w->seqs[0]));
	if (!w)
		return NULL;
	w->comm = c;
	c->windows = w;
	DL_APPEND(e->windowed, w);
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
		window->parts[k] = (struct part){r->lent, (uint64_t)(uintptr_t)r->base};
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
		leave(e, oldest);
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
	if (!e->config.windows || e->windows_failed >= WINDOW_FAILURES || c->span || c->ended ||
	    ntasks != c->nranks || ntasks < 2 || (w && w->off))
		return;
	if (!has_kernel(&tasks[0]->record, ntasks) || !alike(tasks, ntasks, false) ||
	    !alike(tasks, ntasks, true) || (!w && !(w = make_windows(e, c))))
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
	w->slots[src - 1]->flying += ntasks;
	w->slots[dst - 1]->flying += ntasks;
}

void window_land(const struct task *t)
{
	struct windows *w = t->comm->windows;
	if (!t->src_window)
		return;
	w->slots[t->src_window - 1]->flying--;
	w->slots[t->dst_window - 1]->flying--;
}

/* ---- Ending ---- */

void window_free(struct engine *e, struct comm *c)
{
	struct windows *w = c->windows;
	if (!w)
		return;
	if (w->turn_ns)
		end_turn(e, w);
	e->windows_failed += w->asked == LAUNCH_REGISTER; /* it never came to an end */
	for (uint32_t i = 0; i < WORKER_WINDOWS; i++)
		free(w->slots[i]);
	for (uint32_t i = 0; i < WINDOWS_SEEN; i++)
		free(w->seen[i]);
	DL_DELETE(e->windowed, w);
	free(w);
	c->windows = NULL;
}

void window_leave(struct engine *e, struct comm *c)
{
	struct windows *w = c->windows;
	bool any = false;
	if (!w)
		return;
	leave_all(e, w);
	count_ready(w);
	for (uint32_t i = 0; i < WORKER_WINDOWS; i++)
		any = any || w->slots[i];
	if (any)
		device_watch(e, c);
	else if (c->ended)
		window_free(e, c);
}

static bool has_part(const struct window *w, uint32_t n, uint64_t lent)
{
	for (uint32_t k = 0; w && k < n; k++)
		if (w->parts[k].lent == lent)
			return true;
	return false;
}

void window_region_gone(struct engine *e, const struct region *r)
{
	struct windows *w;
	if (!r->lent)
		return;
	DL_FOREACH (e->windowed, w) {
		const uint32_t n = w->comm->nranks;
		for (uint32_t i = 0; i < WINDOWS_SEEN; i++)
			if (has_part(w->seen[i], n, r->lent)) {
				free(w->seen[i]);
				w->seen[i] = NULL;
			}
		for (uint32_t i = 0; i < WORKER_WINDOWS; i++)
			if (has_part(w->slots[i], n, r->lent)) {
				leave(e, w->slots[i]);
				device_watch(e, w->comm);
			}
		count_ready(w);
	}
}
