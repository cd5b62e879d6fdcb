/* SPDX-License-Identifier: Apache-2.0
 * A broken daemon: its messages, and what it writes into the ring, are changed at random in
 * transit. The library may report anything, but must not crash or hang.
 * NCCLSVC_TEST_SEEDS=N tries that many schedules instead of SEEDS; NCCLSVC_TEST_SEED is the first.
 */
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"
#include "mangle.h"
#include "ncclsvc_plan.h"
#include "ncclsvc_world.h"
#include "version_relay.h"

#define SEEDS	   60
#define TIMEOUT_MS 300
#define WORDS	   1000
#define SEED_MS	   120000 /* per process; a request may wait 10 s for its reply, several times */

/* ---- A trainer's work ---- */

static void list_all(ncclsvc_session *s)
{
	ncclsvc_daemon_info info;
	uint64_t n64;
	size_t n;
#define LIST(function, type)                                                                       \
	do {                                                                                       \
		type *list;                                                                        \
		if (!function(s, &list, &n))                                                       \
			ncclsvc_list_free(list);                                                   \
	} while (0)
	LIST(ncclsvc_list_sessions, ncclsvc_session_info);
	LIST(ncclsvc_list_comms, ncclsvc_comm_info);
	LIST(ncclsvc_list_members, ncclsvc_member_info);
	LIST(ncclsvc_list_tasks, ncclsvc_task_info);
	LIST(ncclsvc_list_regions, ncclsvc_region_info);
	LIST(ncclsvc_list_devices, ncclsvc_device_info);
	LIST(ncclsvc_list_plans, ncclsvc_plan_info);
	ncclsvc_daemon(s, &info);
	ncclsvc_cancel_task(s, 1, &n64);
}

static void work(ncclsvc_session *s, ncclsvc_comm *comm)
{
	static int32_t from[WORDS], to[WORDS];
	ncclsvc_task task;
	void *shared = NULL;
	if (ncclsvc_mem_alloc(s, sizeof(from), &shared))
		shared = from;
	for (int i = 0; i < 20; i++) {
		if (!ncclsvc_all_reduce(i % 2 ? from : shared, to, WORDS, NCCLSVC_INT32,
					NCCLSVC_SUM, comm, &task))
			ncclsvc_wait(s, task, TIMEOUT_MS);
		if (!ncclsvc_all_gather(from, to, WORDS / 2, NCCLSVC_INT32, comm, &task))
			ncclsvc_test(s, task);
		ncclsvc_dispatch(s, 0);
	}
	ncclsvc_wait_all(s, TIMEOUT_MS);
	ncclsvc_comm_error(comm);
	if (shared != from)
		ncclsvc_mem_free(s, shared);
}

static void plan(ncclsvc_comm *comm)
{
	ncclsvc_plan *p;
	if (ncclsvc_plan_start(comm, &p))
		return;
	ncclsvc_plan_group_start(p);
	ncclsvc_plan_send(p, 4, NCCLSVC_INT32, 0);
	ncclsvc_plan_recv(p, 4, NCCLSVC_INT32, 0);
	ncclsvc_plan_group_end(p);
	if (!ncclsvc_plan_end(p, TIMEOUT_MS))
		ncclsvc_plan_launch(p);
	ncclsvc_plan_reset(p, TIMEOUT_MS);
}

static void train(struct client *me)
{
	ncclsvc_session *s;
	ncclsvc_comm *comm, *part, *world;
	const ncclsvc_options options = {.size = sizeof(options),
					 .socket = me->daemon->socket,
					 .no_ring = *(const unsigned long *)me->arg % 4 == 3,
					 .ring_entries = 64,
					 .timeout_ms = TIMEOUT_MS};
	if (ncclsvc_open(&options, &s))
		return;
	if (!ncclsvc_comm_join(s, &me->id, 1, 0, TIMEOUT_MS, &comm)) {
		work(s, comm);
		if (!ncclsvc_comm_split(comm, 0, 0, TIMEOUT_MS, &part))
			work(s, part);
		plan(comm);
	}
	if (!ncclsvc_comm_world(s, -1, TIMEOUT_MS, &world)) {
		work(s, world);
		ncclsvc_comm_leave(world);
	}
	list_all(s);
	if (!ncclsvc_reattach(s, TIMEOUT_MS))
		list_all(s);
	ncclsvc_close(s);
}

/* ---- The test ---- */

static void a_trainer_of_a_broken_daemon_survives(void **unused)
{
	const struct mangle_seeds seeds = mangle_seeds(SEEDS);
	struct daemon d;
	(void)unused;
	time_limit((unsigned)(120 + seeds.n * 60));
	daemon_start(&d, "--ranks", "1", NULL);
	for (unsigned long seed = seeds.first; seed < seeds.first + seeds.n; seed++) {
		struct relay relay;
		struct client trainer;
		if (seeds.n > SEEDS)
			print_message("seed %lu\n", seed);
		mangle_seed(seed);
		relay_start_mangling(&relay, &d, mangle);
		clients_start(&trainer, 1, &relay.behind, train, &seed);
		clients_end_within(&trainer, 1, SEED_MS);
		relay_stop(&relay);
	}
	daemon_kill(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_trainer_of_a_broken_daemon_survives),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
