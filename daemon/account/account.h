/* SPDX-License-Identifier: Apache-2.0
 *
 * What users share, and how much of it one of them may hold. Every request that takes something
 * from a shared table, or from the daemon's memory, takes it here first. So no user can exhaust
 * anything for the others, and the error names the user who holds too much. Used by the loop's
 * thread alone.
 */
#ifndef DAEMON_ACCOUNT_H
#define DAEMON_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "svc_limits.h"

struct config;

#define ACCOUNT_GPUS  16
/* The account of all sessions for administration. Its number is no user's: processes of uid 0 in
 * containers must not use up the administrator's share. */
#define ACCOUNT_ADMIN UINT32_MAX

enum share {
	SHARE_SESSIONS,
	SHARE_FDS, /* file descriptors of sessions, of their memory, and in queues */
	SHARE_COMMS,
	SHARE_RANKS,	  /* member slots, in all communicators */
	SHARE_PLAN_TASKS, /* and groups, in all plans */
	SHARE_REGIONS,	  /* mappings of registered memory, as many as it may become (fault.h) */
	SHARE_REGION_BYTES,
	SHARE_RING_BYTES,
	SHARE_QUEUE_BYTES, /* of replies that sessions have not read */
	SHARE_LENT,	   /* bytes that GPU 0 lends; those behind it are the other GPUs' */
	SHARES = SHARE_LENT + ACCOUNT_GPUS
};

static inline enum share account_lent(int32_t device)
{
	return (enum share)(SHARE_LENT + device);
}

/* One user's, over all sessions. */
struct account {
	struct accounts *all;
	uint32_t uid;
	uint64_t held[SHARES];
	struct closer *closer;
	uint64_t turn, turn_ns; /* time that the user's requests took in this turn of the loop */
	uint64_t looked_ns;	/* until then, the user's share of looks at pages is used up */
	uint64_t report_ns;	/* when the user's present share of the log began */
	uint32_t reports;	/* failures since then */
	uint32_t relayed;	/* its sessions' requests that other nodes have yet to answer */
	UT_hash_handle hh;
};

struct accounts {
	const struct config *config; /* borrowed */
	struct account *by_uid;
	uint64_t held[SHARES];		 /* of all users together */
	uint64_t regions_max, fds_max;	 /* what the system allows this process */
	uint64_t lent_max[ACCOUNT_GPUS]; /* the GPUs' memory, once they are known */
	void (*closed)(void *arg);
	void *arg;
};

/* config is borrowed. Reads the system's limits: vm.max_map_count and RLIMIT_NOFILE. closed is
 * called, by any thread, when accounts_collect is due. */
void accounts_init(struct accounts *all, const struct config *config, void (*closed)(void *arg),
		   void *arg);
void accounts_fini(struct accounts *all);
/* Gives back what users' threads have closed and unmapped, and frees the accounts that hold nothing
 * more. */
void accounts_collect(struct accounts *all);

/* The user's account, made if need be; NULL if out of memory. */
struct account *account_get(struct accounts *all, uint32_t uid);
/* Frees the account if it holds nothing, and its closer has no thread. */
void account_put(struct account *a);

/* Do all users together hold all of it? */
bool account_all_taken(const struct account *a, enum share share);
/* Takes n units of a share. False: the user's limit, or that of all users together, would be
 * passed; nothing was taken, and text says whose limit, how much is held and which key raises it.
 */
bool account_take(struct account *a, enum share share, uint64_t n, char text[SVC_TEXT_BYTES]);
void account_give(struct account *a, enum share share, uint64_t n);
/* Counts what cannot be refused any more. */
void account_add(struct account *a, enum share share, uint64_t n);

/* Closes descriptors that came from the user's processes, by a thread. Until they are closed they
 * count for SHARE_FDS, also beyond the limit: they are there already. */
void account_close(struct account *a, const int *fds, unsigned n);
/* Unmaps a region, for which so many of SHARE_REGIONS were taken, or a ring. Until then, that and
 * its bytes are held. */
void account_unmap_region(struct account *a, void *base, uint64_t bytes, uint64_t mappings);
void account_unmap_ring(struct account *a, void *base, uint64_t bytes);

/* Is something of the user's still to be closed or unmapped? Then accounts_collect is due when some
 * of it is, and what was refused may be taken. */
bool account_closing(const struct account *a);

/* If the user's request takes so many bytes, would the system still give the daemon a reserve for
 * its own needs? RLIMIT_AS and vm.overcommit_memory=2 show here. The user with the most memory must
 * leave a larger reserve than the others. */
bool account_memory_left(const struct account *a, uint64_t bytes);

#endif
