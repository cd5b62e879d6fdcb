/* SPDX-License-Identifier: Apache-2.0
 * The kernels of client/kernels, as their twins in C. All memory that the call names stays mapped
 * while the twin runs. */
#include <setjmp.h>
#include <string.h>

#include "fake.h"
#include "kernels/twin.h"

#define WARP 32

static const struct peer_kernel {
	const char *name;
	void (*run)(struct peer_call);
	unsigned threads;
	uint64_t staging; /* bytes */
} kernels[] = {
	{"ncclsvc_peer_collective", ncclsvc_peer_collective, PEER_THREADS, PEER_STAGING},
	{"ncclsvc_peer_bulk", ncclsvc_peer_bulk, PEER_BULK_THREADS, PEER_STAGING + PEER_BULK},
};

const struct peer_kernel *peer_kernel_find(const char *name)
{
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
		if (strcmp(kernels[i].name, name) == 0)
			return &kernels[i];
	return NULL;
}

void peer_kernel_check(const struct peer_kernel *kernel, unsigned blocks, unsigned threads,
		       const struct peer_call *call)
{
	if (blocks > PEER_BLOCKS || threads % WARP || threads < 2 * WARP ||
	    threads > kernel->threads + WARP)
		fake_die("a peer kernel of more blocks or threads than it has");
	if (!call->nranks || call->nranks > PEER_RANKS || call->rank >= call->nranks)
		fake_die("a peer kernel of a rank that there is not");
	if (kernel->run == ncclsvc_peer_collective &&
	    call->bytes > (uint64_t)PEER_SLOT_LINES(call->nranks) * PEER_LINE_DATA)
		fake_die("a peer kernel of more bytes than its slots have");
}

struct reached {
	struct fake_pin pins[PEER_RANKS + 3];
	unsigned n;
};

/* *p becomes the address that this process reads and writes. */
static bool reach(struct reached *r, uint64_t *p, uint64_t bytes)
{
	if (!fake_pin(&r->pins[r->n], *p, bytes))
		return false;
	*p = (uintptr_t)r->pins[r->n++].at;
	return true;
}

/* A buffer with a part for each of the ranks. */
static bool reach_parts(struct reached *r, uint64_t *p, uint64_t bytes, uint64_t each,
			unsigned ranks)
{
	if (!ranks || !bytes)
		return true;
	const unsigned first = (unsigned)__builtin_ctz(ranks);
	const unsigned last = 31 - (unsigned)__builtin_clz(ranks);
	uint64_t from = *p + first * each, span;
	if (__builtin_mul_overflow(each, last - first, &span) ||
	    __builtin_add_overflow(span, bytes, &span) || !reach(r, &from, span))
		return false;
	*p = from - first * each;
	return true;
}

static bool reach_all(struct reached *r, struct peer_call *c, uint64_t staging)
{
	bool good =
		reach(r, &c->page, sizeof(struct peer_page)) &&
		reach_parts(r, &c->src, c->bytes, c->src_each, c->sends_to) &&
		reach_parts(r, &c->dst, c->bytes, c->reduces ? 0 : c->dst_each, c->receives_from);
	for (unsigned p = 0; good && p < c->nranks; p++)
		good = reach(r, &c->staging[p], staging);
	return good;
}

/* Of the thread's kernel. */
static _Thread_local const atomic_int *stopping;
static _Thread_local jmp_buf over;
static _Thread_local unsigned rests;

/* Kernels that wait leave the processors, of which there may be fewer, to those that they wait for.
 */
static void rest(void)
{
	if (atomic_load(stopping))
		longjmp(over, 1);
	fake_pause(&rests);
}

/* A block depends on its like on the other ranks alone, so they may run in turn. */
static void blocks_run(const struct peer_kernel *kernel, unsigned blocks,
		       const struct peer_call *call)
{
	for (unsigned i = 0; i < blocks; i++) {
		ncclsvc_peer_block = (struct peer_block){i, blocks};
		kernel->run(*call);
	}
}

static void twin_run(const struct peer_kernel *kernel, unsigned blocks,
		     const struct peer_call *call, const atomic_int *stop)
{
	stopping = stop;
	rests = 0;
	ncclsvc_peer_rest = rest;
	if (!setjmp(over))
		blocks_run(kernel, blocks, call);
}

void peer_kernel_run(struct CUctx_st *context, const struct peer_kernel *kernel, unsigned blocks,
		     const struct peer_call *call, const atomic_int *stop)
{
	struct reached reached = {.n = 0};
	struct peer_call here = *call;
	if (atomic_load(stop))
		return;
	if (reach_all(&reached, &here, kernel->staging))
		twin_run(kernel, blocks, &here, stop);
	else
		fake_context_fault(context);
	while (reached.n)
		fake_unpin(&reached.pins[--reached.n]);
}
