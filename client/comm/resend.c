/* SPDX-License-Identifier: Apache-2.0
 * After a restart of the daemon: the requests that the previous one has not answered. Most are sent
 * to the next one; some mean nothing to it, and are answered here. */
#include "resend.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/frame.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "cuda/session_gpu.h"
#include "resume/compare.h"

#define SEND_MS 5000

static bool send_waiting(ncclsvc_session *s, const struct call *c)
{
	struct pollfd p = {.fd = s->connection->sock, .events = POLLOUT};
	const uint64_t deadline = deadline_in(SEND_MS);
	int sent = frame_send(s->connection, c->opcode, c->request_id, c->request, c->request_fd);
	while (sent == -EAGAIN && now_ns() < deadline) {
		poll(&p, 1, deadline_left_ms(deadline));
		sent = frame_send(s->connection, c->opcode, c->request_id, c->request,
				  c->request_fd);
	}
	return !sent;
}

static enum resend_when time_of(unsigned opcode)
{
	switch (opcode) {
	case SVC_SPLIT:
	case SVC_PLAN_COMMIT:
	case SVC_DESCRIBE:
	case SVC_STAGING:
	case SVC_REDOP_ADD:
	case SVC_SLEEP:
		return RESEND_IN_EPOCH;
	case SVC_REGION_DEL: /* also waits for members that import the region */
		return RESEND_LAST;
	default:
		return RESEND_FIRST;
	}
}

/* A request for a communicator that is not continued. The handle comes first in its body. */
static bool is_of_no_comm(const ncclsvc_session *s, const struct call *c)
{
	uint32_t handle;
	memcpy(&handle, c->request, sizeof(handle));
	return time_of(c->opcode) == RESEND_IN_EPOCH && !comm_by_handle(s, handle);
}

/* A REGION_DEL of memory that is not registered any more. */
static bool is_of_no_region(const ncclsvc_session *s, const struct call *c)
{
	struct svc_region_del request;
	memcpy(&request, c->request, sizeof(request));
	if (c->opcode != SVC_REGION_DEL || device_region_registered(s, request.region))
		return false;
	for (size_t i = 0; i < s->regions.n; i++)
		if (s->regions.sorted[i].id == request.region)
			return false;
	return true;
}

static void renew_epoch(const ncclsvc_session *s, struct call *c)
{
	struct svc_plan_commit request;
	memcpy(&request, c->request, sizeof(request));
	request.epoch = comm_by_handle(s, request.comm)->epoch; /* is_of_no_comm has looked */
	memcpy(c->request, &request, sizeof(request));
}

/* A plan's commit names its epoch, which may be a new one. */
static bool send_in_epoch(ncclsvc_session *s, struct call *c)
{
	if (c->opcode == SVC_PLAN_COMMIT)
		renew_epoch(s, c);
	return send_waiting(s, c);
}

bool resend(ncclsvc_session *s, uint32_t before, enum resend_when when)
{
	for (struct call **at = &s->calls; *at;) {
		struct call *c = *at;
		if (c->request_id >= before || time_of(c->opcode) != when) {
			at = &c->next;
			continue;
		}
		if (c->opcode == SVC_LEAVE || c->opcode == SVC_PLAN_DROP ||
		    c->opcode == SVC_REDOP_DEL || is_of_no_region(s, c)) {
			call_answer(at, NCCLSVC_OK); /* it went with the daemon */
			continue;
		}
		/* comm_compare's: the watcher compares now. A capture's: it begins again. */
		if (c->opcode == SVC_SUBMIT || c->bound || is_of_no_comm(s, c)) {
			call_answer(at, NCCLSVC_DAEMON_LOST);
			continue;
		}
		if (c->opcode == SVC_JOIN)
			call_forget(s, SVC_RESUME, &(struct svc_resume){.kind = SVC_RESUME_JOIN});
		if (!send_in_epoch(s, c))
			return false;
		at = &c->next;
	}
	return true;
}

bool resend_held(ncclsvc_session *s, uint32_t before)
{
	for (struct call **at = &s->calls; *at;) {
		struct call *c = *at;
		uint32_t handle;
		memcpy(&handle, c->request, sizeof(handle));
		const bool waits = c->opcode == SVC_SPLIT || c->opcode == SVC_PLAN_COMMIT;
		const ncclsvc_comm *comm = waits ? comm_by_handle(s, handle) : NULL;
		if (c->request_id >= before || !waits || (comm && !comm->held)) {
			at = &c->next;
			continue;
		}
		if (!comm) {
			call_answer(at, NCCLSVC_DAEMON_LOST);
			continue;
		}
		if (!send_in_epoch(s, c))
			return false;
		at = &c->next;
	}
	return true;
}
