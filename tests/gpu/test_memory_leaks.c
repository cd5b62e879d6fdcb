/* SPDX-License-Identifier: Apache-2.0
 * Many rounds of allocating memory, using it and freeing it leave nothing behind in any process:
 * no descriptors, no mappings, no memory. */
#include <stdio.h>
#include <string.h>

#include "meeting.h"
#include "segment.h"

#define CHUNK	  ((size_t)2 << 20)
#define WITHIN	  10000 /* ms */
#define WARM_UP	  40	/* rounds, until caches are full */
#define KINDS	  4	/* those of buffers, and a segment */
#define MAPS_MORE 8	/* thread stacks and the like */
#define GPU_MORE  ((size_t)16 << 20)

enum word { WARM = 1, GO, DONE, END };

/* ---- What a process holds ---- */

/* In KiB. The daemon's tables are allocated at its start, and use more and more of their pages. */
static long anon_more(void)
{
	return setup.quick ? 512 : 4096;
}

struct held {
	pid_t pid;
	char name[24];
	int fds, maps;
	long anon_kib;
};

/* Returns the file's number of lines, and the number behind a key in one of them. */
static int read_lines(pid_t pid, const char *file, const char *key, long *value)
{
	char path[64], line[512];
	int n = 0;
	snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
	FILE *f = fopen(path, "re");
	CHECK(f);
	for (; fgets(line, sizeof(line), f); n += strchr(line, '\n') != NULL)
		if (key && !strncmp(line, key, strlen(key)))
			sscanf(line + strlen(key), "%ld", value);
	fclose(f);
	return n;
}

static void look(struct held *h)
{
	h->fds = open_fds(h->pid);
	h->maps = read_lines(h->pid, "maps", NULL, NULL);
	read_lines(h->pid, "status", "RssAnon:", &h->anon_kib);
}

static bool same(const struct held *before, const struct held *now)
{
	return now->fds <= before->fds && now->maps <= before->maps + MAPS_MORE &&
	       now->anon_kib <= before->anon_kib + anon_more();
}

/* The last frees may still be in progress. */
static void check_same(const struct held *before)
{
	const uint64_t end = now_ns() + limit_ms(FINISH_MS) * UINT64_C(1000000);
	struct held now = *before;
	for (look(&now); !same(before, &now) && now_ns() < end; look(&now))
		sleep_ms(20);
	if (!same(before, &now))
		check_failed(__FILE__, __LINE__,
			     "%s (pid %d) holds %d fds, %d mappings and %ld KiB, but held %d, %d "
			     "and %ld KiB",
			     now.name, now.pid, now.fds, now.maps, now.anon_kib, before->fds,
			     before->maps, before->anon_kib);
}

/* ---- Rounds ---- */

static void use(struct meeting *m, CUdeviceptr p, unsigned k)
{
	meeting_sum(m, p);
	if (k % 8 == 0)
		meeting_pass(m, p, p + PART);
}

/* Without ncclsvc_mem_forget, the library finds out later that the memory was freed. */
static void forget(struct meeting *m, CUdeviceptr p, unsigned k)
{
	if (k % 3)
		ncclsvc_mem_forget(m->r.session, at(p), WITHIN);
}

static void use_buffer(struct meeting *m, int kind, unsigned k)
{
	struct buffer b;
	buffer_make(&b, kind, m->r.gpu, m->r.session, (1 + k % 3) * CHUNK);
	use(m, b.p, k);
	if (kind != MEMORY_SESSION)
		forget(m, b.p, k);
	buffer_free(&b);
}

static void use_segment(struct meeting *m, unsigned k)
{
	struct segment s;
	segment_open(&s, m->r.gpu, CHUNK, 3);
	segment_size(&s, 3);
	use(m, s.base + CHUNK / 4 * 3, k);
	forget(m, s.base + 2 * CHUNK, k);
	segment_size(&s, 2);
	use(m, s.base + CHUNK / 4 * 3, k);
	forget(m, s.base, k);
	forget(m, s.base + CHUNK, k);
	segment_close(&s);
}

static void rounds(struct meeting *m, unsigned n)
{
	for (unsigned k = 1; k <= n; k++) {
		const int kind = (int)(k % KINDS);
		stage("round %u of %u", k, n);
		if (kind < MEMORY_KINDS)
			use_buffer(m, kind, k);
		else
			use_segment(m, k);
	}
	ncclsvc_mem_sweep(m->r.session);
	meeting_wait(m);
}

static void leaks_rank(struct client *c)
{
	struct meeting m;
	meeting_open(&m, c);
	rounds(&m, WARM_UP);
	const size_t unused = gpu_unused_memory();
	say(c, WARM);
	CHECK_EQ(hear(c), GO);
	rounds(&m, setup.quick ? 80 : setup.fake ? 500 : 10000);
	CHECK(gpu_has_unused(unused - GPU_MORE, limit_ms(FINISH_MS)));
	say(c, DONE);
	CHECK_EQ(hear(c), END);
	meeting_close(&m);
}

/* ---- The test ---- */

/* The ranks, the daemon and its workers. Returns their number. */
static int everyone(const struct daemon *d, const struct client *ranks, int n, struct held *h)
{
	int k = 0;
	ncclsvc_session *session = session_open(d);
	for (int i = 0; i < n; i++) {
		h[k] = (struct held){.pid = ranks[i].pid};
		snprintf(h[k++].name, sizeof(h->name), "rank %d", i);
		h[k] = (struct held){.pid = device_info(session, i).pid};
		snprintf(h[k++].name, sizeof(h->name), "worker %d", i);
	}
	ncclsvc_close(session);
	h[k] = (struct held){.pid = d->pid, .name = "daemon"};
	return k + 1;
}

static void test_leaks(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	struct held before[2 * RANKS_MAX + 1];
	const int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, leaks_rank, NULL);
	for (int i = 0; i < n; i++)
		CHECK_EQ(hear(&ranks[i]), WARM);
	const int all = everyone(&d, ranks, n, before);
	sleep_ms(100);
	for (int i = 0; i < all; i++)
		look(&before[i]);
	say_all(ranks, n, GO);
	for (int i = 0; i < n; i++)
		CHECK_EQ(hear_within(&ranks[i], 600000), DONE);
	for (int i = 0; i < all; i++)
		check_same(&before[i]);
	say_all(ranks, n, END);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

const struct gpu_test memory_leak_tests[] = {
	{"memory/leaks", test_leaks, 2, 700, TEST_QUICK | TEST_ONE_NODE},
	{"memory/leaks/nccl", test_leaks, 2, 700, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{0},
};
