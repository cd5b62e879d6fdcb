/* SPDX-License-Identifier: Apache-2.0
 * Protocol versions: the real daemon speaks the lowest and the highest at once, through socket and
 * ring, and the library works with a daemon that only speaks the lowest. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harness_raw.h"
#include "ncclsvc_tensors.h"
#include "relay.h"

enum { READY = 1, GO, DONE };

#define ENTRIES 16
#define COUNT	1000

/* A rank of a two-member communicator, driven by raw messages. */
struct rank {
	struct raw r;
	struct raw_region region;
	struct svc_join_reply comm;
};

static void open_rank(struct rank *k, const struct daemon *d, unsigned version)
{
	raw_open_version(&k->r, d, version);
	raw_attach(&k->r, ENTRIES);
	k->region = raw_region(&k->r, (size_t)2 * COUNT * sizeof(int32_t));
}

static void join_both(struct rank k[2])
{
	ncclsvc_unique_id id;
	uint32_t serials[2];
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int i = 0; i < 2; i++) {
		struct svc_join join = raw_join_request(&id, 2, i);
		serials[i] = raw_send(&k[i].r, SVC_JOIN, &join, sizeof(join), NULL, 0);
	}
	for (int i = 0; i < 2; i++) {
		struct raw_reply reply;
		raw_reply_to(&k[i].r, serials[i], &reply);
		CHECK_EQ(reply.header.result, 0);
		k[i].comm = reply.join;
	}
}

static void open_pair(struct rank k[2], const struct daemon *d, unsigned first, unsigned second)
{
	open_rank(&k[0], d, first);
	open_rank(&k[1], d, second);
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

static void sum_by_socket(struct rank k[2])
{
	uint32_t serials[2];
	for (int i = 0; i < 2; i++) {
		const struct svc_record record = sum_of(&k[i], 10 * (i + 1));
		serials[i] = raw_send(&k[i].r, SVC_SUBMIT, &record, sizeof(record), NULL, 0);
	}
	for (int i = 0; i < 2; i++) {
		struct raw_reply reply;
		raw_reply_to(&k[i].r, serials[i], &reply);
		CHECK_EQ(reply.body, sizeof(struct svc_submit_reply));
		check_sum(&k[i], &reply.submit.status);
	}
}

static unsigned listed_version(ncclsvc_session *s, const struct raw *r)
{
	ncclsvc_session_info *list;
	unsigned version = 0;
	size_t n;
	CHECK_OK(ncclsvc_list_sessions(s, &list, &n));
	for (size_t i = 0; i < n; i++)
		if (list[i].session == r->session)
			version = list[i].protocol;
	ncclsvc_list_free(list);
	return version;
}

static void tasks_run_between_all_versions(void **state)
{
	struct daemon d;
	(void)state;
	daemon_start(&d, NULL);
	ncclsvc_session *watch = session_open(&d);
	for (unsigned first = SVC_PROTOCOL_MIN; first <= SVC_PROTOCOL_MAX; first++) {
		for (unsigned second = SVC_PROTOCOL_MIN; second <= SVC_PROTOCOL_MAX; second++) {
			struct rank k[2];
			open_pair(k, &d, first, second);
			for (int i = 0; i < 2 * ENTRIES; i++)
				sum_by_ring(k);
			sum_by_socket(k);
			CHECK_EQ(listed_version(watch, &k[0].r), first);
			CHECK_EQ(listed_version(watch, &k[1].r), second);
			close_rank(&k[0]);
			close_rank(&k[1]);
		}
	}
	ncclsvc_close(watch);
	daemon_stop(&d);
}

/* ---- Differences ---- */

static void the_end_of_an_epoch_is_longer_in_version_2(void **state)
{
	static const size_t lengths[] = {0, 24, 152, 152};
	struct daemon d;
	(void)state;
	daemon_start(&d, NULL);
	for (unsigned v = SVC_PROTOCOL_MIN; v <= SVC_PROTOCOL_MAX; v++) {
		struct rank k[2];
		struct raw_reply reply;
		open_pair(k, &d, v, SVC_PROTOCOL_MAX);
		close_rank(&k[1]);
		CHECK(raw_next(&k[0].r, &reply));
		CHECK_EQ(reply.header.opcode, SVC_EVENT_COMM);
		CHECK_EQ(reply.body, lengths[v]);
		CHECK_EQ(reply.event.reason, NCCLSVC_PEER_GONE);
		CHECK_EQ(reply.event.rank, 1);
		if (v > 1) {
			CHECK_EQ(reply.event.status.result, NCCLSVC_PEER_GONE);
			CHECK_EQ(reply.event.status.rank_a, 1);
			CHECK_EQ(reply.event.status.field, NCCLSVC_FIELD_NONE);
		}
		close_rank(&k[0]);
	}
	daemon_stop(&d);
}

static uint32_t join_alone_of_two(struct raw *r, const ncclsvc_unique_id *id)
{
	const struct svc_join join = raw_join_request(id, 2, 0);
	return raw_send(r, SVC_JOIN, &join, sizeof(join), NULL, 0);
}

static void version_1_has_no_join_cancel(void **state)
{
	struct daemon d;
	struct raw r;
	(void)state;
	daemon_start(&d, NULL);
	raw_open_version(&r, &d, 1);
	raw_refused(&r, SVC_JOIN_CANCEL, &(struct svc_join_cancel){.serial = 1},
		    sizeof(struct svc_join_cancel), NULL, 0, NCCLSVC_PROTOCOL,
		    "version 1 has no opcode 27");
	raw_refused(&r, SVC_STAGING, &(struct svc_staging){.comm = 1}, sizeof(struct svc_staging),
		    NULL, 0, NCCLSVC_PROTOCOL, "version 1 has no opcode 28");
	raw_join_alone(&r);
	raw_close(&r);
	daemon_stop(&d);
}

static void a_join_that_waits_is_taken_back(void **state)
{
	struct daemon d;
	struct raw r, other;
	struct raw_reply reply;
	ncclsvc_unique_id id;
	(void)state;
	daemon_start(&d, NULL);
	raw_open_version(&r, &d, 2);
	raw_open(&other, &d);
	CHECK_OK(ncclsvc_unique_id_create(&id));
	const uint32_t join = join_alone_of_two(&r, &id);
	const struct svc_join again = raw_join_request(&id, 2, 0);
	struct svc_join_cancel cancel = {.serial = join + 100};
	raw_refused(&r, SVC_JOIN_CANCEL, &cancel, sizeof(cancel), NULL, 0, NCCLSVC_NOT_FOUND,
		    "no JOIN");
	cancel = (struct svc_join_cancel){.serial = join, .reserved = 1};
	raw_refused(&r, SVC_JOIN_CANCEL, &cancel, sizeof(cancel), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "reserved");
	/* Request serials are per session. */
	cancel.reserved = 0;
	raw_refused(&other, SVC_JOIN_CANCEL, &cancel, sizeof(cancel), NULL, 0, NCCLSVC_NOT_FOUND,
		    "no JOIN");
	raw_refused(&other, SVC_JOIN, &again, sizeof(again), NULL, 0, NCCLSVC_RANK_TAKEN, "rank 0");
	const uint32_t serial = raw_send(&r, SVC_JOIN_CANCEL, &cancel, sizeof(cancel), NULL, 0);
	CHECK(raw_next(&r, &reply));
	CHECK_EQ(reply.header.serial, join);
	CHECK_EQ(reply.header.result, NCCLSVC_CANCELLED);
	raw_reply_to(&r, serial, &reply);
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
	open_pair(k, &d, 2, 2);
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
	open_pair(k, &d, 3, 3);
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
	open_pair(k, &d, 3, 3);
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
		CHECK(in_time(then, now_ns(), WAIT_MS * UINT64_C(1000000)));
	}
}

static const char *const labels[] = {"first of 0", "second of 0", "first of 1", "second of 1"};

/* Two Sends from rank 0 to rank 1, with labels if the version has them. */
static uint32_t commit_plan(struct rank *k, unsigned version, int me)
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
	const size_t entry = version > 1 ? sizeof(t[0]) : 24;
	const int fd = svc_memfd_create("plan", 2 * entry, false);
	CHECK(fd >= 0);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pwrite(fd, &t[i], entry, (off_t)(i * entry)), entry);
	const struct svc_plan_commit m = {
		.comm = k->comm.comm, .epoch = k->comm.epoch, .groups = 2, .tasks = 2};
	const uint32_t serial = raw_send(&k->r, SVC_PLAN_COMMIT, &m, sizeof(m), &fd, 1);
	close(fd);
	return serial;
}

static void check_labels(ncclsvc_session *watch, const unsigned versions[2])
{
	ncclsvc_plan_task_info *list;
	size_t n;
	CHECK_OK(ncclsvc_list_plan_tasks(watch, &list, &n));
	CHECK_EQ(n, sizeof(labels) / sizeof(labels[0]));
	for (size_t i = 0; i < n; i++) {
		const char *due = versions[i / 2] > 1 ? labels[i] : "";
		CHECK_EQ(list[i].group, i % 2);
		CHECK_EQ(list[i].count, COUNT);
		CHECK(!strcmp(list[i].label, due));
	}
	ncclsvc_list_free(list);
}

static void planned_tasks_have_labels_in_version_2(void **state)
{
	struct daemon d;
	(void)state;
	daemon_start(&d, NULL);
	ncclsvc_session *watch = session_open(&d);
	for (int i = 0; i < 4; i++) {
		const unsigned v[] = {1 + i % 2, 1 + i / 2};
		struct rank k[2];
		uint32_t serials[2];
		open_pair(k, &d, v[0], v[1]);
		for (int r = 0; r < 2; r++)
			serials[r] = commit_plan(&k[r], v[r], r);
		for (int r = 0; r < 2; r++) {
			struct raw_reply reply;
			raw_reply_to(&k[r].r, serials[r], &reply);
			CHECK_EQ(reply.header.result, 0);
		}
		check_labels(watch, v);
		close_rank(&k[0]);
		close_rank(&k[1]);
		plans_end(watch);
	}
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
	for (unsigned v = SVC_PROTOCOL_MIN; v < 3; v++) {
		raw_open_version(&r, &d, v);
		raw_refused(&r, SVC_IDENTIFY, &m, sizeof(m), NULL, 0, NCCLSVC_PROTOCOL,
			    "has no opcode 31");
		check_job(watch, &r, "");
		raw_close(&r);
	}
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

static void a_future_client_is_told_both_ranges(void **state)
{
	struct daemon d;
	struct relay relay;
	struct raw r;
	struct raw_reply reply;
	ncclsvc_session *s = NULL;
	(void)state;
	daemon_start(&d, NULL);
	const struct svc_hello hello = {.version_min = 7, .version_max = 9, .name = "future"};
	raw_connect(&r, &d);
	raw_call(&r, SVC_HELLO, &hello, sizeof(hello), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_VERSION);
	CHECK_EQ(reply.error.client_version_min, 7);
	CHECK_EQ(reply.error.client_version_max, 9);
	CHECK(strstr(reply.error.text, "versions 7 to 9, this daemon 1 to 3"));
	raw_ends(&r, NCCLSVC_VERSION);
	raw_close(&r);
	relay_start(&relay, &d, 7, 9);
	const ncclsvc_options o = {.size = sizeof(o), .socket = relay.behind.socket};
	CHECK_RESULT(ncclsvc_open(&o, &s), NCCLSVC_VERSION);
	CHECK(strstr(ncclsvc_last_error(), "daemon speaks protocol versions 1 to 3, this library"));
	relay_stop(&relay);
	daemon_stop(&d);
}

/* ---- The library and a daemon of the lowest version ---- */

/* The label stays local with this version. */
static void planned(ncclsvc_comm *comm, int other, int32_t *v)
{
	ncclsvc_plan *p;
	CHECK_OK(ncclsvc_plan_start(comm, &p));
	CHECK_OK(ncclsvc_plan_group_start(p));
	CHECK_OK(ncclsvc_plan_send(p, 1, NCCLSVC_INT32, other));
	CHECK_OK(ncclsvc_plan_label(p, "ours"));
	CHECK_OK(ncclsvc_plan_recv(p, NCCLSVC_PLAN_ANY, NCCLSVC_INT32, other));
	CHECK_OK(ncclsvc_plan_group_end(p));
	CHECK_OK(ncclsvc_plan_end(p, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(p));
	v[0] = 10 - other;
	CHECK_OK(ncclsvc_plan_submit_recv(p, v + 1, 1, NCCLSVC_INT32, other, NULL));
	CHECK_RESULT(ncclsvc_plan_reset(p, 0), NCCLSVC_TIMEOUT);
	CHECK(strstr(ncclsvc_last_error(), "Send \"ours\" to rank"));
	CHECK_OK(ncclsvc_plan_submit_send(p, v, 1, NCCLSVC_INT32, other, NULL));
	CHECK_OK(ncclsvc_plan_reset(p, WAIT_MS));
	CHECK_EQ(v[1], 9 + other);
	CHECK_OK(ncclsvc_plan_terminate(p, WAIT_MS));
}

/* In this version, plan entries are shorter and lists do not exist. */
static void plan(struct client *me, ncclsvc_session *s, ncclsvc_comm *comm)
{
	const int64_t dim = 4;
	const ncclsvc_tensor t = {NULL, NCCLSVC_INT8, 1, &dim};
	const int peer = 1 - me->rank;
	ncclsvc_plan *p;
	for (int lists = 1; lists >= 0; lists--) {
		CHECK_OK(ncclsvc_plan_start(comm, &p));
		for (int g = 0; g < 3; g++) {
			CHECK_OK(ncclsvc_plan_group_start(p));
			CHECK_OK(ncclsvc_plan_send(p, 1 + (size_t)g, NCCLSVC_INT32, peer));
			CHECK_OK(ncclsvc_plan_recv(p, NCCLSVC_PLAN_ANY, 0, peer));
			if (lists)
				CHECK_OK(ncclsvc_plan_tensors_send(p, NCCLSVC_SHAPES_STATIC, 1, &t,
								   1, peer));
			CHECK_OK(ncclsvc_plan_group_end(p));
		}
		CHECK_RESULT(ncclsvc_plan_end(p, WAIT_MS),
			     lists ? NCCLSVC_UNSUPPORTED : NCCLSVC_OK);
		if (lists)
			CHECK_OK(ncclsvc_plan_terminate(p, WAIT_MS));
	}
	int32_t *v = shared(s, 4096);
	CHECK_OK(ncclsvc_plan_launch(p));
	for (int g = 0; g < 3; g++) {
		v[g] = me->rank + g;
		CHECK_OK(ncclsvc_plan_submit_send(p, v, 1 + (size_t)g, NCCLSVC_INT32, peer, NULL));
		CHECK_OK(ncclsvc_plan_submit_recv(p, v + 8, 1 + (size_t)g, NCCLSVC_INT32, peer,
						  NULL));
	}
	CHECK_OK(ncclsvc_plan_reset(p, WAIT_MS));
	CHECK_EQ(v[8], peer);
	CHECK_EQ(v[10], peer + 2);
	CHECK_OK(ncclsvc_plan_terminate(p, WAIT_MS));
}

static void work(struct client *me)
{
	ncclsvc_session *s = NULL;
	const ncclsvc_options o = {
		.size = sizeof(o), .socket = me->daemon->socket, .no_ring = me->arg != NULL};
	CHECK_OK(ncclsvc_open(&o, &s));
	ncclsvc_comm *comm = comm_join(me, s), *half;
	int32_t *v = shared(s, 4096);
	ncclsvc_task task;
	check_usable(s, comm);
	CHECK_OK(ncclsvc_comm_split(comm, me->rank, 0, WAIT_MS, &half));
	check_usable(s, half);
	planned(comm, 1 - me->rank, v);
	plan(me, s, comm);
	if (me->rank == 0) {
		say(me, READY);
		CHECK_OK(ncclsvc_recv(v, 1, NCCLSVC_INT32, 1, comm, &task));
		wait_for(s, task, NCCLSVC_PEER_GONE);
		/* The event comes through the socket, later than the ring's status. */
		while (ncclsvc_comm_error(comm) != NCCLSVC_PEER_GONE)
			sleep_ms(1);
		CHECK_RESULT(ncclsvc_barrier(comm, NULL), NCCLSVC_STALE_EPOCH);
		CHECK(strstr(ncclsvc_last_error(), "rank 1"));
		CHECK_OK(ncclsvc_comm_rejoin(comm, WAIT_MS));
		check_usable(s, comm);
	} else if (me->nranks == 2) {
		CHECK_EQ(hear(me), GO); /* the test then kills this client */
	}
	ncclsvc_close(s);
}

static void restarted(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	check_usable(s, comm_join(me, s));
	ncclsvc_close(s);
}

static void the_library_works_with_the_lowest(void **state)
{
	struct daemon d;
	struct relay relay;
	struct client clients[2];
	(void)state;
	daemon_start(&d, "--log-level", "debug", NULL);
	relay_start(&relay, &d, SVC_PROTOCOL_MIN, SVC_PROTOCOL_MIN);
	for (int no_ring = 0; no_ring < 2; no_ring++) {
		clients_start(clients, 2, &relay.behind, work, no_ring ? &d : NULL);
		CHECK_EQ(hear(&clients[0]), READY);
		client_kill(&clients[1]);
		client_start(&clients[1], restarted);
		clients_end(clients, 2);
	}
	CHECK(daemon_logged(&d, "protocol version 1"));
	relay_stop(&relay);
	daemon_stop(&d);
}

/* ---- A communicator is left while a reattach waits for its other members ---- */

static void *reattaches(void *session)
{
	CHECK_OK(ncclsvc_reattach(session, WAIT_MS));
	return NULL;
}

static void leave_during_reattach(struct client *me, ncclsvc_session *s, ncclsvc_comm *comm)
{
	pthread_t thread;
	ncclsvc_session *watch = session_open(me->daemon);
	CHECK_EQ(pthread_create(&thread, NULL, reattaches, s), 0);
	members_reach(watch, NCCLSVC_MEMBER_JOINING, 1);
	CHECK_OK(ncclsvc_comm_leave(comm));
	CHECK_EQ(pthread_join(thread, NULL), 0);
	ncclsvc_close(watch);
}

/* Waits until the daemon's late answer has arrived and the library has given the rank back. */
static void give_back(struct client *me, ncclsvc_session *s)
{
	ncclsvc_session *watch = session_open(me->daemon);
	bool taken = true;
	while (taken) {
		ncclsvc_member_info *list;
		size_t n;
		CHECK_OK(ncclsvc_dispatch(s, 10));
		CHECK_OK(ncclsvc_list_members(watch, &list, &n));
		taken = false;
		for (size_t i = 0; i < n; i++)
			taken |= list[i].rank == 0 && list[i].state == NCCLSVC_MEMBER_JOINED;
		ncclsvc_list_free(list);
	}
	ncclsvc_close(watch);
}

/* A version 1 daemon holds the rank until the other members join; the library then gives the
 * rank back. */
static void leaves(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_task task;
	say(me, READY);
	CHECK_RESULT(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_DAEMON_LOST);
	CHECK_EQ(hear(me), GO);
	if (me->rank == 0) {
		leave_during_reattach(me, s, comm);
		say(me, DONE);
		CHECK_EQ(hear(me), GO);
		give_back(me, s);
		comm = comm_join(me, s);
	} else {
		CHECK_EQ(hear(me), DONE);
		CHECK_OK(ncclsvc_reattach(s, WAIT_MS));
		CHECK_OK(ncclsvc_barrier(comm, &task));
		say(me, READY);
		wait_for(s, task, NCCLSVC_PEER_GONE);
		CHECK_OK(ncclsvc_comm_rejoin(comm, WAIT_MS));
	}
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void the_lowest_takes_no_join_back(void **state)
{
	struct daemon d;
	struct relay relay;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	relay_start(&relay, &d, 1, 1);
	clients_start(clients, 2, &relay.behind, leaves, NULL);
	hear_all(clients, 2, READY);
	daemon_kill(&d);
	daemon_restart(&d, NULL);
	say_all(clients, 2, GO);
	CHECK_EQ(hear(&clients[0]), DONE);
	say(&clients[1], DONE);
	CHECK_EQ(hear(&clients[1]), READY);
	say(&clients[0], GO);
	clients_end(clients, 2);
	relay_stop(&relay);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(tasks_run_between_all_versions),
		TEST(the_end_of_an_epoch_is_longer_in_version_2),
		TEST(version_1_has_no_join_cancel),
		TEST(a_join_that_waits_is_taken_back),
		TEST(a_member_aborts),
		TEST(members_say_more_about_their_words),
		TEST(libraries_say_what_they_refuse),
		TEST(planned_tasks_have_labels_in_version_2),
		TEST(hostile_names_of_jobs_are_refused),
		TEST(communicators_are_called_as_their_users_say),
		TEST(the_library_says_job_and_label),
		TEST(a_future_client_is_told_both_ranges),
		TEST(the_library_works_with_the_lowest),
		TEST(the_lowest_takes_no_join_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
