/* SPDX-License-Identifier: Apache-2.0
 * Plans when members die or leave, when tasks are cancelled, and when the daemon goes; what
 * inspection shows of them; and plans that no library would send. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/plan/ncclsvc_plan.h"
#include "harness_raw.h"

#define ANY    NCCLSVC_PLAN_ANY, NCCLSVC_INT8
#define SECOND UINT64_C(1000000000)
enum { READY = 1, GO, DONE };

struct desk {
	ncclsvc_session *s;
	ncclsvc_comm *comm;
	ncclsvc_plan *plan;
	int32_t *v;
	int other;
};

/* Group 0: Send and Recv; group 1: the same again. */
static void desk_open(struct desk *d, struct client *me)
{
	*d = (struct desk){.other = 1 - me->rank};
	d->s = session_open(me->daemon);
	d->comm = comm_join(me, d->s);
	d->v = shared(d->s, 4096);
	CHECK_OK(ncclsvc_plan_start(d->comm, &d->plan));
	for (int g = 0; g < 2; g++) {
		CHECK_OK(ncclsvc_plan_group_start(d->plan));
		CHECK_OK(ncclsvc_plan_send(d->plan, 1, NCCLSVC_INT32, d->other));
		CHECK_OK(ncclsvc_plan_recv(d->plan, ANY, d->other));
		CHECK_OK(ncclsvc_plan_group_end(d->plan));
	}
	CHECK_OK(ncclsvc_plan_end(d->plan, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(d->plan));
}

static void desk_close(struct desk *d)
{
	CHECK_OK(ncclsvc_plan_terminate(d->plan, WAIT_MS));
	ncclsvc_close(d->s);
}

static ncclsvc_task submit_send(struct desk *d, int32_t value)
{
	ncclsvc_task task;
	d->v[0] = value;
	CHECK_OK(ncclsvc_plan_submit_send(d->plan, &d->v[0], 1, NCCLSVC_INT32, d->other, &task));
	return task;
}

static ncclsvc_task submit_recv(struct desk *d, int i)
{
	ncclsvc_task task;
	CHECK_OK(ncclsvc_plan_submit_recv(d->plan, &d->v[i], 1, NCCLSVC_INT32, d->other, &task));
	return task;
}

static void iterate(struct desk *d, int32_t mine, int32_t others)
{
	d->v[1] = d->v[2] = -1;
	for (int g = 0; g < 2; g++) {
		submit_recv(d, 1 + g);
		submit_send(d, mine);
	}
	CHECK_OK(ncclsvc_plan_reset(d->plan, WAIT_MS));
	CHECK_EQ(d->v[1], others);
	CHECK_EQ(d->v[2], others);
}

/* ---- A member dies ---- */

static void restarted(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	iterate(&d, 5, 6);
	desk_close(&d);
}

static void victim_or_survivor(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	iterate(&d, me->rank, d.other);
	/* A held Send; rank 0 has one whole group beside it, which waits for rank 1. */
	ncclsvc_task held, posted = 0;
	if (me->rank == 0) {
		submit_send(&d, 1);
		posted = submit_recv(&d, 1);
	}
	held = submit_send(&d, 1);
	say(me, READY);
	if (me->rank == 1)
		hear(me); /* killed here */
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, held, WAIT_MS), NCCLSVC_PEER_GONE);
	say(me, now_ns());
	CHECK_EQ(status_of(d.s, held).rank_a, 1);
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, posted, WAIT_MS), NCCLSVC_PEER_GONE);
	/* Its memory is its own again. */
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, WAIT_MS), NCCLSVC_STALE_EPOCH);
	CHECK_RESULT(ncclsvc_plan_submit_recv(d.plan, &d.v[1], 1, NCCLSVC_INT32, 1, NULL),
		     NCCLSVC_STALE_EPOCH);
	CHECK_OK(ncclsvc_comm_rejoin(d.comm, WAIT_MS));
	CHECK_RESULT(ncclsvc_plan_submit_recv(d.plan, &d.v[1], 1, NCCLSVC_INT32, 1, NULL),
		     NCCLSVC_STALE_EPOCH);
	CHECK(strstr(ncclsvc_last_error(), "ncclsvc_plan_reset"));
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS)); /* commits it again */
	iterate(&d, 6, 5);
	CHECK_EQ(ncclsvc_plan_iterations(d.plan), 2);
	CHECK_OK(ncclsvc_mem_free(d.s, d.v));
	desk_close(&d);
}

static void held_tasks_fail_when_a_member_dies(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, victim_or_survivor, NULL);
	hear_all(clients, 2, READY);
	ncclsvc_session *s = session_open(&d);
	ncclsvc_task_info t = tasks_reach(s, NCCLSVC_WAITING_GROUP, 2);
	CHECK_EQ(t.op, NCCLSVC_SEND);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 2);
	uint64_t then = now_ns();
	client_kill(&clients[1]);
	uint64_t told = hear(&clients[0]);
	print_message("told after %.1f ms\n", (double)(told - then) / 1e6);
	CHECK(told - then < SECOND / (sanitized() ? 1 : 10));
	client_start(&clients[1], restarted);
	clients_end(clients, 2);
	ncclsvc_close(s);
	daemon_stop(&d);
}

/* ---- A member leaves ---- */

static void leaver(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	ncclsvc_task held = submit_send(&d, 3);
	say(me, READY);
	hear(me);
	if (me->rank == 1) {
		CHECK_OK(ncclsvc_comm_leave(d.comm));
		CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
		ncclsvc_close(d.s);
		say(me, DONE);
		return;
	}
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, held, WAIT_MS), NCCLSVC_PEER_GONE);
	ncclsvc_task recv = submit_recv(&d, 1);
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, recv, WAIT_MS), NCCLSVC_PEER_GONE);
	CHECK_OK(ncclsvc_plan_terminate(d.plan, WAIT_MS));
	ncclsvc_close(d.s);
}

static void held_tasks_fail_when_a_member_leaves(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, leaver, NULL);
	hear_all(clients, 2, READY);
	ncclsvc_session *s = session_open(&d);
	tasks_reach(s, NCCLSVC_WAITING_GROUP, 2);
	ncclsvc_close(s);
	say(&clients[1], GO);
	CHECK_EQ(hear(&clients[1]), DONE);
	say(&clients[0], GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- Cancelled; what holds memory ---- */

static void cancelled(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	if (me->rank == 0) {
		ncclsvc_task held = submit_send(&d, 3);
		tasks_reach(d.s, NCCLSVC_WAITING_GROUP, 1);
		say(me, READY);
		CHECK_RESULT(ncclsvc_mem_free(d.s, d.v), NCCLSVC_BUSY);
		say(me, READY);
		CHECK_RESULT(ncclsvc_plan_wait(d.plan, held, WAIT_MS), NCCLSVC_CANCELLED);
		submit_recv(&d, 1);
	} else {
		submit_recv(&d, 1);
		submit_send(&d, 4);
	}
	submit_recv(&d, 2);
	submit_send(&d, 5 + me->rank);
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, WAIT_MS), me->rank ? NCCLSVC_CANCELLED : NCCLSVC_OK);
	if (me->rank == 0) /* the rest of the group went on */
		CHECK_EQ(d.v[1], 6);
	CHECK_EQ(d.v[2], 6 - me->rank);
	iterate(&d, me->rank, d.other);
	CHECK_OK(ncclsvc_mem_free(d.s, d.v));
	desk_close(&d);
}

static void held_tasks_can_be_cancelled(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	uint64_t n = 0;
	daemon_start(&d, NULL);
	ncclsvc_session *s = session_open(&d);
	clients_start(clients, 2, &d, cancelled, NULL);
	CHECK_EQ(hear(&clients[0]), READY);
	CHECK_EQ(hear(&clients[0]), READY);
	ncclsvc_task_info t = tasks_reach(s, NCCLSVC_WAITING_GROUP, 1);
	CHECK_EQ(t.rank, 0);
	CHECK_OK(ncclsvc_cancel_task(s, t.task, &n));
	CHECK_EQ(n, 1);
	clients_end(clients, 2);
	ncclsvc_close(s);
	daemon_stop(&d);
}

/* ---- The daemon goes ---- */

static void through_a_restart(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	iterate(&d, me->rank, d.other);
	ncclsvc_task held = submit_send(&d, 3);
	say(me, READY);
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, held, WAIT_MS), NCCLSVC_DAEMON_LOST);
	CHECK_RESULT(ncclsvc_plan_reset(d.plan, WAIT_MS), NCCLSVC_DAEMON_LOST);
	CHECK_EQ(hear(me), GO);
	CHECK_OK(ncclsvc_reattach(d.s, WAIT_MS));
	CHECK_RESULT(ncclsvc_plan_submit_send(d.plan, d.v, 1, NCCLSVC_INT32, d.other, NULL),
		     NCCLSVC_STALE_EPOCH);
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	iterate(&d, me->rank, d.other);
	desk_close(&d);
}

static void plans_outlive_their_daemon(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, through_a_restart, NULL);
	hear_all(clients, 2, READY);
	daemon_kill(&d);
	daemon_restart(&d, NULL);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- Inspection ---- */

static void inspected(struct client *me)
{
	struct desk d;
	desk_open(&d, me);
	iterate(&d, me->rank, d.other);
	/* Rank 0: group 0 whole, and the Recv of group 1. Rank 1: the Send of group 0. */
	submit_send(&d, 1);
	if (me->rank == 0) {
		submit_recv(&d, 1);
		submit_recv(&d, 2);
	}
	say(me, READY);
	hear(me);
	if (me->rank == 1) {
		submit_recv(&d, 1);
		submit_recv(&d, 2);
	}
	submit_send(&d, 1);
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	say(me, READY);
	hear(me);
	desk_close(&d);
}

static void check_plan(const ncclsvc_plan_info *i, int rank, uint32_t running, uint32_t group,
		       uint32_t group_enqueued, uint32_t enqueued, uint64_t iterations)
{
	CHECK_EQ(i->rank, rank);
	CHECK_EQ(i->groups, 2);
	CHECK_EQ(i->tasks, 4);
	CHECK_EQ(i->running, running);
	CHECK_EQ(i->group, group);
	CHECK_EQ(i->group_tasks, 2);
	CHECK_EQ(i->group_enqueued, group_enqueued);
	CHECK_EQ(i->enqueued, enqueued);
	CHECK_EQ(i->iterations, iterations);
	CHECK_EQ(i->left, 0);
	CHECK(i->pid > 0 && i->plan > 0 && i->comm > 0 && i->session > 0);
}

/* The program, from outside. */
static void ctl(const struct daemon *d, char *const *words, int code, const char *const *says)
{
	char out[8192];
	char *argv[16] = {(char *)program("NCCLSVC_CTL"), "--socket", (char *)d->socket};
	for (int i = 0; words[i]; i++)
		argv[3 + i] = words[i];
	CHECK_EQ(run_program(argv, out, sizeof(out)), code);
	for (; *says; says++)
		if (!strstr(out, *says))
			check_failed(__FILE__, __LINE__, "\"%s\" is not in: %s", *says, out);
}
#define WORDS(...) ((char *const[]){__VA_ARGS__, NULL})
#define SAYS(...)  ((const char *const[]){__VA_ARGS__, NULL})

static void programs_show_what_lacks(const struct daemon *d)
{
	ctl(d, WORDS("plan"), 0,
	    SAYS("group 0 of 2", "group 1: 1 of 2 enqueued", "group 0: 1 of 2 enqueued", "Send to 1",
		 "Recv from 0"));
	ctl(d, WORDS("plan", "--rank", "1", "--json"), 0,
	    SAYS("\"command\":\"plan\"", "\"rank\":1", "\"iterations\":1", "\"group_enqueued\":1",
		 "\"missing\":[{\"op\":\"Recv\",\"peer\":0,\"group\":0,\"task\":1}]",
		 "\"terminated\":false"));
	ctl(d, WORDS("plan", "--rank", "7"), 0, SAYS("No plan matches."));
	ctl(d, WORDS("plan", "--pid", "7"), 2, SAYS("means nothing"));
	ctl(d, WORDS("tasks", "--state", "waiting-group", "--rank", "1"), 0,
	    SAYS("waiting-group", "Send"));
	ctl(d, WORDS("why", "--after", "0"), 3,
	    SAYS("of its plan's group 0 it has not submitted the Recv from rank 0"));
	ctl(d, WORDS("why", "--after", "0", "--json"), 3, SAYS("\"cause\":\"plan\""));
}

static void inspection_shows_what_lacks(void **state)
{
	(void)state;
	struct daemon d;
	struct client clients[2];
	ncclsvc_plan_info *plans = NULL;
	ncclsvc_plan_task_info *tasks = NULL;
	size_t n = 0;
	daemon_start(&d, NULL);
	ncclsvc_session *s = session_open(&d);
	CHECK_OK(ncclsvc_list_plans(s, &plans, &n));
	CHECK_EQ(n, 0);
	clients_start(clients, 2, &d, inspected, NULL);
	hear_all(clients, 2, READY);
	tasks_reach(s, NCCLSVC_WAITING_GROUP, 2);
	tasks_reach(s, NCCLSVC_WAITING_PEERS, 2);
	CHECK_OK(ncclsvc_list_plans(s, &plans, &n));
	CHECK_EQ(n, 2);
	check_plan(&plans[0], 0, 0, 1, 1, 3, 1);
	check_plan(&plans[1], 1, 0, 0, 1, 1, 1);
	CHECK_EQ(plans[0].plan, plans[1].plan);
	ncclsvc_list_free(plans);
	CHECK_OK(ncclsvc_list_plan_tasks(s, &tasks, &n));
	CHECK_EQ(n, 8);
	static const uint8_t states[] = {2, 2, 1, 2, 2, 1, 1, 1};
	for (unsigned i = 0; i < 8; i++) {
		CHECK_EQ(tasks[i].rank, i / 4);
		CHECK_EQ(tasks[i].group, i / 2 % 2);
		CHECK_EQ(tasks[i].task, i % 2);
		CHECK_EQ(tasks[i].op, i % 2 ? NCCLSVC_RECV : NCCLSVC_SEND);
		CHECK_EQ(tasks[i].peer, 1 - tasks[i].rank);
		CHECK_EQ(tasks[i].state, states[i]);
		CHECK_EQ(tasks[i].count, i % 2 ? UINT64_MAX : 1);
	}
	ncclsvc_list_free(tasks);
	programs_show_what_lacks(&d);
	say_all(clients, 2, GO);
	hear_all(clients, 2, READY);
	CHECK_OK(ncclsvc_list_plans(s, &plans, &n));
	check_plan(&plans[0], 0, 0, 0, 0, 0, 2);
	check_plan(&plans[1], 1, 0, 0, 0, 0, 2);
	ncclsvc_list_free(plans);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	CHECK_OK(ncclsvc_list_plans(s, &plans, &n));
	CHECK_EQ(n, 0);
	ncclsvc_close(s);
	daemon_stop(&d);
}

/* ---- By hand ---- */

#define TASKS 4

static int plan_file(const struct svc_plan_task *tasks, size_t n)
{
	int fd = svc_memfd_create("plan", n * sizeof(*tasks), false);
	CHECK(fd >= 0);
	CHECK_EQ(pwrite(fd, tasks, n * sizeof(*tasks), 0), n * sizeof(*tasks));
	return fd;
}

static void refused(struct raw *r, const struct svc_plan_commit *m, const struct svc_plan_task *tasks,
		    ncclsvc_result result, const char *why)
{
	int fd = plan_file(tasks, TASKS);
	raw_refused(r, SVC_PLAN_COMMIT, m, sizeof(*m), &fd, 1, result, why);
	close(fd);
}

/* To itself: Send and Recv in one group, twice. */
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
	BAD_TASK(0, peer, 1, "no rank");
	BAD_TASK(0, peer, -1, "no rank");
	BAD_TASK(0, reserved, 1, "reserved");
	BAD_TASK(0, reserved2, 1, "reserved");
	BAD_TASK(0, type, 1, "type");
	BAD_TASK(2, type, 200, "type");
	memcpy(t, good, sizeof(t));
	t[3].count = 3;
	refused(r, &m, t, NCCLSVC_MISMATCH, "2 int32");
	t[3] = (struct svc_plan_task){.group = 1, .op = NCCLSVC_RECV, .count = SVC_PLAN_ANY};
	refused(r, &m, t, NCCLSVC_MISMATCH, "has no");
	/* Whatever is no memfd. */
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
		if (record.flags & SVC_TASK_MORE) { /* the group's end */
			record.flags = 0;
			record.plan = 0;
			CHECK_EQ(raw_ring_wait(r, raw_ring_submit(r, record)).result, ARGUMENT);
		}
	}
	/* Behind the first record of a group, and behind one that was refused. */
	for (unsigned op = NCCLSVC_BARRIER; op < NCCLSVC_BARRIER + 2; op++) {
		struct svc_record open = {.comm = comm->comm,
					  .epoch = comm->epoch,
					  .op = (uint8_t)op,
					  .peer = -1,
					  .flags = SVC_TASK_MORE};
		struct svc_record planned = {PLANNED(NCCLSVC_SEND, 0, 0),
					     .comm = comm->comm,
					     .epoch = comm->epoch,
					     .plan = plan};
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

static void what_no_library_sends(void **state)
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
	/* What is written to the file now comes too late. */
	CHECK_EQ(pwrite(fd, "\377\377\377\377", 4, 0), 4);
	raw_refused(&r, SVC_PLAN_COMMIT, &m, sizeof(m), &fd, 1, NCCLSVC_BUSY, "terminate");
	close(fd);
	bad_records(&r, &comm, plan.plan);
	/* Backwards, twice in a place, and on into the next iteration without a pause. */
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
	/* Held, and then everything goes. */
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
	/* Plans again and again; the quota is given back. */
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
	raw_close(&r); /* with the plan in force, and a task held */
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(held_tasks_fail_when_a_member_dies),
		TEST(held_tasks_fail_when_a_member_leaves),
		TEST(held_tasks_can_be_cancelled),
		TEST(plans_outlive_their_daemon),
		TEST(inspection_shows_what_lacks),
		TEST(what_no_library_sends),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
