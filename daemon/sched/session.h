/* SPDX-License-Identifier: Apache-2.0
 * Trainers, as the scheduler knows them: their rings, and what they have registered. */
#ifndef SCHED_SESSION_H
#define SCHED_SESSION_H

#include "executor.h"

struct comm;
struct departure;
struct engine;
struct member;
struct pool;
struct session_counts;
struct task;

struct region {
	char *base; /* NULL: no such region; of a GPU: its worker's address */
	uint64_t bytes;
	uint32_t pins;	     /* pending tasks that name it */
	int32_t device;	     /* -1: host */
	uint32_t fault;	     /* number of fault_watch; 0: a GPU's */
	uint64_t file_bytes; /* of host memory */
};

struct handle {
	struct comm *comm; /* NULL: its epoch is over, or (known false) it never was */
	int32_t rank;
	bool known;
	uint32_t ended; /* the epoch that ended last: what came too late for it is told the same */
	ncclsvc_status end; /* as its tasks were */
};

/* A timeline of tasks on GPUs. */
struct line {
	uint32_t in_flight; /* tasks */
	uint64_t owed;	    /* what done must come to, once nothing flies */
	uint32_t triggered; /* tasks that its triggers have started, and that are not over */
	struct trigger *triggers;
	struct comm *comm;	     /* the triggers' */
	const struct member *member; /* whose they are */
	uint64_t arrived_ns;	     /* when the stream came to the newest of them */
	uint64_t seen;	/* 1 and the commands queued when a number was first seen; 0: none is */
	uint64_t ahead; /* the trigger that was started, and whose input is not there; or 0 */
};

/* All sessions of one uid. Users take turns, so that none waits for more than a turn of each other
 * user, whatever that one has in the engine. */
struct user {
	struct user *prev, *next; /* the engine's */
	uint32_t uid, sessions;
	uint32_t tasks;	     /* alive, tombstones too */
	uint32_t triggered;  /* operations that triggers hold */
	uint64_t file_bytes; /* of all registered host memory */
	struct pool *pool;   /* as engine_own_pool makes it */
	bool pool_failed;
	struct session *active;		   /* whose rings are polled */
	struct member *ready, **ready_end; /* whose queues may move */
};

struct session {
	/* What every record needs comes first. */
	struct svc_ring *ring; /* NULL: socket only */
	uint64_t next;	       /* number of the next record */
	uint8_t *busy;	       /* [entries]: this slot's task has not ended */
	uint64_t after;	       /* the next record waits until as many commands have run */
	uint32_t entries;
	bool active; /* its ring is polled; else its doorbell is watched */
	bool dirty;  /* tasks ended since its waiters were woken */
	bool broken; /* no longer served */
	bool leaving;
	uint64_t active_ns;	      /* last time a record came */
	struct departure *departures; /* regions that are to be let go */
	struct session *next_active, *next_dirty;
	struct user *user;
	struct session_counts *counts;
	struct task *group; /* open */
	uint32_t group_tasks;
	ncclsvc_status group_end; /* why it is refused; result 0: it is not */
	uint32_t tasks;		  /* alive, tombstones too */
	uint32_t socket_tasks;
	struct handle *handles;
	struct region *regions;
	uint32_t nhandles, nregions;
	uint32_t members; /* handles that have a communicator */
	uint64_t spoiled; /* the end of an epoch that has looked at its group */

	uint64_t waited; /* the number of the record that has waited for commands */
	uint32_t slot, id;
	int32_t pid;
	int fd, doorbell, completion;
	struct session *prev_active, *next_leaving;
	uint32_t inputs;
	struct line *lines;  /* [SVC_TIMELINES]; NULL: no communicator of GPUs yet */
	uint64_t triggering; /* bits: lines that have triggers */
	struct session *prev_triggering, *next_triggering;
};

/* The record's regions, which ingest.c found or made 0, are named by so many more. */
static inline void session_pin(struct session *s, const struct svc_record *r, int by)
{
	if (r->src_region)
		s->regions[r->src_region].pins += (uint32_t)by;
	if (r->dst_region)
		s->regions[r->dst_region].pins += (uint32_t)by;
}

/* All records that were there have been taken. */
static inline bool session_ring_empty(const struct session *s)
{
	return svc_number_load(&svc_record_slot(s->ring, s->entries, s->next)->number) != s->next;
}

/* ---- ingest.c ---- */

/* Takes records of its ring, not too many; returns how many. */
uint32_t ingest_ring(struct engine *e, struct session *s);
void ingest_socket(struct engine *e, struct session *s, uint32_t serial,
		   const struct svc_record *record);
void ingest_drop_group(struct engine *e, struct session *s);
/* The status for a task that has no room: by the limit of its user, or of the daemon. */
ncclsvc_status ingest_no_room(const struct engine *e, const struct session *s);
/* These tasks, one group, come to their members' queues. */
void ingest_group(struct engine *e, struct task *first, uint32_t n);

/* ---- engine.c ---- */

/* Returns the pool whose threads alone may move these tasks' bytes; NULL: any thread may. Entries
 * of tasks may be NULL.
 *
 * While a hole is punched into a file of shared memory, a thread that touches a page of the hole
 * waits in the kernel until all of it is punched, 0.2 s and more for each gigabyte, and nothing
 * wakes it sooner. So where several users have sessions, neither the engine's thread nor those that
 * all users share touch memory of a user who has large files registered. */
struct pool *engine_own_pool(struct engine *e, struct task *const *tasks, uint32_t n);

#endif
