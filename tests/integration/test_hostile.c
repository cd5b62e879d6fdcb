/* SPDX-License-Identifier: Apache-2.0
 * Malicious or broken clients: rings scribbled over, sockets never read, silent crowds, other
 * users. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bystanders.h"
#include "harness_raw.h"

/* ---- The ring ---- */

static void ring_session(struct raw *r, const struct daemon *d, struct svc_record *barrier)
{
	raw_open(r, d);
	raw_attach(r, 16);
	struct svc_join_reply comm = raw_join_alone(r);
	*barrier = (struct svc_record){
		.comm = comm.comm, .epoch = comm.epoch, .op = NCCLSVC_BARRIER, .peer = -1};
	CHECK_EQ(raw_ring_wait(r, raw_ring_submit(r, *barrier)).result, 0);
}

static void ring_bell(struct raw *r)
{
	uint64_t one = 1;
	CHECK_EQ(write(r->doorbell, &one, sizeof(one)), sizeof(one));
}

static void bad_numbers_end_the_session(void **state)
{
	struct daemon d;
	struct bystanders b;
	struct raw r;
	struct svc_record barrier;
	(void)state;
	daemon_start(&d, NULL);
	bystanders_start(&b, &d);
	static const uint64_t numbers[] = {1, 3, 18, UINT64_MAX, UINT64_C(1) << 63};
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		ring_session(&r, &d, &barrier);
		/* Task 2 is due. */
		svc_number_store(&svc_record_slot(r.ring, r.entries, 2)->number, numbers[i]);
		ring_bell(&r);
		raw_ends(&r, NCCLSVC_PROTOCOL);
		CHECK_EQ(atomic_load(&r.ring->ended), NCCLSVC_PROTOCOL);
		raw_close(&r);
	}
	bystanders_end(&b);
	daemon_stop(&d);
}

static void set_blocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	CHECK(flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0);
}

/* Whatever the client does to its descriptors, the scheduler does not wait for them. */
static void a_full_completion_is_readable(void **state)
{
	enum { TASKS = 300 };
	struct daemon d;
	struct bystanders b;
	struct raw r;
	struct svc_record barrier;
	char bytes[TASKS];
	(void)state;
	daemon_start(&d, NULL);
	bystanders_start(&b, &d);
	ring_session(&r, &d, &barrier);
	set_blocking(r.completion);
	CHECK_EQ(send(r.completion, bytes, sizeof(bytes), MSG_NOSIGNAL), -1);
	CHECK_EQ(errno, EPIPE);
	for (int i = 0; i < TASKS; i++) {
		atomic_store(&r.ring->armed, 1);
		CHECK_EQ(raw_ring_wait(&r, raw_ring_submit(&r, barrier)).result, 0);
	}
	struct pollfd p = {.fd = r.completion, .events = POLLIN};
	CHECK_EQ(poll(&p, 1, WAIT_MS), 1);
	ssize_t n = recv(r.completion, bytes, sizeof(bytes), MSG_DONTWAIT);
	CHECK(n > 0 && n < 64); /* how much of the daemon's memory this uses */
	CHECK_EQ(poll(&p, 1, 0), 0);
	atomic_store(&r.ring->armed, 1);
	CHECK_EQ(raw_ring_wait(&r, raw_ring_submit(&r, barrier)).result, 0);
	CHECK_EQ(poll(&p, 1, WAIT_MS), 1);
	raw_close(&r);
	bystanders_end(&b);
	daemon_stop(&d);
}

static void the_doorbell_is_not_read(void **state)
{
	struct daemon d;
	struct bystanders b;
	struct raw r;
	struct svc_record barrier;
	uint64_t count;
	(void)state;
	daemon_start(&d, NULL);
	bystanders_start(&b, &d);
	ring_session(&r, &d, &barrier);
	for (int i = 0; i < 10; i++) {
		ring_bell(&r); /* the previous count does not block the next */
		sleep_ms(5);
		CHECK_EQ(raw_ring_wait(&r, raw_ring_submit(&r, barrier)).result, 0);
		CHECK_EQ(read(r.doorbell, &count, sizeof(count)), sizeof(count));
	}
	raw_close(&r);
	bystanders_end(&b);
	daemon_stop(&d);
}

/* Reuses a slot before its task has ended. */
static void a_busy_slot_ends_the_session(void **state)
{
	struct daemon d;
	struct bystanders b;
	struct raw r;
	struct raw_reply reply;
	struct svc_record barrier;
	ncclsvc_unique_id id;
	(void)state;
	daemon_start(&d, NULL);
	bystanders_start(&b, &d);
	ring_session(&r, &d, &barrier);
	struct raw other;
	raw_open(&other, &d);
	CHECK_OK(ncclsvc_unique_id_create(&id));
	struct svc_join ja = raw_join_request(&id, 2, 0), jb = raw_join_request(&id, 2, 1);
	uint32_t request_id = raw_send(&r, SVC_JOIN, &ja, sizeof(ja), NULL, 0);
	raw_call(&other, SVC_JOIN, &jb, sizeof(jb), NULL, 0, &reply);
	raw_reply_to(&r, request_id, &reply);
	barrier.comm = reply.join.comm;
	barrier.epoch = reply.join.epoch;
	for (int i = 0; i < 17; i++) /* one more than fits, and none can end */
		raw_ring_submit(&r, barrier);
	raw_ends(&r, NCCLSVC_PROTOCOL);
	/* The other member is notified. */
	CHECK(raw_next(&other, &reply));
	CHECK_EQ(reply.header.opcode, SVC_EVENT_COMM);
	CHECK_EQ(reply.event.reason, NCCLSVC_PEER_GONE);
	CHECK_EQ(reply.event.rank, 0);
	CHECK_EQ(reply.event.pid, getpid());
	raw_close(&other);
	raw_close(&r);
	bystanders_end(&b);
	daemon_stop(&d);
}

static void scribble(void *memory, size_t n, unsigned *seed)
{
	unsigned char *p = memory;
	for (size_t i = 0; i < n; i++)
		p[i] = (unsigned char)(rand_r(seed) >> 7);
}

static void a_scribbled_ring_harms_its_owner_alone(void **state)
{
	struct daemon d;
	struct bystanders b;
	struct svc_record barrier;
	(void)state;
	time_limit(120);
	daemon_start(&d, NULL);
	bystanders_start(&b, &d);
	for (unsigned seed = 1; seed <= 40; seed++) {
		unsigned random = seed;
		struct raw r;
		ring_session(&r, &d, &barrier);
		/* While tasks are running, repeatedly. */
		for (int i = 0; i < 8; i++)
			raw_ring_submit(&r, barrier);
		for (int i = 0; i < 5; i++) {
			if (seed % 2)
				scribble(r.ring, r.ring_size, &random);
			else
				/* Plausible numbers on garbage records. */
				for (uint64_t n = r.last + 1; n < r.last + 16; n++) {
					struct svc_record *slot =
						svc_record_slot(r.ring, r.entries, n);
					scribble((char *)slot + 8, sizeof(*slot) - 8, &random);
					slot->comm = barrier.comm;
					slot->epoch = barrier.epoch;
					slot->op = (uint8_t)(1 + random % 11);
					svc_number_store(&slot->number, n);
				}
			ring_bell(&r);
			sleep_ms(1);
		}
		raw_close(&r);
	}
	bystanders_end(&b);
	daemon_stop(&d);
}

/* ---- The socket ---- */

/* Sends requests continuously, and reads nothing. */
static void a_client_that_does_not_read_is_ended_or_waits(void **state)
{
	struct daemon d;
	struct bystanders b;
	struct raw r[4];
	(void)state;
	daemon_start(&d, NULL);
	bystanders_start(&b, &d);
	for (int i = 0; i < 4; i++) {
		struct svc_list list = {.what = SVC_LIST_TASKS};
		struct svc_header header = {.length = sizeof(header) + sizeof(list),
					    .opcode = SVC_LIST,
					    .request_id = 1};
		char message[sizeof(header) + sizeof(list)];
		memcpy(message, &header, sizeof(header));
		memcpy(message + sizeof(header), &list, sizeof(list));
		raw_open(&r[i], &d);
		for (int n = 0; n < 100000; n++) {
			ssize_t sent = send(r[i].sock, message, sizeof(message),
					    MSG_DONTWAIT | MSG_NOSIGNAL);
			if (sent >= 0)
				continue;
			CHECK(errno == EAGAIN || errno == EPIPE || errno == ECONNRESET);
			break;
		}
	}
	/* Unread answers hold only a bounded number of fds. */
	CHECK(daemon_usage(&d).fds < d.base.fds + 4 * 600);
	/* Meanwhile all others are served. */
	ncclsvc_session *s = session_open(&d);
	ncclsvc_daemon_info info;
	for (int i = 0; i < 100; i++)
		CHECK_OK(ncclsvc_daemon(s, &info));
	ncclsvc_close(s);
	for (int i = 0; i < 4; i++)
		raw_close(&r[i]);
	bystanders_end(&b);
	daemon_stop(&d);
}

static void does_not_read_submits(struct daemon *d)
{
	struct raw r;
	raw_open(&r, d);
	struct svc_join_reply comm = raw_join_alone(&r);
	struct svc_record task = {
		.comm = comm.comm, .epoch = comm.epoch, .op = NCCLSVC_BARRIER, .peer = -1};
	struct {
		struct svc_header header;
		struct svc_record task;
	} m = {{.length = sizeof(m), .opcode = SVC_SUBMIT, .request_id = 9}, task};
	for (int n = 0; n < 100000; n++)
		if (send(r.sock, &m, sizeof(m), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
			if (errno != EAGAIN)
				break;
			sleep_ms(1);
			if (n % 100 == 99)
				break;
		}
	raw_close(&r);
}

static void replies_to_tasks_that_nobody_reads(void **state)
{
	struct daemon d;
	struct bystanders b;
	(void)state;
	daemon_start(&d, NULL);
	bystanders_start(&b, &d);
	for (int i = 0; i < 5; i++)
		does_not_read_submits(&d);
	bystanders_end(&b);
	daemon_stop(&d);
}

static void a_silent_crowd_is_sent_away(void **state)
{
	enum { CROWD = 1000 };
	struct daemon d;
	struct bystanders b;
	static struct raw r[CROWD];
	struct rlimit limit;
	(void)state;
	time_limit(120);
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	if (limit.rlim_max < CROWD + 100)
		skip_because("the hard limit of open files is %llu",
			     (unsigned long long)limit.rlim_max);
	struct rlimit raised = {limit.rlim_max, limit.rlim_max};
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &raised), 0);
	daemon_start(&d, "--hello-seconds", "2", NULL);
	bystanders_start(&b, &d);
	uint64_t start = now_ns();
	for (int i = 0; i < CROWD; i++)
		raw_connect(&r[i], &d);
	/* A client that does send something is served. */
	ncclsvc_session *s = session_open(&d);
	ncclsvc_daemon_info info;
	CHECK_OK(ncclsvc_daemon(s, &info));
	for (int i = 0; i < CROWD; i++) {
		raw_ends(&r[i], NCCLSVC_TIMEOUT);
		raw_close(&r[i]);
	}
	uint64_t took = now_ns() - start;
	CHECK(took > UINT64_C(1500000000) && took < UINT64_C(15000000000));
	CHECK_OK(ncclsvc_daemon(s, &info));
	ncclsvc_close(s);
	bystanders_end(&b);
	daemon_stop(&d);
	setrlimit(RLIMIT_NOFILE, &limit);
}

/* Out of file descriptors, the daemon refuses connections, and does not spin or die. */
static void a_daemon_out_of_fds_goes_on(void **state)
{
	enum { CROWD = 100 };
	struct daemon d;
	struct raw r[CROWD];
	struct rlimit limit, low;
	(void)state;
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = (struct rlimit){64, 64};
	daemon_start(&d, NULL);
	CHECK_EQ(prlimit(d.pid, RLIMIT_NOFILE, &low, NULL), 0);
	int open = 0;
	for (; open < CROWD; open++) {
		struct svc_hello hello = {.version_min = 1, .version_max = 1};
		struct raw_reply reply;
		raw_connect(&r[open], &d);
		struct {
			struct svc_header h;
			struct svc_hello b;
		} m = {{.length = sizeof(m), .opcode = SVC_HELLO, .request_id = 1}, hello};
		raw_send_bytes(&r[open], &m, sizeof(m), NULL, 0);
		CHECK(raw_next(&r[open], &reply));
		if (reply.header.opcode == SVC_EVENT_BYE) {
			CHECK_EQ(reply.bye.reason, NCCLSVC_LIMIT);
			break;
		}
		CHECK_EQ(reply.header.result, 0);
	}
	CHECK(open > 10 && open < CROWD);
	/* Rings need fds: refused, not fatal. Lists do not. */
	struct svc_attach attach = {.entries = 16};
	struct svc_list list = {.what = SVC_LIST_SESSIONS};
	struct raw_reply reply;
	raw_call(&r[0], SVC_ATTACH, &attach, sizeof(attach), NULL, 0, &reply);
	CHECK(reply.header.result < 0);
	raw_call(&r[0], SVC_LIST, &list, sizeof(list), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK_EQ(reply.list.count, (uint32_t)open);
	for (int i = 0; i <= open; i++)
		raw_close(&r[i]);
	daemon_finishes(&d);
	raw_open(&r[0], &d);
	raw_attach(&r[0], 16);
	raw_close(&r[0]);
	daemon_stop(&d);
}

/* ---- Other users ---- */

#define NOBODY 65534

static void become_nobody(void)
{
	CHECK_EQ(setgroups(0, NULL), 0);
	CHECK_EQ(setresgid(NOBODY, NOBODY, NOBODY), 0);
	CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
}

static void is_turned_away(struct client *me)
{
	struct raw r;
	become_nobody();
	/* The socket's mode denies access; if that was changed, the daemon does. */
	CHECK(!raw_try_connect(&r, me->daemon->socket));
	CHECK_EQ(errno, EACCES);
	say(me, 1);
	CHECK_EQ(hear(me), 2);
	raw_connect(&r, me->daemon);
	struct svc_hello hello = {.version_min = 1, .version_max = 1, .name = "nobody"};
	raw_refused(&r, SVC_HELLO, &hello, sizeof(hello), NULL, 0, NCCLSVC_PERMISSION, "65534");
	raw_ends(&r, NCCLSVC_PERMISSION);
	raw_close(&r);
}

static void another_user_is_refused_by_policy(void **state)
{
	struct daemon d;
	struct client client;
	(void)state;
	if (getuid() != 0)
		skip_because("only root can become another user");
	daemon_start(&d, "--access", "owner", NULL);
	clients_start(&client, 1, &d, is_turned_away, NULL);
	CHECK_EQ(hear(&client), 1);
	CHECK_EQ(chmod(d.socket, 0666), 0);
	say(&client, 2);
	clients_end(&client, 1);
	daemon_stop(&d);
}

/* Objects that other users own. */
struct owned {
	uint64_t task, comm;
	uint32_t session, handle, epoch, region;
	ncclsvc_unique_id id;
};

/* Numbers of regions and communicators are a session's own: another session's mean nothing. */
static void guesses_numbers(struct raw *r, const struct owned *o)
{
	const uint32_t handle = o->handle, region = o->region;
	const struct svc_leave leave = {.comm = handle};
	raw_refused(r, SVC_LEAVE, &leave, sizeof(leave), NULL, 0, NCCLSVC_NOT_FOUND, "");
	const struct svc_abort end = {.comm = handle, .epoch = o->epoch};
	raw_refused(r, SVC_ABORT, &end, sizeof(end), NULL, 0, NCCLSVC_NOT_FOUND, "");
	const struct svc_split split = {.comm = handle};
	raw_refused(r, SVC_SPLIT, &split, sizeof(split), NULL, 0, NCCLSVC_NOT_FOUND, "");
	const struct svc_staging staging = {.comm = handle};
	raw_refused(r, SVC_STAGING, &staging, sizeof(staging), NULL, 0, NCCLSVC_NOT_FOUND, "");
	const struct svc_share share = {.comm = handle, .region = region, .number = 1};
	raw_refused(r, SVC_SHARE, &share, sizeof(share), NULL, 0, NCCLSVC_NOT_FOUND, "");
	const struct svc_shared shared = {.comm = handle};
	raw_refused(r, SVC_SHARED, &shared, sizeof(shared), NULL, 0, NCCLSVC_NOT_FOUND, "");
	const struct svc_region_del del = {.region = region};
	raw_refused(r, SVC_REGION_DEL, &del, sizeof(del), NULL, 0, NCCLSVC_NOT_FOUND, "");
	struct svc_record record = {.comm = handle,
				    .epoch = o->epoch,
				    .op = NCCLSVC_ALL_REDUCE,
				    .type = NCCLSVC_INT8,
				    .count = 64,
				    .src_region = region,
				    .dst_region = region,
				    .peer = -1};
	raw_refused(r, SVC_SUBMIT, &record, sizeof(record), NULL, 0, NCCLSVC_NOT_FOUND, "");
	struct svc_join join = raw_join_request(&o->id, 1, 0);
	join.id[0] ^= 1;
	join.staging = region;
	raw_refused(r, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_INVALID_ARGUMENT, "staging");
	const struct svc_join_reply own = raw_join_alone(r);
	record.comm = own.comm;
	record.epoch = own.epoch;
	for (record.src_region = 1; record.src_region <= region; record.src_region++)
		raw_refused(r, SVC_SUBMIT, &record, sizeof(record), NULL, 0,
			    NCCLSVC_INVALID_ARGUMENT, "region");
}

static void tries_to_meddle(struct client *me)
{
	const struct owned *o = me->arg;
	struct raw r;
	become_nobody();
	raw_open(&r, me->daemon);
	struct svc_cancel cancel = {.kind = SVC_CANCEL_TASK, .id = o->task};
	raw_refused(&r, SVC_CANCEL, &cancel, sizeof(cancel), NULL, 0, NCCLSVC_PERMISSION, "");
	cancel = (struct svc_cancel){.kind = SVC_CANCEL_COMM, .id = o->comm};
	raw_refused(&r, SVC_CANCEL, &cancel, sizeof(cancel), NULL, 0, NCCLSVC_PERMISSION, "");
	cancel = (struct svc_cancel){.kind = SVC_CANCEL_SESSION, .id = o->session};
	raw_refused(&r, SVC_CANCEL, &cancel, sizeof(cancel), NULL, 0, NCCLSVC_PERMISSION, "");
	struct svc_join join = raw_join_request(&o->id, 2, 1);
	raw_refused(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_PERMISSION, "");
	/* Its members have not admitted others, so asking for it is useless. */
	join.flags = SVC_JOIN_ADMIT_ANY;
	raw_refused(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_PERMISSION,
		    "NCCLSVC_ADMIT=any");
	join.flags = 0;
	/* A job's id can be guessed, but no other user can take it. */
	const struct svc_job job = {.tag = SVC_JOB_TAG, .user = getuid() + 1};
	memcpy(join.id + SVC_JOB_AT, &job, sizeof(job));
	raw_refused(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_PERMISSION, "job of user");
	guesses_numbers(&r, o);
	raw_close(&r);
	/* It can inspect, but sees neither ids, which are keys, nor other users' names. */
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm_info *list;
	size_t n;
	bool found = false;
	CHECK_OK(ncclsvc_list_comms(s, &list, &n));
	for (size_t i = 0; i < n; i++) {
		static const uint8_t zeros[NCCLSVC_ID_BYTES];
		if (list[i].comm != o->comm)
			continue;
		found = true;
		CHECK(memcmp(list[i].id, zeros, sizeof(zeros)) == 0);
		CHECK(!strcmp(list[i].label, "(user 0)"));
	}
	CHECK(found);
	ncclsvc_list_free(list);
	ncclsvc_close(s);
}

static void another_user_may_not_meddle(void **state)
{
	struct daemon d;
	struct client client;
	struct raw r, peer;
	struct raw_reply reply;
	struct owned o;
	(void)state;
	if (getuid() != 0)
		skip_because("only root can become another user");
	daemon_start(&d, "--access", "any", NULL);
	raw_open(&r, &d);
	raw_open(&peer, &d);
	CHECK_OK(ncclsvc_unique_id_create(&o.id));
	struct svc_join ja = raw_join_request(&o.id, 2, 0), jb = raw_join_request(&o.id, 2, 1);
	uint32_t request_id = raw_send(&r, SVC_JOIN, &ja, sizeof(ja), NULL, 0);
	raw_call(&peer, SVC_JOIN, &jb, sizeof(jb), NULL, 0, &reply);
	raw_reply_to(&r, request_id, &reply);
	CHECK_EQ(reply.header.result, 0);
	o.comm = reply.join.comm_uid;
	o.session = r.session;
	o.handle = reply.join.comm;
	o.epoch = reply.join.epoch;
	struct raw_region region = raw_region(&r, 4096);
	o.region = region.id;
	struct svc_record barrier = {.comm = reply.join.comm,
				     .epoch = reply.join.epoch,
				     .op = NCCLSVC_BARRIER,
				     .peer = -1};
	request_id = raw_send(&r, SVC_SUBMIT, &barrier, sizeof(barrier), NULL, 0);
	ncclsvc_session *s = session_open(&d);
	o.task = tasks_reach(s, NCCLSVC_WAITING_PEERS, 1).task;
	clients_start(&client, 1, &d, tries_to_meddle, &o);
	clients_end(&client, 1);
	/* Nothing was cancelled. */
	CHECK_EQ(raw_submit_wait(&peer, barrier).result, 0);
	raw_reply_to(&r, request_id, &reply);
	CHECK_EQ(reply.header.result, 0);
	ncclsvc_close(s);
	raw_region_close(&region);
	raw_close(&r);
	raw_close(&peer);
	daemon_stop(&d);
}

/* Many more than the scheduler handles at a time: each gets its answer. */
static void a_flood_of_cancellations(void **state)
{
	struct daemon d;
	struct bystanders b;
	struct raw r;
	struct raw_reply reply;
	const struct svc_cancel none = {.kind = SVC_CANCEL_TASK, .id = UINT64_MAX};
	int busy = 0;
	(void)state;
	daemon_start(&d, NULL);
	bystanders_start(&b, &d);
	raw_open(&r, &d);
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 100; i++)
			raw_send(&r, SVC_CANCEL, &none, sizeof(none), NULL, 0);
		for (int i = 0; i < 100; i++) {
			CHECK(raw_next(&r, &reply));
			busy += reply.header.result == NCCLSVC_BUSY;
			CHECK(reply.header.result == NCCLSVC_BUSY ||
			      reply.header.result == NCCLSVC_NOT_FOUND);
		}
	}
	CHECK(busy < 2000);
	raw_call(&r, SVC_CANCEL, &none, sizeof(none), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_NOT_FOUND);
	raw_close(&r);
	bystanders_end(&b);
	daemon_stop(&d);
}

/* The daemon makes the name printable on arrival, before the log, errors or lists show it. */
static void a_name_forges_nothing(void **state)
{
	struct daemon d;
	struct raw r;
	struct raw_reply reply;
	struct svc_hello hello = {.version_min = SVC_PROTOCOL_MIN,
				  .version_max = SVC_PROTOCOL_MAX,
				  .name = "a\n\033[2J\xe2\x80\xae\xc3\xa9"};
	ncclsvc_session *s;
	ncclsvc_session_info *list;
	size_t n, found = 0;
	(void)state;
	daemon_start(&d, NULL);
	raw_connect(&r, &d);
	raw_call(&r, SVC_HELLO, &hello, sizeof(hello), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_OK);
	s = session_open(&d);
	CHECK_OK(ncclsvc_list_sessions(s, &list, &n));
	for (size_t i = 0; i < n; i++)
		found += !strcmp(list[i].name, "a ?[2J???\xc3\xa9");
	CHECK_EQ(found, 1);
	ncclsvc_list_free(list);
	ncclsvc_close(s);
	raw_close(&r);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(bad_numbers_end_the_session),
		TEST(a_full_completion_is_readable),
		TEST(the_doorbell_is_not_read),
		TEST(a_busy_slot_ends_the_session),
		TEST(a_scribbled_ring_harms_its_owner_alone),
		TEST(a_client_that_does_not_read_is_ended_or_waits),
		TEST(replies_to_tasks_that_nobody_reads),
		TEST(a_silent_crowd_is_sent_away),
		TEST(a_flood_of_cancellations),
		TEST(a_daemon_out_of_fds_goes_on),
		TEST(a_name_forges_nothing),
		TEST(another_user_is_refused_by_policy),
		TEST(another_user_may_not_meddle),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
