/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker: the process that owns one GPU's context, its NCCL communicators, and what it imported
 * of trainers' memory. One thread does everything but to end communicators, for NCCL wants one
 * launcher for each GPU.
 *
 *   worker.c   start, loop and sleep; control.c: the supervisor's requests
 *   launch.c   from the queue to NCCL, in the order of the queue; replay.c: what comes again
 *   copy.c     the same without NCCL, where device memory is staged
 *   comm_slot.c, ending.c, redop.c   communicators; window.c: lent memory in NCCL's symmetric
 * windows second_stream.c     which of its two streams a slot uses import.c, span.c  memory;
 * probe.c: which GPUs there are
 */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include <stdint.h>

#include "gpu_api.h"
#include "ring.h"
#include "spin.h"
#include "worker_protocol.h"
#include "worker_queue.h"

struct session_timelines {
	void *ring; /* the whole session memory; NULL: no such session */
	size_t bytes;
	uint32_t entries;
	struct svc_timeline *host;
	CUdeviceptr device; /* the same, as the GPU addresses it */
};

#define SLOT_WRITES 16 /* tasks whose end may be told together */

/* A reduction that the member has made. */
struct made_redop {
	bool made;
	int32_t type;
	ncclRedOp_t op;
};

/* A lent allocation that is one of the communicator's windows. */
struct slot_window {
	struct import *import; /* NULL: no such window */
	ncclWindow_t window;   /* NULL: prepared */
};

struct comm_slot {
	ncclComm_t comm; /* NULL: free, or it is being aborted */
	CUstream stream;
	CUstream second_stream; /* through MPS: has no work; see second_stream.c */
	int32_t nranks, rank;
	uint64_t enqueued;	      /* seq of the last launch */
	uint64_t completed, moved_ns; /* as seen last; and when it last was more, or all */
	uint64_t waits_seq;	      /* the last task that waits on the GPU for its input */
	bool failed;
	bool copied;   /* for AllToAll in place, since the stream was last idle */
	bool draining; /* aborted, or soon; what its stream still holds has to end first */
	struct slot_ending *ending; /* NCCL is at it; NULL: not yet, or it is over */
	uint64_t abort_key;
	struct made_redop redops[SVC_REDOPS_MADE];
	struct slot_window windows[WORKER_WINDOWS];
	struct replays *replays; /* NULL: none yet */
	bool windowless;	 /* NCCL refused one: never again */
	uint64_t window_seq;	 /* of the last task in windows */
	/* Whose tasks came last, how many in a row, and when the streams were tried. */
	uint32_t user_session, user_timeline, row;
	uint64_t tried_ns, rest_ns; /* they are not again before that is over */
	/* What the stream has still to write: done counters, then progress. */
	uint64_t due; /* seq; 0: nothing */
	unsigned ntimelines, ntasks;
	struct {
		CUdeviceptr address;
		uint64_t value;
	} done[SLOT_WRITES];
};

/* A communicator that is to be made on a slot. */
struct comm_slot_init {
	uint64_t number; /* the supervisor's last; 0: none yet */
	bool waits;	 /* for its LAUNCH_INIT */
	struct worker_message message;
};

#define PROBE_TASKS   8	 /* that may be under way and timed */
#define PROBE_SHARP   9	 /* of one stream */
#define PROBE_SAMPLES 65 /* if few are sharp: while a worker launches it does not look */

/* How soon a trainer's stream hears of a slot's streams. */
struct stream_probe {
	bool on;
	uint32_t slot, session, timeline;
	unsigned side; /* of the two streams, in the order of the probe */
	uint64_t begun_ns;
	/* What each task took at most: all, and those of which that is nearly what they took. */
	unsigned nall, nsharp;
	uint64_t all[PROBE_SAMPLES], sharp[PROBE_SHARP];
	uint64_t first_ns; /* the first side's median */
	/* Launched on that side, the first of which is timed. */
	unsigned ntasks;
	struct {
		uint64_t seq, value;
	} tasks[PROBE_TASKS];
	uint64_t before_ns; /* when it was not yet over, at the last look */
	uint64_t over_ns;   /* when it was, at the first; 0: not yet */
	uint64_t looked_ns;
	uint64_t launched_ns; /* begun to be: whatever slot's launch was last */
};

/* What lies behind an imported or lent address. */
struct import {
	CUdeviceptr address;
	CUdeviceptr alias; /* lent: the same memory once more, for windows; 0: not yet */
	uint64_t bytes;
	uint32_t kind;			     /* enum svc_region_kind */
	uint32_t users;			     /* 0: to be let go */
	uint32_t opens;			     /* IPC: how often to close it */
	CUmemGenericAllocationHandle handle; /* VMM and lent */
	struct import **parts;		     /* of a span, which uses them */
	uint32_t nparts;
	uint64_t buffer_id; /* IPC: of the process pid */
	uint8_t ipc_handle[sizeof(CUipcMemHandle)];
	int32_t pid;
	struct import *prev, *next;
};

struct worker {
	int sock, bell, queue_fd;
	struct worker_queue *queue;
	uint32_t generation;  /* this worker's, in the queue */
	CUdeviceptr progress; /* queue->slots as the GPU addresses them */
	CUdevice device;
	CUcontext context;
	int32_t driver_version, nccl_version;
	char name[NCCLSVC_NAME_BYTES];
	uint8_t uuid[16];
	uint64_t worker_bytes;
	struct spin spin;
	CUdeviceptr scratch; /* for what has no buffer of its own: barriers, warm-up */
	struct session_timelines sessions[SVC_SESSIONS_MAX];
	struct comm_slot slots[WORKER_COMM_SLOTS];
	struct comm_slot_init inits[WORKER_COMM_SLOTS];
	struct slot_ending *endings; /* that have left their slots */
	/* Where device memory is staged; then there is no NCCL, and there are no slots. */
	char *staging; /* NULL: it is not */
	uint64_t staging_bytes;
	struct {
		CUstream stream;
		uint64_t enqueued; /* seq of the last copy */
	} copies[COPY_SLOTS];
	struct import *imports;
	struct import *span; /* that is being put together, or NULL */
	struct closed_session *closed;
	uint64_t closing_ns; /* since when something is to be let go; 0: nothing is */
	bool may_replay, mps;
	bool stuck; /* some slot waits for somebody's input, or has not got on for a while */
	struct stream_probe stream_probe;
	uint64_t tail, checked_ns;
	uint32_t high_slot; /* slots from here on were never used */
	uint32_t flying;    /* slots with launches that have not completed */
	bool quit;
	bool supervisor_lost;
	char dying[SVC_TEXT_BYTES]; /* not empty: the context is lost, and why */
};

uint64_t worker_clock(void);
/* Tells the supervisor, and ends the loop, if the error is fatal; returns error != 0. */
bool worker_bad(struct worker *w, CUresult error, const char *what);
/* Another worker must take over, and why. */
void worker_die(struct worker *w, const char *why);
void worker_send(struct worker *w, const struct worker_message *m, int fd);

/* control.c: handles what the supervisor sent. False: it is gone. */
bool control_handle(struct worker *w);

/* launch.c: takes one task group from the queue. False: it is empty. */
bool launch_next(struct worker *w);
/* Watches communicators with launches under way. */
void launch_watch(struct worker *w);
const struct launch *launch_at(const struct worker *w, uint64_t i);
/* Its input is there, as far as the host can see. */
bool launch_ready(const struct worker *w, const struct launch *l);
/* False on a slot that was aborted meanwhile. */
bool launch_usable(const struct worker *w, const struct launch *l);
/* Does it need a copy of its source, which is not NCCL's? */
bool launch_copies(const struct launch *l);
/* NCCL's part of the launches [begin, end), one group. */
ncclResult_t launch_calls(struct worker *w, uint64_t begin, uint64_t end);
/* Writes what the slot's stream has still to write. */
CUresult launch_tell(struct worker *w, uint32_t slot);

/* replay.c: the same, without NCCL if it came again and again. */
ncclResult_t replay_call(struct worker *w, uint64_t begin, uint64_t end);
/* When the slot's stream has ended what it held, and before the communicator is freed. */
void replays_free(struct replays *all);
/* They may still run. in_windows: only those that know windows, before one goes. */
void replays_forget(const struct worker *w, uint32_t slot, bool in_windows);

/* second_stream.c */
CUresult second_stream_make(const struct worker *w, struct comm_slot *l, int priority);
/* Each may be NULL. */
void second_stream_destroy(CUstream stream, CUstream second_stream);
/* Around the last launch of a group. */
void second_stream_before(struct worker *w, const struct launch *l);
void second_stream_after(struct worker *w, const struct launch *l);
/* Before the session is closed. */
void second_stream_forget(struct worker *w, uint32_t session);
/* As often as can be while stream_probe.ntasks is not 0. */
void second_stream_watch(struct worker *w);

/* copy.c: the same, without NCCL. */
bool copy_start(struct worker *w, uint64_t pinned, char *text, size_t size);
bool copy_next(struct worker *w);
void copy_watch(struct worker *w);

/* comm_slot.c */
/* Its LAUNCH_INIT makes it, and then it is answered; or at once, if it was cancelled before. */
void comm_slot_init_asked(struct worker *w, const struct worker_message *m);
void comm_slot_init_cancel(struct worker *w, const struct worker_message *m);
/* A LAUNCH_INIT's turn. False: the supervisor's message is still to come. */
bool comm_slot_init_run(struct worker *w, const struct launch *l);
void comm_slot_failed(struct worker *w, uint32_t slot, const char *what, ncclResult_t result);
/* What was launched on it is over. */
bool comm_slot_idle(const struct worker *w, uint32_t slot);

/* ending.c */
/* True: answered later, by comm_slot_drain. */
bool comm_slot_abort(struct worker *w, const struct worker_message *m);
/* In good order. */
void comm_slot_destroy(struct worker *w, uint32_t slot);
/* The slot is free at once; NCCL ends its communicator apart. */
void comm_slot_end_apart(struct worker *w, uint32_t slot, bool abort);
/* From time to time: those. */
void endings_watch(struct worker *w);
/* The same of a slot that is aborted. Answers that once the stream has ended. */
void comm_slot_drain(struct worker *w, uint32_t slot);

/* redop.c */
void redop_add(struct worker *w, struct worker_message *m);
/* One of the slot's, or all. */
void redop_del(struct worker *w, const struct worker_message *m);
/* NCCL's number for what a task names; false: there is no such reduction. */
bool redop_find(const struct comm_slot *l, unsigned redop, int type, ncclRedOp_t *op);

/* import.c */
void session_open(struct worker *w, struct worker_message *m, int fd);
void session_close(struct worker *w, uint32_t slot);
/* Lets go what was closed. The driver then waits for the whole GPU: not while anything flies, which
 * may be what only an abort can end, unless that takes too long. */
void imports_sweep(struct worker *w, uint64_t now);
/* No supervisor is left to do it. Who submits from now on is told that nobody hears it; */
void sessions_end(struct worker *w);
/* and nobody's stream may wait for us. */
void sessions_release(struct worker *w);
void import_open(struct worker *w, struct worker_message *m, int fd);
int import_lend(struct worker *w, struct worker_message *m); /* the fd, the caller's; or -1 */
void import_close(struct worker *w, uint64_t address);
struct import *import_find(struct worker *w, uint64_t address);
/* Maps memory at an address of its own. */
CUresult import_map(const struct worker *w, CUmemGenericAllocationHandle handle, uint64_t bytes,
		    CUdeviceptr *address);

/* window.c */
bool window_op(const struct launch *l);
/* What the engine asks for with such a launch. */
void window_run(struct worker *w, const struct launch *ask);
/* Where the task's memory lies as a window (0: none; it stays). False: there is no such window. */
bool window_address(const struct comm_slot *l, uint8_t window, uint64_t *address);
/* The slot's communicator ends, or has ended. */
void windows_drop(struct worker *w, struct comm_slot *l);
/* Tasks in windows are on the slot. */
bool window_pending(const struct worker *w, uint32_t slot);
/* The same, a moment later. */
bool window_stuck(const struct worker *w, uint32_t slot);

/* span.c: imports mapped once more, one behind the other. */
void span_parts(struct worker *w, const struct worker_message *m);
void span_open(struct worker *w, struct worker_message *m);
CUresult span_close(struct worker *w, struct import *span);

#endif
