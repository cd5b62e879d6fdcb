/* SPDX-License-Identifier: Apache-2.0
 * Tasks in flight, and their results. */
#ifndef CLIENT_CORE_TASK_SLOT_H
#define CLIENT_CORE_TASK_SLOT_H

#include <stdbool.h>

#include "base/api.h"

enum slot_state { SLOT_EMPTY, SLOT_PENDING, SLOT_ARRIVED, SLOT_COPYING, SLOT_ENDED };

struct chunk;
struct peer;

struct slot {
	uint64_t number; /* the task's handle */
	uint64_t entry;	 /* its number in the current ring; 0: the task is a kernel */
	uint8_t state;
	bool called_back; /* dispatch has nothing left to do */
	bool quiet;	  /* the failure is intended and not reported */
	bool detached;	  /* no stream waits for it: it may be pending while its stream is idle */
	bool spoiled;	  /* the process was restored before the task's end was seen */
	uint8_t op;
	uint8_t timeline;
	uint32_t comm_key, epoch;
	uint32_t plan_slot; /* slot in its plan, from 1; 0: none */
	uint64_t seq;	    /* number on its communicator, from 0 */
	uint64_t order; /* among its communicator's collectives, or Sends to or Recvs from `to` */
	int32_t to;
	uint64_t timeline_value;
	/* The kernel, if the task uses the direct transport, until the task has ARRIVED: */
	struct peer *peer;
	uint32_t kernel_seq; /* 0: it is no kernel */
	uint8_t blocks;
	bool posted;	/* the kernel signals its end */
	const void *in; /* its source */
	/* Staging: what is copied back to a plain pointer. */
	struct chunk *chunk;
	void *out;
	size_t out_at, out_bytes;
	ncclsvc_status status; /* once ARRIVED */
};

struct tasks {
	uint32_t entries;
	struct slot *slots;
	uint64_t next;		  /* handle of the next task */
	uint64_t entered;	  /* number of the newest task in the current ring */
	uint64_t oldest;	  /* all earlier tasks have ended */
	uint64_t ended;		  /* total since the start */
	uint64_t running;	  /* socket mode: submitted but not yet answered */
	struct failure *failures; /* a ring of FAILURES_KEPT; NULL before the first */
	uint64_t nfailures;	  /* total since the start */
};

/* The slot of a past, present or future task. */
static inline struct slot *task_slot(const struct tasks *t, uint64_t task)
{
	return &t->slots[task & (t->entries - 1)];
}

ncclsvc_result tasks_init(struct tasks *t, uint32_t entries);
/* Starts a new ring. Handles continue. Locked. */
void tasks_restart(struct tasks *t);
/* How many of the timeline's tasks the daemon has not ended. Changes nothing. Locked. */
uint32_t tasks_on_timeline(const ncclsvc_session *s, uint32_t timeline);
/* The process was restored from a checkpoint: tasks on GPUs fail when they end, if they are pending
 * and detached, or are `from` or later. Locked. */
void tasks_spoil(ncclsvc_session *s, uint64_t from);
/* The lowest number that may be pending. Locked. */
uint64_t tasks_first_pending(const struct tasks *t);
/* PENDING to ARRIVED, with the status in the slot. `text` adds to it, or is "". Locked. */
void task_arrive(ncclsvc_session *s, struct slot *slot, const char *text);
/* PENDING to ARRIVED: it failed before it reached the daemon, or without an answer. Locked. */
void task_arrive_failed(ncclsvc_session *s, struct slot *slot, int result, const char *text);
/* Handles the answer to a SUBMIT. Locked. */
bool task_answer(ncclsvc_session *s, uint32_t request_id, const void *body, size_t length,
		 int result);
uint32_t task_request_id(uint64_t task);
/* Whether an ended task's slot still holds it, and it did not fail. Locked. */
static inline bool task_went_well(const struct tasks *t, uint64_t task)
{
	const struct slot *slot = task_slot(t, task);
	return slot->number == task && !slot->status.result;
}
/* Ends a kernel's task with CANCELLED, because the member has left its epoch. Locked. */
void kernel_task_cancel(ncclsvc_session *s, struct slot *slot);
/* The session's callbacks into the CUDA layer for tasks that are kernels. Locked. */
struct kernel_callbacks {
	/* Whether the kernel is over; fills in its status. `ask`: ask the GPU if nothing else
	 * reports its end. */
	bool (*over)(ncclsvc_session *s, struct slot *slot, bool ask);
	/* Waits for a short time, or until the kernel is over. since: when the wait for it began.
	 * Yields. */
	void (*wait)(ncclsvc_session *s, struct slot *slot, uint64_t since, uint64_t deadline);
	/* Asks the GPU for the kernels' progress. Returns whether any has not ended. */
	bool (*ask)(struct peer *peer);
	/* The communicator's epoch is over for this member: waiting kernels stop. */
	void (*break_off)(struct peer *peer);
	/* The task has ended. */
	void (*ended)(ncclsvc_session *s, uint64_t task);
};

/* ---- wait.c ---- */

enum task_state { TASK_PENDING, TASK_COPYING, TASK_ENDED, TASK_FORGOTTEN };

/* Takes in the task's status from the daemon, and copies staged output. Locked; yields. */
enum task_state task_look(ncclsvc_session *s, uint64_t task);
/* Like task_look, but asks the GPU about a kernel when nothing else reports its end. */
enum task_state task_ask(ncclsvc_session *s, uint64_t task);
/* Looks at every task that may be pending. Locked; yields. */
void tasks_look(ncclsvc_session *s);
/* The same, but asks the GPUs whether kernels have ended. Locked; yields. */
void tasks_ask(ncclsvc_session *s);
/* Makes room for n more tasks: OK or AGAIN. Locked; yields. */
ncclsvc_result tasks_room(ncclsvc_session *s, unsigned n);
/* task_wait returns OK once the task is over, else TIMEOUT; task_over looks once. Locked; yields.
 */
ncclsvc_result task_wait(ncclsvc_session *s, uint64_t task, uint64_t deadline);
bool task_over(ncclsvc_session *s, uint64_t task);

#endif
