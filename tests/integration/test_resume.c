/* SPDX-License-Identifier: Apache-2.0
 * Sessions that survive a restart of their daemon, in good order or by SIGKILL: programs see no
 * error, and every result is right. */
#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness_raw.h"
#include "ncclsvc_plan.h"
#include "node_daemons.h"

#define RANKS	 4
#define RESTARTS (cluster_nodes() ? 6 : 10)
#define COUNT	 3000

enum { READY = 1, GO };

/* Shared by the test and its clients. */
static struct {
	_Atomic int stop;
	_Atomic unsigned iterations[RANKS];
	_Atomic unsigned failed, missed;
} * shared_state;

static char killed; /* the clients' argument: the daemon ends by SIGKILL */

static void share_state(void)
{
	shared_state = mmap(NULL, sizeof(*shared_state), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared_state != MAP_FAILED);
	setenv("NCCLSVC_REATTACH_MS", "20000", 1);
}

static int32_t value_of(int rank, unsigned round, int i)
{
	return (int32_t)((unsigned)(rank + 1) * 1000 + round * 7 + (unsigned)i);
}

static void fill(int32_t *v, int rank, unsigned round)
{
	for (int i = 0; i < COUNT; i++)
		v[i] = value_of(rank, round, i);
}

static void check_sum(const int32_t *v, const int *ranks, int n, unsigned round)
{
	for (int i = 0; i < COUNT; i++) {
		int32_t sum = 0;
		for (int k = 0; k < n; k++)
			sum += value_of(ranks[k], round, i);
		CHECK_EQ(v[i], sum);
	}
}

static const int all_ranks[RANKS] = {0, 1, 2, 3};

/* With killed daemons of several nodes only. */
static bool is_missed(const struct client *me, ncclsvc_result r)
{
	const bool missed = r == NCCLSVC_DAEMON_LOST && me->arg == &killed && cluster_nodes() &&
			    strstr(ncclsvc_last_error(), "only on other nodes");
	shared_state->missed += missed;
	return missed;
}

/* A daemon was killed while it wrote the result of memory that the library copies. */
static bool is_half_done(const struct client *me, ncclsvc_result r)
{
	return r == NCCLSVC_DAEMON_LOST && me->arg == &killed &&
	       strstr(ncclsvc_last_error(), "in place");
}

/* Waits for the task. False: a daemon was killed, and this rank lacks the result. */
static bool has_ended(const struct client *me, ncclsvc_session *s, ncclsvc_task task)
{
	const ncclsvc_result r = ncclsvc_wait(s, task, WAIT_MS);
	if (is_missed(me, r) || is_half_done(me, r))
		return false;
	CHECK_OK(r);
	return true;
}

/* Pairs of ranks (of several nodes, on two of them), in descending order. */
static ncclsvc_comm *split(const struct client *me, ncclsvc_comm *comm, int part[RANKS / 2])
{
	ncclsvc_comm *child;
	CHECK_OK(ncclsvc_comm_split(comm, me->rank / 2, -me->rank, WAIT_MS, &child));
	part[0] = me->rank | 1;
	part[1] = me->rank & ~1;
	CHECK_EQ(part[ncclsvc_comm_rank(child)], me->rank);
	return child;
}

struct buffers {
	int32_t *in, *out, *part_out, *sent, *received;
	int32_t plain_in[COUNT], plain_out[COUNT];
};

static void pass_on(const struct client *me, ncclsvc_session *s, ncclsvc_comm *comm,
		    struct buffers *b, unsigned round)
{
	const int next = (me->rank + 1) % RANKS, prev = (me->rank + RANKS - 1) % RANKS;
	ncclsvc_task send, recv;
	fill(b->sent, me->rank, round);
	CHECK_OK(ncclsvc_group_begin(s));
	CHECK_OK(ncclsvc_send(b->sent, COUNT, NCCLSVC_INT32, next, comm, &send));
	CHECK_OK(ncclsvc_recv(b->received, COUNT, NCCLSVC_INT32, prev, comm, &recv));
	CHECK_OK(ncclsvc_group_end(s));
	has_ended(me, s, send);
	if (!has_ended(me, s, recv))
		return;
	for (int i = 0; i < COUNT; i++)
		CHECK_EQ(b->received[i], value_of(prev, round, i));
}

/* True: a rank was told to stop. */
static bool agree_to_stop(const struct client *me, ncclsvc_session *s, ncclsvc_comm *comm)
{
	int32_t mine = shared_state->stop, any = 0;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_all_reduce(&mine, &any, 1, NCCLSVC_INT32, NCCLSVC_MAX, comm, &task));
	return has_ended(me, s, task) && any; /* no daemon is killed any more after a stop */
}

static int count_fds(void)
{
	int n = 0;
	DIR *dir = opendir("/proc/self/fd");
	CHECK(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void work(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int part[RANKS / 2];
	ncclsvc_comm *child = split(me, comm, part);
	struct buffers *b = calloc(1, sizeof(*b));
	ncclsvc_task tasks[3];
	CHECK(b);
	b->in = shared(s, 5 * sizeof(b->plain_in));
	b->out = b->in + COUNT;
	b->part_out = b->out + COUNT;
	b->sent = b->part_out + COUNT;
	b->received = b->sent + COUNT;
	const int fds = count_fds();
	say(me, READY);
	for (unsigned round = 0; !agree_to_stop(me, s, comm); round++) {
		fill(b->in, me->rank, round);
		fill(b->plain_in, me->rank, round + 1);
		CHECK_OK(ncclsvc_all_reduce(b->in, b->out, COUNT, NCCLSVC_INT32, NCCLSVC_SUM, comm,
					    &tasks[0]));
		CHECK_OK(ncclsvc_all_reduce(b->plain_in, b->plain_out, COUNT, NCCLSVC_INT32,
					    NCCLSVC_SUM, comm, &tasks[1]));
		CHECK_OK(ncclsvc_all_reduce(b->in, b->part_out, COUNT, NCCLSVC_INT32, NCCLSVC_SUM,
					    child, &tasks[2]));
		if (has_ended(me, s, tasks[0]))
			check_sum(b->out, all_ranks, RANKS, round);
		if (has_ended(me, s, tasks[1]))
			check_sum(b->plain_out, all_ranks, RANKS, round + 1);
		if (has_ended(me, s, tasks[2]))
			check_sum(b->part_out, part, RANKS / 2, round);
		pass_on(me, s, comm, b, round);
		/* A killed daemon can answer a split on some ranks only. */
		if (!me->arg && round % 10 == 9) {
			CHECK_OK(ncclsvc_comm_leave(child));
			child = split(me, comm, part);
		}
		shared_state->iterations[me->rank]++;
	}
	CHECK_EQ(count_fds(), fds);
	free(b);
	ncclsvc_close(s);
}

static unsigned progress = 10; /* iterations of each rank between two restarts */

static void await_progress(void)
{
	const uint64_t since = now_ns();
	for (int k = 0; k < RANKS; k++) {
		const unsigned before = shared_state->iterations[k];
		while (shared_state->iterations[k] < before + progress) {
			CHECK(now_ns() - since < WAIT_MS * UINT64_C(1000000));
			sleep_ms(1);
		}
	}
}

/* On several nodes, each call restarts another node. */
static bool restart_node(const struct daemon *d, int signum)
{
	static int turns;
	struct cluster *c = cluster_of(d);
	if (c)
		cluster_restart(c, turns++ % c->n, signum);
	return c;
}

static void restart(struct daemon *d)
{
	if (restart_node(d, SIGTERM))
		return;
	daemon_terminate(d);
	daemon_restart(d, NULL);
}

static void kill_and_start(struct daemon *d)
{
	if (restart_node(d, SIGKILL))
		return;
	daemon_kill(d);
	daemon_restart(d, NULL);
}

static void run(client_main *main, void (*again)(struct daemon *d), void *killed)
{
	struct daemon d;
	struct client clients[RANKS];
	time_limit(240);
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, RANKS, &d, main, killed);
	hear_all(clients, RANKS, READY);
	for (int i = 0; i < RESTARTS; i++) {
		await_progress();
		sleep_ms((unsigned)(i * 3 % 11));
		again(&d);
	}
	await_progress();
	shared_state->stop = 1;
	clients_end(clients, RANKS);
	daemon_stop(&d);
}

static void programs_work_through_restarts(void **state)
{
	(void)state;
	run(work, restart, NULL);
}

static void programs_work_though_the_daemon_is_killed(void **state)
{
	(void)state;
	run(work, kill_and_start, &killed);
}

/* ---- In place ---- */

/* ---- Plans ---- */

#define GROUPS 3

static ncclsvc_plan *ring_plan(const struct client *me, ncclsvc_comm *comm)
{
	ncclsvc_plan *plan;
	CHECK_OK(ncclsvc_plan_start(comm, &plan));
	for (int g = 0; g < GROUPS; g++) {
		CHECK_OK(ncclsvc_plan_group_start(plan));
		CHECK_OK(ncclsvc_plan_send(plan, COUNT, NCCLSVC_INT32, (me->rank + 1) % RANKS));
		CHECK_OK(ncclsvc_plan_recv(plan, COUNT, NCCLSVC_INT32,
					   (me->rank + RANKS - 1) % RANKS));
		CHECK_OK(ncclsvc_plan_group_end(plan));
	}
	CHECK_OK(ncclsvc_plan_end(plan, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(plan));
	return plan;
}

/* Submits the six tasks of an iteration in an order of its own. */
static void submit_planned(const struct client *me, ncclsvc_plan *plan, int32_t *sent,
			   int32_t *received, unsigned round)
{
	for (unsigned n = 0; n < 2 * GROUPS; n++) {
		const unsigned k =
			(n * (round % 2 ? 5 : 1) + round + (unsigned)me->rank) % (2 * GROUPS);
		ncclsvc_planned x = {.size = sizeof(x),
				     .op = k % 2 ? NCCLSVC_RECV : NCCLSVC_SEND,
				     .type = NCCLSVC_INT32,
				     .count = COUNT,
				     .group = k / 2};
		x.peer = (me->rank + (k % 2 ? RANKS - 1 : 1)) % RANKS;
		if (k % 2)
			x.recvbuf = received + k / 2 * COUNT;
		else
			x.sendbuf = sent + k / 2 * COUNT;
		CHECK_OK(ncclsvc_plan_submit(plan, &x, WAIT_MS, NULL));
	}
}

static void work_planned(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	const int prev = (me->rank + RANKS - 1) % RANKS;
	int32_t *sent = shared(s, 2 * GROUPS * COUNT * sizeof(*sent));
	int32_t *received = sent + GROUPS * COUNT;
	ncclsvc_plan *plan = ring_plan(me, comm);
	say(me, READY);
	for (unsigned round = 0; !agree_to_stop(me, s, comm); round++) {
		for (unsigned g = 0; g < GROUPS; g++)
			fill(sent + g * COUNT, me->rank, 10 * round + g);
		submit_planned(me, plan, sent, received, round);
		const ncclsvc_result r = ncclsvc_plan_reset(plan, WAIT_MS);
		const bool missed = is_missed(me, r);
		CHECK(missed || !r);
		for (unsigned g = 0; !missed && g < GROUPS; g++)
			for (int i = 0; i < COUNT; i++)
				CHECK_EQ(received[g * COUNT + (unsigned)i],
					 value_of(prev, 10 * round + g, i));
		/* Another plan comes into force. A daemon can end after it has done so on some
		 * nodes only. */
		if (!cluster_nodes() && round % 30 == 29) {
			CHECK_OK(ncclsvc_plan_terminate(plan, WAIT_MS));
			CHECK(!agree_to_stop(me, s, comm) || shared_state->stop);
			plan = ring_plan(me, comm);
		}
		shared_state->iterations[me->rank]++;
	}
	CHECK_OK(ncclsvc_plan_terminate(plan, WAIT_MS));
	ncclsvc_close(s);
}

static void plans_go_on_after_a_restart(void **state)
{
	(void)state;
	run(work_planned, restart, NULL);
}

static void plans_go_on_after_a_kill(void **state)
{
	(void)state;
	run(work_planned, kill_and_start, &killed);
}

/* All ranks (if a daemon is killed, all of a node) learn the same: the sum is right, or the
 * operation has failed. */
static void work_in_place(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, COUNT * sizeof(*v));
	ncclsvc_task task;
	say(me, READY);
	for (unsigned round = 0; !agree_to_stop(me, s, comm); round++) {
		fill(v, me->rank, round);
		CHECK_OK(ncclsvc_all_reduce(v, v, COUNT, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
		const ncclsvc_result r = ncclsvc_wait(s, task, WAIT_MS);
		if (!r) {
			check_sum(v, all_ranks, RANKS, round);
		} else if (!is_missed(me, r)) {
			CHECK_RESULT(r, NCCLSVC_DAEMON_LOST);
			CHECK(strstr(ncclsvc_last_error(), "in place"));
			shared_state->failed++;
		}
		int32_t codes[RANKS] = {0}, mine = r;
		CHECK_OK(ncclsvc_all_gather(&mine, codes, 1, NCCLSVC_INT32, comm, &task));
		const bool known = has_ended(me, s, task);
		for (int k = 0; known && k < RANKS; k++)
			if (!cluster_nodes() || !me->arg ||
			    k % cluster_nodes() == me->rank % cluster_nodes())
				CHECK_EQ(codes[k], r);
		shared_state->iterations[me->rank]++;
	}
	ncclsvc_close(s);
}

static void in_place_results_are_right_after_a_restart(void **state)
{
	(void)state;
	run(work_in_place, restart, NULL);
	CHECK_EQ(shared_state->failed, 0);
}

static void in_place_results_are_right_or_fail_after_a_kill(void **state)
{
	(void)state;
	run(work_in_place, kill_and_start, &killed);
}

/* ---- Requests and tasks that wait for other ranks ---- */

/* Rank 0 waits for rank 1, which begins only after the restart. */
static void one_waits(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s), *split_off = NULL, *second = NULL;
	ncclsvc_joining *join, *split;
	ncclsvc_unique_id id;
	ncclsvc_task task, alone;
	int32_t *v = shared(s, 2 * sizeof(*v));
	id = me->id;
	id.bytes[0] ^= 7;
	if (me->rank == 0) {
		CHECK_OK(ncclsvc_recv(v, 1, NCCLSVC_INT32, 1, comm, &task));
		CHECK_OK(
			ncclsvc_comm_join_begin(s, &id, 2, 0, NCCLSVC_DEVICE_HOST, WAIT_MS, &join));
		CHECK_OK(ncclsvc_comm_split_begin(comm, 0, 0, WAIT_MS, &split));
	}
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	if (me->rank == 1) {
		v[0] = 4711;
		CHECK_OK(ncclsvc_send(v, 1, NCCLSVC_INT32, 0, comm, &task));
		CHECK_OK(
			ncclsvc_comm_join_begin(s, &id, 2, 1, NCCLSVC_DEVICE_HOST, WAIT_MS, &join));
		CHECK_OK(ncclsvc_comm_split_begin(comm, 0, 0, WAIT_MS, &split));
	}
	CHECK_OK(ncclsvc_joining_wait(join, &second));
	CHECK_OK(ncclsvc_joining_wait(split, &split_off));
	CHECK_OK(ncclsvc_wait(s, task, WAIT_MS));
	CHECK_EQ(v[0], 4711);
	ncclsvc_joining_free(join);
	ncclsvc_joining_free(split);
	check_usable(s, comm);
	check_usable(s, second);
	check_usable(s, split_off);
	CHECK_OK(ncclsvc_barrier(second, &alone));
	CHECK_OK(ncclsvc_wait(s, alone, WAIT_MS));
	CHECK_OK(ncclsvc_comm_leave(second));
	void *more;
	CHECK_OK(ncclsvc_mem_alloc(s, 4096, &more));
	CHECK_OK(ncclsvc_mem_free(s, more));
	ncclsvc_close(s);
}

static void run_waiting(void (*again)(struct daemon *d))
{
	struct daemon d;
	struct client clients[2];
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_waits, NULL);
	hear_all(clients, 2, READY);
	again(&d);
	again(&d);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void what_waits_continues_after_a_restart(void **state)
{
	(void)state;
	run_waiting(restart);
}

static void what_waits_continues_after_a_kill(void **state)
{
	(void)state;
	run_waiting(kill_and_start);
}

/* ---- What is not continued ---- */

static void one_does_not_come_back(struct client *me)
{
	const ncclsvc_options options = {
		.size = sizeof(options), .socket = me->daemon->socket, .reattach_ms = 1500};
	ncclsvc_session *s;
	CHECK_OK(ncclsvc_open(&options, &s));
	ncclsvc_comm *comm = comm_join(me, s), *alone;
	ncclsvc_unique_id id;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	CHECK_OK(ncclsvc_comm_join(s, &id, 1, 0, WAIT_MS, &alone));
	if (me->rank == 0)
		CHECK_OK(ncclsvc_barrier(comm, &task));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	CHECK_RESULT(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_PEER_GONE);
	CHECK(strstr(ncclsvc_last_error(), "had not joined by rank 0's deadline: 1"));
	check_usable(s, alone);
	ncclsvc_close(s);
}

static void a_member_that_does_not_come_back_is_named(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_does_not_come_back, NULL);
	hear_all(clients, 2, READY);
	daemon_kill(&d);
	client_kill(&clients[1]);
	daemon_restart(&d, NULL);
	say_all(clients, 1, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* Rank 1's session ends with its daemon, so rank 0's does too, without waiting for it. */
static void one_has_not_asked(struct client *me)
{
	const ncclsvc_options options = {.size = sizeof(options),
					 .socket = me->daemon->socket,
					 .reattach_ms = me->rank == 1 ? -1 : WAIT_MS};
	ncclsvc_session *s;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_open(&options, &s));
	ncclsvc_comm *comm = comm_join(me, s);
	if (me->rank == 1)
		CHECK_OK(ncclsvc_barrier(comm, &task));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	if (me->rank == 1) { /* the daemon may end it before it goes */
		const ncclsvc_result r = ncclsvc_wait(s, task, WAIT_MS);
		CHECK(r == NCCLSVC_DAEMON_LOST || r == NCCLSVC_DRAINING);
	}
	CHECK_RESULT(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_DAEMON_LOST);
	CHECK_RESULT(ncclsvc_barrier(comm, NULL), NCCLSVC_DAEMON_LOST);
	CHECK_OK(ncclsvc_reattach(s, WAIT_MS));
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void run_one_has_not_asked(void (*again)(struct daemon *d))
{
	struct daemon d;
	struct client clients[2];
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_has_not_asked, NULL);
	hear_all(clients, 2, READY);
	again(&d);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void all_members_ask_or_none_continues_after_a_restart(void **state)
{
	(void)state;
	run_one_has_not_asked(restart);
}

static void all_members_ask_or_none_continues_after_a_kill(void **state)
{
	(void)state;
	run_one_has_not_asked(kill_and_start);
}

/* Rank 1 has left one of two communicators, so nobody waits for it there. */
static void one_has_left(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s), *child;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_comm_split(comm, 0, me->rank, WAIT_MS, &child));
	CHECK_OK(ncclsvc_barrier(child, &task));
	CHECK_OK(ncclsvc_wait(s, task, WAIT_MS));
	if (me->rank == 1)
		CHECK_OK(ncclsvc_comm_leave(child));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	check_usable(s, comm);
	if (me->rank == 0) {
		CHECK_RESULT(ncclsvc_barrier(child, &task), NCCLSVC_PEER_GONE);
		CHECK(strstr(ncclsvc_last_error(), "a member had left it"));
		CHECK_OK(ncclsvc_comm_leave(child));
	}
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_communicator_that_a_member_has_left_holds_nobody_up(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_has_left, NULL);
	hear_all(clients, 2, READY);
	if (cluster_of(&d))
		cluster_restart(cluster_of(&d), 0, SIGKILL); /* rank 0's */
	else
		kill_and_start(&d);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- Requests that no library sends ---- */

static void refused(struct raw *r, struct svc_resume request)
{
	raw_refused(r, SVC_RESUME, &request, sizeof(request), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "");
}

static void accepted(struct raw *r, struct svc_resume request)
{
	struct raw_reply reply;
	raw_call(r, SVC_RESUME, &request, sizeof(request), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_OK);
}

static struct svc_join_reply joins(struct raw *r, const struct client *me)
{
	const struct svc_join join = raw_join_request(&me->id, 2, 1);
	struct raw_reply reply;
	raw_call(r, SVC_JOIN, &join, sizeof(join), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_OK);
	return reply.join;
}

static void come_back_with_lies(struct client *me)
{
	struct raw r;
	raw_open(&r, me->daemon);
	raw_attach(&r, 16);
	accepted(&r, (struct svc_resume){.kind = SVC_RESUME_SESSION});
	const struct svc_join_reply first = joins(&r, me);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	raw_close(&r);
	raw_open(&r, me->daemon);
	raw_attach(&r, 16);
	struct raw_region region = raw_region(&r, 65536);
	accepted(&r, (struct svc_resume){.kind = SVC_RESUME_COMM,
					 .number = first.comm,
					 .lineage = first.lineage});
	const struct svc_join_reply again = joins(&r, me);
	((uint64_t *)region.base)[7] = UINT64_C(1) << 22; /* lines */
	((uint64_t *)region.base)[10] = 1;		  /* no plan is under way */
	const ncclsvc_status st = raw_submit_wait(&r, (struct svc_record){.comm = again.comm,
									  .epoch = again.epoch,
									  .op = NCCLSVC_ALL_GATHER,
									  .type = NCCLSVC_UINT8,
									  .peer = -1,
									  .count = 56,
									  .src_region = region.id,
									  .src_offset = 56,
									  .dst_region = region.id});
	CHECK_EQ(st.result, NCCLSVC_OK);
	CHECK_EQ(hear(me), GO);
	raw_region_close(&region);
	raw_close(&r);
}

static void one_lies(struct client *me)
{
	if (me->rank == 1) {
		come_back_with_lies(me);
		return;
	}
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_task task;
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	CHECK_RESULT(ncclsvc_barrier(comm, &task), NCCLSVC_PROTOCOL);
	CHECK(strstr(ncclsvc_last_error(), "operation histories are invalid"));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

/* Memory for what it says that it has done would be of any size. */
static void a_member_with_an_endless_history_is_left(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_lies, NULL);
	hear_all(clients, 2, READY);
	kill_and_start(&d);
	say_all(clients, 2, GO);
	hear_all(clients, 1, READY);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void hostile_resumptions_are_refused(void **state)
{
	static const uint32_t numbers[] = {1023, 1024, 4096, 0x7fffffff, UINT32_MAX};
	struct daemon d;
	struct raw r;
	ncclsvc_unique_id id;
	(void)state;
	daemon_start(&d, NULL);
	raw_open(&r, &d);
	refused(&r, (struct svc_resume){.kind = SVC_RESUME_SESSION}); /* without a ring */
	raw_attach(&r, 16);
	refused(&r, (struct svc_resume){.kind = 0});
	refused(&r, (struct svc_resume){.kind = 5});
	refused(&r, (struct svc_resume){.kind = 6});
	refused(&r, (struct svc_resume){.kind = SVC_RESUME_SESSION, .reserved = 1});
	refused(&r, (struct svc_resume){.kind = SVC_RESUME_SESSION, .number = 1});
	refused(&r, (struct svc_resume){.kind = SVC_RESUME_REGION});
	refused(&r, (struct svc_resume){.kind = SVC_RESUME_REGION, .number = 1, .lineage = 1});
	refused(&r, (struct svc_resume){.kind = SVC_RESUME_COMM, .number = 1});
	refused(&r,
		(struct svc_resume){.kind = SVC_RESUME_COMM, .number = 1, .lineage = UINT32_MAX});
	accepted(&r, (struct svc_resume){.kind = SVC_RESUME_SESSION});
	/* RESUME applies to the next request only, even if that is refused. */
	struct svc_region_add empty = {.kind = SVC_REGION_MEMFD};
	accepted(&r, (struct svc_resume){.kind = SVC_RESUME_REGION, .number = 9});
	const int memfd = memfd_create("empty", MFD_CLOEXEC);
	raw_refused(&r, SVC_REGION_ADD, &empty, sizeof(empty), &memfd, 1, NCCLSVC_INVALID_ARGUMENT,
		    "");
	close(memfd);
	struct raw_region region = raw_region(&r, 65536);
	CHECK_EQ(region.id, 1);
	const struct svc_join_reply alone = raw_join_alone(&r);
	refused(&r, (struct svc_resume){.kind = SVC_RESUME_SESSION}); /* it has joined */
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (numbers[i] >= 1024) { /* more handles than a session can have */
			CHECK_OK(ncclsvc_unique_id_create(&id));
			const struct svc_join join = raw_join_request(&id, 1, 0);
			accepted(&r, (struct svc_resume){.kind = SVC_RESUME_COMM,
							 .number = numbers[i],
							 .lineage = 7});
			raw_refused(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_LIMIT, "");
		}
	}
	/* A handle that is taken, and an epoch of this daemon. */
	CHECK_OK(ncclsvc_unique_id_create(&id));
	struct svc_join join = raw_join_request(&id, 1, 0);
	accepted(&r,
		 (struct svc_resume){.kind = SVC_RESUME_COMM, .number = alone.comm, .lineage = 7});
	raw_refused(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_LIMIT, "");
	struct svc_leave leave = {.comm = alone.comm};
	struct raw_reply reply;
	raw_call(&r, SVC_LEAVE, &leave, sizeof(leave), NULL, 0, &reply);
	memcpy(&join.id, alone.id, sizeof(join.id));
	accepted(&r,
		 (struct svc_resume){.kind = SVC_RESUME_COMM, .number = alone.comm, .lineage = 7});
	raw_refused(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_STALE_EPOCH, "");
	raw_region_close(&region);
	raw_close(&r);
	daemon_stop(&d);
}

/* ---- Several nodes ---- */

#define LARGE (1 << 18) /* elements, 1 MiB */

/* Large sums and messages, some of them in flight whenever a daemon ends. */
static void work_on_large(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *in = shared(s, 3 * LARGE * sizeof(*in));
	int32_t *out = in + LARGE, *received = out + LARGE;
	const int next = (me->rank + 1) % RANKS, prev = (me->rank + RANKS - 1) % RANKS;
	ncclsvc_task sum, send, recv;
	say(me, READY);
	for (unsigned round = 0; !agree_to_stop(me, s, comm); round++) {
		for (int i = 0; i < LARGE; i++)
			in[i] = value_of(me->rank, round, i);
		CHECK_OK(
			ncclsvc_all_reduce(in, out, LARGE, NCCLSVC_INT32, NCCLSVC_SUM, comm, &sum));
		CHECK_OK(ncclsvc_group_begin(s));
		CHECK_OK(ncclsvc_send(in, LARGE, NCCLSVC_INT32, next, comm, &send));
		CHECK_OK(ncclsvc_recv(received, LARGE, NCCLSVC_INT32, prev, comm, &recv));
		CHECK_OK(ncclsvc_group_end(s));
		const bool summed = has_ended(me, s, sum), got = has_ended(me, s, recv);
		has_ended(me, s, send);
		for (int i = 0; i < LARGE; i++) {
			int32_t all = 0;
			for (int k = 0; k < RANKS; k++)
				all += value_of(k, round, i);
			CHECK(!summed || out[i] == all);
			CHECK(!got || received[i] == value_of(prev, round, i));
		}
		shared_state->iterations[me->rank]++;
	}
	ncclsvc_close(s);
}

static void large_operations_work_through_restarts(void **state)
{
	(void)state;
	progress = 2;
	run(work_on_large, restart, NULL);
	progress = 10;
}

static void large_operations_work_through_kills(void **state)
{
	(void)state;
	progress = 2;
	run(work_on_large, kill_and_start, &killed);
	progress = 10;
}

static void terminate_all(struct daemon *d)
{
	cluster_restart_all(cluster_of(d), SIGTERM);
}

static void kill_all(struct daemon *d)
{
	cluster_restart_all(cluster_of(d), SIGKILL);
}

static void all_daemons_end_at_once(void **state)
{
	(void)state;
	run(work, terminate_all, NULL);
}

static void all_daemons_are_killed_at_once(void **state)
{
	(void)state;
	run(work, kill_all, &killed);
}

/* Rank 1's node gets no daemon any more. */
static void one_node_stays_away(struct client *me)
{
	const ncclsvc_options options = {
		.size = sizeof(options), .socket = me->daemon->socket, .reattach_ms = 1500};
	ncclsvc_session *s = NULL;
	ncclsvc_comm *comm;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_open(&options, &s));
	comm = comm_join(me, s);
	CHECK_OK(ncclsvc_barrier(comm, &task));
	CHECK_OK(ncclsvc_wait(s, task, WAIT_MS));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	if (me->rank == 0) {
		const uint64_t since = now_ns();
		CHECK_OK(ncclsvc_barrier(comm, &task));
		CHECK_RESULT(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_PEER_GONE);
		CHECK(strstr(ncclsvc_last_error(), "rank 1"));
		CHECK(in_time(since, now_ns()));
		CHECK_RESULT(ncclsvc_barrier(comm, &task), NCCLSVC_STALE_EPOCH);
		CHECK(strstr(ncclsvc_last_error(), "was not continued"));
		CHECK(strstr(ncclsvc_last_error(), "had not joined"));
	} else {
		CHECK_RESULT(ncclsvc_barrier(comm, &task), NCCLSVC_DAEMON_LOST);
	}
	ncclsvc_close(s);
}

static ncclsvc_comm *comm_alone(ncclsvc_session *s)
{
	ncclsvc_unique_id id;
	ncclsvc_comm *comm;
	CHECK_OK(ncclsvc_unique_id_request(s, &id));
	CHECK_OK(ncclsvc_comm_join(s, &id, 1, 0, WAIT_MS, &comm));
	return comm;
}

static void one_has_no_room(struct client *me)
{
	const ncclsvc_options options = {
		.size = sizeof(options), .socket = me->daemon->socket, .reattach_ms = 60000};
	ncclsvc_session *s = NULL;
	ncclsvc_comm *comm;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_open(&options, &s));
	if (me->rank == 1) /* of the three, the next daemon admits only the first or the last */
		comm_alone(s);
	comm = comm_join(me, s);
	if (me->rank == 1)
		comm_alone(s);
	CHECK_OK(ncclsvc_barrier(comm, &task));
	CHECK_OK(ncclsvc_wait(s, task, WAIT_MS));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	const uint64_t since = now_ns();
	CHECK_RESULT(ncclsvc_barrier(comm, &task), me->rank ? NCCLSVC_LIMIT : NCCLSVC_PEER_GONE);
	CHECK(in_time(since, now_ns()));
	CHECK(strstr(ncclsvc_last_error(), me->rank ? "user_comms_max" : "a member had left it"));
	ncclsvc_close(s);
}

/* The others do not wait for it. */
static void a_member_that_is_refused_says_so(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_has_no_room, NULL);
	hear_all(clients, 2, READY);
	cluster_restart_with(cluster_of(&d), 1, "--user-comms-max", "1");
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void a_node_that_stays_away_is_named(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_node_stays_away, NULL);
	hear_all(clients, 2, READY);
	say(&clients[0], GO);
	sleep_ms(20);
	cluster_kill(cluster_of(&d), 1);
	cluster_of(&d)->nodes[1].pid = 0;
	say(&clients[1], GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* With NCCLSVC_TEST_LINKS, the daemons are ready for ranks of other nodes. */
static char key[] = "/tmp/ncclsvc-key-XXXXXX";

/* All daemons of the test use it: ids name it. */
static void free_port(char text[8])
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(a);
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&a, length) &&
	      !getsockname(fd, (struct sockaddr *)&a, &length));
	snprintf(text, 8, "%u", ntohs(a.sin_port));
	close(fd);
}

static int open_to_other_nodes(void **state)
{
	char port[8];
	(void)state;
	if (!getenv("NCCLSVC_TEST_LINKS") || cluster_nodes())
		return 0;
	const int fd = mkstemp(key);
	CHECK(fd >= 0);
	CHECK(dprintf(fd, "the key of this test's nodes, with 32 bytes or more\n") > 0);
	close(fd);
	setenv("NCCLSVCD_CLUSTER_KEY_FILE", key, 1);
	setenv("NCCLSVCD_CLUSTER_INTERFACE", "127.0.0.1", 1);
	free_port(port);
	setenv("NCCLSVCD_CLUSTER_PORT", port, 1);
	return 0;
}

static int close_to_other_nodes(void **state)
{
	(void)state;
	if (getenv("NCCLSVC_TEST_LINKS"))
		unlink(key);
	return 0;
}

/* The argument: which tests. */
int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		TEST(programs_work_through_restarts),
		TEST(programs_work_though_the_daemon_is_killed),
		TEST(in_place_results_are_right_after_a_restart),
		TEST(in_place_results_are_right_or_fail_after_a_kill),
		TEST(plans_go_on_after_a_restart),
		TEST(plans_go_on_after_a_kill),
		TEST(what_waits_continues_after_a_restart),
		TEST(what_waits_continues_after_a_kill),
		TEST(a_member_that_does_not_come_back_is_named),
		TEST(all_members_ask_or_none_continues_after_a_restart),
		TEST(all_members_ask_or_none_continues_after_a_kill),
		TEST(a_communicator_that_a_member_has_left_holds_nobody_up),
		TEST(a_member_with_an_endless_history_is_left),
		TEST(hostile_resumptions_are_refused),
	};
	const struct CMUnitTest across[] = {
		TEST(programs_work_through_restarts),
		TEST(programs_work_though_the_daemon_is_killed),
		TEST(in_place_results_are_right_after_a_restart),
		TEST(in_place_results_are_right_or_fail_after_a_kill),
		TEST(plans_go_on_after_a_restart),
		TEST(plans_go_on_after_a_kill),
		TEST(what_waits_continues_after_a_restart),
		TEST(what_waits_continues_after_a_kill),
		TEST(a_communicator_that_a_member_has_left_holds_nobody_up),
		TEST(large_operations_work_through_restarts),
		TEST(large_operations_work_through_kills),
		TEST(all_daemons_end_at_once),
		TEST(all_daemons_are_killed_at_once),
		TEST(a_node_that_stays_away_is_named),
		TEST(a_member_that_is_refused_says_so),
	};
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	if (cluster_nodes())
		return cmocka_run_group_tests(across, NULL, NULL);
	return cmocka_run_group_tests(tests, open_to_other_nodes, close_to_other_nodes);
}
