/* SPDX-License-Identifier: Apache-2.0
 * Random work on several communicators and streams at once. Every rank draws the same plan from the
 * same seed and simulates all ranks' part of it on the host, so it knows the expected result. */
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

#define COMMS	3
#define STREAMS 4
#define BUFFERS 6
#define WORDS	4096 /* of each buffer */
#define PART	1000 /* words that a step works on, at most, for each rank */

enum kind {
	ALL_REDUCE,
	BROADCAST,
	ALL_GATHER,
	REDUCE_SCATTER,
	REDUCE,
	ALL_TO_ALL,
	SHIFT,
	COPY,
	KINDS
};

/* One step of the plan. Ranks are those in the communicator. */
struct step {
	enum kind kind;
	int comm, stream, then; /* then: the stream that continues with the results */
	bool detached;
	int from, to; /* buffers */
	size_t count, at_from, at_to;
	ncclsvc_redop redop;
	int root;
};

struct player {
	struct rank r; /* its communicator is comms[0] */
	ncclsvc_comm *comms[COMMS];
	int order[COMMS][RANKS_MAX]; /* rank in the communicator -> process */
	int place[COMMS];	     /* this process's rank */
	CUstream streams[STREAMS];
	struct buffer buffers[BUFFERS];
	int owner[BUFFERS];		 /* the stream that may use it */
	uint32_t (*all)[BUFFERS][WORDS]; /* host copies of every process's buffers */
};

/* ---- The plan ---- */

static struct step draw_step(const struct player *p, uint64_t *random)
{
	static const ncclsvc_redop redops[] = {NCCLSVC_SUM, NCCLSVC_MAX, NCCLSVC_MIN};
	struct step s = {
		.kind = draw(random) % KINDS,
		.comm = (int)(draw(random) % COMMS),
		.from = (int)(draw(random) % BUFFERS),
		.count = draw(random) % (PART + 1),
		.redop = redops[draw(random) % 3],
		.root = (int)(draw(random) % (unsigned)p->r.n),
	};
	s.stream = p->owner[s.from];
	/* Both buffers must belong to the same stream; otherwise, use only one. */
	s.to = (int)(draw(random) % BUFFERS);
	if (p->owner[s.to] != s.stream)
		s.to = s.from;
	/* The two parts do not overlap, even in one buffer. */
	s.at_from = draw(random) % (WORDS / 2 - PART);
	s.at_to = WORDS / 2 + draw(random) % (WORDS / 2 - PART);
	s.detached = s.kind != COPY && draw(random) % 3 == 0;
	s.then = s.detached ? (int)(draw(random) % STREAMS) : s.stream;
	return s;
}

/* ---- On the host, for all processes ---- */

static uint32_t fold(uint32_t a, uint32_t b, ncclsvc_redop redop)
{
	switch (redop) {
	case NCCLSVC_MAX:
		return a > b ? a : b;
	case NCCLSVC_MIN:
		return a < b ? a : b;
	default:
		return a + b;
	}
}

/* Words of a block, when the step's words are divided among n ranks. */
static size_t block(const struct step *s, int n)
{
	return s->count / (size_t)n;
}

static void play_on_host(struct player *p, const struct step *s)
{
	static uint32_t in[RANKS_MAX][PART];
	int n = p->r.n;
	const int *order = p->order[s->comm];
	size_t count = s->count, b = block(s, n);
	for (int k = 0; k < n; k++)
		memcpy(in[k], &p->all[order[k]][s->from][s->at_from], count * sizeof(uint32_t));
	for (int k = 0; k < n; k++) {
		uint32_t *out = &p->all[order[k]][s->to][s->at_to];
		switch (s->kind) {
		case ALL_REDUCE:
		case REDUCE:
			for (size_t i = 0; (s->kind == ALL_REDUCE || k == s->root) && i < count;
			     i++) {
				out[i] = in[0][i];
				for (int j = 1; j < n; j++)
					out[i] = fold(out[i], in[j][i], s->redop);
			}
			break;
		case REDUCE_SCATTER:
			for (size_t i = 0; i < b; i++) {
				out[i] = in[0][(size_t)k * b + i];
				for (int j = 1; j < n; j++)
					out[i] = fold(out[i], in[j][(size_t)k * b + i], s->redop);
			}
			break;
		case BROADCAST:
			memcpy(out, in[s->root], count * sizeof(*out));
			break;
		case ALL_GATHER:
			for (int j = 0; j < n; j++)
				memcpy(out + (size_t)j * b, in[j], b * sizeof(*out));
			break;
		case ALL_TO_ALL:
			for (int j = 0; j < n; j++)
				memcpy(out + (size_t)j * b, in[j] + (size_t)k * b,
				       b * sizeof(*out));
			break;
		case SHIFT:
			memcpy(out, in[(k + n - 1) % n], count * sizeof(*out));
			break;
		default:
			memcpy(out, in[k], count * sizeof(*out));
		}
	}
}

/* ---- On the GPU ---- */

static ncclsvc_result shift(struct player *p, const struct step *s, const void *from, void *to,
			    ncclsvc_task *task)
{
	int n = p->r.n, me = p->place[s->comm];
	ncclsvc_comm *comm = p->comms[s->comm];
	ncclsvc_result r = ncclsvc_group_begin(p->r.session);
	if (!r)
		r = ncclsvc_send(from, s->count, NCCLSVC_UINT32, (me + 1) % n, comm, NULL);
	if (!r)
		r = ncclsvc_recv(to, s->count, NCCLSVC_UINT32, (me + n - 1) % n, comm, task);
	ncclsvc_result end = ncclsvc_group_end(p->r.session);
	return r ? r : end;
}

static ncclsvc_result submit(struct player *p, const struct step *s, ncclsvc_task *task)
{
	void *from = at(p->buffers[s->from].p + s->at_from * sizeof(uint32_t));
	void *to = at(p->buffers[s->to].p + s->at_to * sizeof(uint32_t));
	ncclsvc_comm *comm = p->comms[s->comm];
	size_t b = block(s, p->r.n);
	const ncclsvc_type type = NCCLSVC_UINT32;
	switch (s->kind) {
	case ALL_REDUCE:
		return ncclsvc_all_reduce(from, to, s->count, type, s->redop, comm, task);
	case REDUCE:
		return ncclsvc_reduce(from, to, s->count, type, s->redop, s->root, comm, task);
	case REDUCE_SCATTER:
		return ncclsvc_reduce_scatter(from, to, b, type, s->redop, comm, task);
	case BROADCAST:
		return ncclsvc_broadcast(from, to, s->count, type, s->root, comm, task);
	case ALL_GATHER:
		return ncclsvc_all_gather(from, to, b, type, comm, task);
	case ALL_TO_ALL:
		return ncclsvc_all_to_all(from, to, b, type, comm, task);
	default:
		return shift(p, s, from, to, task);
	}
}

static void play_on_gpu(struct player *p, const struct step *s)
{
	ncclsvc_session *session = p->r.session;
	CUstream stream = p->streams[s->stream];
	ncclsvc_task task;
	if (s->kind == COPY) {
		if (s->count)
			CHECK_CU(cu.cuMemcpyDtoDAsync(
				p->buffers[s->to].p + s->at_to * sizeof(uint32_t),
				p->buffers[s->from].p + s->at_from * sizeof(uint32_t),
				s->count * sizeof(uint32_t), stream));
		return;
	}
	CHECK_OK(ncclsvc_stream_set(session, stream, s->detached ? NCCLSVC_STREAM_DETACHED : 0));
	ncclsvc_result r = submit(p, s, &task);
	if (r == NCCLSVC_AGAIN) { /* the ring is full */
		CHECK_OK(ncclsvc_wait_all(session, WAIT_MS));
		r = submit(p, s, &task);
	}
	CHECK_OK(r);
	if (s->detached)
		CHECK_OK(ncclsvc_stream_wait(session, p->streams[s->then], task));
}

/* ---- Beginning and end ---- */

static void shuffle(int *order, int n, uint64_t *random)
{
	for (int i = 0; i < n; i++)
		order[i] = i;
	for (int i = n - 1; i > 0; i--) {
		int j = (int)(draw(random) % (unsigned)(i + 1)), t = order[i];
		order[i] = order[j];
		order[j] = t;
	}
}

static void player_open(struct player *p, struct client *c, uint64_t *random)
{
	rank_open(&p->r, c);
	p->comms[0] = p->r.comm;
	for (int i = 0; i < COMMS; i++) {
		ncclsvc_unique_id id = c->id;
		id.bytes[0] ^= (uint8_t)i;
		shuffle(p->order[i], p->r.n, random);
		if (i == 0)
			for (int k = 0; k < p->r.n; k++)
				p->order[0][k] = k;
		for (int k = 0; k < p->r.n; k++)
			if (p->order[i][k] == p->r.rank)
				p->place[i] = k;
		if (i)
			CHECK_OK(ncclsvc_comm_join_device(p->r.session, &id, p->r.n, p->place[i],
							  p->r.gpu, WAIT_MS, &p->comms[i]));
	}
	for (int i = 0; i < STREAMS; i++)
		p->streams[i] = gpu_stream();
	p->all = malloc((size_t)p->r.n * sizeof(*p->all));
	CHECK(p->all);
	for (int k = 0; k < p->r.n; k++)
		for (int i = 0; i < BUFFERS; i++)
			for (int w = 0; w < WORDS; w++)
				p->all[k][i][w] = draw(random);
	for (int i = 0; i < BUFFERS; i++) {
		p->owner[i] = i % STREAMS;
		buffer_make(&p->buffers[i], i % MEMORY_KINDS, p->r.gpu, p->r.session,
			    WORDS * sizeof(uint32_t));
		gpu_put(p->buffers[i].p, p->all[p->r.rank][i], WORDS * sizeof(uint32_t));
	}
}

static void player_close(struct player *p)
{
	uint32_t *is = malloc(WORDS * sizeof(*is));
	CHECK(is);
	for (int i = 0; i < STREAMS; i++) {
		stage("waiting for stream %d", i);
		CHECK(gpu_stream_ends(p->streams[i], 2 * WAIT_MS));
	}
	CHECK_OK(ncclsvc_wait_all(p->r.session, WAIT_MS));
	/* Leaving too early would end the others' operations. */
	CHECK_OK(ncclsvc_stream_set(p->r.session, p->r.stream, 0));
	rank_check_usable(&p->r);
	for (int i = 0; i < BUFFERS; i++) {
		gpu_get(is, p->buffers[i].p, WORDS * sizeof(*is));
		for (int w = 0; w < WORDS; w++)
			if (is[w] != p->all[p->r.rank][i][w])
				check_failed(__FILE__, __LINE__,
					     "seed %llu: word %d of buffer %d is %u, not %u",
					     (unsigned long long)setup.seed, w, i, is[w],
					     p->all[p->r.rank][i][w]);
	}
	free(is);
	free(p->all);
	for (int i = 0; i < BUFFERS; i++)
		buffer_free(&p->buffers[i]);
	for (int i = 1; i < COMMS; i++)
		CHECK_OK(ncclsvc_comm_leave(p->comms[i]));
	rank_close(&p->r);
	for (int i = 0; i < STREAMS; i++)
		CHECK_CU(cu.cuStreamDestroy(p->streams[i]));
}

void random_rank(struct client *c)
{
	static struct player p;
	uint64_t random = setup.seed;
	unsigned steps = setup.quick ? 300 : 3000;
	player_open(&p, c, &random);
	for (unsigned i = 0; i < steps; i++) {
		struct step s = draw_step(&p, &random);
		stage("seed %llu, step %u: kind %d on communicator %d, stream %d",
		      (unsigned long long)setup.seed, i, s.kind, s.comm, s.stream);
		play_on_gpu(&p, &s);
		play_on_host(&p, &s);
		/* The previous owner of the buffers must not touch them before the task is over. */
		p.owner[s.from] = p.owner[s.to] = s.then;
	}
	player_close(&p);
	if (!c->rank)
		report("%u steps, seed %llu", steps, (unsigned long long)setup.seed);
}

static void test_random_2(void)
{
	ranks_run(2, random_rank, NULL);
}

static void test_random_4(void)
{
	ranks_run(4, random_rank, NULL);
}

const struct gpu_test random_tests[] = {
	{"random/2", test_random_2, 2, 90, TEST_QUICK},
	{"random/4", test_random_4, 4, 120, TEST_QUICK},
	{0},
};
