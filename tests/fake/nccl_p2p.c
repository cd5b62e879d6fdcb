/* SPDX-License-Identifier: Apache-2.0
 * Sends and receives. Those of one group run concurrently; those from one rank to another run in
 * call order. */
#include <string.h>

#include "nccl_fake.h"

static size_t bytes_of(const struct work *w)
{
	return w->call.count * nccl_width(w->call.type);
}

/* Copies to (in) or from the pipe's ring at cursor `at`. */
static void ring_copy(char *ring, uint64_t at, char *data, size_t bytes, bool in)
{
	size_t start = at % PIPE;
	size_t first = bytes < PIPE - start ? bytes : PIPE - start;
	if (in) {
		memcpy(ring + start, data, first);
		memcpy(ring, data + first, bytes - first);
	} else {
		memcpy(data, ring + start, first);
		memcpy(data + first, ring, bytes - first);
	}
}

/* Returns whether it transferred any bytes. */
static bool send_step(struct launch *l, struct work *w)
{
	struct ncclComm *c = l->comm;
	struct pipe *p = shared_pipe(c, c->rank, w->call.root);
	size_t bytes = bytes_of(w);
	if (!w->begun) {
		uint64_t n = atomic_load(&p->announced);
		if (atomic_load_explicit(&p->acknowledged, memory_order_acquire) < n)
			return false;
		p->bytes = bytes;
		p->type = w->call.type;
		atomic_store_explicit(&p->announced, n + 1, memory_order_release);
		w->begun = true;
	}
	uint64_t written = atomic_load(&p->written);
	size_t room =
		PIPE - (size_t)(written - atomic_load_explicit(&p->read, memory_order_acquire));
	size_t n = bytes - w->at < room ? bytes - w->at : room;
	ring_copy(shared_pipe_bytes(c, c->rank, w->call.root), written, w->src_pin.at + w->at, n,
		  true);
	w->at += n;
	atomic_store_explicit(&p->written, written + n, memory_order_release);
	w->done = w->at == bytes;
	return n > 0;
}

static bool receive_step(struct launch *l, struct work *w)
{
	struct ncclComm *c = l->comm;
	struct pipe *p = shared_pipe(c, w->call.root, c->rank);
	size_t bytes = bytes_of(w);
	uint64_t number = atomic_load(&p->acknowledged) + 1;
	if (!w->begun) {
		if (atomic_load_explicit(&p->announced, memory_order_acquire) < number)
			return false;
		if (p->bytes != bytes || p->type != w->call.type) {
			launch_fail(l, ncclInvalidUsage);
			return false;
		}
		w->begun = true;
	}
	uint64_t read = atomic_load(&p->read);
	size_t there = (size_t)(atomic_load_explicit(&p->written, memory_order_acquire) - read);
	size_t n = bytes - w->at < there ? bytes - w->at : there;
	ring_copy(shared_pipe_bytes(c, w->call.root, c->rank), read, w->dst_pin.at + w->at, n,
		  false);
	w->at += n;
	atomic_store_explicit(&p->read, read + n, memory_order_release);
	w->done = w->at == bytes;
	if (w->done)
		atomic_store_explicit(&p->acknowledged, number, memory_order_release);
	return n > 0;
}

/* NULL for a collective, or if the peer is this rank. */
static struct pipe *pipe_of(const struct launch *l, const struct work *w, int *mine)
{
	const struct ncclComm *c = l->comm;
	const bool send = w->call.kind == NCCLSVC_SEND;
	*mine = send ? PIPE_SENDER : PIPE_RECEIVER;
	if ((!send && w->call.kind != NCCLSVC_RECV) || w->call.root == c->rank)
		return NULL;
	return send ? shared_pipe(c, c->rank, w->call.root) : shared_pipe(c, w->call.root, c->rank);
}

void p2p_connect(const struct launch *l)
{
	int mine;
	for (const struct work *w = l->works; w; w = w->next) {
		struct pipe *p = pipe_of(l, w, &mine);
		if (p && !(atomic_load(&p->connected) & mine))
			atomic_fetch_or(&p->connected, mine);
	}
}

ncclResult_t p2p_connected(const struct launch *l)
{
	int mine;
	for (const struct work *w = l->works; w; w = w->next) {
		const struct pipe *p = pipe_of(l, w, &mine);
		const struct member_slot *peer = &l->comm->shared->slots[w->call.root];
		for (unsigned round = 0;
		     p && atomic_load(&p->connected) != (PIPE_SENDER | PIPE_RECEIVER);) {
			if (atomic_load(&peer->gone) ||
			    fake_process_start(peer->pid) != peer->start)
				return nccl_error(ncclRemoteError, "rank %d closed the connection",
						  w->call.root);
			fake_pause(&round);
		}
	}
	return ncclSuccess;
}

bool p2p_run(struct launch *l)
{
	unsigned round = 0;
	for (;;) {
		bool moved = false, all = true;
		uint64_t sending = 0, receiving = 0; /* masks of busy ranks */
		for (struct work *w = l->works; w; w = w->next) {
			bool send = w->call.kind == NCCLSVC_SEND;
			uint64_t *busy = send ? &sending : &receiving;
			uint64_t bit = UINT64_C(1) << w->call.root;
			if ((!send && w->call.kind != NCCLSVC_RECV) || w->done || *busy & bit)
				continue;
			moved |= send ? send_step(l, w) : receive_step(l, w);
			if (!w->done) {
				*busy |= bit;
				all = false;
			}
			if (!launch_on(l))
				return false;
		}
		if (all && !sending && !receiving)
			return true;
		if (moved)
			round = 0;
		fake_pause(&round);
	}
}
