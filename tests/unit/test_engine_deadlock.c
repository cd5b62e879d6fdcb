/* SPDX-License-Identifier: Apache-2.0
 * Members of several nodes that all wait for each other, and such that only seem to. The engines of
 * three nodes run in this process; the test is MPI between them, and may hold messages back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>
#include <utlist.h>

#include "base/timings.h"
#include "channel/mpi_api.h"
#include "engine_gpus.h"
#include "sched/span.h"
#include "transport/transports.h"

#define NODES  3
#define RANKS  4
#define SPAN   77
#define MEMORY 9			   /* a trainer's region on the host */
#define LOOKS  ((long)(8 * STUCK_LOOK_NS)) /* a deadlock would have been found by then */
#define MANY   600			   /* more than one message has room for */
#define TOO    2500			   /* twice that is more than a node reports */

/* ---- MPI ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct message {
	struct message *prev, *next;
	size_t bytes;
	char body[];
};

/* From one node to another, in order. */
static struct channel {
	struct message *messages;
	bool held;
	enum span_kind holds; /* held as soon as such a message is said */
} channels[NODES][NODES];
static struct message *given[NODES]; /* the last that the node has heard */
static unsigned said[SPAN_END];	     /* by kind */

static int say(int from, const void *body, size_t bytes, int to)
{
	struct message *m = malloc(sizeof(*m) + bytes);
	struct channel *c = &channels[from][to];
	struct span_header h;
	assert_non_null(m);
	assert_true(bytes >= sizeof(h));
	m->bytes = bytes;
	memcpy(m->body, body, bytes);
	memcpy(&h, body, sizeof(h));
	pthread_mutex_lock(&lock);
	said[h.kind]++;
	c->held = c->held || h.kind == c->holds;
	DL_APPEND(c->messages, m);
	pthread_mutex_unlock(&lock);
	return 1;
}

static const void *hear(int node, size_t *bytes, int *from)
{
	struct message *m = NULL;
	pthread_mutex_lock(&lock);
	for (*from = 0; *from < NODES; ++*from) {
		struct channel *c = &channels[*from][node];
		m = c->held ? NULL : c->messages;
		if (!m)
			continue;
		DL_DELETE(c->messages, m);
		break;
	}
	pthread_mutex_unlock(&lock);
	free(given[node]);
	given[node] = m;
	*bytes = m ? m->bytes : 0;
	return m ? m->body : NULL;
}

static int no_bytes(const void *from, size_t bytes, int node, int tag, void *cookie)
{
	(void)from;
	(void)bytes;
	(void)node;
	(void)tag;
	(void)cookie;
	return -1;
}

static int no_receive(void *to, size_t bytes, int node, int tag, void *cookie)
{
	return no_bytes(to, bytes, node, tag, cookie);
}

static unsigned none_done(struct mpi_done *done, unsigned max)
{
	(void)done;
	(void)max;
	return 0;
}

#define NODE(n)                                                                                    \
	static int say_##n(const void *from, size_t bytes, int node, void *cookie)                 \
	{                                                                                          \
		(void)cookie;                                                                      \
		return say(n, from, bytes, node);                                                  \
	}                                                                                          \
	static const void *hear_##n(size_t *bytes, int *node)                                      \
	{                                                                                          \
		return hear(n, bytes, node);                                                       \
	}
NODE(0)
NODE(1)
NODE(2)

#define API(n)                                                                                     \
	{                                                                                          \
		.version = MPI_API_VERSION, .send = no_bytes, .say = say_##n,                      \
		.receive = no_receive, .poll = none_done, .hear = hear_##n                         \
	}
static const struct mpi_api apis[NODES] = {API(0), API(1), API(2)};

static void hold(int from, int to, bool held)
{
	pthread_mutex_lock(&lock);
	channels[from][to].held = held;
	channels[from][to].holds = 0;
	pthread_mutex_unlock(&lock);
}

/* From when such a message is said. */
static void hold_from(int from, int to, enum span_kind kind)
{
	pthread_mutex_lock(&lock);
	channels[from][to].holds = kind;
	pthread_mutex_unlock(&lock);
}

static unsigned said_of(enum span_kind kind)
{
	pthread_mutex_lock(&lock);
	const unsigned n = said[kind];
	pthread_mutex_unlock(&lock);
	return n;
}

static void await_said(enum span_kind kind, unsigned n)
{
	for (uint64_t until = now_ns() + WAIT_NS; said_of(kind) < n; pause_ns(100000))
		assert_true(now_ns() < until);
}

/* ---- Nodes ---- */

static struct executor *engines[NODES];
static char memory[RANKS][BYTES];
static uint32_t nranks;
static uint32_t node_of[RANKS];
static uint64_t launches[NODES];

static void notify(void *arg)
{
	(void)arg;
}

static void begin_node(uint32_t n)
{
	const struct engine_config config = {.threads = 1,
					     .tasks_max = 16384,
					     .user_tasks_max = 16384,
					     .spin_us = 0,
					     .sessions_max = SESSIONS,
					     .comms_max = COMMS,
					     .mpi = &apis[n],
					     .node = n,
					     .nodes = NODES,
					     .transports = transports};
	engine = engines[n] = engine_create(&config, notify, NULL);
	assert_non_null(engine);
	add_device(n);
	launches[n] = 0;
}

static void begin_member(uint32_t rank)
{
	engine = engines[node_of[rank]];
	add_trainer(rank);
	command((struct command){
		.kind = COMMAND_REGION_ADD,
		.session = rank,
		.region = {.region = MEMORY, .base = memory[rank], .bytes = BYTES, .device = -1}});
}

static void begin_epoch(uint32_t n)
{
	struct command c = {.kind = COMMAND_EPOCH_START};
	struct epoch_member *members = calloc(nranks, sizeof(*members));
	assert_non_null(members);
	for (uint32_t k = 0; k < nranks; k++)
		members[k] = (struct epoch_member){
			.session = node_of[k] == n ? k : EPOCH_ELSEWHERE,
			.handle = 1,
			.device = engine_transport == TRANSPORT_NCCL ? (int32_t)node_of[k] : -1,
			.pid = (int32_t)k + 100,
			.node = node_of[k]};
	c.epoch_start.nranks = nranks;
	c.epoch_start.epoch = 1;
	c.epoch_start.uid = 1;
	c.epoch_start.members = members;
	c.epoch_start.progress = progress_pages[n];
	c.epoch_start.span = SPAN;
	c.epoch_start.transport = engine_transport;
	engine = engines[n];
	command(c);
}

static int begin_all(enum transport_kind transport, uint32_t n, const uint32_t *nodes)
{
	engine_transport = transport;
	nranks = n;
	memcpy(node_of, nodes, n * sizeof(*nodes));
	memset(channels, 0, sizeof(channels));
	memset(said, 0, sizeof(said));
	for (uint32_t i = 0; i < NODES; i++)
		begin_node(i);
	for (uint32_t k = 0; k < n; k++)
		begin_member(k);
	for (uint32_t i = 0; i < NODES; i++)
		begin_epoch(i);
	return 0;
}

static int begin(void **state)
{
	(void)state;
	return begin_all(TRANSPORT_INTERNODE, NODES, (const uint32_t[])LIST(0, 1, 2));
}

static int begin_gpus(void **state)
{
	(void)state;
	return begin_all(TRANSPORT_NCCL, NODES, (const uint32_t[])LIST(0, 1, 2));
}

/* The first node has two members: ranks 0 and 3. */
static int begin_four(void **state)
{
	(void)state;
	return begin_all(TRANSPORT_INTERNODE, RANKS, (const uint32_t[])LIST(0, 1, 2, 0));
}

/* The last node has two: ranks 2 and 3. */
static int begin_pair(void **state)
{
	(void)state;
	return begin_all(TRANSPORT_INTERNODE, RANKS, (const uint32_t[])LIST(0, 1, 2, 2));
}

static int end(void **state)
{
	(void)state;
	for (uint32_t n = 0; n < NODES; n++)
		engines[n]->destroy(engines[n]);
	for (uint32_t n = 0; n < NODES; n++) {
		struct message *m, *next;
		munmap(gpus[n].queue, sizeof(*gpus[n].queue));
		close(gpus[n].doorbell);
		free(given[n]);
		given[n] = NULL;
		for (uint32_t from = 0; from < NODES; from++)
			DL_FOREACH_SAFE (channels[from][n].messages, m, next)
				free(m);
	}
	for (uint32_t k = 0; k < nranks; k++) {
		munmap(trainers[k].ring, svc_ring_size(ENTRIES));
		close(trainers[k].doorbell);
		trainers[k] = (struct trainer){0};
	}
	return 0;
}

/* ---- Members ---- */

static struct svc_record task_of(uint32_t rank, uint8_t op, int32_t peer)
{
	const bool pair = op == NCCLSVC_SEND || op == NCCLSVC_RECV;
	struct svc_record r = pair ? p2p(0, op, node_of[rank], peer) : record(0, op, node_of[rank]);
	if (engine_transport == TRANSPORT_NCCL)
		return r;
	r.src_region = r.src_region ? MEMORY : 0;
	r.dst_region = r.dst_region ? MEMORY : 0;
	return r;
}

static uint64_t sum(uint32_t rank)
{
	return submit_one(rank, task_of(rank, NCCLSVC_ALL_REDUCE, -1));
}

static uint64_t send_to(uint32_t rank, int32_t peer)
{
	return submit_one(rank, task_of(rank, NCCLSVC_SEND, peer));
}

static uint64_t recv_from(uint32_t rank, int32_t peer)
{
	return submit_one(rank, task_of(rank, NCCLSVC_RECV, peer));
}

/* As one task group. */
static uint64_t many(uint32_t rank, uint8_t op, int32_t peer, unsigned n)
{
	struct svc_record records[TOO];
	for (unsigned i = 0; i < n; i++)
		records[i] = task_of(rank, op, peer);
	return submit(rank, records, n);
}

/* GPUs are through with what is launched there as soon as it is. */
static void is_over(uint32_t rank, uint64_t n)
{
	for (uint64_t until = now_ns() + WAIT_NS; !over(rank, n); pause_ns(100000)) {
		assert_true(now_ns() < until);
		for (uint32_t i = 0; i < NODES; i++)
			run_all(i);
	}
}

static void goes_well(uint32_t rank, uint64_t n)
{
	is_over(rank, n);
	ends(rank, n, NCCLSVC_OK);
}

static ncclsvc_status deadlock(uint32_t rank, uint64_t n)
{
	ends(rank, n, NCCLSVC_MISMATCH);
	const ncclsvc_status st = *svc_status_slot(trainers[rank].ring, ENTRIES, n);
	assert_int_equal(st.field, NCCLSVC_FIELD_ORDER);
	return st;
}

static void all_told_alike(const uint64_t *n)
{
	const ncclsvc_status first = deadlock(0, n[0]);
	for (uint32_t k = 1; k < nranks; k++) {
		const ncclsvc_status st = deadlock(k, n[k]);
		assert_int_equal(st.rank_a, first.rank_a);
		assert_int_equal(st.rank_b, first.rank_b);
		assert_int_equal(st.value_a, first.value_a);
		assert_int_equal(st.value_b, first.value_b);
	}
}

static void usable(void)
{
	uint64_t n[RANKS];
	for (int round = 0; round < 3; round++) {
		for (uint32_t k = 0; k < nranks; k++)
			n[k] = round == 1 ? many(k, k ? NCCLSVC_RECV : NCCLSVC_SEND, k ? 0 : 1, 1)
					  : sum(k);
		for (uint32_t k = 2; k < nranks && round == 1; k++) {
			const uint64_t sent = send_to(0, (int32_t)k);
			goes_well(0, sent);
		}
		for (uint32_t k = 0; k < nranks; k++)
			goes_well(k, n[k]);
	}
}

/* Nobody is told of a deadlock. */
static void none_is_found(void)
{
	const unsigned asked = said_of(SPAN_ASK), failed = said_of(SPAN_FAILED);
	pause_ns(LOOKS);
	assert_int_equal(said_of(SPAN_ASK), asked);
	assert_int_equal(said_of(SPAN_FAILED), failed);
}

/* ---- Deadlocks ---- */

static void a_ring_of_recvs(void **state)
{
	(void)state;
	uint64_t n[NODES];
	for (uint32_t k = 0; k < NODES; k++)
		n[k] = recv_from(k, (int32_t)(k + 1) % NODES);
	all_told_alike(n);
	const ncclsvc_status st = deadlock(0, n[0]);
	assert_int_equal(st.rank_a, 0);
	assert_int_equal(st.rank_b, 2);
	assert_int_equal(st.value_a, NCCLSVC_RECV);
	assert_int_equal(st.value_b, NCCLSVC_RECV);
	usable();
}

/* The group's second collective, of which no other node has heard, ends too. */
static void collectives_against_recvs(void **state)
{
	(void)state;
	for (unsigned round = 1; round < 3; round++) {
		uint64_t n[NODES];
		n[0] = many(0, NCCLSVC_ALL_REDUCE, -1, round);
		for (uint32_t k = 1; k < NODES; k++)
			n[k] = recv_from(k, 0);
		all_told_alike(n);
		const ncclsvc_status st = deadlock(0, n[0] + round - 1);
		assert_int_equal(st.value_a, NCCLSVC_ALL_REDUCE);
		assert_int_equal(st.value_b, NCCLSVC_RECV);
		assert_int_equal(st.rank_b, 1);
		assert_int_equal(st.pid_a, 100);
		assert_int_equal(st.pid_b, 101);
		usable();
	}
}

/* Rank 3 waits for rank 0 of its own node, of which other nodes know nothing. */
static void some_wait_for_members_of_their_node(void **state)
{
	(void)state;
	uint64_t n[RANKS];
	n[0] = recv_from(0, 1);
	n[1] = sum(1);
	n[2] = sum(2);
	n[3] = sum(3);
	all_told_alike(n);
	usable();
	n[0] = recv_from(0, 3);
	n[1] = recv_from(1, 2);
	n[2] = recv_from(2, 1);
	n[3] = recv_from(3, 0);
	all_told_alike(n);
	usable();
}

/* It takes several messages to report, and to ask. */
static void many_wait(void **state)
{
	(void)state;
	uint64_t n[NODES];
	n[0] = recv_from(0, 1);
	n[1] = many(1, NCCLSVC_RECV, 0, MANY);
	n[2] = many(2, NCCLSVC_RECV, 0, MANY);
	all_told_alike(n);
	deadlock(1, n[1] + MANY - 1);
	deadlock(2, n[2] + MANY - 1);
	usable();
}

static void the_same_again(void **state)
{
	for (int i = 0; i < 3; i++)
		a_ring_of_recvs(state);
}

/* One node learns of it by what another one fails. (On GPUs, node 0 is the sequencer: all that node
 * 2 hears comes from it.) */
static void the_word_comes_late(void **state)
{
	(void)state;
	uint64_t n[NODES];
	hold_from(0, 2, SPAN_ASK);
	n[0] = recv_from(0, 1);
	n[1] = many(1, NCCLSVC_RECV, 2, 2);
	n[2] = recv_from(2, 1);
	const uint64_t next = sum(2); /* is not meant */
	deadlock(0, n[0]);
	deadlock(1, n[1]);
	deadlock(1, n[1] + 1);
	deadlock(2, n[2]);
	pause_ns(LOOKS);
	hold(0, 2, false);
	pause_ns(LOOKS);
	assert_false(over(2, next));
	n[0] = sum(0);
	n[1] = sum(1);
	goes_well(0, n[0]);
	goes_well(1, n[1]);
	goes_well(2, next);
	usable();
}

/* ---- None ---- */

static void who_waits_for_one_that_works(void **state)
{
	(void)state;
	const uint64_t a = sum(0), b = sum(1);
	none_is_found();
	const uint64_t c = sum(2);
	goes_well(0, a);
	goes_well(1, b);
	goes_well(2, c);
}

/* Node 2 has not heard that node 1 is ready for a collective, which the others are through with. */
static void a_collective_is_under_way(void **state)
{
	(void)state;
	uint64_t first[NODES], second[NODES];
	usable();
	hold(1, 2, true);
	for (uint32_t k = 0; k < NODES; k++)
		first[k] = sum(k);
	if (engine_transport == TRANSPORT_INTERNODE) {
		goes_well(0, first[0]);
		goes_well(1, first[1]);
	}
	second[0] = sum(0);
	second[1] = sum(1);
	none_is_found();
	hold(1, 2, false);
	second[2] = sum(2);
	for (uint32_t k = 0; k < NODES; k++) {
		goes_well(k, first[k]);
		goes_well(k, second[k]);
	}
}

/* The same of a Send, which is over for its sender. */
static void a_send_is_under_way(void **state)
{
	(void)state;
	uint64_t n[NODES];
	usable();
	hold(1, 2, true);
	const uint64_t sent = send_to(1, 2), received = recv_from(2, 1);
	if (engine_transport == TRANSPORT_INTERNODE)
		goes_well(1, sent);
	n[0] = sum(0);
	n[1] = sum(1);
	none_is_found();
	hold(1, 2, false);
	n[2] = sum(2);
	goes_well(1, sent);
	goes_well(2, received);
	for (uint32_t k = 0; k < NODES; k++)
		goes_well(k, n[k]);
}

/* Node 1 waited for node 0, and has reported. Now it works, and the others wait for it. */
static void a_report_is_old(void **state)
{
	(void)state;
	const uint64_t old = recv_from(1, 0);
	await_said(SPAN_STUCK, 1);
	const uint64_t sent = send_to(0, 1);
	goes_well(1, old);
	goes_well(0, sent);
	const uint64_t a = recv_from(0, 1), c = recv_from(2, 1);
	none_is_found();
	goes_well(1, send_to(1, 0));
	goes_well(1, send_to(1, 2));
	goes_well(0, a);
	goes_well(2, c);
	usable();
}

/* The first node's question is on its way while node 1 goes on. */
static void a_question_is_old(void **state)
{
	(void)state;
	uint64_t n[NODES];
	hold_from(0, 1, SPAN_STUCK);
	for (uint32_t k = 0; k < NODES; k++)
		n[k] = recv_from(k, (int32_t)(k + 1) % NODES);
	await_said(SPAN_STUCK, 2 * (NODES - 1)); /* reports, and questions */
	engine = engines[1];
	command((struct command){.kind = COMMAND_CANCEL, .cancel = {.kind = SVC_CANCEL_COMM}});
	ends(1, n[1], NCCLSVC_CANCELLED);
	hold(0, 1, false);
	none_is_found();
	goes_well(1, send_to(1, 0));
	goes_well(0, n[0]);
	goes_well(0, send_to(0, 2));
	goes_well(2, n[2]);
	usable();
}

/* Rank 2's collective is cancelled, and node 1 has not answered: rank 2 is about to go on. */
static void a_failure_is_under_way(void **state)
{
	(void)state;
	const uint64_t a = recv_from(0, 1), b = recv_from(1, 0), cancelled = sum(2);
	await_said(SPAN_STUCK, 1);
	pause_ns(LOOKS);
	hold(1, 2, true);
	hold(2, 0, true);
	hold(2, 1, true);
	engine = engines[2];
	command((struct command){.kind = COMMAND_CANCEL, .cancel = {.kind = SVC_CANCEL_COMM}});
	await_said(SPAN_FAILED, NODES - 1);
	const uint64_t d = recv_from(3, 0);
	pause_ns(LOOKS);
	hold(2, 0, false);
	await_said(SPAN_FAILED, NODES * (NODES - 1));
	none_is_found();
	hold(1, 2, false);
	hold(2, 1, false);
	ends(2, cancelled, NCCLSVC_CANCELLED);
	none_is_found();
	assert_false(over(0, a) || over(1, b) || over(3, d));
}

/* Only deadlines end what waits in so much. */
static void too_many_wait(void **state)
{
	(void)state;
	uint64_t n[RANKS];
	struct svc_record late = task_of(2, NCCLSVC_RECV, 0);
	late.timeout_ns = 2 * (uint64_t)LOOKS;
	n[0] = many(0, NCCLSVC_RECV, 1, TOO);
	n[1] = recv_from(1, 0);
	n[2] = submit_one(2, late);
	n[3] = many(3, NCCLSVC_RECV, 1, TOO);
	none_is_found();
	ends(2, n[2], NCCLSVC_TIMEOUT);
	assert_false(over(1, n[1]));
}

#define TEST(name, setup)                                                                          \
	{                                                                                          \
#name "/" #setup, name, setup, end, NULL                                           \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_ring_of_recvs, begin),
		TEST(a_ring_of_recvs, begin_gpus),
		TEST(collectives_against_recvs, begin),
		TEST(collectives_against_recvs, begin_gpus),
		TEST(some_wait_for_members_of_their_node, begin_four),
		TEST(many_wait, begin),
		TEST(many_wait, begin_gpus),
		TEST(the_same_again, begin),
		TEST(the_word_comes_late, begin),
		TEST(who_waits_for_one_that_works, begin),
		TEST(who_waits_for_one_that_works, begin_gpus),
		TEST(a_collective_is_under_way, begin),
		TEST(a_collective_is_under_way, begin_gpus),
		TEST(a_send_is_under_way, begin),
		TEST(a_send_is_under_way, begin_gpus),
		TEST(a_report_is_old, begin),
		TEST(a_report_is_old, begin_gpus),
		TEST(a_question_is_old, begin),
		TEST(a_failure_is_under_way, begin_pair),
		TEST(too_many_wait, begin_four),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
