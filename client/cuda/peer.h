/* SPDX-License-Identifier: Apache-2.0
 *
 * The peer transport in a session: operations that run as kernels on the trainer's own streams
 * (proto/abi/peer.h), without the daemon's doing. It decides who takes part, holds the memory that
 * the kernels share, and breaks them off. */
#ifndef CLIENT_CUDA_PEER_H
#define CLIENT_CUDA_PEER_H

#include <pthread.h>

#include "core/comm.h"
#include "core/op.h"
#include "core/task.h"
#include "proto/abi/peer.h"
#include "state.h"

#define WARP 32

/* In the order in which those of a group are launched. */
enum kernel { KERNEL_NONE, KERNEL_LINES, KERNEL_BULK, KERNEL_MESSAGES, KERNELS };

struct peer_graph;
struct trigger;

struct peer_module {
	CUmodule modules[KERNELS]; /* by enum kernel */
	CUfunction functions[KERNELS];
};

/* The driver is asked about a buffer when it is new: each question costs more than a tenth of a
 * submission. */
#define PEER_CHECKED 64

/* A member's part of one epoch. */
struct peer {
	struct peer *next; /* of those that are kept */
	const struct cuda *cuda;
	const struct peer_module *module;
	CUdevice device;
	CUcontext context;     /* its primary one, retained; NULL: not yet */
	unsigned refs;	       /* its communicator's, and of threads that launch or wait; locked */
	uint16_t out_of_reach; /* as JOIN says it */
	struct lent own;
	struct peer_page *pages; /* all ranks'; NULL: not open yet */
	struct peer_page *page;	 /* this rank's */
	size_t pages_bytes;
	struct peer_call call; /* what all kernels are told alike */
	CUstream asking;       /* of questions to the GPU */
	CUstream aside;	       /* of operations that the trainer's stream does not wait for */
	CUevent input;	       /* of those, and of messages on several streams */
	CUevent fork;	       /* of operations beside others, with the session's lock */
	CUevent order;	       /* of kernels in graphs and others: behind the newest */

	/* With the session's lock. Kernels in graphs do not count. */
	uint32_t serial;	      /* of the newest kernel */
	uint8_t serial_blocks;	      /* it has so many */
	uint32_t round;		      /* of the newest collective */
	uint32_t messages[PEER_WAYS]; /* how many there were */
	uint32_t turns[PEER_WAYS];    /* those of the present group */
	uint32_t over;		      /* a kernel that is known to have ended, as all before it */
	uint32_t told[PEER_BLOCKS];   /* by block: the newest one that had ended it */
	uint32_t posting;  /* so many kernels more post their ends: somebody waits for them */
	uint64_t asked_ns; /* the GPU */
	uint64_t checked[PEER_CHECKED]; /* buffers that were memory of the GPU, by a hash */

	/* Launches keep to the order of serials; no other lock is held meanwhile. */
	pthread_mutex_t turn;
	pthread_cond_t turned;
	uint32_t launched; /* or skipped */
	uint32_t latest;   /* kernel that was launched */
	bool failed;	   /* a launch has: no other follows */
	uint32_t records;
	/* The stream of the newest kernel, and of how many blocks that is. */
	bool any;
	unsigned long long stream_id;
	CUcontext stream_context;
	unsigned blocks;
	struct peer_graph *graphs; /* the newest first */
	/* How many there were, and how many are gone. Atomic. */
	uint32_t ngraphs, graphs_gone;

	/* The triggers (trigger.h): operations in graphs that go to NCCL. Session's lock: */
	uint32_t trigger_line;	   /* their timeline; 0: none yet */
	struct page *trigger_page; /* that is in it; NULL: none yet */
	CUdeviceptr trigger_at;	   /* its words */
	uint32_t trigger_numbers;  /* the newest one's */
	uint32_t trigger_graph;	   /* its graph; 0: none */
	struct trigger *triggers;
	/* How many there were, and how many are gone with their graphs. Atomic. */
	uint32_t ntriggers, triggers_gone;
	uint32_t triggers_swept; /* of those that are gone */
	uint64_t due_clock;	 /* of the submission that triggers_due was last asked for */
	bool due;		 /* and what it said */
};

static inline bool peer_is_open(const struct peer *p)
{
	return p->page;
}

/* ---- peer.c: from JOIN to LEAVE. None is called with the lock, and all but peer_close yield. ----
 */

/* Before JOIN or SPLIT: the member's staging memory. NULL: it has none, and the communicator does
 * without kernels. */
struct peer *peer_new(ncclsvc_session *s, int device, int32_t number, int nranks);
/* JOIN or SPLIT was refused. */
void peer_discard(ncclsvc_session *s, struct peer *p);
/* Before the communicator is joined again: other staging memory. */
void peer_renew(ncclsvc_session *s, ncclsvc_comm *comm, int32_t number);
/* The region that JOIN and SPLIT name. */
static inline uint32_t peer_region(const struct peer *p)
{
	return p ? p->own.region : 0;
}
static inline uint16_t peer_out_of_reach(const struct peer *p)
{
	return p ? p->out_of_reach : 0;
}
/* After JOIN or SPLIT: maps what the others gave, or lets go what the epoch does without. */
ncclsvc_result peer_open(ncclsvc_session *s, ncclsvc_comm *comm);
/* Kernels that still run are broken off. Tasks that are pending then end as cancelled. */
void peer_close(ncclsvc_session *s, ncclsvc_comm *comm);
/* Closes the parts of all communicators, when the session closes. */
void peers_close(ncclsvc_session *s);
void peer_modules_unload(struct gpu *g);
/* The last one lets it go, if nothing of it runs, nor can be launched; else it is kept. Locked. */
void peer_unref(struct peer *p);

/* Refusals of captures. */
ncclsvc_result peer_cannot_detach(void);
ncclsvc_result peer_cannot_capture(void);
/* A communicator without kernels gets the streams and events that captures need. Locked. */
ncclsvc_result peer_bare(ncclsvc_session *s, ncclsvc_comm *comm);

/* ---- peer_kernel.c ---- */

/* The kernel that an operation is for: all members come to the same answer. */
enum kernel peer_choose(const struct op *op);
/* The first one's kernel does how many of the n operations? Notes it in all of them. */
unsigned peer_join(struct op *ops, unsigned n);
uint64_t peer_header_of(const struct svc_record *r);
/* Puts the kernel of n operations on the stream. graph: that it is captured into, or NULL. The
 * context is current. */
CUresult peer_put(const struct op *ops, unsigned n, const struct peer *p, CUstream stream,
		  const struct peer_graph *graph);

/* ---- peer_submit.c ---- */

/* Refuses what cannot be launched, or captured. Locked. */
ncclsvc_result peer_prepare(struct gpu *g, struct op *op);
/* The operation is the next one of its communicator, which has kernels, whether it is one or not.
 * Locked. */
void peer_enter(struct op *op, struct slot *slot);
/* Launches the kernel of n operations. Not locked. */
ncclsvc_result peer_launch(const struct op *ops, unsigned n);
/* Later work on the stream waits for the kernel's task, which is pending. Locked. */
ncclsvc_result peer_stream_wait(ncclsvc_session *s, CUstream handle, const struct slot *slot);
/* The stream waits until all blocks of the kernel, or of later ones, have told that they ended. The
 * context is current, as in the others that follow. */
CUresult peer_wait_ended(const struct peer *p, CUstream stream, uint32_t serial, unsigned blocks);
/* `stream` waits for what is on `from` by now. */
CUresult peer_follow(const struct peer *p, CUevent event, CUstream from, CUstream stream);
/* The kernel's stream waits for what is on the operations' streams. `done`: that one's is. */
CUresult peer_streams_join(const struct op *ops, unsigned n, const struct peer *p, CUstream stream,
			   const struct op *done);

/* ---- peer_messages.c ---- */

static inline unsigned peer_way(const struct svc_record *r)
{
	return r->op == NCCLSVC_SEND ? PEER_WAY_TO((unsigned)r->peer)
				     : PEER_WAY_FROM((unsigned)r->peer);
}
/* The group's operations, whose kernels are chosen: each message's turn. Locked. */
void peer_turns(struct op *ops, unsigned n);
/* Describes the kernel of these messages: its argument, if m is not NULL, and its threads. Returns
 * the blocks. */
unsigned peer_messages_describe(const struct peer *p, const struct op *ops, unsigned n,
				struct peer_messages *m, unsigned *threads);

/* ---- peer_task.c ---- */

extern const struct kernel_hooks peer_hooks;
/* Looks, or asks the GPU, how far the kernels are. Locked. */
void peer_ask(struct peer *p);
/* Have all blocks of that kernel ended, as the GPU said last? */
bool peer_blocks_told(const struct peer *p, uint32_t serial, unsigned blocks);

#endif
