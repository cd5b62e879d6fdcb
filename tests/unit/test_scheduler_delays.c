/* SPDX-License-Identifier: Apache-2.0
 * Random deadlock-free programs on several nodes, with random message delays, some longer than it
 * takes to find a deadlock. Operations have the same status on all members, and only those with a
 * deadline may fail. SEED=number repeats a run. */
#include <stdlib.h>

#include <pthread.h>

#include "base/timings.h"
#include "scheduler_cluster.h"

#define OPERATIONS 60
#define HOLD_NS	   ((long)(4 * DEADLOCK_LOOK_NS)) /* at most */
#define TIMEOUT_NS 50000000u			  /* at most */

static unsigned seed;

static unsigned below(unsigned n)
{
	return (unsigned)rand_r(&seed) % n;
}

/* ---- Messages ---- */

static pthread_t thread;
static atomic_bool done;

/* Holds back one channel after the other for a while. */
static void *delay(void *arg)
{
	unsigned own = *(unsigned *)arg;
	while (!atomic_load(&done)) {
		const int from = rand_r(&own) % NODES, to = (from + 1 + rand_r(&own) % 2) % NODES;
		hold(from, to, true);
		pause_ns(rand_r(&own) % HOLD_NS);
		hold(from, to, false);
		pause_ns(rand_r(&own) % 1000000);
	}
	return NULL;
}

static int begin_delays(enum transport_kind transport, uint32_t n, const uint32_t *nodes)
{
	static unsigned delays;
	const char *given = getenv("SEED");
	seed = given ? (unsigned)strtoul(given, NULL, 10) : (unsigned)now_ns();
	print_message("SEED=%u\n", seed);
	delays = seed;
	atomic_store(&done, false);
	nodes_begin(transport, n, nodes);
	return pthread_create(&thread, NULL, delay, &delays);
}

static int begin(void **state)
{
	(void)state;
	return begin_delays(TRANSPORT_INTERNODE, 4, (const uint32_t[])LIST(0, 1, 2, 0));
}

static int begin_gpus(void **state)
{
	(void)state;
	return begin_delays(TRANSPORT_NCCL, NODES, (const uint32_t[])LIST(1, 0, 2));
}

static int end(void **state)
{
	atomic_store(&done, true);
	pthread_join(thread, NULL);
	return nodes_end(state);
}

/* ---- Programs ---- */

/* One operation: each rank's task; 0: the rank has none. */
static struct operation {
	uint64_t tasks[RANKS];
	int result; /* -1: not known yet */
} operations[OPERATIONS];

static void post(struct operation *o, uint32_t rank, struct svc_record r, bool deadlines)
{
	r.timeout_ns = deadlines && below(4) == 0 ? 1 + below(TIMEOUT_NS) : 0;
	o->tasks[rank] = submit_one(rank, r);
}

/* All ranks post in the same order, so none waits forever, but not at the same time. */
static void post_all(bool deadlines)
{
	for (unsigned i = 0; i < OPERATIONS; i++) {
		struct operation *o = &operations[i];
		const uint32_t a = below(nranks), b = (a + 1 + below(nranks - 1)) % nranks;
		const bool pair = below(2);
		*o = (struct operation){.result = -1};
		if (pair) {
			post(o, a, task_of(a, NCCLSVC_SEND, (int32_t)b), deadlines);
			pause_ns(below(500000));
			post(o, b, task_of(b, NCCLSVC_RECV, (int32_t)a), deadlines);
		}
		for (uint32_t k = 0; k < nranks && !pair; k++)
			post(o, k, task_of(k, NCCLSVC_ALL_REDUCE, -1), deadlines);
		pause_ns(below(2000000));
	}
}

static void all_end(int32_t other)
{
	for (unsigned i = 0; i < OPERATIONS; i++)
		for (uint32_t k = 0; k < nranks; k++) {
			struct operation *o = &operations[i];
			if (!o->tasks[k])
				continue;
			await_over(k, o->tasks[k]);
			const int result = status_of_task(k, o->tasks[k]).result;
			assert_true(o->result < 0 || o->result == result);
			if (result != NCCLSVC_OK)
				assert_int_equal(result, other);
			o->result = result;
		}
}

static void nobody_is_told_of_a_deadlock(void **state)
{
	(void)state;
	post_all(false);
	all_end(NCCLSVC_OK);
}

static void deadlines_are_the_same_for_all(void **state)
{
	(void)state;
	post_all(true);
	all_end(NCCLSVC_TIMEOUT);
}

#define DELAY_TEST(test, setup)                                                                    \
	{                                                                                          \
		.name = #test "/" #setup, .test_func = test, .setup_func = setup,                  \
		.teardown_func = end                                                               \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		DELAY_TEST(nobody_is_told_of_a_deadlock, begin),
		DELAY_TEST(nobody_is_told_of_a_deadlock, begin_gpus),
		DELAY_TEST(deadlines_are_the_same_for_all, begin),
		DELAY_TEST(deadlines_are_the_same_for_all, begin_gpus),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
