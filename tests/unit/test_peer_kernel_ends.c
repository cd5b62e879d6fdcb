/* SPDX-License-Identifier: Apache-2.0
 * How the collective kernels end, and what they report: ranks that differ or do not come, posts,
 * and kernels in graphs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "peer_beat.h"
#include "peer_world.h"

/* ---- Failures ---- */

/* The last rank sends less; afterwards everything works again. */
static void mismatch_work(struct rank *r)
{
	const unsigned n = kernel->bytes;
	struct peer_call c = call_of(r, r->number + 1 == r->nranks ? 8 : n);
	c.reduces = 1;
	kernel->run(c);
	const uint64_t result = r->control.results[KERNEL_SEQ % PEER_RESULTS];
	assert_int_equal(ABOVE(result), PEER_MISMATCH);
	assert_int_equal((uint32_t)result, KERNEL_SEQ);
	assert_int_equal(r->control.failed, 0);
	pthread_barrier_wait(&r->world->round);
	memset(r->src, 1, n);
	c = call_of(r, n);
	c.reduces = 1;
	kernel->run(c);
	assert_int_equal(r->control.failed, 0);
	assert_int_equal(r->dst[n - 1], r->nranks);
}

static void mismatch(void **unused)
{
	(void)unused;
	world_free(world_run(3, mismatch_work));
}

/* Rank 0's kernel has found that the last rank's header differs, but rank 1 comes late. */
static void late_work(struct rank *r)
{
	struct peer_call c = call_of(r, r->number + 1 == r->nranks ? 8 : 640);
	atomic_uint *arrived = &r->world->arrived;
	if (r->number == 1) {
		usleep(20000);
		atomic_store_explicit(arrived, 1, memory_order_release);
	}
	kernel->run(c);
	assert_int_equal(ABOVE(r->control.results[KERNEL_SEQ % PEER_RESULTS]), PEER_MISMATCH);
	assert_int_equal(atomic_load_explicit(arrived, memory_order_acquire), 1);
}

static void mismatch_waits_for_all(void **unused)
{
	(void)unused;
	world_free(world_run(3, late_work));
}

static void abort_soon(struct rank *r)
{
	while (!atomic_load_explicit(&r->control.begun, memory_order_acquire))
		usleep(100);
	atomic_store_explicit(&r->control.abort, 1, memory_order_release);
}

/* The rank is dead: its next kernel ends although nothing aborts it, and sends nothing. */
static void dead_work(struct rank *r, struct peer_call c)
{
	char *peer = r->world->ranks[1].staging, *before = malloc(PEER_STAGING);
	assert_non_null(before);
	memcpy(before, peer, PEER_STAGING);
	const uint64_t first = r->control.failed;
	kernel->run(c);
	assert_int_equal(ABOVE(r->control.results[c.kernel_seq % PEER_RESULTS]), PEER_ABORTED);
	assert_true(r->control.failed == first);
	assert_memory_equal(before, peer, PEER_STAGING);
	free(before);
}

/* Rank 1 never comes, but aborts rank 0's kernel, which has reported that it waits. */
static void abort_work(struct rank *r)
{
	struct peer_call c = call_of(r, 64);
	c.kernel_seq = 77;
	if (r->number) {
		abort_soon(&r->world->ranks[0]);
		return;
	}
	kernel->run(c);
	assert_int_equal(ABOVE(r->control.begun), 77);
	assert_true(r->control.begun == r->control.ended);
	assert_int_equal(ABOVE(r->control.failed), PEER_ABORTED);
	dead_work(r, c);
}

static void aborted(void **unused)
{
	(void)unused;
	world_free(world_run(2, abort_work));
}

/* Rank 0 is aborted when rank 1 is about to write into its buffer. */
static void written_work(struct rank *r)
{
	static const uint32_t all[PEER_RANKS] = {2, 2, 2, 2, 2, 2, 2, 2};
	if (!r->number)
		stopped_control = &r->control;
	pthread_barrier_wait(&r->world->round);
	if (r->number)
		ncclsvc_peer_reach = reach_late;
	struct peer_call c = call_of(r, MANY);
	c.reduces = 1;
	direct_run(c, all);
	ncclsvc_peer_reach = NULL;
	if (!r->number) {
		memset(r->dst, 7, MANY);
		/* the daemon stops all ranks */
		atomic_store_explicit(&r->world->ranks[1].control.abort, 1, memory_order_release);
	}
	pthread_barrier_wait(&r->world->round);
	if (!r->number)
		assert_int_equal(ABOVE(r->control.failed), PEER_ABORTED);
	for (unsigned i = 0; i < MANY && !r->number; i++)
		assert_int_equal(r->dst[i], 7);
}

static void stopped_is_not_written(void **unused)
{
	(void)unused;
	world_free(world_run(2, written_work));
}

/* A kernel that waits, and a second one of the same rank at the same time. */
static void overlap_work(struct rank *r)
{
	struct rank *waits = &r->world->ranks[0];
	struct peer_call c = call_of(waits, 64);
	if (!r->number) {
		kernel->run(c);
		return;
	}
	while (!atomic_load_explicit(&waits->control.begun, memory_order_acquire))
		usleep(100);
	kernel->run(c);
	assert_int_equal(ABOVE(atomic_load_explicit(&waits->control.failed, memory_order_acquire)),
			 PEER_OVERLAP);
}

static void overlap(void **unused)
{
	(void)unused;
	struct world *w = world_run(2, overlap_work);
	assert_int_equal(state(&w->ranks[0])->dead, PEER_OVERLAP);
	world_free(w);
}

/* ---- Posts ---- */

static uint32_t block_ended(struct rank *r, uint32_t number)
{
	return atomic_load_explicit(&state(r)->ended[number], memory_order_acquire);
}

static uint64_t control_ended(struct rank *r)
{
	return atomic_load_explicit(&r->control.ended, memory_order_acquire);
}

static uint64_t posted(uint32_t launch_seq)
{
	return (uint64_t)KERNEL_SEQ << 32 | launch_seq;
}

static struct peer_call posting_call(struct rank *r)
{
	struct peer_call c = call_of(r, kernel->bytes);
	c.posts = 1;
	return c;
}

/* Rank 1 runs its blocks one after the other, in either order, so that rank 0's other block waits.
 */
static void posts_round(struct rank *r, uint32_t first, uint32_t launch_seq)
{
	const uint64_t before = r->control.ended;
	struct peer_call c = posting_call(r);
	if (r->number) {
		struct rank *other = &r->world->ranks[0];
		block_run(kernel, &c, first, 2);
		assert_true(control_ended(r) == before);
		while (block_ended(other, first) != launch_seq)
			usleep(100);
		usleep(2000);
		assert_int_not_equal(block_ended(other, !first), launch_seq);
		assert_int_not_equal((uint32_t)control_ended(other), launch_seq);
		block_run(kernel, &c, !first, 2);
	} else {
		blocks_at_once(kernel, &c, 2);
	}
	assert_int_equal(r->control.failed, 0);
	assert_true(control_ended(r) == posted(launch_seq));
}

static void posts_work(struct rank *r)
{
	posts_round(r, 0, NEAR_WRAP + 1);
	pthread_barrier_wait(&r->world->round);
	posts_round(r, 1, 2);
	struct peer_call c = posting_call(r);
	kernel->run(c); /* of one block */
	assert_true(control_ended(r) == posted(3));
}

static void posts_after_all_blocks(void **unused)
{
	(void)unused;
	world_free(world_run(2, posts_work));
}

/* A kernel of one block, after which no word is older than it. */
static void refresh_work(struct rank *r)
{
	struct peer_call c = call_of(r, 8);
	c.kernel_seq = KERNEL_SEQ;
	for (unsigned i = 0; i < PEER_BLOCKS; i++)
		state(r)->ended[i] = 2 * PEER_REFRESH - 2;
	for (unsigned i = 0; i < PEER_BLOCKS; i++)
		state(r)->completed[i] = KERNEL_SEQ;
	state(r)->launch_seq = 2 * PEER_REFRESH - 2;
	pthread_barrier_wait(&r->world->round);
	kernel->run(c);
	assert_int_equal(block_ended(r, 1), 2 * PEER_REFRESH - 2);
	kernel->run(c);
	for (uint32_t i = 0; i < PEER_BLOCKS; i++)
		assert_int_equal(block_ended(r, i), 2 * PEER_REFRESH);
	assert_true(control_ended(r) == posted(2 * PEER_REFRESH));
	assert_int_equal(state(r)->completed[1], KERNEL_SEQ);
	c.kernel_seq = PEER_REFRESH;
	kernel->run(c);
	assert_int_equal(block_ended(r, 1), 2 * PEER_REFRESH);
	for (uint32_t i = 0; i < PEER_BLOCKS; i++)
		assert_int_equal(state(r)->completed[i], PEER_REFRESH);
	assert_int_equal(r->control.failed, 0);
}

static void refreshed(void **unused)
{
	(void)unused;
	world_free(world_run(2, refresh_work));
}

/* Rank 1 never comes, and aborts rank 0's. */
static void failure_work(struct rank *r)
{
	struct peer_call c = posting_call(r);
	if (r->number) {
		struct rank *other = &r->world->ranks[0];
		while (!atomic_load_explicit(&other->control.begun, memory_order_acquire))
			usleep(100);
		assert_int_equal(control_ended(other), 0);
		abort_soon(other);
		return;
	}
	blocks_at_once(kernel, &c, 2);
	assert_int_equal(ABOVE(r->control.failed), PEER_ABORTED);
	assert_true(control_ended(r) == posted(NEAR_WRAP + 1));
	kernel->run(c); /* it is dead */
	assert_true(control_ended(r) == posted(2));
}

static void posts_failure(void **unused)
{
	(void)unused;
	world_free(world_run(2, failure_work));
}

/* ---- Kernels in graphs ---- */

#define GRAPH 3
#define INDEX 5

static struct peer_call graph_call(struct rank *r, uint64_t bytes)
{
	struct peer_call c = call_of(r, bytes);
	c.reduces = 1;
	c.kernel_seq = 0;
	c.graph = GRAPH;
	c.index = INDEX;
	return c;
}

/* Rank 1 is late for rank 0's kernel, and its own is not in a graph. */
static void graph_work(struct rank *r)
{
	struct rank *waits = &r->world->ranks[0];
	struct peer_call single = call_of(r, 64), c = graph_call(r, 64);
	const uint32_t second = peer_seq_after(NEAR_WRAP + 1);
	single.reduces = 1;
	kernel->run(single);
	if (r->number) {
		while (atomic_load_explicit(&waits->control.begun, memory_order_acquire) != second)
			usleep(100);
		assert_true(waits->control.graph == ((uint64_t)GRAPH << 32 | INDEX));
		assert_int_equal(waits->control.header, c.header);
		assert_int_equal(waits->control.coll_launch_seq, second);
		single.kernel_seq++;
		kernel->run(single);
		return;
	}
	kernel->run(c);
	assert_int_equal(r->control.failed, 0);
	assert_true(r->control.ended == ((uint64_t)KERNEL_SEQ << 32 | second));
	assert_int_equal(state(r)->ended[0], second);
	assert_int_equal(state(r)->completed[0], KERNEL_SEQ);
	assert_int_equal(state(r)->kernel_seq, KERNEL_SEQ);
}

static void in_graph(void **unused)
{
	(void)unused;
	world_free(world_run(2, graph_work));
}

/* All later kernels fail, and the control block says why. */
static void graph_mismatch_work(struct rank *r)
{
	struct peer_call c = graph_call(r, r->number ? 64 : 128);
	const uint32_t next = peer_seq_after(state(r)->kernel_seq);
	kernel->run(c);
	assert_true(r->control.failed == ((uint64_t)PEER_FATAL_MISMATCH << 32 | next));
	assert_int_equal(r->control.mismatch[0], c.header);
	assert_int_equal(r->control.mismatch[1], r->number ? 128 : 64);
	assert_int_equal(r->control.mismatch[2], !r->number);
	assert_int_equal(r->control.mismatch[3], 1);
	pthread_barrier_wait(&r->world->round);
	c = call_of(r, 64);
	kernel->run(c);
	assert_int_equal(ABOVE(r->control.results[KERNEL_SEQ % PEER_RESULTS]), PEER_FATAL_MISMATCH);
	assert_int_equal(state(r)->completed[0], KERNEL_SEQ);
}

static void graph_mismatch(void **unused)
{
	(void)unused;
	world_free(world_run(2, graph_mismatch_work));
}

int main(void)
{
	const struct CMUnitTest both[] = {
		cmocka_unit_test(mismatch),
		cmocka_unit_test(mismatch_waits_for_all),
		cmocka_unit_test(aborted),
		cmocka_unit_test(overlap),
		cmocka_unit_test(posts_after_all_blocks),
		cmocka_unit_test(posts_failure),
		cmocka_unit_test(refreshed),
		cmocka_unit_test(in_graph),
		cmocka_unit_test(graph_mismatch),
	};
	const struct CMUnitTest direct[] = {cmocka_unit_test(stopped_is_not_written)};
	return cmocka_run_group_tests(direct, NULL, NULL) +
	       cmocka_run_group_tests_name("few bytes", both, with_few, NULL) +
	       cmocka_run_group_tests_name("many bytes", both, with_many, NULL);
}
