/* SPDX-License-Identifier: Apache-2.0
 * How the daemon handles message kernels, from the content of the members' control blocks. */
#include "proto/names.h"
#include "scene.h"

#define MS    UINT64_C(1000000)
#define WORDS 8

/* The peer and direction of the rank's messages to, or from, the other rank. */
static unsigned peer_dir_of(int rank, int op)
{
	const unsigned other = !rank;
	return op == NCCLSVC_SEND ? PEER_DIR_TO(other) : PEER_DIR_FROM(other);
}

/* Launches the next message in this direction, in kernel `seq`. */
static void launch(struct scene *s, int rank, int op, uint32_t seq, uint64_t timeout_ns)
{
	struct peer_control *p = scene_control(s, rank);
	p->history[p->records % PEER_HISTORY] = (struct peer_record){
		.operation = p->records,
		.header = peer_header((uint8_t)op, NCCLSVC_UINT32, 0, (uint8_t)!rank, WORDS),
		.launched_ns = now_ns(),
		.timeout_ns = timeout_ns,
		.kernel_seq = seq,
		.message = p->messages[peer_dir_of(rank, op)] + 1,
	};
	atomic_store_explicit(&p->messages[peer_dir_of(rank, op)],
			      p->messages[peer_dir_of(rank, op)] + 1, memory_order_release);
	atomic_store_explicit(&p->records, p->records + 1, memory_order_release);
}

static void launch_many(struct scene *s, int rank, int op, uint32_t seq, unsigned n)
{
	while (n--)
		launch(s, rank, op, seq, 0);
}

/* Reports that the kernel waits for this message. */
static void waits(struct scene *s, int rank, int op, uint32_t seq, uint32_t message)
{
	struct peer_control *p = scene_control(s, rank);
	p->moves = 1;
	atomic_store_explicit(&p->waits[peer_dir_of(rank, op)], (uint64_t)seq << 32 | message,
			      memory_order_release);
	atomic_store_explicit(&p->begun, (uint64_t)seq << 32 | seq, memory_order_release);
}

static void is_circle(struct scene *s, unsigned op_a, unsigned op_b)
{
	const ncclsvc_status st = scene_ends(s, NCCLSVC_MISMATCH);
	CHECK_EQ(st.field, NCCLSVC_FIELD_ORDER);
	CHECK_EQ(st.rank_a, 0);
	CHECK_EQ(st.rank_b, 1);
	CHECK_EQ(st.value_a, op_a);
	CHECK_EQ(st.value_b, op_b);
	scene_open(s);
}

/* Checks that the epoch does not end. Then aborts it, and begins another. */
static void goes_on(struct scene *s)
{
	scene_quiet(s);
	scene_control(s, 0)->abort = 1;
	scene_ends(s, NCCLSVC_PEER_GONE);
	scene_open(s);
}

/* ---- Two kernels that wait for each other ---- */

static void crossing(struct scene *s)
{
	stage("messages that cross on their way");
	for (int k = 0; k < 2; k++) {
		launch(s, k, NCCLSVC_SEND, 1, 0);
		launch(s, k, NCCLSVC_RECV, 1, 0);
		waits(s, k, NCCLSVC_RECV, 1, 1);
	}
	goes_on(s);

	stage("messages that were sent before");
	for (int k = 0; k < 2; k++) {
		launch(s, k, NCCLSVC_SEND, 1, 0);
		launch(s, k, NCCLSVC_RECV, 2, 0);
		waits(s, k, NCCLSVC_RECV, 2, 1);
	}
	goes_on(s);

	stage("Sends behind the Recvs");
	for (int k = 0; k < 2; k++) {
		launch(s, k, NCCLSVC_RECV, 1, 0);
		launch(s, k, NCCLSVC_SEND, 2, 0);
		waits(s, k, NCCLSVC_RECV, 1, 1);
	}
	is_circle(s, NCCLSVC_RECV, NCCLSVC_RECV);

	stage("messages that have not been submitted");
	for (int k = 0; k < 2; k++) {
		launch(s, k, NCCLSVC_RECV, 1, 0);
		waits(s, k, NCCLSVC_RECV, 1, 1);
	}
	is_circle(s, NCCLSVC_RECV, NCCLSVC_RECV);

	stage("records that are overwritten");
	for (int k = 0; k < 2; k++) {
		launch(s, k, NCCLSVC_RECV, 1, 0);
		launch_many(s, k, NCCLSVC_SEND, 1, 3);
		launch_many(s, k, NCCLSVC_SEND, 2, PEER_HISTORY);
		waits(s, k, NCCLSVC_RECV, 1, 1);
	}
	goes_on(s);
}

static void full(struct scene *s)
{
	stage("full rings, and Recvs that make room");
	for (int k = 0; k < 2; k++) {
		launch_many(s, k, NCCLSVC_SEND, 1, 5);
		launch_many(s, k, NCCLSVC_RECV, 1, 2);
		launch_many(s, k, NCCLSVC_RECV, 2, 3);
		waits(s, k, NCCLSVC_SEND, 1, 5);
	}
	goes_on(s);

	stage("full rings, and Recvs behind them");
	for (int k = 0; k < 2; k++) {
		launch_many(s, k, NCCLSVC_SEND, 1, 5);
		launch_many(s, k, NCCLSVC_RECV, 2, 5);
		waits(s, k, NCCLSVC_SEND, 1, 5);
	}
	is_circle(s, NCCLSVC_SEND, NCCLSVC_SEND);

	stage("a full ring, and a waiting Recv before the Recvs that empty it");
	launch_many(s, 0, NCCLSVC_SEND, 1, 5);
	launch(s, 0, NCCLSVC_SEND, 2, 0);
	launch(s, 1, NCCLSVC_RECV, 1, 0);
	launch_many(s, 1, NCCLSVC_RECV, 2, 5);
	waits(s, 0, NCCLSVC_SEND, 1, 5);
	waits(s, 1, NCCLSVC_RECV, 1, 1);
	goes_on(s);
}

/* ---- The message that a failure names ---- */

static void which(struct scene *s)
{
	stage("one of several messages");
	launch(s, 0, NCCLSVC_SEND, 1, 200 * MS);
	launch_many(s, 0, NCCLSVC_RECV, 1, 2);
	launch(s, 1, NCCLSVC_SEND, 1, 0);
	waits(s, 0, NCCLSVC_RECV, 1, 2);
	const ncclsvc_status st = scene_ends(s, NCCLSVC_TIMEOUT);
	CHECK_EQ(st.rank_a, 0);
	CHECK_EQ(st.missing_count, 1);
	CHECK_EQ(st.missing[0], 1);
	CHECK(daemon_logged(s->c->daemon,
			    "Recv #2 of rank 0 waits on the GPU for rank 1, which has not "
			    "submitted it: TIMEOUT"));
	scene_open(s);
}

/* ---- Messages whose Recv is on NCCL ---- */

static uint32_t submit_recv(struct scene *s, uint64_t count)
{
	const struct svc_record r = {.comm = s->m[1].joined.comm,
				     .epoch = s->m[1].joined.epoch,
				     .op = NCCLSVC_RECV,
				     .type = NCCLSVC_UINT32,
				     .peer = 0,
				     .count = count,
				     .dst_region = s->m[1].staging};
	return raw_send(&s->m[1].raw, SVC_SUBMIT, &r, sizeof(r), NULL, 0);
}

static void on_nccl(struct scene *s)
{
	struct raw_reply reply;
	stage("a Recv on NCCL, behind all messages");
	launch_many(s, 0, NCCLSVC_SEND, 1, 3);
	launch_many(s, 1, NCCLSVC_RECV, 1, 3);
	const uint32_t request_id = submit_recv(s, 1000);
	scene_quiet(s);
	stage("one more message");
	launch(s, 0, NCCLSVC_SEND, 2, 0);
	peer_wait_aborted(s->controls);
	raw_reply_to(&s->m[1].raw, request_id, &reply);
	CHECK_EQ(reply.submit.status.result, NCCLSVC_MISMATCH);
	const ncclsvc_status st = scene_reported(s, 0);
	CHECK_EQ(st.result, NCCLSVC_MISMATCH);
	CHECK_EQ(st.rank_a, 0);
	CHECK_EQ(st.rank_b, 1);
	CHECK_EQ(st.field, NCCLSVC_FIELD_COUNT);
	CHECK_EQ(st.value_a, WORDS);
	CHECK_EQ(st.value_b, 1000);
	scene_close(s);
	scene_open(s);
}

/* ---- Inspection ---- */

static void is_shown(const ncclsvc_task_info *t, int rank, int op, unsigned state, int waits_for)
{
	CHECK_EQ(t->rank, rank);
	CHECK_EQ(t->op, op);
	CHECK_EQ(t->peer, !rank);
	CHECK_EQ(t->count, WORDS);
	CHECK_EQ(t->state, state);
	CHECK_EQ(t->waits_count, waits_for >= 0);
	if (waits_for >= 0)
		CHECK_EQ(t->waits_for[0], waits_for);
}

static ncclsvc_task_info *tasks(ncclsvc_session *session, size_t due)
{
	ncclsvc_task_info *list;
	size_t n;
	CHECK_OK(ncclsvc_list_tasks(session, &list, &n));
	CHECK_EQ(n, due);
	return list;
}

static void inspection(struct scene *s)
{
	ncclsvc_session *session = session_open(s->c->daemon);
	stage("messages that no rank waits for");
	launch_many(s, 0, NCCLSVC_SEND, 1, 3);
	launch_many(s, 1, NCCLSVC_RECV, 1, 2);
	ncclsvc_list_free(tasks(session, 0));

	stage("a Recv whose Send was not submitted");
	launch_many(s, 1, NCCLSVC_RECV, 2, 2);
	launch(s, 1, NCCLSVC_SEND, 3, 0);
	waits(s, 1, NCCLSVC_RECV, 2, 4);
	ncclsvc_task_info *list = tasks(session, 3);
	is_shown(&list[0], 1, NCCLSVC_RECV, NCCLSVC_LAUNCHED, -1);
	is_shown(&list[1], 1, NCCLSVC_RECV, NCCLSVC_WAITING_PEERS, 0);
	is_shown(&list[2], 1, NCCLSVC_SEND, NCCLSVC_QUEUED, -1);
	ncclsvc_list_free(list);
	why_says(s->c->daemon, "rank 0");

	stage("a Send whose stream has not reached it");
	launch(s, 0, NCCLSVC_SEND, 2, 0);
	list = tasks(session, 4);
	is_shown(&list[0], 0, NCCLSVC_SEND, NCCLSVC_WAITING_INPUT, -1);
	is_shown(&list[2], 1, NCCLSVC_RECV, NCCLSVC_LAUNCHED, -1);
	ncclsvc_list_free(list);
	why_says(s->c->daemon, "on the GPUs for the stream of rank 0");
	ncclsvc_close(session);
	goes_on(s);
}

static void watch_rank(struct client *c)
{
	struct scene s = {.c = c};
	CHECK_OK(ncclsvc_unique_id_create(&s.id));
	scene_member(&s, 0);
	scene_member(&s, 1);
	scene_open(&s);
	which(&s);
	crossing(&s);
	full(&s);
	on_nccl(&s);
	inspection(&s);
	scene_close(&s);
	raw_close(&s.m[0].raw);
	raw_close(&s.m[1].raw);
}

static void test_watch(void)
{
	ranks_run(1, watch_rank, NULL);
}

const struct gpu_test peer_message_tests[] = {
	{"peer/watch_messages", test_watch, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
