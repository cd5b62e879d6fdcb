/* SPDX-License-Identifier: Apache-2.0
 * The scheduler with this file's transports, which it only knows through their tables. It is linked
 * without any other. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sched/base/epoch_memory.h"
#include "sched/base/status.h"
#include "sched/queue/release.h"
#include "sched/queue/set.h"
#include "scheduler_gpus.h"

/* Calls by the scheduler's thread, and the transports' answers. */
static struct seen {
	_Atomic uint32_t begins, ends, starts, ntasks, polls, reserves, launches, devices, finishes;
	_Atomic bool let_go;
	_Atomic int begun; /* what start returns */
	_Atomic int room;  /* what reserve returns */
} seen;

/* ---- Transports that move nothing ---- */

static struct task *running[16];
static uint32_t nrunning;
static unsigned polled;

static void epoch_begin(struct scheduler *sched, struct comm *c)
{
	(void)sched;
	assert_int_equal(c->here, 2);
	seen.begins++;
}

static void epoch_end(struct scheduler *sched, struct comm *c)
{
	(void)sched;
	assert_true(c->ended);
	seen.ends++;
}

static void keep(struct scheduler *sched, struct task *t, enum transport_kind kind)
{
	running[nrunning++] = t;
	sched->polled |= polled = 1u << kind;
}

static enum begun toy_start(struct scheduler *sched, const struct match *m)
{
	seen.ntasks = m->ntasks;
	seen.starts++;
	if (seen.begun == BEGUN_RUNNING)
		for (uint32_t k = 0; k < m->ntasks; k++)
			keep(sched, m->tasks[k], TRANSPORT_STAGED);
	return (enum begun)seen.begun;
}

static bool toy_poll(struct scheduler *sched)
{
	seen.polls++;
	if (!seen.let_go)
		return false;
	sched->polled &= ~polled;
	while (nrunning) {
		struct task *t = running[--nrunning];
		struct comm *c = t->comm;
		release_end(sched, t, c->ended ? &c->end : &status_ok);
		if (c->ended && !c->pending)
			comm_gone(sched, c);
	}
	return true;
}

static enum room toy_reserve(struct scheduler *sched, struct task *const *tasks, uint32_t n,
			     bool promised)
{
	(void)sched;
	(void)tasks;
	assert_false(promised);
	seen.ntasks = n;
	seen.reserves++;
	return (enum room)seen.room;
}

static void toy_launch(struct scheduler *sched, struct task *const *tasks, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		set_launched(sched, tasks[i]);
	seen.launches++;
}

static void command_of(struct scheduler *sched, const struct command *cmd)
{
	(void)sched;
	seen.devices += cmd->kind == COMMAND_DEVICE_ADD;
}

static void finish(struct scheduler *sched)
{
	(void)sched;
	nrunning = 0;
	seen.finishes++;
}

static const struct transport plain = {
	.epoch_begin = epoch_begin,
	.epoch_end = epoch_end,
	.start = toy_start,
	.poll = toy_poll,
	.command = command_of,
	.finish = finish,
};

static const struct transport grouping = {
	.flags = TRANSPORT_ON_STREAMS | TRANSPORT_GROUPS | TRANSPORT_REDUCES_ALL,
	.start = set_add,
	.reserve = toy_reserve,
	.launch = toy_launch,
};

static const struct transport unused = {.start = toy_start};

const struct transport *const transports[TRANSPORTS] = {
	[TRANSPORT_HOST] = &unused,
	[TRANSPORT_INTERNODE] = &unused,
	[TRANSPORT_STAGED] = &plain,
	[TRANSPORT_NCCL] = &grouping,
};

/* ---- Tests ---- */

static void becomes(const _Atomic uint32_t *what, uint32_t value)
{
	for (uint64_t until = now_ns() + WAIT_NS; *what < value; pause_ns(100000))
		assert_true(now_ns() < until);
}

static void gone(uint32_t comm)
{
	struct event e = {0};
	for (uint64_t until = now_ns() + WAIT_NS; e.kind != EVENT_EPOCH_GONE; pause_ns(100000)) {
		assert_true(now_ns() < until);
		next_event_of(scheduler, &e);
	}
	assert_int_equal(e.epoch.comm, comm);
}

static void begin(enum transport_kind kind)
{
	memset(&seen, 0, sizeof(seen));
	seen.begun = BEGUN_RUNNING;
	scheduler_transport = kind;
	for (uint32_t i = 0; i < 2; i++)
		add_trainer(i);
	START(0, 2, LIST(0, 1), LIST(0, 1));
}

static void matched_tasks_are_started_and_polled(void **state)
{
	(void)state;
	begin(TRANSPORT_STAGED);
	uint64_t a = submit_one(0, record(0, NCCLSVC_ALL_REDUCE, 0));
	nothing_comes();
	assert_int_equal(seen.begins, 1);
	assert_int_equal(seen.starts, 0);
	assert_int_equal(seen.polls, 0);
	uint64_t b = submit_one(1, record(0, NCCLSVC_ALL_REDUCE, 1));
	becomes(&seen.polls, 2);
	assert_int_equal(seen.starts, 1);
	assert_int_equal(seen.ntasks, 2);
	assert_false(over(0, a));
	seen.let_go = true;
	ends(0, a, 0);
	ends(1, b, 0);
	const uint32_t polls = seen.polls;
	nothing_comes();
	assert_int_equal(seen.polls, polls);
}

static void tasks_that_complete_at_once_are_ended_by_the_scheduler(void **state)
{
	(void)state;
	begin(TRANSPORT_STAGED);
	seen.begun = BEGUN_DONE;
	uint64_t a = submit_one(0, p2p(0, NCCLSVC_SEND, 0, 1));
	uint64_t b = submit_one(1, p2p(0, NCCLSVC_RECV, 1, 0));
	ends(0, a, 0);
	ends(1, b, 0);
	seen.begun = BEGUN_NO_MEMORY;
	a = submit_one(0, record(0, NCCLSVC_ALL_REDUCE, 0));
	b = submit_one(1, record(0, NCCLSVC_ALL_REDUCE, 1));
	ends(0, a, NCCLSVC_NO_MEMORY);
	ends(1, b, NCCLSVC_NO_MEMORY);
	assert_int_equal(seen.polls, 0);
}

static void inputs_are_waited_for_by_whom_the_flag_says(void **state)
{
	(void)state;
	begin(TRANSPORT_STAGED);
	seen.begun = BEGUN_DONE;
	uint64_t a = submit_one(0, on_timeline(record(0, NCCLSVC_ALL_REDUCE, 0), 0, 1));
	uint64_t b = submit_one(1, record(0, NCCLSVC_ALL_REDUCE, 1));
	nothing_comes();
	assert_int_equal(seen.starts, 0);
	atomic_store(&line(0, 1)->ready, 1);
	ends(0, a, 0);
	ends(1, b, 0);
	goes_on(0, 1, 1);

	scheduler_transport = TRANSPORT_NCCL;
	START(1, 2, LIST(0, 1), LIST(0, 1));
	seen.room = ROOM_NOW;
	submit_one(0, on_timeline(record(1, NCCLSVC_ALL_REDUCE, 0), 0, 2));
	submit_one(1, record(1, NCCLSVC_ALL_REDUCE, 1));
	becomes(&seen.launches, 1);
}

static void unsupported_reductions_of_a_transport_are_refused(void **state)
{
	(void)state;
	begin(TRANSPORT_STAGED);
	struct svc_record r = record(0, NCCLSVC_ALL_REDUCE, 0);
	r.type = NCCLSVC_FLOAT8E4M3;
	ends(0, submit_one(0, r), NCCLSVC_UNSUPPORTED);
	r.op = NCCLSVC_ALL_GATHER;
	r.count = 8;
	uint64_t n = submit_one(0, r);
	nothing_comes();
	assert_false(over(0, n));
}

static void ranks_on_one_gpu_cannot_submit_tasks(void **state)
{
	(void)state;
	scheduler_shared_gpu = true;
	begin(TRANSPORT_NCCL);
	scheduler_shared_gpu = false;
	const struct svc_record r = on_timeline(record(0, NCCLSVC_ALL_REDUCE, 0), 0, 1);
	const uint64_t a = submit_one(0, r);
	ends(0, a, NCCLSVC_UNSUPPORTED);
	goes_on(0, 1, 1);
	const struct svc_record group[] = {p2p(0, NCCLSVC_SEND, 1, 0), p2p(0, NCCLSVC_RECV, 1, 0)};
	const uint64_t b = submit(1, group, 2);
	ends(1, b, NCCLSVC_UNSUPPORTED);
	ends(1, b + 1, NCCLSVC_UNSUPPORTED);
	assert_int_equal(submit_by_socket(0, record(0, NCCLSVC_BARRIER, 0)), NCCLSVC_UNSUPPORTED);
	end_epoch(0, NCCLSVC_PEER_GONE, 1);
	gone(0);
}

static void a_set_waits_for_room(void **state)
{
	(void)state;
	begin(TRANSPORT_NCCL);
	seen.room = ROOM_LATER;
	const struct svc_record group[] = {record(0, NCCLSVC_ALL_REDUCE, 0),
					   record(0, NCCLSVC_ALL_REDUCE, 0)};
	const struct svc_record other[] = {record(0, NCCLSVC_ALL_REDUCE, 1),
					   record(0, NCCLSVC_ALL_REDUCE, 1)};
	submit(0, group, 2);
	nothing_comes();
	assert_int_equal(seen.reserves, 0);
	submit(1, other, 2);
	becomes(&seen.reserves, 2);
	assert_int_equal(seen.ntasks, 4);
	assert_int_equal(seen.launches, 0);
	seen.room = ROOM_NOW;
	becomes(&seen.launches, 1);
}

static void a_held_set_is_not_asked_for_again_and_again(void **state)
{
	(void)state;
	begin(TRANSPORT_NCCL);
	seen.room = ROOM_HELD;
	submit_one(0, record(0, NCCLSVC_ALL_REDUCE, 0));
	submit_one(1, record(0, NCCLSVC_ALL_REDUCE, 1));
	becomes(&seen.reserves, 1);
	nothing_comes();
	assert_int_equal(seen.reserves, 1);
	assert_int_equal(seen.launches, 0);
}

static void a_set_that_never_fits_is_refused(void **state)
{
	(void)state;
	begin(TRANSPORT_NCCL);
	seen.room = ROOM_NEVER;
	uint64_t a = submit_one(0, record(0, NCCLSVC_ALL_REDUCE, 0));
	uint64_t b = submit_one(1, record(0, NCCLSVC_ALL_REDUCE, 1));
	ends(0, a, NCCLSVC_LIMIT);
	ends(1, b, NCCLSVC_LIMIT);
	assert_int_equal(seen.launches, 0);
}

static void an_epoch_ends_once_and_is_gone_with_its_last_task(void **state)
{
	(void)state;
	begin(TRANSPORT_STAGED);
	uint64_t a = submit_one(0, record(0, NCCLSVC_ALL_REDUCE, 0));
	submit_one(1, record(0, NCCLSVC_ALL_REDUCE, 1));
	becomes(&seen.starts, 1);
	end_epoch(0, NCCLSVC_PEER_GONE, 1);
	becomes(&seen.ends, 1);
	nothing_comes();
	assert_false(over(0, a));
	seen.let_go = true;
	ends(0, a, NCCLSVC_PEER_GONE);
	gone(0);
	assert_int_equal(seen.ends, 1);
}

static void transports_hear_of_devices(void **state)
{
	(void)state;
	const uint32_t devices = seen.devices; /* number from the scheduler's start */
	assert_true(devices >= DEVICES);
}

static int setup_counting(void **state)
{
	memset(&seen, 0, sizeof(seen));
	setup(state);
	if (seen.devices < DEVICES)
		becomes(&seen.devices, DEVICES);
	return 0;
}

static int teardown_counting(void **state)
{
	teardown(state);
	assert_int_equal(seen.finishes, 1);
	return 0;
}

#define TRANSPORT_TEST(name)                                                                       \
	cmocka_unit_test_setup_teardown(name, setup_counting, teardown_counting)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TRANSPORT_TEST(matched_tasks_are_started_and_polled),
		TRANSPORT_TEST(tasks_that_complete_at_once_are_ended_by_the_scheduler),
		TRANSPORT_TEST(inputs_are_waited_for_by_whom_the_flag_says),
		TRANSPORT_TEST(unsupported_reductions_of_a_transport_are_refused),
		TRANSPORT_TEST(ranks_on_one_gpu_cannot_submit_tasks),
		TRANSPORT_TEST(a_set_waits_for_room),
		TRANSPORT_TEST(a_held_set_is_not_asked_for_again_and_again),
		TRANSPORT_TEST(a_set_that_never_fits_is_refused),
		TRANSPORT_TEST(an_epoch_ends_once_and_is_gone_with_its_last_task),
		TRANSPORT_TEST(transports_hear_of_devices),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
