/* SPDX-License-Identifier: Apache-2.0
 * Inspection of operations that use the direct transport. Only waiting kernels show how far a
 * rank's stream has come: the operations they wait for, and all later ones, are pending. */
#include "look.h"
#include "proto/task.h"

/* Looks at all members, some of which have waiting kernels. */
struct waiting {
	struct look looks[PEER_RANKS];
	uint32_t coll_seq; /* the first one waited for, outside of graphs; 0: none */
};

static bool waiting_find(const struct communicator *m, struct waiting *w)
{
	bool any = false;
	*w = (struct waiting){0}; /* a record can name an invalid rank */
	for (uint32_t k = 0; m->peer && k < m->nranks; k++) {
		struct look *l = &w->looks[k];
		*l = peer_look_at(peer_member_control(m, k));
		if (!peer_runs_kernels(m, k))
			l->waits = l->peer_dirs = 0;
		any = any || l->waits;
		if (l->waits && l->coll_seq &&
		    (!w->coll_seq || peer_reached(w->coll_seq, l->coll_seq)))
			w->coll_seq = l->coll_seq;
	}
	return any;
}

/* Does another rank wait for this operation? */
static bool is_awaited(const struct waiting *w, uint32_t rank, const struct peer_record *r)
{
	if (r->coll_seq)
		return w->coll_seq && peer_reached(r->coll_seq, w->coll_seq);
	const struct svc_record record = svc_header_record(r->header);
	const uint32_t peer = (uint32_t)record.peer;
	const uint32_t peer_dir =
		record.op == NCCLSVC_SEND ? PEER_DIR_TO(peer) : PEER_DIR_FROM(peer);
	const struct look *other = peer < PEER_RANKS ? &w->looks[peer] : NULL;
	const uint32_t back = peer_dir_reverse(peer_dir, rank);
	if (other && other->graph) /* graphs have their own counts */
		return false;
	return other && other->peer_dirs >> back & 1 &&
	       (int32_t)(r->message - other->message[back]) >= 0;
}

/* The number of the rank's first pending record; if none is pending, the number of its next record.
 */
static uint32_t first_pending(const struct communicator *m, const struct waiting *w, uint32_t rank)
{
	struct peer_record r;
	const struct look *l = &w->looks[rank];
	const struct peer_control *control = peer_member_control(m, rank);
	for (uint32_t i = PEER_HISTORY - 1; i; i--) {
		const uint32_t number = l->records - i;
		if (peer_record(control, number, &r) &&
		    (l->waits ? peer_reached(r.kernel_seq, l->kernel_seq)
			      : is_awaited(w, rank, &r)))
			return number;
	}
	return l->records;
}

/* The ranks that have not reached the collective in a graph; the rank's messages there wait for
 * them. */
static uint32_t missing_in_graph(const struct communicator *m, const struct waiting *w,
				 uint32_t rank)
{
	uint32_t ranks = 0;
	const struct look *l = &w->looks[rank];
	for (uint32_t k = 0; k < m->nranks; k++)
		if (l->moves ? l->peer_dirs >> PEER_DIR_TO(k) & 1 ||
				       l->peer_dirs >> PEER_DIR_FROM(k) & 1
			     : !peer_reached(w->looks[k].coll_launch_seq, l->coll_launch_seq))
			ranks |= UINT32_C(1) << k;
	return ranks;
}

/* The ranks that have not submitted their part. */
static uint32_t missing(const struct communicator *m, const struct waiting *w, uint32_t rank,
			const struct peer_record *r)
{
	uint32_t ranks = 0;
	const struct look *l = &w->looks[rank];
	const struct svc_record record = svc_header_record(r->header);
	const uint32_t peer = (uint32_t)record.peer;
	for (uint32_t k = 0; r->coll_seq && k < m->nranks; k++)
		if (!peer_reached(w->looks[k].reached, r->coll_seq) &&
		    !(l->kernel_seq == r->kernel_seq &&
		      peer_reached(w->looks[k].coll_launch_seq, l->coll_launch_seq)))
			ranks |= UINT32_C(1) << k;
	if (r->coll_seq || peer >= m->nranks)
		return ranks;
	const uint32_t peer_dir =
		record.op == NCCLSVC_SEND ? PEER_DIR_FROM(rank) : PEER_DIR_TO(rank);
	return (int32_t)(w->looks[peer].messages[peer_dir] - r->message) < 0 ? UINT32_C(1) << peer
									     : 0;
}

static void pending_range(const struct communicator *m, const struct waiting *w, uint32_t rank,
			  struct peer_range *range)
{
	/* The operations behind one in a graph are not known. */
	range->graph = w->looks[rank].waits ? w->looks[rank].graph : 0;
	range->first = range->graph ? 0 : first_pending(m, w, rank);
	range->n = range->graph ? 1 : w->looks[rank].records - range->first;
}

bool peer_operations(const struct communicator *m, uint32_t rank, struct peer_range *range)
{
	struct waiting w;
	if (!waiting_find(m, &w) || !peer_runs_kernels(m, rank))
		return false;
	pending_range(m, &w, rank, range);
	return range->n;
}

/* False: the kernel no longer waits. */
static bool operation_in_graph(const struct communicator *m, const struct waiting *w, uint32_t rank,
			       uint32_t graph, struct peer_operation *op)
{
	const struct look *l = &w->looks[rank];
	if (!l->waits || l->graph != graph)
		return false;
	op->record = peer_record_of_graph(peer_member_control(m, rank), l);
	op->graph = graph;
	op->kernel = l->waits;
	op->missing = missing_in_graph(m, w, rank);
	return true;
}

static bool operation_of_record(const struct communicator *m, const struct waiting *w,
				uint32_t rank, uint32_t number, struct peer_operation *op)
{
	if (!peer_record(peer_member_control(m, rank), number, &op->record))
		return false;
	op->kernel = op->record.kernel_seq;
	op->missing = missing(m, w, rank, &op->record);
	return true;
}

static bool pending_operation(const struct communicator *m, const struct waiting *w, uint32_t rank,
			      const struct peer_range *range, uint32_t nth,
			      struct peer_operation *op)
{
	*op = (struct peer_operation){0};
	if (!(range->graph ? operation_in_graph(m, w, rank, range->graph, op)
			   : operation_of_record(m, w, rank, range->first + nth, op)))
		return false;
	const struct look *l = &w->looks[rank];
	const struct peer_member *member = &m->peer->members[rank];
	const bool waits = l->waits && l->kernel_seq == op->record.kernel_seq;
	if (waits)
		op->state = op->missing ? NCCLSVC_WAITING_PEERS : NCCLSVC_LAUNCHED;
	else /* its stream has not reached it, or the one before */
		op->state = nth ? NCCLSVC_QUEUED : NCCLSVC_WAITING_INPUT;
	op->waits_ns = waits && member->waits == l->waits ? member->waits_ns : 0;
	return true;
}

bool peer_operation(const struct communicator *m, uint32_t rank, const struct peer_range *range,
		    uint32_t nth, struct peer_operation *op)
{
	struct waiting w;
	return waiting_find(m, &w) && pending_operation(m, &w, rank, range, nth, op);
}

/* ---- All that were launched ---- */

static int32_t result_of_end(uint32_t end)
{
	switch (end) {
	case PEER_GOOD:
		return NCCLSVC_OK;
	case PEER_MISMATCH:
	case PEER_FATAL_MISMATCH:
		return NCCLSVC_MISMATCH;
	case PEER_ABORTED:
		return NCCLSVC_PEER_GONE;
	case PEER_DAEMON_LOST:
		return NCCLSVC_DAEMON_LOST;
	}
	return NCCLSVC_SYSTEM;
}

/* Nothing says that a kernel has ended, but for some that fail. */
static bool ended_operation(const struct peer_control *control, uint32_t number,
			    struct peer_operation *op)
{
	*op = (struct peer_operation){.state = NCCLSVC_DONE};
	if (!peer_record(control, number, &op->record))
		return false;
	op->kernel = op->record.kernel_seq;
	const uint64_t end = peer_load64(&control->results[op->kernel % PEER_RESULTS]);
	if ((uint32_t)end == op->kernel)
		op->result = result_of_end((uint32_t)(end >> 32));
	if (op->result)
		op->state = NCCLSVC_FAILED;
	return true;
}

uint32_t peer_each_launched(const struct communicator *m, uint32_t rank, uint32_t from,
			    peer_each_fn *each, void *arg)
{
	struct waiting w;
	struct peer_range pending;
	struct peer_operation op;
	const struct peer_control *control = peer_member_control(m, rank);
	if (!waiting_find(m, &w)) /* then nothing is pending */
		w.looks[rank] = peer_look_at(control);
	const uint32_t records = w.looks[rank].records;
	const uint32_t n = records < PEER_HISTORY ? records : PEER_HISTORY - 1;
	pending_range(m, &w, rank, &pending);
	for (uint32_t i = from; i < n + (pending.graph != 0); i++) {
		const uint32_t number = records - n + i;
		bool known;
		if (i == n)
			known = pending_operation(m, &w, rank, &pending, 0, &op);
		else if (!pending.graph && number - pending.first < pending.n)
			known = pending_operation(m, &w, rank, &pending, number - pending.first,
						  &op);
		else
			known = ended_operation(control, number, &op);
		if (known && !each(arg, &op))
			return i;
	}
	return n + (pending.graph != 0);
}

uint32_t peer_launched(const struct communicator *m, uint32_t rank)
{
	return m->peer ? peer_load32(&peer_member_control(m, rank)->records) : 0;
}

uint32_t peer_pending(const struct communicator *m)
{
	struct peer_range range;
	uint32_t pending = 0;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (peer_operations(m, k, &range))
			pending += range.n;
	return pending;
}
