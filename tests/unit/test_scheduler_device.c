/* SPDX-License-Identifier: Apache-2.0
 * The scheduler and GPUs: what it puts into the workers' queues, and when. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "scheduler_gpus.h"

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
	run_to(0, 1);
	ends(0, a, 0);
	assert_false(over(1, b));
	run_to(1, 1);
	ends(1, b, 0);
}

/* Groups connect pairs: 0 -> 1, 1 -> 2, 2 -> 3. */
static void a_chain_of_groups_waits_for_its_last_link(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 4; i++)
		add_trainer(i);
	START(0, 4, LIST(0, 1, 2, 3), LIST(0, 1, 2, 3));
	const struct svc_record one[] = {p2p(0, NCCLSVC_RECV, 1, 0), p2p(0, NCCLSVC_SEND, 1, 2)};
	const struct svc_record two[] = {p2p(0, NCCLSVC_SEND, 2, 3), p2p(0, NCCLSVC_RECV, 2, 1)};
	uint64_t a = submit_one(0, p2p(0, NCCLSVC_SEND, 0, 1));
	uint64_t b = submit(1, one, 2);
	uint64_t c = submit(2, two, 2);
	nothing_comes();
	uint64_t d = submit_one(3, p2p(0, NCCLSVC_RECV, 3, 2));
	launched(0, 1);
	launched(1, 2);
	launched(2, 2);
	launched(3, 1);
	assert_int_equal(launch(1, 0)->flags, LAUNCH_MORE);
	assert_int_equal(launch(1, 1)->flags, 0);
	assert_int_equal(launch(2, 0)->flags, LAUNCH_MORE);
	for (uint32_t i = 0; i < 4; i++)
		run_to(i, i == 1 || i == 2 ? 2 : 1);
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
	START(0, 2, LIST(0, 0), LIST(0, 1));
	struct svc_record group[8];
	for (uint32_t i = 0; i < 8; i++)
		group[i] = record(i % 2 * COMMS, NCCLSVC_ALL_REDUCE, i % 2);
	uint64_t first = submit(0, group, 8);
	for (uint32_t d = 0; d < 2; d++) {
		launched(d, 4);
		for (uint64_t i = 0; i < 4; i++)
			assert_int_equal(launch(d, i)->flags, i < 3 ? LAUNCH_MORE : 0);
		run_to(d, 4);
	}
	for (unsigned i = 0; i < 8; i++)
		ends(0, first + i, 0);
}

/* Trainer 0 has operations of both communicators in one group; trainer 2 comes late. */
static void a_group_does_not_connect_communicators(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 3; i++)
		add_trainer(i);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	START(1, 2, LIST(0, 2), LIST(0, 2));
	const struct svc_record group[] = {p2p(0, NCCLSVC_SEND, 0, 1),
					   record(1, NCCLSVC_ALL_REDUCE, 0),
					   p2p(0, NCCLSVC_SEND, 0, 1)};
	const struct svc_record other[] = {p2p(0, NCCLSVC_RECV, 1, 0), p2p(0, NCCLSVC_RECV, 1, 0)};
	uint64_t a = submit(0, group, 3);
	uint64_t b = submit(1, other, 2);
	launched(0, 2);
	launched(1, 2);
	assert_int_equal(launch(0, 0)->flags, LAUNCH_MORE);
	assert_int_equal(launch(0, 1)->flags, 0);
	run_to(0, 2);
	run_to(1, 2);
	ends(0, a, 0);
	ends(0, a + 2, 0);
	ends(1, b, 0);
	assert_false(over(0, a + 1));
	uint64_t c = submit_one(2, record(1, NCCLSVC_ALL_REDUCE, 2));
	run_to(0, 3);
	run_to(2, 1);
	ends(0, a + 1, 0);
	ends(2, c, 0);
}

static void unmet_mates_do_not_hold_a_group_up_for_good(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 3; i++)
		add_trainer(i);
	START(0, 3, LIST(0, 1, 2), LIST(0, 1, 2));
	struct svc_record group[] = {on_timeline(p2p(0, NCCLSVC_SEND, 0, 1), 0, 1),
				     on_timeline(p2p(0, NCCLSVC_SEND, 0, 2), 0, 2)};
	group[1].timeout_ns = 50000000;
	uint64_t a = submit(0, group, 2);
	uint64_t b = submit_one(1, p2p(0, NCCLSVC_RECV, 1, 0));
	/* The first task matched its peer; the group's second did not, and times out. */
	ends(0, a + 1, NCCLSVC_TIMEOUT);
	assert_int_equal(svc_status_slot(trainers[0].ring, ENTRIES, a + 1)->missing_count, 1);
	assert_int_equal(svc_status_slot(trainers[0].ring, ENTRIES, a + 1)->missing[0], 2);
	goes_on(0, 2, 1);
	run_to(0, 1);
	run_to(1, 1);
	ends(0, a, 0);
	ends(1, b, 0);
	/* A rank that comes too late gets the same result. */
	uint64_t c = submit_one(2, p2p(0, NCCLSVC_RECV, 2, 0));
	ends(2, c, NCCLSVC_TIMEOUT);
	nothing_comes();
}

/* Trainer 0 submits a group with trainer 1 and with trainer 2, which does not come. */
static void half_met(uint64_t timeout_ns, uint64_t *a, uint64_t *b)
{
	const struct svc_record group[] = {on_timeline(p2p(0, NCCLSVC_SEND, 0, 1), 0, 1),
					   on_timeline(p2p(0, NCCLSVC_SEND, 0, 2), 0, 2)};
	struct svc_record other = on_timeline(p2p(0, NCCLSVC_RECV, 1, 0), 1, 1);
	other.timeout_ns = timeout_ns;
	for (uint32_t i = 0; i < 3; i++)
		add_trainer(i);
	START(0, 3, LIST(0, 1, 2), LIST(0, 1, 2));
	*a = submit(0, group, 2);
	*b = submit_one(1, other);
}

/* A rank that matched an incomplete group does not wait forever, and the group's other task
 * continues. */
static void matched_groups_have_a_deadline(void **state)
{
	(void)state;
	uint64_t a, b;
	half_met(50000000, &a, &b);
	ends(1, b, NCCLSVC_TIMEOUT);
	ends(0, a, NCCLSVC_TIMEOUT);
	goes_on(1, 1, 1);
	nothing_comes();
	assert_false(over(0, a + 1));
	uint64_t c = submit_one(2, p2p(0, NCCLSVC_RECV, 2, 0));
	run_to(0, 1);
	run_to(2, 1);
	ends(0, a + 1, 0);
	ends(2, c, 0);
}

static void an_epoch_ends_what_met_and_was_not_launched(void **state)
{
	(void)state;
	uint64_t a, b;
	half_met(0, &a, &b);
	nothing_comes();
	end_epoch(0, NCCLSVC_WORKER_LOST, 1);
	ends(0, a, NCCLSVC_WORKER_LOST);
	ends(0, a + 1, NCCLSVC_WORKER_LOST);
	ends(1, b, NCCLSVC_WORKER_LOST);
	goes_on(0, 1, 1);
	goes_on(0, 2, 1);
	goes_on(1, 1, 1);
}

/* A rank whose own worker is lost is notified too; one that has gone is not notified about itself.
 */
static void all_ranks_learn_of_a_lost_worker(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 3; i++)
		add_trainer(i);
	START(0, 3, LIST(0, 1, 2), LIST(0, 1, 2));
	uint64_t a = submit_one(0, record(0, NCCLSVC_ALL_REDUCE, 0));
	uint64_t b = submit_one(1, record(0, NCCLSVC_ALL_REDUCE, 1));
	nothing_comes();
	end_epoch(0, NCCLSVC_WORKER_LOST, 1);
	ends(0, a, NCCLSVC_WORKER_LOST);
	ends(1, b, NCCLSVC_WORKER_LOST);
}

static void comes_to(uint32_t trainer, uint64_t value)
{
	for (uint64_t until = now_ns() + WAIT_NS; atomic_load(&line(trainer, 1)->done) < value;)
		assert_true(now_ns() < until);
}

/* Launches two trainers' first three tasks. Returns trainer 0's last one. */
static uint64_t three_in_flight(void)
{
	uint64_t a = 0;
	add_trainer(0);
	add_trainer(1);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	for (int i = 0; i < 3; i++) {
		a = submit_one(0, on_timeline(record(0, NCCLSVC_ALL_REDUCE, 0), 0, 1));
		submit_one(1, on_timeline(record(0, NCCLSVC_ALL_REDUCE, 1), 1, 1));
	}
	launched(0, 3);
	launched(1, 3);
	return a;
}

/* A refused task must not overtake tasks in flight. */
static void refuse_one(void)
{
	struct svc_record bad = on_timeline(record(0, NCCLSVC_ALL_REDUCE, 0), 0, 1);
	bad.src_offset = BYTES;
	ends(0, submit_one(0, bad), NCCLSVC_INVALID_ARGUMENT);
	assert_int_equal(atomic_load(&line(0, 1)->done), 0);
}

/* A GPU may still write for failed tasks: their clients are notified, but their streams wait. */
static void streams_wait_for_what_flies(void **state)
{
	(void)state;
	stop_clock(); /* streams are released after a while */
	uint64_t a = three_in_flight();
	refuse_one();
	/* The same for a task that ends with the epoch. */
	uint64_t c = submit_one(0, on_timeline(record(0, NCCLSVC_ALL_REDUCE, 0), 0, 1));
	end_epoch(0, NCCLSVC_PEER_GONE, 1);
	ends(0, a, NCCLSVC_PEER_GONE);
	ends(0, c, NCCLSVC_PEER_GONE);
	quiet();
	assert_int_equal(atomic_load(&line(0, 1)->done), 0);
	run_to(0, 3);
	comes_to(0, 5);
	assert_int_equal(atomic_load(&line(1, 1)->done), 0);
	/* Trainer 1's tasks are aborted. */
	command((struct command){.kind = COMMAND_EPOCH_DEAD, .epoch_end = {.comm = 0}});
	struct event ev;
	uint64_t until = now_ns() + WAIT_NS;
	do
		assert_true(now_ns() < until);
	while (!next_event_of(scheduler, &ev) || ev.kind != EVENT_EPOCH_GONE);
	assert_int_equal(atomic_load(&line(1, 1)->done), 3);
}

/* Checks that both devices have had n launches in total. */
static void launched_soon(uint64_t n)
{
	for (uint64_t until = now_ns() + WAIT_NS; head(0) < n || head(1) < n;)
		assert_true(now_ns() < until);
}

/* The GPUs abort tasks in flight as soon as the supervisor has notified the scheduler. An aborted
 * task must not count as a success. */
static void aborted_tasks_have_failed(void **state)
{
	(void)state;
	add_trainer(0);
	add_trainer(1);
	for (uint64_t i = 1; i <= 1000; i++) {
		struct event ev;
		START(0, 2, LIST(0, 1), LIST(0, 1));
		uint64_t a = submit_one(0, record(0, NCCLSVC_ALL_REDUCE, 0));
		uint64_t b = submit_one(1, record(0, NCCLSVC_ALL_REDUCE, 1));
		launched_soon(i);
		if (i % 2) /* the scheduler may be asleep or awake */
			pause_ns((long)(i % 64) * 1000);
		end_epoch(0, NCCLSVC_WORKER_LOST, 1);
		run_to(0, i);
		run_to(1, i);
		ends(0, a, NCCLSVC_WORKER_LOST);
		ends(1, b, NCCLSVC_WORKER_LOST);
		for (uint64_t until = now_ns() + WAIT_NS;
		     !next_event_of(scheduler, &ev) || ev.kind != EVENT_EPOCH_GONE;)
			assert_true(now_ns() < until);
	}
}

/* Streams do not wait forever. A GPU's later writes stay below the value its stream waits for. */
static void streams_do_not_wait_for_ever(void **state)
{
	(void)state;
	uint64_t a = three_in_flight(), begin = now_ns();
	refuse_one();
	quiet(); /* it has read the clock since */
	end_epoch(0, NCCLSVC_PEER_GONE, 1);
	ends(0, a, NCCLSVC_PEER_GONE);
	comes_to(0, 4);
	comes_to(1, 3);
	assert_true(now_ns() - begin > UINT64_C(900000000));
	run_to(0, 3);
	comes_to(0, 4);
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
	quiet();
	assert_int_equal(atomic_load(&line(0, 1)->ready), 0);
	end_epoch(0, NCCLSVC_PEER_GONE, 1);
	command((struct command){.kind = COMMAND_EPOCH_RELEASE, .epoch_end = {.comm = 0}});
	for (uint64_t until = now_ns() + WAIT_NS; !atomic_load(&line(1, 1)->ready);)
		assert_true(now_ns() < until);
	assert_int_equal(atomic_load(&line(0, 1)->ready), 1);
}

/* Two slots between the same devices, submitted crosswise: one order for both workers. */
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
		/* Group sizes match on both sides, in any order of the communicators. */
		uint32_t n = next[t][k] % 3 + 1;
		if (n > ROUNDS - next[t][k])
			n = ROUNDS - next[t][k];
		struct svc_record group[3];
		for (uint32_t i = 0; i < n; i++)
			group[i] = record(k, NCCLSVC_ALL_REDUCE, t);
		submit(t, group, n);
		next[t][k] += n;
		sent[t] += n;
		run_to(0, head(0));
		run_to(1, head(1));
	}
	for (uint64_t until = now_ns() + WAIT_NS; head(0) < 4 * ROUNDS || head(1) < 4 * ROUNDS;) {
		assert_true(now_ns() < until);
		run_to(0, head(0));
		run_to(1, head(1));
	}
	for (uint64_t i = 0; i < 4 * ROUNDS; i++) {
		assert_int_equal(launch(0, i)->slot, launch(1, i)->slot);
		assert_int_equal(launch(0, i)->seq, launch(1, i)->seq);
		assert_int_equal(launch(0, i)->flags, launch(1, i)->flags);
	}
}

/* One worker hangs, and its queue is full: other GPUs' workers still get their launches. */
static void a_full_queue_holds_up_nobody_else(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 4; i++)
		add_trainer(i);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	START(1, 2, LIST(2, 3), LIST(2, 3));
	START(2, 2, LIST(0, 1), LIST(0, 1));
	/* The queue looks as if other launches had filled it. */
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
	/* The queue has room for one launch, which the first task gets. */
	atomic_store(&gpus[0].queue->tail, (uint64_t)1 - WORKER_LAUNCHES);
	submit_one(2, record(1, NCCLSVC_ALL_REDUCE, 2));
	launched(0, 1);
	assert_int_equal(launch(0, 0)->slot, 0);
	atomic_store(&gpus[0].queue->tail, 0);
	submit_one(3, record(1, NCCLSVC_ALL_REDUCE, 3));
	launched(0, 2);
	run_to(0, 2);
	run_to(1, 2);
	ends(0, a, 0);
}

/* Groups that depend on each other until no queue can hold them. */
static void groups_that_can_never_be_launched_are_refused(void **state)
{
	enum { GROUPS = 3, TASKS = SVC_GROUP_TASKS - 1, ALL = GROUPS * TASKS };
	static struct svc_record group[SVC_GROUP_TASKS];
	(void)state;
	/* Ranks 0 to 2 on device 0, 3 to 5 on device 1; k sends to k + 3, and the groups are
	 * connected. */
	for (uint32_t i = 0; i < 6; i++)
		add_trainer(i);
	START(0, 6, LIST(0, 1, 2, 3, 4, 5), LIST(0, 0, 0, 1, 1, 1));
	assert_true(ALL > WORKER_LAUNCHES);
	uint64_t last[6];
	for (uint32_t t = 0; t < 6; t++) {
		static const int32_t link[6] = {4, 5, -1, -1, 0, 1};
		const uint8_t op = t < 3 ? NCCLSVC_SEND : NCCLSVC_RECV;
		unsigned n = 0;
		for (; n < TASKS; n++)
			group[n] = p2p(0, op, t / 3, t < 3 ? (int32_t)t + 3 : (int32_t)t - 3);
		if (link[t] >= 0)
			group[n++] = p2p(0, op, t / 3, link[t]);
		last[t] = submit(t, group, n) + n - 1;
	}
	for (uint32_t t = 0; t < 6; t++) {
		ends(t, 1, NCCLSVC_LIMIT);
		ends(t, last[t], NCCLSVC_LIMIT);
	}
	assert_int_equal(head(0), 0);
	/* The next one works as usual. */
	uint64_t a = submit_one(0, p2p(0, NCCLSVC_SEND, 0, 3));
	submit_one(3, p2p(0, NCCLSVC_RECV, 1, 0));
	run_to(0, 1);
	run_to(1, 1);
	ends(0, a, 0);
}

/* The trainer dies: the GPU must not wait for input that never comes. */
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
	end_epoch(0, NCCLSVC_PEER_GONE, 1);
	command((struct command){.kind = COMMAND_SESSION_DEL, .session = 1});
	for (uint64_t until = now_ns() + WAIT_NS; !atomic_load(&line(1, 1)->ready);)
		assert_true(now_ns() < until);
	assert_int_equal(atomic_load(&line(0, 1)->ready), 0);
	ends(0, a, NCCLSVC_PEER_GONE);
	run_to(0, 1);
	run_to(1, 1);
	struct event ev;
	bool session = false, epoch = false;
	for (uint64_t until = now_ns() + WAIT_NS; !session || !epoch;) {
		assert_true(now_ns() < until);
		if (!next_event_of(scheduler, &ev))
			continue;
		session = session || ev.kind == EVENT_SESSION_GONE;
		epoch = epoch || ev.kind == EVENT_EPOCH_GONE;
	}
}

/* Creates a communicator between the workers of devices 0 and 1, as their 3rd and 5th. */
static void make(uint64_t number)
{
	struct creation *k = calloc(1, sizeof(*k) + 2 * sizeof(k->parts[0]));
	assert_non_null(k);
	*k = (struct creation){.number = number, .comm_slot = 7, .nnodes = 1, .nparts = 2};
	k->parts[0].generation = 3;
	k->parts[1].device = 1;
	k->parts[1].generation = 5;
	command((struct command){.kind = COMMAND_MAKE, .creation = k});
}

static void check_made(uint32_t device, uint64_t i, uint64_t number)
{
	const struct launch *l = launch(device, i);
	assert_int_equal(l->op, LAUNCH_INIT);
	assert_int_equal(l->slot, 7);
	assert_int_equal(l->value, number);
	assert_int_equal(l->generation, device ? 5 : 3);
	assert_int_equal(l->flags, 0);
}

static void both_sum(void)
{
	for (uint32_t i = 0; i < 2; i++)
		submit_one(i, record(0, NCCLSVC_ALL_REDUCE, i));
}

/* Workers wait for each other in a creation, so all must have it behind the same launches. */
static void communicators_are_made_in_the_order_of_launches(void **state)
{
	(void)state;
	add_trainer(0);
	add_trainer(1);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	both_sum();
	launched(0, 1);
	launched(1, 1);
	make(42);
	launched(0, 2);
	launched(1, 2);
	both_sum();
	for (uint32_t i = 0; i < 2; i++) {
		launched(i, 3);
		check_made(i, 1, 42);
		assert_int_equal(launch(i, 2)->op, NCCLSVC_ALL_REDUCE);
	}
	assert_int_equal(head(2), 0);
}

static void none_is_made_where_a_queue_is_full(void **state)
{
	(void)state;
	_Atomic uint64_t *tail = &gpus[1].queue->tail;
	atomic_store(tail, head(1) - WORKER_LAUNCHES);
	make(1);
	make(2);
	nothing_comes();
	command((struct command){.kind = COMMAND_MAKE_NOT, .creation_number = 1});
	command((struct command){.kind = COMMAND_MAKE_NOT, .creation_number = 3}); /* unknown */
	nothing_comes();
	atomic_store(tail, head(1));
	for (uint32_t i = 0; i < 2; i++) {
		launched(i, 1);
		check_made(i, 0, 2);
	}
	nothing_comes();
}

/* A timeline that starts again, as when another stream has taken it over. */
static void a_reused_timeline_owes_no_completions(void **state)
{
	(void)state;
	add_trainer(0);
	add_trainer(1);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	for (unsigned round = 1; round <= 2; round++) {
		uint64_t n = round == 1 ? 5 : 1, last = 0;
		for (uint64_t i = 0; i < n; i++) {
			last = submit_one(0, on_timeline(record(0, NCCLSVC_ALL_REDUCE, 0), 0, 1));
			submit_one(1, record(0, NCCLSVC_ALL_REDUCE, 1));
		}
		launched(0, round == 1 ? 5 : 6);
		run_to(0, round == 1 ? 5 : 6);
		run_to(1, round == 1 ? 5 : 6);
		ends(0, last, 0);
		quiet(); /* nothing writes to the timeline any more */
		assert_int_equal(atomic_load(&line(0, 1)->done), n);
		atomic_store(&line(0, 1)->done, 0);
		trainers[0].values[1] = 0;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCHEDULER_TEST(a_reused_timeline_owes_no_completions),
		SCHEDULER_TEST(a_task_is_launched_when_all_have_met),
		SCHEDULER_TEST(a_chain_of_groups_waits_for_its_last_link),
		SCHEDULER_TEST(a_group_is_one_group_on_each_of_its_devices),
		SCHEDULER_TEST(a_group_does_not_connect_communicators),
		SCHEDULER_TEST(unmet_mates_do_not_hold_a_group_up_for_good),
		SCHEDULER_TEST(matched_groups_have_a_deadline),
		SCHEDULER_TEST(an_epoch_ends_what_met_and_was_not_launched),
		SCHEDULER_TEST(all_ranks_learn_of_a_lost_worker),
		SCHEDULER_TEST(streams_wait_for_what_flies),
		SCHEDULER_TEST(aborted_tasks_have_failed),
		SCHEDULER_TEST(streams_do_not_wait_for_ever),
		SCHEDULER_TEST(inputs_are_released_only_after_the_epoch),
		SCHEDULER_TEST(workers_launch_in_one_order),
		SCHEDULER_TEST(a_full_queue_holds_up_nobody_else),
		SCHEDULER_TEST(groups_that_can_never_be_launched_are_refused),
		SCHEDULER_TEST(a_dead_trainers_input_is_there),
		SCHEDULER_TEST(communicators_are_made_in_the_order_of_launches),
		SCHEDULER_TEST(none_is_made_where_a_queue_is_full),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
