/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks at the pages of a communicator whose members' kernels meet. A kernel that waits for another
 * rank's in vain can be ended only with the epoch: by its deadline, or because the other rank has
 * gone or took NCCL for the same collective. All that stands in a page can be wrong, or change at
 * any time: it is read once, and what follows from it must be so at two looks. Then the worst that
 * a member can do is to end its own epoch. */
#include <stdio.h>
#include <string.h>

#include "account/task_table.h"
#include "base/timings.h"
#include "comm.h"
#include "comms.h"
#include "names.h"
#include "peer.h"
#include "report.h"
#include "task.h"

/* One look at a member's page. */
struct look {
	uint64_t submitted;
	uint32_t entered, launched;
	uint32_t waits; /* as in struct peer_member */
	bool broken;	/* it does not run kernels any more */
};

static uint64_t load64(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static uint32_t load32(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static struct peer_page *page_of(const struct communicator *m, uint32_t rank)
{
	return peer_page_of(m->peer->base, rank);
}

/* The member has broken its kernels off, or one has failed in a way after which all fail. */
static bool is_broken(const struct peer_page *page)
{
	return load32(&page->abort) || load64(&page->failed);
}

/* In the reverse order in which the member writes: what it has submitted, it has entered. */
static struct look look_at(const struct peer_page *page)
{
	const uint64_t submitted = load64(&page->submitted);
	const uint32_t begun = (uint32_t)load64(&page->begun);
	const uint32_t ended = (uint32_t)load64(&page->ended);
	return (struct look){.submitted = submitted,
			     .entered = load32(&page->entered),
			     .broken = is_broken(page),
			     .launched = load32(&page->launched),
			     .waits = begun && !peer_reached(ended, begun) ? begun : 0};
}

/* False: it was not written yet, or is overwritten. */
static bool record_of(const struct peer_page *page, uint32_t sequence, struct peer_record *r)
{
	const struct peer_record *from = &page->history[sequence % PEER_HISTORY];
	r->operation = load64(&from->operation);
	r->header = load64(&from->header);
	r->launched_ns = load64(&from->launched_ns);
	r->timeout_ns = load64(&from->timeout_ns);
	r->collective = load32(&from->collective);
	r->sequence = load32(&from->sequence);
	const uint32_t launched = load32(&page->launched);
	return r->sequence == sequence && peer_reached(launched, sequence) &&
	       launched - sequence < PEER_HISTORY - 1;
}

/* Of a record that is overwritten, the oldest one that is left tells. 0: none. */
static uint64_t timeout_of(const struct peer_page *page, uint32_t sequence)
{
	struct peer_record r;
	if (record_of(page, sequence, &r) ||
	    record_of(page, load32(&page->launched) - (PEER_HISTORY - 2), &r))
		return r.timeout_ns;
	return 0;
}

/* Its kernels can still run: it holds its rank, or has left and its process goes on. */
static bool runs_kernels(const struct communicator *m, uint32_t rank)
{
	return comm_takes_part(&m->members[rank]) ||
	       sessions_find(m->comms->sessions, m->peer->members[rank].session);
}

/* ---- Does a kernel wait in vain? ---- */

/* Will the rank never come to what a kernel of another one waits in? r: that one's record; NULL:
 * not known. Not 0: the reason. */
static int absence(const struct communicator *m, uint32_t rank, const struct look *l,
		   uint32_t sequence, const struct peer_record *r)
{
	if (l->broken)
		return NCCLSVC_PEER_GONE;
	const bool launched = peer_reached(l->launched, sequence);
	if (!comm_takes_part(&m->members[rank]))
		return launched && runs_kernels(m, rank) ? 0 : NCCLSVC_PEER_GONE;
	if (!r || launched || peer_reached(l->entered, sequence))
		return 0;
	return (int32_t)((uint32_t)l->submitted - r->collective) > 0 ? NCCLSVC_MISMATCH : 0;
}

/* The rank that the others wait for: the first that has not launched it, else the first whose
 * kernel has not begun. -1: all have. */
static int32_t last_of(const struct communicator *m, const struct look *looks, uint32_t sequence)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (!peer_reached(looks[k].launched, sequence))
			return (int32_t)k;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (!peer_reached((uint32_t)load64(&page_of(m, k)->begun), sequence))
			return (int32_t)k;
	return -1;
}

static struct peer_stuck stuck_at(const struct communicator *m, const struct look *looks,
				  uint32_t rank, uint64_t now)
{
	struct peer_record record;
	const uint32_t sequence = looks[rank].waits;
	const struct peer_page *page = page_of(m, rank);
	const struct peer_record *r = record_of(page, sequence, &record) ? &record : NULL;
	struct peer_stuck stuck = {.rank = rank, .sequence = sequence, .other = -1};
	for (uint32_t k = 0; k < m->nranks; k++) {
		stuck.result = k != rank ? absence(m, k, &looks[k], sequence, r) : 0;
		stuck.other = stuck.result ? (int32_t)k : -1;
		if (stuck.result)
			return stuck;
	}
	const uint64_t timeout = timeout_of(page, sequence);
	if (timeout && now - m->peer->members[rank].waits_ns > timeout) {
		stuck.result = NCCLSVC_TIMEOUT;
		stuck.other = last_of(m, looks, sequence);
	}
	return stuck;
}

static struct peer_stuck find_stuck(const struct communicator *m, const struct look *looks,
				    uint64_t now)
{
	for (uint32_t k = 0; k < m->nranks; k++) {
		if (looks[k].broken && comm_takes_part(&m->members[k]))
			return (struct peer_stuck){NCCLSVC_PEER_GONE, k, 0, (int32_t)k};
		if (!looks[k].waits || !runs_kernels(m, k))
			continue;
		const struct peer_stuck stuck = stuck_at(m, looks, k, now);
		if (stuck.result)
			return stuck;
	}
	return (struct peer_stuck){0};
}

static bool same(const struct peer_stuck *a, const struct peer_stuck *b)
{
	return a->result == b->result && a->rank == b->rank && a->sequence == b->sequence &&
	       a->other == b->other;
}

/* ---- Then the epoch is over ---- */

/* The first collective of the rank that waits on NCCL. False: there is none. */
static bool pending_record(const struct communicator *m, int32_t rank, struct svc_record *r)
{
	const struct task_table *t = m->comms->executor->table(m->comms->executor);
	const uint32_t high = atomic_load_explicit(&t->high, memory_order_acquire);
	uint64_t first = UINT64_MAX;
	struct table_entry e;
	for (uint32_t slot = 0; slot < high; slot++) {
		if (!table_get(t, slot, &e) || e.comm_uid != m->uid || e.epoch != m->epoch ||
		    e.rank != rank || svc_op_is_p2p(e.op) || e.seq >= first)
			continue;
		first = e.seq;
		*r = (struct svc_record){.op = e.op,
					 .type = e.type,
					 .redop = e.redop,
					 .peer = e.peer,
					 .count = e.count};
	}
	return first != UINT64_MAX;
}

/* b has taken NCCL for what a has launched with that header: it is another collective there. */
static void compare(const struct communicator *m, uint64_t header, ncclsvc_status *st)
{
	const struct svc_record a = svc_header_record(header);
	struct svc_record b = {0};
	if (pending_record(m, st->rank_b, &b))
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
static bool is_odd_one(const struct communicator *m, const struct peer_stuck *stuck)
{
	uint32_t n = 0;
	for (uint32_t k = 0; k < m->nranks; k++)
		n += (int32_t)k != stuck->other &&
		     peer_reached(m->peer->members[k].launched, stuck->sequence);
	return stuck->result == NCCLSVC_MISMATCH && m->nranks > 2 && n == m->nranks - 1;
}

static ncclsvc_status status_of_stuck(const struct communicator *m, const struct peer_stuck *stuck,
				      uint64_t header)
{
	const int32_t rank = (int32_t)stuck->rank, other = stuck->other;
	const int32_t a = stuck->result == NCCLSVC_PEER_GONE ? other : rank;
	const int32_t b = stuck->result == NCCLSVC_MISMATCH ? other : -1;
	ncclsvc_status st = {.result = stuck->result,
			     .started_ns = m->peer->members[rank].waits_ns,
			     .rank_a = a,
			     .pid_a = m->members[a].pid,
			     .rank_b = b,
			     .pid_b = b >= 0 ? m->members[b].pid : 0};
	if (st.result == NCCLSVC_MISMATCH)
		compare(m, header, &st);
	if (other >= 0 && (st.result == NCCLSVC_TIMEOUT || is_odd_one(m, stuck))) {
		st.missing_count = 1;
		st.missing[0] = other;
	}
	return st;
}

static const char *lack(const struct peer_stuck *stuck, const struct look *other)
{
	if (other->broken)
		return "whose kernels are broken off";
	if (stuck->result == NCCLSVC_MISMATCH)
		return "which has submitted another";
	if (!peer_reached(other->launched, stuck->sequence))
		return "which has not submitted it";
	return stuck->result == NCCLSVC_TIMEOUT ? "whose stream has not come to it"
						: "whose process has ended";
}

/* "AllReduce #7 of rank 0 waits on the GPU for rank 1, which has not submitted it" */
static void tell(struct communicator *m, const struct peer_stuck *stuck, const struct look *looks,
		 const ncclsvc_status *st, const struct peer_record *r)
{
	char text[160], what[64] = "an operation";
	if (r->sequence)
		snprintf(what, sizeof(what), "%s #%llu", svc_op_name((unsigned)(r->header >> 56)),
			 (unsigned long long)r->operation);
	if (stuck->other < 0)
		snprintf(text, sizeof(text),
			 "%s of rank %u has begun on all GPUs, and does not end", what,
			 stuck->rank);
	else if (stuck->other == (int32_t)stuck->rank)
		snprintf(text, sizeof(text), "rank %u's kernels are broken off", stuck->rank);
	else
		snprintf(text, sizeof(text), "%s of rank %u waits on the GPU for rank %d, %s", what,
			 stuck->rank, stuck->other, lack(stuck, &looks[stuck->other]));
	report_kernels(m, st, text);
}

static void end_epoch(struct communicator *m, const struct peer_stuck *stuck,
		      const struct look *looks)
{
	struct peer_record r = {0};
	if (!record_of(page_of(m, stuck->rank), stuck->sequence, &r))
		r = (struct peer_record){0};
	const ncclsvc_status st = status_of_stuck(m, stuck, r.header);
	tell(m, stuck, looks, &st, &r);
	comm_end_epoch(m, NCCLSVC_CAUSE_KERNEL_STUCK, &st, stuck->other);
}

/* ---- Inspection ---- */

/* The first operation that a kernel waits in; 0: none does. */
static uint32_t first_waiting(const struct communicator *m)
{
	uint32_t first = 0;
	for (uint32_t k = 0; k < m->nranks; k++) {
		const uint32_t waits = look_at(page_of(m, k)).waits;
		if (waits && runs_kernels(m, k) && (!first || peer_reached(first, waits)))
			first = waits;
	}
	return first;
}

/* As peer_sequence_after, nth times. */
static uint32_t sequence_of(uint32_t first, uint32_t nth)
{
	const uint32_t sequence = first + nth;
	return sequence < first ? sequence + 2 : sequence;
}

static uint32_t not_launched(const struct communicator *m, uint32_t sequence)
{
	uint32_t missing = 0;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (!peer_reached(load32(&page_of(m, k)->launched), sequence))
			missing |= UINT32_C(1) << k;
	return missing;
}

bool peer_operation(const struct communicator *m, uint32_t rank, uint32_t nth,
		    struct peer_operation *op)
{
	const uint32_t first = m->peer && nth < PEER_HISTORY ? first_waiting(m) : 0;
	if (!first || !runs_kernels(m, rank))
		return false;
	const uint32_t sequence = sequence_of(first, nth);
	const struct look look = look_at(page_of(m, rank));
	const struct peer_member *member = &m->peer->members[rank];
	*op = (struct peer_operation){.missing = not_launched(m, sequence)};
	if (!record_of(page_of(m, rank), sequence, &op->record))
		return false;
	if (look.waits == sequence)
		op->state = op->missing ? NCCLSVC_WAITING_PEERS : NCCLSVC_LAUNCHED;
	else /* its stream has not come to it, or to the one before */
		op->state = nth ? NCCLSVC_QUEUED : NCCLSVC_WAITING_INPUT;
	op->waits_ns = look.waits == sequence && member->waits == sequence ? member->waits_ns : 0;
	return true;
}

/* ---- The look ---- */

static void look_at_all(struct communicator *m, struct look looks[PEER_RANKS], uint64_t now)
{
	struct peer_pages *p = m->peer;
	p->heartbeat++;
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct peer_page *page = page_of(m, k);
		struct peer_member *member = &p->members[k];
		__atomic_store_n(&page->heartbeat, p->heartbeat, __ATOMIC_RELEASE);
		looks[k] = look_at(page);
		if (looks[k].waits || looks[k].launched != member->launched)
			p->active_ns = now;
		if (looks[k].waits != member->waits)
			member->waits_ns = now;
		member->waits = looks[k].waits;
		member->launched = looks[k].launched;
	}
}

bool peer_broken_off(const struct communicator *m, uint32_t rank)
{
	return m->peer && is_broken(page_of(m, rank));
}

uint64_t peer_watch(struct communicator *m, uint64_t now)
{
	struct look looks[PEER_RANKS];
	struct peer_pages *p = m->peer;
	if (!p)
		return 0;
	if (now < p->due_ns)
		return p->due_ns;
	look_at_all(m, looks, now);
	const struct peer_stuck stuck = find_stuck(m, looks, now);
	if (stuck.result && same(&stuck, &p->stuck)) {
		end_epoch(m, &stuck, looks);
		return 0;
	}
	p->stuck = stuck;
	const bool quiet = now - p->active_ns > PEER_LOOK_QUIET_NS;
	p->due_ns = now + (quiet ? PEER_LOOK_QUIET_NS : PEER_LOOK_AGAIN_NS);
	return p->due_ns;
}
