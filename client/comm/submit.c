/* SPDX-License-Identifier: Apache-2.0
 * Submission. A single operation is a group of one. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "base/frame.h"
#include "base/session_memory.h"
#include "core/comm_handle.h"
#include "core/dispatch.h"
#include "core/op.h"
#include "core/session_handle.h"
#include "core/session_socket.h"
#include "core/session_timeline.h"
#include "cuda/captured_group.h"
#include "cuda/peer_graph.h"
#include "cuda/session_gpu.h"
#include "cuda/shares.h"
#include "proto/names.h"
#include "ranks_on_gpu.h"
#include "submit.h"

#define SEND_MS 5000

/* Everything that can refuse the tasks, ordered so that nothing changes after the last check. */
static ncclsvc_result ready(ncclsvc_session *s, const struct op *ops, unsigned n)
{
	unsigned limit = s->options.no_ring ? SVC_SOCKET_TASKS : s->tasks.entries;
	if (limit > s->tasks.entries)
		limit = s->tasks.entries;
	if (n > limit)
		return error_argument("the group has %u tasks; the limit is %u", n, limit);
	ncclsvc_result r = tasks_room(s, n); /* first, because it yields */
	if (!r)
		r = session_check(s);
	for (unsigned i = 0; !r && i < n; i++) {
		uint32_t timeline = ops[i].record.timeline;
		if (timeline && !s->timelines[timeline])
			r = error_argument("the timeline has been destroyed");
		else
			r = comm_check(ops[i].comm);
		if (!r && ops[i].comm->peer && !peer_is_open(ops[i].comm->peer))
			r = error_set(NCCLSVC_STALE_EPOCH, "communicator %s is still being joined",
				      ops[i].comm->label);
		if (!r && ops[i].kernel && !ops[i].comm->peer)
			r = error_set(NCCLSVC_STALE_EPOCH, "communicator %s has a new epoch",
				      ops[i].comm->label);
	}
	return r;
}

static void release(ncclsvc_session *s, struct op *ops, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		if (ops[i].chunk)
			staging_put(s, ops[i].chunk);
		ops[i].chunk = NULL;
	}
}

/* Gets the chunks, then copies the sources without the lock. */
static ncclsvc_result stage(ncclsvc_session *s, struct op *ops, unsigned n)
{
	uint32_t generation = s->generation;
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0; !r && i < n; i++)
		if (ops[i].chunk_bytes)
			r = staging_get(s, ops[i].chunk_bytes, &ops[i].chunk);
	if (r)
		return r;
	session_unlock(s);
	for (unsigned i = 0; i < n; i++)
		if (ops[i].src_staged)
			memcpy(ops[i].chunk->base + ops[i].src_at, ops[i].src, ops[i].src_bytes);
	session_lock(s);
	r = ready(s, ops, n);
	if (!r && generation != s->generation)
		r = error_set(NCCLSVC_DAEMON_LOST, "the daemon was lost while a buffer was copied");
	return r;
}

static void finish_record(struct op *op, bool more)
{
	struct svc_record *r = &op->record;
	r->comm = op->comm->handle;
	r->epoch = op->comm->epoch;
	r->flags |= more ? SVC_TASK_MORE : 0;
	if (op->src_staged) {
		r->src_region = op->chunk->region;
		r->src_offset = op->src_at;
	}
	if (op->dst_staged) {
		r->dst_region = op->chunk->region;
		r->dst_offset = op->dst_at;
	}
}

/* The slot takes ownership of the chunk. entry: the task's place in the ring, or 0. */
static void enter(ncclsvc_session *s, struct op *op, uint64_t entry)
{
	struct tasks *t = &s->tasks;
	uint64_t number = t->next++;
	const struct svc_record *r = &op->record;
	struct slot *slot = &t->slots[number & (t->entries - 1)];
	slot->number = number;
	slot->entry = entry;
	slot->peer = NULL;
	slot->kernel_seq = 0;
	slot->state = SLOT_PENDING;
	slot->called_back = op->quiet;
	slot->quiet = op->quiet;
	slot->detached = op->detached;
	slot->spoiled = false;
	slot->op = r->op;
	slot->timeline = (uint8_t)r->timeline;
	slot->timeline_value = op->stream_started ? SVC_CAPTURED_GROUP_DEAD : r->value;
	slot->comm_key = op->comm->key;
	slot->epoch = op->comm->epoch;
	op->operation = slot->seq = op->comm->seq++;
	op->collective = op->comm->collectives;
	op->comm->collectives += !svc_op_is_p2p(r->op);
	slot->chunk = op->chunk;
	slot->in = op->src;
	slot->out = op->dst;
	slot->out_at = op->dst_at;
	slot->out_bytes = op->dst_staged ? op->dst_bytes : 0;
	slot->plan_slot = 0;
	op->chunk = NULL;
	op->entered = true;
	if (op->comm->peer)
		peer_enter(op, slot);
	if (r->timeline)
		s->timelines[r->timeline]->pending++;
	if (s->options.no_ring)
		t->running++;
	if (op->task)
		*op->task = number;
}

static int send_record(ncclsvc_session *s, const struct op *op)
{
	return frame_send(s->connection, SVC_SUBMIT, task_serial(s->tasks.next), &op->record, -1);
}

/* Once a group has begun, it must be sent completely, or the session is over. */
static ncclsvc_result send_all(ncclsvc_session *s, struct op *ops, unsigned n)
{
	struct pollfd p = {.fd = s->connection->sock, .events = POLLOUT};
	uint64_t deadline = deadline_in(SEND_MS);
	for (unsigned i = 0; i < n; i++) {
		int sent = send_record(s, &ops[i]);
		if (sent == -EAGAIN && !i)
			return error_set(NCCLSVC_AGAIN, "the daemon does not read its socket: wait "
							"for a task");
		while (sent == -EAGAIN && now_ns() < deadline) {
			poll(&p, 1, deadline_left_ms(deadline));
			sent = send_record(s, &ops[i]);
		}
		if (sent) {
			socket_pump(s);
			session_lose(s, "a task could not be sent to the daemon: %s",
				     strerrordesc_np(-sent));
			return session_check(s);
		}
		enter(s, &ops[i], 0);
	}
	return NCCLSVC_OK;
}

static void publish_all(ncclsvc_session *s, struct op *ops, unsigned n)
{
	const uint64_t first = s->tasks.entered + 1;
	for (unsigned i = 0; i < n; i++)
		ring_publish(s->connection, first + i, &ops[i].record);
	ring_doorbell(s->connection);
	/* The daemon already works meanwhile; nobody can look for the tasks' ends without the lock.
	 */
	for (unsigned i = 0; i < n; i++)
		enter(s, &ops[i], first + i);
	s->tasks.entered += n;
}

/* ---- Kernels ---- */

/* Puts the operations of the ring first. Kernels follow in an order that is the same on all ranks,
 * whatever else is in their groups; otherwise kernels on one stream could wait for each other
 * across ranks. */
static int by_transport(const void *a, const void *b)
{
	const struct op *x = a, *y = b;
	if (!x->kernel != !y->kernel)
		return x->kernel ? 1 : -1;
	if (x->kernel && x->comm->uid != y->comm->uid)
		return x->comm->uid < y->comm->uid ? -1 : 1;
	if (x->kernel && x->comm->rank != y->comm->rank) /* one session can have several ranks */
		return x->comm->rank < y->comm->rank ? -1 : 1;
	const bool message = svc_op_is_p2p(x->record.op);
	if (x->kernel && message != svc_op_is_p2p(y->record.op))
		return message ? 1 : -1;
	if (x->turn != y->turn)
		return x->turn < y->turn ? -1 : 1;
	return x->group_index < y->group_index ? -1 : 1;
}

/* A message in a kernel may be needed on another rank before an NCCL message can end. */
static void beside_nccl_choose(struct op *ops, unsigned in_ring, unsigned n)
{
	bool any = false;
	for (unsigned i = 0; i < in_ring; i++)
		any = any || svc_op_is_p2p(ops[i].record.op);
	for (unsigned i = in_ring; i < n; i++)
		ops[i].beside_nccl = any && svc_op_is_p2p(ops[i].record.op);
}

/* Chooses each operation's transport, and moves those of the ring to the front. Returns their
 * number. */
static unsigned choose(struct op *ops, unsigned n)
{
	unsigned in_ring = 0;
	for (unsigned i = 0; i < n; i++) {
		ops[i].kernel = (uint8_t)peer_choose(&ops[i]);
		ops[i].group_index = i;
		ops[i].turn = ops[i].slice = 0;
		ops[i].beside_nccl = false;
		in_ring += !ops[i].kernel;
	}
	if (n > 1 && in_ring < n) {
		peer_turns(ops, n);
		qsort(ops, n, sizeof(*ops), by_transport);
		beside_nccl_choose(ops, in_ring, n);
	}
	return in_ring;
}

static ncclsvc_result prepare_kernels(ncclsvc_session *s, struct op *ops, unsigned n)
{
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0; !r && i < n; i++)
		r = peer_prepare(s->gpu, &ops[i]);
	return r;
}

/* Shares the buffers of the kernels, which are behind the first in_ring of the n operations. */
static ncclsvc_result share_buffers(ncclsvc_session *s, struct op *ops, unsigned in_ring,
				    unsigned n)
{
	uint64_t since = 0;
	bool finished = false;
	ncclsvc_result r = NCCLSVC_OK;
	while (!r && !finished) {
		r = shares_prepare(s, ops + in_ring, n - in_ring, &since, &finished);
		if (!r && !finished)
			r = ready(s, ops, n);
	}
	return r;
}

/* Returns how many of them are captured: all or none, otherwise sets *r. */
static unsigned count_captured(const struct op *ops, unsigned n, ncclsvc_result *r)
{
	unsigned captured = 0;
	for (unsigned i = 0; i < n; i++)
		captured += ops[i].captured;
	if (captured && captured < n && !*r)
		*r = error_argument("a group mixes operations on streams that are being captured "
				    "into a CUDA graph with operations on other streams");
	return captured;
}

static ncclsvc_result put_kernels(struct op *ops, unsigned n,
				  ncclsvc_result (*put)(const struct op *ops, unsigned n))
{
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0, k; i < n; i = k) {
		for (k = i + 1; k < n && ops[k].joined;)
			k++;
		const ncclsvc_result each = put(&ops[i], k - i);
		r = r ? r : each;
	}
	return r;
}

static void join_kernels(struct op *ops, unsigned n)
{
	for (unsigned i = 0; i < n;)
		i += peer_join(&ops[i], n - i);
}

/* CUDA blocks a launch while the stream's queue is full, so the lock is not held. */
static ncclsvc_result launch_kernels(ncclsvc_session *s, struct op *ops, unsigned n)
{
	join_kernels(ops, n);
	for (unsigned i = 0; i < n; i++) {
		enter(s, &ops[i], 0);
		ops[i].peer->refs++;
	}
	dispatch_tick(s);
	session_unlock(s);
	ncclsvc_result r = put_kernels(ops, n, peer_launch);
	session_lock(s);
	for (unsigned i = 0; i < n; i++)
		peer_unref(ops[i].peer);
	return r;
}

/* The first in_ring operations go to NCCL. Captured operations are not tasks. */
static ncclsvc_result capture(ncclsvc_session *s, struct op *ops, unsigned in_ring, unsigned n)
{
	const unsigned kernels = n - in_ring;
	ncclsvc_result r = NCCLSVC_OK;
	join_kernels(ops + in_ring, kernels);
	for (unsigned i = 0; i < n; i++) {
		ops[i].peer = comm_captures(ops[i].comm);
		ops[i].peer->refs++;
		if (ops[i].task)
			*ops[i].task = 0;
	}
	session_unlock(s);
	if (in_ring)
		r = captured_groups_capture(
			ops, in_ring, CAPTURED_GROUP_START | (kernels ? 0 : CAPTURED_GROUP_END));
	if (!r && kernels)
		r = put_kernels(ops + in_ring, kernels, peer_capture);
	if (!r && kernels && in_ring)
		r = captured_groups_capture(ops, in_ring, CAPTURED_GROUP_END);
	session_lock(s);
	for (unsigned i = 0; i < n; i++)
		peer_unref(ops[i].peer);
	return r;
}

/* The first n are not kernels. */
static ncclsvc_result capture_tasks(ncclsvc_session *s, struct op *ops, unsigned n, unsigned all)
{
	unsigned alone = 0;
	struct op *copies = ops;
	captured_groups_sort(ops, n);
	while (alone < n && ops[alone].comm->nranks == 1)
		alone++;
	ops += alone;
	n -= alone;
	all -= alone;
	ncclsvc_result r = n ? captured_groups_check(s, ops, n) : NCCLSVC_OK;
	for (unsigned i = 0; !r && i < n; i++)
		r = peer_bare(s, ops[i].comm);
	if (!r && n)
		r = captured_groups_keep(s, ops, n);
	if (r)
		return r;
	/* A refusal leaves nothing in the graph. */
	if (all)
		r = ready(s, ops, all);
	for (unsigned i = 0; !r && i < alone; i++)
		r = peer_capture_alone(s->gpu, &copies[i]);
	if (r)
		captured_groups_take_back(s, ops, n);
	return r || !all ? r : capture(s, ops, n, all);
}

/* Whether two operations of a task group form one group: those that a stream starts are grouped by
 * communicator, others by slice. */
static bool are_one(const struct op *a, const struct op *b)
{
	return a->stream_started == b->stream_started &&
	       (a->stream_started ? a->comm == b->comm : a->slice == b->slice);
}

/* Submits the first n operations, which are those of the ring. If they are captured, nothing else
 * is left to do. */
static ncclsvc_result submit_tasks(ncclsvc_session *s, struct op *ops, unsigned n, unsigned all)
{
	bool staged = false, finished = true;
	uint64_t since = 0;
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0; !r && i < n; i++) {
		if (ops[i].comm->device >= 0) {
			finished = false;
			continue;
		}
		r = op_place(s, &ops[i]);
		staged = staged || ops[i].chunk_bytes;
	}
	if (!r && staged)
		r = stage(s, ops, n);
	bool on_gpu = !finished;
	while (!r && !finished) {
		r = gpu_prepare(s, ops, n, &since, &finished);
		if (!r && !finished)
			r = ready(s, ops, all);
	}
	if (!r && count_captured(ops, all, &r) && !r)
		return capture_tasks(s, ops, n, all);
	for (unsigned i = 0; !r && i < n; i++)
		finish_record(&ops[i], i + 1 < n && are_one(&ops[i], &ops[i + 1]));
	if (!r && s->options.no_ring)
		r = send_all(s, ops, n);
	else if (!r)
		publish_all(s, ops, n);
	if (!r && on_gpu)
		r = gpu_submitted(s, ops, n);
	if (staged)
		release(s, ops, n);
	return r;
}

ncclsvc_result ops_submit(ncclsvc_session *s, struct op *ops, unsigned n)
{
	const unsigned in_ring = choose(ops, n), kernels = n - in_ring;
	ncclsvc_result r = ready(s, ops, n);
	if (!r)
		r = ranks_on_gpu_check(ops, n);
	if (!r && in_ring > SVC_GROUP_TASKS)
		r = ops_slice(ops, in_ring);
	if (!r && kernels)
		r = share_buffers(s, ops, in_ring, n);
	if (!r && kernels)
		r = prepare_kernels(s, ops + in_ring, kernels);
	if (!r && kernels)
		r = ranks_on_gpu_check_streams(s, ops + in_ring, kernels);
	if (!r && in_ring)
		r = submit_tasks(s, ops, in_ring, n);
	else if (!r && count_captured(ops, n, &r) && !r)
		return capture(s, ops, 0, n);
	if (!r && kernels && !ops->captured)
		r = launch_kernels(s, ops + in_ring, kernels);
	return r;
}
