/* SPDX-License-Identifier: Apache-2.0
 * Worlds whose size comes from a job, with a daemon whose own world differs; and ranks that are
 * killed while the others wait in ncclsvc_world_init. */
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "ncclsvc_world.h"

#define RANKS  4
#define NOBODY 65534

enum { READY = 1, GO };

static ncclsvc_world_options options_of(const struct client *me, const char *job)
{
	return (ncclsvc_world_options){.size = sizeof(ncclsvc_world_options),
				       .rank = me->rank,
				       .device = NCCLSVC_DEVICE_HOST,
				       .world = RANKS,
				       .job = job};
}

static void error_has(const char *text)
{
	if (!strstr(ncclsvc_last_error(), text))
		check_failed(__FILE__, __LINE__, "\"%s\" is not in: %s", text,
			     ncclsvc_last_error());
}

static void run(client_main *main, int n, void *arg, const char *access)
{
	struct daemon d;
	struct client clients[2 * RANKS];
	daemon_start(&d, "--ranks", "1", "--access", access, NULL);
	clients_start(clients, n, &d, main, arg);
	hear_all(clients, n, READY);
	say_all(clients, n, GO);
	clients_end(clients, n);
	daemon_stop(&d);
}

/* ---- Good worlds ---- */

/* Checks that exactly one communicator has the label. */
static void check_label(ncclsvc_session *s, const char *label)
{
	ncclsvc_comm_info *list;
	size_t n, found = 0;
	CHECK_OK(ncclsvc_list_comms(s, &list, &n));
	for (size_t i = 0; i < n; i++)
		found += !strcmp(list[i].label, label);
	ncclsvc_list_free(list);
	CHECK_EQ(found, 1);
}

static void a_rank(struct client *me)
{
	ncclsvc_world *w;
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_world_options o = options_of(me, "one");
	CHECK_OK(ncclsvc_world_init(s, &o, WAIT_MS, &w));
	const ncclsvc_layout *l = ncclsvc_world_layout(w);
	CHECK_EQ(l->rank, me->rank);
	CHECK_EQ(l->size, RANKS);
	CHECK_EQ(l->local_size, RANKS); /* the daemon is alone */
	CHECK_EQ(l->groups[NCCLSVC_GROUP_DATA].size, RANKS);
	check_usable(s, ncclsvc_world_host_comm(w));
	check_usable(s, ncclsvc_world_comm(w, NCCLSVC_GROUP_DATA));
	check_label(s, "job world");
	check_label(s, "data 0");
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	ncclsvc_world_free(w);
	ncclsvc_close(s);
}

static void a_job_brings_its_world(void **state)
{
	(void)state;
	run(a_rank, RANKS, NULL, "owner");
}

/* Clients 0 to 3 are one job, 4 to 7 another; both hold their worlds at the same time. */
static void a_rank_of_two_jobs(struct client *me)
{
	ncclsvc_world *w;
	const bool second = me->rank >= RANKS;
	if (second && me->arg) { /* another user has the same job name */
		CHECK_EQ(setgroups(0, NULL), 0);
		CHECK_EQ(setresgid(NOBODY, NOBODY, NOBODY), 0);
		CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
	}
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_world_options o = options_of(me, second && !me->arg ? "two" : "one");
	o.rank %= RANKS;
	CHECK_OK(ncclsvc_world_init(s, &o, WAIT_MS, &w));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	int64_t members = second ? 100 : 1;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_all_reduce(&members, &members, 1, NCCLSVC_INT64, NCCLSVC_SUM,
				    ncclsvc_world_host_comm(w), &task));
	wait_for(s, task, NCCLSVC_OK);
	CHECK_EQ(members, RANKS * (second ? 100 : 1));
	ncclsvc_world_free(w);
	ncclsvc_close(s);
}

static void two_jobs_do_not_meet(void **state)
{
	(void)state;
	run(a_rank_of_two_jobs, 2 * RANKS, NULL, "owner");
}

static void nor_do_those_of_two_users(void **state)
{
	(void)state;
	if (getuid() != 0)
		skip_because("only root can become another user");
	run(a_rank_of_two_jobs, 2 * RANKS, "one name", "any");
}

/* ---- Refusals ---- */

static void refused(ncclsvc_session *s, const ncclsvc_world_options *o, const char *why)
{
	ncclsvc_world *w = NULL;
	CHECK_RESULT(ncclsvc_world_init(s, o, WAIT_MS, &w), NCCLSVC_INVALID_ARGUMENT);
	error_has(why);
	CHECK(!w);
}

static void bad_options_are_named(void **state)
{
	struct daemon d;
	const struct client me = {.rank = 0};
	ncclsvc_world *w;
	(void)state;
	daemon_start(&d, "--ranks", "1", NULL);
	ncclsvc_session *s = session_open(&d);
	ncclsvc_world_options o = options_of(&me, "");
	refused(s, &o, "job is empty");
	o.job = NULL;
	refused(s, &o, "set job in the options");
	o.job = "one";
	o.rank = -1;
	refused(s, &o, "rank is -1");
	o.rank = RANKS;
	refused(s, &o, "rank is 4");
	o.rank = NCCLSVC_RANK_LAUNCHER;
	refused(s, &o, "no launcher gave this process a rank");
	o.rank = 0;
	o.world = NCCLSVC_WORLD_LAUNCHER;
	refused(s, &o, "set world in the options");
	o.world = -1;
	refused(s, &o, "world is -1");
	o.world = 65537;
	refused(s, &o, "world is 65537");
	o.world = 4;
	o.data = 3;
	refused(s, &o, "data is 3");
	o.data = 0;
	o.local = 5;
	refused(s, &o, "local size is 5");
	o.local = 0;
	o.world = 0;
	refused(s, &o, "job is set, but world is 0");
	/* The daemon's world, requested by a program that was built before jobs existed. */
	o.size = offsetof(ncclsvc_world_options, world);
	CHECK_OK(ncclsvc_world_init(s, &o, WAIT_MS, &w));
	CHECK_EQ(ncclsvc_world_layout(w)->size, 1);
	ncclsvc_world_free(w);
	ncclsvc_close(s);
	daemon_stop(&d);
}

/* Rank 2 first claims a different size, then a different layout. */
static void differing(struct client *me)
{
	ncclsvc_world *w = NULL;
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_world_options o = options_of(me, "one");
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	if (me->rank == 2) {
		members_reach(s, NCCLSVC_MEMBER_JOINING, 3);
		o.world = 5;
		CHECK_RESULT(ncclsvc_world_init(s, &o, WAIT_MS, &w), NCCLSVC_MISMATCH);
		error_has("nranks differs: rank 2");
		o.world = RANKS;
		o.local = 1;
	} else {
		CHECK_RESULT(ncclsvc_world_init(s, &o, WAIT_MS, &w), NCCLSVC_MISMATCH);
		error_has("nranks differs: rank 2");
	}
	CHECK_RESULT(ncclsvc_world_init(s, &o, WAIT_MS, &w), NCCLSVC_MISMATCH);
	error_has("the ranks disagree on the world's local size: rank 0 has 4, rank 2 has 1");
	CHECK(!w);
	ncclsvc_close(s);
}

static void ranks_that_mean_different_worlds_get_an_error(void **state)
{
	(void)state;
	run(differing, RANKS, NULL, "owner");
}

/* ---- Ranks that die ---- */

/* Without a timeout: only the death ends the wait. */
static void hears_of_a_death(struct client *me, ncclsvc_session *s, const ncclsvc_world_options *o,
			     int rank)
{
	ncclsvc_world *w = NULL;
	char text[32];
	say(me, READY);
	snprintf(text, sizeof(text), "rank %d (pid %d)", rank, (int)hear(me));
	CHECK_RESULT(ncclsvc_world_init(s, o, NCCLSVC_NO_TIMEOUT, &w), NCCLSVC_PEER_GONE);
	error_has(text);
	CHECK(!w);
	say(me, READY);
}

static void begins(ncclsvc_session *s, const ncclsvc_world_options *o)
{
	ncclsvc_world *w;
	CHECK_OK(ncclsvc_world_init(s, o, WAIT_MS, &w));
	check_usable(s, ncclsvc_world_host_comm(w));
	check_usable(s, ncclsvc_world_host_comm(w)); /* no rank leaves before all are done */
	ncclsvc_world_free(w);
}

/* Ranks 0 to 2 wait for all; rank 2 is killed before rank 3 has started. */
static void waits_for_all(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	const ncclsvc_world_options o = options_of(me, "one");
	if (me->rank < 2)
		hears_of_a_death(me, s, &o, 2);
	begins(s, &o);
	ncclsvc_close(s);
}

static void a_rank_killed_before_all_have_joined_is_named(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, "--ranks", "1", NULL);
	ncclsvc_session *s = session_open(&d);
	clients_start(clients, 3, &d, waits_for_all, NULL);
	hear_all(clients, 2, READY);
	say_all(clients, 2, (uint64_t)clients[2].pid);
	members_reach(s, NCCLSVC_MEMBER_JOINING, 3);
	client_kill(&clients[2]);
	hear_all(clients, 2, READY);
	clients[3] = clients[0];
	clients[3].rank = 3;
	clients[3].link = -1;
	client_start(&clients[2], waits_for_all);
	client_start(&clients[3], waits_for_all);
	clients_end(clients, RANKS);
	ncclsvc_close(s);
	daemon_stop(&d);
}

/* The message that every rank gets from each other once all have joined (client/world/proposals.c).
 */
struct proposal {
	int32_t local, data, horizontal, pipeline, on_gpus, unusable;
	uint32_t reserved, survivor;
	uint8_t id[NCCLSVC_ID_BYTES];
};

/* The last rank, which stops where ncclsvc_world_init would join the groups. */
static void stops_halfway(struct client *me, ncclsvc_session *s)
{
	const struct proposal own = {.local = RANKS, .data = RANKS, .horizontal = 1, .pipeline = 1};
	struct proposal all[RANKS];
	ncclsvc_comm *comm;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_comm_world(s, me->rank, WAIT_MS, &comm));
	CHECK_OK(ncclsvc_all_gather(&own, all, sizeof(own), NCCLSVC_UINT8, comm, &task));
	wait_for(s, task, NCCLSVC_OK);
	CHECK_EQ(all[0].data, RANKS);
	say(me, READY);
	hear(me);
}

static void waits_for_its_groups(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_world_options o = {
		.size = sizeof(o), .rank = me->rank, .device = NCCLSVC_DEVICE_HOST};
	if (!me->arg && me->rank == RANKS - 1)
		stops_halfway(me, s);
	else if (me->rank < RANKS - 1)
		hears_of_a_death(me, s, &o, RANKS - 1);
	begins(s, &o);
	ncclsvc_close(s);
}

static void a_rank_killed_before_its_groups_is_named(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	struct client *last = &clients[RANKS - 1];
	(void)state;
	daemon_start(&d, "--ranks", "4", NULL);
	ncclsvc_session *s = session_open(&d);
	clients_start(clients, RANKS, &d, waits_for_its_groups, NULL);
	hear_all(clients, RANKS - 1, READY);
	say_all(clients, RANKS - 1, (uint64_t)last->pid);
	hear_all(last, 1, READY);
	members_reach(s, NCCLSVC_MEMBER_JOINING, RANKS - 1); /* of the data group */
	client_kill(last);
	hear_all(clients, RANKS - 1, READY);
	last->arg = "started again";
	client_start(last, waits_for_its_groups);
	clients_end(clients, RANKS);
	ncclsvc_close(s);
	daemon_stop(&d);
}

/* The last rank is killed and comes back by the job's name; the others rejoin. */
static void recovering(struct client *me)
{
	ncclsvc_world *w;
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_world_options o = options_of(me, "one");
	o.pipeline = 2;
	CHECK_OK(ncclsvc_world_init(s, &o, WAIT_MS, &w));
	check_usable(s, ncclsvc_world_comm(w, NCCLSVC_GROUP_PIPELINE));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	if (me->rank < RANKS - 1) {
		CHECK_OK(ncclsvc_world_rejoin(w, WAIT_MS));
		check_usable(s, ncclsvc_world_comm(w, NCCLSVC_GROUP_PIPELINE));
		say(me, READY);
		CHECK_EQ(hear(me), GO);
	}
	ncclsvc_world_free(w);
	ncclsvc_close(s);
}

static void a_rank_that_dies_comes_back(void **state)
{
	(void)state;
	clients_recover(RANKS, "1", recovering, false);
}

static void so_it_does_with_the_daemon(void **state)
{
	(void)state;
	clients_recover(RANKS, "1", recovering, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_job_brings_its_world),
		TEST(two_jobs_do_not_meet),
		TEST(nor_do_those_of_two_users),
		TEST(bad_options_are_named),
		TEST(ranks_that_mean_different_worlds_get_an_error),
		TEST(a_rank_killed_before_all_have_joined_is_named),
		TEST(a_rank_killed_before_its_groups_is_named),
		TEST(a_rank_that_dies_comes_back),
		TEST(so_it_does_with_the_daemon),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
