/* SPDX-License-Identifier: Apache-2.0
 * A worker's start, loop and sleep. */
#include "worker.h"
#include "base/clock.h"
#include "worker_launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/closer.h"
#include "base/log.h"
#include "base/timings.h"
#include "gpu_list.h"
#include "proto/abi/cuda_connections.h"
#include "proto/names.h"
#include "worker_main.h"

#define SCRATCH_BYTES	   4096
#define ROUNDS_PER_CONTROL 64 /* polls of the queue between checks of the socket */
#define ROUNDS_PER_CLOCK   16
#define NAP_SHARE	   4 /* ends are noticed late by at most this fraction of the wait */

/* ---- Start ---- */

static bool find_device(struct worker *w, const char *uuid, char *text, size_t size)
{
	struct gpu_entry e;
	for (int i = 0; gpu_list_get(i, &e); i++) {
		char name[SVC_UUID_TEXT];
		svc_uuid_text(e.uuid, name);
		if (strcmp(name, uuid))
			continue;
		w->device = e.device;
		memcpy(w->uuid, e.uuid, sizeof(w->uuid));
		memcpy(w->name, e.name, sizeof(w->name));
		return true;
	}
	snprintf(text, size, "the driver finds no GPU %s", uuid);
	return false;
}

static CUresult make_context(struct worker *w)
{
	/* An MPS server that has just lost a client briefly refuses new ones. */
	CUresult error;
	for (int i = 0; i < MPS_TRIES; i++) {
		error = cu.cuDevicePrimaryCtxRetain(&w->context, w->device);
		if (error != CUDA_ERROR_MPS_SERVER_NOT_READY)
			break;
		usleep(MPS_NOT_READY_US);
	}
	if (!error)
		error = cu.cuCtxSetCurrent(w->context);
	if (!error)
		error = cu.cuMemAlloc(&w->scratch, SCRATCH_BYTES);
	if (!error)
		error = cu.cuMemsetD8Async(w->scratch, 0, SCRATCH_BYTES, NULL);
	if (!error)
		error = cu.cuCtxSynchronize();
	return error;
}

static CUresult map_queue(struct worker *w)
{
	void *p = mmap(NULL, sizeof(*w->queue), PROT_READ | PROT_WRITE, MAP_SHARED, w->queue_fd, 0);
	if (p == MAP_FAILED)
		return CUDA_ERROR_MAP_FAILED;
	w->queue = p;
	w->generation = atomic_load(&w->queue->generation);
	CUresult error =
		cu.cuMemHostRegister(w->queue->slots, sizeof(w->queue->slots),
				     CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	if (!error)
		error = cu.cuMemHostGetDevicePointer(&w->progress, w->queue->slots, 0);
	return error;
}

/* All ordering relies on stream memory operations, so test them instead of querying support. */
static CUresult try_mem_ops(const struct worker *w)
{
	CUstreamBatchMemOpParams op = {.writeValue = {
					       .operation = CU_STREAM_MEM_OP_WRITE_VALUE_64,
					       .address = w->progress,
				       }};
	CUresult error = cu.cuStreamBatchMemOp(NULL, 1, &op, 0);
	return error ? error : cu.cuCtxSynchronize();
}

/* staged: bytes to pin; 0: use NCCL */
static bool start(struct worker *w, const char *uuid, uint64_t staged, char *text, size_t size)
{
	size_t before = 0, after = 0, total = 0;
	if (!gpu_api_open_cuda(&w->driver_version, text, size) ||
	    (!staged && !gpu_api_open_nccl(&w->nccl_version, text, size)) ||
	    !find_device(w, uuid, text, size))
		return false;
	CUresult error = make_context(w);
	if (!error)
		error = map_queue(w);
	if (!error)
		error = try_mem_ops(w);
	if (error) {
		snprintf(text, size, "the GPU cannot be used: %s", gpu_api_cuda_error(error));
		return false;
	}
	w->tail = atomic_load(&w->queue->tail);
	if (staged && !copy_start(w, staged, text, size))
		return false;
	struct worker_message m = {
		.kind = WORKER_HELLO,
		.device = {.driver_version = w->driver_version, .nccl_version = w->nccl_version}};
	cu.cuMemGetInfo(&after, &total);
	before = total;
	m.device.memory_bytes = total;
	m.device.worker_bytes = before - after;
	m.device.mps = gpu_list_mps(w->device, &m.device.mps_server);
	memcpy(m.device.uuid, w->uuid, sizeof(m.device.uuid));
	memcpy(m.device.name, w->name, sizeof(m.device.name));
	worker_send(w, &m);
	return true;
}

/* ---- The loop ---- */

static void fall_asleep(struct worker *w, uint64_t waited_ns)
{
	struct pollfd fds[] = {{.fd = w->sock, .events = POLLIN},
			       {.fd = w->bell, .events = POLLIN}};
	const struct timespec nap = {.tv_nsec = (long)spin_nap_ns(waited_ns, NAP_SHARE)};
	uint64_t count;
	atomic_store(&w->queue->asleep, 1);
	/* Either the scheduler sees the flag and rings, or this thread sees its launch. */
	if (atomic_load(&w->queue->head) == w->tail)
		ppoll(fds, 2, w->in_flight ? &nap : NULL, NULL);
	atomic_store(&w->queue->asleep, 0);
	if (fds[1].revents && read(w->bell, &count, sizeof(count)) < 0 && errno != EAGAIN)
		w->quit = true;
	if (fds[0].revents && !control_handle(w))
		w->quit = w->supervisor_lost = true;
}

/* Periodic work. True: some of it continues. */
static bool watch(struct worker *w, uint64_t now)
{
	launch_watch(w);
	closings_watch(w, now);
	const bool maps = ranges_work(w), closes = imports_sweep(w, now);
	return maps || closes;
}

static void run(struct worker *w)
{
	uint64_t busy_ns = clock_now(), now = busy_ns;
	bool works = false;
	for (unsigned rounds = 1; !w->quit; rounds++) {
		const bool launched = launch_next(w);
		if (launched) {
			spin_waited(&w->spin, now - busy_ns);
			busy_ns = now = clock_now();
			w->in_flight = 1; /* at least */
		} else if (rounds % ROUNDS_PER_CLOCK == 0) {
			const uint64_t before = now;
			now = clock_now();
			spin_looked(&w->spin, now - before, now);
		}
		if (rounds % ROUNDS_PER_CONTROL == 0) {
			if (!control_handle(w)) {
				w->supervisor_lost = true;
				break;
			}
			works = watch(w, now);
			now = clock_now(); /* time in the driver is no sign of a lost core */
			if (!launched)
				sched_yield(); /* the thread it waits for may need this core */
		}
		if (launched)
			continue;
		if (!works && now - busy_ns >= spin_budget_ns(&w->spin, now)) {
			fall_asleep(w, now - busy_ns);
			now = clock_now();
			works = watch(w, now);
		}
		spin_pause();
	}
}

/* The total progress of all slots, at the last look. */
struct motion {
	uint64_t completed, moved_ns;
};

/* After a nap: has a task ended within that time? */
static bool still_moves(const struct worker *w, struct motion *m, uint64_t within_ns)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};
	uint64_t sum = 0;
	nanosleep(&nap, NULL);
	for (uint32_t i = 0; i < WORKER_COMM_SLOTS; i++)
		sum += atomic_load(&w->queue->slots[i].completed);
	const uint64_t now = clock_now();
	if (sum != m->completed || !m->moved_ns)
		*m = (struct motion){sum, now};
	return now - m->moved_ns < within_ns;
}

/* Each task that ends resets its timeline to its own value, since trainers' streams that continue
 * now provide the input of others. So this repeats until nothing moves, or for
 * SUPERVISOR_LOST_LAST_NS. */
static void release_until_still(struct worker *w)
{
	const uint64_t end_ns = clock_now() + SUPERVISOR_LOST_LAST_NS;
	struct motion m = {0};
	do
		sessions_release(w);
	while (still_moves(w, &m, SUPERVISOR_LOST_STILL_NS) && clock_now() < end_ns);
	sessions_release(w);
}

/* Without a supervisor, a worker that is stuck in the driver must exit by itself. */
static void *watch_supervisor(void *arg)
{
	struct worker *w = arg;
	struct pollfd fd = {.fd = w->sock}; /* hang-ups only */
	while (poll(&fd, 1, -1) < 0)
		;
	sleep(SUPERVISOR_LOST_SECONDS);
	sessions_end(w);
	release_until_still(w);
	if (sessions_survive(w))
		sleep(SURVIVED_SECONDS);
	_exit(EXIT_FAILURE);
}

static void start_watching(struct worker *w)
{
	pthread_t thread;
	if (!pthread_create(&thread, NULL, watch_supervisor, w))
		pthread_detach(thread);
}

static bool all_completed(const struct worker *w)
{
	for (uint32_t i = 0; i < w->high_slot; i++)
		if ((w->slots[i].comm || w->slots[i].ending) &&
		    atomic_load(&w->queue->slots[i].completed) < w->slots[i].enqueued)
			return false;
	return true;
}

static bool await_all(const struct worker *w, uint64_t still_ns)
{
	struct motion m = {0};
	while (!all_completed(w) && still_moves(w, &m, still_ns))
		;
	return all_completed(w);
}

/* Clients' streams are released when no kernel of this worker writes to their memory any more: when
 * all launches have completed; or when they have stopped moving, since another worker got fewer
 * launches, and this one will exit soon. Streams of sessions that
 * survive are not released; their operations get more time. watch_supervisor ends the process in
 * any case. */
static void end_without_supervisor(struct worker *w)
{
	sessions_end(w);
	while (launch_next(w)) /* so that all workers run the same launches, if possible */
		;
	if (await_all(w, SUPERVISOR_LOST_STILL_NS))
		sessions_release(w);
	else
		release_until_still(w);
	if (sessions_survive(w))
		await_all(w, SUPERVISOR_LOST_LONG_NS);
}

/* When memory is short, the kernel must kill a worker before the supervisor, which has lowered its
 * own score (OOMScoreAdjust= of the unit). */
static void raise_oom_score(void)
{
	char score[16] = "";
	const int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
	if (fd >= 0 && read(fd, score, sizeof(score) - 1) > 0 && score[0] == '-' &&
	    pwrite(fd, "0", 1, 0) < 0)
		log_warning("/proc/self/oom_score_adj cannot be written: %s", strerror(errno));
	if (fd >= 0)
		close(fd);
}

/* The supervisor counts for users; nobody waits for a worker here. */
static void on_closed(void *arg)
{
	(void)arg;
}

int worker_main(int argc, char *argv[])
{
	char text[SVC_TEXT_BYTES];
	struct worker *w = calloc(1, sizeof(*w));
	if (!w || argc < 3)
		return EXIT_FAILURE;
	w->closer = closer_create(on_closed, NULL);
	if (!w->closer)
		return EXIT_FAILURE;
	w->sock = WORKER_FD;
	w->queue_fd = WORKER_QUEUE_FD;
	w->bell = WORKER_BELL_FD;
	cpu_set_t cpus;
	spin_init(&w->spin, atoi(argv[2]),
		  sched_getaffinity(0, sizeof(cpus), &cpus) ? 1 : (unsigned)CPU_COUNT(&cpus));
	signal(SIGPIPE, SIG_IGN);
	signal(SIGINT, SIG_IGN); /* from a terminal: the supervisor decides */
	signal(SIGTERM, SIG_IGN);
	prctl(PR_SET_NAME, "ncclsvcd-gpu");
	raise_oom_score();
	prctl(PR_SET_TIMERSLACK, SPIN_SLACK_NS);
	/* This daemon has its own inspection, and NCCL's would listen on one port for the whole
	 * node. */
	setenv("NCCL_RAS_ENABLE", "0", 0);
	/* Trainers' memory is imported, so it cannot be registered. And with registration, a
	 * captured kernel would differ from the one that other ranks call. */
	setenv("NCCL_GRAPH_REGISTER", "0", 1);
	/* Otherwise, the first launch of a kernel that needs a larger stack waits for all streams
	 * of the process (docs of NCCL_SET_STACK_SIZE), also for one that waits for a trainer's
	 * input; and this input may depend on the launch. */
	setenv("NCCL_SET_STACK_SIZE", "1", 1);
	/* A slot's stream that waits for a trainer's input holds a connection, through MPS as well.
	 * With 32, a worker's end was seen to take 0.4 s instead of 0.1. */
	setenv(CUDA_CONNECTIONS_VARIABLE, CUDA_CONNECTIONS_TEXT(CUDA_CONNECTIONS_DEFAULT), 1);
	start_watching(w);
	const uint64_t staged = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
	if (!start(w, argv[1], staged, text, sizeof(text))) {
		struct worker_message m = {.kind = WORKER_DYING, .result = NCCLSVC_UNSUPPORTED};
		memcpy(m.text, text, sizeof(m.text));
		worker_send(w, &m);
		return EXIT_FAILURE;
	}
	run(w);
	if (w->supervisor_lost)
		end_without_supervisor(w);
	/* The driver frees everything, and cannot hang, unlike this process. */
	_exit(w->dying[0] ? EXIT_FAILURE : EXIT_SUCCESS);
}
