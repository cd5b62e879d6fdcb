/* SPDX-License-Identifier: Apache-2.0
 * Turns the operations' arguments into records. */
#include "base/error.h"
#include "core/comm_handle.h"
#include "core/op.h"
#include "core/refusal.h"
#include "core/session_handle.h"
#include "core/session_timeline.h"
#include "core/thread.h"
#include "cuda/session_gpu.h"
#include "group.h"
#include "proto/names.h"
#include "submit.h"

static ncclsvc_result operate(struct op *op)
{
	ncclsvc_session *s = op->comm->session;
	session_lock(s);
	struct thread_state *t = thread_find(s);
	const ncclsvc_timeline *timeline =
		t ? atomic_load_explicit(&t->timeline, memory_order_relaxed) : NULL;
	if (timeline && op->comm->device < 0) {
		op->record.flags |= SVC_TASK_TIMELINE;
		op->record.timeline = timeline->index;
		op->record.value = t->timeline_value;
	}
	ncclsvc_result r = op_check(op);
	if (!r && op->comm->device >= 0)
		r = stream_choose(op, t);
	if (t && t->grouping) {
		if (!r)
			r = comm_check(op->comm);
		if (!r)
			r = group_add(t, op);
		if (r)
			group_refuse(t, r);
	} else if (!r) {
		r = ops_submit(s, op, 1);
	}
	if (r)
		refusal_tell(op);
	session_unlock(s);
	return r;
}

/* The thread's open group, if an operation can join it without the lock: the end of the group
 * checks what needs the lock. */
static struct thread_state *open_group(const ncclsvc_comm *comm)
{
	struct thread_state *t = thread_own(comm->session);
	bool can = t && t->grouping && comm->device < 0 &&
		   !atomic_load_explicit(&t->timeline, memory_order_relaxed);
	return can ? t : NULL;
}

/* Values that do not fit the record's bytes must not turn into valid ones. */
static uint8_t narrow(unsigned value)
{
	return value > UINT8_MAX ? UINT8_MAX : (uint8_t)value;
}

static ncclsvc_result submit(unsigned kind, const void *src, void *dst, size_t count,
			     ncclsvc_type type, ncclsvc_redop redop, int peer, ncclsvc_comm *comm,
			     ncclsvc_task *task)
{
	if (!comm)
		return error_argument("%s: the communicator is NULL", svc_op_name(kind));
	struct thread_state *group = open_group(comm);
	ncclsvc_result r = NCCLSVC_OK;
	struct op alone, *op = group ? group_room(group, &r) : &alone;
	if (op) {
		*op = (struct op){
			.record = {.op = (uint8_t)kind,
				   .type = narrow(type),
				   .redop = narrow(redop),
				   .peer = peer,
				   .count = count,
				   .timeout_ns = atomic_load_explicit(&comm->timeout_ns,
								      memory_order_relaxed)},
			.comm = comm,
			.src = src,
			.dst = dst,
			.task = task,
		};
		if (!group)
			return operate(op);
		r = op_check(op);
		if (r) {
			session_lock(comm->session);
			refusal_tell(op);
			session_unlock(comm->session);
		}
	}
	if (r)
		group_refuse(group, r);
	else
		group->nops++;
	return r;
}

#define NO_REDOP NCCLSVC_SUM /* zero, for operations that reduce nothing */
#define NO_PEER	 (-1)

ncclsvc_result ncclsvc_all_reduce(const void *sendbuf, void *recvbuf, size_t count,
				  ncclsvc_type type, ncclsvc_redop redop, ncclsvc_comm *comm,
				  ncclsvc_task *task)
{
	return submit(NCCLSVC_ALL_REDUCE, sendbuf, recvbuf, count, type, redop, NO_PEER, comm,
		      task);
}

ncclsvc_result ncclsvc_all_gather(const void *sendbuf, void *recvbuf, size_t sendcount,
				  ncclsvc_type type, ncclsvc_comm *comm, ncclsvc_task *task)
{
	return submit(NCCLSVC_ALL_GATHER, sendbuf, recvbuf, sendcount, type, NO_REDOP, NO_PEER,
		      comm, task);
}

ncclsvc_result ncclsvc_reduce_scatter(const void *sendbuf, void *recvbuf, size_t recvcount,
				      ncclsvc_type type, ncclsvc_redop redop, ncclsvc_comm *comm,
				      ncclsvc_task *task)
{
	return submit(NCCLSVC_REDUCE_SCATTER, sendbuf, recvbuf, recvcount, type, redop, NO_PEER,
		      comm, task);
}

ncclsvc_result ncclsvc_broadcast(const void *sendbuf, void *recvbuf, size_t count,
				 ncclsvc_type type, int root, ncclsvc_comm *comm,
				 ncclsvc_task *task)
{
	return submit(NCCLSVC_BROADCAST, sendbuf, recvbuf, count, type, NO_REDOP, root, comm, task);
}

ncclsvc_result ncclsvc_reduce(const void *sendbuf, void *recvbuf, size_t count, ncclsvc_type type,
			      ncclsvc_redop redop, int root, ncclsvc_comm *comm, ncclsvc_task *task)
{
	return submit(NCCLSVC_REDUCE, sendbuf, recvbuf, count, type, redop, root, comm, task);
}

ncclsvc_result ncclsvc_all_to_all(const void *sendbuf, void *recvbuf, size_t count,
				  ncclsvc_type type, ncclsvc_comm *comm, ncclsvc_task *task)
{
	return submit(NCCLSVC_ALL_TO_ALL, sendbuf, recvbuf, count, type, NO_REDOP, NO_PEER, comm,
		      task);
}

ncclsvc_result ncclsvc_gather(const void *sendbuf, void *recvbuf, size_t count, ncclsvc_type type,
			      int root, ncclsvc_comm *comm, ncclsvc_task *task)
{
	return submit(NCCLSVC_GATHER, sendbuf, recvbuf, count, type, NO_REDOP, root, comm, task);
}

ncclsvc_result ncclsvc_scatter(const void *sendbuf, void *recvbuf, size_t count, ncclsvc_type type,
			       int root, ncclsvc_comm *comm, ncclsvc_task *task)
{
	return submit(NCCLSVC_SCATTER, sendbuf, recvbuf, count, type, NO_REDOP, root, comm, task);
}

ncclsvc_result ncclsvc_send(const void *sendbuf, size_t count, ncclsvc_type type, int peer,
			    ncclsvc_comm *comm, ncclsvc_task *task)
{
	return submit(NCCLSVC_SEND, sendbuf, NULL, count, type, NO_REDOP, peer, comm, task);
}

ncclsvc_result ncclsvc_recv(void *recvbuf, size_t count, ncclsvc_type type, int peer,
			    ncclsvc_comm *comm, ncclsvc_task *task)
{
	return submit(NCCLSVC_RECV, NULL, recvbuf, count, type, NO_REDOP, peer, comm, task);
}

ncclsvc_result ncclsvc_barrier(ncclsvc_comm *comm, ncclsvc_task *task)
{
	return submit(NCCLSVC_BARRIER, NULL, NULL, 0, NCCLSVC_INT8, NO_REDOP, NO_PEER, comm, task);
}
