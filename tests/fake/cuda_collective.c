/* SPDX-License-Identifier: Apache-2.0
 * The collective kernel of client/kernels, as its twin in C. All memory that the call names stays
 * mapped while the twin runs. */
#include <setjmp.h>

#include "fake.h"
#include "kernels/twin.h"

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

static bool reach_all(struct reached *r, struct peer_call *c)
{
	bool good =
		c->nranks <= PEER_RANKS && c->rank < c->nranks &&
		reach(r, &c->page, sizeof(struct peer_page)) &&
		reach_parts(r, &c->src, c->bytes, c->src_each, c->sends_to) &&
		reach_parts(r, &c->dst, c->bytes, c->reduces ? 0 : c->dst_each, c->receives_from);
	for (unsigned p = 0; good && p < c->nranks; p++)
		good = reach(r, &c->staging[p], PEER_STAGING);
	return good;
}

/* Of the thread's kernel. */
static _Thread_local const atomic_int *stopping;
static _Thread_local jmp_buf over;

static void rest(void)
{
	if (atomic_load(stopping))
		longjmp(over, 1);
}

static void twin_run(const struct peer_call *call, const atomic_int *stop)
{
	stopping = stop;
	ncclsvc_peer_rest = rest;
	if (!setjmp(over))
		ncclsvc_peer_collective(*call);
}

void collective_run(struct CUctx_st *context, const struct peer_call *call, const atomic_int *stop)
{
	struct reached reached = {.n = 0};
	struct peer_call here = *call;
	if (atomic_load(stop))
		return;
	if (reach_all(&reached, &here))
		twin_run(&here, stop);
	else
		fake_context_fault(context);
	while (reached.n)
		fake_unpin(&reached.pins[--reached.n]);
}
