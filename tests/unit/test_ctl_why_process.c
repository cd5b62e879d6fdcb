/* SPDX-License-Identifier: Apache-2.0
 * What `ncclsvc-ctl why` says about the culprit's process, and which command it suggests next;
 * several faults in one place; the length of the output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "views/view.h"
#include "why_scene.h"

/* Rank 0 of two waits for rank 1. */
static struct process *late(enum process_state process_state)
{
	world(2, 4);
	waiting(WORLD, 0, 0, 4, 3, 1);
	return is(1, process_state);
}

static void test_running(void **state)
{
	(void)state;
	struct process *p = late(PROCESS_RUNNING);
	p->cpu = 100;
	p->python = true;
	says(only(WHY_MISSING), "Pid 111 is running (100 % CPU). Next: `py-spy dump --pid 111`.");
}

static void test_sleeping(void **state)
{
	(void)state;
	strcpy(late(PROCESS_SLEEPING)->wchan, "pipe_read");
	says(only(WHY_MISSING), "Pid 111 is sleeping in the kernel's pipe_read. Next: `gdb -p 111 "
				"-batch -ex 'thread apply all bt'`.");
}

/* SIGCONT would not help, and might upset the debugger. */
static void test_traced(void **state)
{
	(void)state;
	struct process *p = late(PROCESS_TRACED);
	p->tracer = 55;
	strcpy(p->tracer_name, "gdb");
	const struct why_finding *f = only(WHY_STOPPED);
	says(f, "Pid 111 is held by the debugger gdb (pid 55). Next: `ps -fp 55`, and let it "
		"continue or detach in that debugger.");
	never_says(f, "CONT");
}

static void test_frozen(void **state)
{
	(void)state;
	strcpy(late(PROCESS_FROZEN)->cgroup, "/sys/fs/cgroup/job");
	const struct why_finding *f = only(WHY_STOPPED);
	says(f, "Pid 111 is frozen by its cgroup. Next: `echo 0 > "
		"/sys/fs/cgroup/job/cgroup.freeze`.");
	never_says(f, "CONT");
}

static void test_leaderless(void **state)
{
	(void)state;
	struct process *p = late(PROCESS_LEADERLESS);
	p->threads = 2;
	p->thread = 113;
	says(only(WHY_MISSING), "Pid 111's main thread has ended, but 2 of its threads still run. "
				"Next: `gdb -p 113 -batch -ex 'thread apply all bt'`.");
}

/* The daemon does not see the process: its pid is 0. */
static void test_other_namespace(void **state)
{
	(void)state;
	late(PROCESS_SLEEPING);
	scene.members[1].pid = scene.sessions[1].pid = 0;
	const struct why_finding *f = only(WHY_MISSING);
	says(f, "Rank 1's process cannot be seen from here: it is in another PID namespace. Next: "
		"`ncclsvc-ctl sessions`.");
	assert_null(f->culprits[0].process);
}

static void test_hidden(void **state)
{
	(void)state;
	late(PROCESS_UNSEEN);
	says(only(WHY_MISSING), "Pid 111 cannot be seen from here: /proc hides it. Next: "
				"`sudo ncclsvc-ctl why`.");
}

/* A pid of another node's rank is not looked up on this one. */
static void test_other_node(void **state)
{
	(void)state;
	late(PROCESS_STOPPED);
	nodes(2);
	scene.members[1].elsewhere = 2;
	const struct why_finding *f = only(WHY_MISSING);
	assert_null(f->culprits[0].process);
	never_says(f, "stopped");
	says(f, "Next: `ncclsvc-ctl why` on host host-1 (node 1).");
}

/* ---- GPUs' workers ---- */

static void test_stopped_worker(void **state)
{
	(void)state;
	world(2, 3);
	scene.s.ndevices = 2;
	for (int i = 0; i < 2; i++) {
		scene.members[i].device = i;
		scene.devices[i] = (ncclsvc_device_info){
			.device = i, .state = NCCLSVC_DEVICE_READY, .pid = PID(20 + i)};
		task(WORLD, i, i, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	}
	is(21, PROCESS_STOPPED);
	const struct why_finding *f = only(WHY_WORKER);
	says(f, "but the worker of device 1 (pid 131), which serves rank 1 (pid 111, trainer-1), "
		"does not run. Pid 131 is stopped by a signal (SIGSTOP or Ctrl-Z). Next: `kill "
		"-CONT 131`.");
	assert_int_equal(f->nculprits, 0);
	assert_int_equal(f->worker, PID(21));
	/* Kernels of the trainers need no worker. */
	why_free(&scene.report);
	scene.tasks[0].kernel = scene.tasks[1].kernel = 3;
	only(WHY_RUNNING);
	/* A rank that waits for its worker has called nothing yet, and is not to blame. */
	why_free(&scene.report);
	scene.s.ntasks = 0;
	waiting(WORLD, 0, 0, 3, 5, 1);
	f = only(WHY_WORKER);
	assert_int_equal(f->nculprits, 0);
	says(f, "which has not called it (its last call there was #2); the worker of device 1 (pid "
		"131), which serves rank 1 (pid 111, trainer-1), does not run.");
	says(f, "Next: `kill -CONT 131`.");
}

/* ---- Several faults ---- */

/* Rank 2 is stopped, ranks 3 and 4 have never called, rank 1 waits for rank 2 itself. */
static void faults(void)
{
	world(5, 4);
	comm(OTHER, 2, "other");
	member(OTHER, 0, 1, 1);
	member(OTHER, 1, 2, 0);
	waiting(OTHER, 0, 1, 0, 4, 1);
	ncclsvc_task_info *t = task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 4, NCCLSVC_WAITING_PEERS, 5);
	for (int32_t rank = 1; rank < 5; rank++)
		waits(t, rank);
	is(2, PROCESS_STOPPED);
	is(3, PROCESS_RUNNING);
}

static void test_two_faults(void **state)
{
	(void)state;
	faults();
	const struct why_report *r = analyse();
	assert_int_equal(r->n, 2);
	const struct why_finding *f = &r->findings[0];
	assert_int_equal(f->cause, WHY_STOPPED);
	assert_int_equal(f->nculprits, 1);
	blames(f, 0, WORLD, 2, PID(2), "stopped");
	assert_true(f->culprits[0].first);
	assert_int_equal(f->nalso, 1);
	says(f, "Next: `kill -CONT 112`.");
	f = &r->findings[1];
	assert_int_equal(f->cause, WHY_MISSING);
	assert_int_equal(f->nculprits, 2);
	blames(f, 0, WORLD, 3, PID(3), "joined");
	blames(f, 1, WORLD, 4, PID(4), "joined");
	assert_false(f->culprits[0].first);
	says(f, "AllReduce #4 of communicator world (id 1) also waits for rank 3 (pid 113, "
		"trainer-3) and rank 4 (pid 114, trainer-4), which have not called it.");
}

static void test_several_stopped(void **state)
{
	(void)state;
	world(4, 4);
	ncclsvc_task_info *t = task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 4, NCCLSVC_WAITING_PEERS, 5);
	for (int32_t rank = 1; rank < 4; rank++) {
		waits(t, rank);
		is(rank, PROCESS_STOPPED);
	}
	says(only(WHY_STOPPED), "Next: `kill -CONT 111 112 113`.");
}

/* ---- As JSON and as text ---- */

static char *show(bool json)
{
	struct ctl_args args = {.command = CTL_WHY, .json = json, .rank = -1, .pid = -1};
	struct text out = TEXT_INIT(-1);
	struct view v = {.args = &args, .s = &scene.s, .out = &out, .time = "now", .host = "here"};
	view_why(&v, &scene.report);
	return text_steal(&out);
}

static void shows(const char *text, const char *what)
{
	if (!strstr(text, what))
		fail_msg("\"%s\" is not in \"%s\"", what, text);
}

static void test_json(void **state)
{
	(void)state;
	faults();
	scene.process[3].cpu = 97;
	analyse();
	char *text = show(true);
	shows(text, "\"node\":0,\"host\":\"here\",\"stuck\":true,\"failed_lately\":false");
	shows(text, "\"rank\":2,\"node\":null,\"pid\":112,\"session\":12,\"name\":\"trainer-2\","
		    "\"state\":"
		    "\"stopped\",\"cause\":\"stopped\",\"first\":true,\"process\":{\"state\":"
		    "\"stopped\",\"cpu_percent\":null,\"wchan\":null,\"tracer\":null},\"next\":"
		    "\"kill -CONT 112\"}");
	shows(text, "\"state\":\"joined\",\"cause\":\"missing\",\"first\":false,\"process\":{"
		    "\"state\":\"running\",\"cpu_percent\":97,");
	shows(text, "\"worker\":null");
	free(text);
	tear_down(NULL);
	nodes(2);
	scene.s.daemon.last_failure.result = NCCLSVC_PEER_GONE;
	scene.s.daemon.last_failure_age_ns = 3599 * SEC;
	analyse();
	text = show(true);
	shows(text, "\"node\":0,\"host\":\"host-0\",");
	shows(text, "\"failed_lately\":true");
	shows(text, "\"last_failure\":{\"result\":\"PEER_GONE\"");
	free(text);
	scene.s.daemon.last_failure_age_ns = 3600 * SEC;
	text = show(true);
	shows(text, "\"failed_lately\":false");
	free(text);
}

/* 64 ranks in 450 communicators; each communicator has another culprit, or all have one. */
static void crowd(bool one, size_t ncomms, ncclsvc_member_info *members, ncclsvc_comm_info *comms,
		  ncclsvc_task_info *tasks)
{
	processes(64);
	scene.s.members = members;
	scene.s.comms = comms;
	scene.s.tasks = tasks;
	for (size_t c = 0; c < ncomms; c++) {
		const int culprit = one ? 7 : (int)(c % 64);
		comms[c] = (ncclsvc_comm_info){.comm = c + 1,
					       .nranks = 64,
					       .joined = 64,
					       .epoch = 1,
					       .state = NCCLSVC_COMM_READY};
		snprintf(comms[c].label, sizeof(comms[c].label), "split of %zu", c);
		for (int i = 0; i < 64; i++) {
			members[scene.s.nmembers++] =
				(ncclsvc_member_info){.comm = c + 1,
						      .rank = i,
						      .state = NCCLSVC_MEMBER_JOINED,
						      .session = SESSION + (uint32_t)i,
						      .pid = PID(i),
						      .device = -1,
						      .submitted = 9};
			if (i == culprit)
				continue;
			ncclsvc_task_info *t = &tasks[scene.s.ntasks++];
			*t = (ncclsvc_task_info){.task = scene.s.ntasks,
						 .comm = c + 1,
						 .seq = 9,
						 .count = 1048576,
						 .type = NCCLSVC_FLOAT32,
						 .op = NCCLSVC_ALL_REDUCE,
						 .state = NCCLSVC_WAITING_PEERS,
						 .rank = i,
						 .pid = PID(i),
						 .session = SESSION + (uint32_t)i,
						 .nranks = 64,
						 .state_ns = 5 * SEC,
						 .waits_count = 1,
						 .waits_for = {culprit}};
		}
	}
	scene.s.ncomms = ncomms;
}

static void test_crowd(void **state)
{
	struct timespec a, b;
	(void)state;
	for (int one = 0; one < 3; one++) {
		ncclsvc_member_info *members = calloc(64 * 450, sizeof(*members));
		ncclsvc_comm_info *comms = calloc(450, sizeof(*comms));
		ncclsvc_task_info *tasks = calloc(64 * 450, sizeof(*tasks));
		struct why_input in = {&scene.s, SEC, look, &scene};
		assert_true(members && comms && tasks);
		set_up(NULL);
		crowd(one == 1, 450, members, comms, tasks);
		if (one == 2) /* no links between communicators: 450 findings */
			for (size_t i = 0; i < scene.s.nmembers; i++)
				members[i].session = members[i].pid = 0;
		is(7, PROCESS_STOPPED);
		snapshot_order(&scene.s);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
		why_analyse(&in, &scene.report);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
		char *text = show(false);
		print_message("%zu findings, %zu bytes, %ld us:\n%s", scene.report.n, strlen(text),
			      (b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000,
			      text);
		assert_in_range(strlen(text), 100, 1500);
		free(text);
		free(members);
		free(comms);
		free(tasks);
		why_free(&scene.report);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_running),    TEST(test_sleeping),	   TEST(test_traced),
		TEST(test_frozen),     TEST(test_leaderless),	   TEST(test_other_namespace),
		TEST(test_hidden),     TEST(test_other_node),	   TEST(test_stopped_worker),
		TEST(test_two_faults), TEST(test_several_stopped), TEST(test_json),
		TEST(test_crowd),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
