/* SPDX-License-Identifier: Apache-2.0
 * Trainers in the scheduler: their rings and registered memory. */
#ifndef SCHED_SESSION_H
#define SCHED_SESSION_H

#include "sched/api/scheduler.h"

struct comm;
struct departure;
struct held;
struct scheduler;
struct member;
struct pool;
struct session_counts;
struct task;

struct region {
	char *base;  /* NULL: no such region; for a GPU: an address in its worker */
	bool absent; /* not imported: base is only good for comparisons */
	uint64_t bytes;
	uint32_t pins;	     /* pending tasks that use it */
	int32_t device;	     /* -1: host */
	uint32_t fault;	     /* number of fault_watch; 0: a GPU's */
	uint64_t file_bytes; /* of host memory */
};

struct handle {
	struct comm *comm; /* NULL: its epoch has ended, or (known false) it never existed */
	int32_t rank;
	bool known;
	uint32_t ended; /* the epoch that ended last; tasks that come too late for it get the same
			   status */
	ncclsvc_status end;	/* the status of its tasks */
	bool too_late_reported; /* to the supervisor: a task that came too late */
	bool suspended;		/* the epoch is: its tasks are held */
	uint32_t held;		/* tasks */
};

/* A timeline of tasks on GPUs. */
struct line {
	uint32_t in_flight;	 /* tasks */
	uint64_t owed;		 /* the value that done must reach once no task is in flight */
	uint32_t captured_tasks; /* tasks that its captured groups have started and that have not
				    ended */
	struct captured_group *captured_groups;
	struct comm *comm;	     /* of the captured groups */
	const struct member *member; /* whose they are */
	uint64_t arrived_ns;	     /* when the stream reached the newest of them */
	uint64_t seen;	 /* 1 + the commands queued when a number was first seen; 0: none */
	uint64_t ahead;	 /* the captured group that was started before its input was ready; or 0 */
	uint64_t newest; /* the captured group that was launched last */
	uint32_t launched; /* how many were */
};

/* All sessions of one tenant. Users take turns, so none waits longer than one turn of each other
 * user, however much work the others have in the scheduler. */
struct user {
	struct user *prev, *next; /* in the scheduler's list */
	uint32_t uid, tenant, sessions;
	uint32_t tasks;	       /* alive, including tombstones */
	uint32_t captured_ops; /* operations held by captured groups */
	uint64_t file_bytes;   /* of all registered host memory */
	struct pool *pool;     /* made by user_own_pool */
	bool pool_failed;
	struct sched_session *active;	   /* whose rings are polled */
	struct member *ready, **ready_end; /* whose queues may advance */
};

struct sched_session {
	/* Fields that every record needs come first. */
	struct svc_ring *ring; /* NULL: socket only */
	uint64_t next;	       /* number of the next record */
	uint8_t *busy;	       /* [entries]: the task of this slot has not ended */
	uint64_t after;	       /* the next record waits until this many commands have run */
	uint32_t entries;
	bool active; /* its ring is polled; otherwise its doorbell is watched */
	bool dirty;  /* tasks have ended since its waiters were woken */
	bool broken; /* no longer served */
	bool leaving;
	uint64_t active_ns;	      /* when the last record came */
	struct departure *departures; /* regions that are to be freed */
	struct sched_session *next_active, *next_dirty;
	struct user *user;
	struct session_counts *counts;
	struct task *group; /* the open group */
	uint32_t group_tasks;
	ncclsvc_status group_end; /* why it is refused; result 0: it is not */
	uint32_t tasks;		  /* alive, including tombstones */
	uint32_t socket_tasks;
	struct held *held;  /* tasks of suspended epochs */
	bool held_unsorted; /* they are not in the order of their numbers: see held_sort */
	bool taking_held;   /* they are being submitted */
	struct handle *handles;
	struct region *regions;
	uint32_t nhandles, nregions;
	uint32_t members; /* handles with a communicator */
	uint64_t spoiled; /* the last epoch end that has checked its group */

	bool resumes; /* its client submits what has not run to the next daemon */
	bool left;    /* the daemon shuts down, and leaves its tasks and streams to the next one */
	uint64_t waited; /* the number of the record that has waited for commands */
	uint32_t slot, id;
	int32_t pid;
	int fd, doorbell, completion;
	struct sched_session *prev_active, *next_leaving;
	uint32_t inputs;
	struct line *lines;	     /* [SVC_TIMELINES]; NULL: no communicator of GPUs yet */
	uint64_t captured_timelines; /* bitmap of lines with captured groups */
	struct sched_session *prev_captured, *next_captured;
};

/* Adds to the pins of the record's regions, which ingest.c has found or set to 0. */
static inline void sched_session_pin(struct sched_session *s, const struct svc_record *r, int by)
{
	if (r->src_region)
		s->regions[r->src_region].pins += (uint32_t)by;
	if (r->dst_region)
		s->regions[r->dst_region].pins += (uint32_t)by;
}

/* All available records have been taken. */
static inline bool sched_session_ring_empty(const struct sched_session *s)
{
	return svc_number_load(&svc_record_slot(s->ring, s->entries, s->next)->number) != s->next;
}

#endif
