/* SPDX-License-Identifier: Apache-2.0
 * Communicators with GPUs on several nodes: daemons on this machine, with some GPUs each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node_stand_ins.h"

enum word { READY = 1, GO };

static void test_values_2(void)
{
	nodes_run(2, 1, values_rank, NULL);
}

static void test_values_4(void)
{
	nodes_run(2, 2, values_rank, NULL);
}

static void test_random_2(void)
{
	nodes_run(2, 1, random_rank, NULL);
}

static void test_random_4(void)
{
	nodes_run(2, 2, random_rank, NULL);
}

static void test_mismatch_2(void)
{
	nodes_run(2, 1, mismatch_rank, NULL);
}

static void test_mismatch_4(void)
{
	nodes_run(2, 2, mismatch_rank, NULL);
}

static void test_circle_2(void)
{
	nodes_run(2, 1, circle_rank, NULL);
}

static void test_circle_3(void)
{
	nodes_run(3, 1, circle_rank, NULL);
}

static void test_circle_4(void)
{
	nodes_run(2, 2, circle_rank, NULL);
}

static void run_timeout(int n, int each)
{
	struct nodes w;
	struct client ranks[RANKS_MAX];
	const int last = n * each - 1;
	nodes_start(&w, n, each);
	nodes_clients(&w, ranks, timeout_rank, NULL);
	hear_all(ranks, last, READY);
	say(&ranks[last], GO);
	CHECK_EQ(hear(&ranks[last]), READY);
	ranks_end(ranks, n * each);
	nodes_stop(&w);
}

static void test_timeout_2(void)
{
	run_timeout(2, 1);
}

static void test_timeout_4(void)
{
	run_timeout(2, 2);
}

/* ---- Task groups, on two communicators ---- */

#define WORDS	5000
#define PARTS	8  /* results of one step, at most */
#define PENDING 12 /* steps between two checks */
#define REGIONS (PENDING * PARTS)
#define TO_PART ((size_t)PENDING * PARTS * WORDS)

/* An expected result. */
struct wanted {
	CUdeviceptr at;
	size_t count;
	int step, from; /* -1: the sum over all ranks */
};

struct grouper {
	struct rank r;
	ncclsvc_comm *comms[2];
	int place[2]; /* ranks in them; the second one has the reverse order */
	CUdeviceptr in, out;
	uint32_t *image;
	struct wanted wanted[REGIONS];
	int nwanted;
};

static uint32_t word_of(int process, int step, size_t i)
{
	return (uint32_t)(process * 7919 + step * 131 + (int)(i % 1009));
}

/* Fills the next part of the input with this step's words, notes the expected output, and returns
 * the part's offset. */
static size_t part(struct grouper *g, int step, size_t count, int from)
{
	const size_t at = (size_t)g->nwanted * WORDS * sizeof(uint32_t);
	for (size_t i = 0; i < count; i++)
		g->image[i] = word_of(g->r.rank, step, i);
	gpu_put(g->in + at, g->image, count * sizeof(uint32_t));
	g->wanted[g->nwanted++] = (struct wanted){g->out + at, count, step, from};
	return at;
}

static int process_of(const struct grouper *g, int comm, int rank)
{
	return comm ? g->r.n - 1 - rank : rank;
}

static void sum(struct grouper *g, int comm, int step, size_t count)
{
	size_t p = part(g, step, count, -1);
	CHECK_OK(ncclsvc_all_reduce(at(g->in + p), at(g->out + p), count, NCCLSVC_UINT32,
				    NCCLSVC_SUM, g->comms[comm], NULL));
}

/* Sends to the rank that is `by` ahead, and receives from the one `by` behind. */
static void pass_on(struct grouper *g, int comm, int step, size_t count, int by)
{
	const int n = g->r.n, me = g->place[comm], from = (me + n - by) % n;
	size_t p = part(g, step, count, process_of(g, comm, from));
	CHECK_OK(ncclsvc_send(at(g->in + p), count, NCCLSVC_UINT32, (me + by) % n, g->comms[comm],
			      NULL));
	CHECK_OK(ncclsvc_recv(at(g->out + p), count, NCCLSVC_UINT32, from, g->comms[comm], NULL));
}

static void one_step(struct grouper *g, int step, uint64_t *random)
{
	size_t count = 1 + draw(random) % WORDS;
	int kind = (int)(draw(random) % 6), comm = (int)(draw(random) % 2);
	stage("step %d, kind %d", step, kind);
	if (kind == 0) {
		sum(g, comm, step, count);
		return;
	}
	CHECK_OK(ncclsvc_group_begin(g->r.session));
	switch (kind) {
	case 1: /* all to all */
		for (int by = 1; by < g->r.n; by++)
			pass_on(g, comm, step, count, by);
		break;
	case 2: /* exchanges on both communicators */
		pass_on(g, 0, step, count, 1);
		pass_on(g, 1, step, count, 1);
		break;
	case 3:
		sum(g, comm, step, count);
		sum(g, !comm, step, count);
		break;
	case 4:
		sum(g, comm, step, count);
		sum(g, comm, step, count);
		break;
	default: /* a pipeline's exchange, and a sum */
		pass_on(g, comm, step, count, 1);
		sum(g, !comm, step, count);
	}
	CHECK_OK(ncclsvc_group_end(g->r.session));
}

static void check_steps(struct grouper *g)
{
	stage("checking");
	rank_sync(&g->r);
	for (int k = 0; k < g->nwanted; k++) {
		const struct wanted *w = &g->wanted[k];
		gpu_get(g->image, w->at, w->count * sizeof(uint32_t));
		for (size_t i = 0; i < w->count; i++) {
			uint32_t want = 0;
			for (int r = 0; w->from < 0 && r < g->r.n; r++)
				want += word_of(r, w->step, i);
			if (w->from >= 0)
				want = word_of(w->from, w->step, i);
			if (g->image[i] != want)
				check_failed(__FILE__, __LINE__,
					     "step %d: word %zu of %zu is %u, not %u", w->step, i,
					     w->count, g->image[i], want);
		}
	}
	g->nwanted = 0;
}

static void groups_rank(struct client *c)
{
	static struct grouper g;
	ncclsvc_unique_id second = c->id;
	uint64_t random = setup.seed;
	const int steps = setup.quick ? 240 : 1200;
	rank_open(&g.r, c);
	second.bytes[5] ^= 1;
	g.comms[0] = g.r.comm;
	g.place[0] = g.r.rank;
	g.place[1] = g.r.n - 1 - g.r.rank;
	CHECK_OK(ncclsvc_comm_join_device(g.r.session, &second, g.r.n, g.place[1], g.r.gpu, WAIT_MS,
					  &g.comms[1]));
	g.image = malloc(WORDS * sizeof(uint32_t));
	CHECK(g.image);
	CHECK_CU(cu.cuMemAlloc(&g.in, TO_PART * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemAlloc(&g.out, TO_PART * sizeof(uint32_t)));
	for (int step = 0; step < steps; step++) {
		one_step(&g, step, &random);
		if (step % PENDING == PENDING - 1)
			check_steps(&g);
	}
	check_steps(&g);
	CHECK_CU(cu.cuMemFree(g.in));
	CHECK_CU(cu.cuMemFree(g.out));
	free(g.image);
	CHECK_OK(ncclsvc_comm_leave(g.comms[1]));
	rank_close(&g.r);
	if (!c->rank)
		report("%d steps, seed %llu", steps, (unsigned long long)setup.seed);
}

static void test_groups_2(void)
{
	nodes_run(2, 1, groups_rank, NULL);
}

static void test_groups_4(void)
{
	nodes_run(2, 2, groups_rank, NULL);
}

static void test_groups_4_nodes(void)
{
	nodes_run(4, 1, groups_rank, NULL);
}

/* ---- The pool ---- */

#define POOL_ROUNDS 4

static void pool_rank(struct client *c)
{
	struct rank r;
	ncclsvc_unique_id id = c->id;
	rank_prepare(&r, c, c->rank);
	for (int round = 0; round < POOL_ROUNDS; round++) {
		id.bytes[3] = (uint8_t)(c->id.bytes[3] + round / 2);
		say(c, READY);
		CHECK_EQ(hear(c), GO);
		uint64_t begin = now_ns();
		CHECK_OK(ncclsvc_comm_join_device(r.session, &id, r.n, r.rank, r.gpu, WAIT_MS,
						  &r.comm));
		say(c, now_ns() - begin);
		rank_check_usable(&r);
		CHECK_OK(ncclsvc_comm_leave(r.comm));
	}
	ncclsvc_close(r.session);
	CHECK_CU(cu.cuStreamDestroy(r.stream));
}

/* Joins one communicator twice, then another one twice: NCCL creates only one for both. */
static void run_pool(int n, int each)
{
	struct nodes w;
	struct client ranks[RANKS_MAX];
	double ms[POOL_ROUNDS] = {0};
	const int all = n * each;
	nodes_start(&w, n, each);
	nodes_clients(&w, ranks, pool_rank, NULL);
	for (int round = 0; round < POOL_ROUNDS; round++) {
		hear_all(ranks, all, READY);
		say_all(ranks, all, GO);
		for (int i = 0; i < all; i++) {
			double took = (double)hear(&ranks[i]) / 1e6;
			ms[round] = ms[round] > took ? ms[round] : took;
		}
	}
	ranks_end(ranks, all);
	for (int i = 0; i < all; i++) {
		ncclsvc_session *s = session_open(node_of(&w, i));
		CHECK_EQ(device_info(s, i % each).nccl_comms, 1);
		for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;; sleep_ms(5)) {
			if (device_info(s, i % each).nccl_comms_idle == 1)
				break; /* shortly after the last rank has left */
			CHECK(now_ns() < end);
		}
		ncclsvc_close(s);
	}
	nodes_check_inits(&w, all, all);
	nodes_stop(&w);
	report("first join %.1f ms, then from the pool %.1f, %.1f and %.1f ms (limit %u)", ms[0],
	       ms[1], ms[2], ms[3], limit_ms(250));
	for (int round = 1; round < POOL_ROUNDS; round++)
		CHECK(ms[round] < limit_ms(250));
}

static void test_pool_2(void)
{
	run_pool(2, 1);
}

static void test_pool_4(void)
{
	run_pool(2, 2);
}

/* ---- Parts, and members that leave ---- */

static void use_together(struct rank *whole, struct rank *part)
{
	for (int i = 0; i < 5; i++) {
		rank_check_usable(whole);
		rank_check_usable(part);
	}
}

static void split_rank(struct client *c)
{
	struct rank r, part;
	rank_open(&r, c);
	for (int across = 0; across < 2; across++) {
		stage("splitting %s", across ? "across the nodes" : "by node");
		part = r;
		CHECK_OK(ncclsvc_comm_split(r.comm, across ? r.rank % 2 : r.rank / 2, -r.rank,
					    WAIT_MS, &part.comm));
		part.n = 2;
		part.rank = ncclsvc_comm_rank(part.comm);
		CHECK_EQ(part.rank, across ? 1 - r.rank / 2 : 1 - r.rank % 2);
		use_together(&r, &part);
		CHECK_OK(ncclsvc_comm_leave(part.comm));
	}
	rank_close(&r);
}

static void test_split_4(void)
{
	nodes_run(2, 2, split_rank, NULL);
}

/* The last rank leaves while the others' tasks wait for it, and comes back. */
static void leave_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	ncclsvc_task task;
	rank_open(&r, c);
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemAlloc(&p, 4096));
	if (r.rank == r.n - 1) {
		CHECK_EQ(hear(c), GO);
		CHECK_OK(ncclsvc_comm_leave(r.comm));
		rank_join(&r);
	} else {
		CHECK_OK(ncclsvc_all_reduce(at(p), at(p), 64, NCCLSVC_UINT32, NCCLSVC_SUM, r.comm,
					    &task));
		say(c, READY);
		wait_for(r.session, task, NCCLSVC_PEER_GONE);
		CHECK_EQ(status_of(r.session, task).rank_a, r.n - 1);
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		CHECK_OK(ncclsvc_comm_rejoin(r.comm, WAIT_MS));
	}
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void run_leave(int n, int each)
{
	struct nodes w;
	struct client ranks[RANKS_MAX];
	const int last = n * each - 1;
	nodes_start(&w, n, each);
	nodes_clients(&w, ranks, leave_rank, NULL);
	hear_all(ranks, last, READY);
	say(&ranks[last], GO);
	ranks_end(ranks, last + 1);
	nodes_check_inits(&w, last + 1, last + 1);
	nodes_stop(&w);
}

static void test_leave_2(void)
{
	run_leave(2, 1);
}

static void test_leave_4(void)
{
	run_leave(2, 2);
}

/* Rank 0 sends and leaves at once. Its message still arrives, and NCCL's communicator remains
 * usable. */
static void early_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemAlloc(&p, 4096));
	gpu_fill(p, (uint32_t)r.rank + 1, 64);
	if (r.rank) {
		CHECK_OK(ncclsvc_stream_set(r.session, r.stream, NCCLSVC_STREAM_DETACHED));
		CHECK_OK(ncclsvc_recv(at(p), 64, NCCLSVC_UINT32, 0, r.comm, NULL));
		CHECK_EQ(hear(c), GO);
		sleep_ms(1500); /* longer than it takes to give up a node */
		CHECK_OK(ncclsvc_wait_all(r.session, WAIT_MS));
		gpu_check(p, 1, 64, "what came before its sender left");
		CHECK_OK(ncclsvc_comm_error(r.comm));
	} else {
		CHECK_OK(ncclsvc_send(at(p), 64, NCCLSVC_UINT32, 1, r.comm, NULL));
		rank_sync(&r);
	}
	CHECK_CU(cu.cuMemFree(p));
	CHECK_OK(ncclsvc_comm_leave(r.comm));
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	rank_join(&r);
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_early(void)
{
	struct nodes w;
	struct client ranks[2];
	nodes_start(&w, 2, 1);
	nodes_clients(&w, ranks, early_rank, NULL);
	CHECK_EQ(hear(&ranks[0]), READY);
	say(&ranks[1], GO);
	CHECK_EQ(hear(&ranks[1]), READY);
	say_all(ranks, 2, GO);
	ranks_end(ranks, 2);
	nodes_check_inits(&w, 2, 2);
	nodes_stop(&w);
}

/* ---- Inspection ---- */

/* Rank 1 is late; then its stream is blocked. */
static void shown_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p, gate;
	ncclsvc_task task;
	const uint64_t open = 1;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, 4096));
	CHECK_CU(cu.cuMemAlloc(&gate, sizeof(open)));
	gpu_fill(gate, 0, 2);
	for (int turn = 0; turn < 2; turn++) {
		if (r.rank && !turn)
			CHECK_EQ(hear(c), GO);
		if (r.rank && turn)
			CHECK_CU(cu.cuStreamWaitValue64(r.stream, gate, 1,
							CU_STREAM_WAIT_VALUE_GEQ));
		CHECK_OK(ncclsvc_all_reduce(at(p), at(p), 64, NCCLSVC_UINT32, NCCLSVC_SUM, r.comm,
					    &task));
		if (turn || !r.rank)
			say(c, READY);
		if (turn) {
			CHECK_EQ(hear(c), GO);
			gpu_put(gate, &open, sizeof(open));
		}
		rank_wait(&r, task);
	}
	CHECK_CU(cu.cuMemFree(gate));
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void ctl_says(const struct daemon *d, const char *view, const char *text)
{
	static char out[1 << 16];
	char *argv[] = {(char *)program("NCCLSVC_CTL"), "--socket", (char *)d->socket, (char *)view,
			NULL};
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; now_ns() < end; sleep_ms(20)) {
		CHECK(run_program(argv, out, sizeof(out)) >= 0);
		if (strstr(out, text))
			return;
	}
	check_failed(__FILE__, __LINE__, "ncclsvc-ctl %s does not say \"%s\": %s", view, text, out);
}

static void test_shown(void)
{
	struct nodes w;
	struct client ranks[2];
	char text[64];
	nodes_start(&w, 2, 1);
	nodes_clients(&w, ranks, shown_rank, NULL);
	CHECK_EQ(hear(&ranks[0]), READY);
	ctl_says(&w.c.nodes[0], "comms", "0, 0 of node 1");
	/* Standalone daemons have numbers of their own for the others. */
	ctl_says(&w.c.nodes[1], "comms", cluster_is_linked() ? "0 of node 1, 0" : "0 of node 0, 0");
	snprintf(text, sizeof(text), "rank 1 (pid %d", ranks[1].pid);
	ctl_says(&w.c.nodes[0], "why", text);
	ctl_says(&w.c.nodes[1], "why", text);
	say(&ranks[1], GO);
	hear_all(ranks, 2, READY);
	snprintf(text, sizeof(text), "for the stream of rank 1 (pid %d", ranks[1].pid);
	ctl_says(&w.c.nodes[0], "why", text);
	ctl_says(&w.c.nodes[1], "why", text);
	say_all(ranks, 2, GO);
	ranks_end(ranks, 2);
	nodes_stop(&w);
}

const struct gpu_test node_tests[] = {
	{"nodes/values/2", test_values_2, 2, 180, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/values/4", test_values_4, 4, 240, TEST_ONE_NODE},
	{"nodes/random/2", test_random_2, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/random/4", test_random_4, 4, 180, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/groups/2", test_groups_2, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/groups/4", test_groups_4, 4, 120, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/groups_nodes/4", test_groups_4_nodes, 4, 120, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/mismatch/2", test_mismatch_2, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/mismatch/4", test_mismatch_4, 4, 60, TEST_ONE_NODE},
	{"nodes/circle/2", test_circle_2, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/circle/3", test_circle_3, 3, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/circle/4", test_circle_4, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/timeout/2", test_timeout_2, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/timeout/4", test_timeout_4, 4, 60, TEST_ONE_NODE},
	{"nodes/pool/2", test_pool_2, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/pool/4", test_pool_4, 4, 60, TEST_ONE_NODE},
	{"nodes/split/4", test_split_4, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/leave/2", test_leave_2, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/leave/4", test_leave_4, 4, 60, TEST_ONE_NODE},
	{"nodes/early", test_early, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nodes/shown", test_shown, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
