/* SPDX-License-Identifier: Apache-2.0
 * Requests about communicators, by raw messages: JOIN_CANCEL, ABORT, DESCRIBE, REFUSED, the labels
 * of planned tasks; and the names of jobs and communicators. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harness_raw.h"
#include "ncclsvc_plan.h"

#define ENTRIES 16
#define COUNT	1000

/* A rank of a two-member communicator, driven by raw messages. */
struct rank {
	struct raw r;
	struct raw_region region;
	struct svc_join_reply comm;
};

static void open_rank(struct rank *k, const struct daemon *d)
{
	raw_open(&k->r, d);
	raw_attach(&k->r, ENTRIES);
	k->region = raw_region(&k->r, (size_t)2 * COUNT * sizeof(int32_t));
}

static void join_both(struct rank k[2])
{
	ncclsvc_unique_id id;
	uint32_t request_ids[2];
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int i = 0; i < 2; i++) {
		struct svc_join join = raw_join_request(&id, 2, i);
		request_ids[i] = raw_send(&k[i].r, SVC_JOIN, &join, sizeof(join), NULL, 0);
	}
	for (int i = 0; i < 2; i++) {
		struct raw_reply reply;
		raw_reply_to(&k[i].r, request_ids[i], &reply);
		CHECK_EQ(reply.header.result, 0);
		k[i].comm = reply.join;
	}
}

static void open_pair(struct rank k[2], const struct daemon *d)
{
	open_rank(&k[0], d);
	open_rank(&k[1], d);
	join_both(k);
}

static void close_rank(struct rank *k)
{
	raw_close(&k->r);
	raw_region_close(&k->region);
}

static struct svc_record sum_of(struct rank *k, int32_t value)
{
	int32_t *v = k->region.base;
	for (int i = 0; i < COUNT; i++)
		v[i] = value + i;
	return (struct svc_record){
		.comm = k->comm.comm,
		.epoch = k->comm.epoch,
		.op = NCCLSVC_ALL_REDUCE,
		.type = NCCLSVC_INT32,
		.redop = NCCLSVC_SUM,
		.peer = -1,
		.count = COUNT,
		.src_region = k->region.id,
		.dst_region = k->region.id,
		.dst_offset = COUNT * sizeof(int32_t),
	};
}

static void check_sum(const struct rank *k, const ncclsvc_status *st)
{
	const int32_t *v = k->region.base;
	CHECK_EQ(st->result, 0);
	CHECK_EQ(st->epoch, k->comm.epoch);
	for (int i = 0; i < COUNT; i++)
		CHECK_EQ(v[COUNT + i], 30 + 2 * i);
}

static void sum_by_ring(struct rank k[2])
{
	uint64_t n[2];
	for (int i = 0; i < 2; i++)
		n[i] = raw_ring_submit(&k[i].r, sum_of(&k[i], 10 * (i + 1)));
	for (int i = 0; i < 2; i++) {
		const ncclsvc_status st = raw_ring_wait(&k[i].r, n[i]);
		check_sum(&k[i], &st);
	}
}

static void the_end_of_an_epoch_says_why(void **state)
{
	struct daemon d;
	struct rank k[2];
	struct raw_reply reply;
	(void)state;
	daemon_start(&d, NULL);
	open_pair(k, &d);
	close_rank(&k[1]);
	CHECK(raw_next(&k[0].r, &reply));
	CHECK_EQ(reply.header.opcode, SVC_EVENT_COMM);
	CHECK_EQ(reply.body, sizeof(struct svc_event_comm));
	CHECK_EQ(reply.event.reason, NCCLSVC_PEER_GONE);
	CHECK_EQ(reply.event.rank, 1);
	CHECK_EQ(reply.event.status.result, NCCLSVC_PEER_GONE);
	CHECK_EQ(reply.event.status.rank_a, 1);
	CHECK_EQ(reply.event.status.field, NCCLSVC_FIELD_NONE);
	close_rank(&k[0]);
	daemon_stop(&d);
}

static uint32_t join_alone_of_two(struct raw *r, const ncclsvc_unique_id *id)
{
	const struct svc_join join = raw_join_request(id, 2, 0);
	return raw_send(r, SVC_JOIN, &join, sizeof(join), NULL, 0);
}

static void a_join_that_waits_is_taken_back(void **state)
{
	struct daemon d;
	struct raw r, other;
	struct raw_reply reply;
	ncclsvc_unique_id id;
	(void)state;
	daemon_start(&d, NULL);
	raw_open(&r, &d);
	raw_open(&other, &d);
	CHECK_OK(ncclsvc_unique_id_create(&id));
	const uint32_t join = join_alone_of_two(&r, &id);
	const struct svc_join again = raw_join_request(&id, 2, 0);
	struct svc_join_cancel cancel = {.request_id = join + 100};
	raw_refused(&r, SVC_JOIN_CANCEL, &cancel, sizeof(cancel), NULL, 0, NCCLSVC_NOT_FOUND,
		    "no JOIN");
	cancel = (struct svc_join_cancel){.request_id = join, .reserved = 1};
	raw_refused(&r, SVC_JOIN_CANCEL, &cancel, sizeof(cancel), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "reserved");
	/* Request ids are per session. */
	cancel.reserved = 0;
	raw_refused(&other, SVC_JOIN_CANCEL, &cancel, sizeof(cancel), NULL, 0, NCCLSVC_NOT_FOUND,
		    "no JOIN");
	raw_refused(&other, SVC_JOIN, &again, sizeof(again), NULL, 0, NCCLSVC_RANK_TAKEN, "rank 0");
	const uint32_t request_id = raw_send(&r, SVC_JOIN_CANCEL, &cancel, sizeof(cancel), NULL, 0);
	CHECK(raw_next(&r, &reply));
	CHECK_EQ(reply.header.request_id, join);
	CHECK_EQ(reply.header.result, NCCLSVC_CANCELLED);
	raw_reply_to(&r, request_id, &reply);
	CHECK_EQ(reply.header.result, 0);
	raw_refused(&r, SVC_JOIN_CANCEL, &cancel, sizeof(cancel), NULL, 0, NCCLSVC_NOT_FOUND,
		    "no JOIN");
	/* The rank is free again. */
	const uint32_t taken = join_alone_of_two(&other, &id);
	struct svc_join second = raw_join_request(&id, 2, 1);
	raw_call(&r, SVC_JOIN, &second, sizeof(second), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	raw_reply_to(&other, taken, &reply);
	CHECK_EQ(reply.header.result, 0);
	raw_close(&r);
	raw_close(&other);
	daemon_stop(&d);
}

/* The abort ends the epoch for both members, and affects no other epoch. */
static void a_member_aborts(void **state)
{
	struct daemon d;
	struct rank k[2];
	struct raw_reply reply;
	(void)state;
	daemon_start(&d, NULL);
	open_pair(k, &d);
	struct svc_abort abort = {.comm = k[1].comm.comm + 1, .epoch = k[1].comm.epoch};
	raw_refused(&k[1].r, SVC_ABORT, &abort, sizeof(abort), NULL, 0, NCCLSVC_NOT_FOUND,
		    "no communicator");
	abort = (struct svc_abort){.comm = k[1].comm.comm, .epoch = k[1].comm.epoch + 1};
	raw_call(&k[1].r, SVC_ABORT, &abort, sizeof(abort), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	sum_by_ring(k);
	abort.epoch = k[1].comm.epoch;
	raw_send(&k[1].r, SVC_ABORT, &abort, sizeof(abort), NULL, 0);
	for (int i = 0; i < 2; i++) {
		CHECK(raw_next(&k[i].r, &reply));
		CHECK_EQ(reply.header.opcode, SVC_EVENT_COMM);
		CHECK_EQ(reply.event.status.result, NCCLSVC_PEER_GONE);
		CHECK_EQ(reply.event.status.rank_a, 1);
	}
	close_rank(&k[0]);
	close_rank(&k[1]);
	daemon_stop(&d);
}

/* Asks for rank 1's description of `word`. Returns whether rank 0 gets one. */
static bool hears(struct rank *k, uint64_t word, char text[SVC_DESCRIPTION_BYTES])
{
	struct svc_describe ask = {
		.comm = k[0].comm.comm, .epoch = k[0].comm.epoch, .peer = 1, .peer_about = word};
	struct svc_describe_reply said;
	struct raw_reply reply;
	raw_call(&k[0].r, SVC_DESCRIBE, &ask, sizeof(ask), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK_EQ(reply.body, sizeof(said));
	memcpy(&said, reply.bytes, sizeof(said));
	memcpy(text, said.text, sizeof(said.text));
	return said.known;
}

static void members_say_more_about_their_words(void **state)
{
	struct daemon d;
	struct rank k[2];
	struct raw_reply reply;
	char text[SVC_DESCRIPTION_BYTES];
	(void)state;
	daemon_start(&d, NULL);
	open_pair(k, &d);
	struct svc_describe say = {.comm = k[1].comm.comm + 1,
				   .epoch = k[1].comm.epoch,
				   .about = 5,
				   .peer = -1,
				   .text = "more"};
	raw_refused(&k[1].r, SVC_DESCRIBE, &say, sizeof(say), NULL, 0, NCCLSVC_NOT_FOUND,
		    "is not in epoch");
	say.comm--;
	say.epoch++;
	raw_refused(&k[1].r, SVC_DESCRIBE, &say, sizeof(say), NULL, 0, NCCLSVC_STALE_EPOCH,
		    "is not in epoch");
	say.epoch--;
	say.reserved = 1;
	raw_refused(&k[1].r, SVC_DESCRIBE, &say, sizeof(say), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "reserved");
	say.reserved = 0;
	CHECK(!hears(k, 5, text));
	raw_call(&k[1].r, SVC_DESCRIBE, &say, sizeof(say), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK(hears(k, 5, text) && !strcmp(text, "more"));
	CHECK(!hears(k, 6, text) && !hears(k, 0, text));
	/* The daemon drops the description after many later ones. */
	for (say.about = 100; say.about < 150; say.about++)
		raw_call(&k[1].r, SVC_DESCRIBE, &say, sizeof(say), NULL, 0, &reply);
	CHECK(!hears(k, 5, text) && hears(k, 149, text));
	close_rank(&k[0]);
	close_rank(&k[1]);
	daemon_stop(&d);
}

static void libraries_say_what_they_refuse(void **state)
{
	struct daemon d;
	struct rank k[2];
	struct raw_reply reply;
	char text[128];
	(void)state;
	daemon_start(&d, NULL);
	open_pair(k, &d);
	struct svc_refused refused = {.comm = k[1].comm.comm + 1,
				      .epoch = k[1].comm.epoch,
				      .seq = 7,
				      .result = NCCLSVC_LIMIT,
				      .op = NCCLSVC_BROADCAST,
				      .text = "no\x1b[2J"};
	raw_refused(&k[1].r, SVC_REFUSED, &refused, sizeof(refused), NULL, 0, NCCLSVC_NOT_FOUND,
		    "is not in epoch");
	refused.comm--;
	refused.epoch++;
	raw_refused(&k[1].r, SVC_REFUSED, &refused, sizeof(refused), NULL, 0, NCCLSVC_STALE_EPOCH,
		    "is not in epoch");
	refused.epoch--;
	refused.reserved[2] = 1;
	raw_refused(&k[1].r, SVC_REFUSED, &refused, sizeof(refused), NULL, 0,
		    NCCLSVC_INVALID_ARGUMENT, "reserved");
	refused.reserved[2] = 0;
	refused.op = 200;
	raw_refused(&k[1].r, SVC_REFUSED, &refused, sizeof(refused), NULL, 0,
		    NCCLSVC_INVALID_ARGUMENT, "operation 200");
	refused.op = NCCLSVC_BROADCAST;
	const int32_t results[] = {NCCLSVC_OK, NCCLSVC_IN_PROGRESS, -100, INT32_MIN};
	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
		refused.result = results[i];
		raw_refused(&k[1].r, SVC_REFUSED, &refused, sizeof(refused), NULL, 0,
			    NCCLSVC_INVALID_ARGUMENT, "cannot have been refused");
	}
	refused.result = NCCLSVC_LIMIT;
	for (int i = 0; i < 3; i++) {
		raw_call(&k[1].r, SVC_REFUSED, &refused, sizeof(refused), NULL, 0, &reply);
		CHECK_EQ(reply.header.result, 0);
	}
	snprintf(text, sizeof(text), "rank 1 (pid %d) was refused: Broadcast #7: LIMIT: no?[2J",
		 getpid());
	CHECK(daemon_logged(&d, text));
	close_rank(&k[0]);
	close_rank(&k[1]);
	daemon_stop(&d);
}

static void plans_end(ncclsvc_session *watch)
{
	const uint64_t then = now_ns();
	for (size_t n = 1; n; sleep_ms(1)) {
		ncclsvc_plan_info *list;
		CHECK_OK(ncclsvc_list_plans(watch, &list, &n));
		ncclsvc_list_free(list);
		CHECK(now_ns() - then < WAIT_MS * UINT64_C(1000000));
	}
}

static const char *const labels[] = {"first of 0", "second of 0", "first of 1", "second of 1"};

/* Two Sends from rank 0 to rank 1, with labels. */
static uint32_t commit_plan(struct rank *k, int me)
{
	struct svc_plan_task t[2] = {
		{.op = me ? NCCLSVC_RECV : NCCLSVC_SEND,
		 .peer = 1 - me,
		 .type = NCCLSVC_INT32,
		 .count = COUNT},
	};
	t[1] = t[0];
	t[1].group = 1;
	for (int i = 0; i < 2; i++)
		memcpy(t[i].label, labels[2 * me + i], strlen(labels[2 * me + i]));
	const int fd = svc_memfd_create("plan", sizeof(t), false);
	CHECK(fd >= 0);
	CHECK_EQ(pwrite(fd, t, sizeof(t), 0), sizeof(t));
	const struct svc_plan_commit m = {
		.comm = k->comm.comm, .epoch = k->comm.epoch, .groups = 2, .tasks = 2};
	const uint32_t request_id = raw_send(&k->r, SVC_PLAN_COMMIT, &m, sizeof(m), &fd, 1);
	close(fd);
	return request_id;
}

static void check_labels(ncclsvc_session *watch)
{
	ncclsvc_plan_task_info *list;
	size_t n;
	CHECK_OK(ncclsvc_list_plan_tasks(watch, &list, &n));
	CHECK_EQ(n, sizeof(labels) / sizeof(labels[0]));
	for (size_t i = 0; i < n; i++) {
		CHECK_EQ(list[i].group, i % 2);
		CHECK_EQ(list[i].count, COUNT);
		CHECK(!strcmp(list[i].label, labels[i]));
	}
	ncclsvc_list_free(list);
}

static void planned_tasks_have_labels(void **state)
{
	struct daemon d;
	struct rank k[2];
	uint32_t request_ids[2];
	(void)state;
	daemon_start(&d, NULL);
	ncclsvc_session *watch = session_open(&d);
	open_pair(k, &d);
	for (int r = 0; r < 2; r++)
		request_ids[r] = commit_plan(&k[r], r);
	for (int r = 0; r < 2; r++) {
		struct raw_reply reply;
		raw_reply_to(&k[r].r, request_ids[r], &reply);
		CHECK_EQ(reply.header.result, 0);
	}
	check_labels(watch);
	close_rank(&k[0]);
	close_rank(&k[1]);
	plans_end(watch);
	ncclsvc_close(watch);
	daemon_stop(&d);
}

/* ---- Jobs and labels ---- */

static void refused_job(struct raw *r, const struct svc_identify *m)
{
	raw_refused(r, SVC_IDENTIFY, m, sizeof(*m), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "job's name is not printable ASCII");
}

static void check_job(ncclsvc_session *watch, const struct raw *r, const char *job)
{
	ncclsvc_session_info *list;
	size_t n, found = 0;
	CHECK_OK(ncclsvc_list_sessions(watch, &list, &n));
	for (size_t i = 0; i < n; i++) {
		if (list[i].session != r->session)
			continue;
		found++;
		if (strcmp(list[i].job, job) != 0)
			check_failed(__FILE__, __LINE__, "job is '%s', not '%s'", list[i].job, job);
	}
	CHECK_EQ(found, 1);
	ncclsvc_list_free(list);
}

static void hostile_names_of_jobs_are_refused(void **state)
{
	struct daemon d;
	struct raw r;
	struct svc_identify m = {.job = "slurm 1234.0"};
	(void)state;
	daemon_start(&d, NULL);
	ncclsvc_session *watch = session_open(&d);
	raw_open(&r, &d);
	struct raw_reply reply;
	raw_call(&r, SVC_IDENTIFY, &m, sizeof(m), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	check_job(watch, &r, "slurm 1234.0");
	memset(m.job, 'x', sizeof(m.job)); /* no terminating NUL */
	refused_job(&r, &m);
	m = (struct svc_identify){.job = "a\033[2J"};
	refused_job(&r, &m);
	m = (struct svc_identify){.job = "a\nb"};
	refused_job(&r, &m);
	m = (struct svc_identify){.job = "\303\244"};
	refused_job(&r, &m);
	m = (struct svc_identify){.job = {'a', '\0', 'b'}};
	refused_job(&r, &m);
	check_job(watch, &r, "slurm 1234.0");
	raw_close(&r);
	ncclsvc_close(watch);
	daemon_stop(&d);
}

static const ncclsvc_comm_info *find_comm(const ncclsvc_comm_info *list, size_t n, uint64_t comm)
{
	for (size_t i = 0; i < n; i++)
		if (list[i].comm == comm)
			return &list[i];
	check_failed(__FILE__, __LINE__, "communicator %llu is not listed",
		     (unsigned long long)comm);
	return NULL;
}

static void check_comm(ncclsvc_session *watch, const struct svc_join_reply *comm, const char *label,
		       const char *job)
{
	ncclsvc_comm_info *list;
	size_t n;
	CHECK_OK(ncclsvc_list_comms(watch, &list, &n));
	const ncclsvc_comm_info *x = find_comm(list, n, comm->comm_uid);
	if (strcmp(x->label, label) != 0 || strcmp(x->job, job) != 0)
		check_failed(__FILE__, __LINE__, "'%s' of job '%s', not '%s' of '%s'", x->label,
			     x->job, label, job);
	CHECK(!strcmp(comm->label, label));
	ncclsvc_list_free(list);
}

static struct svc_join_reply split_alone(struct raw *r, const struct svc_join_reply *comm,
					 int colour, const char *label)
{
	struct svc_split split = {.comm = comm->comm, .colour = colour};
	struct raw_reply reply;
	snprintf(split.label, sizeof(split.label), "%s", label);
	raw_call(r, SVC_SPLIT, &split, sizeof(split), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	return reply.join;
}

static void communicators_are_called_as_their_users_say(void **state)
{
	struct daemon d;
	struct raw r;
	struct raw_reply reply;
	ncclsvc_unique_id id;
	const struct svc_identify m = {.job = "job 7"};
	(void)state;
	daemon_start(&d, NULL);
	ncclsvc_session *watch = session_open(&d);
	raw_open(&r, &d);
	raw_call(&r, SVC_IDENTIFY, &m, sizeof(m), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK_OK(ncclsvc_unique_id_create(&id));
	struct svc_join join = raw_join_request(&id, 1, 0);
	memset(join.label, 'x', sizeof(join.label));
	raw_refused(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "label is not printable ASCII");
	join = raw_join_request(&id, 1, 0);
	snprintf(join.label, sizeof(join.label), "tp");
	raw_call(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	const struct svc_join_reply whole = reply.join;
	check_comm(watch, &whole, "tp", "job 7");
	struct svc_join_reply part = split_alone(&r, &whole, 3, "");
	check_comm(watch, &part, "tp/split 1 colour 3", "job 7");
	part = split_alone(&r, &whole, 4, "");
	check_comm(watch, &part, "tp/split 2 colour 4", "job 7");
	part = split_alone(&r, &whole, 5, "dp");
	check_comm(watch, &part, "dp", "job 7");
	/* The end of a label distinguishes parts, so a long label loses its beginning. */
	part = split_alone(&r, &whole, 6, "1234567890123456789012345678901234567890-----47");
	part = split_alone(&r, &part, 2000000000, "");
	check_comm(watch, &part, "123456789012345678901/split 1 colour 2000000000", "job 7");
	struct svc_split split = {.comm = whole.comm, .label = "\177"};
	raw_refused(&r, SVC_SPLIT, &split, sizeof(split), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "label is not printable ASCII");
	raw_close(&r);
	ncclsvc_close(watch);
	daemon_stop(&d);
}

/* The library's error messages include the label, too. */
static void the_library_says_job_and_label(void **state)
{
	struct daemon d;
	ncclsvc_session *s;
	ncclsvc_comm *comm;
	ncclsvc_unique_id id;
	ncclsvc_session_info *sessions;
	ncclsvc_comm_info *comms;
	size_t n;
	(void)state;
	daemon_start(&d, NULL);
	const ncclsvc_options options = {
		.size = sizeof(options), .socket = d.socket, .job = "night \n run"};
	CHECK_OK(ncclsvc_open(&options, &s));
	CHECK_OK(ncclsvc_list_sessions(s, &sessions, &n));
	CHECK_EQ(n, 1);
	CHECK(!strcmp(sessions[0].job, "night ? run"));
	ncclsvc_list_free(sessions);
	CHECK_OK(ncclsvc_unique_id_create(&id));
	ncclsvc_comm_label_next("pp\t0");
	CHECK_OK(ncclsvc_comm_join(s, &id, 1, 0, WAIT_MS, &comm));
	CHECK_OK(ncclsvc_list_comms(s, &comms, &n));
	bool found = false;
	for (size_t i = 0; i < n; i++)
		found |= !strcmp(comms[i].label, "pp?0") && !strcmp(comms[i].job, "night ? run");
	CHECK(found);
	ncclsvc_list_free(comms);
	ncclsvc_comm_leave(comm);
	/* The label applied to one communicator only. */
	CHECK_OK(ncclsvc_unique_id_create(&id));
	CHECK_RESULT(ncclsvc_comm_join(s, &id, 2, 0, 10, &comm), NCCLSVC_TIMEOUT);
	CHECK(!strstr(ncclsvc_last_error(), "pp?0"));
	ncclsvc_close(s);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_end_of_an_epoch_says_why),
		TEST(a_join_that_waits_is_taken_back),
		TEST(a_member_aborts),
		TEST(members_say_more_about_their_words),
		TEST(libraries_say_what_they_refuse),
		TEST(planned_tasks_have_labels),
		TEST(hostile_names_of_jobs_are_refused),
		TEST(communicators_are_called_as_their_users_say),
		TEST(the_library_says_job_and_label),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
