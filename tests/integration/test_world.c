/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc_world_init: groups, refusals, and recovery from the loss of ranks and daemons. */
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "ncclsvc_world.h"

#define RANKS 4

enum { READY = 1, GO };

static ncclsvc_world_options options_of(int rank)
{
	return (ncclsvc_world_options){
		.size = sizeof(ncclsvc_world_options), .rank = rank, .device = NCCLSVC_DEVICE_HOST};
}

/* Sums the members' world ranks over one group. */
static void check_group(ncclsvc_session *s, const ncclsvc_world *w, ncclsvc_group_type type)
{
	const ncclsvc_layout *l = ncclsvc_world_layout(w);
	const ncclsvc_group *g = &l->groups[type];
	ncclsvc_comm *comm = ncclsvc_world_comm(w, type);
	int32_t v = l->rank, sum = 0;
	ncclsvc_task task;
	CHECK(comm);
	CHECK_EQ(ncclsvc_comm_rank(comm), g->index);
	CHECK_EQ(ncclsvc_comm_size(comm), g->size);
	CHECK_OK(ncclsvc_all_reduce(&v, &v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
	wait_for(s, task, NCCLSVC_OK);
	for (int i = 0; i < g->size; i++)
		sum += ncclsvc_group_rank(g, i);
	CHECK_EQ(v, sum);
}

static void check_world(ncclsvc_session *s, const ncclsvc_world *w)
{
	for (unsigned type = 0; type < NCCLSVC_GROUP_TYPES; type++)
		check_group(s, w, (ncclsvc_group_type)type);
	check_usable(s, ncclsvc_world_host_comm(w));
}

/* ---- Good worlds ---- */

static void as_configured(struct client *me)
{
	ncclsvc_world *w;
	ncclsvc_session *s = session_open(me->daemon);
	CHECK_OK(ncclsvc_world_init(s, NULL, WAIT_MS, &w));
	const ncclsvc_layout *l = ncclsvc_world_layout(w);
	CHECK_EQ(l->size, RANKS);
	CHECK_EQ(l->local_size, RANKS);
	CHECK_EQ(l->local_rank, l->rank);
	CHECK_EQ(l->nodes, 1);
	CHECK_EQ(ncclsvc_world_device(w), NCCLSVC_DEVICE_HOST);
	CHECK_EQ(l->groups[NCCLSVC_GROUP_DATA].size, 2);
	CHECK_EQ(l->groups[NCCLSVC_GROUP_PIPELINE].size, 2);
	CHECK_EQ(l->groups[NCCLSVC_GROUP_HORIZONTAL].size, 1);
	CHECK(ncclsvc_world_comm(w, NCCLSVC_GROUP_GLOBAL) == ncclsvc_world_host_comm(w));
	CHECK(!ncclsvc_world_comm(w, (ncclsvc_group_type)6));
	check_world(s, w);
	ncclsvc_world_free(w);
	say(me, READY); /* from now on, any client may take any rank */
	CHECK_EQ(hear(me), GO);
	/* Another one afterwards, with a different division, so the groups differ. */
	ncclsvc_world_options o = options_of(me->rank);
	o.data = 1;
	o.horizontal = 4;
	o.pipeline = 1;
	o.local = 2;
	CHECK_OK(ncclsvc_world_init(s, &o, WAIT_MS, &w));
	l = ncclsvc_world_layout(w);
	CHECK_EQ(l->rank, me->rank);
	CHECK_EQ(l->node, me->rank / 2);
	CHECK_EQ(l->groups[NCCLSVC_GROUP_HORIZONTAL].size, 4);
	check_world(s, w);
	ncclsvc_world_free(w);
	ncclsvc_world_free(NULL);
	ncclsvc_close(s);
}

static void a_world_has_its_groups(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, "--ranks", "4", "--world-pipeline", "2", NULL);
	clients_start(clients, RANKS, &d, as_configured, NULL);
	hear_all(clients, RANKS, READY);
	say_all(clients, RANKS, GO);
	clients_end(clients, RANKS);
	daemon_stop(&d);
}

static void all_data(struct client *me)
{
	ncclsvc_world *w;
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_world_options o = options_of(me->rank);
	o.local = 2; /* two nodes, as far as groups are concerned */
	CHECK_OK(ncclsvc_world_init(s, &o, WAIT_MS, &w));
	const ncclsvc_layout *l = ncclsvc_world_layout(w);
	CHECK_EQ(l->groups[NCCLSVC_GROUP_DATA].size, RANKS);
	CHECK_EQ(l->groups[NCCLSVC_GROUP_NODE_LOCAL].size, 2);
	CHECK_EQ(l->groups[NCCLSVC_GROUP_CROSS_NODE].size, 2);
	check_world(s, w);
	ncclsvc_world_free(w);
	ncclsvc_close(s);
}

static void without_configuration_all_is_data(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, "--ranks", "4", NULL);
	clients_start(clients, RANKS, &d, all_data, NULL);
	clients_end(clients, RANKS);
	daemon_stop(&d);
}

/* ---- Refusals ---- */

static void refused(ncclsvc_session *s, const ncclsvc_world_options *o, const char *why)
{
	ncclsvc_world *w = NULL;
	CHECK_RESULT(ncclsvc_world_init(s, o, WAIT_MS, &w), NCCLSVC_INVALID_ARGUMENT);
	if (!strstr(ncclsvc_last_error(), why))
		check_failed(__FILE__, __LINE__, "\"%s\" is not in: %s", why, ncclsvc_last_error());
	CHECK(!w);
}

static void bad_parameters_are_named_before_anything_is_joined(void **state)
{
	struct daemon d;
	(void)state;
	daemon_start(&d, "--ranks", "4", "--world-pipeline", "3", NULL);
	ncclsvc_session *s = session_open(&d);
	ncclsvc_world *w = NULL;
	ncclsvc_world_options o = options_of(0);
	refused(s, &o, "data x horizontal x pipeline is 1 x 1 x 3");
	o.pipeline = 1;
	o.data = 5;
	refused(s, &o, "data is 5");
	o.data = -1;
	refused(s, &o, "data is -1");
	o.data = 3;
	refused(s, &o, "data is 3, which does not divide");
	o.data = 2;
	refused(s, &o, "2 x 1 x 1");
	o.horizontal = 3;
	refused(s, &o, "horizontal is 3");
	o.horizontal = -2;
	refused(s, &o, "horizontal is -2");
	o.horizontal = 2;
	o.pipeline = -7;
	refused(s, &o, "pipeline is -7");
	o.pipeline = 1;
	o.local = 5;
	refused(s, &o, "local size is 5");
	o.local = -5;
	refused(s, &o, "local is -5");
	o.local = 0;
	o.rank = 4;
	refused(s, &o, "rank is 4");
	o.rank = -3;
	refused(s, &o, "rank is -3");
	o.rank = 0;
	o.device = -3;
	refused(s, &o, "device is -3");
	o.device = NCCLSVC_DEVICE_HOST;
	o.size--;
	refused(s, &o, "options.size");
	o.size++;
	CHECK_OK(ncclsvc_group_begin(s));
	refused(s, &o, "group");
	CHECK_OK(ncclsvc_group_end(s));
	CHECK_RESULT(ncclsvc_world_init(NULL, &o, 0, &w), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_world_init(s, &o, 0, NULL), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_world_rejoin(NULL, 0), NCCLSVC_INVALID_ARGUMENT);
	/* None of these took a rank, and the three missing ranks are named. */
	ncclsvc_member_info *members;
	size_t n;
	CHECK_OK(ncclsvc_list_members(s, &members, &n));
	for (size_t i = 0; i < n; i++)
		CHECK(members[i].state != NCCLSVC_MEMBER_JOINING &&
		      members[i].state != NCCLSVC_MEMBER_JOINED);
	ncclsvc_list_free(members);
	CHECK_RESULT(ncclsvc_world_init(s, &o, 50, &w), NCCLSVC_TIMEOUT);
	CHECK(strstr(ncclsvc_last_error(), "1, 2, 3"));
	ncclsvc_close(s);
	daemon_stop(&d);
}

struct variant {
	const char *what;
	ncclsvc_world_options of_rank_2;
};

static void differing(struct client *me)
{
	static const struct variant variants[] = {
		{"the ranks disagree on the world's data: rank 0 has 4, rank 2 has 2",
		 {.data = 2, .horizontal = 2}},
		{"the ranks disagree on the world's local size: rank 0 has 4, rank 2 has 3",
		 {.local = 3}},
		{"the ranks disagree on the world's device: rank 0 is on the host, rank 2 on a GPU",
		 {.device = NCCLSVC_DEVICE_LOCAL}},
	};
	ncclsvc_session *s = session_open(me->daemon);
	for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
		ncclsvc_world *w = NULL;
		ncclsvc_world_options o = options_of(me->rank);
		if (me->rank == 2) {
			o = variants[i].of_rank_2;
			o.size = sizeof(o);
			o.rank = 2;
			if (!o.device)
				o.device = NCCLSVC_DEVICE_HOST;
		}
		CHECK_RESULT(ncclsvc_world_init(s, &o, WAIT_MS, &w), NCCLSVC_MISMATCH);
		if (!strstr(ncclsvc_last_error(), variants[i].what))
			check_failed(__FILE__, __LINE__, "%s", ncclsvc_last_error());
		CHECK(!w);
	}
	ncclsvc_world *w;
	ncclsvc_world_options o = options_of(me->rank);
	CHECK_OK(ncclsvc_world_init(s, &o, WAIT_MS, &w));
	check_world(s, w);
	ncclsvc_world_free(w);
	ncclsvc_close(s);
}

/* There are no GPUs: rank 0 requests GPU 0, the others their local GPU, and all get the error. */
static void no_gpu(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_world *w = NULL;
	ncclsvc_world_options o = options_of(me->rank);
	o.device = me->rank ? NCCLSVC_DEVICE_LOCAL : 0;
	CHECK_RESULT(ncclsvc_world_init(s, &o, WAIT_MS, &w), NCCLSVC_UNSUPPORTED);
	CHECK(strstr(ncclsvc_last_error(), "GPU"));
	CHECK(!w);
	ncclsvc_close(s);
}

static void a_gpu_that_cannot_be_used_is_reported(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, "--ranks", "4", "--device", "host", NULL);
	clients_start(clients, RANKS, &d, no_gpu, NULL);
	clients_end(clients, RANKS);
	daemon_stop(&d);
}

static void ranks_that_mean_different_worlds_get_an_error(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, "--ranks", "4", NULL);
	clients_start(clients, RANKS, &d, differing, NULL);
	clients_end(clients, RANKS);
	daemon_stop(&d);
}

/* ---- Recovery ---- */

/* Rank 3 is killed and comes back; the others rejoin. arg: the daemon is restarted, too. */
static void recovering(struct client *me)
{
	ncclsvc_world *w;
	ncclsvc_world_options o = options_of(me->rank);
	ncclsvc_session *s = session_open(me->daemon);
	o.local = 2;
	o.data = 2;
	o.horizontal = 2;
	CHECK_OK(ncclsvc_world_init(s, &o, WAIT_MS, &w));
	check_world(s, w);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	if (me->rank == 3) { /* rank 3 after its restart has nothing to rejoin */
		ncclsvc_world_free(w);
		ncclsvc_close(s);
		return;
	}
	ncclsvc_comm *data = ncclsvc_world_comm(w, NCCLSVC_GROUP_DATA);
	CHECK_OK(ncclsvc_world_rejoin(w, WAIT_MS));
	CHECK(ncclsvc_world_comm(w, NCCLSVC_GROUP_DATA) == data);
	check_world(s, w);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	ncclsvc_world_free(w);
	ncclsvc_close(s);
}

static void a_rank_that_dies_comes_back(void **state)
{
	(void)state;
	clients_recover(RANKS, "4", recovering, false);
}

static void so_it_does_with_the_daemon(void **state)
{
	(void)state;
	clients_recover(RANKS, "4", recovering, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_world_has_its_groups),
		TEST(without_configuration_all_is_data),
		TEST(bad_parameters_are_named_before_anything_is_joined),
		TEST(a_gpu_that_cannot_be_used_is_reported),
		TEST(ranks_that_mean_different_worlds_get_an_error),
		TEST(a_rank_that_dies_comes_back),
		TEST(so_it_does_with_the_daemon),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
