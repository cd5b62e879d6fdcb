/* SPDX-License-Identifier: Apache-2.0
 *
 * Watches the control blocks of a communicator whose members' kernels communicate directly. A
 * kernel that waits in vain (stuck.c) can only be ended together with the epoch. A conclusion from
 * the control blocks must hold at PEER_LOOKS looks. So the worst that a member can do is to end its
 * own epoch. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "account/task_table.h"
#include "base/clock.h"
#include "base/timings.h"
#include "comm/comm.h"
#include "comm/comms.h"
#include "comm/report.h"
#include "proto/names.h"
#include "proto/operation.h"
#include "proto/task.h"
#include "stuck.h"

/* ---- Ending the epoch ---- */

static void order_status(ncclsvc_status *st, unsigned op_a, unsigned op_b)
{
	st->field = NCCLSVC_FIELD_ORDER;
	st->value_a = op_a;
	st->value_b = op_b;
}

/* The header in the other rank's waiting kernel. */
static unsigned waiting_op(const struct communicator *m, const struct look *look, uint32_t rank)
{
	struct peer_record r;
	if (look->peer_dirs)
		return peer_dir_op((uint32_t)__builtin_ctz(look->peer_dirs));
	if (look->graph)
		return (unsigned)(look->header >> 56);
	return peer_record_of(peer_member_control(m, rank), look->kernel_seq, &r) ? r.header >> 56
										  : 0;
}

/* The headers of a message and of its receiver's Recv, or of a collective in a graph. */
static void compare_mismatch(const struct communicator *m, ncclsvc_status *st)
{
	const peer_atomic64 *mismatch = peer_member_control(m, (uint32_t)st->rank_a)->mismatch;
	struct svc_record r[2];
	const uint64_t how = peer_load64(&mismatch[3]);
	for (int i = 0; i < 2; i++) {
		const uint64_t header = peer_load64(&mismatch[i]);
		const uint64_t size = svc_type_size((unsigned)(header >> 56));
		r[i] = (struct svc_record){.op = i ? NCCLSVC_SEND : NCCLSVC_RECV,
					   .type = (uint8_t)(header >> 56),
					   .count = size ? PEER_MESSAGE_BYTES(header) / size : 0};
		if (how != PEER_MISMATCH_MESSAGE)
			r[i] = svc_header_record(header);
	}
	const bool own = how == PEER_MISMATCH_OWN;
	st->field = svc_record_differs(&r[own], &r[!own], &st->value_a, &st->value_b);
	if (own) {
		const ncclsvc_status pair = *st;
		st->rank_a = pair.rank_b;
		st->pid_a = pair.pid_b;
		st->rank_b = pair.rank_a;
		st->pid_b = pair.pid_a;
	}
	if (own || how == PEER_MISMATCH_OTHER) {
		st->missing_count = 1;
		st->missing[0] = st->rank_b;
	}
}

/* Copies the rank's first task of the kind to *r if it is older than *seq, and lowers *seq to it.
 */
static void take_older(const struct communicator *m, uint32_t rank, uint32_t kind, uint64_t *seq,
		       struct svc_record *r)
{
	struct table_entry e;
	const uint32_t slot = stuck_pending(m, rank, kind);
	const struct task_table *t = scheduler_table(m->comms->scheduler);
	if (!slot || !table_get(t, slot - 1, &e) || e.comm_uid != m->uid || e.epoch != m->epoch ||
	    e.rank != (int32_t)rank || e.seq >= *seq)
		return;
	*seq = e.seq;
	*r = (struct svc_record){
		.op = e.op, .type = e.type, .redop = e.redop, .peer = e.peer, .count = e.count};
}

/* The rank's oldest collective on NCCL, or the Send or Recv with the other, waiting rank; op 0:
 * none. */
static struct svc_record pending_record(const struct communicator *m, uint32_t rank, unsigned op,
					int32_t other)
{
	const uint32_t offsets[] = {PENDING_IN_NO_GRAPH, PENDING_IN_GRAPH};
	uint32_t first = 0, end = PENDING_MESSAGE_WAITS;
	struct svc_record r = {0};
	uint64_t seq = UINT64_MAX;
	if (svc_op_is_p2p(op)) {
		first = PENDING_MESSAGE_WAITS + (op == NCCLSVC_SEND
							 ? PEER_DIR_TO((uint32_t)other)
							 : PEER_DIR_FROM((uint32_t)other));
		end = first + 1;
	}
	for (unsigned i = 0; i < 2; i++)
		for (uint32_t kind = first; kind < end; kind++)
			take_older(m, rank, offsets[i] + kind, &seq, &r);
	return r;
}

/* b runs on NCCL what a has launched with that header, but it is a different operation there. */
static void compare(const struct communicator *m, uint64_t header, ncclsvc_status *st)
{
	const struct svc_record a = svc_header_record(header);
	const unsigned opposite = a.op == NCCLSVC_SEND	 ? NCCLSVC_RECV
				  : a.op == NCCLSVC_RECV ? NCCLSVC_SEND
							 : a.op;
	const struct svc_record b = pending_record(m, (uint32_t)st->rank_b, opposite, st->rank_a);
	if (b.op)
		st->field = svc_record_differs(&a, &b, &st->value_a, &st->value_b);
	else
		st->field = NCCLSVC_FIELD_OP;
	if (st->field == NCCLSVC_FIELD_NONE)
		st->field = NCCLSVC_FIELD_ORDER;
	if (st->field == NCCLSVC_FIELD_ORDER || !b.op) {
		st->value_a = a.op;
		st->value_b = b.op;
	}
}

/* All other ranks, two or more, have launched it. */
static bool is_odd_one(const struct communicator *m, const struct peer_stuck *stuck,
		       const struct look *looks)
{
	uint32_t n = 0;
	const uint32_t coll_seq = looks[stuck->rank].coll_seq;
	for (uint32_t k = 0; k < m->nranks; k++)
		n += (int32_t)k != stuck->other && coll_seq &&
		     peer_reached(looks[k].reached, coll_seq);
	return stuck->result == NCCLSVC_MISMATCH && !stuck->message && !stuck->circle &&
	       m->nranks > 2 && n == m->nranks - 1;
}

static ncclsvc_status status_of_stuck(const struct communicator *m, const struct peer_stuck *stuck,
				      const struct look *looks, uint64_t header)
{
	const int32_t rank = (int32_t)stuck->rank, other = stuck->other;
	const int32_t a = stuck->result == NCCLSVC_PEER_GONE ? other : rank;
	const int32_t b = stuck->result == NCCLSVC_PEER_GONE ? -1 : other;
	ncclsvc_status st = {.result = stuck->result,
			     .started_ns = m->peer->members[rank].waits_ns,
			     .rank_a = a,
			     .pid_a = m->members[a].pid,
			     .rank_b = b,
			     .pid_b = b >= 0 ? m->members[b].pid : 0,
			     .ending = m->members[a].ending.how,
			     .ending_code = m->members[a].ending.code};
	if (stuck->mismatch)
		compare_mismatch(m, &st);
	else if (stuck->circle)
		order_status(&st, (unsigned)(header >> 56),
			     waiting_op(m, &looks[other], (uint32_t)other));
	else if (st.result == NCCLSVC_MISMATCH)
		compare(m, header, &st);
	if (other >= 0 && (st.result == NCCLSVC_TIMEOUT || is_odd_one(m, stuck, looks))) {
		st.missing_count = 1;
		st.missing[0] = other;
	}
	return st;
}

static const char *lack(const struct peer_stuck *stuck, const struct look *looks)
{
	const uint32_t k = (uint32_t)stuck->other;
	const bool entered = stuck_other_entered(stuck, looks);
	if (looks[k].broken)
		return "whose kernels are aborted";
	if (stuck->circle)
		return "whose kernel waits for that rank, in a circle";
	if (stuck->result == NCCLSVC_MISMATCH)
		return "which has submitted a different one";
	if (!entered)
		return looks[stuck->rank].graph ? "whose kernel has not begun"
						: "which has not submitted it";
	return stuck->result == NCCLSVC_TIMEOUT ? "whose stream has not reached it"
						: "whose process has ended";
}

/* "AllReduce #7 of rank 0 waits on the GPU for rank 1, which has not submitted it" */
static void tell(struct communicator *m, const struct peer_stuck *stuck, const struct look *looks,
		 const ncclsvc_status *st, const struct peer_record *r)
{
	char text[192], what[96] = "an operation";
	const struct look *l = &looks[stuck->rank];
	const char *op = svc_op_name((unsigned)(r->header >> 56));
	if (r->kernel_seq)
		snprintf(what, sizeof(what), "%s #%llu", op, (unsigned long long)r->operation);
	else if (r->header)
		snprintf(what, sizeof(what), "%s (#%llu in CUDA graph %u)", op,
			 (unsigned long long)r->operation, l->graph);
	if (stuck->other < 0)
		snprintf(text, sizeof(text),
			 "%s of rank %u has begun on all GPUs, but does not end", what,
			 stuck->rank);
	else if (stuck->mismatch)
		snprintf(text, sizeof(text),
			 peer_load64(&peer_member_control(m, stuck->rank)->mismatch[3])
				 ? "rank %u has a different operation in a CUDA graph than rank %d"
				 : "rank %u expects a different message than rank %d sent",
			 stuck->rank, stuck->other);
	else if (!stuck->launch_seq && stuck->message)
		snprintf(text, sizeof(text),
			 "%s of rank %u ran in a kernel, but rank %d's Recv did not", what,
			 stuck->rank, stuck->other);
	else if (stuck->other == (int32_t)stuck->rank && !stuck->circle)
		snprintf(text, sizeof(text), "rank %u's kernels are aborted", stuck->rank);
	else
		snprintf(text, sizeof(text), "%s of rank %u waits on the GPU for rank %d, %s", what,
			 stuck->rank, stuck->other, lack(stuck, looks));
	report_kernels(m, st, text);
}

/* The waiting or failed operation; zeros if unknown. */
static struct peer_record record_of_stuck(const struct communicator *m,
					  const struct peer_stuck *stuck, const struct look *l)
{
	struct peer_record r;
	const struct peer_control *control = peer_member_control(m, stuck->rank);
	if (l->graph && stuck->launch_seq)
		return peer_record_of_graph(control, l);
	if (stuck->message ? peer_record_in(control, stuck->peer_dir, stuck->message, &r)
			   : peer_record_of(control, stuck->kernel_seq, &r))
		return r;
	return (struct peer_record){0};
}

/* A member that leaves ends its kernels first, or aborts them. So unless it broke that rule, the
 * waiting kernel has its input, and will end soon. Messages in graphs have no count. */
static bool is_about_to_end(const struct peer_stuck *stuck, const struct look *looks,
			    const ncclsvc_status *st)
{
	const struct look *l = &looks[stuck->rank];
	return st->result == NCCLSVC_PEER_GONE && st->ending == NCCLSVC_ENDED_LEFT &&
	       !looks[stuck->other].broken &&
	       ((l->graph && l->moves) || stuck_other_entered(stuck, looks));
}

/* The other rank runs NCCL in a graph. Kernels that need not wait report nothing, so that rank may
 * have done its part, and this kernel may soon see it. */
static bool is_past_in_graph(const struct peer_stuck *stuck, const struct look *looks)
{
	return stuck->result == NCCLSVC_MISMATCH && looks[stuck->rank].graph && !stuck->mismatch &&
	       !stuck->circle;
}

/* The cause may be transient: the other rank's task is in transit, or this rank's kernel lags. */
static bool is_doubtful(const struct peer_stuck *stuck, const struct look *looks,
			const ncclsvc_status *st)
{
	const bool unseen = st->field == NCCLSVC_FIELD_OP && !st->value_b;
	return unseen || is_about_to_end(stuck, looks, st) || is_past_in_graph(stuck, looks);
}

/* False: the epoch goes on for now. */
static bool end_epoch(struct communicator *m, const struct peer_stuck *stuck,
		      const struct look *looks)
{
	const struct peer_record r = record_of_stuck(m, stuck, &looks[stuck->rank]);
	const ncclsvc_status st = status_of_stuck(m, stuck, looks, r.header);
	if (m->peer->stuck_looks < PEER_LOOKS_DOUBTFUL && is_doubtful(stuck, looks, &st))
		return false;
	tell(m, stuck, looks, &st, &r);
	comm_end_epoch(m, NCCLSVC_CAUSE_KERNEL_STUCK, &st, stuck->other);
	return true;
}

void peer_cancel(struct communicator *m, int32_t pid)
{
	const ncclsvc_status st = {
		.result = NCCLSVC_CANCELLED, .rank_a = -1, .rank_b = -1, .pid_a = pid};
	report_kernels(m, &st, "operations that wait in kernels");
	comm_end_epoch(m, NCCLSVC_CAUSE_KERNEL_STUCK, &st, -1);
}

/* ---- The look ---- */

static void look_at_all(struct communicator *m, struct look looks[PEER_RANKS], uint64_t now)
{
	struct peer_epoch *p = m->peer;
	p->heartbeat++;
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct peer_control *control = peer_member_control(m, k);
		struct peer_member *member = &p->members[k];
		atomic_store_explicit(&control->heartbeat, p->heartbeat, memory_order_release);
		looks[k] = peer_look_at(control);
		/* The launch of a graph is not reported. */
		if (looks[k].waits || looks[k].records != member->records ||
		    peer_load32(&control->graphs))
			p->active_ns = now;
		if (looks[k].waits != member->waits)
			member->waits_ns = now;
		member->waits = looks[k].waits;
		member->records = looks[k].records;
	}
}

/* False: the epoch has ended, and its control blocks are gone. */
static bool look(struct communicator *m, uint64_t now)
{
	struct look looks[PEER_RANKS];
	struct peer_epoch *p = m->peer;
	look_at_all(m, looks, now);
	peer_lateness_note(m, now);
	const struct peer_stuck stuck = stuck_find(m, looks, now);
	p->stuck_looks = stuck.result && stuck_is_same(&stuck, &p->stuck) ? p->stuck_looks + 1 : 1;
	if (stuck.result && p->stuck_looks >= PEER_LOOKS && end_epoch(m, &stuck, looks))
		return false;
	p->stuck = stuck;
	return true;
}

/* Counted from the end of this look. The more communicators a user has, the further apart are the
 * looks at them, so that they take at most 1/PEER_LOOKS_SHARE of the time. */
static uint64_t next_look(const struct communicator *m, uint64_t began, uint64_t ended)
{
	struct account *a = m->account;
	const bool quiet = ended - m->peer->active_ns > PEER_LOOK_QUIET_NS;
	const uint64_t due = ended + (quiet ? PEER_LOOK_QUIET_NS : PEER_LOOK_AGAIN_NS);
	a->looked_ns =
		(a->looked_ns > began ? a->looked_ns : began) + (ended - began) * PEER_LOOKS_SHARE;
	return due > a->looked_ns ? due : a->looked_ns;
}

uint64_t peer_watch(struct comms *s, uint64_t now)
{
	struct deadline *d;
	const uint64_t enough = now + PEER_LOOKS_TURN_NS;
	while ((d = deadlines_first(&s->looks)) && d->at_ns <= now && now < enough) {
		struct peer_epoch *p =
			(struct peer_epoch *)((char *)d - offsetof(struct peer_epoch, look));
		struct communicator *m = p->comm;
		const uint64_t began = now;
		const bool goes_on = look(m, began);
		now = clock_now();
		if (!goes_on)
			continue;
		deadlines_take(&s->looks, d);
		deadlines_add(&s->looks, d, next_look(m, began, now)); /* it has room */
	}
	return d ? d->at_ns : 0;
}
