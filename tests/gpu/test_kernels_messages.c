/* SPDX-License-Identifier: Apache-2.0
 * Messages in kernels: senders ahead of their receivers, messages that do not match their Recvs,
 * and messages of a rank to itself. */
#include "meeting.h"
#include "proto/abi/peer_abi.h"

#define LINES(words)  (1 + ((words) * sizeof(uint32_t) + LL_LINE_DATA - 1) / LL_LINE_DATA)
#define MESSAGE	      250 /* words */
#define MESSAGE_BYTES (MESSAGE * sizeof(uint32_t))
#define FIT	      ((unsigned)(PEER_RING_LINES / LINES(MESSAGE))) /* messages in a full ring */
#define AHEAD	      (FIT - 10)
#define MORE	      40 /* messages beyond that */
#define STREAM	      (FIT + MORE)
#define ROUNDS	      5

enum word { READY = 1, GO };

struct sender {
	struct rank r;
	CUdeviceptr p; /* STREAM messages, each of one value */
	ncclsvc_task tasks[STREAM];
};

static uint32_t value_of(unsigned i, int from, int to, unsigned round)
{
	return 1000000 * round + 1000 * i + 10 * (unsigned)from + (unsigned)to;
}

static CUdeviceptr place_of(const struct sender *s, unsigned i)
{
	return s->p + i * MESSAGE_BYTES;
}

static void send_many(struct sender *s, unsigned n, int to, unsigned round)
{
	struct rank *r = &s->r;
	for (unsigned i = 0; i < n; i++) {
		CHECK_CU(cu.cuMemsetD32Async(place_of(s, i), value_of(i, r->rank, to, round),
					     MESSAGE, r->stream));
		kernels_send(r, place_of(s, i), MESSAGE, to, &s->tasks[i]);
	}
}

static void receive_many(struct sender *s, unsigned n, int from, unsigned round)
{
	struct rank *r = &s->r;
	CHECK_CU(cu.cuMemsetD32Async(s->p, 0, n * MESSAGE, r->stream));
	for (unsigned i = 0; i < n; i++)
		kernels_recv(r, place_of(s, i), MESSAGE, from, &s->tasks[i]);
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	for (unsigned i = 0; i < n; i++) {
		rank_wait(r, s->tasks[i]);
		gpu_check(place_of(s, i), value_of(i, from, r->rank, round), MESSAGE, "a message");
	}
}

static void sender_open(struct sender *s, struct client *c)
{
	rank_open(&s->r, c);
	CHECK_CU(cu.cuMemAlloc(&s->p, STREAM * MESSAGE_BYTES));
	rank_check_usable(&s->r);
}

static void sender_close(struct sender *s)
{
	rank_check_usable(&s->r);
	CHECK_CU(cu.cuMemFree(s->p));
	rank_close(&s->r);
}

/* ---- A sender does not wait for its receivers ---- */

static void ahead_rank(struct client *c)
{
	struct sender s;
	sender_open(&s, c);
	for (unsigned round = 0; round < ROUNDS; round++) {
		stage("round %u", round);
		for (int to = 1; !s.r.rank && to < s.r.n; to++) {
			send_many(&s, AHEAD, to, round);
			for (unsigned i = 0; i < AHEAD; i++)
				rank_wait(&s.r, s.tasks[i]);
		}
		say(c, READY);
		CHECK_EQ(hear(c), GO);
		if (s.r.rank)
			receive_many(&s, AHEAD, 0, round);
	}
	sender_close(&s);
}

/* The receivers start when everything has been sent. */
static void test_ahead(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, ahead_rank, NULL);
	for (unsigned round = 0; round < ROUNDS; round++) {
		hear_all(ranks, n, READY);
		say_all(ranks, n, GO);
	}
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* ---- A sender waits if the ring is full ---- */

static void overfill(struct sender *s, unsigned round)
{
	send_many(s, STREAM, 1, round);
	for (unsigned i = 0; i < FIT; i++)
		rank_wait(&s->r, s->tasks[i]);
	CHECK_RESULT(ncclsvc_wait(s->r.session, s->tasks[FIT], 50), NCCLSVC_TIMEOUT);
	say(s->r.c, READY);
	for (unsigned i = FIT; i < STREAM; i++)
		rank_wait(&s->r, s->tasks[i]);
}

/* Each round fills the ring from where the previous one left it. */
static void full_rank(struct client *c)
{
	struct sender s;
	sender_open(&s, c);
	for (unsigned round = 0; round < ROUNDS; round++) {
		stage("round %u", round);
		if (s.r.rank == 0) {
			overfill(&s, round);
		} else if (s.r.rank == 1) {
			CHECK_EQ(hear(c), GO);
			receive_many(&s, STREAM, 0, round);
		}
		rank_check_usable(&s.r);
	}
	sender_close(&s);
}

static void test_full(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, full_rank, NULL);
	for (unsigned round = 0; round < ROUNDS; round++) {
		CHECK_EQ(hear(&ranks[0]), READY);
		say(&ranks[1], GO);
	}
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* ---- Messages that do not match their Recvs ---- */

struct variant {
	const char *what;
	size_t counts[2]; /* of the sender and the receiver */
	ncclsvc_type types[2];
	ncclsvc_field field;
};

#define SAME_TYPE                                                                                  \
	{                                                                                          \
		NCCLSVC_UINT32, NCCLSVC_UINT32                                                     \
	}
static const struct variant variants[] = {
	{"less", {SMALL / 2, SMALL}, SAME_TYPE, NCCLSVC_FIELD_COUNT},
	{"more", {SMALL, SMALL / 2}, SAME_TYPE, NCCLSVC_FIELD_COUNT},
	{"nothing", {0, SMALL}, SAME_TYPE, NCCLSVC_FIELD_COUNT},
	{"something", {SMALL, 0}, SAME_TYPE, NCCLSVC_FIELD_COUNT},
	{"more channels", {LONG_WORDS, SMALL}, SAME_TYPE, NCCLSVC_FIELD_COUNT},
	{"fewer channels", {SMALL, LONG_WORDS}, SAME_TYPE, NCCLSVC_FIELD_COUNT},
	{"a type", {SMALL, SMALL}, {NCCLSVC_FLOAT32, NCCLSVC_UINT32}, NCCLSVC_FIELD_TYPE},
	{"a smaller type", {SMALL, SMALL}, {NCCLSVC_UINT8, NCCLSVC_UINT32}, NCCLSVC_FIELD_TYPE},
	{"in NCCL", {SMALL, LARGE_WORDS}, SAME_TYPE, NCCLSVC_FIELD_COUNT},
	{"from NCCL", {LARGE_WORDS, SMALL}, SAME_TYPE, NCCLSVC_FIELD_COUNT},
};
#define VARIANTS (sizeof(variants) / sizeof(variants[0]))

/* The daemon notices errors of senders and receivers separately, so either may be named first. */
static void check_mismatch(const struct variant *v, const ncclsvc_status *st)
{
	const bool sender = st->rank_a == 0;
	const bool type = v->field == NCCLSVC_FIELD_TYPE;
	CHECK_EQ(st->result, NCCLSVC_MISMATCH);
	CHECK_EQ(st->field, v->field);
	CHECK_EQ(st->rank_a + st->rank_b, 1);
	CHECK(st->pid_a > 0 && st->pid_b > 0);
	CHECK_EQ(st->value_a, type ? v->types[!sender] : v->counts[!sender]);
	CHECK_EQ(st->value_b, type ? v->types[sender] : v->counts[sender]);
}

/* The Send may have ended long before, so the sender waits for its next operation, which fails. */
static void mismatch(struct meeting *m, CUdeviceptr p, const struct variant *v)
{
	ncclsvc_task task = 0;
	ncclsvc_status st;
	struct rank *const r = &m->r;
	meeting_reach(m);
	kernels_may_end(r, NCCLSVC_MISMATCH);
	const uint64_t begin = now_ns();
	if (r->rank == 0) {
		CHECK_OK(ncclsvc_send(at(p), v->counts[0], v->types[0], 1, r->comm, NULL));
		kernels_recv(r, p, SMALL, 1, &task);
	} else if (r->rank == 1) {
		const ncclsvc_result result =
			ncclsvc_recv(at(p), v->counts[1], v->types[1], 0, r->comm, &task);
		kernels_submitted(r, result, &task);
	} else {
		kernels_recv(r, p, SMALL, 0, &task);
	}
	if (kernels_failed(r, task, &st))
		check_mismatch(v, &st);
	kernels_over(r, NCCLSVC_MISMATCH);
	CHECK(now_ns() - begin < limit_ms(1500) * UINT64_C(1000000));
	CHECK_RESULT(ncclsvc_send(at(p), SMALL, NCCLSVC_UINT32, r->rank ? 0 : 1, r->comm, NULL),
		     NCCLSVC_STALE_EPOCH);
	stage("waiting for the stream");
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
}

static void exchange(struct rank *r, CUdeviceptr p)
{
	const CUdeviceptr to = p + SMALL * sizeof(uint32_t);
	const int before = (r->rank + r->n - 1) % r->n;
	CHECK_CU(cu.cuMemsetD32Async(p, 7 + (unsigned)r->rank, SMALL, r->stream));
	kernels_send(r, p, SMALL, (r->rank + 1) % r->n, NULL);
	kernels_recv(r, to, SMALL, before, NULL);
	rank_sync(r);
	gpu_check(to, 7 + (unsigned)before, SMALL, "what the rank before sent");
}

static void message_mismatch_rank(struct client *c)
{
	struct meeting m;
	CUdeviceptr p;
	meeting_open(&m, c);
	CHECK_CU(cu.cuMemAlloc(&p, LARGE));
	exchange(&m.r, p);
	for (size_t i = 0; i < VARIANTS; i++) {
		stage("%s", variants[i].what);
		mismatch(&m, p, &variants[i]);
		kernels_rejoin(&m.r);
		exchange(&m.r, p);
	}
	CHECK_CU(cu.cuMemFree(p));
	meeting_close(&m);
}

static void test_mismatch(void)
{
	kernels_run(ranks_count(), message_mismatch_rank, NULL);
}

/* ---- To itself ---- */

static void to_oneself(struct rank *r, CUdeviceptr p, size_t words, bool grouped)
{
	const CUdeviceptr to = p + LARGE / 2;
	const uint32_t value = (uint32_t)words + (uint32_t)r->rank;
	CHECK_CU(cu.cuMemsetD32Async(p, value, words, r->stream));
	CHECK_CU(cu.cuMemsetD32Async(to, 0, words + 1, r->stream));
	if (grouped)
		CHECK_OK(ncclsvc_group_begin(r->session));
	kernels_send(r, p, words, r->rank, NULL);
	kernels_recv(r, to, words, r->rank, NULL);
	if (grouped)
		CHECK_OK(ncclsvc_group_end(r->session));
	rank_sync(r);
	gpu_check(to, value, words, "what it sent to itself");
	gpu_check(to + words * sizeof(uint32_t), 0, 1, "the word behind it");
}

static void oneself_rank(struct client *c)
{
	static const size_t words[] = {0, 1, SMALL, 2000, 70001, LONG_WORDS};
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, LARGE));
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		stage("%zu words", words[i]);
		to_oneself(&r, p, words[i], true);
		if (words[i] < 1000)
			to_oneself(&r, p, words[i], false);
	}
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_oneself(void)
{
	kernels_run(ranks_count(), oneself_rank, NULL);
}

const struct gpu_test kernel_message_tests[] = {
	{"kernels/messages/ahead", test_ahead, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/ahead/4", test_ahead, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/full", test_full, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/mismatch", test_mismatch, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/mismatch/4", test_mismatch, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/oneself", test_oneself, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
