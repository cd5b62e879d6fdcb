/* SPDX-License-Identifier: Apache-2.0
 * What `ncclsvc-ctl why` says about ranks that wait for each other: chains and circles. */
#include "why_scene.h"

/* 0 waits for 1 in the world; 1 waits for 2 in another communicator; 2 does nothing. */
static void test_chain(void **state)
{
	(void)state;
	world(3, 5);
	comm(OTHER, 2, "split of 1");
	member(OTHER, 0, 1, 1);
	member(OTHER, 1, 2, 0);
	waits(task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 5, NCCLSVC_WAITING_PEERS, 9), 1);
	waiting(OTHER, 0, 1, 0, 8, 1);
	const struct why_finding *f = only(WHY_MISSING);
	says(f, "for rank 1 (pid 111, trainer-1), which waits in AllReduce #0 of communicator "
		"split of "
		"1 (id 2) for rank 1 (pid 112, trainer-2), which has called nothing there yet. Pid "
		"112 is sleeping.");
	says(f, "Also waiting for this: 1 rank in AllReduce #0 of communicator split of 1 (id 2).");
	assert_int_equal(f->nculprits, 1);
	blames(f, 0, OTHER, 1, PID(2), "joined");
	assert_int_equal(f->nalso, 1);
	assert_int_equal(f->also[0].comm, OTHER);
}

/* Blocked by a Recv in its own queue of the same communicator. */
static void test_chain_in_queue(void **state)
{
	(void)state;
	world(3, 5);
	waits(task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 5, NCCLSVC_WAITING_PEERS, 9), 1);
	p2p(WORLD, 1, 1, NCCLSVC_RECV, 4, 2);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 5, NCCLSVC_QUEUED, 9);
	const struct why_finding *f = only(WHY_UNMATCHED);
	says(f, "for rank 1 (pid 111, trainer-1), which waits in Recv #4 for rank 2 (pid 112, "
		"trainer-2), which has not called the matching Send");
	blames(f, 0, WORLD, 2, PID(2), "joined");
}

/* A session that is busy elsewhere, but not blocked there, is simply late. */
static void test_busy_elsewhere(void **state)
{
	(void)state;
	world(2, 5);
	comm(OTHER, 2, "other");
	member(OTHER, 0, 0, 1);
	member(OTHER, 1, 1, 1);
	waiting(WORLD, 0, 0, 5, 9, 1);
	waiting(OTHER, 1, 1, 0, 0.001, 0);
	says(only(WHY_MISSING), "for rank 1 (pid 111, trainer-1), which has not called it");
}

static void test_deadlock(void **state)
{
	(void)state;
	world(2, 5);
	comm(OTHER, 2, "other");
	member(OTHER, 0, 0, 0);
	member(OTHER, 1, 1, 0);
	waiting(WORLD, 0, 0, 5, 9, 1);
	waiting(OTHER, 1, 1, 0, 8, 0);
	const struct why_finding *f = only(WHY_DEADLOCK);
	says(f,
	     "Deadlock for 9.0 s: rank 0 (pid 110, trainer-0) waits in AllReduce #5 of "
	     "communicator "
	     "world (id 1) for rank 1 (pid 111, trainer-1), and rank 1 (pid 111, trainer-1) waits "
	     "in AllReduce #0 of communicator other (id 2) for rank 0 (pid 110, trainer-0). Next: "
	     "`ncclsvc-ctl cancel comm 1` ends the wait");
	assert_int_equal(f->nculprits, 2);
	blames(f, 0, WORLD, 0, PID(0), "joined");
	blames(f, 1, OTHER, 1, PID(1), "joined");
	assert_int_equal(f->nalso, 0);
}

static void test_deadlock_of_sends(void **state)
{
	(void)state;
	world(3, 5);
	p2p(WORLD, 0, 0, NCCLSVC_SEND, 5, 1);
	p2p(WORLD, 1, 1, NCCLSVC_SEND, 5, 2);
	p2p(WORLD, 2, 2, NCCLSVC_SEND, 5, 0);
	const struct why_finding *f = only(WHY_DEADLOCK);
	assert_int_equal(f->nculprits, 3);
	assert_int_equal(f->nalso, 0);
	says(f, "All of them wait in Send, and none has called Recv. Next: `ncclsvc-ctl cancel "
		"comm 1`");
}

/* The rank that waits is not part of the circle it waits for. */
static void test_behind_deadlock(void **state)
{
	(void)state;
	world(3, 5);
	waits(task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 5, NCCLSVC_WAITING_PEERS, 9), 1);
	p2p(WORLD, 1, 1, NCCLSVC_SEND, 5, 2);
	p2p(WORLD, 2, 2, NCCLSVC_SEND, 5, 1);
	const struct why_finding *f = only(WHY_DEADLOCK);
	assert_int_equal(f->nculprits, 2);
	blames(f, 0, WORLD, 1, PID(1), "joined");
	blames(f, 1, WORLD, 2, PID(2), "joined");
}

/* One circle is behind the second rank that a task waits for, and must not be overlooked. */
static void test_deadlock_in_branch(void **state)
{
	(void)state;
	world(3, 5);
	ncclsvc_task_info *t = task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 5, NCCLSVC_WAITING_PEERS, 9);
	waits(t, 1);
	waits(t, 2);
	p2p(WORLD, 2, 2, NCCLSVC_RECV, 5, 0);
	const struct why_finding *f = only(WHY_DEADLOCK);
	assert_int_equal(f->nculprits, 2);
	blames(f, 0, WORLD, 0, PID(0), "joined");
	blames(f, 1, WORLD, 2, PID(2), "joined");
}

/* A pipeline: its paragraph omits the middle. */
static void test_long_chain(void **state)
{
	(void)state;
	world(60, 1);
	for (int i = 0; i < 59; i++)
		p2p(WORLD, i, i, NCCLSVC_SEND, 1, i + 1);
	const struct why_finding *f = only(WHY_UNMATCHED);
	blames(f, 0, WORLD, 59, PID(59), "joined");
	assert_int_equal(f->nalso, 58);
	says(f,
	     "for rank 1 (pid 111, trainer-1), which waits in Send #1 for rank 2, and so on over "
	     "56 "
	     "ranks to rank 58 (pid 168, trainer-58), which waits in Send #1 for rank 59 (pid 169, "
	     "trainer-59), which has not called the matching Recv");
}

/* A chain that is longer than any recorded path still ends, and is reported as continuing. */
static void test_endless_chain(void **state)
{
	(void)state;
	world(300, 1);
	for (int i = 0; i < 299; i++)
		p2p(WORLD, i, i, NCCLSVC_SEND, 1, i + 1);
	const struct why_report *r = analyse();
	assert_int_equal(r->n, 2);
	assert_int_equal(r->findings[0].cause, WHY_RUNNING);
	says(&r->findings[0], "which has not ended either");
	blames(&r->findings[1], 0, WORLD, 299, PID(299), "joined");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_chain),
		TEST(test_chain_in_queue),
		TEST(test_busy_elsewhere),
		TEST(test_deadlock),
		TEST(test_deadlock_of_sends),
		TEST(test_behind_deadlock),
		TEST(test_deadlock_in_branch),
		TEST(test_long_chain),
		TEST(test_endless_chain),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
