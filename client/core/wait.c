/* SPDX-License-Identifier: Apache-2.0
 * Waiting for tasks, and querying their results. */
#include "wait.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/ring.h"
#include "comm.h"
#include "failure.h"
#include "session.h"
#include "socket.h"

#define TEST_LOOK_NS UINT64_C(10000000) /* how often a polling test checks the socket */

static bool is_over(enum task_state state)
{
	return state == TASK_ENDED || state == TASK_FORGOTTEN;
}

ncclsvc_result task_wait(ncclsvc_session *s, uint64_t task, uint64_t deadline)
{
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
		if (!s->connection->ring) {
			socket_step(s, deadline);
			continue;
		}
		struct slot *slot = task_slot(&s->tasks, task);
		if (slot->peer) {
			s->kernel_hooks->wait(s, slot, deadline);
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

ncclsvc_result ncclsvc_comm_error(ncclsvc_comm *comm)
{
	if (!comm)
		return error_argument("ncclsvc_comm_error: the communicator is NULL");
	ncclsvc_session *s = comm->session;
	session_lock(s);
	socket_pump(s);
	tasks_look(s);
	ncclsvc_result r = failures_report(s, comm->key, UINT64_MAX);
	if (!r && comm->broken && !comm->broken_told) {
		comm->broken_told = comm->end_told = true;
		r = comm_end(comm);
	}
	session_unlock(s);
	return r;
}
