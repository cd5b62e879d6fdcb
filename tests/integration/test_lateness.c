/* SPDX-License-Identifier: Apache-2.0
 * Lateness statistics: which rank the others wait for, even if nothing is stuck. With
 * NCCLSVC_TEST_NODES the ranks are on several nodes, and every node can query the straggler's. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "node_daemons.h"

#define RANKS	   4
#define STRAGGLER  3
#define OPERATIONS 25
#define LATE_MS	   30
#define NOBODY	   65534

enum { READY = 1, GO, DONE };

static unsigned nodes(void)
{
	return cluster_nodes() > 1 ? (unsigned)cluster_nodes() : 1;
}

/* Every collective waits for the straggler, which sleeps once the others on its node wait. */
static void one_is_late(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int32_t *v = shared(s, 64);
	ncclsvc_task task;
	for (int i = 0; i < OPERATIONS; i++) {
		if (me->rank == STRAGGLER) {
			tasks_reach(s, NCCLSVC_WAITING_PEERS, RANKS / nodes() - 1);
			sleep_ms(LATE_MS);
		}
		CHECK_OK(ncclsvc_all_reduce(v, v, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
		wait_for(s, task, NCCLSVC_OK);
	}
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	if (me->rank == STRAGGLER)
		CHECK_OK(ncclsvc_comm_leave(comm));
	say(me, DONE);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

/* Checks the records of the node's ranks. Returns the ranks as bits. */
static unsigned check_records(const ncclsvc_lateness_info *list, size_t n, unsigned node)
{
	unsigned ranks = 0;
	for (size_t i = 0; i < n; i++) {
		const ncclsvc_lateness_info *x = &list[i];
		uint64_t sum = 0;
		if (x->node != node)
			continue;
		CHECK(x->rank >= 0 && x->rank < RANKS);
		CHECK_EQ((unsigned)x->rank % nodes(), node);
		CHECK_EQ(x->nranks, RANKS);
		CHECK(x->operations && x->operations <= OPERATIONS);
		for (int bin = 0; bin < NCCLSVC_LATENESS_BINS; bin++)
			sum += x->histogram[bin];
		CHECK_EQ(sum, x->operations);
		CHECK(x->median_ns <= x->max_ns && x->p99_ns <= x->max_ns);
		CHECK_EQ(x->kinds, 1u << NCCLSVC_ALL_REDUCE);
		ranks |= 1u << x->rank;
		if (x->rank != STRAGGLER) {
			CHECK(x->last <= x->operations / 2);
			continue;
		}
		CHECK(x->last > x->operations / 2);
		CHECK(x->median_ns >= LATE_MS * 1000000ull);
		CHECK(x->interval_ns >= LATE_MS * 1000000ull);
	}
	return ranks;
}

static unsigned ranks_of(ncclsvc_session *s, unsigned node)
{
	size_t n;
	ncclsvc_lateness_info *list;
	CHECK_OK(ncclsvc_list_lateness(s, &list, &n));
	const unsigned ranks = check_records(list, n, node);
	ncclsvc_list_free(list);
	return ranks;
}

/* Returns the ranks on the node, as bits. */
static unsigned expected(unsigned node)
{
	unsigned ranks = 0;
	for (unsigned k = 0; k < RANKS; k++)
		if (k % nodes() == node)
			ranks |= 1u << k;
	return ranks;
}

static void ctl_says(const struct daemon *d, const char *const *words, const char *what)
{
	static char out[65536];
	const char *argv[16] = {program("NCCLSVC_CTL"), "--socket", d->socket};
	for (int i = 0; words[i]; i++)
		argv[3 + i] = words[i];
	CHECK_EQ(run_program((char *const *)argv, out, sizeof(out)), 0);
	if (!strstr(out, what))
		check_failed(__FILE__, __LINE__, "\"%s\" is not in: %s", what, out);
}
#define CTL_SAYS(d, what, ...) ctl_says(d, (const char *const[]){__VA_ARGS__, NULL}, what)

static void check_words(const struct daemon *d, const struct client *straggler)
{
	char name[64], record[64];
	snprintf(name, sizeof(name), "Rank %d (pid %d", STRAGGLER, straggler->pid);
	snprintf(record, sizeof(record), "\"rank\":%d,\"pid\":%d,", STRAGGLER, straggler->pid);
	CTL_SAYS(d, "Nothing is stuck", "why");
	CTL_SAYS(d, name, "why");
	CTL_SAYS(d, "% of AllReduces on communicator", "why");
	CTL_SAYS(d, "\"straggler\":{\"comm\":", "why", "--json");
	CTL_SAYS(d, name, "why", "--json");
	CTL_SAYS(d, "LAST%", "lateness");
	CTL_SAYS(d, name, "lateness");
	CTL_SAYS(d, record, "lateness", "--json");
	CTL_SAYS(d, "No rank matches", "lateness", "--comm", "none");
	CTL_SAYS(d, record, "watch", "lateness", "--json", "--count", "1");
}

/* Each rank's record is on the rank's own node. */
static void check_all_nodes(const struct daemon *d, const struct client *clients)
{
	char record[64], where[64];
	for (unsigned node = 0; nodes() > 1 && node < nodes(); node++) {
		snprintf(where, sizeof(where), "\"answers\":[{\"node\":%u,", node);
		CTL_SAYS(d, node ? "\"result\":\"OK\"" : where, "lateness", "--json");
		snprintf(where, sizeof(where), "%u", node);
		snprintf(record, sizeof(record), "\"rank\":%u,\"pid\":%d,", node,
			 clients[node].pid);
		CTL_SAYS(d, record, "lateness", "--json");
		CTL_SAYS(d, record, "lateness", "--json", "--node", where);
	}
}

/* A user cannot see another user's communicators. */
static void see_nothing(struct client *me)
{
	size_t n = 1;
	ncclsvc_lateness_info *list;
	CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
	ncclsvc_session *s = session_open(me->daemon);
	CHECK_OK(ncclsvc_list_lateness(s, &list, &n));
	CHECK_EQ(n, 0);
	ncclsvc_list_free(list);
	ncclsvc_close(s);
}

static void check_stranger(const struct daemon *d)
{
	struct client stranger;
	if (geteuid())
		return; /* only root can become another user */
	clients_start(&stranger, 1, d, see_nothing, NULL);
	clients_end(&stranger, 1);
}

static void the_straggler_is_named(void **state)
{
	struct daemon d;
	struct client clients[RANKS];
	(void)state;
	daemon_start(&d, "--access", "any", NULL);
	const struct cluster *c = cluster_of(&d);
	clients_start(clients, RANKS, &d, one_is_late, NULL);
	hear_all(clients, RANKS, READY);
	ncclsvc_session *sessions[CLUSTER_NODES];
	for (unsigned i = 0; i < nodes(); i++) {
		sessions[i] = session_open(c ? &c->nodes[i] : &d);
		CHECK_EQ(ranks_of(sessions[i], i), expected(i));
	}
	const unsigned where = STRAGGLER % nodes();
	for (unsigned i = 0; i < nodes(); i++) {
		check_words(c ? &c->nodes[i] : &d, &clients[STRAGGLER]);
		check_all_nodes(c ? &c->nodes[i] : &d, clients);
	}
	if (!c) /* other users cannot enter a cluster's directory */
		check_stranger(&d);
	/* A rank that has left is not late. */
	say_all(clients, RANKS, GO);
	hear_all(clients, RANKS, DONE);
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;
	     ranks_of(sessions[where], where) >> STRAGGLER & 1; sleep_ms(20))
		CHECK(now_ns() < end);
	for (unsigned i = 0; i < nodes(); i++)
		ncclsvc_close(sessions[i]);
	say_all(clients, RANKS, GO);
	clients_end(clients, RANKS);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_straggler_is_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
