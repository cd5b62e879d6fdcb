/* SPDX-License-Identifier: Apache-2.0
 * The message kernel on the CPU: each rank is a thread, and so is each block of its kernels.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "peer_beat.h"

#include "kernels/cpu_ref.h"
#include "proto/ncclsvc_types.h"

#define GUARD	   0xa5
#define MOST	   (UINT64_C(3) << 20) /* bytes of a message: more than a pair's rings hold */
#define RING_BYTES (PEER_RING_LINES * LL_LINE_DATA)
#define ABOVE(v)   ((uint32_t)((v) >> 32))
/* The third message, or a long one, reuses the flag of the ring's first use. */
#define NEAR_WRAP  (((UINT64_C(1) << 31) * PEER_RING_LINES) - 100)

struct rank {
	unsigned number, nranks;
	pthread_t thread;
	char *staging;
	struct peer_control control;
	struct world *world;
	struct peer_messages kernel;
	unsigned nblocks, nparts;
	uint32_t messages[PEER_DIRS]; /* number of messages so far */
	/* NULL: the set of mapped shares is random. Otherwise all are, and this is called as a
	 * sender has found the receiver's buffer. */
	uint64_t (*reach)(uint64_t at);
};

struct world {
	unsigned nranks;
	struct rank ranks[PEER_RANKS];
	pthread_barrier_t round;
	void (*work)(struct rank *);
};

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	r->world->work(r);
	return NULL;
}

static void counts_begin(struct rank *r)
{
	uint64_t *counts = (uint64_t *)(void *)(r->staging + PEER_COUNTS);
	uint64_t *credits = (uint64_t *)(void *)(r->staging + PEER_CREDITS);
	for (unsigned i = 0; i < PEER_DIRS * PEER_CHANNELS; i++)
		counts[i] = NEAR_WRAP;
	for (unsigned i = 0; i < PEER_RANKS * PEER_CHANNELS; i++)
		credits[i] = NEAR_WRAP;
}

/* All ranks do the work, each in its own thread. */
static struct world *world_run(unsigned nranks, void (*work)(struct rank *))
{
	struct world *w = calloc(1, sizeof(*w));
	assert_non_null(w);
	w->nranks = nranks;
	w->work = work;
	pthread_barrier_init(&w->round, NULL, nranks);
	for (unsigned i = 0; i < nranks; i++) {
		struct rank *r = &w->ranks[i];
		r->number = i;
		r->nranks = nranks;
		r->world = w;
		r->staging = mmap(NULL, PEER_STAGING, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		assert_ptr_not_equal(r->staging, MAP_FAILED);
		counts_begin(r);
	}
	for (unsigned i = 0; i < nranks; i++)
		assert_int_equal(pthread_create(&w->ranks[i].thread, NULL, rank_main, &w->ranks[i]),
				 0);
	for (unsigned i = 0; i < nranks; i++)
		join_with_heartbeats(w->ranks[i].thread, &w->ranks[0].control.heartbeat,
				     sizeof(w->ranks[0]), nranks);
	return w;
}

static void world_free(struct world *w)
{
	for (unsigned i = 0; i < w->nranks; i++)
		munmap(w->ranks[i].staging, PEER_STAGING);
	pthread_barrier_destroy(&w->round);
	free(w);
}

/* ---- A rank's kernel ---- */

static void kernel_begin(struct rank *r)
{
	r->kernel = (struct peer_messages){
		.call = {.control = (uintptr_t)&r->control,
			 .rank = (uint8_t)r->number,
			 .nranks = (uint8_t)r->nranks,
			 .channels = (uint8_t)PEER_CHANNELS_OF(PEER_BLOCKS, r->nranks)}};
	for (unsigned i = 0; i < r->nranks; i++)
		r->kernel.call.staging[i] = (uintptr_t)r->world->ranks[i].staging;
	r->nblocks = r->nparts = 0;
}

/* Peers and directions come in order. */
static void kernel_peer_dir(struct rank *r, unsigned peer_dir)
{
	r->kernel.first[peer_dir] = (uint8_t)r->nparts;
	r->kernel.before[peer_dir] = r->messages[peer_dir];
}

static void kernel_add(struct rank *r, const void *at, uint64_t bytes)
{
	assert_true(r->nparts < PEER_MESSAGES_MOST);
	r->kernel.parts[r->nparts].at = (uintptr_t)at;
	/* All memory is one share, which starts at address 0, as the tables say. */
	r->kernel.parts[r->nparts].share = peer_share(3, 1);
	r->kernel.parts[r->nparts].share_at = (uintptr_t)at;
	r->kernel.parts[r->nparts++].header = peer_message(NCCLSVC_UINT8, bytes);
}

static void kernel_peer_dir_end(struct rank *r, unsigned peer_dir)
{
	uint32_t channels = 0;
	r->kernel.first[peer_dir + 1] = (uint8_t)r->nparts;
	r->messages[peer_dir] += r->nparts - r->kernel.first[peer_dir];
	for (unsigned i = r->kernel.first[peer_dir]; i < r->nparts; i++) {
		const uint32_t n = peer_channels(PEER_MESSAGE_BYTES(r->kernel.parts[i].header),
						 PEER_CHANNELS_OF(PEER_BLOCKS, r->nranks),
						 peer_dir % PEER_RANKS == r->number);
		channels = n > channels ? n : channels;
	}
	for (uint32_t c = 0; c < channels; c++)
		r->kernel.block[r->nblocks++] = PEER_BLOCK_OF(peer_dir, c);
}

struct block {
	const struct rank *rank;
	uint32_t number;
	pthread_t thread;
};

static void *block_main(void *arg)
{
	const struct block *b = arg;
	ncclsvc_peer_block = (struct peer_block){b->number, b->rank->nblocks};
	ncclsvc_peer_reach = b->rank->reach;
	ncclsvc_peer_messages(b->rank->kernel);
	return NULL;
}

static void kernel_run(const struct rank *r)
{
	struct block b[PEER_BLOCKS];
	static _Thread_local unsigned seed;
	uint32_t *mapped = (uint32_t *)(void *)(r->staging + PEER_MAPPED);
	assert_true(r->nblocks && r->nblocks <= PEER_BLOCKS);
	for (unsigned i = 0; i < r->nranks; i++)
		mapped[i] = r->reach || rand_r(&seed) & 1;
	for (uint32_t i = 0; i < r->nblocks; i++) {
		b[i] = (struct block){.rank = r, .number = i};
		assert_int_equal(pthread_create(&b[i].thread, NULL, block_main, &b[i]), 0);
	}
	for (uint32_t i = 0; i < r->nblocks; i++)
		pthread_join(b[i].thread, NULL);
}

/* One message alone. */
static void message_run(struct rank *r, unsigned peer_dir, const void *at, uint64_t bytes)
{
	kernel_begin(r);
	for (unsigned w = 0; w < PEER_DIRS; w++) {
		kernel_peer_dir(r, w);
		if (w == peer_dir)
			kernel_add(r, at, bytes);
		kernel_peer_dir_end(r, w);
	}
	kernel_run(r);
}

/* ---- Random messages between all ranks, including a rank and itself ---- */

#define MESSAGES 14 /* per round */
#define ROUNDS	 150

struct message {
	unsigned from, to, offset;
	uint64_t bytes;
	uint8_t *buffer; /* buffer of the rank that sends or receives it */
};

static uint8_t input(const struct message *m, uint64_t i, unsigned round)
{
	return (uint8_t)(m->from * 31 + m->to * 17 + i * 7 + i / 256 * 13 + m->bytes + round);
}

static uint64_t random_bytes(unsigned *seed)
{
	const unsigned n = (unsigned)rand_r(seed);
	if (n % 8 == 0)
		return 0;
	return n % 64 == 1 ? MOST - n / 64 % 4096 : n % 8 < 3 ? n / 8 % 60000 : n / 8 % 300;
}

static unsigned random_messages(struct message *all, unsigned nranks, unsigned *seed)
{
	const unsigned n = 1 + (unsigned)rand_r(seed) % MESSAGES;
	for (unsigned i = 0; i < n; i++)
		all[i] = (struct message){.from = (unsigned)rand_r(seed) % nranks,
					  .to = (unsigned)rand_r(seed) % nranks,
					  .offset = (unsigned)rand_r(seed) % 32,
					  .bytes = random_bytes(seed)};
	return n;
}

static void message_add(struct rank *r, struct message *m, bool sends, unsigned round)
{
	uint8_t *at = malloc(m->bytes + 64);
	assert_non_null(at);
	memset(at, GUARD, m->bytes + 64);
	for (uint64_t i = 0; sends && i < m->bytes; i++)
		at[m->offset + i] = input(m, i, round);
	m->buffer = at;
	kernel_add(r, at + m->offset, m->bytes);
}

static void message_check(const struct message *m, unsigned round)
{
	for (uint64_t i = 0; i < m->bytes + 64; i++) {
		const bool in = i >= m->offset && i < m->offset + m->bytes;
		const uint8_t due = in ? input(m, i - m->offset, round) : GUARD;
		if (m->buffer[i] != due)
			fail_msg("from %u to %u, round %u, byte %d of %d: %u, due %u", m->from,
				 m->to, round, (int)i - (int)m->offset, (int)m->bytes, m->buffer[i],
				 due);
	}
}

/* A copy of the messages for each of the two sides. */
static void random_round(struct rank *r, unsigned *seed, unsigned round)
{
	struct message sent[MESSAGES], received[MESSAGES];
	const unsigned n = random_messages(sent, r->nranks, seed);
	memcpy(received, sent, sizeof(received));
	kernel_begin(r);
	for (unsigned peer_dir = 0; peer_dir < PEER_DIRS; peer_dir++) {
		const bool sends = peer_dir < PEER_RANKS;
		kernel_peer_dir(r, peer_dir);
		for (unsigned i = 0; i < n; i++) {
			struct message *m = sends ? &sent[i] : &received[i];
			const unsigned own = sends ? m->from : m->to;
			if (own == r->number && (sends ? m->to : m->from) == peer_dir % PEER_RANKS)
				message_add(r, m, sends, round);
		}
		kernel_peer_dir_end(r, peer_dir);
	}
	if (r->nblocks)
		kernel_run(r);
	assert_int_equal(r->control.failed, 0);
	for (unsigned i = 0; i < n; i++) {
		if (received[i].to == r->number)
			message_check(&received[i], round);
		free(received[i].buffer);
		free(sent[i].buffer);
	}
}

static void random_work(struct rank *r)
{
	unsigned seed = r->nranks;
	for (unsigned round = 0; round < ROUNDS; round++)
		random_round(r, &seed, round);
}

static void random_ranks(void **unused)
{
	(void)unused;
	for (unsigned nranks = 2; nranks <= PEER_RANKS; nranks++)
		world_free(world_run(nranks, random_work));
}

/* ---- A sender does not wait for its receiver while the ring has room ---- */

#define STREAM	     60
#define STREAM_BYTES 1000

static void stream_work(struct rank *r)
{
	uint8_t data[STREAM_BYTES];
	if (r->number)
		pthread_barrier_wait(&r->world->round); /* everything has been sent */
	for (unsigned i = 0; i < STREAM; i++) {
		memset(data, r->number ? GUARD : (int)i, sizeof(data));
		message_run(r, r->number ? PEER_DIR_FROM(0) : PEER_DIR_TO(1), data, sizeof(data));
		for (unsigned k = 0; k < sizeof(data); k++)
			assert_int_equal(data[k], i % 256);
	}
	if (!r->number)
		pthread_barrier_wait(&r->world->round);
}

static void sender_goes_ahead(void **unused)
{
	(void)unused;
	assert_true(STREAM * (STREAM_BYTES / LL_LINE_DATA + 1) < PEER_RING_LINES);
	world_free(world_run(2, stream_work));
}

/* ---- Two long messages that cross: each kernel has both directions ---- */

static void cross_work(struct rank *r)
{
	const unsigned other = !r->number;
	uint8_t *out = malloc(MOST), *in = malloc(MOST);
	assert_non_null(out);
	assert_non_null(in);
	memset(out, (int)r->number + 1, MOST);
	kernel_begin(r);
	for (unsigned w = 0; w < PEER_DIRS; w++) {
		kernel_peer_dir(r, w);
		if (w % PEER_RANKS == other)
			kernel_add(r, w < PEER_RANKS ? out : in, MOST);
		kernel_peer_dir_end(r, w);
	}
	assert_int_equal(r->nblocks, 2 * PEER_CHANNELS_OF(PEER_BLOCKS, 2));
	kernel_run(r);
	for (uint64_t i = 0; i < MOST; i++)
		assert_int_equal(in[i], other + 1);
	free(out);
	free(in);
}

static void long_ones_cross(void **unused)
{
	(void)unused;
	assert_true(MOST > PEER_CHANNELS_OF(PEER_BLOCKS, 2) * RING_BYTES);
	world_free(world_run(2, cross_work));
}

/* ---- Messages that do not match ---- */

static void mismatch_work(struct rank *r)
{
	static uint8_t data[2][4096];
	message_run(r, r->number ? PEER_DIR_FROM(0) : PEER_DIR_TO(1), data[r->number],
		    r->number ? 4096 : 100);
	if (!r->number) {
		assert_int_equal(r->control.failed, 0);
		return;
	}
	assert_int_equal(ABOVE(r->control.failed), PEER_FATAL_MISMATCH);
	assert_int_equal(ABOVE(r->control.results[(uint32_t)r->control.failed % PEER_RESULTS]),
			 PEER_FATAL_MISMATCH);
	assert_int_equal(r->control.mismatch[0], peer_message(NCCLSVC_UINT8, 4096));
	assert_int_equal(r->control.mismatch[1], peer_message(NCCLSVC_UINT8, 100));
	assert_int_equal(r->control.mismatch[2], 0);
}

static void mismatch_is_reported(void **unused)
{
	(void)unused;
	world_free(world_run(2, mismatch_work));
}

/* ---- A message that does not come ---- */

static void until(const peer_atomic64 *word, uint64_t due)
{
	for (int i = 0; i < 20000 && atomic_load_explicit(word, memory_order_acquire) != due; i++)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	assert_int_equal(atomic_load_explicit(word, memory_order_acquire), due);
}

/* Rank 0 receives what rank 1 has sent, then what it does not send. Its later sends may depend on
 * that, and are not sent. */
static void lost_work(struct rank *r)
{
	struct rank *other = &r->world->ranks[!r->number];
	uint8_t data[100] = {0};
	if (!r->number) {
		message_run(r, PEER_DIR_FROM(1), data, sizeof(data));
		assert_int_equal(data[99], 7);
		message_run(r, PEER_DIR_FROM(1), data, sizeof(data));
		assert_int_equal(ABOVE(r->control.failed), PEER_ABORTED);
		assert_int_equal(r->control.waits[PEER_DIR_FROM(1)], 0);
		message_run(r, PEER_DIR_TO(1), data, sizeof(data));
		for (uint64_t at = PEER_RINGS; at < PEER_STAGING; at++)
			assert_int_equal(other->staging[at], 0);
		return;
	}
	memset(data, 7, sizeof(data));
	message_run(r, PEER_DIR_TO(0), data, sizeof(data));
	until(&other->control.waits[PEER_DIR_FROM(1)], UINT64_C(2) << 32 | 2);
	until(&other->control.begun, 2);
	atomic_store_explicit(&other->control.abort, 1, memory_order_release);
}

static void lost_is_aborted(void **unused)
{
	(void)unused;
	world_free(world_run(2, lost_work));
}

/* The ring is full: the sender waits until its control block tells it to end. */
static void full_work(struct rank *r)
{
	struct rank *other = &r->world->ranks[!r->number];
	if (!r->number) {
		uint8_t *data = calloc(1, MOST);
		assert_non_null(data);
		message_run(r, PEER_DIR_TO(1), data, MOST);
		assert_int_equal(ABOVE(r->control.failed), PEER_ABORTED);
		free(data);
		return;
	}
	until(&other->control.waits[PEER_DIR_TO(1)], UINT64_C(1) << 32 | 1);
	atomic_store_explicit(&other->control.abort, 1, memory_order_release);
}

static void full_is_aborted(void **unused)
{
	(void)unused;
	world_free(world_run(2, full_work));
}

/* ---- A stopped receiver, and a sender that is about to write into its buffer ---- */

static void written_work(struct rank *r)
{
	uint8_t *data = malloc(MOST);
	assert_non_null(data);
	memset(data, (int)r->number, MOST);
	r->reach = reach_late;
	if (!r->number)
		stopped_control = &r->control;
	pthread_barrier_wait(&r->world->round);
	message_run(r, r->number ? PEER_DIR_TO(0) : PEER_DIR_FROM(1), data, MOST);
	memset(data, 7, r->number ? 0 : MOST);
	if (!r->number) /* the daemon stops all ranks */
		atomic_store_explicit(&r->world->ranks[1].control.abort, 1, memory_order_release);
	pthread_barrier_wait(&r->world->round);
	if (!r->number)
		assert_int_equal(ABOVE(r->control.failed), PEER_ABORTED);
	for (uint64_t i = 0; i < MOST && !r->number; i++)
		assert_int_equal(data[i], 7);
	free(data);
}

static void stopped_is_not_written(void **unused)
{
	(void)unused;
	world_free(world_run(2, written_work));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_ranks),		  cmocka_unit_test(sender_goes_ahead),
		cmocka_unit_test(long_ones_cross),	  cmocka_unit_test(mismatch_is_reported),
		cmocka_unit_test(lost_is_aborted),	  cmocka_unit_test(full_is_aborted),
		cmocka_unit_test(stopped_is_not_written),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
