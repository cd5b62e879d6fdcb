/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler_cluster.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <pthread.h>
#include <utlist.h>

#include "channel/carrier.h"
#include "transport/transports.h"

#define INTERNODE_ID 77
#define MEMORY	     9 /* a trainer's host region */

/* ---- MPI ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct message {
	struct message *prev, *next;
	size_t bytes;
	char body[];
};

/* Messages from one node to another, in order. */
static struct channel {
	struct message *messages;
	bool held;
	enum internode_kind holds; /* holds back messages from the first of this kind on */
} channels[NODES][NODES];
static struct message *given[NODES]; /* the last message that the node has received */
static unsigned sent[INTERNODE_END]; /* by kind */

static void say_one(struct channel *c, const struct internode_header *h, const char *body)
{
	struct message *m = malloc(sizeof(*m) + sizeof(*h) + h->bytes);
	assert_non_null(m);
	m->bytes = sizeof(*h) + h->bytes;
	memcpy(m->body, h, sizeof(*h));
	memcpy(m->body + sizeof(*h), body, h->bytes);
	sent[h->kind]++;
	c->held = c->held || h->kind == c->holds;
	DL_APPEND(c->messages, m);
}

static int say(int from, const void *packet, size_t bytes, int to)
{
	struct internode_header h;
	const char *at = packet, *body;
	pthread_mutex_lock(&lock);
	while ((body = internode_next(&at, &bytes, &h)))
		say_one(&channels[from][to], &h, body);
	pthread_mutex_unlock(&lock);
	assert_int_equal(bytes, 0);
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

static unsigned none_done(struct carrier_done *done, unsigned max)
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
		.name = "test", .send = no_bytes, .say = say_##n, .receive = no_receive,           \
		.poll = none_done, .hear = hear_##n                                                \
	}
static const struct carrier apis[NODES] = {API(0), API(1), API(2)};

void hold(int from, int to, bool held)
{
	pthread_mutex_lock(&lock);
	channels[from][to].held = held;
	channels[from][to].holds = 0;
	pthread_mutex_unlock(&lock);
}

/* Holds back messages from the next one of this kind on. */
void hold_from(int from, int to, enum internode_kind kind)
{
	pthread_mutex_lock(&lock);
	channels[from][to].holds = kind;
	pthread_mutex_unlock(&lock);
}

unsigned sent_of(enum internode_kind kind)
{
	pthread_mutex_lock(&lock);
	const unsigned n = sent[kind];
	pthread_mutex_unlock(&lock);
	return n;
}

void await_sent(enum internode_kind kind, unsigned n)
{
	for (uint64_t until = now_ns() + WAIT_NS; sent_of(kind) < n; pause_ns(100000))
		assert_true(now_ns() < until);
}

/* Is there a message that a node can receive? */
static bool on_its_way(void)
{
	bool any = false;
	pthread_mutex_lock(&lock);
	for (int from = 0; from < NODES; from++)
		for (int to = 0; to < NODES; to++)
			any |= channels[from][to].messages && !channels[from][to].held;
	pthread_mutex_unlock(&lock);
	return any;
}

static unsigned sent_in_all(void)
{
	unsigned n = 0;
	for (int kind = 0; kind < INTERNODE_END; kind++)
		n += sent_of((enum internode_kind)kind);
	return n;
}

void quiet_nodes(void)
{
	const uint64_t until = now_ns() + WAIT_NS;
	unsigned before;
	quiet();
	do {
		before = sent_in_all();
		for (; on_its_way(); pause_ns(100000))
			assert_true(now_ns() < until);
		for (uint32_t n = 0; n < NODES; n++)
			settle(schedulers[n]);
		assert_true(now_ns() < until);
	} while (sent_in_all() != before || on_its_way());
}

/* ---- Nodes ---- */

struct scheduler *schedulers[NODES];
static char memory[RANKS][BYTES];
uint32_t nranks;
uint32_t node_of[RANKS];

static void notify(void *arg)
{
	(void)arg;
}

static void begin_node(uint32_t n)
{
	const struct scheduler_config config = {.threads = 1,
						.tasks_max = 16384,
						.user_tasks_max = 16384,
						.spin_us = 0,
						.sessions_max = SESSIONS,
						.comms_max = COMMS,
						.carrier = &apis[n],
						.node = n,
						.nodes = NODES,
						.transports = transports};
	scheduler = schedulers[n] = scheduler_create(&config, notify, NULL);
	assert_non_null(scheduler);
	add_device(n);
}

static void begin_member(uint32_t rank)
{
	scheduler = schedulers[node_of[rank]];
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
	memset(progress_pages[n], 0, sizeof(progress_pages[n]));
	for (uint32_t k = 0; k < nranks; k++)
		members[k] = (struct epoch_member){
			.session = node_of[k] == n ? k : EPOCH_ELSEWHERE,
			.handle = 1,
			.device = scheduler_transport == TRANSPORT_NCCL ? (int32_t)node_of[k] : -1,
			.pid = (int32_t)k + 100,
			.node = node_of[k]};
	c.epoch_start.nranks = nranks;
	c.epoch_start.epoch = 1;
	c.epoch_start.uid = 1;
	c.epoch_start.members = members;
	c.epoch_start.progress = progress_pages[n];
	c.epoch_start.internode_id = INTERNODE_ID;
	c.epoch_start.transport = scheduler_transport;
	command_node(n, c);
}

static bool has_members(uint32_t n)
{
	bool any = false;
	for (uint32_t k = 0; k < nranks; k++)
		any |= node_of[k] == n;
	return any;
}

int nodes_begin(enum transport_kind transport, uint32_t n, const uint32_t *nodes)
{
	scheduler_transport = transport;
	nranks = n;
	memcpy(node_of, nodes, n * sizeof(*nodes));
	memset(channels, 0, sizeof(channels));
	memset(sent, 0, sizeof(sent));
	begin_afresh();
	for (uint32_t i = 0; i < NODES; i++)
		begin_node(i);
	for (uint32_t k = 0; k < n; k++)
		begin_member(k);
	for (uint32_t i = 0; i < NODES; i++)
		if (has_members(i))
			begin_epoch(i);
	return 0;
}

int nodes_end(void **state)
{
	(void)state;
	for (uint32_t n = 0; n < NODES; n++)
		scheduler_destroy(schedulers[n]);
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

void command_node(uint32_t node, struct command c)
{
	scheduler = schedulers[node];
	command(c);
}

/* ---- Members ---- */

struct svc_record task_of(uint32_t rank, uint8_t op, int32_t peer)
{
	const bool pair = op == NCCLSVC_SEND || op == NCCLSVC_RECV;
	struct svc_record r = pair ? p2p(0, op, node_of[rank], peer) : record(0, op, node_of[rank]);
	if (scheduler_transport == TRANSPORT_NCCL)
		return r;
	r.src_region = r.src_region ? MEMORY : 0;
	r.dst_region = r.dst_region ? MEMORY : 0;
	return r;
}

uint64_t sum(uint32_t rank)
{
	return submit_one(rank, task_of(rank, NCCLSVC_ALL_REDUCE, -1));
}

uint64_t send_to(uint32_t rank, int32_t peer)
{
	return submit_one(rank, task_of(rank, NCCLSVC_SEND, peer));
}

uint64_t recv_from(uint32_t rank, int32_t peer)
{
	return submit_one(rank, task_of(rank, NCCLSVC_RECV, peer));
}

/* Submits them as one task group. */
uint64_t many(uint32_t rank, uint8_t op, int32_t peer, unsigned n)
{
	struct svc_record records[MANY_MAX];
	for (unsigned i = 0; i < n; i++)
		records[i] = task_of(rank, op, peer);
	return submit(rank, records, n);
}

void await_taken(uint32_t rank, uint64_t n)
{
	const struct member_progress *page = &progress_pages[node_of[rank]][rank];
	for (uint64_t until = now_ns() + WAIT_NS; atomic_load(&page->submitted) < n;
	     pause_ns(100000))
		assert_true(now_ns() < until);
}

void await_over(uint32_t rank, uint64_t n)
{
	for (uint64_t until = now_ns() + WAIT_NS; !over(rank, n); pause_ns(100000)) {
		assert_true(now_ns() < until);
		for (uint32_t i = 0; i < NODES; i++)
			run_to(i, head(i));
	}
}

void goes_well(uint32_t rank, uint64_t n)
{
	await_over(rank, n);
	ends(rank, n, NCCLSVC_OK);
}

ncclsvc_status status_of_task(uint32_t rank, uint64_t n)
{
	return *svc_status_slot(trainers[rank].ring, ENTRIES, n);
}

void usable(void)
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
