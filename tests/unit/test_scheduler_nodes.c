/* SPDX-License-Identifier: Apache-2.0
 * The scheduler on node 0 of 3, and the death of node 1. The test plays the other nodes, and MPI.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>

#include "channel/carrier.h"
#include "coord/messages.h"
#include "sched/internode/internode_comm.h"
#include "scheduler_gpus.h"

#define NODES	     3
#define COUNT	     (64u << 10) /* bytes: more than fit into a message */
#define FLOWS	     64
#define INTERNODE_ID 77
#define MEMORY	     9		 /* the trainer's host region */
#define LARGE	     (22u << 20) /* bytes: three of them exceed what a scheduler keeps */

/* ---- Memory ---- */

static atomic_bool poor; /* large allocations fail */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__)
#define MALLOC_IS_OURS false
#else
#define MALLOC_IS_OURS true

extern void *__libc_malloc(size_t bytes);

void *malloc(size_t bytes)
{
	return atomic_load(&poor) && bytes > 1u << 20 ? NULL : __libc_malloc(bytes);
}
#endif

/* ---- MPI ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Posted receives, and messages from nodes 1 and 2. */
static struct posted {
	void *cookie;
	int node;
	bool dropped;
} flows[FLOWS];
static unsigned nflows, nsent, nread;
static struct message_from {
	int node;
	struct internode_header header;
	struct svc_record record;
} sent[16];

/* Empty messages for credits that were not used. */
static atomic_uint refused[NODES];

static int take_send(const void *from, size_t bytes, int node, int tag, void *cookie)
{
	(void)tag;
	(void)from;
	(void)cookie;
	refused[node] += !bytes;
	return -1; /* send only to a node that has given credit */
}

static int take_say(const void *from, size_t bytes, int node, void *cookie)
{
	(void)from;
	(void)bytes;
	(void)node;
	(void)cookie;
	return 1;
}

static int take_receive(void *to, size_t bytes, int node, int tag, void *cookie)
{
	(void)to;
	(void)bytes;
	(void)tag;
	pthread_mutex_lock(&lock);
	assert_true(nflows < FLOWS);
	flows[nflows++] = (struct posted){.cookie = cookie, .node = node};
	pthread_mutex_unlock(&lock);
	return 0;
}

static unsigned give_done(struct carrier_done *done, unsigned max)
{
	unsigned n = 0;
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < nflows && n < max; i++)
		if (flows[i].dropped) {
			done[n++] =
				(struct carrier_done){.cookie = flows[i].cookie, .failed = true};
			flows[i--] = flows[--nflows];
		}
	pthread_mutex_unlock(&lock);
	return n;
}

static void drop(void *cookie)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < nflows; i++)
		flows[i].dropped |= flows[i].cookie == cookie;
	pthread_mutex_unlock(&lock);
}

static const void *hear(size_t *bytes, int *node)
{
	static struct {
		struct message_from sent;
		char more[LARGE];
	} one;
	const void *p = NULL;
	pthread_mutex_lock(&lock);
	if (nread < nsent) {
		one.sent = sent[nread++];
		*node = one.sent.node;
		*bytes = sizeof(one.sent.header) + one.sent.header.bytes;
		p = &one.sent.header;
	}
	pthread_mutex_unlock(&lock);
	return p;
}

static const struct carrier mpi = {.name = "test",
				   .send = take_send,
				   .say = take_say,
				   .receive = take_receive,
				   .poll = give_done,
				   .drop = drop,
				   .hear = hear};

static void say(int node, uint64_t internode_id, enum internode_kind kind, uint64_t seq,
		const struct svc_record *r, size_t bytes)
{
	pthread_mutex_lock(&lock);
	struct message_from *m = &sent[nsent++];
	*m = (struct message_from){.node = node};
	m->header = (struct internode_header){.magic = INTERNODE_MAGIC,
					      .kind = (uint16_t)kind,
					      .internode_id = internode_id,
					      .key = {-1, -1, seq, 0},
					      .bytes = bytes};
	if (r)
		m->record = *r;
	pthread_mutex_unlock(&lock);
}

/* The node sends this about the seq-th collective. */
static void says(int node, enum internode_kind kind, uint64_t seq, const struct svc_record *r)
{
	say(node, INTERNODE_ID, kind, seq, r, r ? sizeof(*r) : 0);
}

/* The node is ready to receive something of that epoch, and gets an answer or the bytes. */
static void gives_credit(int node, uint64_t internode_id)
{
	const struct credit_note note = {.tag = CARRIER_TAG_DATA};
	struct svc_record r = {0};
	memcpy(&r, &note, sizeof(note));
	say(node, internode_id, INTERNODE_CREDIT, 0, &r, sizeof(note));
}

static void all_is_received(void)
{
	unsigned waiting = 1;
	for (uint64_t until = now_ns() + WAIT_NS; waiting; pause_ns(100000)) {
		assert_true(now_ns() < until);
		pthread_mutex_lock(&lock);
		waiting = nsent - nread;
		pthread_mutex_unlock(&lock);
	}
	quiet();
}

static unsigned receives(int node)
{
	unsigned n = 0;
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < nflows; i++)
		n += flows[i].node == node;
	pthread_mutex_unlock(&lock);
	return n;
}

/* ---- The scheduler ---- */

static char memory[COUNT];

static int begin_scheduler(void **state)
{
	nflows = nsent = nread = 0;
	for (int i = 0; i < NODES; i++)
		refused[i] = 0;
	scheduler_carrier = &mpi;
	scheduler_nodes = NODES;
	setup(state);
	add_trainer(0);
	command((struct command){
		.kind = COMMAND_REGION_ADD,
		.region = {
			.region = MEMORY, .base = memory, .bytes = sizeof(memory), .device = -1}});
	return 0;
}

static void begin_epoch(void)
{
	struct command c = {.kind = COMMAND_EPOCH_START};
	struct epoch_member *members = calloc(NODES, sizeof(*members));
	assert_non_null(members);
	for (uint32_t k = 0; k < NODES; k++)
		members[k] = (struct epoch_member){.session = k ? EPOCH_ELSEWHERE : 0,
						   .handle = k ? 0 : 1,
						   .device = -1,
						   .node = k};
	c.epoch_start.nranks = NODES;
	c.epoch_start.epoch = 1;
	c.epoch_start.uid = 1;
	c.epoch_start.members = members;
	c.epoch_start.progress = progress_pages[0];
	c.epoch_start.internode_id = INTERNODE_ID;
	c.epoch_start.transport = TRANSPORT_INTERNODE;
	command(c);
}

static int begin(void **state)
{
	begin_scheduler(state);
	begin_epoch();
	return 0;
}

static struct event next_event(enum event_kind kind)
{
	struct event ev;
	for (uint64_t until = now_ns() + WAIT_NS; !next_event_of(scheduler, &ev); pause_ns(100000))
		assert_true(now_ns() < until);
	assert_int_equal(ev.kind, kind);
	return ev;
}

/* Checks that the scheduler wants the epoch to end on all nodes, and gives this reason. */
static void is_given_up(int32_t result)
{
	const struct event ev = next_event(EVENT_INTERNODE_FAILED);
	assert_int_equal(ev.internode.result, result);
	assert_int_equal(ev.internode.node, -1);
	end_epoch(0, result, -1);
	next_event(EVENT_EPOCH_GONE);
}

static struct svc_record broadcast(void)
{
	struct svc_record r = record(0, NCCLSVC_BROADCAST, 0);
	r.count = COUNT;
	r.peer = 1;
	r.src_region = 0;
	r.dst_region = MEMORY;
	return r;
}

/* Task n waits for bytes from node 1, which dies. */
static void ends_under_way(uint64_t n)
{
	for (uint64_t until = now_ns() + WAIT_NS; !receives(1); pause_ns(100000))
		assert_true(now_ns() < until);
	command((struct command){.kind = COMMAND_NODE_LOST, .node = {1}});
	end_epoch(0, NCCLSVC_PEER_GONE, 1);
	ends(0, n, NCCLSVC_PEER_GONE);
}

/* ---- Tests ---- */

static void running_tasks_end_with_their_node(void **state)
{
	(void)state;
	const struct svc_record r = broadcast();
	uint64_t a = submit_one(0, r);
	says(1, INTERNODE_READY, 0, &r);
	says(2, INTERNODE_READY, 0, &r);
	ends_under_way(a);
}

/* The others have begun an operation for which there is no memory here. */
static void without_memory_the_epoch_ends(void **state)
{
	(void)state;
	if (!MALLOC_IS_OURS)
		skip();
	struct svc_record r = broadcast();
	r.op = NCCLSVC_ALL_REDUCE;
	r.peer = -1;
	r.src_region = MEMORY;
	uint64_t a = submit_one(0, r);
	says(2, INTERNODE_READY, 0, &r);
	quiet();
	atomic_store(&poor, true);
	says(1, INTERNODE_READY, 0, &r);
	const struct event ev = next_event(EVENT_INTERNODE_FAILED);
	atomic_store(&poor, false);
	assert_int_equal(ev.internode.result, NCCLSVC_NO_MEMORY);
	end_epoch(0, NCCLSVC_NO_MEMORY, -1);
	ends(0, a, NCCLSVC_NO_MEMORY);
}

/* The node's last message arrives after its death is known, but before the others end the epoch. */
static void operations_ready_on_a_lost_node_end(void **state)
{
	(void)state;
	const struct svc_record r = broadcast();
	uint64_t a = submit_one(0, r);
	says(2, INTERNODE_READY, 0, &r);
	quiet();
	command((struct command){.kind = COMMAND_NODE_LOST, .node = {1}});
	quiet();
	says(1, INTERNODE_READY, 0, &r);
	quiet();
	assert_int_equal(receives(1), 0);
	end_epoch(0, NCCLSVC_PEER_GONE, 1);
	ends(0, a, NCCLSVC_PEER_GONE);
}

static void messages_before_the_epoch_are_received(void **state)
{
	(void)state;
	const struct svc_record r = broadcast();
	says(1, INTERNODE_READY, 0, &r);
	says(2, INTERNODE_READY, 0, &r);
	all_is_received();
	advance_clock(50);
	quiet();
	begin_epoch();
	uint64_t a = submit_one(0, r);
	ends_under_way(a);
}

/* Without this message, its collective would wait forever. */
static void too_many_messages_to_keep_end_the_epoch(void **state)
{
	(void)state;
	const struct svc_record r = broadcast();
	says(1, INTERNODE_READY, 0, &r);
	for (uint64_t internode_id = INTERNODE_ID + 1; internode_id < INTERNODE_ID + 4;
	     internode_id++)
		say(2, internode_id, INTERNODE_READY, 0, &r, LARGE);
	says(2, INTERNODE_READY, 0, &r);
	all_is_received();
	begin_epoch();
	is_given_up(NCCLSVC_LIMIT);
}

/* Checks that this many credits of that node are answered, and no more. */
static void is_refused(int node, unsigned n)
{
	for (uint64_t until = now_ns() + WAIT_NS; refused[node] < n; pause_ns(100000))
		assert_true(now_ns() < until);
	assert_int_equal(refused[node], n);
}

static void announce(uint32_t slot, uint64_t internode_id)
{
	command((struct command){.kind = COMMAND_EPOCH_NAMED, .epoch_named = {slot, internode_id}});
	quiet();
}

/* A rendezvous announces names in order. */
static void skipped_names_are_not_kept(void **state)
{
	(void)state;
	gives_credit(1, INTERNODE_ID);
	all_is_received();
	assert_int_equal(refused[1], 0);
	announce(UINT32_MAX, INTERNODE_ID + 1);
	is_refused(1, 1);
	gives_credit(2, INTERNODE_ID);
	gives_credit(2, INTERNODE_ID + 1);
	gives_credit(2, INTERNODE_ID + 2);
	all_is_received();
	is_refused(2, 2);
}

static void messages_of_announced_epochs_are_kept(void **state)
{
	(void)state;
	announce(0, INTERNODE_ID);
	announce(UINT32_MAX, INTERNODE_ID + 1);
	gives_credit(1, INTERNODE_ID);
	all_is_received();
	advance_clock(100000);
	quiet();
	assert_int_equal(refused[1], 0);
	announce(0, 0);
	is_refused(1, 1);
	gives_credit(1, INTERNODE_ID);
	all_is_received();
	is_refused(1, 2);
}

/* Finished operations are forgotten, and their late messages too. */
static void finished_operations_are_forgotten(void **state)
{
	(void)state;
	end_epoch(0, NCCLSVC_CANCELLED, -1);
	next_event(EVENT_EPOCH_GONE);
	gives_credit(1, INTERNODE_ID);
	all_is_received();
	is_refused(1, 1);
}

/* The rendezvous may be one that this node has never heard of. */
static void unannounced_names_are_kept_for_a_while(void **state)
{
	(void)state;
	const uint64_t first = UINT64_C(2) << EPOCH_NUMBER_BITS | 5;
	gives_credit(2, first);
	all_is_received();
	assert_int_equal(refused[2], 0);
	advance_clock(60);
	quiet();
	is_refused(2, 1);
	gives_credit(2, first);
	all_is_received();
	is_refused(2, 2);
	gives_credit(2, first + 1);
	all_is_received();
	assert_int_equal(refused[2], 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(running_tasks_end_with_their_node, begin, teardown),
		cmocka_unit_test_setup_teardown(without_memory_the_epoch_ends, begin, teardown),
		cmocka_unit_test_setup_teardown(operations_ready_on_a_lost_node_end, begin,
						teardown),
		cmocka_unit_test_setup_teardown(messages_before_the_epoch_are_received,
						begin_scheduler, teardown),
		cmocka_unit_test_setup_teardown(too_many_messages_to_keep_end_the_epoch,
						begin_scheduler, teardown),
		cmocka_unit_test_setup_teardown(skipped_names_are_not_kept, begin_scheduler,
						teardown),
		cmocka_unit_test_setup_teardown(messages_of_announced_epochs_are_kept,
						begin_scheduler, teardown),
		cmocka_unit_test_setup_teardown(finished_operations_are_forgotten, begin, teardown),
		cmocka_unit_test_setup_teardown(unannounced_names_are_kept_for_a_while,
						begin_scheduler, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
