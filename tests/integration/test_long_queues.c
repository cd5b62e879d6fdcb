/* SPDX-License-Identifier: Apache-2.0
 * Queues of thousands of tasks, which the scheduler ends in batches: all end with the same result.
 */
#include <string.h>

#include "harness.h"
#include "harness_raw.h"

#define ENTRIES 16384
#define MANY	10000

/* Two ranks and an observer, with a daemon of their own. */
struct pair {
	struct daemon d;
	ncclsvc_session *s;
	struct raw r[2];
	struct svc_record barrier;
	uint64_t comm_uid;
};

static void pair_open(struct pair *p)
{
	ncclsvc_unique_id id;
	struct raw_reply reply;
	uint32_t request_id[2];
	daemon_start(&p->d, NULL);
	p->s = session_open(&p->d);
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int i = 0; i < 2; i++) {
		struct svc_join join = raw_join_request(&id, 2, i);
		raw_open(&p->r[i], &p->d);
		raw_attach(&p->r[i], ENTRIES);
		request_id[i] = raw_send(&p->r[i], SVC_JOIN, &join, sizeof(join), NULL, 0);
	}
	for (int i = 0; i < 2; i++) {
		raw_reply_to(&p->r[i], request_id[i], &reply);
		CHECK_EQ(reply.header.result, 0);
	}
	p->barrier = (struct svc_record){.comm = reply.join.comm,
					 .epoch = reply.join.epoch,
					 .op = NCCLSVC_BARRIER,
					 .peer = -1};
	p->comm_uid = reply.join.comm_uid;
}

static void pair_close(struct pair *p)
{
	raw_close(&p->r[0]);
	raw_close(&p->r[1]);
	ncclsvc_close(p->s);
	daemon_stop(&p->d);
}

static void queue_barriers(struct pair *p, int rank, int n)
{
	for (int i = 0; i < n; i++)
		raw_ring_submit(&p->r[rank], p->barrier);
}

/* Checks that the last n tasks have ended with the expected result. */
static void check_results(struct raw *r, uint64_t n, ncclsvc_result expected)
{
	for (uint64_t i = r->last - n + 1; i <= r->last; i++)
		CHECK_EQ(raw_ring_wait(r, i).result, expected);
}

/* Queues many tasks on rank 0 and none on rank 1. Returns one of the queued tasks. */
static ncclsvc_task_info pair_open_with_queue(struct pair *p)
{
	pair_open(p);
	queue_barriers(p, 0, MANY);
	return tasks_reach(p->s, NCCLSVC_QUEUED, MANY - 1);
}

static uint64_t cancel(struct raw *r, enum svc_cancel_kind kind, uint64_t id)
{
	struct svc_cancel cancel = {.kind = kind, .id = id};
	struct raw_reply reply;
	raw_call(r, SVC_CANCEL, &cancel, sizeof(cancel), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	return reply.cancel.cancelled;
}

static void a_communicator_is_cancelled(void **state)
{
	struct pair p;
	(void)state;
	pair_open_with_queue(&p);
	CHECK_EQ(cancel(&p.r[0], SVC_CANCEL_COMM, p.comm_uid), MANY);
	check_results(&p.r[0], MANY, NCCLSVC_CANCELLED);
	/* The other member's tasks fail with the same result, and both members continue. */
	queue_barriers(&p, 1, MANY);
	check_results(&p.r[1], MANY, NCCLSVC_CANCELLED);
	for (int i = 0; i < 2; i++)
		queue_barriers(&p, i, 1);
	for (int i = 0; i < 2; i++)
		check_results(&p.r[i], 1, NCCLSVC_OK);
	pair_close(&p);
}

static void one_task_of_many_is_cancelled(void **state)
{
	struct pair p;
	(void)state;
	const ncclsvc_task_info first = pair_open_with_queue(&p);
	CHECK_EQ(cancel(&p.r[0], SVC_CANCEL_TASK, first.task), 1);
	tasks_reach(p.s, NCCLSVC_QUEUED, MANY - 2);
	ncclsvc_task_info failed = tasks_reach(p.s, NCCLSVC_FAILED, 1);
	CHECK_EQ(failed.task, first.task);
	CHECK_EQ(raw_ring_wait(&p.r[0], first.seq + 1).result, NCCLSVC_CANCELLED);
	pair_close(&p);
}

static void a_member_leaves(void **state)
{
	struct pair p;
	struct raw_reply reply;
	(void)state;
	pair_open_with_queue(&p);
	struct svc_leave leave = {.comm = p.barrier.comm};
	raw_call(&p.r[0], SVC_LEAVE, &leave, sizeof(leave), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	check_results(&p.r[0], MANY, NCCLSVC_CANCELLED);
	queue_barriers(&p, 1, 1);
	check_results(&p.r[1], 1, NCCLSVC_PEER_GONE);
	pair_close(&p);
}

static void an_epoch_ends(void **state)
{
	struct pair p;
	(void)state;
	pair_open_with_queue(&p);
	raw_close(&p.r[1]);
	check_results(&p.r[0], MANY, NCCLSVC_PEER_GONE);
	pair_close(&p);
}

static void deadlines_pass(void **state)
{
	struct pair p;
	(void)state;
	pair_open(&p);
	p.barrier.timeout_ns = UINT64_C(100000000);
	queue_barriers(&p, 0, MANY);
	check_results(&p.r[0], MANY, NCCLSVC_TIMEOUT);
	pair_close(&p);
}

/* A large group is posted in batches; its collectives and its Sends each stay in order. */
static void a_large_group_is_mixed(void **state)
{
	struct pair p;
	(void)state;
	pair_open(&p);
	for (int k = 0; k < 2; k++)
		for (int i = 0; i < SVC_GROUP_TASKS; i++) {
			struct svc_record r = p.barrier;
			r.flags = i < SVC_GROUP_TASKS - 1 ? SVC_TASK_MORE : 0;
			if (i % 3) {
				/* The last Recv matches the first Send. */
				r.op = i % 3 == 1 ? NCCLSVC_SEND : NCCLSVC_RECV;
				r.peer = 1 - k;
			}
			raw_ring_submit(&p.r[k], r);
		}
	for (int k = 0; k < 2; k++)
		check_results(&p.r[k], SVC_GROUP_TASKS, NCCLSVC_OK);
	pair_close(&p);
}

/* A region is released only after the scheduler has read the earlier tasks that name it. */
static void a_region_goes_behind_its_tasks(void **state)
{
	enum { TASKS = 5000 };
	struct pair p;
	struct raw_reply reply;
	(void)state;
	pair_open(&p);
	struct raw_region regions[2] = {raw_region(&p.r[0], SVC_PAGE),
					raw_region(&p.r[1], SVC_PAGE)};
	struct svc_record reduce = p.barrier;
	reduce.op = NCCLSVC_ALL_REDUCE;
	reduce.type = NCCLSVC_INT32;
	reduce.count = 4;
	for (int k = 0; k < 2; k++) {
		reduce.src_region = reduce.dst_region = regions[k].id;
		for (int i = 0; i < TASKS; i++)
			raw_ring_submit(&p.r[k], reduce);
		if (k == 1)
			check_results(&p.r[k], TASKS, NCCLSVC_OK);
		struct svc_region_del del = {.region = regions[k].id};
		raw_call(&p.r[k], SVC_REGION_DEL, &del, sizeof(del), NULL, 0, &reply);
		CHECK_EQ(reply.header.result, k ? 0 : NCCLSVC_BUSY);
	}
	for (int k = 0; k < 2; k++) {
		check_results(&p.r[k], TASKS, NCCLSVC_OK);
		raw_region_close(&regions[k]);
	}
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_communicator_is_cancelled),
		TEST(one_task_of_many_is_cancelled),
		TEST(a_member_leaves),
		TEST(an_epoch_ends),
		TEST(deadlines_pass),
		TEST(a_large_group_is_mixed),
		TEST(a_region_goes_behind_its_tasks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
