/* SPDX-License-Identifier: Apache-2.0
 * Reductions that a member creates with its own scalar: its worker creates them in NCCL. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "comm.h"
#include "comm_gpus.h"
#include "comms.h"
#include "gpu/gpu.h"
#include "gpu/nccl_comm.h"
#include "peer/shared_gpu.h"
#include "proto/names.h"

struct redop_call {
	struct comms *comms;
	uint32_t session, request_id, comm;
	/* While the communicator has no NCCL communicator: */
	struct redop_call *prev, *next;
	int32_t device;
	struct worker_message request;
};

_Static_assert(SVC_REDOPS_MADE <= 64, "a member has a bit for each");

static uint64_t bit(uint32_t redop)
{
	return UINT64_C(1) << (redop - SVC_REDOP_MADE);
}

static void on_made(struct gpu *g, void *arg, const struct worker_message *answer)
{
	const struct redop_call call = *(struct redop_call *)arg;
	struct session *c = sessions_find(call.comms->sessions, call.session);
	int32_t rank;
	free(arg);
	if (!c)
		return;
	c->redops--;
	if (c->state != SESSION_OPEN)
		return;
	if (!answer || answer->result) {
		session_error(c, SVC_REDOP_ADD, call.request_id,
			      answer ? answer->result : NCCLSVC_WORKER_LOST, "gpu%d: %.200s",
			      g->index, answer ? answer->text : "its worker was lost");
		return;
	}
	const struct communicator *m = comm_of_handle(c, call.comm, &rank);
	if (m && svc_redop_made(answer->redop.redop))
		m->members[rank].redops |= bit(answer->redop.redop);
	struct svc_redop_reply reply = {.redop = answer->redop.redop};
	session_reply(c, SVC_REDOP_ADD, call.request_id, &reply, sizeof(reply), NULL, 0);
}

static bool has_nccl(const struct communicator *m)
{
	return m->nccl_comm && !m->nccl_wanted && !m->nccl_asked;
}

/* Returns the member; NULL after an error was sent. */
static struct member *find(struct comms *s, struct session *c, unsigned opcode, uint32_t request_id,
			   uint32_t comm, struct communicator **of)
{
	int32_t rank = 0;
	char text[SVC_TEXT_BYTES];
	struct communicator *m = *of = comm_of_handle(c, comm, &rank);
	if (!m) {
		session_error(c, opcode, request_id, NCCLSVC_NOT_FOUND,
			      "there is no communicator %u in this session", comm);
		return NULL;
	}
	if (epoch_runs(&m->life) && comm_lacks_nccl(m, "premulsum", text)) {
		session_error(c, opcode, request_id, NCCLSVC_UNSUPPORTED, "%s", text);
		return NULL;
	}
	if (m->cuda && !s->gpus->staging && epoch_runs(&m->life))
		return &m->members[rank];
	if (m->cuda && s->gpus->staging) {
		session_error(c, opcode, request_id, NCCLSVC_UNSUPPORTED,
			      "premulsum needs NCCL, but this daemon's transport is mpi");
		return NULL;
	}
	session_error(c, opcode, request_id, m->cuda ? NCCLSVC_STALE_EPOCH : NCCLSVC_UNSUPPORTED,
		      m->cuda ? "communicator %s lacks members: rejoin it first"
			      : "communicator %s is on the host, but premulsum needs GPUs",
		      m->label);
	return NULL;
}

static void ask(struct communicator *m, struct redop_call *call)
{
	struct comms *s = call->comms;
	struct worker_message w = call->request;
	w.redop.slot = m->nccl_comm->slot;
	gpu_ask(s->gpus->gpu[call->device], &w, -1, on_made, call, gpu_patience_ns(s->gpus));
}

void comm_redops_add(struct communicator *m)
{
	while (m->redop_calls) {
		struct redop_call *call = m->redop_calls;
		DL_DELETE(m->redop_calls, call);
		ask(m, call);
	}
}

void comm_redops_refuse(struct communicator *m)
{
	while (m->redop_calls) {
		struct redop_call *call = m->redop_calls;
		struct session *c = sessions_find(call->comms->sessions, call->session);
		DL_DELETE(m->redop_calls, call);
		if (c)
			c->redops--;
		if (c && c->state == SESSION_OPEN)
			session_error(c, SVC_REDOP_ADD, call->request_id, NCCLSVC_STALE_EPOCH,
				      "communicator %s lacks members: rejoin it first", m->label);
		free(call);
	}
}

void comm_redops_free_all(struct comms *s)
{
	struct communicator *m, *next;
	HASH_ITER (hh, s->comms, m, next)
		comm_redops_refuse(m);
}

void comm_redop_add(struct comms *s, struct session *c, uint32_t request_id,
		    const struct svc_redop_add *r)
{
	static const uint8_t none[sizeof(r->scalar)];
	struct worker_message w = {.kind = WORKER_REDOP_ADD};
	const size_t size = svc_type_size(r->type);
	if (!size || !svc_type_reduces(r->type) || r->reserved[0] || r->reserved[1] ||
	    r->reserved[2] || memcmp(r->scalar + size, none, sizeof(r->scalar) - size) != 0) {
		session_error(
			c, SVC_REDOP_ADD, request_id, NCCLSVC_INVALID_ARGUMENT,
			"the type cannot be reduced, or the bytes after the scalar are not zero");
		return;
	}
	/* A busy worker would have to queue all of them. */
	if (c->redops >= SVC_REDOPS_ASKED) {
		session_error(c, SVC_REDOP_ADD, request_id, NCCLSVC_BUSY,
			      "%d REDOP_ADDs of this session have no answer yet: try again",
			      SVC_REDOPS_ASKED);
		return;
	}
	struct communicator *m;
	const struct member *member = find(s, c, SVC_REDOP_ADD, request_id, r->comm, &m);
	struct redop_call *call = member ? malloc(sizeof(*call)) : NULL;
	if (member && !call)
		session_error(c, SVC_REDOP_ADD, request_id, NCCLSVC_NO_MEMORY, "out of memory");
	if (!call)
		return;
	w.redop.type = r->type;
	memcpy(w.redop.scalar, r->scalar, sizeof(w.redop.scalar));
	*call = (struct redop_call){.comms = s,
				    .session = c->id,
				    .request_id = request_id,
				    .comm = r->comm,
				    .device = member->device,
				    .request = w};
	c->redops++;
	if (has_nccl(m)) {
		ask(m, call);
		return;
	}
	DL_APPEND(m->redop_calls, call);
	m->nccl_wanted = true;
	comm_deadline(m, clock_now());
}

void comm_redop_del(struct comms *s, struct session *c, uint32_t request_id,
		    const struct svc_redop_del *r)
{
	struct worker_message w = {.kind = WORKER_REDOP_DEL, .redop.redop = r->redop};
	if (!svc_redop_made(r->redop)) {
		session_error(c, SVC_REDOP_DEL, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "reduction %u was not created by REDOP_ADD (16 to 63)", r->redop);
		return;
	}
	struct communicator *m;
	struct member *member = find(s, c, SVC_REDOP_DEL, request_id, r->comm, &m);
	if (!member)
		return;
	/* Only reductions that the worker has created are deleted there. */
	if (member->redops & bit(r->redop) && m->nccl_comm) {
		w.redop.slot = m->nccl_comm->slot;
		gpu_tell(s->gpus->gpu[member->device], &w);
	}
	member->redops &= ~bit(r->redop);
	session_reply(c, SVC_REDOP_DEL, request_id, NULL, 0, NULL, 0);
}
