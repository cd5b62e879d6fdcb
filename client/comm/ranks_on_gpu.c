/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks_on_gpu.h"

#include "base/error.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "proto/names.h"
#include "proto/operation.h"
#include "proto/task.h"

/* ---- Operations for NCCL ---- */

/* A rank that shares its GPU with another one, which is *other. */
static int32_t sharing_rank(const struct peer *p, int32_t *other)
{
	for (int32_t b = 1; b < p->call.nranks; b++)
		for (int32_t a = 0; a < b; a++)
			if (peer_control_of(p->controls, (uint32_t)a)->device ==
			    peer_control_of(p->controls, (uint32_t)b)->device) {
				*other = b;
				return a;
			}
	return -1;
}

static const char *advice(const struct op *op)
{
	const struct svc_record *r = &op->record;
	const uint64_t bytes = svc_op_is_p2p(r->op) ? r->count * svc_type_size(r->type)
						    : svc_task_bytes(r, (uint32_t)op->comm->nranks);
	if (r->agreement || op->planned)
		return ", or use no lists or plans";
	return bytes > op->comm->peer_bytes ? ", or use several operations of less than 4 GiB"
					    : ", or use another type or reduction";
}

static ncclsvc_result refuse_nccl(const struct op *op)
{
	const struct peer *p = op->comm->peer;
	int32_t other = 0;
	const int32_t rank = sharing_rank(p, &other);
	const struct peer_control *c = peer_control_of(p->controls, (uint32_t)rank);
	return error_set(NCCLSVC_UNSUPPORTED,
			 "%s: two ranks of this communicator use GPU %d (ranks %d and %d, pids %d "
			 "and %d); this operation needs NCCL, which takes one rank per GPU: give "
			 "each rank its own GPU%s",
			 svc_op_name(op->record.op), c->device, rank, other, c->pid,
			 peer_control_of(p->controls, (uint32_t)other)->pid, advice(op));
}

static bool is_shared(const ncclsvc_comm *comm)
{
	return comm->peer && comm->peer->ranks_per_gpu > 1;
}

ncclsvc_result ranks_on_gpu_check(const struct op *ops, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (!ops[i].route.kernel && ops[i].comm->peer &&
		    ops[i].comm->peer->control->kernels_only)
			return refuse_nccl(&ops[i]);
	return NCCLSVC_OK;
}

/* ---- Streams of one process's ranks ---- */

static bool is_beside(const ncclsvc_comm *a, const ncclsvc_comm *b)
{
	return a != b && a->uid == b->uid && a->device == b->device && is_shared(a) && is_shared(b);
}

/* Does the other rank's newest kernel, on the operation's stream, wait for this collective? */
static bool is_awaited(const struct op *op, struct peer *other)
{
	if ((int32_t)(other->coll_seq - op->comm->peer->coll_seq) <= 0 ||
	    pthread_mutex_trylock(&other->capture->turn))
		return false;
	const bool same = other->newest.any && other->newest.stream_id == op->launch.stream_id &&
			  other->newest.stream_context == op->launch.stream_context;
	pthread_mutex_unlock(&other->capture->turn);
	return same;
}

/* Another rank whose collective on the same stream waits for this one, or NULL. */
static const ncclsvc_comm *find_waiting(const ncclsvc_session *s, const struct op *ops, unsigned i)
{
	for (unsigned k = 0; k < i; k++)
		if (is_beside(ops[k].comm, ops[i].comm) && ops[k].stream == ops[i].stream &&
		    !svc_op_is_p2p(ops[k].record.op))
			return ops[k].comm;
	for (const ncclsvc_comm *c = s->comms; c; c = c->next)
		if (is_beside(c, ops[i].comm) && !ops[i].route.captured &&
		    is_awaited(&ops[i], c->peer))
			return c;
	return NULL;
}

ncclsvc_result ranks_on_gpu_check_streams(const ncclsvc_session *s, const struct op *ops,
					  unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		const ncclsvc_comm *comm = ops[i].comm;
		if (!is_shared(comm) || svc_op_is_p2p(ops[i].record.op))
			continue;
		const ncclsvc_comm *other = find_waiting(s, ops, i);
		if (other)
			return error_argument("%s: ranks %d and %d of communicator %s use one GPU "
					      "and one stream, where each would wait for the "
					      "other: give each rank a stream of its own",
					      svc_op_name(ops[i].record.op), other->rank,
					      comm->rank, comm->label);
	}
	return NCCLSVC_OK;
}
