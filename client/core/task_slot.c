/* SPDX-License-Identifier: Apache-2.0
 * Tasks in flight. A slot goes through PENDING, ARRIVED (its status is known), COPYING (staged
 * output is being copied to the user, without the lock), and ENDED. In ring mode any thread that
 * looks moves it to ARRIVED; in socket mode the socket's reader does. */
#include <stdlib.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "base/frame.h"
#include "base/session_memory.h"
#include "failure.h"
#include "session_handle.h"
#include "session_timeline.h"

#define TASK_REQUEST_ID UINT32_C(0x80000000)

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
uint32_t task_request_id(uint64_t task)
{
	return TASK_REQUEST_ID | (uint32_t)task;
}

uint64_t tasks_first_pending(const struct tasks *t)
{
	uint64_t first = t->next > t->entries ? t->next - t->entries : 1;
	return first > t->oldest ? first : t->oldest;
}

/* NULL: the task is not on a stream. */
static const struct stream_callbacks *stream_of(const ncclsvc_session *s, const struct slot *slot)
{
	const ncclsvc_timeline *t = slot->timeline ? s->timelines[slot->timeline] : NULL;
	return t ? t->of_stream : NULL;
}

static bool is_spoiled(ncclsvc_session *s, const struct slot *slot)
{
	const struct stream_callbacks *stream = stream_of(s, slot);
	if (slot->detached && stream)
		stream->arrived(s);
	return slot->spoiled;
}

void task_arrive(ncclsvc_session *s, struct slot *slot, const char *text)
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

void task_arrive_failed(ncclsvc_session *s, struct slot *slot, int result, const char *text)
{
	slot->status = (ncclsvc_status){
		.result = result,
		.rank_a = -1,
		.rank_b = -1,
		.done_ns = now_ns(),
		.epoch = slot->epoch,
	};
	task_arrive(s, slot, text);
}

bool task_answer(ncclsvc_session *s, uint32_t request_id, const void *body, size_t length,
		 int result)
{
	struct tasks *t = &s->tasks;
	uint64_t last = t->next - 1;
	uint64_t task = last - (((uint32_t)last - request_id) & (TASK_REQUEST_ID - 1));
	struct slot *slot = task_slot(t, task);
	if (slot->number != task || slot->state != SLOT_PENDING || !s->options.no_ring)
		return false;
	if (length == sizeof(slot->status)) {
		ncclsvc_status status;
		memcpy(&status, body, sizeof(status));
		if (status.result != result)
			return false;
		slot->status = status;
		task_arrive(s, slot, "");
	} else {
		char text[SVC_TEXT_BYTES];
		frame_error_text(body, result, text);
		task_arrive_failed(s, slot, result, text);
	}
	t->running--;
	session_kick(s);
	return true;
}

void kernel_task_cancel(ncclsvc_session *s, struct slot *slot)
{
	slot->peer = NULL;
	task_arrive_failed(s, slot, NCCLSVC_CANCELLED, "");
}

uint32_t tasks_on_timeline(const ncclsvc_session *s, uint32_t timeline)
{
	const struct tasks *t = &s->tasks;
	const struct connection *c = s->connection;
	uint32_t pending = 0;
	bool bad = false;
	for (uint64_t n = tasks_first_pending(t); n < t->next; n++) {
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
	for (uint64_t n = tasks_first_pending(t); n < t->next; n++) {
		struct slot *slot = task_slot(t, n);
		if (slot->number == n && slot->state == SLOT_PENDING && stream_of(s, slot) &&
		    (slot->detached || n >= from))
			slot->spoiled = true;
	}
}
