/* SPDX-License-Identifier: Apache-2.0
 * Attacks with registered memory that holes are punched into, or that is released all at once. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "flood.h"

#define PAGE UINT64_C(4096)
#define MIB  (UINT64_C(1) << 20)

static int make_memfd(uint64_t bytes)
{
	const int fd = svc_memfd_create("attack", bytes, true);
	if (fd >= 0 && !fallocate(fd, 0, 0, (off_t)bytes))
		return fd;
	close(fd);
	return -1;
}

static void punch(int memfd, uint64_t bytes)
{
	fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
}

struct owner {
	struct conn conn;
	struct rank rank;
};

static bool open_owner(struct attacker *a, struct owner *o)
{
	if (conn_open(&o->conn, a->socket) && conn_attach(&o->conn, 16384) &&
	    rank_alone(&o->conn, &o->rank))
		return true;
	conn_close(&o->conn);
	return false;
}

/* Copies bytes from one region, or its first half, to another, or its second half. */
static void submit_copy(struct owner *o, uint32_t from, uint32_t to, uint64_t bytes)
{
	struct svc_record record = rank_record(&o->rank);
	record.op = NCCLSVC_ALL_REDUCE;
	record.type = NCCLSVC_FLOAT32;
	record.count = bytes / 4;
	record.src_region = from;
	record.dst_region = to;
	record.dst_offset = from == to ? bytes : 0;
	conn_submit(&o->conn, &record);
}

static void wait_for_ends(struct attacker *a, struct owner *owners, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct answer answer;
		while (conn_next(&owners[i].conn, &answer, 10000) == 1)
			svc_close_fds(answer.fds, answer.nfds);
		conn_close(&owners[i].conn);
		a->ended++;
	}
}

/* Registers regions of one page until the daemon refuses. */
static unsigned fill_share(struct attacker *a)
{
	const int memfd = make_memfd(PAGE);
	unsigned n = 0;
	struct conn *c = NULL;
	for (uint32_t last = SVC_SESSION_REGIONS - 1; last == SVC_SESSION_REGIONS - 1;) {
		c = calloc(1, sizeof(*c)); /* stays open */
		if (!c || !conn_open(c, a->socket))
			break;
		for (last = 0; last < SVC_SESSION_REGIONS - 1 && conn_region(c, memfd, PAGE); n++)
			last++;
	}
	return n;
}

/* All memory that the daemon maps is punched, then copied from end to end by each session: each
 * piece that the daemon replaces adds a mapping. */
static void punched(struct attacker *a)
{
	enum { OWNERS = 16 };
	static struct owner owners[OWNERS];
	unsigned filled = 0;
	const uint64_t bytes = 1024 * MIB;
	for (int memfd; (memfd = make_memfd(bytes)) >= 0; close(memfd)) {
		unsigned n = 0;
		uint32_t region[OWNERS];
		while (n < OWNERS && open_owner(a, &owners[n])) {
			region[n] = conn_region(&owners[n].conn, memfd, bytes);
			a->asked++;
			a->refused += !region[n];
			n++;
		}
		if (!filled)
			filled = fill_share(a);
		punch(memfd, bytes);
		for (unsigned i = 0; i < n; i++)
			if (region[i])
				submit_copy(&owners[i], region[i], region[i], bytes / 2);
		attack_ready(a, "%u sessions, 1 GiB each, and %u regions", n, filled);
		wait_for_ends(a, owners, n);
	}
	attack_hold();
}

/* The same with as many one-page regions as the daemon allows. */
static void punched_small(struct attacker *a)
{
	enum { OWNERS = 16 };
	static struct owner owners[OWNERS];
	static unsigned regions[OWNERS];
	for (int memfd; (memfd = make_memfd(PAGE)) >= 0; close(memfd)) {
		unsigned n = 0, all = 0;
		for (; n < OWNERS && open_owner(a, &owners[n]); n++) {
			regions[n] = 0;
			while (regions[n] < SVC_SESSION_REGIONS - 1 &&
			       conn_region(&owners[n].conn, memfd, PAGE))
				regions[n]++;
			all += regions[n];
		}
		punch(memfd, PAGE);
		for (unsigned i = 0; i < n; i++)
			for (unsigned k = 1; k <= regions[i]; k++)
				submit_copy(&owners[i], k, k, PAGE / 2);
		attack_ready(a, "%u regions", all);
		wait_for_ends(a, owners, n);
	}
	attack_hold();
}

/* Processes exit with sessions whose memory no other process maps: the daemon frees all of it. */
static void ends(struct attacker *a)
{
	enum { REGIONS = 1024 };
	const uint64_t bytes = 4 * MIB;
	for (;; a->ended++) {
		int to_parent[2];
		char byte;
		if (pipe(to_parent))
			return;
		if (attack_fork()) {
			struct conn c;
			unsigned n = 0;
			int memfd = -1;
			for (bool good = conn_open(&c, a->socket); good && n < REGIONS; n += good) {
				memfd = make_memfd(bytes);
				good = memfd >= 0 && conn_region(&c, memfd, bytes);
				close(memfd);
			}
			attack_ready(a, "%u regions of 4 MiB", n);
			_exit(0);
		}
		close(to_parent[1]);
		ssize_t got = read(to_parent[0], &byte, 1); /* until the child has ended */
		(void)got;
		close(to_parent[0]);
		wait(NULL);
	}
}

/* Small tasks on the last page, while all the memory is punched: an access to a page being punched
 * waits until all are. */
static void punching(struct attacker *a)
{
	const uint64_t bytes = 4096 * MIB;
	struct owner o;
	for (int memfd; (memfd = make_memfd(bytes)) >= 0; close(memfd)) {
		if (!open_owner(a, &o))
			break;
		const uint32_t region = conn_region(&o.conn, memfd, bytes);
		struct svc_record record = rank_record(&o.rank);
		record.op = NCCLSVC_ALL_REDUCE;
		record.type = NCCLSVC_FLOAT32;
		record.count = 4;
		record.src_region = record.dst_region = region;
		record.src_offset = bytes - PAGE;
		record.dst_offset = bytes - PAGE / 2;
		attack_ready(a, "one region of 4 GiB");
		if (attack_fork()) {
			punch(memfd, bytes);
			_exit(0);
		}
		for (int i = 0; i < 16000 && !atomic_load(&o.conn.ring->ended); i++, a->asked++) {
			conn_submit(&o.conn, &record);
			usleep(100);
		}
		wait(NULL);
		wait_for_ends(a, &o, 1);
	}
	attack_hold();
}

/* Each process punches its share of the rings, and fills them again. */
static void punch_rings(struct owner *owners, unsigned n)
{
	for (unsigned round = 0; round < 20; round++)
		for (unsigned i = 0; i < n; i++) {
			struct conn *c = &owners[i].conn;
			madvise(c->ring, c->ring_size, MADV_REMOVE);
			for (size_t at = SVC_RECORDS_AT; at < c->ring_size; at += PAGE)
				((volatile char *)c->ring)[at] = 0;
		}
}

/* Rings that are punched while they are polled. */
static void rings_punching(struct attacker *a)
{
	enum { OWNERS = 64, PUNCHERS = 8 };
	static struct owner owners[OWNERS];
	for (;;) {
		unsigned n = 0;
		while (n < OWNERS && open_owner(a, &owners[n]))
			n++;
		if (n < OWNERS)
			break;
		attack_ready(a, "%u rings of %zu KiB", n, owners[0].conn.ring_size / 1024);
		for (unsigned i = 0; i < PUNCHERS; i++)
			if (attack_fork()) {
				punch_rings(&owners[i * OWNERS / PUNCHERS], OWNERS / PUNCHERS);
				_exit(0);
			}
		for (unsigned k = 0; k < 1000; k++, a->asked++) {
			struct owner *o = &owners[k % OWNERS];
			struct svc_record record = rank_record(&o->rank);
			record.op = NCCLSVC_BARRIER;
			if (!atomic_load(&o->conn.ring->ended))
				conn_submit(&o->conn, &record);
			usleep(100);
		}
		for (unsigned i = 0; i < PUNCHERS; i++)
			wait(NULL);
		for (unsigned i = 0; i < n; i++, a->ended++)
			conn_close(&owners[i].conn);
	}
	attack_hold();
}

const struct attack region_attacks[] = {
	{"regions-punched", "1 GiB, registered by 16 sessions, is punched out and used",
	 .run = punched},
	{"regions-punched-4k", "16 sessions' 4,095 regions of 4 KiB are punched out and used",
	 .run = punched_small},
	{"regions-end", "sessions with 4 GiB in regions of 4 MiB end", .run = ends},
	{"regions-punching", "small tasks on memory that is being punched out", .run = punching},
	{"rings-punching", "rings are punched out while they are polled", .run = rings_punching},
	{0}};
