/* SPDX-License-Identifier: Apache-2.0
 * The peer transport's part of a communicator: the memory that its members' kernels share. The
 * daemon holds it, so that it outlives the trainers, and breaks the kernels off when the epoch
 * ends. */
#ifndef COMM_PEER_H
#define COMM_PEER_H

#include "abi/peer.h"
#include "communicator.h"

/* What the last look found out about a member. */
struct peer_member {
	uint32_t session; /* of the member that the epoch began with */
	uint32_t launched;
	uint32_t waits;	   /* the sequence of its kernel that waits; 0: none */
	uint64_t waits_ns; /* since then */
};

/* A kernel waits in vain. */
struct peer_stuck {
	int32_t result; /* 0: none does */
	uint32_t rank, sequence;
	int32_t other; /* whose fault it is; -1: nobody's */
};

struct peer_pages {
	int fd;
	char *base; /* [nranks][PEER_PAGE] */
	size_t bytes;
	uint32_t operation_bytes; /* that an operation in kernels may have */
	uint32_t heartbeat;
	uint64_t due_ns;	 /* the next look */
	uint64_t active_ns;	 /* when one launched or waited last */
	struct peer_stuck stuck; /* at the last look */
	struct peer_member members[PEER_RANKS];
};

/* A region for JOIN or SPLIT: is it lent, on that device, and large enough? 0, none, always fits.
 * False: an error was sent. */
bool peer_staging_fits(struct client *c, unsigned opcode, uint32_t serial, int32_t device,
		       uint32_t region);
/* The member holds the region's memory from now on, whatever becomes of the region. Without a
 * descriptor to spare it goes without. */
void peer_staging_take(struct member *member, uint32_t region);
void peer_staging_drop(struct member *member);

/* The epoch begins: if all members have staging memory, makes their pages. */
void peer_begin(struct communicator *m);
/* It is over: kernels that wait break off. */
void peer_end(struct communicator *m);

/* peer_watch.c: looks at the pages, if it is time: ends the epoch if a kernel waits in vain.
 * Returns when to look again; 0: there are none. */
uint64_t peer_watch(struct communicator *m, uint64_t now);

/* Has the member broken its kernels off, or has one failed for good? Then it takes no part in
 * those to come. */
bool peer_broken_off(const struct communicator *m, uint32_t rank);
/* Of JOIN's reply: the most bytes of an operation that runs in the members' kernels; 0: none. */
uint32_t peer_bytes(const struct communicator *m);

/* ---- For the layers above ---- */

/* An operation of a member that is under way in a kernel. */
struct peer_operation {
	struct peer_record record;
	uint32_t state;	   /* ncclsvc_state */
	uint64_t waits_ns; /* when its kernel was first seen to wait; 0: it does not */
	uint32_t missing;  /* bits: the ranks that have not launched it */
};
/* If a kernel of the communicator waits, the member's nth operation from that on. False: there are
 * no more. */
bool peer_operation(const struct communicator *m, uint32_t rank, uint32_t nth,
		    struct peer_operation *op);

/* STAGING. */
void peer_staging_give(struct client *c, uint32_t serial, const struct svc_staging *r);

#endif
