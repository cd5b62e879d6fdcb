/* SPDX-License-Identifier: Apache-2.0
 * The list of operations: what is pending in the scheduler, then what kernels of epochs that run
 * are for, then what sessions' rings have. So an operation that ends while the list is read is in
 * it twice, rather than missing. A session sees its user's own, the administrator sees all. */
#include "comm/record/recorded_operations.h"
#include "list_parts.h"
#include "server_state.h"

/* ---- Pending tasks ---- */

static const struct recorded_join *join_of(const struct server *s, const struct table_entry *e)
{
	uint32_t number;
	const struct recording *rec = recorder_find(&s->recorder, e->session);
	return rec && recording_find_join(rec, e->comm_uid, e->epoch, e->rank, &number)
		       ? recording_join(rec, number)
		       : NULL;
}

/* The place of the first that does not fit; `high`: all did. One that has failed and still waits
 * for its peers is in its session's ring. */
static uint64_t list_tasks_of(struct server *s, struct chunk *p, uint64_t from, uint32_t high)
{
	const struct task_table *t = scheduler_table(s->scheduler);
	struct table_entry e;
	for (uint64_t slot = from; slot < high; slot++) {
		if (!chunk_works(p, 1))
			return slot;
		if (!table_get(t, (uint32_t)slot, &e) || e.state == NCCLSVC_FAILED)
			continue;
		const struct session *c = sessions_find(&s->sessions, e.session);
		if (!c || !session_allows(p->asker, &c->account->tenant))
			continue;
		ncclsvc_operation_info *i = chunk_next(p, 1);
		if (!i)
			return slot;
		operation_of_task(&e, join_of(s, &e), c->uid, i);
		list_label(s, &e, i->label);
	}
	return high;
}

/* ---- Kernels ---- */

#define KERNELS_FROM (UINT64_C(1) << 61)
#define RINGS_FROM   (UINT64_C(1) << 62)

/* Communicator, rank, and which of its operations. */
static uint64_t kernel_place(uint64_t slot, uint64_t rank, uint64_t nth)
{
	return KERNELS_FROM | slot << 20 | rank << 12 | nth;
}

struct kernels {
	struct chunk *p;
	const struct communicator *m;
	uint32_t rank;
	bool full;
};

static bool list_kernel(void *arg, const struct peer_operation *op)
{
	struct kernels *k = arg;
	ncclsvc_operation_info *i = chunk_next(k->p, 1);
	k->full = !i;
	if (i)
		operation_of_kernel(k->m, k->rank, op, i);
	return i;
}

/* 0: all were listed. */
static uint64_t list_kernels_of(struct server *s, struct chunk *p, uint64_t from)
{
	uint32_t nth = from & 4095, rank = from >> 12 & 255;
	for (uint64_t slot = (from - KERNELS_FROM) >> 20; slot < SVC_COMMS_MAX; slot++) {
		const struct communicator *m = s->comms.comm_by_slot[slot];
		const bool shown = m && m->peer && session_allows(p->asker, &m->account->tenant);
		for (; shown && rank < m->nranks; rank++, nth = 0) {
			struct kernels k = {.p = p, .m = m, .rank = rank};
			if (!chunk_works(p, PEER_HISTORY))
				return kernel_place(slot, rank, nth);
			nth = peer_each_launched(m, rank, nth, list_kernel, &k);
			if (k.full)
				return kernel_place(slot, rank, nth);
		}
		rank = nth = 0;
	}
	return 0;
}

/* ---- Rings ---- */

/* Which of the rings, session, and the low bits of an entry's number. */
#define ENTRY_BITS 29

static uint64_t ring_place(uint64_t session, unsigned ring, uint64_t n)
{
	return RINGS_FROM | session << (ENTRY_BITS + 1) | (uint64_t)ring << ENTRY_BITS |
	       (n & ((1 << ENTRY_BITS) - 1));
}

/* The entry that a place names: the newest with these bits. */
static uint64_t entry_at(uint64_t place, uint64_t end)
{
	const uint64_t mask = (1 << ENTRY_BITS) - 1;
	return end - ((end - place) & mask);
}

/* False: not all fit into the chunk, and *n is the first that does not. */
static bool list_ring(struct chunk *p, const struct recording *rec, const struct recorder_ring *r,
		      uint64_t *n)
{
	uint64_t first, end;
	struct recorded x;
	char label[NCCLSVC_LABEL_BYTES];
	recorder_range(r, &first, &end);
	for (*n = *n > first ? *n : first; *n < end; ++*n) {
		if (!chunk_works(p, 1))
			return false;
		if (!recorder_read(r, *n, &x, label))
			continue;
		const struct recorded_join *j = recording_join(rec, x.join);
		ncclsvc_operation_info *i = j ? chunk_next(p, 1) : NULL;
		if (!j)
			continue;
		if (!i)
			return false;
		operation_of_recorded(rec, j, &x, i);
		memcpy(i->label, label, sizeof(i->label));
	}
	return true;
}

static uint64_t list_rings(struct server *s, struct chunk *p, uint64_t from)
{
	const uint64_t session = (from - RINGS_FROM) >> (ENTRY_BITS + 1);
	unsigned ring = from >> ENTRY_BITS & 1;
	bool begun = from > RINGS_FROM; /* in the middle of a ring, if that is still there */
	for (uint32_t i = recorder_index(&s->recorder, session); i < s->recorder.n; i++) {
		const struct recording *rec = s->recorder.all[i];
		begun = begun && rec->session == session;
		if (!chunk_works(p, 1))
			return ring_place(rec->session, 0, 0);
		if (!begun)
			ring = 0;
		for (; session_allows(p->asker, &rec->account->tenant) && ring < 2;
		     ring++, begun = false) {
			const struct recorder_ring *r = ring ? rec->kernels : rec->tasks;
			uint64_t n = r && begun ? entry_at(from, atomic_load(&r->written)) : 0;
			if (!r || list_ring(p, rec, r, &n))
				continue;
			const uint64_t place = ring_place(rec->session, ring, n);
			if (place > from) /* the low bits may have begun anew */
				return place;
		}
		begun = false;
	}
	return 0;
}

uint64_t list_operations(struct server *s, struct chunk *p, uint64_t from)
{
	const struct task_table *t = scheduler_table(s->scheduler);
	const uint32_t high = atomic_load_explicit(&t->high, memory_order_acquire);
	if (from < KERNELS_FROM) {
		const uint64_t slot = list_tasks_of(s, p, from, high);
		if (slot < high)
			return slot; /* not 0: the first always fits */
		from = KERNELS_FROM;
	}
	if (from < RINGS_FROM) {
		const uint64_t place = list_kernels_of(s, p, from);
		if (place)
			return place;
		from = RINGS_FROM;
	}
	return list_rings(s, p, from);
}
