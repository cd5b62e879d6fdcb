/* SPDX-License-Identifier: Apache-2.0
 * The progress of tasks: looking at them, waiting for them, querying their results. */
#include <string.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "base/session_memory.h"
#include "comm_handle.h"
#include "failure.h"
#include "refusal.h"
#include "session_handle.h"
#include "session_socket.h"
#include "session_timeline.h"

#define TEST_LOOK_NS UINT64_C(10000000) /* how often a polling test checks the socket */
/* On a working GPU, a task ends within this time after its epoch. */
#define TASKS_END_NS UINT64_C(500000000)

/* PENDING to ARRIVED, if the ring says so or the daemon is lost. */
static void look_at_ring(ncclsvc_session *s, struct slot *slot)
{
	const struct connection *c = s->connection;
	const uint64_t n = slot->entry;
	bool bad = false;
	if (!n && !s->lost) /* submitted to the next daemon soon */
		return;
	if (c->ring && n && ring_ended(c, n, &bad)) {
		const ncclsvc_status *from = svc_status_slot(c->ring, c->entries, n);
		memcpy(&slot->status, from, SVC_HALF);
		memset((char *)&slot->status + SVC_HALF, 0, SVC_HALF);
		if (slot->status.result)
			slot->status = *from;
		task_arrive(s, slot, "");
		return;
	}
	if (bad)
		session_lose(s, "the daemon broke the protocol: a status in the ring has a number "
				"that is not its task's");
	else
		session_check(s);
	if (s->lost)
		task_arrive_failed(s, slot, NCCLSVC_DAEMON_LOST, s->lost_text);
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
		session_kick(s);
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
		s->kernel_callbacks->ended(s, slot->number);
	slot->called_back = !s->callback || slot->quiet;
	slot->state = SLOT_ENDED;
	s->tasks.ended++;
}

static void look_at_kernel(ncclsvc_session *s, struct slot *slot, bool ask)
{
	if (s->kernel_callbacks->over(s, slot, ask))
		task_arrive(s, slot,
			    slot->status.result == NCCLSVC_DAEMON_LOST ? s->lost_text : "");
	if (slot->state == SLOT_ARRIVED && slot->status.result == NCCLSVC_PEER_GONE)
		refusal_tell_too_late(s, slot);
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
	t->oldest = tasks_first_pending(t);
	for (uint64_t n = t->oldest; n < t->next; n++) {
		enum task_state state = task_look(s, n);
		all = all && state != TASK_PENDING && state != TASK_COPYING;
		if (all && t->oldest == n)
			t->oldest = n + 1;
	}
}

void tasks_ask(ncclsvc_session *s)
{
	for (const ncclsvc_comm *c = s->comms; c && s->kernel_callbacks; c = c->next)
		if (c->peer)
			s->kernel_callbacks->ask(c->peer);
	tasks_look(s);
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

static bool is_over(enum task_state state)
{
	return state == TASK_ENDED || state == TASK_FORGOTTEN;
}

ncclsvc_result task_wait(ncclsvc_session *s, uint64_t task, uint64_t deadline)
{
	const uint64_t since = now_ns();
	bool first = true;
	for (;;) {
		enum task_state state = task_look(s, task);
		if (is_over(state))
			return NCCLSVC_OK;
		if (deadline != NO_DEADLINE && now_ns() >= deadline)
			return error_set(NCCLSVC_TIMEOUT,
					 "task %llu has not ended within this wait's timeout; it "
					 "continues",
					 (unsigned long long)task);
		if (state == TASK_COPYING) {
			session_wait(s, deadline);
			continue;
		}
		if (s->away) {
			session_wait(s, deadline);
			continue;
		}
		if (!s->connection->ring) {
			socket_step(s, deadline);
			continue;
		}
		struct slot *slot = task_slot(&s->tasks, task);
		if (slot->peer) {
			s->kernel_callbacks->wait(s, slot, since, deadline);
			socket_pump(s);
			continue;
		}
		struct connection *c = connection_ref(s->connection);
		const uint64_t n = slot->entry;
		struct spin spin = s->spin;
		session_unlock(s);
		bool woken = ring_sleep(c, n, first ? &spin : NULL, deadline);
		session_lock(s);
		connection_unref(c);
		if (first) /* if threads wait at the same time, the last one's view counts */
			s->spin = spin;
		first = false;
		if (!woken)
			socket_pump(s);
	}
}

static ncclsvc_result check(ncclsvc_session *s, uint64_t task)
{
	if (task < s->tasks.next)
		return NCCLSVC_OK;
	return error_set(NCCLSVC_NOT_FOUND, "task %llu was never submitted in this session",
			 (unsigned long long)task);
}

ncclsvc_result ncclsvc_wait(ncclsvc_session *s, ncclsvc_task task, int timeout_ms)
{
	if (!s)
		return error_argument("ncclsvc_wait: the session is NULL");
	if (!task)
		return NCCLSVC_OK;
	session_lock(s);
	ncclsvc_result r = check(s, task);
	/* A task that is over needs no deadline. */
	if (!r && !is_over(task_look(s, task)))
		r = task_wait(s, task, deadline_in(timeout_ms));
	if (!r)
		r = task_report(s, task);
	session_unlock(s);
	return r;
}

ncclsvc_result ncclsvc_wait_all(ncclsvc_session *s, int timeout_ms)
{
	if (!s)
		return error_argument("ncclsvc_wait_all: the session is NULL");
	uint64_t deadline = deadline_in(timeout_ms);
	ncclsvc_result r = NCCLSVC_OK;
	session_lock(s);
	uint64_t last = s->tasks.next - 1;
	tasks_look(s);
	for (uint64_t n = s->tasks.oldest; !r && n <= last; n++)
		r = task_wait(s, n, deadline);
	if (!r)
		r = failures_report(s, 0, last);
	session_unlock(s);
	return r;
}

bool task_over(ncclsvc_session *s, uint64_t task)
{
	enum task_state state = task_look(s, task);
	if (state == TASK_PENDING) {
		uint64_t now = now_ns();
		if (s->connection->ring && now - s->looked_ns < TEST_LOOK_NS)
			return false;
		s->looked_ns = now;
		socket_pump(s);
		state = task_ask(s, task);
	}
	return is_over(state);
}

ncclsvc_result ncclsvc_test(ncclsvc_session *s, ncclsvc_task task)
{
	if (!s)
		return error_argument("ncclsvc_test: the session is NULL");
	if (!task)
		return NCCLSVC_OK;
	session_lock(s);
	ncclsvc_result r = check(s, task);
	if (!r)
		r = task_over(s, task) ? task_report(s, task) : NCCLSVC_IN_PROGRESS;
	session_unlock(s);
	return r;
}

ncclsvc_result ncclsvc_task_status(ncclsvc_session *s, ncclsvc_task task, ncclsvc_status *status)
{
	if (!s || !status)
		return error_argument("ncclsvc_task_status: the session or status is NULL");
	session_lock(s);
	ncclsvc_result r = check(s, task);
	if (!r && !task_over(s, task))
		r = NCCLSVC_IN_PROGRESS;
	if (!r)
		task_status_of(s, task, status);
	session_unlock(s);
	return r;
}

/* PEER_GONE may only be the consequence of a failed operation, after which the other members left.
 * The operation's own task says more, and ends as soon as its stream reaches it. */
static bool task_may_say_more(const ncclsvc_session *s, const ncclsvc_comm *comm)
{
	const struct tasks *t = &s->tasks;
	if (comm->broken != NCCLSVC_PEER_GONE || now_ns() - comm->broken_ns > TASKS_END_NS)
		return false;
	for (uint64_t n = tasks_first_pending(t); n < t->next; n++) {
		const struct slot *slot = task_slot(t, n);
		if (slot->number == n && slot->state == SLOT_PENDING &&
		    slot->comm_key == comm->key && slot->epoch == comm->epoch)
			return true;
	}
	return false;
}

ncclsvc_result ncclsvc_comm_error(ncclsvc_comm *comm)
{
	if (!comm)
		return error_argument("ncclsvc_comm_error: the communicator is NULL");
	ncclsvc_session *s = comm->session;
	session_lock(s);
	socket_pump(s);
	tasks_look(s);
	ncclsvc_result r = failures_report(s, comm->key, UINT64_MAX);
	if (!r && comm->broken && !comm->broken_reported && !task_may_say_more(s, comm)) {
		comm->broken_reported = comm->end_reported = true;
		r = comm_end(comm);
	}
	session_unlock(s);
	return r;
}
