/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler_gpus.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "transport/transports.h"

struct scheduler *scheduler;
const struct carrier *scheduler_carrier;
uint32_t scheduler_nodes;
enum transport_kind scheduler_transport = TRANSPORT_NCCL;
struct member_pending *scheduler_pending;

bool scheduler_without_nccl;
bool scheduler_shared_gpu;

struct gpu gpus[DEVICES];

struct trainer trainers[SESSIONS];

struct member_progress progress_pages[COMMS][SESSIONS];

/* ---- Time ---- */

static atomic_long ahead;	    /* seconds by which the scheduler's clock is ahead */
static _Atomic uint64_t stopped_ns; /* where it stands still; 0: it does not */

int clock_gettime(clockid_t clock, struct timespec *t)
{
	const long r = syscall(SYS_clock_gettime, clock, t);
	if (clock != CLOCK_MONOTONIC)
		return (int)r;
	const uint64_t at = atomic_load(&stopped_ns);
	if (at)
		*t = (struct timespec){(time_t)(at / 1000000000), (long)(at % 1000000000)};
	t->tv_sec += atomic_load(&ahead);
	return (int)r;
}

uint64_t now_ns(void)
{
	struct timespec t;
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void stop_clock(void)
{
	atomic_store(&stopped_ns, now_ns());
}

void start_clock(void)
{
	atomic_store(&stopped_ns, 0);
}

void advance_clock(long seconds)
{
	atomic_fetch_add(&ahead, seconds);
}

void pause_ns(long ns)
{
	nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void notify(void *arg)
{
	(void)arg;
}

/* ---- Setup ---- */

void command(struct command c)
{
	scheduler_command(scheduler, &c);
}

/* Events that settle has read */
static struct {
	struct scheduler *of;
	struct event event;
} kept[64];
static unsigned nkept;

void begin_afresh(void)
{
	nkept = 0;
	atomic_store(&ahead, 0);
	start_clock();
}

bool next_event_of(struct scheduler *sched, struct event *event)
{
	for (unsigned i = 0; i < nkept; i++) {
		if (kept[i].of != sched)
			continue;
		*event = kept[i].event;
		memmove(&kept[i], &kept[i + 1], (--nkept - i) * sizeof(kept[0]));
		return true;
	}
	return scheduler_next_event(sched, event);
}

static void ping(struct scheduler *sched)
{
	struct event ev;
	scheduler_command(sched, &(struct command){.kind = COMMAND_PING});
	for (uint64_t until = now_ns() + WAIT_NS;; pause_ns(100000)) {
		assert_true(now_ns() < until);
		if (!scheduler_next_event(sched, &ev))
			continue;
		if (ev.kind == EVENT_PONG)
			return;
		assert_true(nkept < sizeof(kept) / sizeof(kept[0]));
		kept[nkept].of = sched;
		kept[nkept++].event = ev;
	}
}

/* The first answer may come in the round that had already looked at something before it changed. */
void settle(struct scheduler *sched)
{
	ping(sched);
	ping(sched);
}

void add_device(uint32_t i)
{
	void *p = mmap(NULL, sizeof(struct worker_queue), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	gpus[i] = (struct gpu){.queue = p, .doorbell = eventfd(0, EFD_NONBLOCK)};
	command((struct command){.kind = COMMAND_DEVICE_ADD,
				 .device = {i, gpus[i].queue, gpus[i].doorbell}});
}

void add_trainer(uint32_t i)
{
	struct trainer *t = &trainers[i];
	void *p = mmap(NULL, svc_ring_size(ENTRIES), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	int pair[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	*t = (struct trainer){
		.ring = p, .doorbell = eventfd(0, EFD_NONBLOCK), .fd = pair[0], .sock = pair[1]};
	command((struct command){
		.kind = COMMAND_SESSION_ADD,
		.session = i,
		.session_add = {
			.id = i + 1, .pid = (int32_t)i + 100, .fd = t->fd, .counts = &t->counts}});
	struct command ring = {.kind = COMMAND_SESSION_RING, .session = i};
	ring.ring.ring = t->ring;
	ring.ring.entries = ENTRIES;
	ring.ring.doorbell = t->doorbell;
	ring.ring.completion = -1; /* never armed */
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

void start(uint32_t comm, uint32_t n, const uint32_t *sessions, const int32_t *devices)
{
	struct command c = {.kind = COMMAND_EPOCH_START};
	struct epoch_member *members = calloc(n, sizeof(*members));
	assert_non_null(members);
	memset(progress_pages[comm], 0, sizeof(progress_pages[comm]));
	for (uint32_t k = 0; k < n; k++) {
		uint32_t second = k && sessions[k] == sessions[k - 1] ? COMMS : 0;
		members[k] = (struct epoch_member){
			.session = sessions[k], .handle = comm + second + 1, .device = devices[k]};
	}
	c.epoch_start.comm = comm;
	c.epoch_start.nranks = n;
	c.epoch_start.epoch = 1;
	c.epoch_start.uid = comm + 1;
	c.epoch_start.members = members;
	c.epoch_start.progress = progress_pages[comm];
	c.epoch_start.pending = scheduler_pending;
	c.epoch_start.transport = scheduler_transport;
	c.epoch_start.comm_slot = scheduler_without_nccl ? EPOCH_WITHOUT_NCCL : comm;
	c.epoch_start.shared_gpu = scheduler_shared_gpu;
	command(c);
}

void end_epoch(uint32_t comm, int32_t result, int32_t rank)
{
	const ncclsvc_status st = {.result = result, .rank_a = rank};
	command((struct command){.kind = COMMAND_EPOCH_END,
				 .epoch_end = {.comm = comm, .status = st, .later = st}});
}

int setup(void **state)
{
	struct scheduler_config config = {.threads = 1,
					  .tasks_max = USER_TASKS,
					  .user_tasks_max = USER_TASKS,
					  .spin_us = 0,
					  .sessions_max = SESSIONS,
					  .comms_max = COMMS,
					  .carrier = scheduler_carrier,
					  .nodes = scheduler_nodes,
					  .transports = transports};
	(void)state;
	begin_afresh();
	scheduler = scheduler_create(&config, notify, NULL);
	assert_non_null(scheduler);
	for (uint32_t i = 0; i < DEVICES; i++)
		add_device(i);
	return 0;
}

int teardown(void **state)
{
	(void)state;
	scheduler_destroy(scheduler);
	for (uint32_t i = 0; i < DEVICES; i++) {
		munmap(gpus[i].queue, sizeof(*gpus[i].queue));
		close(gpus[i].doorbell);
	}
	for (uint32_t i = 0; i < SESSIONS; i++) {
		if (!trainers[i].ring)
			continue;
		munmap(trainers[i].ring, svc_ring_size(ENTRIES));
		close(trainers[i].doorbell);
		close(trainers[i].fd);
		close(trainers[i].sock);
		trainers[i] = (struct trainer){0};
	}
	return 0;
}

/* ---- Clients ---- */

struct svc_record record(uint32_t comm, uint8_t op, uint32_t device)
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

struct svc_record p2p(uint32_t comm, uint8_t op, uint32_t device, int32_t peer)
{
	struct svc_record r = record(comm, op, device);
	r.peer = peer;
	if (op == NCCLSVC_SEND)
		r.dst_region = 0;
	else
		r.src_region = 0;
	return r;
}

struct svc_record on_timeline(struct svc_record r, uint32_t trainer, uint32_t timeline)
{
	r.flags |= SVC_TASK_TIMELINE;
	r.timeline = timeline;
	r.value = ++trainers[trainer].values[timeline];
	return r;
}

static void ring_bell(const struct trainer *t)
{
	const uint64_t one = 1;
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load(&t->ring->asleep))
		assert_int_equal(write(t->doorbell, &one, sizeof(one)), sizeof(one));
}

uint64_t submit(uint32_t trainer, const struct svc_record *records, unsigned n)
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
	t->submitted += n;
	ring_bell(t);
	return first;
}

uint64_t submit_one(uint32_t trainer, struct svc_record r)
{
	return submit(trainer, &r, 1);
}

int32_t submit_by_socket(uint32_t trainer, struct svc_record r)
{
	struct {
		struct svc_header header;
		char body[1024];
	} reply;
	struct pollfd p = {.fd = trainers[trainer].sock, .events = POLLIN};
	trainers[trainer].submitted++;
	command((struct command){.kind = COMMAND_TASK, .session = trainer, .task = {7, r}});
	assert_int_equal(poll(&p, 1, WAIT_NS / 1000000), 1);
	assert_true(recv(p.fd, &reply, sizeof(reply), 0) > 0);
	assert_int_equal(reply.header.opcode, SVC_SUBMIT | SVC_REPLY);
	assert_int_equal(reply.header.request_id, 7);
	return reply.header.result;
}

bool over(uint32_t trainer, uint64_t n)
{
	return svc_number_load(&svc_status_slot(trainers[trainer].ring, ENTRIES, n)->number) == n;
}

void ends(uint32_t trainer, uint64_t n, int32_t result)
{
	for (uint64_t until = now_ns() + WAIT_NS; !over(trainer, n); pause_ns(100000))
		assert_true(now_ns() < until);
	assert_int_equal(svc_status_slot(trainers[trainer].ring, ENTRIES, n)->result, result);
}

struct svc_timeline *line(uint32_t trainer, uint32_t timeline)
{
	return &svc_timelines(trainers[trainer].ring)[timeline];
}

void goes_on(uint32_t trainer, uint32_t timeline, uint64_t value)
{
	const struct svc_timeline *l = line(trainer, timeline);
	for (uint64_t until = now_ns() + WAIT_NS; atomic_load(&l->done) != value;)
		assert_true(now_ns() < until);
}

/* ---- GPUs ---- */

uint64_t head(uint32_t device)
{
	return atomic_load(&gpus[device].queue->head);
}

void launched(uint32_t device, uint64_t n)
{
	for (uint64_t until = now_ns() + WAIT_NS; head(device) < n; pause_ns(100000))
		assert_true(now_ns() < until);
	assert_int_equal(head(device), n);
}

const struct launch *launch(uint32_t device, uint64_t i)
{
	return &gpus[device].queue->launches[i & (WORKER_LAUNCHES - 1)];
}

void run_to(uint32_t device, uint64_t n)
{
	struct worker_queue *q = gpus[device].queue;
	for (uint64_t until = now_ns() + WAIT_NS; head(device) < n; pause_ns(100000))
		assert_true(now_ns() < until);
	for (uint64_t i = gpus[device].seen; i < n; i++) {
		const struct launch *l = launch(device, i);
		if (l->timeline)
			atomic_store(&line(l->session, l->timeline)->done, l->value);
		atomic_store(&q->slots[l->slot].completed, l->seq);
		gpus[device].seen++;
	}
	atomic_store(&q->tail, gpus[device].seen);
}

void quiet(void)
{
	const uint64_t until = now_ns() + WAIT_NS;
	for (uint32_t i = 0; i < SESSIONS; i++)
		for (; atomic_load(&trainers[i].counts.submitted) < trainers[i].submitted;
		     pause_ns(100000))
			assert_true(now_ns() < until);
	settle(scheduler);
	pause_ns(QUIET_NS);
	settle(scheduler);
}

void nothing_comes(void)
{
	uint64_t before[DEVICES];
	for (uint32_t d = 0; d < DEVICES; d++)
		before[d] = head(d);
	quiet();
	for (uint32_t d = 0; d < DEVICES; d++)
		assert_int_equal(head(d), before[d]);
}
