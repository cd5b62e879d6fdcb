/* SPDX-License-Identifier: Apache-2.0
 * The peer transport's part of a communicator: the memory that its members' kernels share. The
 * daemon holds it, so that it outlives the trainers, and breaks the kernels off when the epoch
 * ends. */
#ifndef COMM_PEER_H
#define COMM_PEER_H

#include "abi/peer.h"
#include "base/deadlines.h"
#include "comm/communicator.h"

struct comms;
struct gpu;

/* What the last look found out about a member. */
struct peer_member {
	uint32_t session; /* of the member that the epoch began with */
	uint32_t records;
	uint32_t waits;	   /* the sequence of its kernel that waits; 0: none */
	uint64_t waits_ns; /* since then */
};

/* A kernel waits in vain. */
struct peer_stuck {
	int32_t result; /* 0: none does */
	uint32_t rank;
	uint32_t sequence;     /* of its kernel, as the GPU counts; 0: that has ended */
	uint32_t serial;       /* the library's of that; 0: it is in a graph */
	int32_t other;	       /* whose fault it is; -1: nobody's */
	uint32_t circle;       /* bits: ranks that wait for each other */
	uint32_t way, message; /* which message it is about; 0: it is a collective */
	bool unlike;	       /* it received another message than the other had sent */
};

/* Looks at the kernels in one half of a minute (account/lateness.h). */
struct peer_lateness {
	uint32_t number;	   /* of the half minute */
	uint32_t looks, waited;	   /* all of them; those at which a collective waited for a rank */
	uint32_t late[PEER_RANKS]; /* those at which it waited for this one */
};

struct peer_staging {
	int fd;
	int32_t device;
	uint64_t bytes;
};

struct peer_pages {
	int fd;
	char *base; /* [nranks][PEER_PAGE] */
	size_t bytes;
	uint32_t operation_bytes; /* that an operation in kernels may have */
	uint32_t limit_source;	  /* ncclsvc_peer_source of that */
	uint32_t heartbeat;
	struct communicator *comm;
	struct deadline look;	 /* the next one, in comms->looks */
	uint64_t active_ns;	 /* when one launched or waited last */
	struct peer_stuck stuck; /* at the last look, and so many before */
	unsigned stuck_looks;
	struct peer_lateness lateness[2]; /* by the low bit of their numbers */
	struct peer_member members[PEER_RANKS];
	struct peer_staging staging[PEER_RANKS];
};

/* A region for JOIN or SPLIT: is it lent, on that device, and large enough? 0, none, always fits.
 * False: an error was sent. */
bool peer_staging_fits(struct client *c, unsigned opcode, uint32_t serial, int32_t device,
		       uint32_t region);
/* The member holds the region's memory from now on, whatever becomes of the region, and then the
 * epoch that it begins. Without a descriptor to spare it goes without. */
void peer_staging_take(struct member *member, uint32_t region);
void peer_staging_drop(struct member *member);

/* The epoch begins: if all members have staging memory, makes their pages; else lets it go. */
void peer_begin(struct communicator *m);
/* It is over: kernels that wait break off. */
void peer_end(struct communicator *m);

/* watch.c: looks at the pages of communicators whose time has come, as many as there is time for in
 * a turn of the loop: ends the epochs in which a kernel waits in vain. Returns when to look again;
 * 0: there are none. */
uint64_t peer_watch(struct comms *s, uint64_t now);
/* Ends the epoch, on request of that process: nothing less ends a kernel that waits. */
void peer_cancel(struct communicator *m, int32_t pid);

/* Has the member broken its kernels off, or has one failed for good? Then it takes no part in
 * those to come. */
bool peer_broken_off(const struct communicator *m, uint32_t rank);
/* Of JOIN's reply: the most bytes of an operation that runs in the members' kernels; 0: none. */
uint32_t peer_bytes(const struct communicator *m);

/* ---- limit.c: from how many bytes on NCCL is faster ---- */

struct peer_limit {
	uint32_t bytes;
	uint32_t source; /* ncclsvc_peer_source */
};

/* Reads what was measured on this machine, at the start and at a reload. */
void peer_limits_read(struct comms *s);
/* Of an epoch that begins. */
struct peer_limit peer_limit_of(const struct communicator *m);

/* ---- For the layers above ---- */

/* An operation of a member that is under way in a kernel. */
struct peer_operation {
	struct peer_record record; /* in a graph: operation is its place there */
	uint32_t graph;		   /* the member's number of that; 0: none */
	uint32_t kernel;	   /* its number, never 0 */
	uint32_t state;		   /* ncclsvc_state */
	uint64_t waits_ns;	   /* when its kernel was first seen to wait; 0: it does not */
	uint32_t missing;	   /* bits: the ranks that have not launched their part */
};
/* If a kernel of the communicator waits, the member's operations from that on. */
struct peer_range {
	uint32_t first, n; /* the first record's number, and how many */
	uint32_t graph;	   /* not 0: it is one operation, in that graph */
};
/* False: there are none. */
bool peer_operations(const struct communicator *m, uint32_t rank, struct peer_range *range);
/* The nth of them. False: it is not known any more. */
bool peer_operation(const struct communicator *m, uint32_t rank, const struct peer_range *range,
		    uint32_t nth, struct peer_operation *op);
/* When it was launched; of one in a graph nobody tells, but when it was first seen to wait. */
static inline uint64_t peer_operation_since(const struct peer_operation *op, uint64_t now)
{
	return !op->graph ? op->record.launched_ns : op->waits_ns ? op->waits_ns : now;
}
/* How many of these all members have. */
uint32_t peer_pending(const struct communicator *m);
/* Fills in the record's looks. False: there were none. */
bool peer_lateness_read(const struct communicator *m, uint32_t rank, uint64_t now,
			ncclsvc_lateness_info *i);

/* What says the limit, of communicators of this GPU's model. */
ncclsvc_peer_source peer_source_of(const struct comms *s, const struct gpu *g);
/* The same of a communicator that is. */
ncclsvc_peer_source peer_source(const struct communicator *m);

/* STAGING. */
void peer_staging_give(struct client *c, uint32_t serial, const struct svc_staging *r);

#endif
