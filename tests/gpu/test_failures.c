/* SPDX-License-Identifier: Apache-2.0
 * Trainers and workers that die repeatedly: the others are notified in time, no stream hangs, and
 * the next epoch works. The test's process leads each round, and the ranks follow. */
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "kill_rounds.h"
#include "node_stand_ins.h"

#define MIB	 ((size_t)1 << 20)
#define LEEWAY	 (256 * MIB)
#define ABORT_MS 5000

enum word { READY = 1, GO, CONTEXT_LOST };

struct actor {
	struct rank r;
	CUdeviceptr big, small;
	size_t bytes;
};

/* ---- A rank ---- */

static void submit_small(struct actor *a, int n)
{
	for (int i = 0; i < n; i++)
		CHECK_OK(ncclsvc_all_reduce(at(a->small), at(a->small), 64, NCCLSVC_UINT32,
					    NCCLSVC_SUM, a->r.comm, NULL));
}

static void submit_big(struct actor *a)
{
	int n = setup.fake ? 40 : 300;
	for (int i = 0; i < n; i++)
		CHECK_OK(ncclsvc_all_reduce(at(a->big), at(a->big), a->bytes / 4, NCCLSVC_UINT32,
					    NCCLSVC_SUM, a->r.comm, NULL));
}

/* Submits tasks, and waits for each, until one fails. */
static ncclsvc_result one_by_one(struct actor *a)
{
	for (;;) {
		ncclsvc_task task;
		ncclsvc_result r =
			ncclsvc_all_reduce(at(a->small), at(a->small), 64, NCCLSVC_UINT32,
					   NCCLSVC_SUM, a->r.comm, &task);
		if (!r)
			r = ncclsvc_wait(a->r.session, task, WAIT_MS);
		if (r)
			return r;
	}
}

/* Waits until the communicator reports that a member is gone. */
static ncclsvc_result until_noticed(struct actor *a)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; now_ns() < end;) {
		ncclsvc_result r = ncclsvc_dispatch(a->r.session, 5);
		if (!r)
			r = ncclsvc_comm_error(a->r.comm);
		if (r)
			return r;
	}
	return NCCLSVC_OK;
}

/* Stores to an unmapped address. */
static void access_illegally(struct actor *a)
{
	static const char code[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
				   ".visible .entry bad() {\n"
				   ".reg .b64 %rd<2>;\n.reg .b32 %r<2>;\n"
				   "mov.u64 %rd1, 4096;\nmov.u32 %r1, 1;\n"
				   "st.global.u32 [%rd1], %r1;\nret;\n}\n";
#define KERNEL_POINTER(function, name, parameters)                                                 \
	CUresult(*function) parameters = gpu_function(name);                                       \
	CHECK(function);
	CUDA_KERNEL_FUNCTIONS(KERNEL_POINTER)
#undef KERNEL_POINTER
	CUmodule module;
	CUfunction function;
	(void)cuModuleUnload;
	CHECK_CU(cuModuleLoadData(&module, code));
	CHECK_CU(cuModuleGetFunction(&function, module, "bad"));
	CHECK_CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, a->r.stream, NULL, NULL));
	CHECK(cu.cuStreamSynchronize(a->r.stream) != CUDA_SUCCESS);
}

static __attribute__((noreturn)) void wait_for_death(void)
{
	for (;;)
		pause();
}

/* Shuts down the session's socket: the daemon treats this process as dead, while its stream
 * continues. */
static void tear_session(void)
{
	struct sockaddr_un peer;
	int torn = 0;
	for (int fd = 3; fd < 1024; fd++) {
		socklen_t size = sizeof(peer);
		if (getpeername(fd, (struct sockaddr *)&peer, &size) ||
		    peer.sun_family != AF_UNIX || size <= offsetof(struct sockaddr_un, sun_path) ||
		    peer.sun_path[0] != '/')
			continue;
		CHECK_EQ(shutdown(fd, SHUT_RDWR), 0);
		torn++;
	}
	CHECK_EQ(torn, 1);
}

static void die(struct actor *a, enum when when)
{
	if (when == WAITING)
		submit_small(a, 3);
	if (when == INSIDE || when == TORN)
		submit_big(a);
	if (when == FAULT)
		access_illegally(a);
	say(a->r.c, READY);
	if (when == BETWEEN)
		one_by_one(a);
	if (when == TORN) {
		CHECK_EQ(hear(a->r.c), GO); /* the others have submitted their tasks */
		sleep_ms(15);
		tear_session();
	}
	wait_for_death();
}

static ncclsvc_result suffer(struct actor *a, enum when when)
{
	if (when == AWAITED || when == FAULT)
		submit_small(a, 3);
	if (when == INSIDE || when == TORN)
		submit_big(a);
	say(a->r.c, READY);
	ncclsvc_result r = NCCLSVC_OK;
	if (when == BETWEEN)
		return one_by_one(a);
	if (when != IDLE && when != WAITING)
		r = ncclsvc_wait_all(a->r.session, WAIT_MS);
	/* The running work may have ended before the failure. */
	return r || when == AWAITED || when == FAULT ? r : until_noticed(a);
}

/* An MPS server may destroy the context of every client of the GPU together with the victim's. Such
 * a process must be restarted. */
static void check_context(struct actor *a)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; now_ns() < end; sleep_ms(1)) {
		CUresult error = cu.cuStreamQuery(a->r.stream);
		if (!error)
			return;
		if (error == CUDA_ERROR_NOT_READY)
			continue;
		if (!setup.mps)
			CHECK_CU(error);
		say(a->r.c, CONTEXT_LOST);
		wait_for_death();
	}
	check_failed(__FILE__, __LINE__, "the stream is not released");
}

static void play(struct actor *a, enum when when, bool worker)
{
	ncclsvc_result expected = worker ? NCCLSVC_WORKER_LOST : NCCLSVC_PEER_GONE;
	ncclsvc_result r = suffer(a, when);
	say(a->r.c, now_ns());
	/* With MPS, the worker may die together with the trainer. */
	if (r != expected && r != NCCLSVC_STALE_EPOCH && !(setup.mps && r == NCCLSVC_WORKER_LOST))
		check_failed(__FILE__, __LINE__, "the rank is told %s (%s), not %s",
			     ncclsvc_result_name(r), ncclsvc_last_error(),
			     ncclsvc_result_name(expected));
	/* No operation may write there any more once the stream continues. */
	CUresult put = cu.cuMemsetD32Async(a->big, 77, 64, a->r.stream);
	stage("waiting for the stream to be released");
	check_context(a);
	CHECK_CU(put);
	say(a->r.c, now_ns());
	stage("waiting to rejoin");
	CHECK_EQ(hear(a->r.c), GO);
	stage("rejoining");
	say(a->r.c, now_ns());
	CHECK_OK(ncclsvc_comm_rejoin(a->r.comm, WAIT_MS));
	say(a->r.c, now_ns());
	gpu_check(a->big, 77, 64, "what was put behind the tasks");
}

static void actor_main(struct client *c)
{
	struct actor a;
	rank_prepare(&a.r, c, c->rank);
	a.bytes = setup.fake ? 4 * MIB : 256 * MIB;
	CHECK_CU(cu.cuMemAlloc(&a.big, a.bytes));
	CHECK_CU(cu.cuMemAlloc(&a.small, 4096));
	gpu_fill(a.big, 1, a.bytes / 4);
	gpu_fill(a.small, 1, 1024);
	say(c, now_ns());
	rank_join(&a.r);
	say(c, now_ns());
	for (;;) {
		rank_check_usable(&a.r);
		rank_check_usable(&a.r);
		say(c, READY);
		stage("waiting for a round");
		uint64_t order = hear_within(c, INT_MAX);
		enum when when = order & 255;
		int victim = (int)(order >> 8 & 255);
		bool worker = order >> 16;
		if (when == END)
			break;
		stage("round: when %d, victim %d", when, victim);
		if (victim == c->rank && !worker)
			die(&a, when);
		play(&a, when, worker);
	}
	CHECK_CU(cu.cuMemFree(a.big));
	CHECK_CU(cu.cuMemFree(a.small));
	rank_close(&a.r);
}

/* ---- The test ---- */

struct scene {
	struct daemon d; /* the only daemon, if w.n is 0 */
	struct nodes w;
	int n;
	struct client ranks[RANKS_MAX];
	uint64_t noticed_ms, released_ms, rebuilt_ms; /* the longest of all rounds */
	int contexts_lost;
};

static void worst(uint64_t *ms, uint64_t from, uint64_t to)
{
	uint64_t took = to > from ? (to - from + 999999) / 1000000 : 0;
	*ms = *ms > took ? *ms : took;
}

/* All ranks join or rejoin. Measures from the last one's begin to the last one's end. */
static void gather(struct scene *s, bool measure)
{
	uint64_t begin = 0, end = 0;
	for (int i = 0; i < s->n; i++) {
		uint64_t t = hear(&s->ranks[i]);
		begin = begin > t ? begin : t;
	}
	for (int i = 0; i < s->n; i++) {
		uint64_t t = hear(&s->ranks[i]);
		end = end > t ? end : t;
	}
	if (measure)
		worst(&s->rebuilt_ms, begin, end);
	hear_all(s->ranks, s->n, READY);
}

static void begin_ranks(struct scene *s)
{
	if (s->w.n)
		nodes_clients(&s->w, s->ranks, actor_main, NULL);
	else
		clients_start(s->ranks, s->n, &s->d, actor_main, NULL);
	gather(s, false);
}

static void end_ranks(struct scene *s)
{
	say_all(s->ranks, s->n, END);
	ranks_end(s->ranks, s->n);
	for (int i = 0; i < (s->w.n ? s->w.n : 1); i++) {
		workers_finish(s->w.n ? &s->w.c.nodes[i] : &s->d);
		if (!s->w.n || !cluster_is_linked()) /* linked daemons keep idle connections open
							for a while */
			daemon_finishes(s->w.n ? &s->w.c.nodes[i] : &s->d);
	}
}

static ncclsvc_device_info gpu_info(struct scene *s, int gpu)
{
	ncclsvc_session *session = session_open(s->w.n ? node_of(&s->w, gpu) : &s->d);
	ncclsvc_device_info info = device_info(session, s->w.n ? gpu % s->w.each : gpu);
	ncclsvc_close(session);
	return info;
}

static pid_t worker_pid(struct scene *s, int gpu)
{
	pid_t pid = gpu_info(s, gpu).pid;
	CHECK(pid > 0);
	return pid;
}

static void play_round(struct scene *s, enum when when, int victim, bool worker, uint64_t *random)
{
	bool dead[RANKS_MAX] = {false};
	pid_t pid = worker ? worker_pid(s, victim) : 0;
	say_all(s->ranks, s->n, (uint64_t)when | (uint64_t)victim << 8 | (uint64_t)worker << 16);
	hear_all(s->ranks, s->n, READY);
	if (when == TORN)
		say(&s->ranks[victim], GO);
	bool inside = when == INSIDE || when == TORN;
	sleep_ms(when == BETWEEN ? 5 + draw(random) % 40 : inside ? 30 : 20);
	uint64_t killed = now_ns();
	if (worker) {
		CHECK_EQ(kill(pid, SIGKILL), 0);
	} else {
		client_kill(&s->ranks[victim]);
		dead[victim] = true;
	}
	for (int i = 0; i < s->n; i++) {
		if (dead[i])
			continue;
		worst(&s->noticed_ms, killed, hear(&s->ranks[i]));
		uint64_t released = hear(&s->ranks[i]);
		if (released == CONTEXT_LOST) {
			s->contexts_lost++;
			client_kill(&s->ranks[i]);
			dead[i] = true;
		} else {
			worst(&s->released_ms, killed, released);
		}
	}
	for (int i = 0; i < s->n; i++)
		if (dead[i])
			client_start(&s->ranks[i], actor_main);
		else
			say(&s->ranks[i], GO);
	gather(s, true);
}

static void unused_rank(struct client *c)
{
	gpu_use(c->rank);
	say(c, gpu_unused_memory());
}

static void unused_memory(struct scene *s, uint64_t *unused)
{
	struct client ranks[RANKS_MAX];
	clients_start(ranks, s->n, s->w.n ? &s->w.c.nodes[0] : &s->d, unused_rank, NULL);
	for (int i = 0; i < s->n; i++)
		unused[i] = hear(&ranks[i]);
	ranks_end(ranks, s->n);
}

/* NCCL needs some time to abort a communicator. */
static void await_one_comm(struct scene *s, int gpu)
{
	uint64_t end = now_ns() + limit_ms(ABORT_MS) * 1000000ull;
	ncclsvc_device_info info;
	while ((info = gpu_info(s, gpu)).nccl_comms > 1) {
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "GPU %d: %u NCCL communicators", gpu,
				     (unsigned)info.nccl_comms);
		sleep_ms(10);
	}
	CHECK_EQ(info.state, NCCLSVC_DEVICE_READY);
}

static void check_remains(struct scene *s, const uint64_t *before)
{
	uint64_t now[RANKS_MAX];
	for (int i = 0; i < s->n; i++)
		await_one_comm(s, i);
	unused_memory(s, now);
	for (int i = 0; i < s->n; i++)
		if (now[i] + LEEWAY < before[i])
			check_failed(__FILE__, __LINE__, "GPU %d: %llu MiB of memory are gone", i,
				     (unsigned long long)((before[i] - now[i]) / MIB));
}

void failure_rounds(int nodes, int each, enum when when, bool worker)
{
	struct scene s = {.n = nodes ? nodes * each : ranks_count()};
	struct worker_fds fds[CLUSTER_NODES];
	uint64_t unused[RANKS_MAX], random = setup.seed;
	int n = setup.repeat ? setup.repeat : 2;
	if (nodes)
		nodes_start(&s.w, nodes, each);
	else
		gpu_daemon_start(&s.d);
	begin_ranks(&s);
	end_ranks(&s);
	unused_memory(&s, unused);
	begin_ranks(&s);
	for (int i = 0; i < (nodes ? nodes : 1); i++)
		worker_fds_note(nodes ? &s.w.c.nodes[i] : &s.d, &fds[i]);
	for (int i = 0; i < n; i++) {
		stage("round %d of %d", i + 1, n);
		play_round(&s, when, i % s.n, worker, &random);
	}
	for (int i = 0; i < (nodes ? nodes : 1); i++)
		worker_fds_check(nodes ? &s.w.c.nodes[i] : &s.d, &fds[i]);
	end_ranks(&s);
	stage("checking for leftovers");
	check_remains(&s, unused);
	if (nodes)
		nodes_stop(&s.w);
	else
		gpu_daemon_stop(&s.d);
	unsigned noticed = limit_ms(setup.mps ? 2000 : 100),
		 rebuilt = limit_ms(setup.mps ? 4000 : 1500);
	report("%d rounds; at worst noticed after %llu ms (limit %u), stream released after %llu "
	       "ms, "
	       "rebuilt in %llu ms (limit %u)",
	       n, (unsigned long long)s.noticed_ms, noticed, (unsigned long long)s.released_ms,
	       (unsigned long long)s.rebuilt_ms, rebuilt);
	if (s.contexts_lost)
		report("MPS ended %d survivors' contexts: they were started anew", s.contexts_lost);
	CHECK(s.noticed_ms <= noticed);
	CHECK(s.rebuilt_ms <= rebuilt);
}

static void rounds(enum when when, bool worker)
{
	failure_rounds(0, 0, when, worker);
}

static void test_idle(void)
{
	rounds(IDLE, false);
}

static void test_between(void)
{
	rounds(BETWEEN, false);
}

static void test_waiting(void)
{
	rounds(WAITING, false);
}

static void test_awaited(void)
{
	rounds(AWAITED, false);
}

static void test_inside(void)
{
	rounds(INSIDE, false);
}

static void test_torn(void)
{
	rounds(TORN, false);
}

static void test_fault(void)
{
	rounds(FAULT, false);
}

static void test_worker_idle(void)
{
	rounds(IDLE, true);
}

static void test_worker_between(void)
{
	rounds(BETWEEN, true);
}

static void test_worker_inside(void)
{
	rounds(INSIDE, true);
}

const struct gpu_test failure_tests[] = {
	{"failures/trainer_idle", test_idle, 2, 120, TEST_QUICK},
	{"failures/trainer_between", test_between, 2, 120, 0},
	{"failures/trainer_waiting", test_waiting, 2, 120, 0},
	{"failures/trainer_awaited", test_awaited, 2, 120, 0},
	{"failures/trainer_inside", test_inside, 2, 120, TEST_QUICK},
	{"failures/trainer_torn", test_torn, 2, 120, TEST_QUICK},
	{"failures/trainer_fault", test_fault, 2, 180, TEST_REAL},
	{"failures/worker_idle", test_worker_idle, 2, 120, TEST_NCCL},
	{"failures/worker_between", test_worker_between, 2, 120, TEST_NCCL},
	{"failures/worker_inside", test_worker_inside, 2, 120, TEST_QUICK | TEST_NCCL},
	{0},
};
