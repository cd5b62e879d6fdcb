/* SPDX-License-Identifier: Apache-2.0
 * The scheduler's independent parts: deadlines, the pool, and the task table under a busy writer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "account/task_table.h"
#include "base/deadlines.h"
#include "base/pool.h"

#define DEADLINES 1000

static void deadlines_come_in_order(void **state)
{
	static struct deadline d[DEADLINES];
	struct deadlines h = {0};
	uint64_t last = 0;
	unsigned seen = 0;
	(void)state;
	srand(1);
	for (int i = 0; i < DEADLINES; i++)
		assert_int_equal(deadlines_add(&h, &d[i], (uint64_t)(rand() % 500)), 0);
	for (int i = 0; i < DEADLINES; i += 3) {
		deadlines_remove(&h, &d[i]);
		deadlines_remove(&h, &d[i]); /* a second time does nothing */
		assert_int_equal(d[i].place, 0);
	}
	for (struct deadline *first; (first = deadlines_first(&h)); seen++) {
		assert_true(first->at_ns >= last);
		assert_int_not_equal((first - d) % 3, 0);
		last = first->at_ns;
		deadlines_remove(&h, first);
	}
	assert_int_equal(seen, DEADLINES - (DEADLINES + 2) / 3);
	deadlines_fini(&h);
}

#define CHUNKS 97
#define JOBS   200

struct counted {
	struct job job;
	_Atomic unsigned runs[CHUNKS];
};

static void count_chunk(struct job *job, uint32_t chunk)
{
	atomic_fetch_add(&((struct counted *)job)->runs[chunk], 1);
}

static void notify(void *arg)
{
	atomic_fetch_add((_Atomic unsigned *)arg, 1);
}

static void every_chunk_runs_once(unsigned helpers)
{
	_Atomic unsigned notified = 0;
	static struct counted jobs[JOBS];
	struct pool *p = pool_create(helpers, notify, &notified);
	unsigned collected = 0;
	assert_non_null(p);
	memset(jobs, 0, sizeof(jobs));
	for (int i = 0; i < JOBS; i++) {
		jobs[i].job.run = count_chunk;
		jobs[i].job.chunks = 1 + (uint32_t)i % CHUNKS;
		pool_submit(p, &jobs[i].job, true);
	}
	while (collected < JOBS) {
		if (!pool_help(p))
			sched_yield();
		for (struct job *job; (job = pool_collect(p)); collected++)
			for (uint32_t k = 0; k < CHUNKS; k++)
				assert_int_equal(((struct counted *)job)->runs[k], k < job->chunks);
	}
	assert_null(pool_collect(p));
	pool_destroy(p);
}

/* The pool's threads run its jobs; the other thread only collects them. */
static void a_pool_beside_another(void **state)
{
	_Atomic unsigned notified = 0;
	static struct counted jobs[JOBS];
	struct pool *p = pool_create(0, notify, &notified), *own = pool_create_beside(p, 2);
	(void)state;
	memset(jobs, 0, sizeof(jobs));
	for (int i = 0; i < JOBS; i++) {
		jobs[i].job.run = count_chunk;
		jobs[i].job.chunks = 1 + (uint32_t)i % CHUNKS;
		pool_submit(own, &jobs[i].job, false);
	}
	assert_false(pool_help(p));
	for (unsigned collected = 0; collected < JOBS;) {
		const struct job *job = pool_collect(p);
		for (uint32_t k = 0; job && k < job->chunks; k++)
			assert_int_equal(((const struct counted *)job)->runs[k], 1);
		collected += job != NULL;
		if (!job)
			sched_yield();
	}
	assert_null(pool_collect(own));
	pool_destroy(own);
	assert_int_equal(notified, JOBS);
	pool_destroy(p);
}

static void the_pool_runs_every_chunk_once(void **state)
{
	(void)state;
	every_chunk_runs_once(0);
	every_chunk_runs_once(1);
	every_chunk_runs_once(3);
}

#define ROUNDS 200000

/* Writes entries whose words all hold the same number. */
static void *write_entries(void *arg)
{
	struct task_table *t = arg;
	struct table_entry e;
	for (uint64_t n = 1; n <= ROUNDS; n++) {
		uint64_t *words = (uint64_t *)&e;
		for (size_t i = 0; i < TABLE_WORDS; i++)
			words[i] = n;
		if (n > 1)
			table_clear(t, 0);
		assert_int_equal(table_put(t, &e), 0);
	}
	assert_int_equal(table_put(t, &e), 1);
	return NULL;
}

static void the_table_is_never_read_torn(void **state)
{
	struct task_table t;
	struct table_entry e;
	pthread_t writer;
	uint64_t last = 0;
	(void)state;
	assert_int_equal(table_init(&t, 2), 0);
	assert_false(table_get(&t, 0, &e));
	assert_int_equal(pthread_create(&writer, NULL, write_entries, &t), 0);
	while (!table_get(&t, 1, &e)) {
		if (!table_get(&t, 0, &e))
			continue;
		const uint64_t *words = (const uint64_t *)&e;
		for (size_t i = 1; i < TABLE_WORDS; i++)
			assert_int_equal(words[i], words[0]);
		assert_true(words[0] >= last);
		last = words[0];
	}
	assert_int_equal(pthread_join(writer, NULL), 0);
	assert_int_equal(t.high, 2);
	table_fini(&t);
}

/* The lowest entry is filled first, and the end moves down again. */
static void the_table_shrinks(void **state)
{
	enum { N = 1000 };
	struct task_table t;
	struct table_entry e = {.uid = 1};
	(void)state;
	assert_int_equal(table_init(&t, N), 0);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(table_put(&t, &e), i);
	assert_int_equal(t.high, N);
	for (uint32_t i = 0; i < N; i += 2)
		table_clear(&t, i);
	assert_int_equal(t.high, N);
	for (uint32_t i = 0; i < 10; i += 2)
		assert_int_equal(table_put(&t, &e), i);
	for (uint32_t i = N - 1; i > 9; i -= 2) {
		assert_int_equal(t.high, i + 1);
		table_clear(&t, i);
	}
	assert_int_equal(t.high, 10);
	assert_int_equal(table_put(&t, &e), 10);
	for (uint32_t i = 0; i < 10; i++)
		table_clear(&t, i);
	assert_int_equal(t.high, 11);
	table_clear(&t, 10);
	assert_int_equal(t.high, 0);
	assert_int_equal(table_put(&t, &e), 0);
	table_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(deadlines_come_in_order),
		cmocka_unit_test(the_pool_runs_every_chunk_once),
		cmocka_unit_test(a_pool_beside_another),
		cmocka_unit_test(the_table_is_never_read_torn),
		cmocka_unit_test(the_table_shrinks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
