/* SPDX-License-Identifier: Apache-2.0
 * Like test_broken_daemon.c, on GPUs: the streams, kernels and memory of two trainers depend on
 * the messages of a broken daemon. */
#include <stdlib.h>
#include <unistd.h>

#include "mangle.h"
#include "tests/gpu/gpu_context.h"
#include "version_relay.h"
#include "workers.h"

#define SEEDS	   12
#define TIMEOUT_MS 1000
#define WORDS	   4096
#define SEED_MS	   120000

static void reduce(ncclsvc_session *s, ncclsvc_comm *comm, CUdeviceptr p)
{
	ncclsvc_task task;
	for (int i = 0; i < 8; i++)
		if (!ncclsvc_all_reduce(at(p), at(p), WORDS, NCCLSVC_INT32, NCCLSVC_SUM, comm,
					&task))
			ncclsvc_wait(s, task, TIMEOUT_MS);
	ncclsvc_comm_error(comm);
}

static void use(struct client *me, ncclsvc_session *s, CUdeviceptr p)
{
	ncclsvc_comm *comm, *part;
	void *own;
	if (ncclsvc_comm_join_device(s, &me->id, me->nranks, me->rank, me->rank, TIMEOUT_MS, &comm))
		return;
	reduce(s, comm, p);
	if (!ncclsvc_mem_alloc_device(s, me->rank, WORDS * sizeof(int32_t), &own)) {
		reduce(s, comm, (CUdeviceptr)(uintptr_t)own);
		ncclsvc_mem_free(s, own);
	}
	if (!ncclsvc_comm_split(comm, 0, me->rank, TIMEOUT_MS, &part)) {
		reduce(s, part, p);
		ncclsvc_comm_leave(part);
	}
}

static void train(struct client *me)
{
	const ncclsvc_options options = {
		.size = sizeof(options), .socket = me->daemon->socket, .timeout_ms = TIMEOUT_MS};
	ncclsvc_session *s;
	CUdeviceptr p;
	char text[256];
	if (*(const unsigned long *)me->arg % 2)
		setenv("NCCLSVC_PEER", "0", 1);
	else
		unsetenv("NCCLSVC_PEER");
	CHECK(gpu_driver_open(text, sizeof(text)) == 2);
	if (!ncclsvc_open(&options, &s)) {
		gpu_use(me->rank);
		CUstream stream = gpu_stream();
		CHECK_CU(cu.cuMemAlloc(&p, WORDS * sizeof(int32_t)));
		if (!ncclsvc_stream_set(s, stream, 0))
			use(me, s, p);
		ncclsvc_close(s);
		gpu_stream_ends(stream, TIMEOUT_MS);
	}
	/* A stream may wait forever, because the broken daemon may never signal it. */
	_exit(0);
}

static void trainers_on_gpus_survive_a_broken_daemon(void **state)
{
	const struct mangle_seeds seeds = mangle_seeds(SEEDS);
	struct rank_group c;
	(void)state;
	time_limit((unsigned)(120 + seeds.n * 60));
	ranks_prepare(&c, 2);
	ranks_start_daemon(&c, NULL);
	for (unsigned long seed = seeds.first; seed < seeds.first + seeds.n; seed++) {
		struct relay relay;
		struct client trainers[2];
		if (seeds.n > SEEDS)
			print_message("seed %lu\n", seed);
		mangle_seed(seed);
		relay_start_mangling(&relay, &c.d, mangle);
		clients_start(trainers, 2, &relay.behind, train, &seed);
		clients_end_within(trainers, 2, SEED_MS);
		relay_stop(&relay);
	}
	daemon_kill(&c.d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RANKS_TEST(trainers_on_gpus_survive_a_broken_daemon),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
