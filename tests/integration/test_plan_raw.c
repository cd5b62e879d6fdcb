/* SPDX-License-Identifier: Apache-2.0
 * Plans and planned tasks that no library would send. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harness_raw.h"

#define TASKS 4

static int plan_file(const struct svc_plan_task *tasks, size_t n)
{
	int fd = svc_memfd_create("plan", n * sizeof(*tasks), false);
	CHECK(fd >= 0);
	CHECK_EQ(pwrite(fd, tasks, n * sizeof(*tasks), 0), n * sizeof(*tasks));
	return fd;
}

static void refused(struct raw *r, const struct svc_plan_commit *m,
		    const struct svc_plan_task *tasks, ncclsvc_result result, const char *why)
{
	int fd = plan_file(tasks, TASKS);
	raw_refused(r, SVC_PLAN_COMMIT, m, sizeof(*m), &fd, 1, result, why);
	close(fd);
}

/* A rank's messages to itself: Send and Recv in one group, twice. */
static const struct svc_plan_task good[TASKS] = {
	{.group = 0, .op = NCCLSVC_SEND, .count = SVC_PLAN_ANY},
	{.group = 0, .op = NCCLSVC_RECV, .count = SVC_PLAN_ANY},
	{.group = 1, .op = NCCLSVC_RECV, .type = NCCLSVC_INT32, .count = 2},
	{.group = 1, .op = NCCLSVC_SEND, .type = NCCLSVC_INT32, .count = 2},
};

static void bad_commits(struct raw *r, struct svc_plan_commit m)
{
	const ncclsvc_result bad = NCCLSVC_INVALID_ARGUMENT;
	struct svc_plan_commit x = m;
	struct svc_plan_task t[TASKS];
	x.comm = 77;
	refused(r, &x, good, NCCLSVC_NOT_FOUND, "communicator 77");
	x = m;
	x.epoch++;
	refused(r, &x, good, NCCLSVC_STALE_EPOCH, "epoch");
	x = m;
	x.reserved = 1;
	refused(r, &x, good, bad, "reserved");
	x = m;
	x.timeout_ns = UINT64_MAX;
	refused(r, &x, good, bad, "timeout");
	x = m;
	x.tasks = SVC_PLAN_TASKS + 1;
	refused(r, &x, good, NCCLSVC_LIMIT, "at most");
	x.tasks = UINT32_MAX;
	refused(r, &x, good, NCCLSVC_LIMIT, "at most");
	x = m;
	x.groups = UINT32_MAX;
	refused(r, &x, good, NCCLSVC_LIMIT, "at most");
	x = m;
	x.tasks = TASKS + 1; /* more than the file has */
	refused(r, &x, good, bad, "");
	x = m;
	x.groups = 1;
	refused(r, &x, good, bad, "does not exist");
#define BAD_TASK(i, field, value, why)                                                             \
	memcpy(t, good, sizeof(t));                                                                \
	t[i].field = value;                                                                        \
	refused(r, &m, t, bad, why)
	BAD_TASK(3, group, 0, "later group");
	BAD_TASK(0, op, NCCLSVC_BARRIER, "neither Send nor Recv");
	BAD_TASK(0, op, 0, "neither Send nor Recv");
	BAD_TASK(0, peer, 1, "not a rank");
	BAD_TASK(0, peer, -1, "not a rank");
	BAD_TASK(0, done, 1, "although the plan is new");
	BAD_TASK(0, reserved2, 1, "reserved");
	BAD_TASK(0, type, 1, "type");
	BAD_TASK(0, tag, 1, "is not a list");
	BAD_TASK(0, agreement, SVC_AGREEMENT_REFUSES, "refuses");
	BAD_TASK(0, agreement, SVC_AGREEMENT_REFUSED, "refuses");
	BAD_TASK(2, type, 200, "type");
	memcpy(t, good, sizeof(t));
	memset(t[1].label, 'x', sizeof(t[1].label));
	refused(r, &m, t, bad, "task 1 has a label that is not terminated");
	BAD_TASK(0, label[0], '\033', "printable");
	BAD_TASK(0, label[0], '\x9b', "printable");
	BAD_TASK(0, label[1], 'x', "label");
	memcpy(t, good, sizeof(t));
	t[3].count = 3;
	refused(r, &m, t, NCCLSVC_MISMATCH, "2 int32");
	memcpy(t, good, sizeof(t));
	t[3].agreement = 5;
	refused(r, &m, t, bad, "task 3 is a list to or from its own rank");
	t[3] = (struct svc_plan_task){.group = 1, .op = NCCLSVC_RECV, .count = SVC_PLAN_ANY};
	refused(r, &m, t, NCCLSVC_MISMATCH, "has no");
	/* Files that are not memfds. */
	int fd = open("/dev/zero", O_RDWR | O_CLOEXEC), pipes[2];
	CHECK_EQ(pipe(pipes), 0);
	raw_refused(r, SVC_PLAN_COMMIT, &m, sizeof(m), &fd, 1, bad, "");
	raw_refused(r, SVC_PLAN_COMMIT, &m, sizeof(m), &pipes[0], 1, bad, "");
	raw_refused(r, SVC_PLAN_COMMIT, &m, sizeof(m), NULL, 0, NCCLSVC_PROTOCOL, "");
	close(fd);
	close(pipes[0]);
	close(pipes[1]);
}

struct bad_task {
	const char *what;
	struct svc_record r;
	ncclsvc_result result;
};
#define PLANNED(o, g, t) .op = (o), .flags = SVC_TASK_PLAN, .plan_group = (g), .plan_task = (t)
#define ARGUMENT	 NCCLSVC_INVALID_ARGUMENT

static const struct bad_task bad_tasks[] = {
	{"no such group", {PLANNED(NCCLSVC_SEND, 2, 0)}, ARGUMENT},
	{"group max", {PLANNED(NCCLSVC_SEND, UINT32_MAX, 0)}, ARGUMENT},
	{"no such task", {PLANNED(NCCLSVC_SEND, 0, 2)}, ARGUMENT},
	{"task max", {PLANNED(NCCLSVC_SEND, 0, UINT32_MAX)}, ARGUMENT},
	{"another operation", {PLANNED(NCCLSVC_RECV, 0, 0)}, ARGUMENT},
	{"another count", {PLANNED(NCCLSVC_SEND, 1, 1), .type = NCCLSVC_INT32}, ARGUMENT},
	{"another type", {PLANNED(NCCLSVC_RECV, 1, 0), .type = NCCLSVC_FLOAT32}, ARGUMENT},
	{"a list in another's place",
	 {.op = NCCLSVC_SEND, .flags = SVC_TASK_PLAN | SVC_TASK_AGREE, .agreement = 7},
	 ARGUMENT},
	{"another plan", {PLANNED(NCCLSVC_SEND, 0, 0), .plan = 99}, NCCLSVC_NOT_FOUND},
	{"in a group", {.op = NCCLSVC_SEND, .flags = SVC_TASK_PLAN | SVC_TASK_MORE}, ARGUMENT},
};

static void bad_records(struct raw *r, const struct svc_join_reply *comm, uint32_t plan)
{
	for (size_t i = 0; i < sizeof(bad_tasks) / sizeof(bad_tasks[0]); i++) {
		struct svc_record record = bad_tasks[i].r;
		record.comm = comm->comm;
		record.epoch = comm->epoch;
		record.plan = record.plan ? record.plan : plan;
		ncclsvc_status st = raw_ring_wait(r, raw_ring_submit(r, record));
		if (st.result != (int)bad_tasks[i].result)
			check_failed(__FILE__, __LINE__, "%s: %d", bad_tasks[i].what, st.result);
		if (record.flags & SVC_TASK_MORE) { /* the record that ends the group */
			record.flags = 0;
			record.plan = 0;
			CHECK_EQ(raw_ring_wait(r, raw_ring_submit(r, record)).result, ARGUMENT);
		}
	}
	/* After the first record of a group, and after a refused record. */
	for (unsigned op = NCCLSVC_BARRIER; op < NCCLSVC_BARRIER + 2; op++) {
		struct svc_record open = {.comm = comm->comm,
					  .epoch = comm->epoch,
					  .op = (uint8_t)op,
					  .peer = -1,
					  .flags = SVC_TASK_MORE};
		struct svc_record planned = {PLANNED(NCCLSVC_SEND, 0, 0), .comm = comm->comm,
					     .epoch = comm->epoch, .plan = plan};
		uint64_t first = raw_ring_submit(r, open), second = raw_ring_submit(r, planned);
		CHECK_EQ(raw_ring_wait(r, second).result, ARGUMENT);
		CHECK_EQ(raw_ring_wait(r, first).result, ARGUMENT);
	}
}

static uint64_t planned(struct raw *r, const struct svc_join_reply *comm, uint32_t plan,
			unsigned group, unsigned task, const struct raw_region *region)
{
	struct svc_record record = {.comm = comm->comm,
				    .epoch = comm->epoch,
				    .op = good[2 * group + task].op,
				    .type = NCCLSVC_INT32,
				    .flags = SVC_TASK_PLAN,
				    .count = 2,
				    .plan = plan,
				    .plan_group = group,
				    .plan_task = task};
	if (record.op == NCCLSVC_SEND)
		record.src_region = region->id;
	else
		record.dst_region = region->id;
	record.dst_offset = 64;
	return raw_ring_submit(r, record);
}

static void records_that_no_library_sends(void **state)
{
	(void)state;
	struct daemon d;
	struct raw r;
	struct raw_reply reply;
	daemon_start(&d, NULL);
	raw_open(&r, &d);
	raw_attach(&r, 64);
	struct raw_region region = raw_region(&r, 4096);
	struct svc_join_reply comm = raw_join_alone(&r);
	struct svc_plan_commit m = {
		.comm = comm.comm, .epoch = comm.epoch, .groups = 2, .tasks = TASKS};
	struct svc_plan_drop drop = {.comm = comm.comm, .plan = 1};
	raw_refused(&r, SVC_PLAN_DROP, &drop, sizeof(drop), NULL, 0, NCCLSVC_NOT_FOUND, "no plan");
	bad_commits(&r, m);
	int fd = plan_file(good, TASKS);
	raw_call(&r, SVC_PLAN_COMMIT, &m, sizeof(m), &fd, 1, &reply);
	CHECK_EQ(reply.header.result, 0);
	struct svc_plan_reply plan;
	memcpy(&plan, reply.bytes, sizeof(plan));
	CHECK_EQ(plan.comm, comm.comm);
	CHECK(plan.plan && plan.uid);
	/* Writes to the file no longer have an effect. */
	CHECK_EQ(pwrite(fd, "\377\377\377\377", 4, 0), 4);
	raw_refused(&r, SVC_PLAN_COMMIT, &m, sizeof(m), &fd, 1, NCCLSVC_BUSY, "terminate");
	close(fd);
	bad_records(&r, &comm, plan.plan);
	/* In reverse order, each place twice, and on into the next iteration without a pause. */
	int32_t *v = region.base;
	for (int round = 0; round < 3; round++) {
		v[0] = round;
		uint64_t last = planned(&r, &comm, plan.plan, 1, 1, &region);
		planned(&r, &comm, plan.plan, 1, 0, &region);
		planned(&r, &comm, plan.plan, 0, 1, &region);
		uint64_t twice = planned(&r, &comm, plan.plan, 0, 1, &region);
		CHECK_EQ(raw_ring_wait(&r, twice).result, NCCLSVC_INVALID_ARGUMENT);
		planned(&r, &comm, plan.plan, 0, 0, &region);
		CHECK_EQ(raw_ring_wait(&r, last).result, 0);
		CHECK_EQ(v[16], round);
	}
	/* A task is held, then the session closes everything. */
	uint64_t held = planned(&r, &comm, plan.plan, 0, 0, &region);
	ncclsvc_session *s = session_open(&d);
	tasks_reach(s, NCCLSVC_WAITING_GROUP, 1);
	ncclsvc_close(s);
	drop.plan = plan.plan;
	raw_call(&r, SVC_PLAN_DROP, &drop, sizeof(drop), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK_EQ(raw_ring_wait(&r, held).result, NCCLSVC_CANCELLED);
	raw_refused(&r, SVC_PLAN_DROP, &drop, sizeof(drop), NULL, 0, NCCLSVC_NOT_FOUND, "no plan");
	held = planned(&r, &comm, plan.plan, 0, 0, &region);
	CHECK_EQ(raw_ring_wait(&r, held).result, NCCLSVC_NOT_FOUND);
	/* Plans repeatedly: the daemon returns the quota each time. */
	static struct svc_plan_task many[60000];
	for (size_t i = 0; i < 60000; i++)
		many[i] = (struct svc_plan_task){.group = (uint32_t)(i / 100),
						 .op = i % 2 ? NCCLSVC_RECV : NCCLSVC_SEND,
						 .count = SVC_PLAN_ANY};
	m.groups = 600;
	m.tasks = 60000;
	fd = plan_file(many, 60000);
	for (int round = 0; round < 6; round++) {
		raw_call(&r, SVC_PLAN_COMMIT, &m, sizeof(m), &fd, 1, &reply);
		CHECK_EQ(reply.header.result, 0);
		memcpy(&plan, reply.bytes, sizeof(plan));
		drop.plan = plan.plan;
		if (round < 5)
			raw_call(&r, SVC_PLAN_DROP, &drop, sizeof(drop), NULL, 0, &reply);
	}
	close(fd);
	planned(&r, &comm, plan.plan, 0, 0, &region);
	raw_region_close(&region);
	raw_close(&r); /* with the plan in force and a task held */
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(records_that_no_library_sends),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
