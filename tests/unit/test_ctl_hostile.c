/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-ctl on lists that only a malicious daemon, or one of a version with other limits, would
 * send. The work is bounded by the number of records, not by the numbers in them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "doctor/doctor.h"
#include "views/view.h"

#define RECORDS 60
#define ROUNDS	15

static const struct {
	void (*show)(const struct view *v);
	enum ctl_command command;
} views[] = {
	{view_sessions, CTL_SESSIONS}, {view_comms, CTL_COMMS},	    {view_tasks, CTL_TASKS},
	{view_memory, CTL_MEMORY},     {view_devices, CTL_DEVICES}, {view_plan, CTL_PLAN},
	{view_lateness, CTL_LATENESS}, {view_status, CTL_STATUS},   {view_dump, CTL_DUMP},
	{view_failures, CTL_FAILURES},
};

/* Checks that all output is printable. */
static void check_shown(struct text *out)
{
	char *s = text_steal(out);
	for (const char *c = s; *c; c++)
		assert_true(*c == '\n' || (unsigned char)*c >= ' ');
	free(s);
}

static uint64_t show_all(struct snapshot *s)
{
	uint64_t steps = 0;
	snapshot_order(s);
	for (int json = 0; json < 2; json++) {
		for (size_t i = 0; i < sizeof(views) / sizeof(views[0]); i++)
			for (int more = 0; more < 2; more++) {
				struct ctl_args args = {.command = views[i].command,
							.json = json,
							.all = more,
							.members = more,
							.rank = -1,
							.pid = -1};
				struct text out = TEXT_INIT(-1);
				struct view v = {.args = &args, .s = s, .out = &out, .time = "now"};
				views[i].show(&v);
				check_shown(&out);
			}
		struct ctl_args args = {.command = CTL_WHY, .json = json, .rank = -1, .pid = -1};
		struct text out = TEXT_INIT(-1);
		struct view v = {.args = &args, .s = s, .out = &out, .time = "now", .width = 80};
		struct why_input in = {.s = s, .after_ns = 1000};
		struct why_report report;
		why_analyse(&in, &report);
		view_why(&v, &report);
		check_shown(&out);
		steps = report.steps;
		why_free(&report);
	}
	return steps;
}

/* ---- Named records ---- */

static void a_communicator_of_all_ranks(void **state)
{
	static const unsigned states[] = {NCCLSVC_COMM_FORMING, NCCLSVC_COMM_BROKEN};
	(void)state;
	for (size_t i = 0; i < 2; i++) {
		ncclsvc_comm_info comm = {.comm = 1,
					  .nranks = UINT32_MAX,
					  .joined = UINT32_MAX,
					  .state = states[i],
					  .age_ns = 5000000000};
		ncclsvc_member_info members[] = {
			{.comm = 1, .rank = INT32_MIN, .state = NCCLSVC_MEMBER_JOINED},
			{.comm = 1, .rank = 1, .state = NCCLSVC_MEMBER_UNKNOWN},
			{.comm = 1, .rank = INT32_MAX, .state = NCCLSVC_MEMBER_DEAD}};
		struct snapshot s = {
			.comms = &comm, .ncomms = 1, .members = members, .nmembers = 3};
		assert_in_range(show_all(&s), 0, 2000000);
	}
}

static void a_task_that_waits_for_all_ranks(void **state)
{
	static const unsigned states[] = {NCCLSVC_WAITING_PEERS, NCCLSVC_LAUNCHED,
					  NCCLSVC_WAITING_INPUT};
	(void)state;
	for (size_t i = 0; i < 3; i++) {
		ncclsvc_task_info task = {.comm = 1,
					  .nranks = UINT32_MAX,
					  .waits_count = UINT32_MAX - 1,
					  .ask_count = UINT32_MAX,
					  .op = NCCLSVC_ALL_REDUCE,
					  .state = states[i],
					  .state_ns = 5000000000};
		ncclsvc_member_info member = {.comm = 1, .device = 3};
		struct snapshot s = {
			.tasks = &task, .ntasks = 1, .members = &member, .nmembers = 1};
		assert_in_range(show_all(&s), 0, 2000000);
	}
}

/* Each task waits for many others, and no rank is listed as a member: the paths are too many to
 * follow. */
static void waits_without_end(void **state)
{
	enum { TASKS = 300 };
	static ncclsvc_task_info tasks[TASKS];
	(void)state;
	for (uint32_t i = 0; i < TASKS; i++) {
		tasks[i] = (ncclsvc_task_info){.comm = 1,
					       .task = i,
					       .rank = (int32_t)i,
					       .nranks = TASKS,
					       .op = NCCLSVC_BARRIER,
					       .count = i,
					       .state = NCCLSVC_WAITING_PEERS,
					       .state_ns = 5000000000,
					       .waits_count = NCCLSVC_MISSING_SHOWN};
		for (uint32_t k = 0; k < NCCLSVC_MISSING_SHOWN; k++)
			tasks[i].waits_for[k] = (int32_t)((i + k + 1) % (2 * TASKS));
	}
	struct snapshot s = {.tasks = tasks, .ntasks = TASKS};
	assert_in_range(show_all(&s), 0, 30000000);
}

/* ---- At random ---- */

static uint32_t any_word(void)
{
	static const uint32_t words[] = {0, 1, 2, 3,	      4,	 5,	  6,
					 7, 8, 9, UINT32_MAX, INT32_MAX, 1u << 31};
	const size_t n = sizeof(words) / sizeof(words[0]);
	const size_t i = (size_t)rand() % (n + 2);
	return i < n ? words[i] : (uint32_t)rand() * 2u + (uint32_t)rand() % 2u;
}

static void any_bytes(void *to, size_t size)
{
	for (size_t at = 0; at + sizeof(uint32_t) <= size; at += sizeof(uint32_t)) {
		const uint32_t word = any_word();
		memcpy((char *)to + at, &word, sizeof(word));
	}
}

static void any_records(void **state)
{
	(void)state;
	srand(33);
	for (int round = 0; round < ROUNDS; round++) {
		static ncclsvc_session_info sessions[RECORDS];
		static ncclsvc_comm_info comms[RECORDS];
		static ncclsvc_member_info members[RECORDS];
		static ncclsvc_task_info tasks[RECORDS];
		static ncclsvc_region_info regions[RECORDS];
		static ncclsvc_device_info devices[RECORDS];
		static ncclsvc_plan_info plans[RECORDS];
		static ncclsvc_plan_task_info plan_tasks[RECORDS];
		static ncclsvc_node_info nodes[RECORDS];
		static ncclsvc_lateness_info lateness[RECORDS];
		static ncclsvc_failure_info failures[RECORDS];
		static ncclsvc_operation_info operations[RECORDS];
		static struct snapshot_answer answers[RECORDS];
		struct snapshot s = {.answers = round % 2 ? answers : NULL};
		for (int i = 0; i < RECORDS; i++)
			answers[i] = (struct snapshot_answer){
				rand() % 2, rand() % 2 ? NCCLSVC_OK : NCCLSVC_TIMEOUT, 1};
		any_bytes(&s.daemon, sizeof(s.daemon));
#define LIST(list, count)                                                                          \
	any_bytes(list, sizeof(list));                                                             \
	s.list = list;                                                                             \
	s.count = (size_t)rand() % (RECORDS + 1);
		LIST(sessions, nsessions)
		LIST(comms, ncomms)
		LIST(members, nmembers)
		LIST(tasks, ntasks)
		LIST(regions, nregions)
		LIST(devices, ndevices)
		LIST(plans, nplans)
		LIST(plan_tasks, nplan_tasks)
		LIST(nodes, nnodes)
		LIST(lateness, nlateness)
		LIST(failures, nfailures)
		LIST(operations, noperations)
		show_all(&s);
	}
}

/* Includes the driver process's findings, which the doctor does not trust either. */
static void any_facts(void **state)
{
	(void)state;
	srand(34);
	for (int round = 0; round < ROUNDS; round++) {
		static ncclsvc_device_info devices[RECORDS];
		struct doctor_facts f = {
			.library = "0.1.0", .connected = true, .end = DOCTOR_ENDED};
		struct doctor_report report;
		struct ctl_args args = {.command = CTL_DOCTOR, .json = round % 2};
		struct text out = TEXT_INIT(-1);
		struct view v = {.args = &args, .out = &out, .time = "now"};
		any_bytes(devices, sizeof(devices));
		any_bytes(&f.daemon, sizeof(f.daemon));
		/* The library and doctor_gather terminate these strings too. */
		f.daemon.version[sizeof(f.daemon.version) - 1] = '\0';
		f.daemon.mps_text[sizeof(f.daemon.mps_text) - 1] = '\0';
		for (size_t i = 0; i < RECORDS; i++)
			devices[i].name[sizeof(devices[i].name) - 1] =
				devices[i].text[sizeof(devices[i].text) - 1] = '\0';
		f.devices = devices;
		f.ndevices = (size_t)rand() % (RECORDS + 1);
		doctor_judge(&f, &report);
		view_doctor(&v, &report);
		check_shown(&out);
		doctor_free(&report);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_communicator_of_all_ranks),
		cmocka_unit_test(a_task_that_waits_for_all_ranks),
		cmocka_unit_test(waits_without_end),
		cmocka_unit_test(any_records),
		cmocka_unit_test(any_facts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
