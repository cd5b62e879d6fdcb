/* SPDX-License-Identifier: Apache-2.0
 * The analysis behind `ncclsvc-ctl why`, on made-up situations: ranks of other nodes, about which
 * this node knows little. */
#include <string.h>

#include "why_scene.h"

/* Ranks 0 and 1 are here, 2 and 3 on node 1, 4 and 5 on node 2. */
static void three_nodes(void)
{
	world(6, 3);
	nodes(3);
	for (int rank = 2; rank < 6; rank++)
		sits_on(WORLD, rank, (uint32_t)rank / 2);
}

static void test_asks_the_node(void **state)
{
	(void)state;
	three_nodes();
	for (int rank = 0; rank < 2; rank++)
		asks(task(WORLD, rank, rank, NCCLSVC_ALL_REDUCE, 3, NCCLSVC_WAITING_PEERS, 2), 2);
	const struct why_finding *f = only(WHY_ELSEWHERE);
	assert_int_equal(f->nculprits, 0);
	assert_int_equal(f->nnodes, 1);
	assert_int_equal(f->nodes[0], 2);
	says(f, "Ranks 0 and 1 have waited 2.0 s in AllReduce #3 (float32, 1048576 elements) of "
		"communicator world (id 1, 6 ranks). This node cannot see ranks 4 and 5 on node 2 "
		"(host-2). Next: `ncclsvc-ctl why` on host host-2 (node 2).");
	never_says(f, "pid");
}

static void test_silent_node(void **state)
{
	(void)state;
	three_nodes();
	scene.nodes[2].heard_ns = 3 * SEC;
	ncclsvc_task_info *t = task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 3, NCCLSVC_WAITING_PEERS, 2);
	asks(t, 1);
	asks(t, 2);
	const struct why_finding *f = only(WHY_SILENT);
	assert_int_equal(f->nculprits, 0);
	says(f,
	     "(id 1, 6 ranks). Node 2 (host-2, ncclsvcd pid 902) has sent nothing for 3.0 s; this "
	     "node cannot see its ranks 4 and 5. This node cannot see ranks 2 and 3 on node 1");
}

/* A node that has been silent for no longer than the interval between heartbeats is not a suspect.
 */
static void test_not_silent_yet(void **state)
{
	(void)state;
	three_nodes();
	scene.nodes[2].heard_ns = SEC - 1;
	asks(task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 3, NCCLSVC_WAITING_PEERS, 2), 2);
	never_says(only(WHY_ELSEWHERE), "has sent nothing");
}

/* A cause known on this node stays: rank 1's process is stopped. */
static void test_known_and_unknown(void **state)
{
	(void)state;
	three_nodes();
	is(1, PROCESS_STOPPED);
	ncclsvc_task_info *t = task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 3, NCCLSVC_WAITING_PEERS, 2);
	waits(t, 1);
	asks(t, 2);
	const struct why_finding *f = only(WHY_STOPPED);
	assert_int_equal(f->nculprits, 1);
	blames(f, 0, WORLD, 1, PID(1), "stopped");
	says(f, "for rank 1 (pid 111, trainer-1), which has not called it (its last call there was "
		"#2). This node cannot see ranks 4 and 5 on node 2 (host-2). Pid 111 is stopped");
	assert_int_equal(f->nnodes, 1);
}

/* Rank 0 waits for rank 1, which waits in another communicator for one of another node. */
static void test_chain(void **state)
{
	(void)state;
	three_nodes();
	comm(OTHER, 2, "pipeline");
	member(OTHER, 0, 1, 1);
	member(OTHER, 1, 5, 0);
	sits_on(OTHER, 1, 2);
	waiting(WORLD, 0, 0, 3, 2, 1);
	ncclsvc_task_info *t = task(OTHER, 0, 1, NCCLSVC_RECV, 0, NCCLSVC_WAITING_PEERS, 2);
	t->peer = 1;
	asks(t, 2);
	const struct why_report *r = analyse();
	for (size_t i = 0; i < r->n; i++) {
		assert_int_equal(r->findings[i].cause, WHY_ELSEWHERE);
		assert_int_equal(r->findings[i].nculprits, 0);
		assert_int_equal(r->findings[i].nodes[0], 2);
		says(&r->findings[i], "This node cannot see rank 1 on node 2 (host-2).");
	}
	assert_true(r->n > 0);
}

/* The operation has begun on all nodes, and one of them makes no progress. */
static void test_running(void **state)
{
	(void)state;
	three_nodes();
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 3, NCCLSVC_LAUNCHED, 2);
	says(only(WHY_RUNNING), "ncclsvcd (pid 77) has been executing it");
	why_free(&scene.report);
	scene.nodes[1].heard_ns = 2 * SEC;
	says(only(WHY_SILENT),
	     "but node 1 (host-1, ncclsvcd pid 901) has sent nothing for 2.0 s. Next: "
	     "`ncclsvc-ctl why` on host host-1 (node 1).");
}

static ncclsvc_comm_info *forming(void)
{
	three_nodes();
	for (size_t i = 0; i < scene.s.nmembers; i++) {
		ncclsvc_member_info *m = &scene.members[i];

		m->state = NCCLSVC_MEMBER_JOINING;
		m->waiting_ns = 2 * SEC;
		if (!m->elsewhere)
			continue;
		m->state = NCCLSVC_MEMBER_UNKNOWN;
		m->elsewhere = 3;
		m->pid = 0;
	}
	scene.comms[0].state = NCCLSVC_COMM_FORMING;
	scene.comms[0].ask_node = 3;
	return &scene.comms[0];
}

static void test_joining(void **state)
{
	(void)state;
	forming();
	const struct why_finding *f = only(WHY_ELSEWHERE);
	assert_int_equal(f->nculprits, 0);
	says(f,
	     "ranks 0 and 1 have joined. This node cannot see ranks 2, 3, 4 and 5: node 2 (host-2) "
	     "gathers them. Next: `ncclsvc-ctl why` on host host-2 (node 2).");
	never_says(f, "have not");
}

static void test_silent_coordinator(void **state)
{
	(void)state;
	forming();
	scene.nodes[2].heard_ns = 5 * SEC;
	const struct why_finding *f = only(WHY_SILENT);
	assert_int_equal(f->nodes[0], 2);
	says(f, "node 2 (host-2, ncclsvcd pid 902) has sent nothing for 5.0 s");
}

/* Rank 4 died; its rendezvous knows which ranks have come back. */
static void test_rejoining(void **state)
{
	(void)state;
	forming()->state = NCCLSVC_COMM_BROKEN;
	scene.members[4].state = NCCLSVC_MEMBER_DEAD;
	scene.members[4].pid = 4711;
	const struct why_finding *f = only(WHY_DEAD);
	says(f, "rank 4 (pid 4711 on node 2) died.");
	says(f, "This node cannot see who has rejoined on other nodes: node 2 (host-2) gathers "
		"them.");
	never_says(f, "has not rejoined");
	never_says(f, "have not rejoined");
}

/* A refused JOIN is reported where others wait for its rank. */
static void test_refused(void **state)
{
	(void)state;
	world(3, 0);
	scene.members[0].state = NCCLSVC_MEMBER_JOINING;
	scene.members[0].waiting_ns = 2 * SEC;
	scene.members[1].state = scene.members[2].state = NCCLSVC_MEMBER_ABSENT;
	scene.comms[0].state = NCCLSVC_COMM_FORMING;
	scene.comms[0].refused_rank = 1;
	scene.comms[0].refused_pid = 4711;
	strcpy(scene.comms[0].refused, "ranks 0 and 1 both use device 0");
	says(only(WHY_JOINING),
	     "ranks 1 and 2 have not. Rank 1 (pid 4711) was refused: ranks 0 and 1 "
	     "both use device 0. Next: `ncclsvc-ctl sessions`");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_asks_the_node),  TEST(test_silent_node),
		TEST(test_not_silent_yet), TEST(test_known_and_unknown),
		TEST(test_chain),	   TEST(test_running),
		TEST(test_joining),	   TEST(test_silent_coordinator),
		TEST(test_rejoining),	   TEST(test_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
