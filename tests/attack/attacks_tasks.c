/* SPDX-License-Identifier: Apache-2.0
 * Attacks with tasks and their cancellation. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "flood.h"

#define SECOND UINT64_C(1000000000)

/* ---- Cancellations ---- */

static void cancel_unknown_task(struct attacker *a)
{
	const struct svc_cancel none = {.kind = SVC_CANCEL_TASK, .id = UINT64_MAX};
	static struct conn c[8];
	uint64_t n = queue_tasks(a, 20000, 0);
	unsigned sessions = open_many(a, c, 8);
	attack_ready(a, "%llu tasks queued", (unsigned long long)n);
	flood(a, c, sessions, SVC_CANCELS - 1, SVC_CANCEL, &none, sizeof(none));
}

static void cancel_own_comm(struct attacker *a)
{
	static struct conn c[8];
	struct rank rank;
	uint64_t n = queue_tasks(a, 20000, 0);
	unsigned sessions = open_many(a, c, 8);
	if (!sessions || !rank_alone(&c[0], &rank))
		attack_hold();
	const struct svc_cancel idle = {.kind = SVC_CANCEL_COMM, .id = rank.uid};
	attack_ready(a, "%llu tasks queued", (unsigned long long)n);
	flood(a, c, sessions, SVC_CANCELS - 1, SVC_CANCEL, &idle, sizeof(idle));
}

static void cancel_unknown_comm(struct attacker *a)
{
	enum { SESSIONS = 16 };
	const struct svc_cancel none = {.kind = SVC_CANCEL_COMM, .id = UINT64_MAX};
	static struct conn c[SESSIONS];
	unsigned n = open_many(a, c, SESSIONS);
	attack_ready(a, "%u sessions", n);
	flood(a, c, n, 64, SVC_CANCEL, &none, sizeof(none));
}

/* ---- The table of tasks ---- */

static void fill_task_table(struct attacker *a)
{
	uint64_t n = queue_tasks(a, 262144, 0);
	attack_ready(a, "%llu tasks queued", (unsigned long long)n);
	attack_hold();
}

/* Processes that queue tasks, wait, and die, one after the other. */
static void queue_and_die(struct attacker *a, uint64_t timeout_ns, unsigned wait_ms)
{
	enum { TASKS = 100000 };
	attack_ready(a, "%d tasks each time", TASKS);
	for (;;) {
		if (attack_fork()) {
			a->asked += queue_tasks(a, TASKS, timeout_ns);
			pause_ms(wait_ms);
			_exit(0);
		}
		while (wait(NULL) > 0)
			a->ended++;
	}
}

static void tasks_die(struct attacker *a)
{
	queue_and_die(a, 0, 0);
}

static void tasks_expire_at_once(struct attacker *a)
{
	queue_and_die(a, SECOND, 1200);
}

/* Each task fails on arrival: it names no communicator of the session. */
static void bad_tasks(struct attacker *a)
{
	enum { SESSIONS = 16 };
	static struct conn c[SESSIONS];
	const struct svc_record record = {.comm = 77, .op = NCCLSVC_BARRIER, .peer = -1};
	unsigned n = open_many(a, c, SESSIONS);
	for (unsigned i = 0; i < n; i++)
		if (!conn_attach(&c[i], 16384))
			n = i;
	attack_ready(a, "%u rings", n);
	for (;;) {
		for (unsigned i = 0; i < n; i++)
			for (int k = 0; k < 1024; k++) {
				uint64_t next = c[i].last + 1;
				if (next > c[i].entries && conn_wait(&c[i], next - c[i].entries, 0))
					break;
				conn_submit(&c[i], &record);
				a->asked++;
			}
		pause_ms(1);
	}
}

/* A group of as many tasks as allowed, never closed, in many sessions. */
static void open_groups(struct attacker *a)
{
	enum { SESSIONS = 32 };
	unsigned n = 0;
	for (; n < SESSIONS; n++) {
		struct conn *c = calloc(1, sizeof(*c));
		struct rank rank;
		if (!conn_open(c, a->socket) || !conn_attach(c, 8192) || !rank_alone(c, &rank))
			break;
		struct svc_record record = rank_record(&rank);
		record.flags = SVC_TASK_MORE;
		for (int i = 0; i < SVC_GROUP_TASKS - 1; i++)
			conn_submit(c, &record);
	}
	attack_ready(a, "%u groups", n);
	attack_hold();
}

/* ---- Matching ---- */

/* Waits until that task has ended. Tasks of the attack always end. */
static void wait_end(struct conn *c, uint64_t number)
{
	while (conn_wait(c, number, 1000) == CONN_LOST)
		if (atomic_load(&c->ring->ended))
			attack_hold();
}

static void submit_group(struct attacker *a, struct conn *c, struct svc_record record)
{
	for (int i = 0; i < SVC_GROUP_TASKS; i++) {
		record.flags = i < SVC_GROUP_TASKS - 1 ? SVC_TASK_MORE : 0;
		conn_submit(c, &record);
		a->asked++;
	}
}

/* Each Send is searched among everything that the other rank has posted. */
static void groups_unmatched(struct attacker *a)
{
	enum { PAIRS = 16 };
	static struct conn c[PAIRS][2];
	struct rank ranks[PAIRS][2];
	for (int i = 0; i < PAIRS; i++)
		if (open_many(a, c[i], 2) < 2 || !conn_attach(&c[i][0], 16384) ||
		    !conn_attach(&c[i][1], 16384) || !ranks_join(c[i], 2, ranks[i]))
			attack_hold();
	attack_ready(a, "%d pairs", PAIRS);
	for (;;) {
		for (int i = 0; i < 2 * PAIRS; i++) {
			struct conn *one = &c[i / 2][i % 2];
			struct svc_record barrier = rank_record(&ranks[i / 2][i % 2]);
			struct svc_record send = barrier;
			send.op = NCCLSVC_SEND;
			send.peer = 1 - i % 2;
			submit_group(a, one, send);
			submit_group(a, one, barrier);
		}
		for (int i = 0; i < 2 * PAIRS; i++)
			wait_end(&c[i / 2][i % 2], c[i / 2][i % 2].last);
	}
}

/* ---- Work ---- */

struct buffer {
	int fd;
	uint64_t bytes;
};

static struct buffer make_buffer(uint64_t bytes)
{
	return (struct buffer){svc_memfd_create("attack", bytes, true), bytes};
}

static struct buffer make_filled(uint64_t bytes)
{
	struct buffer b = make_buffer(bytes);
	posix_fallocate(b.fd, 0, (off_t)bytes);
	return b;
}

static void touch(const struct buffer *b)
{
	char *p = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
	if (p == MAP_FAILED)
		return;
	memset(p, 1, b->bytes);
	munmap(p, b->bytes);
}

/* Two ranks, each with a buffer, keep `depth` of these operations in flight. `prepare` derives the
 * second rank's record from the first's. Does not return. */
static void keep_busy(struct attacker *a, const struct buffer b[2], struct svc_record record,
		      uint8_t second_op, uint64_t depth, const char *what)
{
	static struct conn c[2];
	struct rank ranks[2];
	uint32_t region[2];
	if (open_many(a, c, 2) < 2 || !ranks_join(c, 2, ranks))
		attack_hold();
	for (int i = 0; i < 2; i++)
		if (!conn_attach(&c[i], 1024) ||
		    !(region[i] = conn_region(&c[i], b[i].fd, b[i].bytes))) {
			attack_ready(a, "%s, refused", what);
			attack_hold();
		}
	attack_ready(a, "%s", what);
	for (;;) {
		for (int i = 0; i < 2; i++) {
			record.comm = ranks[i].comm;
			record.epoch = ranks[i].epoch;
			record.src_region = record.dst_region = region[i];
			if (second_op) {
				record.peer = 1 - i;
				record.op = i ? second_op : NCCLSVC_SEND;
				(i ? &record.src_region : &record.dst_region)[0] = 0;
			}
			conn_submit(&c[i], &record);
			a->asked++;
		}
		while (c[1].last > depth && conn_wait(&c[1], c[1].last - depth, 100) == CONN_LOST)
			if (atomic_load(&c[1].ring->ended))
				attack_hold();
	}
}

static const struct svc_record all_reduce = {
	.op = NCCLSVC_ALL_REDUCE, .type = NCCLSVC_FLOAT32, .redop = NCCLSVC_SUM, .peer = -1};

static void huge_all_reduce(struct attacker *a)
{
	const uint64_t bytes = UINT64_C(1) << 30;
	const struct buffer b[2] = {make_filled(bytes), make_filled(bytes)};
	struct svc_record record = all_reduce;
	record.count = bytes / 4;
	touch(&b[0]);
	touch(&b[1]);
	keep_busy(a, b, record, 0, 4, "1 GiB each");
}

static void small_all_reduces(struct attacker *a)
{
	const struct buffer b[2] = {make_filled(4096), make_filled(4096)};
	struct svc_record record = all_reduce;
	record.count = 4;
	for (int i = 0; i < 3; i++)
		if (attack_fork())
			break;
	keep_busy(a, b, record, 0, 500, "500 under way in each of 4 pairs");
}

/* A million copies per operation: every rank's part for every other. */
static void wide_all_to_all(struct attacker *a)
{
	enum { RANKS = 1000 };
	static struct conn c[RANKS];
	static struct rank ranks[RANKS];
	int memfd = svc_memfd_create("attack", 4096, true);
	posix_fallocate(memfd, 0, 4096);
	unsigned n = open_many(a, c, RANKS);
	for (unsigned i = 0; i < n; i++)
		if (!conn_attach(&c[i], 16) || !conn_region(&c[i], memfd, 4096))
			attack_hold();
	if (!n || !ranks_join(c, (int)n, ranks))
		attack_hold();
	attack_ready(a, "%u ranks", n);
	for (;; a->asked++) {
		for (unsigned i = 0; i < n; i++) {
			struct svc_record record = rank_record(&ranks[i]);
			record.op = NCCLSVC_ALL_TO_ALL;
			record.type = NCCLSVC_UINT8;
			record.count = 1;
			record.src_region = record.dst_region = 1;
			record.dst_offset = 2048;
			conn_submit(&c[i], &record);
		}
		for (unsigned i = 0; i < n; i++)
			while (conn_wait(&c[i], c[i].last, 100) == CONN_LOST)
				if (atomic_load(&c[i].ring->ended))
					attack_hold();
		if (c[0].ring && svc_status_slot(c[0].ring, 16, c[0].last)->result)
			a->refused++;
	}
}

/* The heads of thousands of queues wait for a timeline, and every doorbell makes the daemon check
 * them. */
static void waiting_timelines(struct attacker *a)
{
	enum { SESSIONS = 4, COMMS = 1000 };
	static struct conn c[SESSIONS];
	unsigned n = open_many(a, c, SESSIONS), tasks = 0;
	for (unsigned i = 0; i < n; i++) {
		struct rank rank;
		if (!conn_attach(&c[i], 16384))
			attack_hold();
		for (int k = 0; k < COMMS && rank_alone(&c[i], &rank); k++)
			for (uint32_t t = 0; t < 10; t++, tasks++) {
				struct svc_record record = rank_record(&rank);
				record.flags = SVC_TASK_TIMELINE;
				record.timeline = 1 + (uint32_t)k % (SVC_TIMELINES - 1);
				record.value = 1 + t + 10 * (uint64_t)k;
				conn_submit(&c[i], &record);
			}
	}
	attack_ready(a, "%u tasks", tasks);
	for (;; a->asked += n)
		for (unsigned i = 0; i < n; i++)
			conn_ring_bell(&c[i]);
}

/* Memory that was never written: the daemon's copy allocates the pages on both sides. */
static void sparse_send(struct attacker *a)
{
	const uint64_t bytes = UINT64_C(3) << 30;
	const struct buffer b[2] = {make_buffer(bytes), make_buffer(bytes)};
	struct svc_record record = {.type = NCCLSVC_UINT8, .count = bytes};
	keep_busy(a, b, record, NCCLSVC_RECV, 1, "3 GiB of holes each");
}

/* The daemon's copy waits while a hole is punched around its data. */
static void punch_holes(struct attacker *a)
{
	const uint64_t bytes = UINT64_C(1) << 30;
	const struct buffer b[2] = {make_filled(bytes), make_filled(bytes)};
	struct svc_record record = all_reduce;
	record.count = 16;
	for (int i = 0; i < 2; i++)
		if (attack_fork())
			for (;; a->asked++) {
				touch(&b[i]);
				fallocate(b[i].fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
					  (off_t)bytes);
			}
	keep_busy(a, b, record, 0, 16, "1 GiB punched again and again");
}

const struct attack task_attacks[] = {
	{"cancel-task",
	 "8 sessions keep 63 CANCELs of no task under way, beside 20,000 queued tasks",
	 .run = cancel_unknown_task},
	{"cancel-comm", "the same, of an idle communicator", .run = cancel_own_comm},
	{"cancel-comm-unknown", "16 sessions CANCEL a communicator that there is not",
	 .run = cancel_unknown_comm},
	{"tasks", "262,144 tasks wait: the whole table", .run = fill_task_table},
	{"tasks-die", "sessions with 100,000 tasks die, again and again", .run = tasks_die},
	{"tasks-expire", "100,000 tasks pass their deadline at once, again and again",
	 .run = tasks_expire_at_once},
	{"tasks-bad", "16 rings of tasks that fail at once", .run = bad_tasks},
	{"groups-open", "32 task groups of 4,095 tasks that are never closed", .run = open_groups},
	{"groups-unmatched",
	 "16 pairs submit groups of 4,096 Sends that nobody receives, and of barriers",
	 .run = groups_unmatched},
	{"all-reduce-huge", "AllReduces of 1 GiB without pause", .run = huge_all_reduce},
	{"all-reduce-small", "four pairs of ranks with 500 AllReduces of 16 B under way each",
	 .run = small_all_reduces},
	{"all-to-all-wide", "AllToAlls of 1,000 ranks without pause", .run = wide_all_to_all},
	{"timelines", "40,000 tasks wait for a timeline while doorbells are rung without pause",
	 .run = waiting_timelines},
	{"send-sparse", "3 GiB sent from one memfd of holes to another", .run = sparse_send,
	 .pinned_mib = 1024},
	{"punch", "AllReduces in memory whose pages are punched out all the time",
	 .run = punch_holes},
	{0}};
