/* SPDX-License-Identifier: Apache-2.0
 * The supervisor's requests. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/closer.h"
#include "base/log.h"
#include "base/timings.h"
#include "proto/fdio.h"
#include "worker.h"
#include "worker_launch.h"

static void make_id(struct worker_message *m)
{
	ncclUniqueId id;
	ncclResult_t result = nccl.ncclGetUniqueId(&id);
	if (result) {
		m->result = NCCLSVC_SYSTEM;
		snprintf(m->text, sizeof(m->text), "NCCL cannot create a unique id: %s",
			 nccl.ncclGetErrorString(result));
	}
	memcpy(m->comm.id, &id, sizeof(m->comm.id));
}

static bool comm_slot_valid(const struct worker_message *m)
{
	return m->comm.slot < WORKER_COMM_SLOTS;
}

static void handle(struct worker *w, struct worker_message *m, int fd)
{
	m->result = NCCLSVC_OK;
	m->text[0] = '\0';
	switch (m->kind) {
	case WORKER_SESSION:
		if (m->session.slot < SVC_SESSIONS_MAX)
			session_open(w, m, fd);
		break;
	case WORKER_SESSION_CLOSE:
		if (m->session.slot < SVC_SESSIONS_MAX)
			session_close(w, m->session.slot);
		return;
	case WORKER_IMPORT:
		import_open(w, m, fd);
		break;
	case WORKER_RANGE_PARTS:
		range_parts(w, m);
		return;
	case WORKER_RANGE:
		if (range_open(w, m))
			return;
		break;
	case WORKER_REGION_CLOSE:
		import_close(w, m);
		return;
	case WORKER_UNIQUE_ID:
		make_id(m);
		break;
	case WORKER_COMM_INIT:
		if (!comm_slot_valid(m))
			break;
		comm_slot_init_asked(w, m);
		return;
	case WORKER_COMM_CANCEL:
		if (comm_slot_valid(m))
			comm_slot_init_cancel(w, m);
		return;
	case WORKER_COMM_ABORT:
		if (comm_slot_valid(m) && comm_slot_abort(w, m))
			return;
		break;
	case WORKER_COMM_DESTROY:
		if (comm_slot_valid(m))
			comm_slot_destroy(w, m->comm.slot);
		return;
	case WORKER_REDOP_ADD:
		redop_add(w, m);
		break;
	case WORKER_REDOP_DEL:
	case WORKER_REDOPS_CLEAR:
		/* Launches in the queue may still name the reduction. */
		while (launch_next(w))
			;
		redop_del(w, m);
		return;
	case WORKER_PING:
		/* An idle GPU fails without notice. */
		worker_bad(w, cu.cuMemcpyDtoH(&(char){0}, w->scratch, 1),
			   "the GPU does not answer");
		break;
	case WORKER_END:
		w->quit = true;
		return;
	default:
		log_error("the worker ignored a request of unknown kind %u: a defect of the daemon",
			  m->kind);
		return;
	}
	worker_send(w, m);
}

/* Received descriptors belong to users, or are the last references, so a close may take long. */
static void close_received(struct worker *w, const int *fds, unsigned nfds)
{
	if (nfds)
		closer_add(w->closer, fds, nfds < SVC_FDS_MAX ? nfds : SVC_FDS_MAX);
}

bool control_handle(struct worker *w)
{
	struct worker_message m;
	int fds[SVC_FDS_MAX];
	unsigned nfds = 0;
	uint64_t end = 0;
	do {
		ssize_t n = svc_recv(w->sock, &m, sizeof(m), fds, &nfds, MSG_DONTWAIT);
		if (n == -EAGAIN)
			return true;
		if (n == (ssize_t)sizeof(m))
			handle(w, &m, nfds ? fds[0] : -1);
		close_received(w, fds, nfds);
		if (n != (ssize_t)sizeof(m))
			return false;
		if (!end)
			end = clock_now() + WORKER_TURN_NS;
	} while (!w->quit && clock_now() < end);
	return true;
}
