/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared resources, and each tenant's quota of them. A request that uses an entry of a shared
 * table, or the daemon's memory, charges it here first. So no tenant can exhaust a resource for the
 * others, and the error names the tenant who holds too much. Only the loop's thread uses this.
 *
 * In names and texts of quotas, "user" means the tenant, whose limits are the user_* settings of
 * ncclsvcd.conf(5).
 */
#ifndef DAEMON_ACCOUNT_H
#define DAEMON_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "proto/svc_limits.h"
#include "tenant.h"

struct config;

/* The account of all sessions for administration. Its number is no user's, since processes of uid 0
 * in containers must not use up the administrator's share. */
#define ACCOUNT_ADMIN UINT32_MAX

enum share {
	SHARE_SESSIONS,
	SHARE_FDS, /* file descriptors of sessions, of their memory, and in queues */
	SHARE_COMMS,
	SHARE_RANKS,	  /* member slots in all communicators */
	SHARE_PLAN_TASKS, /* tasks and groups in all plans */
	SHARE_REGIONS,	  /* mappings of registered memory, at most as many as they can become
			     (fault.h) */
	SHARE_REGION_BYTES,
	SHARE_RING_BYTES,
	SHARE_QUEUE_BYTES, /* unread replies in sessions' queues */
	SHARE_RECORDINGS,  /* recordings of ended sessions */
	SHARES
};

/* One tenant's account, for all its sessions. */
struct account {
	struct accounts *all;
	struct tenant tenant;
	char name[NCCLSVC_JOB_BYTES];  /* tenant_name */
	char owner[TENANT_TEXT_BYTES]; /* tenant_text */
	uint32_t number;	       /* no two living accounts have the same */
	uint64_t held[SHARES];
	struct closer *closer;
	uint64_t turn, turn_ns; /* time spent on the user's requests in this turn of the loop */
	uint64_t looked_ns;	/* until then, the budget for control blocks is spent */
	uint64_t report_ns;	/* when the user's current window of the log began */
	uint32_t reports;	/* failures in that window */
	uint32_t relayed;	/* its sessions' requests that other nodes have yet to answer */
	UT_hash_handle hh;
};

struct accounts {
	const struct config *config; /* borrowed */
	struct account *by_tenant;
	uint32_t last_number;
	uint64_t held[SHARES];	       /* by all users together */
	uint64_t regions_max, fds_max; /* limits of the system for this process */
	void (*closed)(void *arg);
	void *arg;
};

/* config is borrowed. Reads the system's limits: vm.max_map_count and RLIMIT_NOFILE. Any thread may
 * call closed, when accounts_collect is due. */
void accounts_init(struct accounts *all, const struct config *config, void (*closed)(void *arg),
		   void *arg);
void accounts_fini(struct accounts *all);
/* Returns to the shares what users' threads have closed and unmapped, and frees empty accounts. */
void accounts_collect(struct accounts *all);

/* Returns the tenant's account, which it creates if needed; NULL if out of memory. */
struct account *account_get(struct accounts *all, const struct tenant *tenant);
/* Frees the account if it holds nothing and its closer has no thread. */
void account_put(struct account *a);

/* Do all users together hold the entire share? */
bool account_all_taken(const struct account *a, enum share share);
/* Takes n units of a share. Returns false, with nothing taken, if that would exceed the limit of
 * the user or of all users together; text then says whose limit, how much is held and which key
 * raises it.
 */
bool account_take(struct account *a, enum share share, uint64_t n, char text[SVC_TEXT_BYTES]);
void account_give(struct account *a, enum share share, uint64_t n);
/* Counts units that can no longer be refused. */
void account_add(struct account *a, enum share share, uint64_t n);

/* Closes descriptors that came from the user's processes, in a thread. Until then they count
 * towards SHARE_FDS, even beyond the limit, since they are already open. */
void account_close(struct account *a, const int *fds, unsigned n);
/* Unmaps a region, which was charged `mappings` of SHARE_REGIONS, or a ring. Until then its
 * mappings and bytes stay charged. */
void account_unmap_region(struct account *a, void *base, uint64_t bytes, uint64_t mappings);
void account_unmap_ring(struct account *a, void *base, uint64_t bytes);

/* Does the user still have descriptors to close or memory to unmap? Then accounts_collect becomes
 * due when some of that is done, and a request that was refused may succeed. */
bool account_closing(const struct account *a);

/* Would the system, after the user's request takes this many bytes, still give the daemon a reserve
 * for its own needs? RLIMIT_AS and vm.overcommit_memory=2 limit this. The user who holds the most
 * memory must leave a larger reserve, unless that user holds less than 1 MiB. */
bool account_memory_left(const struct account *a, uint64_t bytes);

#endif
