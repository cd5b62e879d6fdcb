/* SPDX-License-Identifier: Apache-2.0 */
#include "account.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/closer.h"
#include "base/config.h"
#include "base/memory_left.h"
#include "base/nofail.h"
#include "base/timings.h"

#define MEMORY_RESERVE	    (UINT64_C(8) << 20)	 /* for the daemon's own needs */
#define LIGHT_USERS_RESERVE (UINT64_C(16) << 20) /* see may_use_reserve */
#define LIGHT_USER_BYTES    (UINT64_C(1) << 20)	 /* who holds less may always use that reserve */
#define SESSION_BYTES	    4096		 /* approximate size of a session, without a ring */
#define RANK_BYTES	    512			 /* approximate size of a communicator's rank */
#define MAPPINGS_RESERVE    8192
#define FDS_RESERVE	    64
#define MAX_MAP_COUNT	    65530 /* the kernel's default */

struct limit {
	const char *what;
	const char *user_key, *all_key; /* to name in errors; NULL: an operator cannot change it */
	uint64_t user, all;
};

/* A limit without a configuration key; one user may have three quarters of it. */
static struct limit of_system(const char *what, const char *key, uint64_t all)
{
	return (struct limit){what, key, key, all - all / 4, all};
}

static struct limit limit_of(const struct accounts *all, enum share share)
{
	const struct config *c = all->config;
	switch (share) {
	case SHARE_SESSIONS:
		return (struct limit){"sessions", "user_sessions_max", "sessions_max",
				      (uint64_t)c->user_sessions_max, (uint64_t)c->sessions_max};
	case SHARE_FDS:
		return of_system("file descriptors", "LimitNOFILE", all->fds_max);
	case SHARE_COMMS:
		return (struct limit){"communicators", "user_comms_max", "comms_max",
				      (uint64_t)c->user_comms_max, (uint64_t)c->comms_max};
	case SHARE_RANKS:
		return (struct limit){"ranks in communicators", NULL, NULL, SVC_USER_RANKS,
				      UINT64_MAX};
	case SHARE_PLAN_TASKS:
		return (struct limit){"tasks and groups in plans", NULL, NULL, SVC_USER_PLAN_TASKS,
				      UINT64_MAX};
	case SHARE_REGIONS:
		return of_system("mappings of registered memory", "vm.max_map_count",
				 all->regions_max);
	case SHARE_REGION_BYTES:
		return (struct limit){"bytes of registered memory", "user_region_bytes", NULL,
				      c->user_region_bytes, UINT64_MAX};
	case SHARE_RING_BYTES:
		return (struct limit){"bytes of rings", NULL, NULL, SVC_USER_RING_BYTES,
				      UINT64_MAX};
	case SHARE_QUEUE_BYTES:
		return (struct limit){"bytes of unread replies", NULL, NULL, SVC_USER_QUEUE_BYTES,
				      UINT64_MAX};
	case SHARE_RECORDINGS:
		return (struct limit){"recordings of ended sessions", NULL, NULL,
				      SVC_USER_RECORDINGS, SVC_RECORDINGS_MAX};
	case SHARES:
		break;
	}
	return (struct limit){0};
}

static uint64_t max_map_count(void)
{
	uint64_t n = MAX_MAP_COUNT;
	FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
	if (f && fscanf(f, "%" SCNu64, &n) != 1)
		n = MAX_MAP_COUNT;
	if (f)
		fclose(f);
	return n;
}

void accounts_init(struct accounts *all, const struct config *config, void (*closed)(void *arg),
		   void *arg)
{
	struct rlimit fds;
	*all = (struct accounts){.config = config, .closed = closed, .arg = arg};
	/* Each session's ring is a mapping, too. */
	const uint64_t maps = max_map_count();
	const uint64_t own = MAPPINGS_RESERVE + (uint64_t)config->sessions_max;
	all->regions_max = maps > 2 * own ? maps - own : maps / 2;
	if (getrlimit(RLIMIT_NOFILE, &fds))
		fds.rlim_cur = 1024;
	all->fds_max =
		fds.rlim_cur > 2 * FDS_RESERVE ? fds.rlim_cur - FDS_RESERVE : fds.rlim_cur / 2;
}

static void destroy(struct account *a, uint64_t until_ns)
{
	HASH_DEL(a->all->by_tenant, a);
	closer_destroy(a->closer, until_ns);
	free(a);
}

void accounts_fini(struct accounts *all)
{
	const uint64_t until_ns = clock_now() + CLOSERS_END_NS;
	struct account *a, *tmp;
	for (a = all->by_tenant; a; a = a->hh.next)
		closer_end(a->closer);
	HASH_ITER (hh, all->by_tenant, a, tmp)
		destroy(a, until_ns);
}

struct account *account_get(struct accounts *all, const struct tenant *tenant)
{
	struct account *a;
	HASH_FIND(hh, all->by_tenant, tenant, sizeof(*tenant), a);
	if (a)
		return a;
	a = calloc(1, sizeof(*a));
	if (!a)
		return NULL;
	a->closer = closer_create(all->closed, all->arg);
	if (!a->closer) {
		free(a);
		return NULL;
	}
	a->all = all;
	a->tenant = *tenant;
	a->number = ++all->last_number;
	tenant_name(tenant, a->name);
	tenant_text(tenant, a->owner);
	HASH_ADD(hh, all->by_tenant, tenant, sizeof(a->tenant), a);
	return a;
}

static void finish_closed(struct account *a)
{
	struct closer_amount closed[CLOSER_KINDS];
	closer_closed(a->closer, closed);
	account_give(a, SHARE_FDS, closed[CLOSER_FD].n);
	account_give(a, SHARE_REGIONS, closed[CLOSER_REGION].n);
	account_give(a, SHARE_REGION_BYTES, closed[CLOSER_REGION].bytes);
	account_give(a, SHARE_RING_BYTES, closed[CLOSER_RING].bytes);
}

void account_close(struct account *a, const int *fds, unsigned n)
{
	account_add(a, SHARE_FDS, n);
	closer_add(a->closer, fds, n);
	finish_closed(a);
}

void account_unmap_region(struct account *a, void *base, uint64_t bytes, uint64_t mappings)
{
	closer_unmap(a->closer, CLOSER_REGION, base, bytes, mappings);
}

void account_unmap_ring(struct account *a, void *base, uint64_t bytes)
{
	closer_unmap(a->closer, CLOSER_RING, base, bytes, 0);
}

bool account_closing(const struct account *a)
{
	return closer_busy(a->closer);
}

void account_put(struct account *a)
{
	finish_closed(a);
	for (unsigned i = 0; i < SHARES; i++)
		if (a->held[i])
			return;
	/* The supervisor does not wait for a thread: when the thread ends, accounts_collect is due.
	 */
	if (!closer_running(a->closer))
		destroy(a, 0);
}

void accounts_collect(struct accounts *all)
{
	struct account *a, *next;
	HASH_ITER (hh, all->by_tenant, a, next)
		account_put(a);
}

/* ---- Taking and giving ---- */

static const struct account *holds_most(const struct accounts *all, enum share share)
{
	const struct account *most = all->by_tenant;
	for (const struct account *a = most; a; a = a->hh.next)
		if (a->held[share] > most->held[share])
			most = a;
	return most;
}

static void add_key(char *text, size_t n, const char *key)
{
	if (key && n < SVC_TEXT_BYTES)
		snprintf(text + n, SVC_TEXT_BYTES - n, " (%s)", key);
}

static void tell_user_limit(const struct account *a, enum share share, const struct limit *l,
			    uint64_t n, char *text)
{
	int at = snprintf(text, SVC_TEXT_BYTES,
			  "user %s has %" PRIu64 " %s: %" PRIu64
			  " more would exceed the limit of %" PRIu64 " for one user",
			  a->owner, a->held[share], l->what, n, l->user);
	add_key(text, (size_t)at, l->user_key);
}

static void tell_limit_of_all(const struct account *a, enum share share, const struct limit *l,
			      uint64_t n, char *text)
{
	const struct account *most = holds_most(a->all, share);
	int at = snprintf(text, SVC_TEXT_BYTES,
			  "all users together have %" PRIu64 " %s, user %s"
			  " the most of them (%" PRIu64 "): %" PRIu64
			  " more would exceed the daemon's limit of %" PRIu64,
			  a->all->held[share], l->what, most->owner, most->held[share], n, l->all);
	add_key(text, (size_t)at, l->all_key);
}

bool account_all_taken(const struct account *a, enum share share)
{
	return a->all->held[share] >= limit_of(a->all, share).all;
}

bool account_take(struct account *a, enum share share, uint64_t n, char text[SVC_TEXT_BYTES])
{
	const struct limit l = limit_of(a->all, share);
	finish_closed(a);
	/* A reload may have lowered a limit below what is held. */
	if (a->held[share] > l.user || n > l.user - a->held[share]) {
		tell_user_limit(a, share, &l, n, text);
		return false;
	}
	if (a->all->held[share] > l.all || n > l.all - a->all->held[share]) {
		tell_limit_of_all(a, share, &l, n, text);
		return false;
	}
	account_add(a, share, n);
	return true;
}

void account_add(struct account *a, enum share share, uint64_t n)
{
	a->held[share] += n;
	a->all->held[share] += n;
}

void account_give(struct account *a, enum share share, uint64_t n)
{
	a->held[share] -= n;
	a->all->held[share] -= n;
}

/* Recordings of ended sessions do not count: they are kept only while there is plenty. */
static uint64_t memory_of(const struct account *a)
{
	return a->held[SHARE_REGION_BYTES] + a->held[SHARE_RING_BYTES] +
	       a->held[SHARE_QUEUE_BYTES] + a->held[SHARE_SESSIONS] * SESSION_BYTES +
	       a->held[SHARE_RANKS] * RANK_BYTES;
}

/* A user may use the reserve if another user holds more, or if this one holds little. The second
 * case matters when the heavy user's sessions have ended: the allocator keeps the freed memory, so
 * the system still looks full. */
static bool may_use_reserve(const struct account *a)
{
	const uint64_t held = memory_of(a);
	for (const struct account *b = a->all->by_tenant; b; b = b->hh.next)
		if (memory_of(b) > held)
			return true;
	return held < LIGHT_USER_BYTES;
}

bool account_memory_left(const struct account *a, uint64_t bytes)
{
	const uint64_t reserve = MEMORY_RESERVE + (may_use_reserve(a) ? 0 : LIGHT_USERS_RESERVE);
	return bytes < UINT64_MAX - reserve && nofail_reserve_fill() &&
	       memory_left(bytes + reserve);
}
