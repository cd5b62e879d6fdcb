/* SPDX-License-Identifier: Apache-2.0
 * Tasks that a stream starts (sched/queue/captured_groups.h), from clients that follow the rules,
 * and from others, which only harm themselves. */
#include "scheduler_gpus.h"

#define LINE 1 /* the timeline that the tests use */

static struct svc_record captured(uint32_t comm, uint32_t device, uint64_t number)
{
	struct svc_record r = record(comm, NCCLSVC_ALL_REDUCE, device);
	r.flags = SVC_TASK_TIMELINE | SVC_TASK_CAPTURED_GROUP;
	r.timeline = LINE;
	r.value = number;
	return r;
}

static void keep(uint32_t trainer, uint32_t comm, uint64_t number)
{
	assert_int_equal(submit_by_socket(trainer, captured(comm, trainer, number)), 0);
}

/* The stream writes the number. */
static void arrive(uint32_t trainer, uint64_t number)
{
	atomic_store(&line(trainer, LINE)->ready, number);
}

/* The graph with that number is gone. */
static void forget(uint32_t trainer, uint64_t number)
{
	command((struct command){.kind = COMMAND_CAPTURED_GROUP_DEL,
				 .session = trainer,
				 .captured_group = {.timeline = LINE, .value = number}});
}

/* The stream reads the word, and clears it. */
static void comes_back(uint32_t trainer)
{
	goes_on(trainer, LINE, SVC_CAPTURED_GROUP_DONE);
	atomic_store(&line(trainer, LINE)->done, 0);
}

/* Waits until the timeline says that it runs nothing more. */
static void dies(uint32_t trainer)
{
	for (uint64_t until = now_ns() + WAIT_NS;
	     atomic_load(&line(trainer, LINE)->done) < SVC_CAPTURED_GROUP_DEAD; pause_ns(100000))
		assert_true(now_ns() < until);
}

/* Waits until the client may reuse the timeline. */
static void is_let_go(uint32_t trainer)
{
	for (uint64_t until = now_ns() + WAIT_NS;
	     atomic_load(&line(trainer, LINE)->captured_groups); pause_ns(100000))
		assert_true(now_ns() < until);
}

/* Communicator 0 between trainers 0 and 1, and 1 between 2 and 3. */
static void start_two(void)
{
	for (uint32_t i = 0; i < 4; i++)
		add_trainer(i);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	START(1, 2, LIST(2, 3), LIST(2, 3));
}

static struct event next_event(enum event_kind kind)
{
	struct event ev;
	for (uint64_t until = now_ns() + WAIT_NS;
	     !next_event_of(scheduler, &ev) || ev.kind != kind;)
		assert_true(now_ns() < until);
	return ev;
}

/* Checks that the bystanders' communicator works. */
static void others_go_on(void)
{
	const uint64_t before = head(2);
	const uint64_t a = submit_one(2, record(1, NCCLSVC_ALL_REDUCE, 2));
	const uint64_t b = submit_one(3, record(1, NCCLSVC_ALL_REDUCE, 3));
	run_to(2, before + 1);
	run_to(3, before + 1);
	ends(2, a, 0);
	ends(3, b, 0);
}

/* ---- By the rules ---- */

static void a_kept_group_runs_whenever_its_number_arrives(void **state)
{
	(void)state;
	start_two();
	keep(0, 0, 7);
	keep(1, 0, 9);
	for (uint64_t round = 1; round <= 3; round++) {
		arrive(0, 7);
		nothing_comes();
		arrive(1, 9);
		launched(0, round);
		launched(1, round);
		assert_int_equal(launch(0, round - 1)->flags, LAUNCH_CAPTURED);
		run_to(0, round);
		run_to(1, round);
		comes_back(0);
		comes_back(1);
		assert_int_equal(atomic_load(&line(0, LINE)->ready), 0);
	}
}

static void the_next_operation_is_launched_early(void **state)
{
	(void)state;
	start_two();
	for (uint32_t i = 0; i < 2; i++) {
		keep(i, 0, 1);
		keep(i, 0, 2);
	}
	arrive(0, 1);
	arrive(1, 1);
	launched(0, 2);
	launched(1, 2);
	assert_int_equal(launch(0, 1)->flags, LAUNCH_CAPTURED | LAUNCH_AHEAD);
	run_to(0, 1);
	run_to(1, 1);
	comes_back(0);
	comes_back(1);
	arrive(0, 2);
	arrive(1, 2);
	nothing_comes(); /* it is there already */
	run_to(0, 2);
	run_to(1, 2);
	comes_back(0);
	comes_back(1);
}

/* How many events of that kind arrive within a moment. */
static unsigned events_of(enum event_kind kind)
{
	struct event ev;
	unsigned n = 0;
	quiet();
	while (next_event_of(scheduler, &ev))
		n += ev.kind == kind;
	return n;
}

/* Its last operation has run before its number is seen. */
static void a_graph_is_gone_early(void **state)
{
	(void)state;
	start_two();
	for (uint32_t i = 0; i < 2; i++) {
		keep(i, 0, 1);
		keep(i, 0, 2);
		arrive(i, 1);
	}
	launched(0, 2);
	launched(1, 2);
	for (uint32_t i = 0; i < 2; i++) {
		run_to(i, 1);
		comes_back(i);
	}
	run_to(0, 2);
	run_to(1, 2);
	for (uint32_t i = 0; i < 2; i++) {
		comes_back(i);
		for (uint64_t n = 1; n <= 2; n++)
			forget(i, n);
		arrive(i, 2);
	}
	nothing_comes();
	assert_int_equal(events_of(EVENT_CAPTURED_GROUP_FAILED), 0);
	others_go_on();
}

static void an_eager_task_runs_once(void **state)
{
	(void)state;
	start_two();
	const uint64_t a = submit_one(0, captured(0, 0, 5)), b = submit_one(1, captured(0, 1, 5));
	nothing_comes();
	arrive(0, 5);
	arrive(1, 5);
	run_to(0, 1);
	run_to(1, 1);
	ends(0, a, 0);
	ends(1, b, 0);
	comes_back(0);
	arrive(0, 5); /* it is over */
	assert_int_equal(next_event(EVENT_CAPTURED_GROUP_FAILED).tasks.comm, 0);
	others_go_on();
}

/* ---- Against the rules ---- */

/* The supervisor is notified only of the first such number. */
static void numbers_that_nobody_keeps(void **state)
{
	static const uint64_t numbers[] = {8, UINT32_MAX, SVC_CAPTURED_GROUP_DEAD | 7, UINT64_MAX};
	(void)state;
	start_two();
	keep(0, 0, 7);
	keep(1, 0, 7);
	for (uint32_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		struct svc_record r = captured(0, 0, 7);
		r.timeline = LINE + i;
		assert_int_equal(submit_by_socket(0, r), 0);
		atomic_store(&line(0, LINE + i)->ready, numbers[i]);
		assert_int_equal(next_event(EVENT_CAPTURED_GROUP_FAILED).tasks.comm, 0);
		atomic_store(&line(0, LINE + i)->ready, numbers[i]);
		assert_int_equal(events_of(EVENT_CAPTURED_GROUP_FAILED), 0);
		others_go_on();
	}
	nothing_comes();
	end_epoch(0, NCCLSVC_PROTOCOL, 0);
	next_event(EVENT_EPOCH_GONE);
	assert_true(atomic_load(&line(0, LINE)->done) >= SVC_CAPTURED_GROUP_DEAD);
	arrive(0, 7); /* no longer read */
	others_go_on();
	assert_int_equal(head(0), 0);
}

static void a_number_has_one_group(void **state)
{
	(void)state;
	start_two();
	keep(0, 0, 7);
	keep(1, 0, 7);
	const uint64_t once = submit_one(0, captured(0, 0, 8));
	nothing_comes(); /* the ring has been read */
	assert_int_equal(submit_by_socket(0, captured(0, 0, 8)), NCCLSVC_INVALID_ARGUMENT);
	assert_false(over(0, once));
	arrive(0, 7);
	arrive(1, 7);
	launched(0, 1);
	run_to(0, 1);
	comes_back(0);
	/* A stream may wait for a task in the ring, so its communicator and timeline must end. */
	ends(0, submit_one(0, captured(0, 0, 7)), NCCLSVC_INVALID_ARGUMENT);
	assert_int_equal(next_event(EVENT_CAPTURED_GROUP_FAILED).tasks.comm, 0);
	run_to(1, 1);
	end_epoch(0, NCCLSVC_PROTOCOL, 0);
	goes_on(0, LINE, SVC_CAPTURED_GROUP_DEAD);
	others_go_on();
}

static void a_group_is_of_one_kind_and_number(void **state)
{
	(void)state;
	start_two();
	const struct svc_record plain = record(0, NCCLSVC_ALL_REDUCE, 0);
	struct svc_record groups[][2] = {{captured(0, 0, 1), plain},
					 {plain, captured(0, 0, 1)},
					 {captured(0, 0, 1), captured(0, 0, 2)}};
	for (uint32_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
		for (unsigned k = 0; k < 2; k++) /* each refusal has its own timeline */
			groups[i][k].timeline += groups[i][k].timeline ? i : 0;
		const uint64_t first = submit(0, groups[i], 2);
		ends(0, first, NCCLSVC_INVALID_ARGUMENT);
		ends(0, first + 1, NCCLSVC_INVALID_ARGUMENT);
	}
	nothing_comes();
	others_go_on();
}

static void a_timeline_is_of_one_communicator(void **state)
{
	(void)state;
	start_two();
	START(2, 2, LIST(0, 2), LIST(0, 2));
	keep(0, 0, 1);
	assert_int_equal(submit_by_socket(0, captured(2, 0, 2)), NCCLSVC_INVALID_ARGUMENT);
	ends(0, submit_one(0, captured(2, 0, 2)), NCCLSVC_INVALID_ARGUMENT);
}

static void records_that_cannot_be(void **state)
{
	struct svc_record bad[5];
	(void)state;
	start_two();
	for (size_t i = 0; i < 5; i++)
		bad[i] = captured(0, 0, 1);
	bad[0].value = 0;
	bad[1].value = SVC_CAPTURED_GROUP_DEAD;
	bad[2].timeline = SVC_TIMELINES;
	bad[3].count = UINT64_MAX / 2;
	bad[4].src_region = 77;
	for (size_t i = 0; i < 5; i++) {
		assert_int_not_equal(submit_by_socket(0, bad[i]), 0);
		const uint64_t n = submit_one(0, bad[i]);
		ends(0, n, NCCLSVC_INVALID_ARGUMENT);
	}
	arrive(0, 1); /* no timeline is watched */
	others_go_on();
	assert_int_equal(atomic_load(&line(0, LINE)->ready), 1);
}

static void groups_and_users_have_limits(void **state)
{
	(void)state;
	start_two();
	for (uint32_t i = 0; i < SVC_GROUP_TASKS; i++)
		keep(0, 0, 1);
	assert_int_equal(submit_by_socket(0, captured(0, 0, 1)), NCCLSVC_INVALID_ARGUMENT);
	for (uint32_t i = SVC_GROUP_TASKS; i < USER_TASKS; i++)
		keep(0, 0, 2 + i);
	assert_int_equal(submit_by_socket(0, captured(0, 0, 1 << 20)), NCCLSVC_LIMIT);
	ends(0, submit_one(0, captured(0, 0, 1 << 21)), NCCLSVC_LIMIT);
	others_go_on();
}

static void nothing_is_deleted_that_is_not_kept(void **state)
{
	static const struct svc_captured_group_del none[] = {
		{.timeline = SVC_TIMELINES, .value = 7},
		{.timeline = UINT32_MAX, .value = 7},
		{.timeline = 2, .value = 7},
		{.timeline = LINE, .value = 8},
		{.timeline = LINE, .value = 5}};
	(void)state;
	start_two();
	keep(0, 0, 7);
	keep(1, 0, 7);
	const uint64_t once = submit_one(0, captured(0, 0, 5));
	nothing_comes();
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		command((struct command){.kind = COMMAND_CAPTURED_GROUP_DEL,
					 .session = 0,
					 .captured_group = none[i]});
	arrive(0, 7);
	arrive(1, 7);
	launched(0, 1);
	assert_false(over(0, once));
	run_to(0, 1);
	comes_back(0);
	forget(0, 7);
	arrive(0, 7);
	next_event(EVENT_CAPTURED_GROUP_FAILED);
}

static void a_session_that_ends_leaves_nothing(void **state)
{
	(void)state;
	start_two();
	keep(0, 0, 7);
	submit_one(0, captured(0, 0, 5));
	nothing_comes();
	end_epoch(0, NCCLSVC_PEER_GONE, 0);
	command((struct command){.kind = COMMAND_SESSION_DEL, .session = 0});
	next_event(EVENT_SESSION_GONE);
	others_go_on();
	command((struct command){.kind = COMMAND_QUIET});
	next_event(EVENT_QUIET);
	command((struct command){.kind = COMMAND_DRAIN});
	next_event(EVENT_DRAINED);
}

/* A member leaves when the GPU has finished its operation, but nobody has noticed. */
static void a_member_leaves_as_its_operation_ends(void **state)
{
	(void)state;
	start_two();
	keep(0, 0, 7);
	keep(1, 0, 9);
	arrive(0, 7);
	arrive(1, 9);
	launched(0, 1);
	launched(1, 1);
	command((struct command){.kind = COMMAND_MEMBER_LEFT, .left = {0, 0}});
	quiet();
	run_to(0, 1);
	run_to(1, 1);
	quiet();
	/* The stream clears the low half. */
	atomic_fetch_and(&line(0, LINE)->done, ~UINT64_C(0xffffffff));
	dies(0);
}

/* The epoch ends while the GPU runs one operation, and the next one is already launched. */
static void no_stream_goes_on_before_what_is_ahead_has_ended(void **state)
{
	(void)state;
	start_two();
	for (uint32_t i = 0; i < 2; i++) {
		keep(i, 0, 1);
		keep(i, 0, 2);
		arrive(i, 1);
	}
	launched(0, 2);
	launched(1, 2);
	end_epoch(0, NCCLSVC_PEER_GONE, 1);
	quiet();
	run_to(0, 1);
	run_to(1, 1);
	comes_back(0);
	quiet();
	assert_int_equal(atomic_load(&line(0, LINE)->done), 0);
	run_to(0, 2);
	run_to(1, 2);
	goes_on(0, LINE, SVC_CAPTURED_GROUP_DEAD);
	next_event(EVENT_EPOCH_GONE);
}

/* The client may reuse the timeline when the epoch no longer uses it. */
static void a_timeline_is_let_go(void **state)
{
	(void)state;
	start_two();
	_Atomic uint32_t *captured_groups = &line(0, LINE)->captured_groups;
	atomic_store(captured_groups, 1);
	atomic_store(&line(1, LINE)->captured_groups, 1);
	keep(0, 0, 7);
	keep(1, 0, 9);
	arrive(0, 7);
	arrive(1, 9);
	launched(0, 1);
	launched(1, 1);
	end_epoch(0, NCCLSVC_PEER_GONE, 1);
	quiet();
	assert_int_equal(atomic_load(captured_groups), 1);
	run_to(0, 1);
	run_to(1, 1);
	next_event(EVENT_EPOCH_GONE);
	for (uint32_t i = 0; i < 2; i++) {
		dies(i);
		is_let_go(i);
	}
	/* Late records make it owe completions again. */
	ends(0, submit_one(0, captured(0, 0, 8)), NCCLSVC_PEER_GONE);
	START(0, 2, LIST(0, 1), LIST(0, 1));
	assert_int_equal(submit_by_socket(0, captured(0, 0, 7)), NCCLSVC_INVALID_ARGUMENT);
	for (uint32_t i = 0; i < 2; i++) {
		atomic_store(&line(i, LINE)->ready, 0);
		atomic_store(&line(i, LINE)->done, 0);
		atomic_store(&line(i, LINE)->captured_groups, 1);
		keep(i, 0, 3);
		arrive(i, 3);
	}
	run_to(0, 2);
	run_to(1, 2);
	comes_back(0);
	comes_back(1);
	assert_int_equal(atomic_load(captured_groups), 1);
}

/* Two ranks of one session: one leaves, and the other's captured groups continue. */
static void another_rank_of_the_session_leaves(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 4; i++)
		add_trainer(i);
	START(0, 3, LIST(0, 0, 1), LIST(0, 1, 2));
	struct svc_record send = p2p(COMMS, NCCLSVC_SEND, 1, 2);
	send.flags = SVC_TASK_TIMELINE | SVC_TASK_CAPTURED_GROUP;
	send.timeline = LINE;
	send.value = 7;
	assert_int_equal(submit_by_socket(0, send), 0);
	struct svc_record recv = p2p(0, NCCLSVC_RECV, 2, 1);
	recv.flags = SVC_TASK_TIMELINE | SVC_TASK_CAPTURED_GROUP;
	recv.timeline = LINE;
	recv.value = 7;
	assert_int_equal(submit_by_socket(1, recv), 0);
	for (int i = 1; i <= 2; i++) {
		arrive(0, 7);
		arrive(1, 7);
		run_to(1, (uint64_t)i);
		run_to(2, (uint64_t)i);
		comes_back(0);
		comes_back(1);
		if (i == 1)
			command((struct command){.kind = COMMAND_MEMBER_LEFT, .left = {0, 0}});
		quiet();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCHEDULER_TEST(a_kept_group_runs_whenever_its_number_arrives),
		SCHEDULER_TEST(the_next_operation_is_launched_early),
		SCHEDULER_TEST(a_graph_is_gone_early),
		SCHEDULER_TEST(an_eager_task_runs_once),
		SCHEDULER_TEST(numbers_that_nobody_keeps),
		SCHEDULER_TEST(a_number_has_one_group),
		SCHEDULER_TEST(a_group_is_of_one_kind_and_number),
		SCHEDULER_TEST(a_timeline_is_of_one_communicator),
		SCHEDULER_TEST(records_that_cannot_be),
		SCHEDULER_TEST(groups_and_users_have_limits),
		SCHEDULER_TEST(nothing_is_deleted_that_is_not_kept),
		SCHEDULER_TEST(a_session_that_ends_leaves_nothing),
		SCHEDULER_TEST(a_member_leaves_as_its_operation_ends),
		SCHEDULER_TEST(no_stream_goes_on_before_what_is_ahead_has_ended),
		SCHEDULER_TEST(a_timeline_is_let_go),
		SCHEDULER_TEST(another_rank_of_the_session_leaves),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
