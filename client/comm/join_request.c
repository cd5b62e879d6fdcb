/* SPDX-License-Identifier: Apache-2.0 */
#include "join_request.h"

#include <stdio.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "cuda/direct/peer_life.h"
#include "cuda/session_gpu.h"
#include "proto/names.h"

#define AGAIN_MS 20

static _Thread_local char next_label[NCCLSVC_NAME_BYTES];
static _Thread_local struct comm_tuning next_tuning;

void ncclsvc_comm_label_next(const char *label)
{
	svc_label_copy(next_label, sizeof(next_label), label ? label : "");
}

void join_take_label(char label[NCCLSVC_NAME_BYTES])
{
	memcpy(label, next_label, sizeof(next_label));
	memset(next_label, 0, sizeof(next_label));
}

void ncclsvc_comm_tuning_next(unsigned blocks, int copy_engines)
{
	next_tuning = (struct comm_tuning){
		.blocks = (uint8_t)(blocks < PEER_BLOCKS ? blocks : PEER_BLOCKS),
		.copy_engines = copy_engines,
	};
}

struct comm_tuning join_take_tuning(void)
{
	const struct comm_tuning taken = next_tuning;
	next_tuning = (struct comm_tuning){0};
	return taken;
}

uint64_t join_deadline(int timeout_ms)
{
	return timeout_ms < 0 ? NO_DEADLINE : deadline_in(timeout_ms) + JOIN_GRACE_NS;
}

void join_answer_bad(ncclsvc_session *s, struct call *call)
{
	session_lose(s, "the daemon broke the protocol: its answer to %s is out of range",
		     svc_shape_of(s->connection->version, call->opcode)->name);
	call->result = NCCLSVC_DAEMON_LOST;
	snprintf(call->text, sizeof(call->text), "%s", s->lost_text);
}

ncclsvc_result join_begin(ncclsvc_session *s, struct call *call, unsigned opcode, const void *body,
			  const ncclsvc_comm *comm, uint32_t *staging, uint64_t deadline,
			  const ncclsvc_comm *beside)
{
	ncclsvc_result r = beside ? comm_end(beside) : NCCLSVC_OK;
	call->beside = beside ? beside->key : 0;
	if (!r)
		r = peer_staging_current(s, comm);
	if (r)
		return r;
	*staging = peer_region(comm->peer);
	call->bound = true; /* until it is sent */
	call->connections = session_connections(s);
	r = call_begin(s, call, opcode, body, -1, deadline);
	call->bound = false;
	return r;
}

bool join_retry(const ncclsvc_session *s, ncclsvc_result r)
{
	return r == NCCLSVC_DAEMON_LOST && !s->lost;
}

/* The daemon of the node where the members gather has ended, and is not back yet. */
static bool is_temporary(const struct call *call, ncclsvc_result r, uint64_t *until,
			 const ncclsvc_session *s)
{
	if (call->opcode != SVC_JOIN || !s->watching)
		return false;
	if (r == NCCLSVC_AGAIN && !*until)
		*until = deadline_in(s->reattach_ms);
	return (r == NCCLSVC_AGAIN || r == NCCLSVC_PEER_GONE) && now_ns() < *until;
}

static void nap(ncclsvc_session *s)
{
	const uint64_t end = deadline_in(AGAIN_MS);
	while (now_ns() < end)
		session_wait(s, end);
}

ncclsvc_result join_finish(ncclsvc_session *s, struct call *call, const ncclsvc_comm *comm,
			   uint64_t deadline, const ncclsvc_comm *beside)
{
	uint64_t until = 0;
	ncclsvc_result r = call_finish(s, call, deadline);
	while (is_temporary(call, r, &until, s) && now_ns() < deadline) {
		struct svc_join request;
		nap(s);
		memcpy(&request, call->request, sizeof(request));
		do
			r = join_begin(s, call, SVC_JOIN, &request, comm, &request.staging,
				       deadline, beside);
		while (join_retry(s, r));
		if (!r)
			r = call_finish(s, call, deadline);
	}
	return r == NCCLSVC_CANCELLED && beside && beside->broken ? comm_end(beside) : r;
}

uint32_t join_admit_flags(const ncclsvc_session *s)
{
	return s->admit == NCCLSVC_ADMIT_ANY	? SVC_JOIN_ADMIT_ANY
	       : s->admit == NCCLSVC_ADMIT_USER ? SVC_JOIN_ADMIT_USER
						: 0;
}

void join_say_mps(int device, struct svc_join *request)
{
	if (device != NCCLSVC_DEVICE_HOST)
		request->mps = mps_of_device(device, &request->mps_server);
}

struct svc_join rejoin_request(const ncclsvc_comm *comm, uint64_t timeout_ns)
{
	struct svc_join request = {
		.nranks = comm->world ? 0 : comm->nranks,
		.rank = comm->rank,
		.device = comm->daemon_device,
		.flags = (uint16_t)((comm->world ? SVC_JOIN_WORLD : 0) |
				    join_admit_flags(comm->session)),
		.staging = peer_region(comm->peer),
		.out_of_reach = peer_out_of_reach(comm->peer),
		.blocks = comm->tuning.blocks,
		.timeout_ns = timeout_ns,
	};
	if (!comm->world)
		memcpy(request.id, comm->id.bytes, sizeof(request.id));
	memcpy(request.label, comm->label, sizeof(request.label));
	join_say_mps(comm->device, &request);
	return request;
}
