/* SPDX-License-Identifier: Apache-2.0
 * Windows that come and go: what the workers are asked for, and when. window.c says which. */
#include <stdlib.h>
#include <utlist.h>

#include "base/timings.h"
#include "transport/device/device.h"
#include "window.h"

/* ---- Asking the workers ---- */

static void count_ready(const struct windows *w)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < WORKER_WINDOWS; i++)
		n += w->slots[i] && w->slots[i]->stage == READY;
	for (uint32_t k = 0; k < w->comm->nranks; k++)
		atomic_store_explicit(&w->comm->members[k].progress->windows, n,
				      memory_order_relaxed);
}

/* If a queue is full now, it will not be for long. */
static void ask(struct engine *e, struct windows *w, uint8_t what, uint32_t slot)
{
	struct comm *c = w->comm;
	const struct window *window = w->slots[slot];
	nccl_watch(e, c);
	for (uint32_t k = 0; k < c->nranks; k++)
		if (!device_room(&e->devices[c->members[k].device], 1))
			return;
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct launch *l = nccl_next_launch(e, &c->members[k]);
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
		if (atomic_load_explicit(&nccl_progress(e, &w->comm->members[k])->completed,
					 memory_order_acquire) < w->seqs[k])
			return false;
	return true;
}

static bool all_could(const struct engine *e, const struct windows *w)
{
	for (uint32_t k = 0; k < w->comm->nranks; k++)
		if (atomic_load(&nccl_progress(e, &w->comm->members[k])->window) != WINDOW_GOOD)
			return false;
	return true;
}

void window_go(const struct engine *e, struct window *w)
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
			window_go(e, w->slots[i]);
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
		nccl_of(e)->windows_failed = good ? 0 : nccl_of(e)->windows_failed + 1;
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
		window_go(e, window);
	} else if (window->stage != LEAVING) { /* an allocation may be gone meanwhile */
		window->stage = what == LAUNCH_PREPARE ? PREPARED : READY;
	}
	count_ready(w);
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

/* While nothing is in flight. False: there is nothing to be done. */
static bool do_next(struct engine *e, struct windows *w)
{
	return ask_next(e, w, PREPARED, LAUNCH_REGISTER) || ask_next(e, w, LEAVING, LAUNCH_DROP) ||
	       ask_next(e, w, WANTED, LAUNCH_PREPARE);
}

/* While other tasks are in flight, which may take long. */
static void drop_overdue(struct engine *e, struct windows *w)
{
	for (uint32_t i = 0; i < WORKER_WINDOWS && !w->asked; i++) {
		const struct window *at = w->slots[i];
		if (at && at->stage == LEAVING && !at->in_flight &&
		    e->now - at->left_ns > WINDOW_LEAVE_NS)
			ask(e, w, LAUNCH_DROP, i);
	}
}

bool window_step(struct engine *e, struct comm *c, bool in_flight)
{
	struct windows *w = c->windows;
	if (!w)
		return false;
	if (w->asked && !all_have_done(e, w))
		return true;
	if (w->asked)
		finish(e, w);
	/* The driver may wait for all tasks in flight. */
	if (in_flight)
		drop_overdue(e, w);
	if (in_flight || do_next(e, w))
		return true;
	if (c->ended)
		window_free(e, c);
	return false;
}

/* ---- Ending ---- */

void window_free(struct engine *e, struct comm *c)
{
	struct windows *w = c->windows;
	if (!w)
		return;
	nccl_of(e)->windows_failed += w->asked == LAUNCH_REGISTER; /* it never came to an end */
	for (uint32_t i = 0; i < WORKER_WINDOWS; i++)
		free(w->slots[i]);
	for (uint32_t i = 0; i < WINDOWS_SEEN; i++)
		free(w->seen[i]);
	DL_DELETE(nccl_of(e)->windowed, w);
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
		nccl_watch(e, c);
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
	DL_FOREACH (nccl_of(e)->windowed, w) {
		const uint32_t n = w->comm->nranks;
		for (uint32_t i = 0; i < WINDOWS_SEEN; i++)
			if (has_part(w->seen[i], n, r->lent)) {
				free(w->seen[i]);
				w->seen[i] = NULL;
			}
		for (uint32_t i = 0; i < WORKER_WINDOWS; i++)
			if (has_part(w->slots[i], n, r->lent)) {
				window_go(e, w->slots[i]);
				nccl_watch(e, w->comm);
			}
		count_ready(w);
	}
}

void window_finish(struct engine *e)
{
	while (nccl_of(e)->windowed)
		window_free(e, nccl_of(e)->windowed->comm);
}
