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
#include "cuda/capture/capture.h"
#include "cuda/capture/capture_graph.h"
#include "cuda/capture/captured_group.h"
#include "cuda/direct/peer_kernel.h"
#include "cuda/direct/shares.h"
#include "cuda/session_gpu.h"
#include "proto/names.h"
#include "ranks_on_gpu.h"
#include "submit.h"

#define SEND_MS 5000

/* A group on one of its routes: all of it is captured; otherwise the first operations go to the
 * daemon through the ring, and those behind them are kernels. */
struct submission {
	struct op *ops;
	unsigned n, in_ring;
	bool captured;
	bool staged; /* some of those in the ring go through chunks */
	bool on_gpu; /* some of those in the ring are on GPUs */
};

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
	if (!r && s->away) /* ops_submit tries again */
		r = error_set(NCCLSVC_DAEMON_LOST, "%s", s->lost_text);
	for (unsigned i = 0; !r && i < n; i++) {
		uint32_t timeline = ops[i].record.timeline;
		if (timeline && !s->timelines[timeline])
			r = error_argument("the timeline has been destroyed");
		else
			r = comm_check(ops[i].comm);
		if (!r && ops[i].comm->peer && !peer_is_open(ops[i].comm->peer))
			r = error_set(NCCLSVC_STALE_EPOCH, "communicator %s is still being joined",
				      ops[i].comm->label);
		if (!r && ops[i].route.kernel && !ops[i].comm->peer)
			r = error_set(NCCLSVC_STALE_EPOCH, "communicator %s has a new epoch",
				      ops[i].comm->label);
	}
	return r;
}

static void release(ncclsvc_session *s, struct op *ops, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		if (ops[i].staged.chunk)
			staging_put(s, ops[i].staged.chunk);
		ops[i].staged.chunk = NULL;
	}
}

/* Gets the chunks, then copies the sources without the lock. */
static ncclsvc_result stage(ncclsvc_session *s, struct op *ops, unsigned n)
{
	uint32_t connection = session_connections(s);
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0; !r && i < n; i++)
		if (ops[i].staged.bytes)
			r = staging_get(s, ops[i].staged.bytes, &ops[i].staged.chunk);
	if (r)
		return r;
	session_unlock(s);
	for (unsigned i = 0; i < n; i++)
		if (ops[i].staged.src)
			memcpy(ops[i].staged.chunk->base + ops[i].staged.src_at, ops[i].src,
			       ops[i].src_bytes);
	session_lock(s);
	r = ready(s, ops, n);
	if (!r && connection != session_connections(s))
		r = error_set(NCCLSVC_DAEMON_LOST, "the daemon was lost while a buffer was copied");
	return r;
}

static void finish_record(struct op *op, bool more)
{
	struct svc_record *r = &op->record;
	if (op_is_premulsum(op))
		r->redop = (uint8_t)comm_redop(op->comm, r->redop)->number;
	r->comm = op->comm->handle;
	r->epoch = op->comm->epoch;
	r->flags |= more ? SVC_TASK_MORE : 0;
	if (op->staged.src) {
		r->src_region = op->staged.chunk->region;
		r->src_offset = op->staged.src_at;
	}
	if (op->staged.dst) {
		r->dst_region = op->staged.chunk->region;
		r->dst_offset = op->staged.dst_at;
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
	slot->timeline_value = op->route.stream_started ? SVC_CAPTURED_GROUP_DEAD : r->value;
	slot->comm_key = op->comm->key;
	slot->epoch = op->comm->epoch;
	op->launch.operation = slot->seq = op->comm->seq++;
	op->launch.collective = op->comm->collectives;
	op->comm->collectives += !svc_op_is_p2p(r->op);
	slot->to = svc_op_is_p2p(r->op) ? r->peer : -1;
	if (op->planned && op->comm->device < 0)
		slot->order = op->order;
	else if (op->comm->device < 0 || (entry && !op->route.stream_started))
		slot->order = comm_count(op->comm, slot->to >= 0, r->op == NCCLSVC_SEND, slot->to);
	slot->chunk = op->staged.chunk;
	slot->in = op->src;
	slot->out = op->dst;
	slot->out_at = op->staged.dst_at;
	slot->out_bytes = op->staged.dst ? op->dst_bytes : 0;
	slot->plan_slot = 0;
	op->staged.chunk = NULL;
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
	return frame_send(s->connection, SVC_SUBMIT, task_request_id(s->tasks.next), &op->record,
			  -1);
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

/* ---- Routes ---- */

/* Puts the operations of the ring first. Kernels follow in an order that is the same on all ranks,
 * whatever else is in their groups; otherwise kernels on one stream could wait for each other
 * across ranks. */
static int by_transport(const void *a, const void *b)
{
	const struct op *x = a, *y = b;
	if (!x->route.kernel != !y->route.kernel)
		return x->route.kernel ? 1 : -1;
	if (x->route.kernel && x->comm->uid != y->comm->uid)
		return x->comm->uid < y->comm->uid ? -1 : 1;
	if (x->route.kernel &&
	    x->comm->rank != y->comm->rank) /* one session can have several ranks */
		return x->comm->rank < y->comm->rank ? -1 : 1;
	const bool message = svc_op_is_p2p(x->record.op);
	if (x->route.kernel && message != svc_op_is_p2p(y->record.op))
		return message ? 1 : -1;
	if (x->route.turn != y->route.turn)
		return x->route.turn < y->route.turn ? -1 : 1;
	return x->route.group_index < y->route.group_index ? -1 : 1;
}

/* A message in a kernel may be needed on another rank before an NCCL message can end. */
static void beside_nccl_choose(struct op *ops, unsigned in_ring, unsigned n)
{
	bool any = false;
	for (unsigned i = 0; i < in_ring; i++)
		any = any || svc_op_is_p2p(ops[i].record.op);
	for (unsigned i = in_ring; i < n; i++)
		ops[i].route.beside_nccl = any && svc_op_is_p2p(ops[i].record.op);
}

/* Chooses each operation's transport, and moves those of the ring to the front. */
static struct submission classify(struct op *ops, unsigned n)
{
	struct submission b = {.ops = ops, .n = n};
	for (unsigned i = 0; i < n; i++) {
		ops[i].route = (struct op_route){.kernel = (uint8_t)peer_choose(&ops[i]),
						 .group_index = i};
		b.in_ring += !ops[i].route.kernel;
	}
	if (n > 1 && b.in_ring < n) {
		peer_turns(ops, n);
		qsort(ops, n, sizeof(*ops), by_transport);
		beside_nccl_choose(ops, b.in_ring, n);
	}
	return b;
}

/* ---- Checks: they change nothing that others see ---- */

/* Shares the kernels' buffers. */
static ncclsvc_result share_buffers(ncclsvc_session *s, const struct submission *b)
{
	uint64_t since = 0;
	bool finished = false;
	ncclsvc_result r = NCCLSVC_OK;
	while (!r && !finished) {
		r = shares_prepare(s, b->ops + b->in_ring, b->n - b->in_ring, &since, &finished);
		if (!r && !finished)
			r = ready(s, b->ops, b->n);
	}
	return r;
}

static ncclsvc_result check_kernels(ncclsvc_session *s, const struct submission *b)
{
	ncclsvc_result r = share_buffers(s, b);
	unsigned copies = 0; /* the operations of copy engines before, in the same communicator */
	for (unsigned i = b->in_ring; !r && i < b->n; i++) {
		const struct op *before = i > b->in_ring ? &b->ops[i - 1] : NULL;
		copies = before && before->comm == b->ops[i].comm
				 ? copies + (before->route.kernel == KERNEL_COPIES)
				 : 0;
		r = peer_prepare(s->gpu, &b->ops[i], copies);
	}
	return r ? r : ranks_on_gpu_check_streams(s, b->ops + b->in_ring, b->n - b->in_ring);
}

/* Finds the buffers of the ring's operations, and their streams. */
static ncclsvc_result check_ring(ncclsvc_session *s, struct submission *b)
{
	uint64_t since = 0;
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0; !r && i < b->in_ring; i++) {
		struct op *op = &b->ops[i];
		if (op->comm->device >= 0) {
			b->on_gpu = true;
			continue;
		}
		r = op_place(s, op);
		b->staged = b->staged || op->staged.bytes;
	}
	if (!r && b->staged)
		r = stage(s, b->ops, b->in_ring);
	for (bool finished = !b->on_gpu; !r && !finished;) {
		r = gpu_prepare(s, b->ops, b->in_ring, &since, &finished);
		if (!r && !finished)
			r = ready(s, b->ops, b->n);
	}
	return r;
}

/* All operations are captured, or none. */
static ncclsvc_result check_captured(struct submission *b)
{
	unsigned captured = 0;
	for (unsigned i = 0; i < b->n; i++)
		captured += b->ops[i].route.captured;
	b->captured = captured;
	if (captured && captured < b->n)
		return error_argument("a group mixes operations on streams that are being captured "
				      "into a CUDA graph with operations on other streams");
	return NCCLSVC_OK;
}

/* Sends the daemon the reductions that it lacks for the ring's operations. */
static ncclsvc_result send_redops(ncclsvc_session *s, const struct submission *b)
{
	ncclsvc_result r = NCCLSVC_OK;
	for (bool sent = true; !r && sent;) {
		sent = false;
		for (unsigned i = 0; !r && i < b->in_ring; i++) {
			const struct op *op = &b->ops[i];
			if (!op_is_premulsum(op) || op->route.captured)
				continue;
			const struct made_redop *at = comm_redop(op->comm, op->record.redop);
			if (at && at->number)
				continue;
			r = redop_send(op->comm, op->record.redop);
			sent = true;
		}
		if (!r && sent)
			r = ready(s, b->ops, b->n);
	}
	return r;
}

static ncclsvc_result check(ncclsvc_session *s, struct submission *b)
{
	ncclsvc_result r = ready(s, b->ops, b->n);
	if (!r)
		r = ranks_on_gpu_check(b->ops, b->n);
	if (!r && b->in_ring > SVC_GROUP_TASKS)
		r = ops_slice(b->ops, b->in_ring);
	if (!r && b->in_ring < b->n)
		r = check_kernels(s, b);
	if (!r && b->in_ring)
		r = check_ring(s, b);
	if (!r)
		r = send_redops(s, b);
	return r ? r : check_captured(b);
}

/* ---- Kernels ---- */

static ncclsvc_result put_kernels(struct op *ops, unsigned n,
				  ncclsvc_result (*put)(const struct op *ops, unsigned n))
{
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0, k; i < n; i = k) {
		for (k = i + 1; k < n && ops[k].launch.joined;)
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
		ops[i].capture->refs++;
	}
	dispatch_tick(s);
	session_unlock(s);
	ncclsvc_result r = put_kernels(ops, n, peer_launch);
	session_lock(s);
	for (unsigned i = 0; i < n; i++)
		capture_unref(ops[i].capture);
	return r;
}

/* ---- Captures ---- */

/* The first in_ring operations go to NCCL. Captured operations are not tasks. */
static ncclsvc_result capture(ncclsvc_session *s, struct op *ops, unsigned in_ring, unsigned n)
{
	const unsigned kernels = n - in_ring;
	ncclsvc_result r = NCCLSVC_OK;
	join_kernels(ops + in_ring, kernels);
	for (unsigned i = 0; i < n; i++) {
		ops[i].capture = ops[i].comm->capture;
		ops[i].capture->refs++;
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
		capture_unref(ops[i].capture);
	return r;
}

/* The daemon keeps the first n, which are not kernels. */
static ncclsvc_result keep(ncclsvc_session *s, struct op *ops, unsigned n)
{
	ncclsvc_result r = captured_groups_check(s, ops, n);
	for (unsigned i = 0; !r && i < n; i++)
		r = capture_open(s, ops[i].comm);
	return r ? r : captured_groups_keep(s, ops, n);
}

/* Operations of communicators of one rank, which are copies, come first. */
static unsigned copies_first(struct op *ops, unsigned n)
{
	unsigned copies = 0;
	captured_groups_sort(ops, n);
	while (copies < n && ops[copies].comm->nranks == 1)
		copies++;
	return copies;
}

static ncclsvc_result submit_captures(ncclsvc_session *s, const struct submission *b)
{
	const unsigned copies = copies_first(b->ops, b->in_ring);
	struct op *ops = b->ops + copies;
	const unsigned kept = b->in_ring - copies, n = b->n - copies;
	ncclsvc_result r = kept ? keep(s, ops, kept) : NCCLSVC_OK;
	if (r)
		return r;
	/* A refusal leaves nothing in the graph. */
	if (b->in_ring && n)
		r = ready(s, ops, n);
	for (unsigned i = 0; !r && i < copies; i++)
		r = peer_capture_alone(s->gpu, &b->ops[i]);
	if (r)
		captured_groups_take_back(s, ops, kept);
	return r || !n ? r : capture(s, ops, kept, n);
}

/* ---- The ring ---- */

/* Whether two operations of a task group form one group: those that a stream starts are grouped by
 * communicator, others by slice. */
static bool are_one(const struct op *a, const struct op *b)
{
	return a->route.stream_started == b->route.stream_started &&
	       (a->route.stream_started ? a->comm == b->comm : a->route.slice == b->route.slice);
}

static ncclsvc_result submit_ring(ncclsvc_session *s, const struct submission *b)
{
	struct op *ops = b->ops;
	const unsigned n = b->in_ring;
	ncclsvc_result r = NCCLSVC_OK;
	for (unsigned i = 0; i < n; i++)
		finish_record(&ops[i], i + 1 < n && are_one(&ops[i], &ops[i + 1]));
	if (s->options.no_ring)
		r = send_all(s, ops, n);
	else
		publish_all(s, ops, n);
	return !r && b->on_gpu ? gpu_submitted(s, ops, n) : r;
}

static ncclsvc_result submit_once(ncclsvc_session *s, struct op *ops, unsigned n)
{
	struct submission b = classify(ops, n);
	ncclsvc_result r = check(s, &b);
	if (!r && b.captured) {
		r = submit_captures(s, &b);
	} else if (!r) {
		if (b.in_ring)
			r = submit_ring(s, &b);
		if (!r && b.in_ring < n)
			r = launch_kernels(s, ops + b.in_ring, n - b.in_ring);
	}
	if (b.staged)
		release(s, ops, b.in_ring);
	return r;
}

ncclsvc_result ops_submit(ncclsvc_session *s, struct op *ops, unsigned n)
{
	for (;;) {
		ncclsvc_result r = session_back(s);
		const uint32_t resumptions = s->resumptions;
		if (!r)
			r = submit_once(s, ops, n);
		/* Nothing was submitted if the daemon ended meanwhile. */
		const bool again = s->away || resumptions != s->resumptions;
		if (r != NCCLSVC_DAEMON_LOST || s->lost || !again)
			return r;
	}
}
