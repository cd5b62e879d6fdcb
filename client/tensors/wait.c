/* SPDX-License-Identifier: Apache-2.0
 * Waiting for requests. */
#include <time.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "batch.h"
#include "core/session_handle.h"
#include "list_request.h"

/* IN_PROGRESS, or OK when it has ended. */
static ncclsvc_result go_on(struct ncclsvc_request *r)
{
	lists_go_on(r->lists);
	return r->batch ? NCCLSVC_IN_PROGRESS : request_close(r);
}

static ncclsvc_result check_open(const struct ncclsvc_request *r)
{
	const ncclsvc_result result = lists_callable(r->lists);
	if (result)
		return result;
	return request_is_open(r) ? error_argument("the request belongs to a task group that has "
						   "not ended: call ncclsvc_group_end first")
				  : NCCLSVC_OK;
}

ncclsvc_result ncclsvc_request_test(ncclsvc_request *r)
{
	if (!r)
		return error_argument("ncclsvc_request_test: the request is NULL");
	ncclsvc_result result = check_open(r);
	if (result)
		return result;
	return go_on(r) ? NCCLSVC_IN_PROGRESS : request_result(r);
}

/* Sleeps, because nothing wakes the thread. *since 0: this is the first check. */
static void nap(struct ncclsvc_request *r, uint64_t *since)
{
	ncclsvc_session *s = r->lists->session;
	struct spin *spin = &r->lists->spin;
	const uint64_t now = now_ns();
	if (!*since) {
		*since = now;
		session_lock(s);
		spin_value(spin, s->spin.worth_ns);
		session_unlock(s);
	} else if (now - *since >= spin_budget_ns(spin, now)) {
		const uint64_t ns = spin_nap_ns(now - *since, SPIN_NAP_SHARE);
		nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
	}
}

/* Other requests have their turn, or the ring is full. */
static bool is_unsubmitted(const struct ncclsvc_request *r)
{
	return r->has_ahead || r->has_data;
}

/* TIMEOUT, without an error set, if it has not ended. tasks_too: the deadline also covers submitted
 * tasks. */
static ncclsvc_result wait_until(struct ncclsvc_request *r, uint64_t deadline, bool tasks_too)
{
	uint64_t since = 0;
	while (go_on(r)) {
		int left =
			deadline_left_ms(tasks_too || is_unsubmitted(r) ? deadline : NO_DEADLINE);
		if (!left)
			return NCCLSVC_TIMEOUT;
		if (r->nseen < r->ntasks && !lists_await_others(r->lists, r)) {
			ncclsvc_wait(r->lists->session, r->tasks[r->nseen], left);
			since = 0;
		} else {
			nap(r, &since);
		}
	}
	if (since)
		spin_waited(&r->lists->spin, now_ns() - since);
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_request_wait(ncclsvc_request *r, int timeout_ms)
{
	if (!r)
		return error_argument("ncclsvc_request_wait: the request is NULL");
	ncclsvc_result result = check_open(r);
	if (result)
		return result;
	if (wait_until(r, deadline_in(timeout_ms), true))
		return error_set(NCCLSVC_TIMEOUT,
				 "the list has not ended within this wait's timeout; it continues");
	return request_result(r);
}

ncclsvc_result ncclsvc_request_free(ncclsvc_request *r)
{
	if (!r)
		return NCCLSVC_OK;
	if (request_is_open(r) || go_on(r))
		return error_set(NCCLSVC_BUSY, "the list is in progress: wait for it first");
	request_drop(r);
	return NCCLSVC_OK;
}

/* Deadline of what is not yet submitted; tasks have their own. */
static uint64_t submit_deadline(const struct ncclsvc_request *r)
{
	const uint64_t timeout =
		atomic_load_explicit(&r->lists->comm->timeout_ns, memory_order_relaxed);
	if (r->has_deadline)
		return r->deadline;
	return timeout ? now_ns() + timeout : NO_DEADLINE;
}

ncclsvc_result request_finish(struct ncclsvc_request *r)
{
	if (wait_until(r, submit_deadline(r), false)) {
		request_fail(r, error_set(NCCLSVC_TIMEOUT, "the list was not submitted in time: %s",
					  request_is_held(r)
						  ? "an earlier one still waits for its shapes"
						  : "the ring is full"));
		r->forgotten = true;
		return request_result(r);
	}
	ncclsvc_result result = request_result(r);
	request_drop(r);
	return result;
}
