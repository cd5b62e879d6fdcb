/* SPDX-License-Identifier: Apache-2.0
 *
 * Symmetric windows. Where the real library would compute something else, or hang, this one says
 * so: ranks must register alike and at one place among their operations; what is in windows must be
 * at the same place in those of all ranks; and a window goes only when nothing uses it, before its
 * memory does. */
#include <stdlib.h>

#include "nccl_fake.h"

#define LOOK_ROUNDS 256 /* between looks whether the others live */

struct ncclWindow_vidmem {
	struct ncclWindow_vidmem *next;
	struct ncclComm *comm;
	uint64_t number; /* from 1 */
	char *base;
	size_t bytes;
	atomic_uint uses; /* operations that are not over */
	bool symmetric;
};

static uint64_t mix(uint64_t history, uint64_t what)
{
	return (history ^ what) * UINT64_C(0x100000001b3) + 1;
}

/* An error that all ranks hear of. */
static ncclResult_t broken(struct ncclComm *c, const char *text)
{
	int none = ncclSuccess;
	atomic_compare_exchange_strong(&c->shared->error, &none, ncclInvalidUsage);
	return nccl_error(ncclInvalidUsage, "%s", text);
}

/* Memory of this process's own, which others can map. */
static ncclResult_t check_memory(void *p, size_t bytes, uint64_t *base_offset)
{
	struct fake_pin pin;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr base;
	size_t all;
	if (!fake_pin(&pin, (uintptr_t)p, bytes))
		return nccl_error(ncclInvalidArgument, "the window is no device memory");
	fake_unpin(&pin);
	if (fake_memory_imported((uintptr_t)p) || cuMemRetainAllocationHandle(&handle, p))
		return nccl_error(ncclUnhandledCudaError,
				  "cuMemExportToShareableHandle: CUDA error "
				  "1: the memory is not this process's");
	cuMemRelease(handle);
	if (cuMemGetAddressRange(&base, &all, (uintptr_t)p))
		return nccl_error(ncclUnhandledCudaError, "cuMemGetAddressRange");
	*base_offset = (uintptr_t)p - base;
	return *base_offset % 4096 ? nccl_error(ncclInvalidArgument, "the window is not aligned")
				   : ncclSuccess;
}

static bool alive(const struct member_slot *s)
{
	return !atomic_load(&s->gone) && fake_process_start(s->pid) == s->start;
}

/* All ranks have come as far. */
static ncclResult_t barrier(struct ncclComm *c)
{
	unsigned round = 0, looks = 0;
	for (int r = 0; r < c->nranks; r++) {
		const struct member_slot *s = &c->shared->slots[r];
		while (atomic_load(&s->windows) < c->registrations) {
			if (atomic_load(&c->aborted) || (++looks % LOOK_ROUNDS == 0 && !alive(s)))
				return nccl_error(ncclRemoteError, "rank %d closed the connection",
						  r);
			fake_pause(&round);
		}
	}
	return ncclSuccess;
}

static bool agree(const struct ncclComm *c)
{
	const struct window_call *first = &c->shared->slots[0].window_calls[c->registrations % 2];
	for (int r = 1; r < c->nranks; r++) {
		const struct window_call *w =
			&c->shared->slots[r].window_calls[c->registrations % 2];
		if (w->bytes != first->bytes || w->base_offset != first->base_offset ||
		    w->collectives != first->collectives || w->history != first->history)
			return false;
	}
	return true;
}

/* For all ranks: each waits for the others. */
ncclResult_t ncclCommWindowRegister(ncclComm_t c, void *p, size_t bytes, ncclWindow_t *window,
				    int flags)
{
	if (!c || !p || !window || !bytes || flags & ~NCCL_WIN_COLL_SYMMETRIC)
		return nccl_error(ncclInvalidArgument, "invalid window");
	*window = NULL;
	struct window_call call = {
		.bytes = bytes, .collectives = c->collectives, .history = c->window_history};
	ncclResult_t error = check_memory(p, bytes, &call.base_offset);
	if (error)
		return error;
	struct ncclWindow_vidmem *w = calloc(1, sizeof(*w));
	if (!w)
		return nccl_error(ncclSystemError, "out of memory");
	struct member_slot *self = &c->shared->slots[c->rank];
	self->window_calls[++c->registrations % 2] = call;
	atomic_store(&self->windows, c->registrations);
	error = barrier(c);
	if (!error && !agree(c))
		error = broken(c, "ranks register windows of different sizes, or in another order");
	if (!error && fake_fault("window-fail"))
		error = nccl_error(ncclSystemError, "the fault window-fail is on");
	if (error || fake_fault("window-none")) {
		free(w);
		return error;
	}
	*w = (struct ncclWindow_vidmem){.next = c->windows,
					.comm = c,
					.number = c->registrations,
					.base = p,
					.bytes = bytes,
					.symmetric = flags & NCCL_WIN_COLL_SYMMETRIC};
	c->windows = w;
	c->window_history = mix(c->window_history, w->number);
	*window = w;
	return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t c, ncclWindow_t window)
{
	struct ncclWindow_vidmem **link = c ? &c->windows : NULL;
	while (link && *link && *link != window)
		link = &(*link)->next;
	if (!window || !link || !*link)
		return nccl_error(ncclInvalidArgument, "invalid window");
	if (atomic_load(&window->uses))
		return broken(c, "a window is deregistered while operations use it");
	struct fake_pin pin;
	bool there = fake_pin(&pin, (uintptr_t)window->base, window->bytes);
	if (there)
		fake_unpin(&pin);
	*link = window->next;
	c->window_history = mix(c->window_history, ~window->number);
	free(window);
	return there ? ncclSuccess : broken(c, "a window's memory went before it");
}

void windows_forget(struct ncclComm *c)
{
	while (c->windows) {
		struct ncclWindow_vidmem *w = c->windows;
		c->windows = w->next;
		free(w);
	}
}

/* ---- Operations ---- */

static bool has_kernel(const struct call *call)
{
	switch (call->kind) {
	case NCCLSVC_ALL_GATHER:
		return true;
	case NCCLSVC_ALL_REDUCE:
	case NCCLSVC_REDUCE_SCATTER:
		return call->redop == NCCLSVC_SUM &&
		       (call->type == NCCLSVC_FLOAT16 || call->type == NCCLSVC_FLOAT32 ||
			call->type == NCCLSVC_BFLOAT16 || call->type == NCCLSVC_FLOAT8E4M3 ||
			call->type == NCCLSVC_FLOAT8E5M2);
	}
	return false;
}

static struct ncclWindow_vidmem *find(const struct ncclComm *c, const char *p)
{
	struct ncclWindow_vidmem *w = c->windows;
	while (w && !(w->symmetric && p >= w->base && p < w->base + w->bytes))
		w = w->next;
	return w;
}

void window_use(struct ncclComm *c, struct work *w)
{
	struct ncclWindow_vidmem *src = find(c, w->src), *dst = find(c, w->dst);
	if (c->nranks == 1 || !src || !dst || !has_kernel(&w->call))
		return;
	w->call.src_window = src->number;
	w->call.src_at = (uint64_t)(w->src - src->base);
	w->call.dst_window = dst->number;
	w->call.dst_at = (uint64_t)(w->dst - dst->base);
	w->windows[0] = src;
	w->windows[1] = dst;
	atomic_fetch_add(&src->uses, 1);
	atomic_fetch_add(&dst->uses, 1);
}

void window_again(const struct ncclComm *c, struct work *copy)
{
	const uint64_t numbers[] = {copy->call.src_window, copy->call.dst_window};
	for (int i = 0; i < 2 && numbers[i]; i++) {
		struct ncclWindow_vidmem *w = c->windows;
		while (w && w->number != numbers[i])
			w = w->next;
		if (!w)
			fake_die("a captured kernel is launched whose window is gone");
		copy->windows[i] = w;
		atomic_fetch_add(&w->uses, 1);
	}
}

void window_unuse(struct work *w)
{
	for (int i = 0; i < 2 && w->windows[i]; i++) {
		atomic_fetch_sub(&w->windows[i]->uses, 1);
		w->windows[i] = NULL;
	}
}
