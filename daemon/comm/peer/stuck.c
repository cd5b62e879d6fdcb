/* SPDX-License-Identifier: Apache-2.0
 * Does a kernel wait in vain? It does after its deadline, or because the other rank is gone, uses
 * NCCL for the same operation, or waits for this rank elsewhere. */
#include "stuck.h"

#include <stddef.h>

#include "comm/comm.h"

/* The timeout of the waiting kernel. If its record was overwritten, the oldest remaining record
 * determines it. 0: none. */
static uint64_t timeout_of(const struct peer_control *control, const struct look *l)
{
	struct peer_record r;
	if (l->graph)
		return peer_record_of_graph(control, l).timeout_ns;
	if (l->history.known)
		return l->history.record.timeout_ns;
	if (peer_record(control, peer_load32(&control->records) - (PEER_HISTORY - 2), &r))
		return r.timeout_ns;
	return 0;
}

/* ---- What a kernel waits for ---- */

/* A kernel's wait: for each rank, or one rank, to do its part. */
struct awaited {
	bool moves;		      /* it waits for a message */
	uint32_t graph;		      /* of the waiting kernel; 0: it is in none */
	uint32_t coll_seq;	      /* of a collective outside of graphs */
	uint32_t coll_launch_seq;     /* of a collective */
	uint32_t rank, arrived_ranks; /* the waiting one; bitmap: have begun it, too */
	uint32_t peer_dir, message;   /* from the other rank's view, if outside of graphs */
	const struct peer_record *r;  /* of the waiting operation; NULL: not known */
};

/* Was it launched, or will it be? For graphs, only the kernels show that. */
static bool is_entered(const struct look *l, const struct awaited *a)
{
	if (a->graph)
		return !a->moves && peer_reached(l->coll_launch_seq, a->coll_launch_seq);
	if (a->moves)
		return (int32_t)(l->messages[a->peer_dir] - a->message) >= 0;
	return peer_reached(l->entered, a->coll_seq) ||
	       peer_reached(l->coll_launch_seq, a->coll_launch_seq);
}

/* The rank's stream waits, in a graph, for an operation on NCCL without a counterpart on the
 * rank in the kernel. That kernel waits for a later one of this rank: a communicator's graphs, and
 * all kernels beside them, run one after the other. */
static bool waits_in_graph(const struct communicator *m, uint32_t rank, const struct awaited *a)
{
	const uint32_t messages = PENDING_IN_GRAPH + PENDING_MESSAGE_WAITS;
	if (stuck_pending(m, rank, messages + PEER_DIR_TO(a->rank)) ||
	    stuck_pending(m, rank, messages + PEER_DIR_FROM(a->rank)))
		return true;
	return stuck_pending(m, rank, PENDING_IN_GRAPH + PENDING_COLLECTIVE_WAITS) &&
	       !stuck_pending(m, a->rank, PENDING_IN_GRAPH + PENDING_COLLECTIVE_QUEUED) &&
	       !stuck_pending(m, a->rank, PENDING_IN_GRAPH + PENDING_COLLECTIVE_WAITS) &&
	       !stuck_pending(m, a->rank, PENDING_IN_GRAPH + PENDING_COLLECTIVE_LAUNCHED);
}

/* Does this rank run on NCCL what the others wait for in a kernel? All ranks count operations
 * outside of graphs alike; nobody counts the launches of graphs. */
static bool took_nccl(const struct communicator *m, uint32_t rank, const struct look *l,
		      const struct awaited *a)
{
	if (!a->moves && a->arrived_ranks >> rank & 1)
		return false;
	if (waits_in_graph(m, rank, a))
		return true;
	if (a->graph)
		return false;
	if (a->moves)
		return stuck_pending(m, rank,
				     PENDING_IN_NO_GRAPH + PENDING_MESSAGE_WAITS + a->peer_dir);
	return a->r && (int32_t)((uint32_t)l->submitted - a->r->collective) > 0;
}

/* Will the rank never reach it? Not 0: the reason. */
static int absence(const struct communicator *m, uint32_t rank, const struct look *l,
		   const struct awaited *a)
{
	const bool entered = is_entered(l, a);
	if (l->broken)
		return NCCLSVC_PEER_GONE;
	if (!comm_takes_part(&m->members[rank]))
		return entered && peer_runs_kernels(m, rank) ? 0 : NCCLSVC_PEER_GONE;
	return !entered && took_nccl(m, rank, l, a) ? NCCLSVC_MISMATCH : 0;
}

/* Finds the step that rank k must take for a kernel of `rank` to continue. False: none. */
static bool next_awaited(const struct look *looks, uint32_t rank, uint32_t peer_dir, uint32_t k,
			 const struct peer_record *r, struct awaited *a)
{
	const struct look *l = &looks[rank];
	*a = (struct awaited){.moves = l->moves,
			      .graph = l->graph,
			      .coll_seq = l->coll_seq,
			      .coll_launch_seq = l->coll_launch_seq,
			      .rank = rank,
			      .arrived_ranks = l->arrived_ranks,
			      .r = r};
	if (!l->moves)
		return !peer_dir && k != rank;
	a->peer_dir = peer_dir_reverse(peer_dir, rank);
	a->message = l->graph ? 0 : l->message[peer_dir];
	return l->peer_dirs >> peer_dir & 1 && peer_dir % PEER_RANKS == k;
}

/* The first rank that will never do its part. False: none. */
static bool find_absence(const struct communicator *m, const struct look *looks, uint32_t rank,
			 const struct peer_record *r, struct peer_stuck *stuck)
{
	struct awaited a;
	for (uint32_t k = 0; k < m->nranks; k++)
		for (uint32_t peer_dir = 0; peer_dir < PEER_DIRS; peer_dir++) {
			if (!next_awaited(looks, rank, peer_dir, k, r, &a))
				continue;
			stuck->result = absence(m, k, &looks[k], &a);
			if (!stuck->result)
				continue;
			stuck->other = (int32_t)k;
			stuck->peer_dir = peer_dir;
			stuck->message = a.message;
			return true;
		}
	return false;
}

/* Does the rank's waiting kernel move the message, or did an earlier one? For a Recv that the
 * sender waits for, earlier ones of the direction count as well, since they make room. A record
 * that was overwritten may have moved it. */
static bool message_begun(const struct look *l, const struct awaited *a)
{
	const uint32_t kernel_seq = l->history.kernel_seqs[a->peer_dir];
	if (!l->waits)
		return false;
	if (a->graph || l->graph) /* it is unknown which messages that rank's kernel has, if any */
		return l->moves;
	if (!is_entered(l, a))
		return false;
	if (!kernel_seq || peer_reached(l->kernel_seq, kernel_seq))
		return true;
	return peer_dir_op(a->peer_dir) == NCCLSVC_RECV && l->history.peer_dirs >> a->peer_dir & 1;
}

/* The rank is in it, or past it. */
static bool has_begun(const struct look *l, const struct awaited *a)
{
	return a->moves ? message_begun(l, a)
			: peer_reached(l->coll_launch_seq, a->coll_launch_seq);
}

/* The first rank that must do something for `rank` and has not reached it. -1: none. */
static int32_t first_short_of(bool (*has_come)(const struct look *l, const struct awaited *a),
			      const struct communicator *m, const struct look *looks, uint32_t rank)
{
	struct awaited a;
	for (uint32_t k = 0; k < m->nranks; k++)
		for (uint32_t peer_dir = 0; peer_dir < PEER_DIRS; peer_dir++)
			if (next_awaited(looks, rank, peer_dir, k, NULL, &a) &&
			    !has_come(&looks[k], &a))
				return (int32_t)k;
	return -1;
}

/* The rank that `rank` waits for: the first that has not submitted the operation, or else the first
 * whose kernel has not begun. -1: none. */
static int32_t last_of(const struct communicator *m, const struct look *looks, uint32_t rank)
{
	const int32_t other = first_short_of(is_entered, m, looks, rank);
	return other >= 0 ? other : first_short_of(has_begun, m, looks, rank);
}

/* ---- Circles ---- */

/* The ranks whose kernels wait for something else, before the operation that this one waits for. */
static uint32_t waits_behind(const struct communicator *m, const struct look *looks, uint32_t rank)
{
	uint32_t ranks = 0;
	struct awaited a;
	for (uint32_t k = 0; looks[rank].waits && k < m->nranks; k++)
		for (uint32_t peer_dir = 0; looks[k].waits && peer_dir < PEER_DIRS; peer_dir++)
			if (next_awaited(looks, rank, peer_dir, k, NULL, &a) &&
			    !has_begun(&looks[k], &a))
				ranks |= UINT32_C(1) << k;
	return ranks;
}

/* For each rank, the ranks that it waits for, directly and through others. */
struct behind {
	uint32_t direct[PEER_RANKS], all[PEER_RANKS]; /* bitmaps of ranks */
};

static void behind_find(const struct communicator *m, const struct look *looks, struct behind *b)
{
	const uint32_t n = m->nranks;
	for (uint32_t k = 0; k < n; k++)
		b->all[k] = b->direct[k] = waits_behind(m, looks, k);
	for (uint32_t turn = 0; turn < n; turn++)
		for (uint32_t k = 0; k < n; k++)
			for (uint32_t i = 0; i < n; i++)
				b->all[k] |= b->all[k] >> i & 1 ? b->all[i] : 0;
}

/* All ranks in a circle with this one: they wait for it, and it waits for them. 0: none. *next is
 * the first of these for which the rank waits directly. */
static uint32_t circle_of(const struct behind *b, uint32_t n, uint32_t rank, int32_t *next)
{
	uint32_t circle = 0;
	for (uint32_t k = 0; k < n; k++)
		if (b->all[rank] >> k & 1 && b->all[k] >> rank & 1)
			circle |= UINT32_C(1) << k;
	if (circle)
		*next = __builtin_ctz(b->direct[rank] & circle);
	return circle;
}

/* One of the messages between the two that the rank's kernel waits for. */
static void note_message(const struct look *l, struct peer_stuck *stuck)
{
	for (uint32_t peer_dir = 0; !stuck->message && peer_dir < PEER_DIRS; peer_dir++)
		if (l->peer_dirs >> peer_dir & 1 &&
		    (stuck->other < 0 || peer_dir % PEER_RANKS == (uint32_t)stuck->other)) {
			stuck->peer_dir = peer_dir;
			stuck->message = l->message[peer_dir];
		}
}

static struct peer_stuck stuck_at(const struct communicator *m, const struct look *looks,
				  const struct behind *behind, uint32_t rank, uint64_t now)
{
	const struct look *l = &looks[rank];
	struct peer_stuck stuck = {
		.rank = rank, .launch_seq = l->waits, .kernel_seq = l->kernel_seq, .other = -1};
	if (find_absence(m, looks, rank, l->history.known ? &l->history.record : NULL, &stuck))
		return stuck;
	stuck.circle = circle_of(behind, m->nranks, rank, &stuck.other);
	if (stuck.circle) {
		stuck.result = NCCLSVC_MISMATCH;
		note_message(l, &stuck);
		return stuck;
	}
	const uint64_t timeout = timeout_of(peer_member_control(m, rank), l);
	if (timeout && now - m->peer->members[rank].waits_ns > timeout) {
		stuck.result = NCCLSVC_TIMEOUT;
		stuck.other = last_of(m, looks, rank);
		note_message(l, &stuck);
	}
	return stuck;
}

/* A message whose Recv runs on NCCL. Its own kernel may have ended. */
static struct peer_stuck untaken(const struct communicator *m, const struct look *looks,
				 uint32_t rank)
{
	for (uint32_t k = 0; k < m->nranks; k++) {
		const uint32_t peer_dir = PEER_DIR_TO(k), back = peer_dir_reverse(peer_dir, rank);
		const struct awaited a = {.moves = true,
					  .peer_dir = back,
					  .message = looks[k].messages[back] + 1,
					  .rank = rank};
		if ((int32_t)(looks[rank].messages[peer_dir] - a.message) >= 0 &&
		    took_nccl(m, k, &looks[k], &a))
			return (struct peer_stuck){.result = NCCLSVC_MISMATCH,
						   .rank = rank,
						   .other = (int32_t)k,
						   .peer_dir = peer_dir,
						   .message = a.message};
	}
	return (struct peer_stuck){0};
}

/* Why the rank's kernels were aborted. */
static struct peer_stuck broken_at(const struct communicator *m, uint32_t rank)
{
	const struct peer_control *control = peer_member_control(m, rank);
	const uint64_t failed = peer_load64(&control->failed),
		       sender = peer_load64(&control->mismatch[2]);
	if (failed >> 32 == PEER_FATAL_MISMATCH && sender < m->nranks && sender != rank)
		return (struct peer_stuck){.result = NCCLSVC_MISMATCH,
					   .rank = rank,
					   .kernel_seq = (uint32_t)failed,
					   .other = (int32_t)sender,
					   .mismatch = true};
	return (struct peer_stuck){
		.result = NCCLSVC_PEER_GONE, .rank = rank, .other = (int32_t)rank};
}

/* Finds, for each of the rank's directions, the message that another rank's kernel waits for; 0:
 * not known. */
static void find_asked(const struct communicator *m, const struct look *looks, uint32_t rank,
		       uint32_t messages[PEER_DIRS])
{
	for (uint32_t peer_dir = 0; peer_dir < PEER_DIRS; peer_dir++) {
		const uint32_t k = peer_dir % PEER_RANKS;
		const bool asks = k < m->nranks && !looks[k].graph;
		messages[peer_dir] = asks ? looks[k].message[peer_dir_reverse(peer_dir, rank)] : 0;
	}
}

/* Once per look, since the records can change, and there are many: PEER_HISTORY for each member. */
static void read_histories(const struct communicator *m, struct look *looks)
{
	uint32_t messages[PEER_DIRS];
	for (uint32_t k = 0; k < m->nranks; k++) {
		if (!looks[k].waits || !looks[k].kernel_seq)
			continue;
		find_asked(m, looks, k, messages);
		looks[k].history =
			peer_history_of(peer_member_control(m, k), looks[k].kernel_seq, messages);
	}
}

struct peer_stuck stuck_find(const struct communicator *m, struct look *looks, uint64_t now)
{
	struct behind behind;
	/* Ranks that wait for an aborted one say less about the reason. */
	for (uint32_t k = 0; k < m->nranks; k++)
		if (looks[k].broken && comm_takes_part(&m->members[k]))
			return broken_at(m, k);
	read_histories(m, looks);
	behind_find(m, looks, &behind);
	for (uint32_t k = 0; k < m->nranks; k++) {
		if (!looks[k].waits || !peer_runs_kernels(m, k))
			continue;
		const struct peer_stuck stuck = stuck_at(m, looks, &behind, k, now);
		if (stuck.result)
			return stuck;
	}
	for (uint32_t k = 0; k < m->nranks; k++) {
		const struct peer_stuck stuck = untaken(m, looks, k);
		if (stuck.result)
			return stuck;
	}
	return (struct peer_stuck){0};
}

bool stuck_is_same(const struct peer_stuck *a, const struct peer_stuck *b)
{
	return a->result == b->result && a->rank == b->rank && a->launch_seq == b->launch_seq &&
	       a->kernel_seq == b->kernel_seq && a->other == b->other && a->circle == b->circle &&
	       a->mismatch == b->mismatch && a->peer_dir == b->peer_dir && a->message == b->message;
}

bool stuck_other_entered(const struct peer_stuck *stuck, const struct look *looks)
{
	struct awaited a;
	const uint32_t k = (uint32_t)stuck->other;
	bool entered = true;
	for (uint32_t peer_dir = 0; peer_dir < PEER_DIRS; peer_dir++)
		if (next_awaited(looks, stuck->rank, peer_dir, k, NULL, &a))
			entered = entered && is_entered(&looks[k], &a);
	return entered;
}
