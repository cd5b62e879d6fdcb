/* SPDX-License-Identifier: Apache-2.0
 * Merging several nodes' snapshots into one: each node's word on its own state counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/failure_records.h"
#include "base/ids.h"
#include "base/merge.h"
#include "base/text.h"
#include "base/waits.h"

#define NODES 3

/* Node 0 is asked; the others' parts are far[1] and far[2]. */
static struct {
	struct snapshot s, far[NODES];
} scene;

static int set_up(void **state)
{
	struct snapshot *s = &scene.s;
	(void)state;
	memset(&scene, 0, sizeof(scene));
	s->nnodes = NODES;
	s->nodes = ctl_calloc(NODES, sizeof(*s->nodes));
	s->answers = ctl_calloc(NODES, sizeof(*s->answers));
	for (uint32_t i = 0; i < NODES; i++) {
		s->nodes[i].node = i;
		s->nodes[i].state = i ? NCCLSVC_NODE_ALIVE : NCCLSVC_NODE_SELF;
		s->answers[i].asked = true;
	}
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	snapshot_free(&scene.s);
	for (int i = 0; i < NODES; i++)
		snapshot_free(&scene.far[i]);
	return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static struct snapshot *part(uint32_t node)
{
	return node ? &scene.far[node] : &scene.s;
}

static ncclsvc_session_info *session(uint32_t node, uint32_t id, int32_t pid)
{
	struct snapshot *s = part(node);
	s->sessions = ctl_extend(s->sessions, s->nsessions, 1, sizeof(*s->sessions));
	s->sessions[s->nsessions] = (ncclsvc_session_info){.session = id, .pid = pid};
	return &s->sessions[s->nsessions++];
}

static ncclsvc_comm_info *comm(uint32_t node, uint64_t id, uint64_t cluster_comm, uint32_t nranks)
{
	struct snapshot *s = part(node);
	s->comms = ctl_extend(s->comms, s->ncomms, 1, sizeof(*s->comms));
	s->comms[s->ncomms] = (ncclsvc_comm_info){.comm = id,
						  .cluster_comm = cluster_comm,
						  .nranks = nranks,
						  .joined = nranks,
						  .state = NCCLSVC_COMM_READY};
	return &s->comms[s->ncomms++];
}

/* on: the rank's node, according to this node. */
static ncclsvc_member_info *member(uint32_t node, uint64_t id, int32_t rank, uint32_t on,
				   uint32_t session_id, int32_t pid)
{
	struct snapshot *s = part(node);
	s->members = ctl_extend(s->members, s->nmembers, 1, sizeof(*s->members));
	s->members[s->nmembers] = (ncclsvc_member_info){.comm = id,
							.rank = rank,
							.session = session_id,
							.pid = pid,
							.device = -1,
							.state = NCCLSVC_MEMBER_JOINED,
							.elsewhere = on == node ? 0 : on + 1};
	return &s->members[s->nmembers++];
}

static ncclsvc_task_info *task(uint32_t node, uint64_t number, uint64_t id, int32_t rank,
			       uint8_t op, int32_t peer, int32_t asked)
{
	struct snapshot *s = part(node);
	s->tasks = ctl_extend(s->tasks, s->ntasks, 1, sizeof(*s->tasks));
	s->tasks[s->ntasks] = (ncclsvc_task_info){.task = number,
						  .comm = id,
						  .rank = rank,
						  .op = op,
						  .peer = peer,
						  .state = NCCLSVC_WAITING_PEERS,
						  .nranks = NODES,
						  .ask_count = asked >= 0,
						  .ask_nodes = {(uint32_t)asked}};
	return &s->tasks[s->ntasks++];
}

/* One rank on each node; its session has the same number everywhere, the communicator another. */
static void world(void)
{
	for (uint32_t node = 0; node < NODES; node++) {
		session(node, 4, 100 + (int32_t)node);
		comm(node, 7 + node, 0xabc, NODES);
		for (uint32_t rank = 0; rank < NODES; rank++)
			member(node, 7 + node, (int32_t)rank, rank, rank == node ? 4 : 0,
			       100 + (int32_t)rank);
	}
}

static void merge(void)
{
	for (uint32_t i = 1; i < NODES; i++)
		snapshot_order(&scene.far[i]);
	merge_nodes(&scene.s, scene.far);
	snapshot_order(&scene.s);
}

static const ncclsvc_task_info *task_of(int32_t rank)
{
	for (size_t i = 0; i < scene.s.ntasks; i++)
		if (scene.s.tasks[i].rank == rank)
			return &scene.s.tasks[i];
	fail_msg("rank %d has no task", rank);
	return NULL;
}

static void waits_for(const ncclsvc_task_info *t, uint32_t n, int32_t first)
{
	assert_int_equal(t->waits_count, n);
	assert_int_equal(t->ask_count, 0);
	if (n)
		assert_int_equal(t->waits_for[0], first);
}

static void test_one_communicator(void **state)
{
	(void)state;
	world();
	part(1)->members[1].submitted = 17;
	merge();
	const struct snapshot *s = &scene.s;
	assert_int_equal(s->ncomms, 1);
	assert_int_equal(s->comms[0].comm, 7);
	assert_int_equal(s->nmembers, NODES);
	assert_int_equal(s->nsessions, NODES);
	const ncclsvc_member_info *m = snapshot_member(s, 7, 1);
	assert_int_equal(m->submitted, 17);
	assert_int_equal(m->elsewhere, 2);
	assert_int_equal(snapshot_session(s, m->session)->pid, 101);
	assert_int_equal(ids_session_number(s, m->session), 4);
	assert_int_equal(ids_session_node(s, m->session), 2);
	assert_int_equal(ids_session_node(s, snapshot_member(s, 7, 0)->session), 0);
}

/* One user's communicator cannot pass for another user's. */
static void test_other_communicators(void **state)
{
	(void)state;
	comm(0, 1, 0xabc, 2)->uid = 5;
	comm(1, 1, 0xabc, 2)->uid = 6;
	comm(1, 2, 0xabc, 3)->uid = 5;
	comm(1, 3, 0, 2)->uid = 5;
	comm(2, 1, 0, 2)->uid = 5;
	merge();
	assert_int_equal(scene.s.ncomms, 5);
	for (size_t i = 1; i < 5; i++)
		assert_int_not_equal(scene.s.comms[i].comm, scene.s.comms[i - 1].comm);
	assert_int_equal(ids_number(scene.s.comms[4].comm), 1);
	assert_int_equal(ids_node(scene.s.comms[4].comm), 3);
}

/* Rank 2 has not posted; the other nodes have outdated views of each other. */
static void test_collective(void **state)
{
	(void)state;
	world();
	ncclsvc_task_info *t = task(0, 1, 7, 0, NCCLSVC_BARRIER, -1, 2);
	t->ask_nodes[t->ask_count++] = 1;
	task(1, 1, 8, 1, NCCLSVC_BARRIER, -1, 2);
	merge();
	waits_for(task_of(0), 1, 2);
	waits_for(task_of(1), 1, 2);
	assert_int_not_equal(task_of(0)->task, task_of(1)->task);
}

/* Rank 2 is still in an earlier Recv, so it has not reached the barrier. */
static void test_collective_behind(void **state)
{
	(void)state;
	world();
	task(0, 1, 7, 0, NCCLSVC_BARRIER, -1, 2);
	task(2, 1, 9, 2, NCCLSVC_RECV, 0, 0);
	task(2, 2, 9, 2, NCCLSVC_BARRIER, -1, -1)->state = NCCLSVC_QUEUED;
	part(2)->tasks[1].seq = 1;
	merge();
	waits_for(task_of(0), 1, 2);
	waits_for(task_of(2), 1, 0);
}

/* Both sides have posted, but their nodes do not know it yet: no deadlock. */
static void test_met(void **state)
{
	(void)state;
	world();
	task(0, 1, 7, 0, NCCLSVC_SEND, 1, 1);
	task(1, 1, 8, 1, NCCLSVC_RECV, 0, 0);
	merge();
	waits_for(task_of(0), 0, 0);
	waits_for(task_of(1), 0, 0);
}

static void test_no_answer(void **state)
{
	(void)state;
	world();
	snapshot_free(&scene.far[2]);
	scene.s.answers[2].result = NCCLSVC_TIMEOUT;
	ncclsvc_task_info *t = task(0, 1, 7, 0, NCCLSVC_BARRIER, -1, 1);
	t->ask_nodes[t->ask_count++] = 2;
	merge();
	assert_int_equal(task_of(0)->waits_count, 1);
	assert_int_equal(task_of(0)->waits_for[0], 1);
	assert_int_equal(task_of(0)->ask_count, 1);
	assert_int_equal(task_of(0)->ask_nodes[0], 2);
	assert_false(snapshot_knows(&scene.s, snapshot_member(&scene.s, 7, 2)));
	assert_true(snapshot_knows(&scene.s, snapshot_member(&scene.s, 7, 1)));
}

/* Node 2 knows who has joined. */
static void test_joining(void **state)
{
	(void)state;
	world();
	for (uint32_t node = 0; node < NODES; node++) {
		part(node)->comms[0].state = NCCLSVC_COMM_FORMING;
		part(node)->comms[0].joined = node < 2 ? 1 : 2;
		part(node)->comms[0].ask_node = node < 2 ? 3 : 0;
		for (uint32_t rank = 0; rank < NODES; rank++) {
			ncclsvc_member_info *m = &part(node)->members[rank];
			if (rank == node && node < 2) {
				m->state = NCCLSVC_MEMBER_JOINING;
				continue;
			}
			m->session = 0;
			m->pid = node == 2 && rank < 2 ? m->pid : 0;
			m->state = node < 2   ? NCCLSVC_MEMBER_UNKNOWN
				   : rank < 2 ? NCCLSVC_MEMBER_JOINING
					      : NCCLSVC_MEMBER_ABSENT;
			m->elsewhere = node < 2 ? 3 : rank < 2 ? rank + 1 : 0;
		}
	}
	merge();
	assert_int_equal(scene.s.comms[0].joined, 2);
	assert_int_equal(scene.s.comms[0].ask_node, 0);
	assert_int_equal(snapshot_member(&scene.s, 7, 0)->state, NCCLSVC_MEMBER_JOINING);
	assert_int_equal(snapshot_member(&scene.s, 7, 1)->state, NCCLSVC_MEMBER_JOINING);
	assert_int_equal(snapshot_member(&scene.s, 7, 2)->state, NCCLSVC_MEMBER_ABSENT);
}

/* Rank 1's process moved to node 2: the new node's report takes precedence over the old one's. */
static void test_moved(void **state)
{
	(void)state;
	world();
	part(1)->members[1].state = NCCLSVC_MEMBER_DEAD;
	part(1)->members[1].session = 0;
	session(2, 5, 201);
	part(2)->members[1].elsewhere = 0;
	part(2)->members[1].session = 5;
	part(2)->members[1].pid = 201;
	merge();
	assert_int_equal(snapshot_member(&scene.s, 7, 1)->pid, 201);
	assert_int_equal(snapshot_member(&scene.s, 7, 1)->elsewhere, 3);
}

/* ---- Failures ---- */

static ncclsvc_failure_info *failure(uint32_t node, uint64_t number, uint64_t id, int32_t rank,
				     uint64_t unix_ns)
{
	struct snapshot *s = part(node);
	s->failures = ctl_extend(s->failures, s->nfailures, 1, sizeof(*s->failures));
	s->failures[s->nfailures] = (ncclsvc_failure_info){.failure = number,
							   .unix_ns = unix_ns,
							   .comm = id,
							   .kind = NCCLSVC_FAILURE_EPOCH,
							   .epoch = 1,
							   .nranks = NODES,
							   .rank = rank,
							   .pid = rank < 0 ? 0 : 100 + rank,
							   .node = rank};
	return &s->failures[s->nfailures++];
}

/* All nodes have recorded that rank 1 ended. */
static void test_one_failure(void **state)
{
	struct failures all;
	struct failure_effects e;
	(void)state;
	world();
	for (uint32_t node = 0; node < NODES; node++) {
		ncclsvc_failure_info *f = failure(node, 3 + node, 7 + node, 1, 90 - node);
		f->pending = 10 + node;
		f->comms = node;
		f->ended = 2;
		f->ended_ranks[0] = 0;
		f->ended_ranks[1] = (int32_t)node + 2;
	}
	merge();
	failures_gather(&scene.s, &all);
	assert_int_equal(all.n, 1);
	assert_int_equal(all.list[0].n, NODES);
	assert_int_equal(all.list[0].records[0].node, 1);
	assert_int_equal(ids_number(all.list[0].records[0].info->failure), 4);
	for (uint32_t i = 0; i < NODES; i++)
		assert_int_equal(all.list[0].records[i].info->comm, 7);
	failure_effects(&all.list[0], &e);
	assert_int_equal(e.pending, 33);
	assert_int_equal(e.comms, 2);
	assert_int_equal(e.ended, 4); /* ranks 0, 2, 3 and 4 */
	assert_int_equal(e.n, 4);
	failures_free(&all);
}

static void test_other_failures(void **state)
{
	struct failures all;
	(void)state;
	world();
	failure(0, 1, 7, 1, 10);
	failure(0, 2, 7, 1, 20); /* the same again, by the same node */
	failure(1, 1, 8, 1, 30)->epoch = 2;
	failure(1, 2, 8, 2, 40);
	failure(1, 3, 8, -1, 60)->cause = 2;
	failure(2, 1, 9, -1, 50);
	failure(2, 2, 0, 2, 35)->pid = 7; /* another process; an earlier daemon's record */
	merge();
	failures_gather(&scene.s, &all);
	assert_int_equal(all.n, 7);
	for (size_t i = 0; i < all.n; i++) {
		assert_int_equal(all.list[i].n, 1);
		assert_true(!i || all.list[i].records->info->unix_ns >
					  all.list[i - 1].records->info->unix_ns);
	}
	const ncclsvc_failure_info *last = all.list[6].records->info;
	assert_int_equal(ids_node(last->cause), 2);
	assert_int_equal(ids_number(last->cause), 2);
	assert_int_equal(all.list[3].records->info->comm, 0);
	failures_free(&all);
}

static void test_lateness(void **state)
{
	(void)state;
	world();
	struct snapshot *far = part(2);
	far->lateness = ctl_extend(NULL, 0, 1, sizeof(*far->lateness));
	far->lateness[0] = (ncclsvc_lateness_info){.comm = 9, .rank = 2, .session = 4, .node = 2};
	far->nlateness = 1;
	merge();
	assert_int_equal(scene.s.nlateness, 1);
	assert_int_equal(scene.s.lateness[0].comm, 7);
	assert_int_equal(ids_session_node(&scene.s, scene.s.lateness[0].session), 3);
	assert_int_equal(ids_session_number(&scene.s, scene.s.lateness[0].session), 4);
}

/* Numbers that lead nowhere, and lists too long to be named. */
static void test_hostile(void **state)
{
	(void)state;
	world();
	ncclsvc_task_info *t = task(1, UINT64_MAX, UINT64_MAX, INT32_MIN, UINT8_MAX, INT32_MAX, 2);
	t->session = UINT32_MAX;
	t->ask_count = t->waits_count = UINT32_MAX;
	member(1, UINT64_MAX, INT32_MAX, 9, UINT32_MAX, -1);
	t = task(2, 0, 9, 2, NCCLSVC_BARRIER, -1, 1);
	t->ask_count = UINT32_MAX;
	t->ask_nodes[0] = UINT32_MAX;
	member(2, 9, 2, 2, 4, 102);
	merge();
	assert_int_equal(scene.s.ncomms, 1);
	assert_int_equal(task_of(INT32_MIN)->session, 0);
	assert_true(task_of(2)->waits_count >= 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_one_communicator),
		TEST(test_other_communicators),
		TEST(test_collective),
		TEST(test_collective_behind),
		TEST(test_met),
		TEST(test_no_answer),
		TEST(test_joining),
		TEST(test_moved),
		TEST(test_one_failure),
		TEST(test_other_failures),
		TEST(test_lateness),
		TEST(test_hostile),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
