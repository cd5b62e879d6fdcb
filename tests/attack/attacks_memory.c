/* SPDX-License-Identifier: Apache-2.0
 * Attacks with regions: mappings, address space. */
#include <fcntl.h>

#include "flood.h"

#define PAGE	 4096
#define LARGE	 (UINT64_C(8) << 20)
#define SESSIONS 16 /* of 4,095 regions each: with the daemon's own, vm.max_map_count (65,530) */

/* One memfd, registered as often as the daemon allows, in all sessions in parallel, so that all
 * their tables grow until the end. */
static void regions(struct attacker *a)
{
	static struct conn c[SESSIONS];
	int memfd = svc_memfd_create("attack", PAGE, true);
	int large = svc_memfd_create("attack", LARGE, true);
	posix_fallocate(memfd, 0, PAGE);
	posix_fallocate(large, 0, LARGE);
	unsigned n = open_many(a, c, SESSIONS), regions = 0;
	struct svc_region_del del = {.region = n ? conn_region(&c[0], large, LARGE) : 0};
	struct answer answer;
	for (int k = 1; k < SVC_SESSION_REGIONS; k++)
		for (unsigned i = 0; i < n; i++, a->asked++) {
			bool good = conn_region(&c[i], memfd, PAGE) != 0;
			regions += good;
			a->refused += !good;
		}
	attack_ready(a, "%u regions", regions);
	/* The daemon releases large regions in a separate thread, which it may have to create now.
	 */
	if (n)
		conn_call(&c[0], SVC_REGION_DEL, &del, sizeof(del), -1, &answer);
	/* Requests that need the daemon's memory, at the same time. */
	for (;; pause_ms(10)) {
		struct conn more;
		struct rank rank;
		if (conn_open(&more, a->socket)) {
			for (int i = 0; i < 100 && rank_alone(&more, &rank); i++)
				a->asked++;
			conn_close(&more);
		}
		a->asked += n;
		for (unsigned i = 0; i < n; i++)
			a->refused += !conn_region(&c[i], memfd, PAGE);
	}
}

/* Regions that come and go: the daemon maps and unmaps them under its address space lock. */
static void regions_come_and_go(struct attacker *a)
{
	const uint64_t bytes = UINT64_C(256) << 20;
	struct conn c;
	for (int i = 0; i < 3; i++)
		if (attack_fork())
			break;
	int memfd = svc_memfd_create("attack", bytes, true);
	posix_fallocate(memfd, 0, (off_t)bytes);
	attack_ready(a, "4 sessions");
	while (conn_open(&c, a->socket)) {
		struct svc_region_del del = {.region = 1};
		struct answer answer;
		while ((del.region = conn_region(&c, memfd, bytes)) &&
		       conn_call(&c, SVC_REGION_DEL, &del, sizeof(del), -1, &answer) == 0)
			a->asked += 2;
		a->ended++;
		conn_close(&c);
	}
	attack_hold();
}

/* Opens sessions until the daemon's address space, or the user's share of rings, is used up. */
static void rings(struct attacker *a)
{
	enum { RINGS = 512 };
	static struct conn c[RINGS];
	unsigned n = 0;
	while (n < RINGS && conn_open(&c[n], a->socket) && conn_attach(&c[n], 16384))
		n++;
	attack_ready(a, "%u rings", n);
	for (;;)
		for (unsigned i = 0; i < n; i++)
			conn_ring_bell(&c[i]);
}

/* Each session that does not read its answers has one of 32 KiB waiting, which uses up all memory.
 * Other sessions make the daemon queue commands, which it can no longer refuse. */
static void memory_used_up(struct attacker *a)
{
	enum { UNREAD = 1500 };
	static struct conn c[UNREAD];
	const struct svc_list list = {.what = SVC_LIST_MEMBERS};
	const struct svc_record record = {.comm = 77, .op = NCCLSVC_BARRIER, .peer = -1};
	const bool submits = attack_fork();
	const unsigned n = open_many(a, c, submits ? UNREAD / 4 : UNREAD);
	if (submits)
		flood(a, c, n, SVC_SOCKET_TASKS, SVC_SUBMIT, &record, sizeof(record));
	join_unmet(a, &c[0], 1, 4096, 0);
	attack_ready(a, "%u sessions that read no answer", n);
	flood(a, c, n, 0, SVC_LIST, &list, sizeof(list));
}

const struct attack memory_attacks[] = {
	{"regions", "16 sessions register 4,095 regions of 4 KiB each", .run = regions},
	{"regions-address", "the same, where the daemon's address space may grow by 60 MiB",
	 .run = regions, .address_mib = 60},
	{"regions-storm", "regions of 256 MiB come and go without pause",
	 .run = regions_come_and_go},
	{"rings", "as many rings as the user may have, all doorbells rung without pause",
	 .run = rings},
	{"rings-address", "the same, where the daemon's address space may grow by 60 MiB",
	 .run = rings, .address_mib = 60},
	{"memory-used-up", "unread replies use up an address space that may grow by 40 MiB",
	 .run = memory_used_up, .address_mib = 40},
	{0}};
