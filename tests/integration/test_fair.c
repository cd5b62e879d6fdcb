/* SPDX-License-Identifier: Apache-2.0
 * One user against the rest: whatever one does, another's small AllReduce and requests go on. */
#include <grp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"
#include "harness_raw.h"

#define NOBODY	 65534
#define LIMIT_NS UINT64_C(1000000000) /* on a machine with much else to do */
#define SAMPLES	 (1 << 20)
#define RUN_MS	 1500
#define ENTRIES	 16384

/* ---- Bystanders: what they measure is in memory that the test sees ---- */

struct measure {
	_Atomic uint64_t n, slowest, began; /* ns */
	uint32_t us[SAMPLES];
};

struct shared {
	_Atomic bool stop;
	struct measure reduces, requests;
};

static struct shared *shared_memory;

static void note(struct measure *m, uint64_t began)
{
	const uint64_t took = now_ns() - began, n = atomic_load(&m->n);
	m->us[n % SAMPLES] = (uint32_t)(took / 1000);
	if (took > atomic_load(&m->slowest)) {
		atomic_store(&m->slowest, took);
		atomic_store(&m->began, began);
	}
	atomic_store(&m->n, n + 1);
}

static void forget(struct measure *m)
{
	atomic_store(&m->n, 0);
	atomic_store(&m->slowest, 0);
}

static void reduces(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 16);
	bool stop = false;
	say(me, 1);
	for (int32_t i = 0; !stop; i++) {
		ncclsvc_task task;
		v[0] = atomic_load(&shared_memory->stop);
		v[1] = i;
		uint64_t began = now_ns();
		CHECK_OK(ncclsvc_all_reduce(v, v, 4, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
		wait_for(s, task, NCCLSVC_OK);
		if (me->rank == 0)
			note(&shared_memory->reduces, began);
		CHECK_EQ(v[1], 2 * i);
		stop = v[0] != 0;
		usleep(100);
	}
	ncclsvc_close(s);
}

static void asks(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_daemon_info info;
	say(me, 1);
	while (!atomic_load(&shared_memory->stop)) {
		uint64_t began = now_ns();
		void *p = NULL;
		CHECK_OK(ncclsvc_daemon(s, &info));
		note(&shared_memory->requests, began);
		began = now_ns();
		CHECK_OK(ncclsvc_mem_alloc(s, 4096, &p));
		CHECK_OK(ncclsvc_mem_free(s, p));
		note(&shared_memory->requests, began);
		usleep(500);
	}
	ncclsvc_close(s);
}

/* ---- What attackers have in common ---- */

static void become_another_user(void)
{
	if (getuid() != 0)
		return;
	CHECK_EQ(setgroups(0, NULL), 0);
	CHECK_EQ(setresgid(NOBODY, NOBODY, NOBODY), 0);
	CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
}

static bool told_to_stop(const struct client *me)
{
	struct pollfd p = {.fd = me->link, .events = POLLIN};
	return poll(&p, 1, 0) == 1;
}

/* Joins ranks of one communicator of nranks, from sessions[0] on, `each` per session; handles are
 * the same in all. Returns the reply to rank 0. */
static struct svc_join_reply join_all(struct raw *sessions, int nranks, int each)
{
	ncclsvc_unique_id id;
	struct raw_reply reply;
	struct svc_join_reply first = {0};
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int rank = 0; rank < nranks; rank++) {
		struct svc_join join = raw_join_request(&id, nranks, rank);
		raw_send(&sessions[rank / each], SVC_JOIN, &join, sizeof(join), NULL, 0);
	}
	for (int rank = 0; rank < nranks; rank++) {
		CHECK(raw_next(&sessions[rank / each], &reply));
		if (reply.header.result)
			check_failed(__FILE__, __LINE__, "JOIN: %s", reply.error.text);
		if (reply.join.rank == 0)
			first = reply.join;
	}
	return first;
}

struct pair {
	struct raw r[2];
	struct svc_record barrier;
	uint64_t comm_uid;
};

static void pair_open(struct pair *p, const struct daemon *d, uint32_t entries)
{
	for (int i = 0; i < 2; i++) {
		raw_open(&p->r[i], d);
		raw_attach(&p->r[i], entries);
	}
	struct svc_join_reply j = join_all(p->r, 2, 1);
	p->barrier = (struct svc_record){
		.comm = j.comm, .epoch = j.epoch, .op = NCCLSVC_BARRIER, .peer = -1};
	p->comm_uid = j.comm_uid;
}

static void queue_barriers(struct pair *p, int n)
{
	for (int i = 0; i < n; i++)
		raw_ring_submit(&p->r[0], p->barrier);
}

static bool has_ended(struct raw *r, uint64_t number)
{
	return svc_number_load(&svc_status_slot(r->ring, r->entries, number)->number) == number;
}

static void wait_ring(struct raw *r, uint64_t number)
{
	while (!has_ended(r, number))
		usleep(200);
}

/* ---- Attacks ---- */

/* Many tasks, and cancellations of one that does not exist. */
static void cancels(struct client *me)
{
	enum { SESSIONS = 4 };
	struct pair p[2];
	struct raw asker[SESSIONS];
	struct raw_reply reply;
	const struct svc_cancel none = {.kind = SVC_CANCEL_TASK, .id = UINT64_MAX};
	become_another_user();
	for (int i = 0; i < 2; i++) {
		pair_open(&p[i], me->daemon, ENTRIES);
		queue_barriers(&p[i], 10000);
	}
	for (int i = 0; i < SESSIONS; i++) {
		raw_open(&asker[i], me->daemon);
		for (int k = 0; k < SVC_CANCELS - 1; k++)
			raw_send(&asker[i], SVC_CANCEL, &none, sizeof(none), NULL, 0);
	}
	say(me, 1);
	for (int i = 0; !told_to_stop(me); i = (i + 1) % SESSIONS) {
		CHECK(raw_next(&asker[i], &reply));
		CHECK_EQ(reply.header.result, NCCLSVC_NOT_FOUND);
		raw_send(&asker[i], SVC_CANCEL, &none, sizeof(none), NULL, 0);
	}
	_exit(0);
}

/* As many tasks as the rings hold: more than the table. */
static void fills_the_table(struct client *me)
{
	enum { PAIRS = 20 };
	static struct pair p[PAIRS];
	become_another_user();
	for (int i = 0; i < PAIRS; i++) {
		pair_open(&p[i], me->daemon, ENTRIES);
		queue_barriers(&p[i], ENTRIES);
	}
	say(me, 1);
	while (!told_to_stop(me))
		usleep(1000);
	_exit(0);
}

/* Ends a hundred thousand tasks at a time, in all ways in turn. */
static void ends_many(struct client *me)
{
	enum { PAIRS = 6 };
	static struct pair p[PAIRS];
	struct raw_reply reply;
	become_another_user();
	for (int i = 0; i < PAIRS; i++)
		pair_open(&p[i], me->daemon, ENTRIES);
	say(me, 1);
	while (!told_to_stop(me)) {
		for (int i = 0; i < PAIRS; i++)
			queue_barriers(&p[i], ENTRIES - 1);
		usleep(20000);
		for (int i = 0; i < PAIRS; i++) {
			struct svc_cancel cancel = {.kind = SVC_CANCEL_COMM, .id = p[i].comm_uid};
			raw_send(&p[i].r[0], SVC_CANCEL, &cancel, sizeof(cancel), NULL, 0);
		}
		for (int i = 0; i < PAIRS; i++) {
			CHECK(raw_next(&p[i].r[0], &reply));
			raw_close(&p[i].r[0]); /* with its ghosts */
			raw_close(&p[i].r[1]);
		}
		for (int i = 0; i < PAIRS; i++) {
			pair_open(&p[i], me->daemon, ENTRIES);
			queue_barriers(&p[i], ENTRIES - 1);
		}
		for (int i = 0; i < PAIRS; i++) {
			raw_close(&p[i].r[0]);
			raw_close(&p[i].r[1]);
			pair_open(&p[i], me->daemon, ENTRIES);
		}
		/* By deadline */
		for (int i = 0; i < PAIRS; i++) {
			p[i].barrier.timeout_ns = UINT64_C(50000000);
			queue_barriers(&p[i], ENTRIES - 1);
		}
		for (int i = 0; i < PAIRS; i++) {
			raw_close(&p[i].r[1]);
			raw_close(&p[i].r[0]);
			pair_open(&p[i], me->daemon, ENTRIES);
		}
	}
	_exit(0);
}

static void submit_group(struct raw *r, struct svc_record record)
{
	for (int i = 0; i < SVC_GROUP_TASKS; i++) {
		record.flags = i < SVC_GROUP_TASKS - 1 ? SVC_TASK_MORE : 0;
		raw_ring_submit(r, record);
	}
}

/* Whole groups of Sends that nobody receives, again and again; and of barriers. */
static void large_groups(struct client *me)
{
	enum { PAIRS = 16 };
	static struct pair p[PAIRS];
	become_another_user();
	for (int i = 0; i < PAIRS; i++)
		pair_open(&p[i], me->daemon, ENTRIES);
	say(me, 1);
	while (!told_to_stop(me)) {
		for (int i = 0; i < 2 * PAIRS; i++) {
			struct svc_record send = p[i / 2].barrier;
			send.op = NCCLSVC_SEND;
			send.peer = 1 - i % 2;
			submit_group(&p[i / 2].r[i % 2], send);
			submit_group(&p[i / 2].r[i % 2], p[i / 2].barrier);
		}
		for (int i = 0; i < 2 * PAIRS; i++)
			while (!has_ended(&p[i / 2].r[i % 2], p[i / 2].r[i % 2].last)) {
				if (told_to_stop(me))
					_exit(0);
				usleep(200);
			}
	}
	_exit(0);
}

/* A communicator of thousands of ranks, all in a few sessions and on the same memory. */
static void many_ranks(struct client *me)
{
	enum { SESSIONS = 64, EACH = 64, RANKS = 4096, BYTES = 1 << 20 };
	static struct raw r[SESSIONS];
	struct raw_region region[SESSIONS];
	become_another_user();
	for (int i = 0; i < SESSIONS; i++) {
		raw_open(&r[i], me->daemon);
		raw_attach(&r[i], 1024);
		region[i] = raw_region(&r[i], BYTES);
		CHECK_EQ(region[i].id, region[0].id);
	}
	struct svc_join_reply j = join_all(r, RANKS, EACH);
	say(me, 1);
	while (!told_to_stop(me)) {
		for (int rank = 0; rank < RANKS; rank++) {
			struct svc_record reduce = {.comm = (uint32_t)(1 + rank % EACH),
						    .epoch = j.epoch,
						    .op = NCCLSVC_ALL_REDUCE,
						    .type = NCCLSVC_INT32,
						    .redop = NCCLSVC_SUM,
						    .peer = -1,
						    .count = BYTES / 4,
						    .src_region = region[0].id,
						    .dst_region = region[0].id};
			raw_ring_submit(&r[rank / EACH], reduce);
		}
		for (int rank = 0; rank < RANKS; rank++) {
			struct svc_record barrier = {.comm = (uint32_t)(1 + rank % EACH),
						     .epoch = j.epoch,
						     .op = NCCLSVC_BARRIER,
						     .peer = -1};
			/* One refuses: all that come after it are told. */
			if (rank == 0) {
				barrier.flags = SVC_TASK_AGREE;
				barrier.agreement = SVC_AGREEMENT_REFUSED;
			}
			raw_ring_submit(&r[rank / EACH], barrier);
		}
		for (int i = 0; i < SESSIONS; i++)
			while (!has_ended(&r[i], r[i].last)) {
				if (told_to_stop(me))
					_exit(0);
				usleep(1000);
			}
	}
	_exit(0);
}

/* Thousands of communicators, in each of which a task waits for a timeline. */
static void many_inputs(struct client *me)
{
	enum { SESSIONS = 3, EACH = 1000 };
	static struct raw r[SESSIONS];
	become_another_user();
	for (int i = 0; i < SESSIONS; i++) {
		raw_open(&r[i], me->daemon);
		raw_attach(&r[i], ENTRIES);
		for (int k = 0; k < EACH; k++) {
			struct svc_join_reply j = raw_join_alone(&r[i]);
			struct svc_record barrier = {.comm = j.comm,
						     .epoch = j.epoch,
						     .op = NCCLSVC_BARRIER,
						     .flags = SVC_TASK_TIMELINE,
						     .timeline = 1,
						     .value = 1,
						     .peer = -1};
			raw_ring_submit(&r[i], barrier);
		}
	}
	say(me, 1);
	struct svc_record bad = {.comm = 5000, .op = NCCLSVC_BARRIER, .peer = -1};
	while (!told_to_stop(me)) {
		for (int i = 0; i < SESSIONS; i++)
			raw_ring_submit(&r[i], bad);
		for (int i = 0; i < SESSIONS; i++)
			wait_ring(&r[i], r[i].last);
	}
	_exit(0);
}

/* Lets regions go behind thousands of tasks. */
static void lets_regions_go(struct client *me)
{
	enum { REGIONS = 60, TASKS = 8000 };
	struct raw r;
	struct raw_reply reply;
	uint32_t regions[REGIONS];
	become_another_user();
	raw_open(&r, me->daemon);
	raw_attach(&r, ENTRIES);
	struct svc_join_reply j = raw_join_alone(&r);
	struct svc_record bad = {
		.comm = j.comm + 1, .epoch = j.epoch, .op = NCCLSVC_BARRIER, .peer = -1};
	int fd = svc_memfd_create("small", SVC_PAGE, true);
	struct svc_region_add add = {.bytes = SVC_PAGE};
	say(me, 1);
	while (!told_to_stop(me)) {
		for (int i = 0; i < REGIONS; i++) {
			raw_call(&r, SVC_REGION_ADD, &add, sizeof(add), &fd, 1, &reply);
			CHECK_EQ(reply.header.result, 0);
			regions[i] = reply.region.region;
		}
		for (int i = 0; i < TASKS; i++)
			raw_ring_submit(&r, bad);
		for (int i = 0; i < REGIONS; i++) {
			struct svc_region_del del = {.region = regions[i]};
			raw_send(&r, SVC_REGION_DEL, &del, sizeof(del), NULL, 0);
		}
		for (int i = 0; i < REGIONS; i++) {
			CHECK(raw_next(&r, &reply));
			CHECK_EQ(reply.header.result, 0);
		}
		wait_ring(&r, r.last);
	}
	_exit(0);
}

/* ---- The tests ---- */

static int compare(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

static void report(const char *what, struct measure *m)
{
	size_t n = atomic_load(&m->n) < SAMPLES ? (size_t)atomic_load(&m->n) : SAMPLES;
	if (!n) {
		print_message("%s: none\n", what);
		return;
	}
	qsort(m->us, n, sizeof(m->us[0]), compare);
	print_message("%s: %zu, median %u us, 99%% %u us, longest %u us\n", what, n, m->us[n / 2],
		      m->us[n * 99 / 100], m->us[n - 1]);
}

static void check(const struct measure *m)
{
	const uint64_t began = atomic_load(&m->began);
	CHECK(atomic_load(&m->n) > 2);
	CHECK(in_time(began, began + atomic_load(&m->slowest), LIMIT_NS));
}

/* Has the daemon missed its engine's sign of life? */
static bool missed_a_beat(const struct daemon *d)
{
	char line[512];
	bool missed = false;
	FILE *log = fopen(d->log, "r");
	CHECK(log);
	while (fgets(line, sizeof(line), log))
		missed |= strstr(line, "the engine has not answered") != NULL;
	fclose(log);
	return missed;
}

static void measure_under(client_main *attack)
{
	struct daemon d;
	struct client reducers[2], asker, attacker;
	time_limit(120);
	shared_memory = mmap(NULL, sizeof(*shared_memory), PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared_memory != MAP_FAILED);
	daemon_start(&d, "--access", "any", "--keepalive-seconds", "1", NULL);
	clients_start(reducers, 2, &d, reduces, NULL);
	clients_start(&asker, 1, &d, asks, NULL);
	hear_all(reducers, 2, 1);
	CHECK_EQ(hear(&asker), 1);
	if (attack) {
		clients_start(&attacker, 1, &d, attack, NULL);
		CHECK_EQ(hear(&attacker), 1);
	}
	forget(&shared_memory->reduces);
	forget(&shared_memory->requests);
	sleep_ms(RUN_MS);
	if (attack) {
		say(&attacker, 1);
		clients_end(&attacker, 1);
	}
	atomic_store(&shared_memory->stop, true);
	clients_end(reducers, 2);
	clients_end(&asker, 1);
	report("AllReduce of 16 bytes", &shared_memory->reduces);
	report("requests", &shared_memory->requests);
	check(&shared_memory->reduces);
	check(&shared_memory->requests);
	CHECK(!missed_a_beat(&d));
	munmap(shared_memory, sizeof(*shared_memory));
	daemon_stop(&d);
}

#define UNDER(name, attack)                                                                        \
	static void name(void **state)                                                             \
	{                                                                                          \
		(void)state;                                                                       \
		measure_under(attack);                                                             \
	}

/* ---- What is done in parts is done whole ---- */

#define MANY 10000

static void check_results(struct raw *r, uint64_t n, ncclsvc_result expected)
{
	for (uint64_t i = 1; i <= n; i++)
		CHECK_EQ(raw_ring_wait(r, i).result, expected);
}

static void a_long_queue_ends_as_a_whole(void **state)
{
	struct daemon d;
	struct pair p;
	struct raw_reply reply;
	(void)state;
	daemon_start(&d, NULL);
	ncclsvc_session *s = session_open(&d);
	/* By cancellation: its peer meets ghosts, and the two go on. */
	pair_open(&p, &d, ENTRIES);
	queue_barriers(&p, MANY);
	tasks_reach(s, NCCLSVC_QUEUED, MANY - 1);
	struct svc_cancel cancel = {.kind = SVC_CANCEL_COMM, .id = p.comm_uid};
	raw_call(&p.r[0], SVC_CANCEL, &cancel, sizeof(cancel), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK_EQ(reply.cancel.cancelled, MANY);
	check_results(&p.r[0], MANY, NCCLSVC_CANCELLED);
	for (int i = 0; i < MANY; i++)
		raw_ring_submit(&p.r[1], p.barrier);
	check_results(&p.r[1], MANY, NCCLSVC_CANCELLED);
	queue_barriers(&p, 1);
	raw_ring_submit(&p.r[1], p.barrier);
	CHECK_EQ(raw_ring_wait(&p.r[0], MANY + 1).result, 0);
	CHECK_EQ(raw_ring_wait(&p.r[1], MANY + 1).result, 0);
	/* One alone, of many */
	queue_barriers(&p, 100);
	ncclsvc_task_info last = tasks_reach(s, NCCLSVC_QUEUED, 99);
	cancel = (struct svc_cancel){.kind = SVC_CANCEL_TASK, .id = last.task};
	raw_call(&p.r[0], SVC_CANCEL, &cancel, sizeof(cancel), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK_EQ(reply.cancel.cancelled, 1);
	/* By leaving */
	struct svc_leave leave = {.comm = p.barrier.comm};
	raw_call(&p.r[0], SVC_LEAVE, &leave, sizeof(leave), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	for (uint64_t i = 2; i <= 101; i++)
		CHECK_EQ(raw_ring_wait(&p.r[0], MANY + i).result, NCCLSVC_CANCELLED);
	raw_close(&p.r[0]);
	raw_close(&p.r[1]);
	/* With the epoch */
	pair_open(&p, &d, ENTRIES);
	queue_barriers(&p, MANY);
	tasks_reach(s, NCCLSVC_QUEUED, MANY - 1);
	raw_close(&p.r[1]);
	check_results(&p.r[0], MANY, NCCLSVC_PEER_GONE);
	raw_close(&p.r[0]);
	/* By deadline */
	pair_open(&p, &d, ENTRIES);
	p.barrier.timeout_ns = UINT64_C(100000000);
	queue_barriers(&p, MANY);
	check_results(&p.r[0], MANY, NCCLSVC_TIMEOUT);
	raw_close(&p.r[0]);
	raw_close(&p.r[1]);
	ncclsvc_close(s);
	daemon_stop(&d);
}

UNDER(nobody_else_is_there, NULL)
UNDER(cancellations, cancels)
UNDER(a_full_table, fills_the_table)
UNDER(ends_of_many_tasks, ends_many)
UNDER(groups_that_do_not_match, large_groups)
UNDER(thousands_of_ranks, many_ranks)
UNDER(thousands_of_inputs, many_inputs)
UNDER(regions_behind_tasks, lets_regions_go)

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		TEST(a_long_queue_ends_as_a_whole),
		TEST(nobody_else_is_there),
		TEST(cancellations),
		TEST(a_full_table),
		TEST(ends_of_many_tasks),
		TEST(groups_that_do_not_match),
		TEST(thousands_of_ranks),
		TEST(thousands_of_inputs),
		TEST(regions_behind_tasks),
	};
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
