/* SPDX-License-Identifier: Apache-2.0
 * Communicators that are created while others on the same GPUs connect or end. In each of these
 * steps NCCL's ranks wait for each other. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "node_stand_ins.h"
#include "tests/integration/harness_raw.h"
#include "watch.h"

#define WORDS 1000
#define PAIRS 8 /* communicators of each thread */

/* Exchanges with the neighbour: ranks 0 and 1, and 2 and 3, are pairs. */
static void swap(struct rank *r, ncclsvc_comm *comm, CUdeviceptr p)
{
	const int peer = r->rank ^ 1;
	CHECK_CU(cu.cuMemsetD32Async(p, (unsigned)r->rank + 1, 2 * WORDS, r->stream));
	CHECK_OK(ncclsvc_group_begin(r->session));
	CHECK_OK(ncclsvc_send(at(p), WORDS, NCCLSVC_UINT32, peer, comm, NULL));
	CHECK_OK(ncclsvc_recv(at(p + WORDS * 4), WORDS, NCCLSVC_UINT32, peer, comm, NULL));
	CHECK_OK(ncclsvc_group_end(r->session));
}

static void check_swapped(struct rank *r, CUdeviceptr p)
{
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	CHECK_OK(ncclsvc_wait_all(r->session, WAIT_MS));
	gpu_check(p + WORDS * 4, (uint32_t)(r->rank ^ 1) + 1, WORDS, "the neighbour's words");
}

/* ---- One worker is late ---- */

struct joiner {
	struct rank *r;
	ncclsvc_unique_id id;
};

static void *join_another(void *arg)
{
	const struct joiner *j = arg;
	ncclsvc_comm *comm;
	/* The workers already know the session, so no other request has to be answered first. */
	CHECK_OK(ncclsvc_comm_join_device(j->r->session, &j->id, j->r->n, j->r->rank, j->r->gpu,
					  WAIT_MS, &comm));
	CHECK_OK(ncclsvc_comm_leave(comm));
	return NULL;
}

/* One worker is slow to run a sum, while the others already create a communicator. The first Send
 * and Recv come before the slow one is ready. */
static void late_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	pthread_t thread;
	struct joiner j = {.r = &r, .id = c->id};
	rank_open(&r, c);
	j.id.bytes[5] ^= 1;
	CHECK_CU(cu.cuMemAlloc(&p, 2 * WORDS * 4));
	CHECK_CU(cu.cuMemsetD32Async(p, 0, WORDS, r.stream));
	CHECK_OK(
		ncclsvc_all_reduce(at(p), at(p), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM, r.comm, NULL));
	sleep_ms(50);
	CHECK_EQ(pthread_create(&thread, NULL, join_another, &j), 0);
	sleep_ms(100);
	stage("the first Send and Recv");
	swap(&r, r.comm, p);
	check_swapped(&r, p);
	stage("waiting for the other communicator");
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void run_late(bool nodes)
{
	if (!setup.fake)
		skip_test("needs a stand-in with slow calls");
	setenv("NCCLSVC_FAKE_FAULTS", "call-slow:1:000000000001", 1); /* end of the GPU's UUID */
	if (nodes)
		nodes_run(2, 1, late_rank, NULL);
	else
		ranks_run(2, late_rank, NULL);
	unsetenv("NCCLSVC_FAKE_FAULTS");
}

static void test_late(void)
{
	run_late(false);
}

static void test_late_nodes(void)
{
	run_late(true);
}

/* ---- A node dies before it has begun to create the communicator ---- */

enum word { READY = 1, GO };

static void abandoned_rank(struct client *c)
{
	struct rank r;
	ncclsvc_unique_id alone = c->id;
	rank_prepare(&r, c, c->rank);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	ncclsvc_result result =
		ncclsvc_comm_join_device(r.session, &c->id, r.n, r.rank, r.gpu, WAIT_MS, &r.comm);
	CHECK(result != NCCLSVC_OK);
	if (r.rank) { /* its daemon is gone */
		ncclsvc_close(r.session);
		CHECK_CU(cu.cuStreamDestroy(r.stream));
		return;
	}
	say(c, now_ns());
	CHECK_EQ(result, NCCLSVC_PEER_GONE);
	alone.bytes[5] ^= 1;
	r.n = 1;
	CHECK_OK(ncclsvc_comm_join_device(r.session, &alone, 1, 0, r.gpu, WAIT_MS, &r.comm));
	rank_check_usable(&r);
	rank_close(&r);
}

/* Until both ranks have joined, and the epoch waits for its GPUs. */
static void await_acquiring(ncclsvc_session *session)
{
	ncclsvc_comm_info *list;
	size_t n;
	for (bool acquires = false; !acquires; sleep_ms(5)) {
		CHECK_OK(ncclsvc_list_comms(session, &list, &n));
		for (size_t i = 0; i < n; i++)
			acquires |= list[i].epoch_state == NCCLSVC_EPOCH_ACQUIRING;
		ncclsvc_list_free(list);
	}
}

/* The other node's worker, which waits for the dead one, gives up and is not killed. */
static void test_abandoned(void)
{
	struct nodes w;
	struct client ranks[2];
	nodes_start(&w, 2, 1);
	nodes_clients(&w, ranks, abandoned_rank, NULL);
	hear_all(ranks, 2, READY);
	ncclsvc_session *session = session_open(&w.c.nodes[0]);
	const int worker = device_info(session, 0).pid;
	/* All wait until rank 0's worker has created NCCL's id. */
	process_stop(worker);
	say_all(ranks, 2, GO);
	await_acquiring(session);
	process_stop(w.c.nodes[1].pid);
	CHECK_EQ(kill(worker, SIGCONT), 0);
	sleep_ms(300);
	uint64_t killed = now_ns();
	cluster_kill(&w.c, 1);
	uint64_t ms = (hear(&ranks[0]) - killed) / 1000000;
	report("noticed after %llu ms", (unsigned long long)ms);
	CHECK(ms <= limit_ms(2000));
	ranks_end(ranks, 2);
	CHECK_EQ(device_info(session, 0).pid, worker);
	ncclsvc_close(session);
	nodes_stop(&w);
}

/* ---- Many at once ---- */

struct maker {
	struct client *c;
	struct rank r;
	uint8_t number;
};

/* The current GPU and the session's stream are set for each thread. */
static void use_rank(struct rank *r)
{
	gpu_use(r->gpu);
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, 0));
}

/* Joins another communicator, and uses it at once. */
static ncclsvc_comm *make_one(struct maker *m, uint8_t i, CUdeviceptr p)
{
	ncclsvc_comm *comm;
	ncclsvc_unique_id id = m->c->id;
	id.bytes[5] ^= (uint8_t)(1 + i * 2 + m->number);
	CHECK_OK(ncclsvc_comm_join_device(m->r.session, &id, m->r.n, m->r.rank, m->r.gpu, WAIT_MS,
					  &comm));
	swap(&m->r, comm, p);
	return comm;
}

/* Keeps all communicators, so that each join needs a new NCCL communicator. */
static void *make_and_swap(void *arg)
{
	struct maker *m = arg;
	ncclsvc_comm *comms[PAIRS];
	CUdeviceptr p;
	use_rank(&m->r);
	CHECK_CU(cu.cuMemAlloc(&p, 2 * WORDS * 4));
	for (uint8_t i = 0; i < PAIRS; i++) {
		comms[i] = make_one(m, i, p);
		if (i % 2)
			check_swapped(&m->r, p);
	}
	check_swapped(&m->r, p);
	for (int i = 0; i < PAIRS; i++)
		CHECK_OK(ncclsvc_comm_leave(comms[i]));
	CHECK_CU(cu.cuMemFree(p));
	return NULL;
}

static void two_threads(struct client *c, void *(*thread)(void *maker))
{
	pthread_t threads[2];
	struct maker makers[2] = {{.c = c, .number = 0}, {.c = c, .number = 1}};
	for (int i = 0; i < 2; i++)
		rank_prepare(&makers[i].r, c, c->rank);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, thread, &makers[i]), 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
		ncclsvc_close(makers[i].r.session);
		CHECK_CU(cu.cuStreamDestroy(makers[i].r.stream));
	}
}

static void many_rank(struct client *c)
{
	two_threads(c, make_and_swap);
}

/* ---- Communicators that end ---- */

/* Destroying an NCCL communicator also waits for the other ranks. */
static void *make_and_leave(void *arg)
{
	struct maker *m = arg;
	CUdeviceptr p;
	use_rank(&m->r);
	CHECK_CU(cu.cuMemAlloc(&p, 2 * WORDS * 4));
	for (uint8_t i = 0; i < 2 * PAIRS; i++) {
		ncclsvc_comm *comm = make_one(m, i, p);
		check_swapped(&m->r, p);
		CHECK_OK(ncclsvc_comm_leave(comm));
	}
	CHECK_CU(cu.cuMemFree(p));
	return NULL;
}

static void leaving_rank(struct client *c)
{
	two_threads(c, make_and_leave);
}

static void test_ends(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count() / 2 * 2;
	/* Unused NCCL communicators are destroyed at once. */
	daemon_start(&d, "--device", "cuda", "--comm-idle-seconds", "0", NULL);
	watch_daemon(&d);
	clients_start(ranks, n, &d, leaving_rank, NULL);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

static void test_many(void)
{
	ranks_run(ranks_count() / 2 * 2, many_rank, NULL);
}

static void test_many_nodes_2(void)
{
	nodes_run(2, 1, many_rank, NULL);
}

static void test_many_nodes_4(void)
{
	nodes_run(2, 2, many_rank, NULL);
}

/* ---- A member that leaves ---- */

#define LEAVERS	 60
#define LEAVE_US 8000 /* about as long as a JOIN takes on two nodes */
#define LEFT_NS                                                                                    \
	UINT64_C(300000000) /* timeout of the JOINs, and so of the remaining member's wait */

static uint32_t ask_to_join(struct raw *raw, const ncclsvc_unique_id *id, int rank)
{
	struct svc_join join = raw_join_request(id, 2, rank);
	join.device = 0;
	join.timeout_ns = LEFT_NS;
	return raw_send(raw, SVC_JOIN, &join, sizeof(join), NULL, 0);
}

/* A member leaves around the time when all have joined and NCCL creates the communicator. It
 * guesses its handle, 1, before the reply. */
static void test_left_nodes(void)
{
	struct nodes w;
	uint64_t random = setup.seed;
	nodes_start(&w, 2, 1);
	for (int i = 0; i < (setup.fake ? LEAVERS : 3); i++) {
		const struct svc_leave leave = {.comm = 1};
		struct raw raw[2];
		struct raw_reply reply;
		ncclsvc_unique_id id;
		uint32_t request_ids[2];
		stage("leaver %d", i);
		CHECK_OK(ncclsvc_unique_id_create(&id));
		for (int k = 0; k < 2; k++) {
			raw_open(&raw[k], node_of(&w, k));
			request_ids[k] = ask_to_join(&raw[k], &id, k);
		}
		usleep(draw(&random) % LEAVE_US);
		const uint32_t request_id =
			raw_send(&raw[0], SVC_LEAVE, &leave, sizeof(leave), NULL, 0);
		raw_reply_to(&raw[0], request_ids[0], &reply);
		raw_reply_to(&raw[0], request_id, &reply);
		raw_close(&raw[0]);
		raw_reply_to(&raw[1], request_ids[1], &reply); /* any result will do */
		raw_close(&raw[1]);
	}
	nodes_stop(&w);
}

const struct gpu_test creation_tests[] = {
	{"creation/late", test_late, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"creation/late_nodes", test_late_nodes, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"creation/abandoned", test_abandoned, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"creation/ends", test_ends, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"creation/many", test_many, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"creation/many_nodes/2", test_many_nodes_2, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"creation/left_nodes", test_left_nodes, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"creation/many_nodes/4", test_many_nodes_4, 4, 120, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
