/* SPDX-License-Identifier: Apache-2.0
 * Tasks in flight, and how they ended. */
#ifndef CLIENT_CORE_TASK_H
#define CLIENT_CORE_TASK_H

#include <stdbool.h>

#include "base/api.h"

enum slot_state { SLOT_EMPTY, SLOT_PENDING, SLOT_ARRIVED, SLOT_COPYING, SLOT_ENDED };

struct chunk;
struct peer;

struct slot {
	uint64_t number; /* the task's handle */
	uint64_t entry;	 /* its number in the present ring; 0: it is a kernel's */
	uint8_t state;
	bool called_back; /* nothing is left for dispatch to do */
	bool quiet;	  /* its failure is intended, and not reported */
	bool detached;	  /* no stream waits for it: it may be pending while streams are idle */
	bool spoiled;	  /* the process was restored from a checkpoint before its end was seen */
	uint8_t op;
	uint8_t timeline;
	uint32_t comm_key, epoch;
	uint32_t place; /* in its plan, from 1; 0: none */
	uint64_t seq;	/* on its communicator, from 0 */
	uint64_t timeline_value;
	/* The kernel, if the task is one of the peer transport, until it has ARRIVED: */
	struct peer *peer;
	uint32_t serial, round; /* round 0: it is a message */
	uint8_t blocks;
	bool posted;	/* the kernel posts its end */
	const void *in; /* its source */
	/* Staging: what goes back to a plain pointer. */
	struct chunk *chunk;
	void *out;
	size_t out_at, out_bytes;
	ncclsvc_status status; /* once ARRIVED */
};

struct tasks {
	uint32_t entries;
	struct slot *slots;
	uint64_t next;		  /* handle of the next task */
	uint64_t entered;	  /* number of the newest task in the present ring */
	uint64_t oldest;	  /* nothing before it is pending */
	uint64_t ended;		  /* ever */
	uint64_t running;	  /* socket mode: submitted and not yet answered */
	struct failure *failures; /* FAILURES_KEPT, a ring; NULL before the first */
	uint64_t nfailures;	  /* ever */
};

/* Where a task is, or was, or will be. */
static inline struct slot *task_slot(const struct tasks *t, uint64_t task)
{
	return &t->slots[task & (t->entries - 1)];
}

enum task_state { TASK_PENDING, TASK_COPYING, TASK_ENDED, TASK_FORGOTTEN };

ncclsvc_result tasks_init(struct tasks *t, uint32_t entries);
/* The ring is new. Handles go on. Locked. */
void tasks_restart(struct tasks *t);
/* Takes in what the daemon says of the task, and copies staged output. Locked; yields. */
enum task_state task_look(ncclsvc_session *s, uint64_t task);
/* As task_look; if it is a kernel, the GPU is asked when nothing else tells. */
enum task_state task_ask(ncclsvc_session *s, uint64_t task);
/* Looks at every task that may be pending. Locked; yields. */
void tasks_look(ncclsvc_session *s);
/* How many of the timeline's tasks the daemon has not ended. Takes nothing in. Locked. */
uint32_t tasks_on_timeline(const ncclsvc_session *s, uint32_t timeline);
/* The process was restored from a checkpoint: tasks on GPUs fail at their ends, if they are pending
 * and detached, or from the task `from` on. Locked. */
void tasks_spoil(ncclsvc_session *s, uint64_t from);
/* Room for n more tasks: OK or AGAIN. Locked; yields. */
ncclsvc_result tasks_room(ncclsvc_session *s, unsigned n);
/* The answer to a SUBMIT. Locked. */
bool task_answer(ncclsvc_session *s, uint32_t serial, const void *body, size_t length, int result);
uint32_t task_serial(uint64_t task);
/* An ended task's slot still knows it, and that it did not fail. Locked. */
static inline bool task_went_well(const struct tasks *t, uint64_t task)
{
	const struct slot *slot = task_slot(t, task);
	return slot->number == task && !slot->status.result;
}
/* Writes the status of an ended task; zeros with result OK for a forgotten one. Locked. */
void task_status_of(ncclsvc_session *s, uint64_t task, ncclsvc_status *status);
/* A kernel's task ends with CANCELLED: the member has left its epoch. Locked. */
void kernel_task_cancel(ncclsvc_session *s, struct slot *slot);
/* Calls by which a session asks the CUDA layer about tasks that are kernels. Locked. */
struct kernel_hooks {
	/* If it is over, fills its status. `ask`: ask the GPU, if nothing else tells. */
	bool (*over)(ncclsvc_session *s, struct slot *slot, bool ask);
	/* Waits for a while, or until it is over. Yields. */
	void (*wait)(ncclsvc_session *s, struct slot *slot, uint64_t deadline);
	/* Asks the GPU how far the kernels are. Returns whether some have not ended. */
	bool (*ask)(struct peer *peer);
	/* The communicator's epoch is over for this member: kernels that wait break off. */
	void (*break_off)(struct peer *peer);
};

/* Raises `done` of pending tasks' timelines, so that no stream waits for a lost daemon. Locked. */
void tasks_release_timelines(ncclsvc_session *s);

#endif
