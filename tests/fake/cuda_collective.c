/* SPDX-License-Identifier: Apache-2.0
 * The kernels of client/kernels, as the CPU reference. All memory that the call names stays mapped
 * while a kernel runs. */
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <string.h>

#include "fake.h"
#include "kernels/cpu_ref.h"
#include "kernels/variant.h"

#define WARP 32

static void run_collective(const struct peer_messages *m)
{
	ncclsvc_peer_collective(m->call);
}

static void run_direct(const struct peer_messages *m)
{
	ncclsvc_peer_direct(m->call);
}

static void run_messages(const struct peer_messages *m)
{
	ncclsvc_peer_messages(*m);
}

static const struct peer_kernel {
	const char *name;
	void (*run)(const struct peer_messages *);
	size_t argument; /* bytes: every argument begins with a struct peer_call */
	unsigned threads;
	uint64_t staging;	   /* bytes */
	enum peer_variant variant; /* of ncclsvc_peer_direct */
} kernels[] = {{"ncclsvc_peer_collective", run_collective, sizeof(struct peer_call), PEER_THREADS,
		PEER_OFFERS, PEER_VARIANTS},
	       {"ncclsvc_peer_messages", run_messages, sizeof(struct peer_messages), PEER_THREADS,
		PEER_STAGING, PEER_VARIANTS},
#define DIRECT(name, variant)                                                                      \
	{"ncclsvc_peer_direct_" #name, run_direct, sizeof(struct peer_call),                       \
	 PEER_DIRECT_THREADS,	       PEER_RINGS, variant},
	       PEER_EACH_VARIANT(DIRECT)};

const struct peer_kernel *peer_kernel_find(const char *name)
{
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
		if (strcmp(kernels[i].name, name) == 0)
			return &kernels[i];
	return NULL;
}

static void messages_check(unsigned blocks, const struct peer_messages *m)
{
	unsigned parts = m->first[PEER_DIRS];
	if (m->call.nranks > 1 &&
	    m->call.channels > PEER_CHANNELS_OF(PEER_BLOCKS, (unsigned)m->call.nranks))
		fake_die("a peer kernel of more channels than it has rings");
	for (unsigned i = 0; i < PEER_DIRS; i++)
		if (m->first[i] > m->first[i + 1])
			parts = UINT_MAX;
	if (m->first[0] || parts > PEER_MESSAGES_MOST)
		fake_die("a peer kernel of messages whose parts are out of order");
	for (unsigned i = 0; i < blocks; i++) {
		const unsigned peer_dir = m->block[i] >> 4, channel = m->block[i] & 15;
		const unsigned peer = peer_dir % PEER_RANKS;
		const unsigned channels = peer == m->call.rank ? 1 : m->call.channels;
		if (peer >= m->call.nranks || channel >= channels)
			fake_die("a block of a peer kernel whose ring there is not");
		for (unsigned k = 0; k < i; k++)
			if (m->block[k] == m->block[i])
				fake_die("two blocks of a peer kernel have one ring");
	}
}

void peer_kernel_launch(const struct peer_kernel *kernel, unsigned blocks, unsigned threads,
			const void *argument, struct peer_messages *m)
{
	const struct peer_call *call = &m->call;
	memcpy(m, argument, kernel->argument);
	if (blocks > PEER_BLOCKS || threads % WARP || threads < 2 * WARP ||
	    threads > kernel->threads + WARP)
		fake_die("a peer kernel of more blocks or threads than it has");
	const struct peer_control *control = (const struct peer_control *)call->control;
	if (kernel->run != run_messages && control->blocks && blocks > control->blocks)
		fake_die("a peer kernel of more blocks than its communicator allows");
	if (!call->nranks || call->nranks > PEER_RANKS || call->rank >= call->nranks)
		fake_die("a peer kernel of a rank that there is not");
	if (kernel->run == run_messages)
		messages_check(blocks, m);
	if (kernel->run == run_direct && kernel->variant != peer_variant_of(call))
		fake_die("a peer kernel whose variant does not match the call");
	if (kernel->run == run_collective &&
	    call->bytes > (uint64_t)PEER_SLOT_LINES(call->nranks) * LL_LINE_DATA)
		fake_die("a peer kernel of more bytes than its slots have");
}

struct reached {
	struct fake_pin pins[PEER_RANKS + 3 + PEER_MESSAGES_MOST];
	unsigned n;
};

/* Replaces *p by the address at which this process accesses it. */
static bool reach(struct reached *r, uint64_t *p, uint64_t bytes)
{
	if (!fake_pin(&r->pins[r->n], *p, bytes))
		return false;
	*p = (uintptr_t)r->pins[r->n++].at;
	return true;
}

/* A buffer with one part per rank. */
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

static bool reach_buffers(struct reached *r, struct peer_call *c)
{
	return reach_parts(r, &c->src, c->bytes, c->src_each, c->sends_to) &&
	       reach_parts(r, &c->dst, c->bytes, c->reduces ? 0 : c->dst_each, c->receives_from);
}

static bool reach_messages(struct reached *r, struct peer_messages *m)
{
	bool good = true;
	for (unsigned i = 0; good && i < m->first[PEER_DIRS]; i++) {
		const uint64_t bytes = PEER_MESSAGE_BYTES(m->parts[i].header);
		good = !bytes || reach(r, &m->parts[i].at, bytes);
	}
	return good;
}

static bool reach_all(struct reached *r, const struct peer_kernel *kernel, struct peer_messages *m)
{
	struct peer_call *c = &m->call;
	bool good = reach(r, &c->control, sizeof(struct peer_control)) &&
		    (kernel->run == run_messages ? reach_messages(r, m) : reach_buffers(r, c));
	for (unsigned p = 0; good && p < c->nranks; p++)
		good = reach(r, &c->staging[p], kernel->staging);
	return good;
}

#define PEERS (2 * PEER_RANKS + PEER_MESSAGES_MOST) /* peers' buffers, which a block looks up */

struct block {
	struct CUctx_st *context;
	const struct peer_kernel *kernel;
	const struct peer_messages *argument;
	const atomic_int *stop;
	uint32_t number, of;
	pthread_t thread;
	struct fake_pin peers[PEERS];
	unsigned npeers;
};

/* The block that the thread runs. */
static _Thread_local struct block *running;
static _Thread_local jmp_buf over;
static _Thread_local unsigned rests;

/* Kernels that wait yield the CPUs, which may be few, to those they wait for. */
static void rest(void)
{
	if (atomic_load(running->stop))
		longjmp(over, 1);
	fake_pause(&rests);
}

static bool is_accessible(const struct fake_pin *pin)
{
	const struct range *range = pin->range;
	return range->kind != RANGE_ALLOC || range->device == running->context->device ||
	       atomic_load(&running->context->peers) >> range->device & 1;
}

/* The memory behind the address stays mapped until the block ends. */
static uint64_t peer_reach(uint64_t at)
{
	struct fake_pin *pin = &running->peers[running->npeers];
	if (running->npeers == PEERS)
		fake_die("a block of a peer kernel that accesses too many buffers");
	pin->range = NULL;
	const uint64_t replayed = table_replay(0); /* a graph may find memory newer than itself */
	if (fake_pin(pin, at, 1))
		running->npeers++;
	table_replay(replayed);
	if (pin->range && is_accessible(pin))
		return (uintptr_t)pin->at;
	fake_context_fault(running->context);
	longjmp(over, 1);
}

static void block_end(struct block *b)
{
	while (b->npeers)
		fake_unpin(&b->peers[--b->npeers]);
}

/* False: it was stopped. */
static bool block_run(struct block *b)
{
	running = b;
	rests = 0;
	ncclsvc_peer_rest = rest;
	ncclsvc_peer_reach = peer_reach;
	ncclsvc_peer_block = (struct peer_block){b->number, b->of};
	const bool good = !setjmp(over);
	if (good)
		b->kernel->run(b->argument);
	block_end(b);
	return good;
}

static void *block_main(void *arg)
{
	block_run(arg);
	return NULL;
}

/* A collective's block depends only on the same block of the other ranks, so blocks may run in
 * turn. */
static void blocks_in_turn(struct block *b)
{
	for (b->number = 0; b->number < b->of; b->number++)
		if (!block_run(b))
			return;
}

/* Blocks of messages must all progress independently. */
static void blocks_at_once(const struct block *first)
{
	struct block blocks[PEER_BLOCKS];
	for (uint32_t i = 0; i < first->of; i++) {
		blocks[i] = *first;
		blocks[i].number = i;
		if (pthread_create(&blocks[i].thread, NULL, block_main, &blocks[i]))
			fake_die("no thread for a kernel's block");
	}
	for (uint32_t i = 0; i < first->of; i++)
		pthread_join(blocks[i].thread, NULL);
}

void peer_kernel_run(struct CUctx_st *context, const struct peer_kernel *kernel, unsigned blocks,
		     const struct peer_messages *argument, const atomic_int *stop)
{
	struct reached reached = {.n = 0};
	struct peer_messages here = *argument;
	struct block first = {context, kernel, &here, stop, 0, blocks, 0, {{0}}, 0};
	if (atomic_load(stop))
		return;
	if (!reach_all(&reached, kernel, &here))
		fake_context_fault(context);
	else if (kernel->run == run_messages && blocks > 1)
		blocks_at_once(&first);
	else
		blocks_in_turn(&first);
	while (reached.n)
		fake_unpin(&reached.pins[--reached.n]);
}
