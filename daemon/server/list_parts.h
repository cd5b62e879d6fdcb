/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists for inspection. A reply holds a chunk of a list: as many records as fit into a message and
 * can be read in a fraction of a millisecond, and the beginning of the next chunk. So even a long
 * list neither blocks the loop nor takes memory. The scheduler is never involved.
 *
 * list_comms.c: communicators, their members, their plans; list_lateness.c: how late members come;
 * list_operations.c: the flight recorder; list_tasks.c: tasks; list.c: the rest.
 */
#ifndef SERVER_LIST_PARTS_H
#define SERVER_LIST_PARTS_H

#include "base/clock.h"
#include "comm/comm.h"
#include "server_state.h"

struct chunk {
	const struct session *asker;
	bool by_node;		     /* this node was asked by its number */
	uint32_t room;		     /* for this many records */
	uint32_t work;		     /* left for this chunk */
	struct svc_list_reply reply; /* the body of the message: this and the records */
	_Alignas(8) char records[SVC_LIST_MESSAGE_MAX - sizeof(struct svc_header) -
				 sizeof(struct svc_list_reply)];
};

_Static_assert(offsetof(struct chunk, records) ==
		       offsetof(struct chunk, reply) + sizeof(struct svc_list_reply),
	       "one body");

/* Charges this many table entries to the chunk. False: they do not fit into it. */
static inline bool chunk_works(struct chunk *p, uint32_t entries)
{
	if (!p->work)
		return false;
	p->work -= entries < p->work ? entries : p->work;
	return true;
}

/* Room for the next record, charging this many table entries. NULL: not in this chunk. */
static inline void *chunk_next(struct chunk *p, uint32_t entries)
{
	if (p->reply.count == p->room || !chunk_works(p, entries))
		return NULL;
	return p->records + p->reply.record_size * p->reply.count++;
}

static inline uint64_t load(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static inline uint64_t since(uint64_t now, uint64_t then)
{
	return now > then ? now - then : 0;
}

/* A position in a list: a communicator or session, and an index in it. */
static inline uint64_t at_rank(uint64_t slot, uint64_t rank)
{
	return slot << 32 | rank;
}

/* Makes the asker's chunk of that list. False: there is no such list. */
bool list_chunk_make(struct server *s, struct chunk *p, const struct session *asker, bool by_node,
		     uint32_t what, uint64_t from);

static inline size_t chunk_bytes(const struct chunk *p)
{
	return sizeof(p->reply) + (size_t)p->reply.count * p->reply.record_size;
}
/* Lists one member; false: not in this chunk. */
typedef bool list_member_fn(struct server *s, struct chunk *p, const struct communicator *m,
			    uint32_t rank);
uint64_t list_each_member(struct server *s, struct chunk *p, uint64_t from, list_member_fn *list);

/* Each begins at a position and returns that of the next chunk; 0: the list is complete. */
typedef uint64_t list_chunk(struct server *s, struct chunk *p, uint64_t from);
list_chunk list_comms, list_members, list_plans, list_plan_tasks, list_tasks, list_operations,
	list_lateness;

/* True if the asker may see names that the communicator's users have given: its owner's and its
 * members' users may. */
bool list_may_name(const struct chunk *p, const struct communicator *m);
/* Fills in a planned task's label, if its plan is still there. */
void list_label(const struct server *s, const struct table_entry *e,
		char label[NCCLSVC_LABEL_BYTES]);

#endif
