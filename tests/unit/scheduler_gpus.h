/* SPDX-License-Identifier: Apache-2.0
 * For tests of the scheduler with GPUs: the test plays the workers, their GPUs, and the clients. It
 * reads the queues, raises what GPUs would raise, and submits through the ring. */
#ifndef TESTS_SCHEDULER_GPUS_H
#define TESTS_SCHEDULER_GPUS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "account/task_table.h"
#include "proto/abi/worker_queue.h"
#include "proto/ring.h"
#include "sched/api/scheduler.h"

#define DEVICES	   4
#define SESSIONS   8
#define COMMS	   8
#define ENTRIES	   4096
#define USER_TASKS 32768
#define BYTES	   4096
#define REGION	   1
#define WAIT_NS	   UINT64_C(25000000000) /* timeout for what must happen, even with sanitizers */
#define QUIET_NS   20000000		 /* how long to wait before concluding that nothing comes */

extern struct scheduler *scheduler;
/* Set before setup; otherwise there is one node. */
extern const struct carrier *scheduler_carrier;
extern uint32_t scheduler_nodes;
/* Transport of started communicators; TRANSPORT_NCCL at first. */
extern enum transport_kind scheduler_transport;
/* The pending tasks of the next communicators' members; NULL at first. */
extern struct member_pending *scheduler_pending;

/* Started communicators have no NCCL communicator. */
extern bool scheduler_without_nccl;
/* Two of its members use one GPU. */
extern bool scheduler_shared_gpu;

extern struct gpu {
	struct worker_queue *queue;
	int doorbell;
	uint64_t seen; /* launches that the test has seen */
} gpus[DEVICES];

extern struct trainer {
	struct svc_ring *ring;
	struct session_counts counts;
	int doorbell;
	int fd, sock;	    /* the daemon's end of its socket, and its own end */
	uint64_t last;	    /* newest number in its ring */
	uint64_t submitted; /* submitted, including through the socket */
	uint64_t values[SVC_TIMELINES];
} trainers[SESSIONS];

extern struct member_progress progress_pages[COMMS][SESSIONS];

uint64_t now_ns(void);
void pause_ns(long ns);
/* The scheduler's clock. No deadline of the scheduler passes while it
 * stands still; now_ns continues. */
void stop_clock(void);
void start_clock(void);
void advance_clock(long seconds);
void command(struct command c);
/* Before a test: the clock runs, and there are no events of earlier schedulers. */
void begin_afresh(void);
/* Takes the next event, like scheduler_next_event; settle keeps events for it. */
bool next_event_of(struct scheduler *sched, struct event *event);
/* Waits until the scheduler has run all earlier commands, and then has looked at everything. */
void settle(struct scheduler *sched);
void add_device(uint32_t i);
/* Adds a session with memory on each of its devices. Regions: REGION + device. */
void add_trainer(uint32_t i);
/* Member k is trainer sessions[k] on devices[k]. Its handle is comm + 1; a trainer that is in the
 * communicator twice uses comm + COMMS + 1 for the second rank. */
void start(uint32_t comm, uint32_t n, const uint32_t *sessions, const int32_t *devices);
void end_epoch(uint32_t comm, int32_t result, int32_t rank);
int setup(void **state);
int teardown(void **state);
struct svc_record record(uint32_t comm, uint8_t op, uint32_t device);
struct svc_record p2p(uint32_t comm, uint8_t op, uint32_t device, int32_t peer);
struct svc_record on_timeline(struct svc_record r, uint32_t trainer, uint32_t timeline);
/* Submits n tasks as one group; returns the first one's number. */
uint64_t submit(uint32_t trainer, const struct svc_record *records, unsigned n);
uint64_t submit_one(uint32_t trainer, struct svc_record r);
/* Submits through the socket. Returns the result in the reply. */
int32_t submit_by_socket(uint32_t trainer, struct svc_record r);
bool over(uint32_t trainer, uint64_t n);
void ends(uint32_t trainer, uint64_t n, int32_t result);
struct svc_timeline *line(uint32_t trainer, uint32_t timeline);
/* Checks that the stream waiting on the timeline is released soon after the client gets the status.
 */
void goes_on(uint32_t trainer, uint32_t timeline, uint64_t value);
uint64_t head(uint32_t device);
/* Waits until the device's queue has had n launches in total. */
void launched(uint32_t device, uint64_t n);
const struct launch *launch(uint32_t device, uint64_t i);
/* Waits until the device's queue has had at least n launches in total. The worker takes the first
 * n, and its GPU finishes them. */
void run_to(uint32_t device, uint64_t n);
/* Waits until the scheduler has taken what was submitted and has settled. Shorter deadlines than
 * QUIET_NS have passed. */
void quiet(void);
void nothing_comes(void);

#define START(comm, n, sessions, devices)                                                          \
	start(comm, n, (const uint32_t[])sessions, (const int32_t[])devices)
#define LIST(...)                                                                                  \
	{                                                                                          \
		__VA_ARGS__                                                                        \
	}

#define SCHEDULER_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
