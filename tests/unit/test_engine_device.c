/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine and GPUs: what it puts into their workers' queues, and when. The test is the workers,
 * their GPUs, and the clients: it reads the queues, raises what GPUs would raise, and submits by
 * ring. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"
#include "executor.h"
#include "ring.h"
#include "worker/queue.h"

#define DEVICES	 4
#define SESSIONS 8
#define COMMS	 8
#define ENTRIES	 4096
#define BYTES	 4096
#define REGION	 1
#define WAIT_NS	 UINT64_C(10000000000)
#define QUIET_NS 20000000 /* as long as it takes to believe that nothing comes */

static struct executor *engine;

static struct gpu {
	struct worker_queue *queue;
	int doorbell;
	uint64_t seen; /* launches that the test has looked at */
} gpus[DEVICES];

static struct trainer {
	struct svc_ring *ring;
	struct session_counts counts;
	int doorbell, completion;
	uint64_t last;
	uint64_t values[SVC_TIMELINES];
} trainers[SESSIONS];

static struct board_entry boards[COMMS][SESSIONS];

/* ---- Time ---- */

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void pause_ns(long ns)
{
	nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void notify(void *arg)
{
	(void)arg;
}

/* ---- Setting up ---- */

static void command(struct command c)
{
	engine->command(engine, &c);
}

static void add_device(uint32_t i)
{
	void *p = mmap(NULL, sizeof(struct worker_queue), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	gpus[i] = (struct gpu){.queue = p, .doorbell = eventfd(0, EFD_NONBLOCK)};
	command((struct command){.kind = COMMAND_DEVICE_ADD,
				 .device = {i, gpus[i].queue, gpus[i].doorbell}});
}

/* A session with memory on every device it is told. Regions: REGION + device. */
static void add_trainer(uint32_t i)
{
	struct trainer *t = &trainers[i];
	void *p = mmap(NULL, svc_ring_size(ENTRIES), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	*t = (struct trainer){.ring = p,
			      .doorbell = eventfd(0, EFD_NONBLOCK),
			      .completion = eventfd(0, EFD_NONBLOCK)};
	command((struct command){
		.kind = COMMAND_SESSION_ADD,
		.session = i,
		.session_add = {
			.id = i + 1, .pid = (int32_t)i + 100, .fd = -1, .counts = &t->counts}});
	struct command ring = {.kind = COMMAND_SESSION_RING, .session = i};
	ring.ring.ring = t->ring;
	ring.ring.entries = ENTRIES;
	ring.ring.doorbell = t->doorbell;
	ring.ring.completion = t->completion;
	command(ring);
	for (int32_t d = 0; d < DEVICES; d++)
		command((struct command){
			.kind = COMMAND_REGION_ADD,
			.session = i,
			.region = {.region = REGION + (uint32_t)d,
				   .base = (void *)(uintptr_t)(0x10000000u + 0x100000u * i +
							       0x10000u * (uint32_t)d),
				   .bytes = BYTES,
				   .device = d}});
}

/* Member k is trainer sessions[k] on devices[k]; they call it handle comm + 1, and a trainer that
 * is in it twice calls it comm + COMMS + 1 the second time. */
static void start(uint32_t comm, uint32_t n, const uint32_t *sessions, const int32_t *devices)
{
	struct command c = {.kind = COMMAND_EPOCH_START};
	struct epoch_member *members = calloc(n, sizeof(*members));
	assert_non_null(members);
	memset(boards[comm], 0, sizeof(boards[comm]));
	for (uint32_t k = 0; k < n; k++) {
		uint32_t second = k && sessions[k] == sessions[k - 1] ? COMMS : 0;
		members[k] = (struct epoch_member){.session = sessions[k],
						   .handle = comm + second + 1,
						   .device = devices[k]};
	}
	c.epoch_start.comm = comm;
	c.epoch_start.nranks = n;
	c.epoch_start.epoch = 1;
	c.epoch_start.uid = comm + 1;
	c.epoch_start.members = members;
	c.epoch_start.board = boards[comm];
	c.epoch_start.cuda = true;
	c.epoch_start.lane = comm;
	command(c);
}

#define START(comm, n, sessions, devices)                                                          \
	start(comm, n, (const uint32_t[])sessions, (const int32_t[])devices)
#define LIST(...)                                                                                  \
	{                                                                                          \
		__VA_ARGS__                                                                        \
	}

static void end(uint32_t comm, int32_t result, int32_t rank)
{
	command((struct command){.kind = COMMAND_EPOCH_END,
				 .epoch_end = {.comm = comm, .result = result, .rank = rank}});
}

static int setup(void **state)
{
	struct engine_config config = {.threads = 1,
				       .tasks_max = 65536,
				       .spin_us = 0,
				       .sessions_max = SESSIONS,
				       .comms_max = COMMS};
	(void)state;
	engine = engine_create(&config, notify, NULL);
	assert_non_null(engine);
	for (uint32_t i = 0; i < DEVICES; i++)
		add_device(i);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	engine->destroy(engine);
	for (uint32_t i = 0; i < DEVICES; i++) {
		munmap(gpus[i].queue, sizeof(*gpus[i].queue));
		close(gpus[i].doorbell);
	}
	for (uint32_t i = 0; i < SESSIONS; i++) {
		if (!trainers[i].ring)
			continue;
		munmap(trainers[i].ring, svc_ring_size(ENTRIES));
		close(trainers[i].doorbell);
		close(trainers[i].completion);
		trainers[i] = (struct trainer){0};
	}
	return 0;
}

/* ---- Clients ---- */

static struct svc_record record(uint32_t comm, uint8_t op, uint32_t device)
{
	return (struct svc_record){.comm = comm + 1,
				   .epoch = 1,
				   .op = op,
				   .type = NCCLSVC_UINT8,
				   .redop = NCCLSVC_SUM,
				   .peer = -1,
				   .count = 64,
				   .src_region = REGION + device,
				   .dst_region = REGION + device};
}

static struct svc_record p2p(uint32_t comm, uint8_t op, uint32_t device, int32_t peer)
{
	struct svc_record r = record(comm, op, device);
	r.peer = peer;
	if (op == NCCLSVC_SEND)
		r.dst_region = 0;
	else
		r.src_region = 0;
	return r;
}

static struct svc_record on_timeline(struct svc_record r, uint32_t trainer, uint32_t timeline)
{
	r.flags |= SVC_TASK_TIMELINE;
	r.timeline = timeline;
	r.value = ++trainers[trainer].values[timeline];
	return r;
}

static void ring_bell(const struct trainer *t)
{
	const uint64_t one = 1;
	__sync_synchronize();
	if (atomic_load(&t->ring->asleep))
		assert_int_equal(write(t->doorbell, &one, sizeof(one)), sizeof(one));
}

/* Returns the number of the first of n tasks, which are one group. */
static uint64_t submit(uint32_t trainer, const struct svc_record *records, unsigned n)
{
	struct trainer *t = &trainers[trainer];
	uint64_t first = t->last + 1;
	for (unsigned i = 0; i < n; i++) {
		uint64_t number = ++t->last;
		struct svc_record *slot = svc_record_slot(t->ring, ENTRIES, number);
		struct svc_record r = records[i];
		r.flags |= i + 1 < n ? SVC_TASK_MORE : 0;
		memcpy((char *)slot + sizeof(slot->number), (char *)&r + sizeof(r.number),
		       sizeof(r) - sizeof(r.number));
		svc_number_store(&slot->number, number);
	}
	ring_bell(t);
	return first;
}

static uint64_t submit_one(uint32_t trainer, struct svc_record r)
{
	return submit(trainer, &r, 1);
}

static bool over(uint32_t trainer, uint64_t n)
{
	return svc_number_load(&svc_status_slot(trainers[trainer].ring, ENTRIES, n)->number) == n;
}

static void ends(uint32_t trainer, uint64_t n, int32_t result)
{
	for (uint64_t until = now_ns() + WAIT_NS; !over(trainer, n); pause_ns(100000))
		assert_true(now_ns() < until);
	assert_int_equal(svc_status_slot(trainers[trainer].ring, ENTRIES, n)->result, result);
}

static struct svc_timeline *line(uint32_t trainer, uint32_t timeline)
{
	return &svc_timelines(trainers[trainer].ring)[timeline];
}

/* ---- GPUs ---- */

static uint64_t head(uint32_t device)
{
	return atomic_load(&gpus[device].queue->head);
}

/* Waits until the device's queue has had n launches in all. */
static void launched(uint32_t device, uint64_t n)
{
	for (uint64_t until = now_ns() + WAIT_NS; head(device) < n; pause_ns(100000))
		assert_true(now_ns() < until);
	assert_int_equal(head(device), n);
}

static const struct launch *launch(uint32_t device, uint64_t i)
{
	return &gpus[device].queue->launches[i & (WORKER_LAUNCHES - 1)];
}

/* The worker takes all, and its GPU is through with it. */
static void run_all(uint32_t device)
{
	struct worker_queue *q = gpus[device].queue;
	for (uint64_t i = gpus[device].seen; i < head(device); i++) {
		const struct launch *l = launch(device, i);
		if (l->timeline)
			atomic_store(&line(l->session, l->timeline)->done, l->value);
		atomic_store(&q->lanes[l->lane].completed, l->seq);
		gpus[device].seen++;
	}
	atomic_store(&q->tail, gpus[device].seen);
}

static void nothing_comes(void)
{
	uint64_t before[DEVICES];
	for (uint32_t d = 0; d < DEVICES; d++)
		before[d] = head(d);
	pause_ns(QUIET_NS);
	for (uint32_t d = 0; d < DEVICES; d++)
		assert_int_equal(head(d), before[d]);
}

/* ---- Tests ---- */

static void a_task_is_launched_when_all_have_met(void **state)
{
	(void)state;
	add_trainer(0);
	add_trainer(1);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	uint64_t a = submit_one(0, on_timeline(record(0, NCCLSVC_ALL_REDUCE, 0), 0, 1));
	nothing_comes();
	uint64_t b = submit_one(1, on_timeline(record(0, NCCLSVC_ALL_REDUCE, 1), 1, 1));
	launched(0, 1);
	launched(1, 1);
	assert_int_equal(launch(0, 0)->src, 0x10000000);
	assert_int_equal(launch(1, 0)->src, 0x10110000);
	assert_int_equal(launch(0, 0)->value, 1);
	assert_int_equal(launch(0, 0)->flags, 0);
	assert_false(over(0, a));
	run_all(0);
	ends(0, a, 0);
	assert_false(over(1, b));
	run_all(1);
	ends(1, b, 0);
}

/* Groups tie communicators together: A{0,1}, B{1,2}, C{2,3}. */
static void nothing_of_a_chain_goes_before_its_last_link(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 4; i++)
		add_trainer(i);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	START(1, 2, LIST(1, 2), LIST(1, 2));
	START(2, 2, LIST(2, 3), LIST(2, 3));
	const struct svc_record one[] = {record(0, NCCLSVC_ALL_REDUCE, 1),
					 record(1, NCCLSVC_ALL_REDUCE, 1)};
	const struct svc_record two[] = {record(2, NCCLSVC_ALL_REDUCE, 2),
					 record(1, NCCLSVC_ALL_REDUCE, 2)};
	uint64_t a = submit_one(0, record(0, NCCLSVC_ALL_REDUCE, 0));
	uint64_t b = submit(1, one, 2);
	uint64_t c = submit(2, two, 2);
	nothing_comes();
	uint64_t d = submit_one(3, record(2, NCCLSVC_ALL_REDUCE, 3));
	launched(0, 1);
	launched(1, 2);
	launched(2, 2);
	launched(3, 1);
	assert_int_equal(launch(1, 0)->flags, LAUNCH_MORE);
	assert_int_equal(launch(1, 1)->flags, 0);
	assert_int_equal(launch(2, 0)->flags, LAUNCH_MORE);
	for (uint32_t i = 0; i < 4; i++)
		run_all(i);
	ends(0, a, 0);
	ends(1, b, 0);
	ends(1, b + 1, 0);
	ends(2, c, 0);
	ends(2, c + 1, 0);
	ends(3, d, 0);
}

/* A process with both devices, whose group alternates between them. */
static void a_group_is_one_group_on_each_of_its_devices(void **state)
{
	(void)state;
	add_trainer(0);
	for (uint32_t k = 0; k < 4; k++)
		START(k, 2, LIST(0, 0), LIST(0, 1));
	struct svc_record group[8];
	for (uint32_t k = 0; k < 4; k++)
		for (uint32_t d = 0; d < 2; d++)
			group[2 * k + d] = record(k + d * COMMS, NCCLSVC_ALL_REDUCE, d);
	uint64_t first = submit(0, group, 8);
	for (uint32_t d = 0; d < 2; d++) {
		launched(d, 4);
		for (uint64_t i = 0; i < 4; i++) {
			assert_int_equal(launch(d, i)->flags, i < 3 ? LAUNCH_MORE : 0);
			assert_int_equal(launch(d, i)->lane, i);
		}
		run_all(d);
	}
	for (unsigned i = 0; i < 8; i++)
		ends(0, first + i, 0);
}

static void unmet_mates_do_not_hold_a_group_up_for_good(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 3; i++)
		add_trainer(i);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	START(1, 2, LIST(0, 2), LIST(0, 2));
	struct svc_record group[] = {on_timeline(record(0, NCCLSVC_ALL_REDUCE, 0), 0, 1),
				     on_timeline(record(1, NCCLSVC_ALL_REDUCE, 0), 0, 2)};
	group[1].timeout_ns = 50000000;
	uint64_t a = submit(0, group, 2);
	uint64_t b = submit_one(1, record(0, NCCLSVC_ALL_REDUCE, 1));
	/* It met its peer, and its mate in the group did not, and runs out of time. */
	ends(0, a + 1, NCCLSVC_TIMEOUT);
	assert_int_equal(svc_status_slot(trainers[0].ring, ENTRIES, a + 1)->missing_count, 1);
	assert_int_equal(svc_status_slot(trainers[0].ring, ENTRIES, a + 1)->missing[0], 1);
	assert_int_equal(atomic_load(&line(0, 2)->done), 1);
	launched(0, 1);
	launched(1, 1);
	run_all(0);
	run_all(1);
	ends(0, a, 0);
	ends(1, b, 0);
	/* Who comes too late hears the same. */
	uint64_t c = submit_one(2, record(1, NCCLSVC_ALL_REDUCE, 2));
	ends(2, c, NCCLSVC_TIMEOUT);
	nothing_comes();
}

static void an_epoch_ends_what_met_and_was_not_launched(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 3; i++)
		add_trainer(i);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	START(1, 2, LIST(0, 2), LIST(0, 2));
	const struct svc_record group[] = {on_timeline(record(0, NCCLSVC_ALL_REDUCE, 0), 0, 1),
					   on_timeline(record(1, NCCLSVC_ALL_REDUCE, 0), 0, 2)};
	uint64_t a = submit(0, group, 2);
	uint64_t b = submit_one(1, on_timeline(record(0, NCCLSVC_ALL_REDUCE, 1), 1, 1));
	nothing_comes();
	end(0, NCCLSVC_WORKER_LOST, 1);
	ends(0, a, NCCLSVC_WORKER_LOST);
	ends(1, b, NCCLSVC_WORKER_LOST);
	assert_int_equal(atomic_load(&line(0, 1)->done), 1);
	assert_int_equal(atomic_load(&line(1, 1)->done), 1);
	/* The other half of the group goes on without. */
	assert_false(over(0, a + 1));
	uint64_t c = submit_one(2, record(1, NCCLSVC_ALL_REDUCE, 2));
	launched(0, 1);
	launched(2, 1);
	run_all(0);
	run_all(2);
	ends(0, a + 1, 0);
	ends(2, c, 0);
}

/* A rank whose worker is lost is told so, too; one that has gone is told nothing of himself. */
static void everybody_is_told_of_a_lost_worker(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 3; i++)
		add_trainer(i);
	START(0, 3, LIST(0, 1, 2), LIST(0, 1, 2));
	uint64_t a = submit_one(0, record(0, NCCLSVC_ALL_REDUCE, 0));
	uint64_t b = submit_one(1, record(0, NCCLSVC_ALL_REDUCE, 1));
	nothing_comes();
	end(0, NCCLSVC_WORKER_LOST, 1);
	ends(0, a, NCCLSVC_WORKER_LOST);
	ends(1, b, NCCLSVC_WORKER_LOST);
}

/* What a GPU writes when a task was given up is less than what its client was told. */
static void done_never_stays_lower_than_it_was(void **state)
{
	(void)state;
	add_trainer(0);
	add_trainer(1);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	uint64_t a = 0;
	for (int i = 0; i < 3; i++) {
		a = submit_one(0, on_timeline(record(0, NCCLSVC_ALL_REDUCE, 0), 0, 1));
		submit_one(1, on_timeline(record(0, NCCLSVC_ALL_REDUCE, 1), 1, 1));
	}
	launched(0, 3);
	launched(1, 3);
	/* One that is refused while they fly must not overtake them. */
	struct svc_record bad = on_timeline(record(0, NCCLSVC_ALL_REDUCE, 0), 0, 1);
	bad.src_offset = BYTES;
	uint64_t b = submit_one(0, bad);
	ends(0, b, NCCLSVC_INVALID_ARGUMENT);
	assert_int_equal(atomic_load(&line(0, 1)->done), 0);
	end(0, NCCLSVC_PEER_GONE, 1);
	ends(0, a, NCCLSVC_PEER_GONE);
	assert_int_equal(atomic_load(&line(0, 1)->done), 4);
	/* The GPU comes to them only now. */
	run_all(0);
	for (uint64_t until = now_ns() + WAIT_NS; atomic_load(&line(0, 1)->done) < 4;)
		assert_true(now_ns() < until);
	/* The other is broken off. */
	command((struct command){.kind = COMMAND_EPOCH_DEAD, .epoch_end = {.comm = 0}});
	struct event ev;
	uint64_t until = now_ns() + WAIT_NS;
	do
		assert_true(now_ns() < until);
	while (!engine->next_event(engine, &ev) || ev.kind != EVENT_EPOCH_GONE);
	assert_int_equal(atomic_load(&line(1, 1)->done), 3);
}

static void inputs_are_released_only_after_the_epoch(void **state)
{
	(void)state;
	add_trainer(0);
	add_trainer(1);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	for (uint32_t i = 0; i < 2; i++)
		submit_one(i, on_timeline(record(0, NCCLSVC_ALL_REDUCE, i), i, 1));
	launched(0, 1);
	command((struct command){.kind = COMMAND_EPOCH_RELEASE, .epoch_end = {.comm = 0}});
	pause_ns(QUIET_NS);
	assert_int_equal(atomic_load(&line(0, 1)->ready), 0);
	end(0, NCCLSVC_PEER_GONE, 1);
	command((struct command){.kind = COMMAND_EPOCH_RELEASE, .epoch_end = {.comm = 0}});
	for (uint64_t until = now_ns() + WAIT_NS; !atomic_load(&line(1, 1)->ready);)
		assert_true(now_ns() < until);
	assert_int_equal(atomic_load(&line(0, 1)->ready), 1);
}

/* Two lanes between the same devices, submitted crosswise: one order for both workers. */
static void workers_launch_in_one_order(void **state)
{
	enum { ROUNDS = 300 };
	(void)state;
	add_trainer(0);
	add_trainer(1);
	for (uint32_t k = 0; k < 4; k++)
		START(k, 2, LIST(0, 1), LIST(0, 1));
	srand(7);
	uint32_t next[2][4] = {{0}}, sent[2] = {0};
	while (sent[0] < 4 * ROUNDS || sent[1] < 4 * ROUNDS) {
		uint32_t t = (uint32_t)rand() & 1, k = (uint32_t)rand() & 3;
		if (next[t][k] == ROUNDS)
			continue;
		/* The same on both sides, whatever the order of the communicators. */
		uint32_t n = next[t][k] % 3 + 1;
		if (n > ROUNDS - next[t][k])
			n = ROUNDS - next[t][k];
		struct svc_record group[3];
		for (uint32_t i = 0; i < n; i++)
			group[i] = record(k, NCCLSVC_ALL_REDUCE, t);
		submit(t, group, n);
		next[t][k] += n;
		sent[t] += n;
		run_all(0);
		run_all(1);
	}
	for (uint64_t until = now_ns() + WAIT_NS; head(0) < 4 * ROUNDS || head(1) < 4 * ROUNDS;) {
		assert_true(now_ns() < until);
		run_all(0);
		run_all(1);
	}
	for (uint64_t i = 0; i < 4 * ROUNDS; i++) {
		assert_int_equal(launch(0, i)->lane, launch(1, i)->lane);
		assert_int_equal(launch(0, i)->seq, launch(1, i)->seq);
		assert_int_equal(launch(0, i)->flags, launch(1, i)->flags);
	}
}

/* One worker hangs, and its queue is full: those of other GPUs get what is theirs. */
static void a_full_queue_holds_up_nobody_else(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 4; i++)
		add_trainer(i);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	START(1, 2, LIST(2, 3), LIST(2, 3));
	START(2, 2, LIST(0, 1), LIST(0, 1));
	/* As if others had filled it. */
	atomic_store(&gpus[0].queue->tail, (uint64_t)0 - WORKER_LAUNCHES);
	uint64_t a = submit_one(0, record(0, NCCLSVC_ALL_REDUCE, 0));
	submit_one(1, record(0, NCCLSVC_ALL_REDUCE, 1));
	submit_one(0, record(2, NCCLSVC_ALL_REDUCE, 0));
	submit_one(1, record(2, NCCLSVC_ALL_REDUCE, 1));
	submit_one(2, record(1, NCCLSVC_ALL_REDUCE, 2));
	submit_one(3, record(1, NCCLSVC_ALL_REDUCE, 3));
	launched(2, 1);
	launched(3, 1);
	assert_int_equal(head(1), 0);
	/* Room for one: that goes to the first. */
	atomic_store(&gpus[0].queue->tail, (uint64_t)1 - WORKER_LAUNCHES);
	submit_one(2, record(1, NCCLSVC_ALL_REDUCE, 2));
	launched(0, 1);
	assert_int_equal(launch(0, 0)->lane, 0);
	atomic_store(&gpus[0].queue->tail, 0);
	submit_one(3, record(1, NCCLSVC_ALL_REDUCE, 3));
	launched(0, 2);
	run_all(0);
	run_all(1);
	ends(0, a, 0);
}

/* Groups that hang together until no queue can hold them. */
static void what_can_never_be_launched_is_refused(void **state)
{
	enum { GROUPS = 3, TASKS = SVC_GROUP_TASKS - 1, ALL = GROUPS * TASKS };
	static struct svc_record group[SVC_GROUP_TASKS];
	(void)state;
	/* Trainers 0 to 2 on device 0, 3 to 5 on device 1; k with k + 3. And one ring of all. */
	for (uint32_t i = 0; i < 6; i++)
		add_trainer(i);
	for (uint32_t k = 0; k < GROUPS; k++)
		start(k, 2, (const uint32_t[]){k, k + 3}, (const int32_t[]){0, 1});
	start(3, 2, (const uint32_t[]){0, 4}, (const int32_t[]){0, 1});
	start(4, 2, (const uint32_t[]){1, 5}, (const int32_t[]){0, 1});
	assert_true(ALL > WORKER_LAUNCHES);
	uint64_t last[6];
	for (uint32_t t = 0; t < 6; t++) {
		static const int link[6] = {3, 4, -1, -1, 3, 4};
		unsigned n = 0;
		for (; n < TASKS; n++)
			group[n] = p2p(t % 3, t < 3 ? NCCLSVC_SEND : NCCLSVC_RECV, t / 3,
				       t < 3 ? 1 : 0);
		if (link[t] >= 0)
			group[n++] = record((uint32_t)link[t], NCCLSVC_ALL_REDUCE, t / 3);
		last[t] = submit(t, group, n) + n - 1;
	}
	for (uint32_t t = 0; t < 6; t++) {
		ends(t, 1, NCCLSVC_LIMIT);
		ends(t, last[t], NCCLSVC_LIMIT);
	}
	assert_int_equal(head(0), 0);
	/* And the next is as ever. */
	uint64_t a = submit_one(0, record(0, NCCLSVC_ALL_REDUCE, 0));
	submit_one(3, record(0, NCCLSVC_ALL_REDUCE, 1));
	launched(0, 1);
	launched(1, 1);
	run_all(0);
	run_all(1);
	ends(0, a, 0);
}

/* The trainer dies: the GPU need not wait for input that nobody will bring. */
static void a_dead_trainers_input_is_there(void **state)
{
	(void)state;
	add_trainer(0);
	add_trainer(1);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	uint64_t a = 0;
	for (uint32_t i = 0; i < 2; i++)
		a = submit_one(i, on_timeline(record(0, NCCLSVC_ALL_REDUCE, i), i, 1));
	launched(0, 1);
	launched(1, 1);
	end(0, NCCLSVC_PEER_GONE, 1);
	command((struct command){.kind = COMMAND_SESSION_DEL, .session = 1});
	for (uint64_t until = now_ns() + WAIT_NS; !atomic_load(&line(1, 1)->ready);)
		assert_true(now_ns() < until);
	assert_int_equal(atomic_load(&line(0, 1)->ready), 0);
	ends(0, a, NCCLSVC_PEER_GONE);
	run_all(0);
	run_all(1);
	struct event ev;
	bool session = false, epoch = false;
	for (uint64_t until = now_ns() + WAIT_NS; !session || !epoch;) {
		assert_true(now_ns() < until);
		if (!engine->next_event(engine, &ev))
			continue;
		session = session || ev.kind == EVENT_SESSION_GONE;
		epoch = epoch || ev.kind == EVENT_EPOCH_GONE;
	}
}

#define ENGINE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ENGINE_TEST(a_task_is_launched_when_all_have_met),
		ENGINE_TEST(nothing_of_a_chain_goes_before_its_last_link),
		ENGINE_TEST(a_group_is_one_group_on_each_of_its_devices),
		ENGINE_TEST(unmet_mates_do_not_hold_a_group_up_for_good),
		ENGINE_TEST(an_epoch_ends_what_met_and_was_not_launched),
		ENGINE_TEST(everybody_is_told_of_a_lost_worker),
		ENGINE_TEST(done_never_stays_lower_than_it_was),
		ENGINE_TEST(inputs_are_released_only_after_the_epoch),
		ENGINE_TEST(workers_launch_in_one_order),
		ENGINE_TEST(a_full_queue_holds_up_nobody_else),
		ENGINE_TEST(what_can_never_be_launched_is_refused),
		ENGINE_TEST(a_dead_trainers_input_is_there),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
