/* SPDX-License-Identifier: Apache-2.0
 * A world over several daemons, with lists of tensors across nodes; and daemons whose launcher and
 * MPI disagree on their number. */
#include <stdlib.h>
#include <string.h>

#include "ncclsvc_tensors.h"
#include "node_daemons.h"

#define RANKS 4

static void rank_of_world(struct client *me)
{
	ncclsvc_world *w;
	ncclsvc_tensors *lists;
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_world_options o = {
		.size = sizeof(o), .rank = me->rank, .device = NCCLSVC_DEVICE_HOST};
	CHECK_OK(ncclsvc_world_init(s, &o, WAIT_MS, &w));
	const ncclsvc_layout *l = ncclsvc_world_layout(w);
	CHECK_EQ(l->size, RANKS);
	CHECK_EQ(l->nodes, 2);
	CHECK_EQ(l->node, me->rank / 2);
	CHECK_EQ(l->local_rank, me->rank % 2);
	CHECK_EQ(l->local_size, 2);
	CHECK_EQ(l->groups[NCCLSVC_GROUP_NODE_LOCAL].size, 2);
	CHECK_EQ(l->groups[NCCLSVC_GROUP_CROSS_NODE].size, 2);
	for (unsigned type = 0; type < NCCLSVC_GROUP_TYPES; type++) {
		const ncclsvc_group *g = &l->groups[type];
		int32_t v[4] = {1 << me->rank, 0, 0, 1 << me->rank}, sum = 0;
		const int64_t one = 1;
		const ncclsvc_tensor t[2] = {{v, NCCLSVC_INT32, 1, &one},
					     {v + 3, NCCLSVC_INT32, 1, &one}};
		CHECK_OK(ncclsvc_tensors_open_group(w, (ncclsvc_group_type)type, WAIT_MS, &lists));
		CHECK_OK(ncclsvc_tensors_all_reduce(lists, t, NULL, 2, NCCLSVC_SUM, WAIT_MS, NULL));
		for (int i = 0; i < g->size; i++)
			sum |= 1 << ncclsvc_group_rank(g, i);
		CHECK_EQ(v[0], sum);
		CHECK_EQ(v[3], sum);
		/* One rank's invalid list fails the call on all ranks. */
		ncclsvc_result r = ncclsvc_tensors_all_reduce(lists, t, NULL, g->index ? 2 : 0,
							      NCCLSVC_SUM, WAIT_MS, NULL);
		CHECK_EQ(r, NCCLSVC_INVALID_ARGUMENT);
		CHECK_OK(ncclsvc_tensors_close(lists));
	}
	check_usable(s, ncclsvc_world_host_comm(w)); /* no rank leaves before all are done */
	ncclsvc_world_free(w);
	ncclsvc_close(s);
}

static void a_world_has_the_daemons_nodes(void **state)
{
	struct cluster c;
	struct client clients[RANKS];
	(void)state;
	cluster_start(&c, 2, "--ranks", "2", NULL);
	cluster_clients(clients, RANKS, &c, IN_BLOCKS, rank_of_world, NULL);
	clients_end(clients, RANKS);
	cluster_stop(&c);
}

/* ---- A job's world ---- */

enum { READY = 1, GO };

static ncclsvc_world_options job_options(const struct client *me)
{
	return (ncclsvc_world_options){.size = sizeof(ncclsvc_world_options),
				       .rank = me->rank,
				       .device = NCCLSVC_DEVICE_HOST,
				       .local = 2,
				       .world = RANKS,
				       .job = "one"};
}

static void rank_of_job(struct client *me)
{
	ncclsvc_world *w;
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_world_options o = job_options(me);
	o.local = 0;
	CHECK_RESULT(ncclsvc_world_init(s, &o, WAIT_MS, &w), NCCLSVC_INVALID_ARGUMENT);
	CHECK(strstr(ncclsvc_last_error(), "set local in the options"));
	o.local = 2;
	CHECK_OK(ncclsvc_world_init(s, &o, WAIT_MS, &w));
	CHECK_EQ(ncclsvc_world_layout(w)->node, me->rank / 2);
	for (unsigned type = 0; type < NCCLSVC_GROUP_TYPES; type++)
		check_usable(s, ncclsvc_world_comm(w, (ncclsvc_group_type)type));
	check_usable(s, ncclsvc_world_host_comm(w));
	ncclsvc_world_free(w);
	ncclsvc_close(s);
}

/* The daemons' own world has one rank on each node. */
static void a_job_brings_its_world_to_two_nodes(void **state)
{
	struct cluster c;
	struct client clients[RANKS];
	(void)state;
	cluster_start(&c, 2, "--ranks", "1", NULL);
	cluster_clients(clients, RANKS, &c, IN_BLOCKS, rank_of_job, NULL);
	clients_end(clients, RANKS);
	cluster_stop(&c);
}

/* Only the death of rank 2, on the other node, ends the wait of ranks 0 and 1. */
static void hears_of_a_death(struct client *me)
{
	ncclsvc_world *w = NULL;
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_world_options o = job_options(me);
	say(me, READY);
	CHECK_RESULT(ncclsvc_world_init(s, &o, NCCLSVC_NO_TIMEOUT, &w),
		     me->rank < 2 ? NCCLSVC_PEER_GONE : NCCLSVC_DAEMON_LOST);
	if (me->rank < 2)
		CHECK(strstr(ncclsvc_last_error(), "rank 2 (pid "));
	CHECK(!w);
	ncclsvc_close(s);
}

static void killed_while_others_wait(bool node)
{
	struct cluster c;
	struct client clients[3];
	cluster_start(&c, 2, NULL);
	cluster_clients(clients, 3, &c, IN_BLOCKS, hears_of_a_death, NULL);
	hear_all(clients, 3, READY);
	/* Node 0 is the rendezvous of this job's id, and knows all waiting ranks. */
	ncclsvc_session *s = session_open(&c.nodes[0]);
	members_reach(s, NCCLSVC_MEMBER_JOINING, 3);
	ncclsvc_close(s);
	if (node)
		cluster_kill(&c, 1);
	else
		client_kill(&clients[2]);
	clients_end(clients, 3);
	cluster_stop(&c);
}

static void a_rank_killed_before_all_have_joined_is_named(void **state)
{
	(void)state;
	killed_while_others_wait(false);
}

static void so_is_that_of_a_node_that_is_lost(void **state)
{
	(void)state;
	killed_while_others_wait(true);
}

/* MPI sees one daemon, while the launcher's variable says two. */
static void one_of_two(const char *variable, const char *advice)
{
	static char out[65536];
	char *argv[] = {
		(char *)program("NCCLSVCD"), "--config", "/dev/null",	 "--device", "host",
		"--cluster-bootstrap",	     "mpi",	 "--log-target", "stderr",   "--socket",
		"/tmp/ncclsvc-test-one",     NULL};
	CHECK_EQ(setenv(variable, "2", 1), 0);
	CHECK_EQ(run_program(argv, out, sizeof(out)), 1);
	CHECK_EQ(unsetenv(variable), 0);
	if (!strstr(out, "2 daemons were started together, but MPI sees only this one") ||
	    !strstr(out, advice))
		check_failed(__FILE__, __LINE__, "it says: %s", out);
}

static void a_daemon_that_mpi_takes_for_the_only_one_ends(void **state)
{
	(void)state;
	one_of_two("SLURM_STEP_NUM_TASKS", "use srun --mpi=pmix");
	one_of_two("OMPI_COMM_WORLD_SIZE", "use the mpirun of the Open MPI");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_world_has_the_daemons_nodes),
		TEST(a_job_brings_its_world_to_two_nodes),
		TEST(a_rank_killed_before_all_have_joined_is_named),
		TEST(so_is_that_of_a_node_that_is_lost),
		TEST(a_daemon_that_mpi_takes_for_the_only_one_ends),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
