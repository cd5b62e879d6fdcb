/* SPDX-License-Identifier: Apache-2.0
 * A communicator's state for the direct transport: the memory that its members' kernels share. The
 * daemon holds it, so that it outlives the trainers, and aborts the kernels when the epoch ends. */
#ifndef COMM_PEER_H
#define COMM_PEER_H

#include "base/deadlines.h"
#include "comm/communicator.h"
#include "proto/abi/peer_abi.h"
#include "share_log.h"

struct comms;
struct gpu;

/* The result of the last look at a member. */
struct peer_member {
	uint32_t session; /* of the member with which the epoch began */
	uint32_t records;
	uint32_t waits;	   /* the launch_seq of its waiting kernel; 0: none */
	uint64_t waits_ns; /* since when */
};

/* A kernel waits in vain. */
struct peer_stuck {
	int32_t result; /* 0: none does */
	uint32_t rank;
	uint32_t launch_seq;	    /* of its kernel, as the GPU counts; 0: the kernel has ended */
	uint32_t kernel_seq;	    /* the library's number of the kernel; 0: it is in a graph */
	int32_t other;		    /* the rank at fault; -1: none */
	uint32_t circle;	    /* bitmap of ranks that wait for each other */
	uint32_t peer_dir, message; /* the message it waits for; 0: it waits in a collective */
	bool mismatch;		    /* the message received differs from the one sent */
};

/* struct peer_waited, as read at some time. */
struct peer_waits {
	uint64_t kernels, ns;
};

/* The control blocks' counters of waits at the beginning of a half minute (account/lateness.h). */
struct peer_lateness {
	uint32_t number; /* of the half minute */
	uint64_t since_ns;
	struct peer_waits before[PEER_RANKS][PEER_RANKS]; /* [waiting rank][awaited rank] */
};

struct peer_staging {
	int fd;
	uint64_t bytes;
};

struct peer_epoch {
	int fd;
	char *base; /* [nranks][PEER_CONTROL_BYTES] */
	size_t bytes;
	uint32_t operation_bytes; /* the direct transport's largest operation */
	uint32_t limit_source;	  /* ncclsvc_peer_source of this limit */
	uint8_t blocks;		  /* the most of a kernel */
	bool copy_engines;	  /* are used for large operations */
	uint32_t heartbeat;
	struct communicator *comm;
	struct deadline look;	 /* the next look, in comms->looks */
	uint64_t active_ns;	 /* when a member last launched or waited */
	struct peer_stuck stuck; /* found at the last looks, and how often in a row */
	unsigned stuck_looks;
	struct peer_lateness lateness[2]; /* by the low bit of their numbers */
	struct peer_member members[PEER_RANKS];
	struct peer_staging staging[PEER_RANKS];
	struct peer_shares shares;
};

/* Checks a region of JOIN or SPLIT: is it from cuMemCreate, on that device, and large enough? 0,
 * for none, always passes. False: an error was sent. */
bool peer_staging_fits(struct session *c, unsigned opcode, uint32_t request_id, int32_t device,
		       uint32_t region);
/* The member holds the region's memory from now on, whatever happens to the region, and then the
 * epoch does. If no descriptor is available, the member goes without. */
void peer_staging_take(struct member *member, uint32_t region, uint8_t blocks);
/* Also drops its control blocks. */
void peer_staging_drop(struct member *member);

/* Handles CONTROLS, and forgets what it has brought. */
void peer_controls_note(struct session *c, uint32_t request_id, int fd);
void peer_controls_forget(struct session *c);
/* Are they control blocks for the communicator, and the same ones that other members have brought
 * with their JOINs? */
bool peer_controls_fit(const struct communicator *m, const struct session *c);
/* The member's JOIN, which has staging memory, continues their epoch. */
void peer_controls_take(struct member *member);

/* Can each member's GPU access the others' memory? False: `from` cannot access that of `to`. */
bool peer_all_reach(const struct communicator *m, int32_t *from, int32_t *to);
/* Can each member's process map the others' memory? Logs it if not. */
bool peer_all_can_map(struct communicator *m);
/* Do the members of the epoch that is about to begin have everything that kernels need? */
bool peer_is_possible(const struct communicator *m);
/* The epoch begins. If all members have staging memory, creates their control blocks, or adopts
 * those of the epoch that it continues; otherwise frees it. */
void peer_begin(struct communicator *m);
/* The epoch has ended; waiting kernels abort, unless the next daemon may continue it. */
void peer_end(struct communicator *m);

/* watch.c: looks at the control blocks of the communicators that are due, as many as fit in a turn
 * of the loop, and ends the epochs in which a kernel waits in vain. Returns when to look again; 0:
 * there are none. */
uint64_t peer_watch(struct comms *s, uint64_t now);
/* Ends the epoch at the request of that process, as nothing less ends a waiting kernel. */
void peer_cancel(struct communicator *m, int32_t pid);

/* Has the member aborted its kernels, or has one failed for good? Then it takes no part in later
 * ones. */
bool peer_broken_off(const struct communicator *m, uint32_t rank);
/* For JOIN's reply: the largest operation that runs in the members' kernels; 0: none. */
uint32_t peer_bytes(const struct communicator *m);

/* The most blocks of one of their kernels, and whether copy engines move large data. */
uint32_t peer_blocks(const struct communicator *m);
bool peer_uses_copy_engines(const struct communicator *m);
/* How many of the epoch's collectives went through staging memory, as the members' control blocks
 * say. */
uint64_t peer_staged(const struct communicator *m);

/* ---- limit.c: the size from which NCCL is faster ---- */

struct peer_limit {
	uint32_t bytes;
	uint32_t source; /* ncclsvc_peer_source */
};

/* Reads the limits measured on this machine, at the start and at a reload. */
void peer_limits_read(struct comms *s);
/* Sets the limit of an epoch that begins. */
struct peer_limit peer_limit_of(const struct communicator *m);

/* ---- For the layers above ---- */

/* A member's operation that is running in a kernel. */
struct peer_operation {
	struct peer_record record; /* in a graph: operation is its index there */
	uint32_t graph;		   /* the member's number of the graph; 0: none */
	uint32_t kernel;	   /* the kernel's number, never 0 */
	uint32_t state;		   /* ncclsvc_state */
	uint64_t waits_ns;	   /* when its kernel was first seen to wait; 0: it does not wait */
	uint32_t missing;	   /* bitmap of the ranks that have not launched their part */
	int32_t result;		   /* of one that is over: not OK if it is known to have failed */
};
/* If a kernel of the communicator waits, the member's operations from that one on. */
struct peer_range {
	uint32_t first, n; /* the first record's number, and the number of records */
	uint32_t graph;	   /* not 0: a single operation, in this graph */
};
/* False: there are none. */
bool peer_operations(const struct communicator *m, uint32_t rank, struct peer_range *range);
/* The nth of these operations. False: it is not known any more. */
bool peer_operation(const struct communicator *m, uint32_t rank, const struct peer_range *range,
		    uint32_t nth, struct peer_operation *op);
/* Calls each for the member's operations on the direct transport that are still known, over or not,
 * in the order of their launch, from the nth one on, until it returns false. Returns the number of
 * the one that it was called for last, or how many there are. An operation in a graph is known
 * while it waits.
 */
typedef bool peer_each_fn(void *arg, const struct peer_operation *op);
uint32_t peer_each_launched(const struct communicator *m, uint32_t rank, uint32_t from,
			    peer_each_fn *each, void *arg);
/* When it was launched; for an operation in a graph, when it was first seen to wait. */
static inline uint64_t peer_operation_since(const struct peer_operation *op, uint64_t now)
{
	return !op->graph ? op->record.launched_ns : op->waits_ns ? op->waits_ns : now;
}
/* The number of these operations that all members have. */
uint32_t peer_pending(const struct communicator *m);
/* How many operations the member has launched as kernels in this epoch, outside of graphs. */
uint32_t peer_launched(const struct communicator *m, uint32_t rank);
/* Fills in how long others' kernels waited for the rank. False: nothing is known. */
bool peer_lateness_read(const struct communicator *m, uint32_t rank, uint64_t now,
			ncclsvc_lateness_info *i);

/* The source of the limit, for communicators of this GPU's model. */
ncclsvc_peer_source peer_source_of(const struct comms *s, const struct gpu *g);
/* The same for an existing communicator. */
ncclsvc_peer_source peer_source(const struct communicator *m);

/* Handles STAGING. */
void peer_staging_give(struct session *c, uint32_t request_id, const struct svc_staging *r);

#endif
