/* SPDX-License-Identifier: Apache-2.0
 * Tasks in flight. A slot goes through PENDING, ARRIVED (its status is known), COPYING (staged
 * output is being copied to the user, without the lock), and ENDED. In ring mode any thread that
 * looks moves it to ARRIVED; in socket mode the socket's reader does. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/frame.h"
#include "base/ring.h"
#include "dispatch.h"
#include "failure.h"
#include "refusal.h"
#include "session.h"
#include "socket.h"
#include "timeline.h"

#define TASK_SERIAL UINT32_C(0x80000000)

#define SPOILED                                                                                    \
	"the process was checkpointed before the end of this task was seen: its result may be in " \
	"the memory from before"

ncclsvc_result tasks_init(struct tasks *t, uint32_t entries)
{
	t->slots = calloc(entries, sizeof(*t->slots));
	if (!t->slots)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	t->entries = entries;
	t->next = t->oldest = 1;
	return NCCLSVC_OK;
}

void tasks_restart(struct tasks *t)
{
	t->oldest = t->next;
	t->entered = 0;
	t->running = 0;
}

/* The low bits suffice, because all pending tasks lie within one ring's length. */
uint32_t task_serial(uint64_t task)
{
	return TASK_SERIAL | (uint32_t)task;
}

/* The lowest number that may be pending. */
static uint64_t window_start(const struct tasks *t)
{
	uint64_t first = t->next > t->entries ? t->next - t->entries : 1;
	return first > t->oldest ? first : t->oldest;
}

/* NULL: the task is not on a stream. */
static const struct stream_hooks *stream_of(const ncclsvc_session *s, const struct slot *slot)
{
	const ncclsvc_timeline *t = slot->timeline ? s->timelines[slot->timeline] : NULL;
	return t ? t->of_stream : NULL;
}

static bool is_spoiled(ncclsvc_session *s, const struct slot *slot)
{
	const struct stream_hooks *stream = stream_of(s, slot);
	if (slot->detached && stream)
		stream->arrived(s);
	return slot->spoiled;
}

/* Stores the slot's status. `text` adds to it, or is "". */
static void arrive(ncclsvc_session *s, struct slot *slot, const char *text)
{
	slot->status.number = slot->number;
	if (slot->status.result > 0)
		slot->status.result = NCCLSVC_PROTOCOL;
	if (slot->status.result == NCCLSVC_OK && is_spoiled(s, slot)) {
		slot->status.result = NCCLSVC_SYSTEM;
		slot->status.rank_a = slot->status.rank_b = -1;
		text = SPOILED;
	}
	slot->state = SLOT_ARRIVED;
	if (slot->status.result)
		failure_keep(s, slot, text);
}

/* The task failed before it reached the daemon, or without an answer. */
static void arrive_failed(ncclsvc_session *s, struct slot *slot, int result, const char *text)
{
	slot->status = (ncclsvc_status){
		.result = result,
		.rank_a = -1,
		.rank_b = -1,
		.done_ns = now_ns(),
		.epoch = slot->epoch,
	};
	arrive(s, slot, text);
}

bool task_answer(ncclsvc_session *s, uint32_t serial, const void *body, size_t length, int result)
{
	struct tasks *t = &s->tasks;
	uint64_t last = t->next - 1;
	uint64_t task = last - (((uint32_t)last - serial) & (TASK_SERIAL - 1));
	struct slot *slot = task_slot(t, task);
	if (slot->number != task || slot->state != SLOT_PENDING || !s->options.no_ring)
		return false;
	if (length == sizeof(slot->status)) {
		ncclsvc_status status;
		memcpy(&status, body, sizeof(status));
		if (status.result != result)
			return false;
		slot->status = status;
		arrive(s, slot, "");
	} else {
		char text[SVC_TEXT_BYTES];
		frame_error_text(body, result, text);
		arrive_failed(s, slot, result, text);
	}
	t->running--;
	dispatch_kick(s);
	return true;
}

/* PENDING to ARRIVED, if the ring says so or the daemon is lost. */
static void look_at_ring(ncclsvc_session *s, struct slot *slot)
{
	const struct connection *c = s->connection;
	const uint64_t n = slot->entry;
	bool bad = false;
	if (c->ring && ring_ended(c, n, &bad)) {
		const ncclsvc_status *from = svc_status_slot(c->ring, c->entries, n);
		memcpy(&slot->status, from, SVC_HALF);
		memset((char *)&slot->status + SVC_HALF, 0, SVC_HALF);
		if (slot->status.result)
			slot->status = *from;
		arrive(s, slot, "");
		return;
	}
	if (bad)
		session_lose(s, "the daemon broke the protocol: a status in the ring has a number "
				"that is not its task's");
	else
		session_check(s);
	if (s->lost)
		arrive_failed(s, slot, NCCLSVC_DAEMON_LOST, s->lost_text);
}

/* Copies without the lock, because copying can take long. The state COPYING keeps other threads
 * away. */
static void copy_out(ncclsvc_session *s, struct slot *slot)
{
	if (slot->status.result == NCCLSVC_OK && slot->out_bytes) {
		slot->state = SLOT_COPYING;
		session_unlock(s);
		memcpy(slot->out, slot->chunk->base + slot->out_at, slot->out_bytes);
		session_lock(s);
		dispatch_kick(s);
		pthread_cond_broadcast(&s->changed);
	}
	staging_put(s, slot->chunk);
	slot->chunk = NULL;
}

static void end(ncclsvc_session *s, struct slot *slot)
{
	if (slot->chunk)
		copy_out(s, slot);
	ncclsvc_timeline *t = slot->timeline ? s->timelines[slot->timeline] : NULL;
	if (t)
		t->pending--;
	if (t && t->of_stream)
		t->of_stream->ended(s, slot->number);
	if (slot->kernel_seq)
		s->kernel_hooks->ended(s, slot->number);
	slot->called_back = !s->callback || slot->quiet;
	slot->state = SLOT_ENDED;
	s->tasks.ended++;
}

static void look_at_kernel(ncclsvc_session *s, struct slot *slot, bool ask)
{
	if (s->kernel_hooks->over(s, slot, ask))
		arrive(s, slot, slot->status.result == NCCLSVC_DAEMON_LOST ? s->lost_text : "");
	if (slot->state == SLOT_ARRIVED && slot->status.result == NCCLSVC_PEER_GONE)
		refusal_tell_too_late(s, slot);
}

void kernel_task_cancel(ncclsvc_session *s, struct slot *slot)
{
	slot->peer = NULL;
	arrive_failed(s, slot, NCCLSVC_CANCELLED, "");
}

static enum task_state look(ncclsvc_session *s, uint64_t task, bool ask)
{
	struct slot *slot = task_slot(&s->tasks, task);
	if (slot->number != task || slot->state == SLOT_EMPTY) /* 0 is not a task */
		return TASK_FORGOTTEN;
	if (slot->state == SLOT_PENDING && slot->peer)
		look_at_kernel(s, slot, ask);
	else if (slot->state == SLOT_PENDING)
		look_at_ring(s, slot);
	if (slot->state == SLOT_ARRIVED)
		end(s, slot);
	if (slot->state == SLOT_COPYING)
		return TASK_COPYING;
	return slot->state == SLOT_ENDED ? TASK_ENDED : TASK_PENDING;
}

enum task_state task_look(ncclsvc_session *s, uint64_t task)
{
	return look(s, task, false);
}

enum task_state task_ask(ncclsvc_session *s, uint64_t task)
{
	return look(s, task, true);
}

void tasks_look(ncclsvc_session *s)
{
	struct tasks *t = &s->tasks;
	bool all = true;
	t->oldest = window_start(t);
	for (uint64_t n = t->oldest; n < t->next; n++) {
		enum task_state state = task_look(s, n);
		all = all && state != TASK_PENDING && state != TASK_COPYING;
		if (all && t->oldest == n)
			t->oldest = n + 1;
	}
}

uint32_t tasks_on_timeline(const ncclsvc_session *s, uint32_t timeline)
{
	const struct tasks *t = &s->tasks;
	const struct connection *c = s->connection;
	uint32_t pending = 0;
	bool bad = false;
	for (uint64_t n = window_start(t); n < t->next; n++) {
		const struct slot *slot = task_slot(t, n);
		pending += slot->number == n && slot->state == SLOT_PENDING &&
			   slot->timeline == timeline &&
			   !(c->ring && ring_ended(c, slot->entry, &bad));
	}
	return pending;
}

void tasks_spoil(ncclsvc_session *s, uint64_t from)
{
	const struct tasks *t = &s->tasks;
	for (uint64_t n = window_start(t); n < t->next; n++) {
		struct slot *slot = task_slot(t, n);
		if (slot->number == n && slot->state == SLOT_PENDING && stream_of(s, slot) &&
		    (slot->detached || n >= from))
			slot->spoiled = true;
	}
}

/* OK if the slot's previous task is over. Yields. */
static ncclsvc_result slot_vacate(ncclsvc_session *s, const struct slot *slot)
{
	if (slot->state == SLOT_EMPTY || (slot->state == SLOT_ENDED && slot->called_back))
		return NCCLSVC_OK;
	if (task_ask(s, slot->number) != TASK_ENDED)
		return error_set(NCCLSVC_AGAIN, "the ring of %u tasks is full: wait for task %llu",
				 s->tasks.entries, (unsigned long long)slot->number);
	if (!slot->called_back && s->callback)
		return error_set(NCCLSVC_AGAIN,
				 "the ring of %u tasks is full of ended tasks with a callback to "
				 "run: call ncclsvc_dispatch",
				 s->tasks.entries);
	return NCCLSVC_OK;
}

ncclsvc_result tasks_room(ncclsvc_session *s, unsigned n)
{
	struct tasks *t = &s->tasks;
	uint64_t next = t->next;
	for (unsigned i = 0; i < n; i++) {
		ncclsvc_result r = slot_vacate(s, task_slot(t, next + i));
		if (r)
			return r;
		if (t->next != next) /* another thread submitted in between */
			return tasks_room(s, n);
	}
	if (s->options.no_ring && t->running + n > SVC_SOCKET_TASKS)
		socket_pump(s);
	if (s->options.no_ring && t->running + n > SVC_SOCKET_TASKS)
		return error_set(NCCLSVC_AGAIN,
				 "%llu tasks are pending; a session without a ring can have %d: "
				 "wait for one",
				 (unsigned long long)t->running, SVC_SOCKET_TASKS);
	return NCCLSVC_OK;
}

void task_status_of(ncclsvc_session *s, uint64_t task, ncclsvc_status *status)
{
	const struct slot *slot = task_slot(&s->tasks, task);
	if (slot->number == task) {
		*status = slot->status;
		return;
	}
	const struct failure *f = failure_find(&s->tasks, task);
	*status = f ? f->status : (ncclsvc_status){.number = task, .rank_a = -1, .rank_b = -1};
}

void tasks_release_timelines(ncclsvc_session *s)
{
	const struct tasks *t = &s->tasks;
	timelines_await_workers(s);
	for (uint64_t n = window_start(t); s->connection->ring && n < t->next; n++) {
		const struct slot *slot = task_slot(t, n);
		if (slot->number == n && slot->state == SLOT_PENDING && slot->timeline)
			timeline_raise(&svc_timelines(s->connection->ring)[slot->timeline].done,
				       slot->timeline_value);
	}
	timelines_release(s);
}
