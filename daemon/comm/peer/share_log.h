/* SPDX-License-Identifier: Apache-2.0
 * GPU memory that the members of an epoch share with each other: each epoch with staging memory has
 * a log of the regions that its members share and drop, which every member reads at its own pace
 * (proto/wire_memory.h). */
#ifndef COMM_PEER_SHARE_LOG_H
#define COMM_PEER_SHARE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/abi/peer_abi.h"
#include "proto/wire_memory.h"

struct session;
struct communicator;
struct comms;
struct mapping;
struct shared;

struct share_entry {
	uint32_t what; /* SVC_SHARED_MAP, _DROP or _COUNT */
	uint32_t rank, slot, number;
	struct shared *share; /* of a MAP: NULL once it is dropped; of a DROP: NULL unless a
				REGION_DEL waits for it */
};

struct share_rank {
	bool asked;	       /* the member reads the log */
	bool again;	       /* it may say again what it has shared before a restart */
	uint64_t position;     /* the member has passed the entries before it */
	uint32_t number;       /* of its last share */
	uint32_t entries;      /* of the rank, in the log */
	uint32_t live;	       /* shares not dropped */
	struct shared **slots; /* [SVC_SHARE_SLOTS] of these; NULL: it has shared nothing */
};

struct peer_shares {
	struct share_entry *log; /* ring; the entry of a position is at its lowest bits */
	uint64_t first, end;	 /* positions; all members have passed those before first */
	uint32_t room;		 /* of log: a power of two, or 0 */
	struct share_rank ranks[PEER_RANKS];
};

/* The epoch continues one: its members say again what they share. */
void shares_begin_again(struct peer_shares *l, uint32_t nranks);
/* All members are asleep, and have unmapped each other's shares: empties the log. */
void shares_restart(struct communicator *m);
/* A member has left, or is asleep: nothing waits for it. */
void shares_left(struct communicator *m);
/* The epoch has ended. */
void shares_end(struct communicator *m);
/* Drops the region's shares. True: other members are to unmap them within the region's wait_ms.
 * memory_unshared follows. */
bool shares_drop(struct comms *s, struct session *c, uint32_t region, uint32_t request_id);
/* The region is gone. */
void shares_region_gone(struct comms *s, struct mapping *r);
/* Ends the waits that are over. Returns the next deadline; 0: none. */
uint64_t shares_expire(struct comms *s, uint64_t now);

/* ---- For the layers above: these handle SHARES, SHARE, SHARED and SHARED_PART ---- */

void shares_bell_give(struct session *c, uint32_t request_id);
void shares_add(struct session *c, uint32_t request_id, const struct svc_share *r);
void shares_read(struct session *c, uint32_t request_id, const struct svc_shared *r);
void shares_part(struct session *c, uint32_t request_id, const struct svc_shared_part *r);

#endif
