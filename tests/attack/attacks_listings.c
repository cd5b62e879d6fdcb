/* SPDX-License-Identifier: Apache-2.0
 * Attacks with LIST: long lists that are read, and lists that are not. */
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "flood.h"

/* Joins up to 64 communicators of 4,096 ranks (262,144 members). Returns how many. */
static unsigned many_members(struct attacker *a)
{
	static struct conn c;
	return conn_open(&c, a->socket) ? join_unmet(a, &c, 64, 4096, 0) : 0;
}

static unsigned many_comms(struct attacker *a)
{
	enum { SESSIONS = 4 };
	static struct conn c[SESSIONS];
	unsigned n = 0;
	for (unsigned i = 0; i < open_many(a, c, SESSIONS); i++)
		n += join_unmet(a, &c[i], 1000, 2, 0);
	return n;
}

static void ask_list(struct attacker *a, unsigned sessions, unsigned depth, uint32_t what)
	__attribute__((noreturn));

static void ask_list(struct attacker *a, unsigned sessions, unsigned depth, uint32_t what)
{
	static struct conn c[64];
	const struct svc_list list = {.what = what};
	sessions = open_many(a, c, sessions);
	flood(a, c, sessions, depth, SVC_LIST, &list, sizeof(list));
}

static void members_by_4(struct attacker *a)
{
	attack_ready(a, "%u communicators of 4096 ranks", many_members(a));
	ask_list(a, 4, 8, SVC_LIST_MEMBERS);
}

static void members_by_60(struct attacker *a)
{
	attack_ready(a, "%u communicators of 4096 ranks", many_members(a));
	ask_list(a, 60, 1, SVC_LIST_MEMBERS);
}

static void tasks_listed(struct attacker *a)
{
	uint64_t n = queue_tasks(a, 200000, 0);
	attack_ready(a, "%llu tasks queued", (unsigned long long)n);
	ask_list(a, 16, 1, SVC_LIST_TASKS);
}

static void comms_listed(struct attacker *a)
{
	attack_ready(a, "%u communicators", many_comms(a));
	ask_list(a, 60, 8, SVC_LIST_COMMS);
}

/* The shared memory of the whole machine, in MiB. */
static unsigned shared_mib(void)
{
	char line[128];
	unsigned long kib = 0;
	FILE *f = fopen("/proc/meminfo", "re");
	while (f && fgets(line, sizeof(line), f))
		sscanf(line, "Shmem: %lu", &kib);
	if (f)
		fclose(f);
	return (unsigned)(kib / 1024);
}

/* Answers accumulate in the socket. The attack stops at 2 GiB, which suffices to break the rule. */
static void members_unread(struct attacker *a)
{
	enum { ENOUGH_MIB = 2048 };
	const struct svc_list list = {.what = SVC_LIST_MEMBERS};
	struct conn c;
	unsigned n = many_members(a), before = shared_mib();
	if (!conn_open(&c, a->socket))
		attack_hold();
	attack_ready(a, "%u communicators of 4096 ranks", n);
	while (shared_mib() < before + ENOUGH_MIB) {
		if (conn_send(&c, SVC_LIST, &list, sizeof(list), -1, MSG_DONTWAIT) == 0)
			a->asked++;
		else
			pause_ms(1);
	}
	attack_hold();
}

/* Unread answers, in sockets and in the daemon, in as many sessions as possible. */
static void devices_unread(struct attacker *a)
{
	enum { SESSIONS = 64 };
	static struct conn c[SESSIONS];
	const struct svc_list list = {.what = SVC_LIST_DEVICES};
	unsigned n = open_many(a, c, SESSIONS);
	attack_ready(a, "%u sessions", n);
	flood(a, c, n, 0, SVC_LIST, &list, sizeof(list));
}

const struct attack listing_attacks[] = {
	{"list-members-4", "4 sessions keep 8 LISTs of 262,144 members under way",
	 .run = members_by_4, .pinned_mib = 1024},
	{"list-members-60", "60 sessions LIST 262,144 members without pause", .run = members_by_60,
	 .pinned_mib = 1536},
	{"list-tasks", "16 sessions LIST 200,000 tasks without pause", .run = tasks_listed,
	 .pinned_mib = 1024},
	{"list-comms", "60 sessions LIST 4,000 communicators without pause", .run = comms_listed,
	 .pinned_mib = 1024},
	{"list-unread", "one session LISTs 262,144 members and reads no answer",
	 .run = members_unread, .pinned_mib = 512},
	{"list-unread-64", "64 sessions LIST devices and read no answer", .run = devices_unread,
	 .pinned_mib = 512},
	{0}};
