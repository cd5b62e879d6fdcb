/* SPDX-License-Identifier: Apache-2.0
 * The analysis behind `ncclsvc-ctl why`, on made-up situations: what one task waits for, and how
 * many findings are merged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "why_scene.h"

#define MANY 100000

static void test_nothing(void **state)
{
	(void)state;
	world(2, 3);
	waiting(WORLD, 0, 0, 3, 0.5, 1);
	const struct why_report *r = analyse();
	assert_int_equal(r->n, 0);
	assert_int_equal(r->pending, 1);
	assert_int_equal(r->oldest_ns, SEC / 2);
}

static void test_empty(void **state)
{
	(void)state;
	assert_int_equal(analyse()->n, 0);
	assert_int_equal(scene.report.pending, 0);
}

static void test_missing(void **state)
{
	(void)state;
	world(4, 8);
	scene.members[2].submitted = 7;
	waiting(WORLD, 0, 0, 7, 12.3, 2);
	waiting(WORLD, 1, 1, 7, 12.0, 2);
	waiting(WORLD, 3, 3, 7, 11.0, 2);
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 8, NCCLSVC_QUEUED, 12.1);
	const struct why_finding *f = only(WHY_MISSING);
	assert_string_equal(
		f->text,
		"Ranks 0, 1 and 3 have waited 12.3 s in AllReduce #7 (float32, 1048576 elements) "
		"of communicator world (id 1, 4 ranks) for rank 2 (pid 112, trainer-2), which has "
		"not called it (its last call there was #6). Pid 112 is sleeping. Next: `gdb -p "
		"112 -batch -ex 'thread apply all bt'`.");
	assert_string_equal(f->next, "`gdb -p 112 -batch -ex 'thread apply all bt'`");
	assert_int_equal(f->comm, WORLD);
	assert_int_equal(f->seq, 7);
	assert_string_equal(f->op, "AllReduce");
	assert_int_equal(f->age_ns, 12300000000);
	assert_int_equal(f->nwaiting, 3);
	assert_int_equal(f->waiting[2], 3);
	assert_int_equal(f->nculprits, 1);
	blames(f, 0, WORLD, 2, PID(2), "joined");
	assert_string_equal(f->culprits[0].name, "trainer-2");
	assert_int_equal(f->culprits[0].session, SESSION + 2);
}

/* Without access to the processes, nothing is claimed about them. */
static void test_missing_unseen(void **state)
{
	struct why_input in = {&scene.s, SEC, NULL, NULL};

	(void)state;
	world(2, 0);
	waiting(WORLD, 0, 0, 0, 2, 1);
	why_analyse(&in, &scene.report);
	assert_int_equal(scene.report.n, 1);
	says(&scene.report.findings[0],
	     "which has called nothing there yet. Pid 111 cannot be seen from here: ncclsvc-ctl "
	     "runs in another PID namespace than ncclsvcd. Next: `ncclsvc-ctl why` on the host");
	assert_null(scene.report.findings[0].culprits[0].process);
	assert_null(scene.report.findings[0].culprits[0].next);
}

static void test_missing_many(void **state)
{
	(void)state;
	world(20, 1);
	ncclsvc_task_info *t = task(WORLD, 0, 0, NCCLSVC_BARRIER, 1, NCCLSVC_WAITING_PEERS, 2);
	for (int32_t i = 1; i < 20; i++)
		waits(t, i);
	is(13, PROCESS_STOPPED);
	const struct why_report *r = analyse();
	assert_int_equal(r->n, 2);
	const struct why_finding *f = &r->findings[0];
	assert_int_equal(f->cause, WHY_STOPPED);
	assert_int_equal(f->nculprits, 1);
	blames(f, 0, WORLD, 13, PID(13), "stopped");
	assert_true(f->culprits[0].first);
	says(f, "for rank 13 (pid 123, trainer-13), which has not called it");
	says(f, "Next: `kill -CONT 123`.");
	f = &r->findings[1];
	assert_int_equal(f->cause, WHY_MISSING);
	assert_int_equal(f->nculprits, 18);
	assert_false(f->culprits[0].first);
	says(f, "Barrier #1 of communicator world (id 1) also waits for rank 1 (pid 111, "
		"trainer-1), rank 2 (pid 112, trainer-2), rank 3 (pid 113, trainer-3) and 15 more "
		"ranks, which have not called it.");
}

static void test_stopped(void **state)
{
	(void)state;
	world(2, 4);
	waiting(WORLD, 0, 0, 4, 3, 1);
	is(1, PROCESS_STOPPED);
	const struct why_finding *f = only(WHY_STOPPED);
	says(f, "which has not called it (its last call there was #3). Pid 111 is stopped by a "
		"signal (SIGSTOP or Ctrl-Z). Next: `kill -CONT 111`.");
	blames(f, 0, WORLD, 1, PID(1), "stopped");
}

static void test_zombie(void **state)
{
	(void)state;
	world(2, 4);
	waiting(WORLD, 0, 0, 4, 3, 1);
	is(1, PROCESS_GONE);
	says(only(WHY_DEAD), "rank 1 (pid 111, trainer-1), whose process has ended.");
}

static void test_disk(void **state)
{
	(void)state;
	world(2, 4);
	waiting(WORLD, 0, 0, 4, 3, 1);
	is(1, PROCESS_BLOCKED);
	strcpy(scene.process[1].wchan, "nfs_wait_bit_killable");
	says(only(WHY_MISSING), "Pid 111 waits for a device or file system in the kernel's "
				"nfs_wait_bit_killable (state D: it cannot be interrupted). Next: "
				"`cat /proc/111/stack`.");
}

static void test_unmatched(void **state)
{
	(void)state;
	world(2, 3);
	p2p(WORLD, 0, 0, NCCLSVC_SEND, 3, 1);
	const struct why_finding *f = only(WHY_UNMATCHED);
	says(f, "Rank 0 (pid 110, trainer-0) has waited 5.0 s in Send #3 (float32, 1048576 "
		"elements) of communicator world (id 1, 2 ranks) for rank 1 (pid 111, trainer-1), "
		"which has not called the matching Recv");
	tear_down(NULL);
	scene.tasks[0].op = NCCLSVC_RECV;
	says(only(WHY_UNMATCHED), "in Recv #3 (float32");
	says(&scene.report.findings[0], "which has not called the matching Send");
}

/* Each of two ranks plans a Send to and a Recv from the other in group 3; `rank` has submitted one.
 */
static void planned(int rank, unsigned submitted)
{
	scene.plans[scene.s.nplans++] = (ncclsvc_plan_info){
		.plan = 9, .comm = WORLD, .rank = rank, .groups = 5, .group = 3, .group_tasks = 2};
	for (unsigned op = NCCLSVC_SEND; op <= NCCLSVC_RECV; op++)
		scene.plan_tasks[scene.s.nplan_tasks++] = (ncclsvc_plan_task_info){
			.plan = 9,
			.rank = rank,
			.peer = 1 - rank,
			.group = 3,
			.task = op - NCCLSVC_SEND,
			.op = (uint8_t)op,
			.state = op == submitted ? NCCLSVC_PLAN_ENQUEUED : NCCLSVC_PLAN_MISSING};
}

static void test_plan_held(void **state)
{
	(void)state;
	world(2, 1);
	planned(0, NCCLSVC_SEND);
	planned(1, NCCLSVC_RECV);
	task(WORLD, 0, 0, NCCLSVC_SEND, 0, NCCLSVC_WAITING_GROUP, 5)->peer = 1;
	const struct why_finding *f = only(WHY_PLAN);
	says(f, "Rank 0 (pid 110, trainer-0) has waited 5.0 s in Send #0 to rank 1");
	says(f, ": it has not called the Recv from rank 1 in its plan's group 3. Pid 110 is");
	blames(f, 0, WORLD, 0, PID(0), "joined");
	/* Tasks are named by their labels, if they have any. */
	why_free(&scene.report);
	snprintf(scene.tasks[0].label, NCCLSVC_LABEL_BYTES, "grad");
	snprintf(scene.plan_tasks[1].label, NCCLSVC_LABEL_BYTES, "a\033ct");
	f = only(WHY_PLAN);
	says(f, "Send #0 \"grad\"");
	says(f, "it has not called the Recv \"a?ct\" from rank 1");
	/* A list may also be waiting for its shapes. */
	why_free(&scene.report);
	scene.plan_tasks[1].ahead = 1;
	says(only(WHY_PLAN),
	     "it has not called the Recv \"a?ct\" from rank 1 in its plan's group 3 "
	     "(or it waits for the shapes)");
}

static void test_plan_held_elsewhere(void **state)
{
	(void)state;
	world(2, 1);
	planned(0, 0);
	planned(1, NCCLSVC_RECV);
	/* Rank 0 waits for a task that rank 1 holds back; rank 1 is stopped. */
	p2p(WORLD, 0, 0, NCCLSVC_SEND, 0, 1);
	task(WORLD, 1, 1, NCCLSVC_RECV, 0, NCCLSVC_WAITING_GROUP, 4)->peer = 0;
	const struct why_finding *f = only(WHY_PLAN);
	says(f,
	     "for rank 1 (pid 111, trainer-1), which has called Recv #0 but not the Send to rank 0 "
	     "in its plan's group 3.");
	blames(f, 0, WORLD, 1, PID(1), "joined");
	why_free(&scene.report);
	is(1, PROCESS_STOPPED);
	blames(only(WHY_STOPPED), 0, WORLD, 1, PID(1), "stopped");
}

static void test_plan_idle(void **state)
{
	(void)state;
	world(2, 1);
	planned(1, 0);
	p2p(WORLD, 0, 0, NCCLSVC_SEND, 0, 1);
	says(only(WHY_UNMATCHED),
	     "which has not called the matching Recv (its last call there was #0), nor the Send to "
	     "rank 0 in its plan's group 3 and 1 more.");
}

static void test_send_to_itself(void **state)
{
	(void)state;
	world(2, 3);
	p2p(WORLD, 0, 0, NCCLSVC_SEND, 3, 0);
	const struct why_finding *f = only(WHY_UNMATCHED);
	blames(f, 0, WORLD, 0, PID(0), "joined");
	says(f, "belong in one group");
}

static void test_input(void **state)
{
	(void)state;
	world(3, 3);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_WAITING_INPUT, 6);
	waiting(WORLD, 0, 0, 2, 5, 1);
	waiting(WORLD, 2, 2, 2, 5, 1);
	const struct why_finding *f = only(WHY_INPUT);
	says(f, "Rank 1 (pid 111, trainer-1) has waited 6.0 s in AllReduce #2 (float32, 1048576 "
		"elements) of communicator world (id 1, 3 ranks) for input: nobody has signalled "
		"its timeline.");
	blames(f, 0, WORLD, 1, PID(1), "joined");
	assert_int_equal(f->nalso, 1);
	assert_int_equal(f->also[0].nwaiting, 2);
}

/* As above, but the others have waited longer. */
static void test_input_of_another(void **state)
{
	(void)state;
	world(3, 3);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_WAITING_INPUT, 5);
	waiting(WORLD, 0, 0, 2, 6, 1);
	waiting(WORLD, 2, 2, 2, 6, 1);
	const struct why_finding *f = only(WHY_INPUT);
	says(f, "for rank 1 (pid 111, trainer-1), which has called AllReduce #2, but nobody has "
		"signalled its timeline.");
	assert_int_equal(f->nalso, 0);
}

static void test_running(void **state)
{
	(void)state;
	world(2, 3);
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	const struct why_finding *f = only(WHY_RUNNING);
	says(f, "All ranks have called AllReduce #2 (float32, 1048576 elements) of communicator "
		"world (id 1, 2 ranks), and ncclsvcd (pid 77) has been executing it for 6.0 s. "
		"Next: `top -H -p 77`.");
	assert_int_equal(f->nculprits, 0);
	assert_int_equal(f->nwaiting, 2);
}

/* A rank's first task waits for nothing, yet is old: a hanging daemon must not be reported as well.
 */
static void test_not_started(void **state)
{
	(void)state;
	world(2, 3);
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_QUEUED, 1800);
	says(only(WHY_RUNNING),
	     "although no rank is missing: ncclsvcd (pid 77) has not started it.");
}

static void test_forming(void **state)
{
	(void)state;
	processes(2);
	comm(WORLD, 3, "world")->state = NCCLSVC_COMM_FORMING;
	scene.comms[0].age_ns = 1000 * SEC;
	member(WORLD, 0, 0, 0)->state = NCCLSVC_MEMBER_JOINING;
	member(WORLD, 1, 1, 0)->state = NCCLSVC_MEMBER_JOINING;
	member(WORLD, 2, 2, 0)->state = NCCLSVC_MEMBER_ABSENT;
	scene.members[2].session = 0;
	scene.members[2].pid = 0;
	const struct why_finding *f = only(WHY_JOINING);
	says(f, "has waited 1m40s for its ranks: ranks 0 and 1 have joined; rank 2 has not.");
	assert_null(f->op);
	assert_int_equal(f->nwaiting, 2);
	blames(f, 0, WORLD, 2, 0, "absent");
	tear_down(NULL);
	/* Younger than the threshold. */
	scene.sessions[0].age_ns = scene.sessions[1].age_ns = SEC / 2;
	assert_int_equal(analyse()->n, 0);
}

static void test_dead(void **state)
{
	(void)state;
	world(4, 6);
	scene.comms[0].state = NCCLSVC_COMM_BROKEN;
	scene.members[0].state = NCCLSVC_MEMBER_JOINING;
	scene.members[1].state = NCCLSVC_MEMBER_JOINING;
	scene.members[2].state = NCCLSVC_MEMBER_DEAD;
	scene.members[2].session = 0;
	scene.members[3].state = NCCLSVC_MEMBER_BROKEN;
	is(2, PROCESS_GONE);
	scene.s.daemon.last_failure.result = NCCLSVC_PEER_GONE;
	scene.s.daemon.last_failure_comm = WORLD;
	scene.s.daemon.last_failure_age_ns = 3 * SEC;
	const struct why_finding *f = only(WHY_DEAD);
	assert_string_equal(
		f->text,
		"Communicator world (id 1, 4 ranks) has been broken for 3.0 s: rank 2 (pid 112) "
		"died. Ranks 0 and 1 have rejoined and wait. Rank 3 (pid 113, trainer-3) has not "
		"rejoined yet. Next: `ncclsvc-ctl comms --members --comm 1` shows who has "
		"rejoined; start rank 2 again.");
	/* Rank 3 is alive and has nothing to rejoin until rank 2 is back. */
	assert_int_equal(f->nculprits, 1);
	blames(f, 0, WORLD, 2, PID(2), "dead");
	assert_true(f->age_known);
	tear_down(NULL);
	scene.s.daemon.last_failure_comm = OTHER;
	assert_false(only(WHY_DEAD)->age_known);
	says(&scene.report.findings[0], "is broken: rank 2");
	tear_down(NULL);
	is(2, PROCESS_SLEEPING);
	says(only(WHY_DEAD), "rank 2 (pid 112) ended its session.");
}

/* Many communicators, one culprit: one paragraph. */
static void test_merged(void **state)
{
	(void)state;
	processes(2);
	for (uint64_t id = 1; id <= 8; id++) {
		comm(id, 2, "c");
		member(id, 0, 0, 1);
		member(id, 1, 1, 0);
		waiting(id, 0, 0, 0, 2 + (double)id, 1);
	}
	const struct why_finding *f = only(WHY_MISSING);
	assert_int_equal(f->comm, 8);
	assert_int_equal(f->nalso, 7);
	says(f, "and 4 more.");
}

static void test_oldest_first(void **state)
{
	(void)state;
	world(4, 2);
	comm(OTHER, 2, "other");
	member(OTHER, 0, 2, 1);
	member(OTHER, 1, 3, 0);
	p2p(WORLD, 0, 0, NCCLSVC_SEND, 2, 1);
	waiting(OTHER, 0, 2, 0, 60, 1);
	const struct why_report *r = analyse();
	assert_int_equal(r->n, 2);
	assert_int_equal(r->findings[0].comm, OTHER);
	assert_int_equal(r->findings[1].comm, WORLD);
}

/* The lists are read at different times: a task may name an object that the other lists lack. */
static void test_unknown(void **state)
{
	(void)state;
	waiting(WORLD, 0, 0, 3, 5, 1);
	const struct why_finding *f = only(WHY_JOINING);
	says(f, "communicator 1 (id 1)");
	blames(f, 0, WORLD, 1, 0, "absent");
}

/* 100,000 tasks of two ranks, of which one waits. */
static void test_many(void **state)
{
	ncclsvc_task_info *list = calloc(MANY, sizeof(*list));
	struct why_input in = {&scene.s, SEC, look, &scene};
	struct timespec a, b;

	(void)state;
	assert_non_null(list);
	world(2, MANY);
	waiting(WORLD, 0, 0, 0, 5, 1);
	for (size_t i = 0; i < MANY; i++) {
		list[i] = scene.tasks[0];
		list[i].task = MANY - i;
		list[i].seq = MANY - 1 - i;
		list[i].state = i == MANY - 1 ? NCCLSVC_WAITING_PEERS : NCCLSVC_QUEUED;
	}
	scene.s.tasks = list;
	scene.s.ntasks = MANY;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
	why_analyse(&in, &scene.report);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
	free(list);
	assert_int_equal(scene.report.n, 1);
	assert_int_equal(scene.report.pending, MANY);
	print_message("%ld ms\n", (b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000);
}

/* ---- Requests of all members ---- */

static void test_split(void **state)
{
	(void)state;
	world(4, 3);
	for (int i = 0; i < 3; i++) {
		scene.members[i].request = NCCLSVC_REQUEST_SPLIT;
		scene.members[i].request_ms = 5000;
	}
	const struct why_finding *f = only(WHY_MISSING);
	blames(f, 0, WORLD, 3, PID(3), "joined");
	assert_int_equal(f->nculprits, 1);
	assert_int_equal(f->nwaiting, 3);
	says(f, "Ranks 0, 1 and 2 have waited 5.0 s in Split of communicator world (id 1, 4 ranks) "
		"for "
		"rank 3 (pid 113, trainer-3), which has not called it.");
	never_says(f, "#");
}

static void test_plan_end(void **state)
{
	(void)state;
	world(2, 3);
	scene.members[0].request = NCCLSVC_REQUEST_PLAN;
	scene.members[0].request_ms = 2000;
	is(1, PROCESS_STOPPED);
	const struct why_finding *f = only(WHY_STOPPED);
	blames(f, 0, WORLD, 1, PID(1), "stopped");
	says(f, "Rank 0 has waited 2.0 s in PlanEnd of");
	says(f, "Next: `kill -CONT 111`.");
}

static void test_young_split(void **state)
{
	(void)state;
	world(2, 3);
	scene.members[0].request = NCCLSVC_REQUEST_SPLIT;
	scene.members[0].request_ms = 900;
	assert_int_equal(analyse()->n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_nothing),
		TEST(test_empty),
		TEST(test_missing),
		TEST(test_missing_unseen),
		TEST(test_missing_many),
		TEST(test_stopped),
		TEST(test_zombie),
		TEST(test_disk),
		TEST(test_unmatched),
		TEST(test_plan_held),
		TEST(test_plan_held_elsewhere),
		TEST(test_plan_idle),
		TEST(test_send_to_itself),
		TEST(test_input),
		TEST(test_input_of_another),
		TEST(test_running),
		TEST(test_not_started),
		TEST(test_forming),
		TEST(test_dead),
		TEST(test_merged),
		TEST(test_oldest_first),
		TEST(test_unknown),
		TEST(test_many),
		TEST(test_split),
		TEST(test_plan_end),
		TEST(test_young_split),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
