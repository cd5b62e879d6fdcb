/* SPDX-License-Identifier: Apache-2.0
 * The analysis behind `ncclsvc-ctl why`, on situations made here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "why.h"

#define SEC	 UINT64_C(1000000000)
#define WORLD	 1
#define OTHER	 2
#define SESSION	 10 /* of rank 0; pids are 100 above */
#define PID(i)	 (SESSION + 100 + (i))
#define MANY	 100000
#define LIST_MAX 320

/* A situation: processes 0, 1, ..., of one session each. */
static struct scene {
	struct snapshot s;
	ncclsvc_session_info sessions[LIST_MAX];
	ncclsvc_comm_info comms[LIST_MAX];
	ncclsvc_member_info members[LIST_MAX];
	ncclsvc_task_info tasks[LIST_MAX];
	ncclsvc_device_info devices[4];
	ncclsvc_plan_info plans[4];
	ncclsvc_plan_task_info plan_tasks[8];
	char process[LIST_MAX]; /* states */
	struct why_report report;
} scene;

static int set_up(void **state)
{
	(void)state;
	memset(&scene, 0, sizeof(scene));
	scene.s.sessions = scene.sessions;
	scene.s.comms = scene.comms;
	scene.s.members = scene.members;
	scene.s.tasks = scene.tasks;
	scene.s.devices = scene.devices;
	scene.s.plans = scene.plans;
	scene.s.plan_tasks = scene.plan_tasks;
	scene.s.daemon.pid = 77;
	memset(scene.process, 'S', sizeof(scene.process));
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	why_free(&scene.report);
	return 0;
}

static void processes(int n)
{
	for (int i = 0; i < n; i++) {
		ncclsvc_session_info *x = &scene.sessions[scene.s.nsessions++];

		*x = (ncclsvc_session_info){
			.session = SESSION + (uint32_t)i, .pid = PID(i), .age_ns = 100 * SEC};
		snprintf(x->name, sizeof(x->name), "trainer-%d", i);
	}
}

static ncclsvc_comm_info *comm(uint64_t id, uint32_t nranks, const char *label)
{
	ncclsvc_comm_info *x = &scene.comms[scene.s.ncomms++];

	*x = (ncclsvc_comm_info){.comm = id,
				 .nranks = nranks,
				 .joined = nranks,
				 .epoch = 1,
				 .state = NCCLSVC_COMM_READY,
				 .age_ns = 50 * SEC};
	snprintf(x->label, sizeof(x->label), "%s", label);
	return x;
}

static ncclsvc_member_info *member(uint64_t id, int rank, int process, uint64_t submitted)
{
	ncclsvc_member_info *x = &scene.members[scene.s.nmembers++];

	*x = (ncclsvc_member_info){.comm = id,
				   .rank = rank,
				   .state = NCCLSVC_MEMBER_JOINED,
				   .session = SESSION + (uint32_t)process,
				   .pid = PID(process),
				   .epoch = 1,
				   .device = -1,
				   .submitted = submitted};
	return x;
}

/* The world of n processes, all of whom have submitted this many. */
static void world(int n, uint64_t submitted)
{
	processes(n);
	comm(WORLD, (uint32_t)n, "world");
	for (int i = 0; i < n; i++)
		member(WORLD, i, i, submitted);
}

/* The same with a GPU for each. */
static void gpu_world(int n, uint64_t submitted)
{
	world(n, submitted);
	for (int i = 0; i < n; i++) {
		scene.members[i].device = i;
		scene.devices[i] = (ncclsvc_device_info){
			.device = i, .state = NCCLSVC_DEVICE_READY, .pid = 500 + i};
	}
	scene.s.ndevices = (size_t)n;
}

static ncclsvc_task_info *task(uint64_t id, int rank, int process, unsigned op, uint64_t seq,
			       unsigned task_state, double seconds)
{
	ncclsvc_task_info *x = &scene.tasks[scene.s.ntasks++];
	uint32_t nranks = 0;

	for (size_t i = 0; i < scene.s.ncomms; i++)
		if (scene.comms[i].comm == id)
			nranks = scene.comms[i].nranks;
	*x = (ncclsvc_task_info){.task = scene.s.ntasks,
				 .comm = id,
				 .seq = seq,
				 .count = 1048576,
				 .bytes = 4194304,
				 .op = (uint8_t)op,
				 .type = NCCLSVC_FLOAT32,
				 .state = (uint8_t)task_state,
				 .rank = rank,
				 .peer = -1,
				 .pid = PID(process),
				 .session = SESSION + (uint32_t)process,
				 .epoch = 1,
				 .nranks = nranks,
				 .age_ns = (uint64_t)(seconds * 1e9),
				 .state_ns = (uint64_t)(seconds * 1e9)};
	return x;
}

static void waits(ncclsvc_task_info *t, int32_t rank)
{
	if (t->waits_count < NCCLSVC_MISSING_SHOWN)
		t->waits_for[t->waits_count] = rank;
	t->waits_count++;
}

/* A collective that waits for one rank. */
static void waiting(uint64_t id, int rank, int process, uint64_t seq, double seconds,
		    int32_t for_rank)
{
	waits(task(id, rank, process, NCCLSVC_ALL_REDUCE, seq, NCCLSVC_WAITING_PEERS, seconds),
	      for_rank);
}

static void p2p(uint64_t id, int rank, int process, unsigned op, uint64_t seq, int32_t peer)
{
	ncclsvc_task_info *t = task(id, rank, process, op, seq, NCCLSVC_WAITING_PEERS, 5);

	t->peer = peer;
	waits(t, peer);
}

static char process_state(int32_t pid, void *arg)
{
	const struct scene *s = arg;

	assert_in_range(pid, PID(0), PID(LIST_MAX - 1));
	return s->process[pid - PID(0)];
}

static const struct why_report *analyse(void)
{
	struct why_input in = {&scene.s, SEC, process_state, &scene};

	snapshot_order(&scene.s);
	why_analyse(&in, &scene.report);
	for (size_t i = 0; i < scene.report.n; i++)
		print_message("  %s\n", scene.report.findings[i].text);
	return &scene.report;
}

static const struct why_finding *only(enum why_cause cause)
{
	const struct why_report *r = analyse();

	assert_int_equal(r->n, 1);
	if (r->findings[0].cause != cause)
		fail_msg("%s, not %s", why_cause_name(r->findings[0].cause), why_cause_name(cause));
	return &r->findings[0];
}

static void says(const struct why_finding *f, const char *what)
{
	if (!strstr(f->text, what))
		fail_msg("\"%s\" is not in \"%s\"", what, f->text);
}

static void blames(const struct why_finding *f, size_t i, uint64_t id, int32_t rank, int32_t pid,
		   const char *member_state)
{
	assert_true(i < f->nculprits);
	assert_int_equal(f->culprits[i].comm, id);
	assert_int_equal(f->culprits[i].rank, rank);
	assert_int_equal(f->culprits[i].pid, pid);
	assert_string_equal(f->culprits[i].state, member_state);
}

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
		"Communicator world (id 1, 4 ranks) has waited 12.3 s at AllReduce #7 (float32, "
		"1048576 elements): ranks 0, 1 and 3 have submitted it; rank 2 (pid 112, "
		"trainer-2) "
		"has not: its last task there was #6 (done), and it is alive. It has nothing "
		"queued: look at what pid 112 is doing.");
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

/* Without a view of the processes, nothing is claimed about them. */
static void test_missing_unseen(void **state)
{
	struct why_input in = {&scene.s, SEC, NULL, NULL};

	(void)state;
	world(2, 0);
	waiting(WORLD, 0, 0, 0, 2, 1);
	why_analyse(&in, &scene.report);
	assert_int_equal(scene.report.n, 1);
	says(&scene.report.findings[0], "it has submitted nothing there yet, and it is connected");
}

static void test_missing_many(void **state)
{
	(void)state;
	world(20, 1);
	ncclsvc_task_info *t = task(WORLD, 0, 0, NCCLSVC_BARRIER, 1, NCCLSVC_WAITING_PEERS, 2);
	for (int32_t i = 1; i < 20; i++)
		waits(t, i);
	scene.process[13] = 'T';
	const struct why_finding *f = only(WHY_STOPPED);
	assert_int_equal(f->nculprits, 19);
	blames(f, 12, WORLD, 13, PID(13), "stopped");
	says(f, "rank 13 (pid 123, trainer-13) has not: its process is stopped");
	says(f, "and 16 more ranks have not");
	says(f, "Continue it with `kill -CONT 123`, or end it.");
}

static void test_stopped(void **state)
{
	(void)state;
	world(2, 4);
	waiting(WORLD, 0, 0, 4, 3, 1);
	scene.process[1] = 'T';
	const struct why_finding *f = only(WHY_STOPPED);
	says(f, "rank 1 (pid 111, trainer-1) has not: its process is stopped (state T)");
	says(f, "kill -CONT 111");
	blames(f, 0, WORLD, 1, PID(1), "stopped");
}

static void test_zombie(void **state)
{
	(void)state;
	world(2, 4);
	waiting(WORLD, 0, 0, 4, 3, 1);
	scene.process[1] = 'Z';
	says(only(WHY_DEAD), "its process has died");
}

static void test_disk(void **state)
{
	(void)state;
	world(2, 4);
	waiting(WORLD, 0, 0, 4, 3, 1);
	scene.process[1] = 'D';
	says(only(WHY_MISSING), "uninterruptible wait (state D)");
}

/* 0 waits for 1 in the world; 1 waits for 2 in another communicator; 2 does nothing. */
static void test_chain(void **state)
{
	(void)state;
	world(3, 5);
	comm(OTHER, 2, "split of 1");
	member(OTHER, 0, 1, 1);
	member(OTHER, 1, 2, 0);
	waits(task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 5, NCCLSVC_WAITING_PEERS, 9), 1);
	waiting(OTHER, 0, 1, 0, 8, 1);
	const struct why_finding *f = only(WHY_MISSING);
	says(f,
	     "rank 1 (pid 111, trainer-1) has not: it waits itself in communicator split of 1 "
	     "(id 2) at AllReduce #0 for rank 1 there; rank 1 (pid 112, trainer-2) has not: it has "
	     "submitted nothing there yet, and it is alive");
	says(f, "look at what pid 112 is doing");
	says(f, "Held up by the same: communicator split of 1 (id 2) at AllReduce #0 (1 rank).");
	assert_int_equal(f->nculprits, 1);
	blames(f, 0, OTHER, 1, PID(2), "joined");
	assert_int_equal(f->nalso, 1);
	assert_int_equal(f->also[0].comm, OTHER);
}

/* Held up in its own queue of the same communicator, by a Recv. */
static void test_chain_in_queue(void **state)
{
	(void)state;
	world(3, 5);
	waits(task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 5, NCCLSVC_WAITING_PEERS, 9), 1);
	p2p(WORLD, 1, 1, NCCLSVC_RECV, 4, 2);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 5, NCCLSVC_QUEUED, 9);
	const struct why_finding *f = only(WHY_UNMATCHED);
	says(f,
	     "rank 1 (pid 111, trainer-1) has not: it waits itself at Recv #4 for rank 2; rank 2 "
	     "(pid 112, trainer-2) has no Send for it");
	blames(f, 0, WORLD, 2, PID(2), "joined");
}

/* A session that is busy elsewhere, but not held up there, is simply late. */
static void test_busy_elsewhere(void **state)
{
	(void)state;
	world(2, 5);
	comm(OTHER, 2, "other");
	member(OTHER, 0, 0, 1);
	member(OTHER, 1, 1, 1);
	waiting(WORLD, 0, 0, 5, 9, 1);
	waiting(OTHER, 1, 1, 0, 0.001, 0);
	says(only(WHY_MISSING),
	     "Tasks of other communicators go on: look at what pid 111 is doing.");
}

static void test_deadlock(void **state)
{
	(void)state;
	world(2, 5);
	comm(OTHER, 2, "other");
	member(OTHER, 0, 0, 0);
	member(OTHER, 1, 1, 0);
	waiting(WORLD, 0, 0, 5, 9, 1);
	waiting(OTHER, 1, 1, 0, 8, 0);
	const struct why_finding *f = only(WHY_DEADLOCK);
	says(f,
	     "this is a deadlock: rank 0 (pid 110, trainer-0) waits in communicator world (id 1) "
	     "at AllReduce #5 for rank 1 (pid 111, trainer-1), and rank 1 (pid 111, trainer-1) "
	     "waits in communicator other (id 2) at AllReduce #0 for rank 0 (pid 110, trainer-0)");
	assert_int_equal(f->nculprits, 2);
	blames(f, 0, WORLD, 0, PID(0), "joined");
	blames(f, 1, OTHER, 1, PID(1), "joined");
	assert_int_equal(f->nalso, 0);
}

static void test_deadlock_of_sends(void **state)
{
	(void)state;
	world(3, 5);
	p2p(WORLD, 0, 0, NCCLSVC_SEND, 5, 1);
	p2p(WORLD, 1, 1, NCCLSVC_SEND, 5, 2);
	p2p(WORLD, 2, 2, NCCLSVC_SEND, 5, 0);
	const struct why_finding *f = only(WHY_DEADLOCK);
	assert_int_equal(f->nculprits, 3);
	assert_int_equal(f->nalso, 0);
	says(f, "cancel comm 1");
}

/* The rank that waits is not part of the circle it waits for. */
static void test_behind_deadlock(void **state)
{
	(void)state;
	world(3, 5);
	waits(task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 5, NCCLSVC_WAITING_PEERS, 9), 1);
	p2p(WORLD, 1, 1, NCCLSVC_SEND, 5, 2);
	p2p(WORLD, 2, 2, NCCLSVC_SEND, 5, 1);
	const struct why_finding *f = only(WHY_DEADLOCK);
	assert_int_equal(f->nculprits, 2);
	blames(f, 0, WORLD, 1, PID(1), "joined");
	blames(f, 1, WORLD, 2, PID(2), "joined");
}

/* One circle is in the second rank that a task waits for: it must not be overlooked. */
static void test_deadlock_in_branch(void **state)
{
	(void)state;
	world(3, 5);
	ncclsvc_task_info *t = task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 5, NCCLSVC_WAITING_PEERS, 9);
	waits(t, 1);
	waits(t, 2);
	p2p(WORLD, 2, 2, NCCLSVC_RECV, 5, 0);
	const struct why_finding *f = only(WHY_DEADLOCK);
	assert_int_equal(f->nculprits, 2);
	blames(f, 0, WORLD, 0, PID(0), "joined");
	blames(f, 1, WORLD, 2, PID(2), "joined");
}

static void test_unmatched(void **state)
{
	(void)state;
	world(2, 3);
	p2p(WORLD, 0, 0, NCCLSVC_SEND, 3, 1);
	const struct why_finding *f = only(WHY_UNMATCHED);
	says(f, "at Send #3 to rank 1 (float32, 1048576 elements): rank 0 (pid 110, trainer-0) has "
		"submitted it; rank 1 (pid 111, trainer-1) has no Recv for it");
	tear_down(NULL);
	scene.tasks[0].op = NCCLSVC_RECV;
	says(only(WHY_UNMATCHED), "Recv #3 from rank 1");
	says(&scene.report.findings[0], "has no Send for it");
}

/* Each of two ranks plans a Send to and a Recv from the other in group 3; rank has submitted one.
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
	says(f,
	     "rank 0 (pid 110, trainer-0) has submitted it, but of its plan's group 3 it has not "
	     "submitted the Recv from rank 1");
	blames(f, 0, WORLD, 0, PID(0), "joined");
}

static void test_plan_held_elsewhere(void **state)
{
	(void)state;
	world(2, 1);
	planned(0, 0);
	planned(1, NCCLSVC_RECV);
	/* Rank 0 waits for what rank 1 holds; rank 1 is stopped. */
	p2p(WORLD, 0, 0, NCCLSVC_SEND, 0, 1);
	task(WORLD, 1, 1, NCCLSVC_RECV, 0, NCCLSVC_WAITING_GROUP, 4)->peer = 0;
	const struct why_finding *f = only(WHY_PLAN);
	says(f,
	     "rank 1 (pid 111, trainer-1) has no Recv for it: it holds Recv #0, but of its plan's "
	     "group 3 it has not submitted the Send to rank 0");
	blames(f, 0, WORLD, 1, PID(1), "joined");
	why_free(&scene.report);
	scene.process[1] = 'T';
	blames(only(WHY_STOPPED), 0, WORLD, 1, PID(1), "stopped");
}

static void test_plan_idle(void **state)
{
	(void)state;
	world(2, 1);
	planned(1, 0);
	p2p(WORLD, 0, 0, NCCLSVC_SEND, 0, 1);
	says(only(WHY_UNMATCHED),
	     "and it is alive; of its plan's group 3 it has not submitted the Send "
	     "to rank 0 and 1 more");
}

static void test_send_to_itself(void **state)
{
	(void)state;
	world(2, 3);
	p2p(WORLD, 0, 0, NCCLSVC_SEND, 3, 0);
	const struct why_finding *f = only(WHY_UNMATCHED);
	blames(f, 0, WORLD, 0, PID(0), "joined");
	says(f, "belong in one task group");
}

static void test_input(void **state)
{
	(void)state;
	world(3, 3);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_WAITING_INPUT, 6);
	waiting(WORLD, 0, 0, 2, 5, 1);
	waiting(WORLD, 2, 2, 2, 5, 1);
	const struct why_finding *f = only(WHY_INPUT);
	says(f, "rank 1 (pid 111, trainer-1) has submitted it, but its input is not ready");
	blames(f, 0, WORLD, 1, PID(1), "joined");
	assert_int_equal(f->nalso, 1);
	assert_int_equal(f->also[0].nwaiting, 2);
}

static void test_running(void **state)
{
	(void)state;
	world(2, 3);
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	const struct why_finding *f = only(WHY_RUNNING);
	says(f, "ncclsvcd (pid 77) executes it. If that is long for 4.0 MiB");
	assert_int_equal(f->nculprits, 0);
	assert_int_equal(f->nwaiting, 2);
}

/* As above, but the others have waited for longer. */
/* Launched everywhere, and one rank's stream has not come to it. */
static void test_gpu_stream(void **state)
{
	(void)state;
	gpu_world(3, 3);
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_WAITING_INPUT, 6);
	task(WORLD, 2, 2, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	const struct why_finding *f = only(WHY_INPUT);
	assert_string_equal(
		f->text,
		"Communicator world (id 1, 3 ranks) has waited 6.0 s at AllReduce #2 (float32, "
		"1048576 elements): it was launched, and waits on the GPUs for the stream of rank "
		"1 "
		"(pid 111, trainer-1) on device 1: the work that was put there before it has not "
		"ended. Look at what this process runs on its GPU.");
	assert_int_equal(f->nculprits, 1);
	blames(f, 0, WORLD, 1, PID(1), "joined");
	assert_int_equal(f->nwaiting, 3);
	assert_int_equal(f->nalso, 0);
}

/* The rank whose stream is late waits the longest: one finding all the same. */
static void test_gpu_stream_first(void **state)
{
	(void)state;
	gpu_world(2, 3);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_WAITING_INPUT, 7);
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	blames(only(WHY_INPUT), 0, WORLD, 1, PID(1), "joined");
	assert_int_equal(scene.report.findings[0].nalso, 0);
}

/* A daemon that does not tell whose stream is late. */
static void test_gpu_launched(void **state)
{
	(void)state;
	gpu_world(2, 3);
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	const struct why_finding *f = only(WHY_RUNNING);
	says(f, "the workers of the GPUs have launched it for ranks 0 and 1. NCCL runs it, or it "
		"waits there for a rank's stream");
	assert_int_equal(f->nculprits, 0);
}

static void test_gpu_worker_lost(void **state)
{
	(void)state;
	gpu_world(2, 3);
	scene.devices[1].state = NCCLSVC_DEVICE_LOST;
	scene.devices[1].age_ns = 2 * SEC;
	strcpy(scene.devices[1].text, "the worker was ended by signal 9");
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	says(only(WHY_WORKER), "it was launched, and the worker of device 1, where rank 1 (pid "
			       "111, trainer-1) is, is "
			       "lost, and another is to be started; it has been so for 2.0 s (the "
			       "worker was ended by "
			       "signal 9). `ncclsvc-ctl devices`");
}

/* Everybody has joined, and waits for a worker. */
static void test_gpu_joining(void **state)
{
	(void)state;
	gpu_world(2, 0);
	scene.comms[0].state = NCCLSVC_COMM_FORMING;
	scene.members[0].state = scene.members[1].state = NCCLSVC_MEMBER_JOINING;
	scene.members[0].waiting_ns = 3 * SEC;
	scene.devices[0].state = NCCLSVC_DEVICE_STARTING;
	scene.devices[0].age_ns = 3 * SEC;
	says(only(WHY_WORKER), "all ranks have joined, and the worker of device 0, where rank 0 "
			       "(pid 110, trainer-0) is, has been starting for 3.0 s");
	tear_down(NULL);
	scene.devices[0].state = NCCLSVC_DEVICE_READY;
	says(only(WHY_JOINING), "all ranks have joined, and NCCL connects their GPUs");
}

static void test_gpu_broken(void **state)
{
	(void)state;
	gpu_world(2, 4);
	scene.comms[0].state = NCCLSVC_COMM_BROKEN;
	scene.members[0].state = NCCLSVC_MEMBER_JOINING;
	scene.members[0].waiting_ns = 3 * SEC;
	scene.members[1].state = NCCLSVC_MEMBER_BROKEN;
	scene.devices[1].state = NCCLSVC_DEVICE_FAILED;
	const struct why_finding *f = only(WHY_WORKER);
	says(f, "the worker of device 1, where rank 1 (pid 111, trainer-1) is, cannot be used");
	says(f, "Alive, and yet to rejoin: rank 1");
}

static void test_input_of_another(void **state)
{
	(void)state;
	world(3, 3);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_WAITING_INPUT, 5);
	waiting(WORLD, 0, 0, 2, 6, 1);
	waiting(WORLD, 2, 2, 2, 6, 1);
	const struct why_finding *f = only(WHY_INPUT);
	says(f, "rank 1 (pid 111, trainer-1) is not ready: it is at AllReduce #2, whose timeline "
		"nobody has signalled. Look at what makes that input in pid 111.");
	assert_int_equal(f->nalso, 0);
}

/* A rank's first task is behind nothing, yet old: that the daemon hangs must not pass as well. */
static void test_not_started(void **state)
{
	(void)state;
	world(2, 3);
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_QUEUED, 1800);
	says(only(WHY_RUNNING), "has not started it");
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
	scene.process[2] = '\0';
	scene.s.daemon.last_failure.result = NCCLSVC_PEER_GONE;
	scene.s.daemon.last_failure_comm = WORLD;
	scene.s.daemon.last_failure_age_ns = 3 * SEC;
	const struct why_finding *f = only(WHY_DEAD);
	assert_string_equal(
		f->text,
		"Communicator world (id 1, 4 ranks) has been broken for 3.0 s: rank 2 (pid 112) "
		"died. "
		"Ranks 0 and 1 have rejoined and wait. Alive, and yet to rejoin: rank 3 (pid 113, "
		"trainer-3). Rank 2 must join again.");
	assert_int_equal(f->nculprits, 2);
	blames(f, 0, WORLD, 2, PID(2), "dead");
	blames(f, 1, WORLD, 3, PID(3), "broken");
	assert_true(f->age_known);
	tear_down(NULL);
	scene.s.daemon.last_failure_comm = OTHER;
	assert_false(only(WHY_DEAD)->age_known);
	says(&scene.report.findings[0], "is broken: rank 2");
	tear_down(NULL);
	scene.process[2] = 'S';
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

/* Lists are not one moment's: what a task names may be gone from the others. */
static void test_unknown(void **state)
{
	(void)state;
	waiting(WORLD, 0, 0, 3, 5, 1);
	const struct why_finding *f = only(WHY_JOINING);
	says(f, "Communicator 1 (id 1)");
	blames(f, 0, WORLD, 1, 0, "absent");
}

/* A pipeline: its paragraph leaves out the middle. */
static void test_long_chain(void **state)
{
	(void)state;
	world(60, 1);
	for (int i = 0; i < 59; i++)
		p2p(WORLD, i, i, NCCLSVC_SEND, 1, i + 1);
	const struct why_finding *f = only(WHY_UNMATCHED);
	blames(f, 0, WORLD, 59, PID(59), "joined");
	assert_int_equal(f->nalso, 58);
	says(f,
	     "for rank 3; and so on, over 55 ranks; rank 58 (pid 168, trainer-58) has no Recv for "
	     "it: it waits itself at Send #1 for rank 59; rank 59 (pid 169, trainer-59) has no "
	     "Recv for it");
}

/* A chain longer than any path kept still ends, and says that it goes on. */
static void test_endless_chain(void **state)
{
	(void)state;
	world(300, 1);
	for (int i = 0; i < 299; i++)
		p2p(WORLD, i, i, NCCLSVC_SEND, 1, i + 1);
	const struct why_report *r = analyse();
	assert_int_equal(r->n, 2);
	assert_int_equal(r->findings[0].cause, WHY_RUNNING);
	says(&r->findings[0], "which has not ended either");
	blames(&r->findings[1], 0, WORLD, 299, PID(299), "joined");
}

/* 100,000 tasks of two ranks, of which one waits. */
static void test_many(void **state)
{
	ncclsvc_task_info *list = calloc(MANY, sizeof(*list));
	struct why_input in = {&scene.s, SEC, process_state, &scene};
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

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
		TEST(test_chain),
		TEST(test_chain_in_queue),
		TEST(test_busy_elsewhere),
		TEST(test_deadlock),
		TEST(test_deadlock_of_sends),
		TEST(test_behind_deadlock),
		TEST(test_deadlock_in_branch),
		TEST(test_unmatched),
		TEST(test_plan_held),
		TEST(test_plan_held_elsewhere),
		TEST(test_plan_idle),
		TEST(test_send_to_itself),
		TEST(test_input),
		TEST(test_input_of_another),
		TEST(test_gpu_stream),
		TEST(test_gpu_stream_first),
		TEST(test_gpu_launched),
		TEST(test_gpu_worker_lost),
		TEST(test_gpu_joining),
		TEST(test_gpu_broken),
		TEST(test_running),
		TEST(test_not_started),
		TEST(test_forming),
		TEST(test_dead),
		TEST(test_merged),
		TEST(test_oldest_first),
		TEST(test_unknown),
		TEST(test_long_chain),
		TEST(test_endless_chain),
		TEST(test_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
