/* SPDX-License-Identifier: Apache-2.0
 * Limits and quotas: a request beyond one fails with LIMIT and changes nothing. A thousand sessions
 * leave no memory behind. */
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"
#include "harness_raw.h"

static void a_user_has_a_quota_of_memory(void **state)
{
	struct daemon d;
	struct raw r, other;
	ncclsvc_daemon_info info;
	(void)state;
	daemon_start(&d, "--user-region-bytes", "1M", NULL);
	raw_open(&r, &d);
	raw_open(&other, &d);
	struct raw_region half = raw_region(&r, 512 << 10);
	int fd = svc_memfd_create("big", 768 << 10, true);
	CHECK_EQ(posix_fallocate(fd, 0, 768 << 10), 0);
	struct svc_region_add add = {.bytes = 768 << 10};
	/* The user's sessions share it. */
	raw_refused(&r, SVC_REGION_ADD, &add, sizeof(add), &fd, 1, NCCLSVC_LIMIT,
		    "user_region_bytes");
	raw_refused(&other, SVC_REGION_ADD, &add, sizeof(add), &fd, 1, NCCLSVC_LIMIT,
		    "user_region_bytes");
	close(fd);
	ncclsvc_session *s = session_open(&d);
	CHECK_OK(ncclsvc_daemon(s, &info));
	CHECK_EQ(info.region_bytes, 512 << 10);
	CHECK_EQ(info.regions, 1);
	void *p = NULL;
	CHECK_RESULT(ncclsvc_mem_alloc(s, 768 << 10, &p), NCCLSVC_LIMIT);
	CHECK(!p);
	/* Registration succeeds up to the last byte, and again after a release. */
	struct raw_region rest = raw_region(&other, 512 << 10);
	CHECK_RESULT(ncclsvc_mem_alloc(s, 1, &p), NCCLSVC_LIMIT);
	raw_close(&other);
	raw_region_close(&rest);
	/* The daemon frees a session's memory a moment after the session ends. */
	do {
		sleep_ms(2);
		CHECK_OK(ncclsvc_daemon(s, &info));
	} while (info.sessions > 2 || info.region_bytes > 512 << 10);
	CHECK_OK(ncclsvc_mem_alloc(s, 256 << 10, &p));
	CHECK_OK(ncclsvc_mem_free(s, p));
	ncclsvc_close(s);
	raw_region_close(&half);
	raw_close(&r);
	daemon_stop(&d);
}

/* Returns the far end of a connection with unsent data. Closing *fd blocks until the far end has
 * been read. */
static int slow_to_close(int *fd)
{
	static const char data[1 << 16];
	const struct linger linger = {1, 600};
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(address);
	const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	*fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK_EQ(bind(server, (struct sockaddr *)&address, size), 0);
	CHECK_EQ(listen(server, 1), 0);
	CHECK_EQ(getsockname(server, (struct sockaddr *)&address, &size), 0);
	CHECK_EQ(connect(*fd, (struct sockaddr *)&address, size), 0);
	const int other = accept(server, NULL, NULL);
	CHECK(other >= 0);
	CHECK_EQ(setsockopt(*fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
	while (send(*fd, data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	close(server);
	return other;
}

/* A session's dropped memory counts until it is unmapped, here behind a descriptor that is slow
 * to close. A registration that needs this memory waits; other sessions do not. */
static void a_registration_waits_for_what_is_let_go(void **state)
{
	static char data[1 << 16];
	struct daemon d;
	struct raw r, other;
	struct raw_reply reply;
	struct svc_daemon_info_request info = {0};
	struct svc_region_add add = {.bytes = 768 << 10, .kind = SVC_REGION_MEMFD};
	int fd;
	(void)state;
	daemon_start(&d, "--user-region-bytes", "1M", NULL);
	raw_open(&r, &d);
	raw_open(&other, &d);
	struct raw_region region = raw_region(&r, add.bytes);
	struct svc_region_del del = {.region = region.id};
	const int far_end = slow_to_close(&fd);
	kill(d.pid, SIGSTOP); /* so that the daemon holds the last reference to fd */
	const uint32_t passed = raw_send(&r, SVC_DAEMON_INFO, &info, sizeof(info), &fd, 1);
	close(fd);
	kill(d.pid, SIGCONT);
	raw_reply_to(&r, passed, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_PROTOCOL);
	raw_call(&r, SVC_REGION_DEL, &del, sizeof(del), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	const uint32_t request_id = raw_send(&r, SVC_REGION_ADD, &add, sizeof(add), &region.fd, 1);
	raw_call(&other, SVC_DAEMON_INFO, &info, sizeof(info), NULL, 0, &reply);
	CHECK_EQ(reply.info.info.regions, 0);
	while (read(far_end, data, sizeof(data)) > 0)
		;
	close(far_end);
	raw_reply_to(&r, request_id, &reply);
	CHECK_EQ(reply.header.result, 0);
	/* A registration does not wait if no memory is being released. */
	raw_refused(&other, SVC_REGION_ADD, &add, sizeof(add), &region.fd, 1, NCCLSVC_LIMIT,
		    "user_region_bytes");
	raw_region_close(&region);
	raw_close(&r);
	raw_close(&other);
	daemon_stop(&d);
}

static void sessions_are_limited(void **state)
{
	struct daemon d;
	ncclsvc_session *s[3], *more = NULL;
	(void)state;
	daemon_start(&d, "--sessions-max", "3", NULL);
	ncclsvc_options options = {
		.size = sizeof(options), .socket = d.socket, .timeout_ms = WAIT_MS};
	for (int i = 0; i < 3; i++)
		s[i] = session_open(&d);
	for (int i = 0; i < 20; i++)
		CHECK_RESULT(ncclsvc_open(&options, &more), NCCLSVC_LIMIT);
	CHECK(!more);
	ncclsvc_close(s[1]);
	ncclsvc_result r = NCCLSVC_LIMIT;
	for (int i = 0; i < 1000 && r == NCCLSVC_LIMIT; i++, sleep_ms(2))
		r = ncclsvc_open(&options, &s[1]);
	CHECK_OK(r);
	for (int i = 0; i < 3; i++)
		ncclsvc_close(s[i]);
	daemon_stop(&d);
}

static void a_users_sessions_are_limited(void **state)
{
	struct daemon d;
	ncclsvc_session *s[2], *more = NULL;
	(void)state;
	daemon_start(&d, "--user-sessions-max", "2", NULL);
	ncclsvc_options options = {
		.size = sizeof(options), .socket = d.socket, .timeout_ms = WAIT_MS};
	s[0] = session_open(&d);
	s[1] = session_open(&d);
	CHECK_RESULT(ncclsvc_open(&options, &more), NCCLSVC_LIMIT);
	CHECK(strstr(ncclsvc_last_error(), "user_sessions_max"));
	ncclsvc_close(s[0]);
	ncclsvc_close(s[1]);
	/* Silent connections count too, although the daemon may accept them after later ones. */
	struct raw silent[2];
	for (int i = 0; i < 2; i++)
		raw_connect(&silent[i], &d);
	ncclsvc_result r;
	while ((r = ncclsvc_open(&options, &more)) == NCCLSVC_OK)
		ncclsvc_close(more);
	CHECK_RESULT(r, NCCLSVC_LIMIT);
	for (int i = 0; i < 2; i++)
		raw_close(&silent[i]);
	daemon_stop(&d);
}

static void communicators_are_limited(void **state)
{
	struct daemon d;
	ncclsvc_unique_id id;
	ncclsvc_comm *comms[8], *more = NULL;
	ncclsvc_daemon_info before, after;
	int n = 0;
	ncclsvc_result r;
	(void)state;
	/* The world counts as one of them. The harness's idle communicator makes room. */
	daemon_start(&d, "--comms-max", "5", NULL);
	ncclsvc_session *s = session_open(&d);
	do {
		CHECK_OK(ncclsvc_unique_id_create(&id));
		r = ncclsvc_comm_join(s, &id, 1, 0, WAIT_MS, &comms[n]);
	} while (r == NCCLSVC_OK && ++n < 8);
	CHECK_RESULT(r, NCCLSVC_LIMIT);
	CHECK_EQ(n, 4);
	CHECK_OK(ncclsvc_daemon(s, &before));
	CHECK_RESULT(ncclsvc_comm_join(s, &id, 1, 0, WAIT_MS, &more), NCCLSVC_LIMIT);
	CHECK_RESULT(ncclsvc_comm_split(comms[0], 0, 0, WAIT_MS, &more), NCCLSVC_LIMIT);
	CHECK(!more);
	CHECK_OK(ncclsvc_daemon(s, &after));
	CHECK_EQ(before.comms, after.comms);
	for (int i = 0; i < n; i++)
		check_usable(s, comms[i]);
	CHECK_OK(ncclsvc_comm_leave(comms[0]));
	for (int i = 0; i < 20; i++) { /* no join waits until idle communicators are forgotten */
		CHECK_OK(ncclsvc_unique_id_create(&id));
		do /* the last communicator's epoch may not be quite over */
			r = ncclsvc_comm_join(s, &id, 1, 0, WAIT_MS, &more);
		while (r == NCCLSVC_LIMIT);
		CHECK_OK(r);
		CHECK_OK(ncclsvc_comm_leave(more));
	}
	ncclsvc_close(s);
	daemon_stop(&d);
}

static void a_sessions_handles_are_limited(void **state)
{
	struct daemon d;
	struct raw r;
	struct raw_reply reply;
	uint32_t n = 0;
	(void)state;
	daemon_start(&d, NULL);
	raw_open(&r, &d);
	for (;; n++) {
		ncclsvc_unique_id id;
		CHECK_OK(ncclsvc_unique_id_create(&id));
		struct svc_join join = raw_join_request(&id, 1, 0);
		raw_call(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, &reply);
		if (reply.header.result)
			break;
		CHECK(n < SVC_SESSION_COMMS);
	}
	CHECK_EQ(reply.header.result, NCCLSVC_LIMIT);
	CHECK(n >= SVC_SESSION_COMMS - 1);
	struct svc_leave leave = {.comm = 1};
	raw_call(&r, SVC_LEAVE, &leave, sizeof(leave), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	raw_join_alone(&r);
	raw_close(&r);
	daemon_stop(&d);
}

static void a_sessions_regions_are_limited(void **state)
{
	struct daemon d;
	struct raw r;
	struct raw_reply reply;
	uint32_t n = 0;
	(void)state;
	time_limit(120);
	daemon_start(&d, NULL);
	raw_open(&r, &d);
	int fd = svc_memfd_create("small", SVC_PAGE, true);
	CHECK_EQ(posix_fallocate(fd, 0, SVC_PAGE), 0);
	struct svc_region_add add = {.bytes = SVC_PAGE};
	for (;; n++) {
		raw_call(&r, SVC_REGION_ADD, &add, sizeof(add), &fd, 1, &reply);
		if (reply.header.result)
			break;
		CHECK(n < SVC_SESSION_REGIONS);
	}
	CHECK_EQ(reply.header.result, NCCLSVC_LIMIT);
	CHECK(n >= SVC_SESSION_REGIONS - 1);
	struct svc_region_del del = {.region = 1};
	raw_call(&r, SVC_REGION_DEL, &del, sizeof(del), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	raw_call(&r, SVC_REGION_ADD, &add, sizeof(add), &fd, 1, &reply);
	CHECK_EQ(reply.header.result, 0);
	close(fd);
	raw_close(&r);
	daemon_stop(&d);
}

static void ring_full(struct client *me)
{
	ncclsvc_session *s;
	ncclsvc_options options = {.size = sizeof(options),
				   .socket = me->daemon->socket,
				   .ring_entries = 16,
				   .timeout_ms = WAIT_MS};
	CHECK_OK(ncclsvc_open(&options, &s));
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_task tasks[16], task = 0;
	if (me->rank == 0) {
		int n = 0;
		ncclsvc_result r;
		do
			r = ncclsvc_barrier(comm, n < 16 ? &tasks[n] : &task);
		while (r == NCCLSVC_OK && ++n <= 16);
		CHECK_RESULT(r, NCCLSVC_AGAIN);
		CHECK_EQ(n, 16);
		say(me, (uint64_t)n);
		for (int i = 0; i < n; i++)
			wait_for(s, tasks[i], NCCLSVC_OK);
	} else {
		uint64_t n = hear(me);
		for (uint64_t i = 0; i < n; i++) {
			CHECK_OK(ncclsvc_barrier(comm, &task));
			wait_for(s, task, NCCLSVC_OK);
		}
	}
	check_usable(s, comm);
	ncclsvc_close(s);
}

static void a_full_ring_says_again(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, ring_full, NULL);
	say(&clients[1], hear(&clients[0]));
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* Joins both sessions to a new communicator; returns a barrier that either may submit. */
static struct svc_record join_two(struct raw *a, struct raw *b)
{
	struct raw_reply reply;
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	struct svc_join join_a = raw_join_request(&id, 2, 0), join_b = raw_join_request(&id, 2, 1);
	uint32_t request_id = raw_send(a, SVC_JOIN, &join_a, sizeof(join_a), NULL, 0);
	raw_call(b, SVC_JOIN, &join_b, sizeof(join_b), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	raw_reply_to(a, request_id, &reply);
	CHECK_EQ(reply.header.result, 0);
	return (struct svc_record){.comm = reply.join.comm,
				   .epoch = reply.join.epoch,
				   .op = NCCLSVC_BARRIER,
				   .peer = -1};
}

static void tasks_by_socket_are_limited(void **state)
{
	struct daemon d;
	struct raw a, b;
	struct raw_reply reply;
	uint32_t request_ids[SVC_SOCKET_TASKS];
	(void)state;
	daemon_start(&d, NULL);
	raw_open(&a, &d);
	raw_open(&b, &d);
	struct svc_record task = join_two(&a, &b);
	for (int i = 0; i < SVC_SOCKET_TASKS; i++)
		request_ids[i] = raw_send(&a, SVC_SUBMIT, &task, sizeof(task), NULL, 0);
	raw_refused(&a, SVC_SUBMIT, &task, sizeof(task), NULL, 0, NCCLSVC_LIMIT, "socket");
	for (int i = 0; i < SVC_SOCKET_TASKS; i++)
		CHECK_EQ(raw_submit_wait(&b, task).result, 0);
	for (int i = 0; i < SVC_SOCKET_TASKS; i++) {
		raw_reply_to(&a, request_ids[i], &reply);
		CHECK_EQ(reply.header.result, 0);
	}
	raw_close(&a);
	raw_close(&b);
	daemon_stop(&d);
}

#define NOBODY 65534

/* Another user takes all resources that the limits leave, and then finds the daemon full. */
static void fills_the_rest(struct client *me)
{
	struct raw a, b;
	CHECK_EQ(setgroups(0, NULL), 0);
	CHECK_EQ(setresgid(NOBODY, NOBODY, NOBODY), 0);
	CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
	raw_open(&a, me->daemon);
	raw_open(&b, me->daemon);
	struct svc_record barrier = join_two(&a, &b);
	for (int i = 0; i < 4; i++)
		raw_send(&a, SVC_SUBMIT, &barrier, sizeof(barrier), NULL, 0);
	raw_refused(&a, SVC_SUBMIT, &barrier, sizeof(barrier), NULL, 0, NCCLSVC_LIMIT,
		    "(tasks_max); user 0 has most of them, 8");
	raw_close(&a);
	raw_close(&b);
}

static void a_users_tasks_are_limited(void **state)
{
	struct daemon d;
	struct client other;
	struct raw a, b;
	char sentence[SVC_TEXT_BYTES];
	(void)state;
	daemon_start(&d, "--access", "any", "--tasks-max", "12", "--user-tasks-max", "8", NULL);
	raw_open(&a, &d);
	raw_open(&b, &d);
	raw_attach(&a, 16);
	struct svc_record barrier = join_two(&a, &b);
	for (int i = 0; i < 8; i++)
		raw_ring_submit(&a, barrier);
	ncclsvc_status st = raw_ring_wait(&a, raw_ring_submit(&a, barrier));
	CHECK_EQ(st.result, NCCLSVC_LIMIT);
	CHECK_EQ(st.field, NCCLSVC_FIELD_USER_TASKS);
	CHECK_EQ(st.value_a, getuid());
	CHECK_EQ(st.value_b, 8);
	CHECK(strstr(ncclsvc_status_sentence(&st, sentence, sizeof(sentence)), "user_tasks_max"));
	/* The limit covers all sessions of the user. */
	raw_refused(&b, SVC_SUBMIT, &barrier, sizeof(barrier), NULL, 0, NCCLSVC_LIMIT,
		    "has 8 tasks pending, the most that one user may have (user_tasks_max)");
	if (getuid() == 0) {
		clients_start(&other, 1, &d, fills_the_rest, NULL);
		clients_end(&other, 1);
	}
	raw_close(&a);
	raw_close(&b);
	daemon_stop(&d);
}

/* A user other than the daemon's holds the world and the parts split from it. */
static void splits_the_world(struct client *me)
{
	struct raw r;
	struct raw_reply world, part;
	CHECK_EQ(setgroups(0, NULL), 0);
	CHECK_EQ(setresgid(NOBODY, NOBODY, NOBODY), 0);
	CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
	raw_open(&r, me->daemon);
	const struct svc_join join = {
		.flags = SVC_JOIN_WORLD, .rank = -1, .device = SVC_DEVICE_HOST};
	raw_call(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, &world);
	CHECK_EQ(world.header.result, NCCLSVC_OK);
	const struct svc_split split = {.comm = world.join.comm};
	raw_call(&r, SVC_SPLIT, &split, sizeof(split), NULL, 0, &part);
	CHECK_EQ(part.header.result, NCCLSVC_OK);
	const struct svc_split again = {.comm = part.join.comm}; /* splits a part */
	raw_call(&r, SVC_SPLIT, &again, sizeof(again), NULL, 0, &part);
	CHECK_EQ(part.header.result, NCCLSVC_OK);
	/* The world counts toward its holder's limit, too. */
	raw_refused(&r, SVC_SPLIT, &split, sizeof(split), NULL, 0, NCCLSVC_LIMIT,
		    "has 3 communicators");
	const struct svc_cancel cancel = {.kind = SVC_CANCEL_COMM, .id = part.join.comm_uid};
	raw_call(&r, SVC_CANCEL, &cancel, sizeof(cancel), NULL, 0, &world);
	CHECK_EQ(world.header.result, NCCLSVC_OK);
	struct svc_join back = {.nranks = 1, .device = SVC_DEVICE_HOST};
	memcpy(back.id, part.join.id, sizeof(back.id));
	raw_close(&r);
	raw_open(&r, me->daemon);
	do {
		raw_call(&r, SVC_JOIN, &back, sizeof(back), NULL, 0, &part);
	} while (part.header.result == NCCLSVC_RANK_TAKEN); /* until the old session has ended */
	CHECK_EQ(part.header.result, NCCLSVC_OK);
	raw_close(&r);
}

static void parts_of_the_world_belong_to_its_user(void **state)
{
	struct daemon d;
	struct client other;
	(void)state;
	if (getuid() != 0)
		skip_because("only root can become another user");
	daemon_start(&d, "--access", "any", "--ranks", "1", "--user-comms-max", "3", NULL);
	clients_start(&other, 1, &d, splits_the_world, NULL);
	clients_end(&other, 1);
	daemon_stop(&d);
}

static void a_ring_over_the_limit_is_refused(void **state)
{
	struct daemon d;
	struct raw r;
	(void)state;
	daemon_start(&d, "--ring-max", "64", NULL);
	raw_open(&r, &d);
	struct svc_attach attach = {.entries = 128};
	raw_refused(&r, SVC_ATTACH, &attach, sizeof(attach), NULL, 0, NCCLSVC_LIMIT, "ring_max");
	static const uint32_t invalid[] = {0, 1, 8, 15, 17, 48, SVC_RING_MAX * 2, UINT32_MAX};
	for (size_t i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++) {
		attach.entries = invalid[i];
		raw_refused(&r, SVC_ATTACH, &attach, sizeof(attach), NULL, 0,
			    NCCLSVC_INVALID_ARGUMENT, "power of two");
	}
	raw_attach(&r, 64);
	raw_close(&r);
	daemon_stop(&d);
}

static void a_users_rings_are_limited(void **state)
{
	enum { FIT = SVC_USER_RING_BYTES / (SVC_RECORDS_AT + 256 * SVC_RING_MAX) };
	struct daemon d;
	static struct raw r[FIT + 1];
	(void)state;
	daemon_start(&d, "--ring-max", "65536", NULL);
	for (int i = 0; i <= FIT; i++)
		raw_open(&r[i], &d);
	for (int i = 0; i < FIT; i++)
		raw_attach(&r[i], SVC_RING_MAX);
	struct svc_attach attach = {.entries = SVC_RING_MAX};
	raw_refused(&r[FIT], SVC_ATTACH, &attach, sizeof(attach), NULL, 0, NCCLSVC_LIMIT, "rings");
	raw_attach(&r[FIT], 1024);
	for (int i = 0; i <= FIT; i++)
		raw_close(&r[i]);
	daemon_stop(&d);
}

/* ---- Short sessions ---- */

static void come_and_go(const struct daemon *d, int times)
{
	for (int i = 0; i < times; i++) {
		ncclsvc_session *s = session_open(d);
		ncclsvc_unique_id id;
		ncclsvc_comm *comm;
		if (i % 10 == 0) {
			CHECK_OK(ncclsvc_unique_id_create(&id));
			CHECK_OK(ncclsvc_comm_join(s, &id, 1, 0, WAIT_MS, &comm));
			check_usable(s, comm);
		}
		ncclsvc_close(s);
	}
}

static void a_thousand_sessions_leave_no_trace(void **state)
{
	struct daemon d;
	(void)state;
	time_limit(240);
	daemon_start(&d, "--comm-idle-seconds", "0", NULL);
	/* The flight recorder retains this many sessions that have joined. */
	come_and_go(&d, 10 * SVC_USER_RECORDINGS);
	daemon_finishes(&d);
	long before = daemon_usage(&d).rss_kib;
	come_and_go(&d, 1000);
	daemon_finishes(&d);
	long after = daemon_usage(&d).rss_kib;
	print_message("resident: %ld KiB after %d sessions, %ld KiB after 1000 more\n", before,
		      10 * SVC_USER_RECORDINGS, after);
	/* Sanitizers keep freed memory in quarantine. */
	if (!sanitized())
		CHECK(after - before < 512);
	daemon_stop(&d);
}

static void a_session_costs_little(void **state)
{
	enum { SESSIONS = 300 };
	struct daemon d;
	static struct raw r[SESSIONS];
	(void)state;
	if (sanitized())
		skip_because("a sanitizer's own memory would be measured");
	daemon_start(&d, NULL);
	for (int i = 0; i < 20; i++) {
		raw_open(&r[i], &d);
		raw_attach(&r[i], 16);
	}
	struct usage before = daemon_usage(&d);
	for (int i = 20; i < SESSIONS; i++) {
		raw_open(&r[i], &d);
		raw_attach(&r[i], 16);
	}
	struct usage after = daemon_usage(&d);
	double each = (double)(after.rss_kib - before.rss_kib) / (SESSIONS - 20);
	double fds = (double)(after.fds - before.fds) / (SESSIONS - 20);
	print_message("a session costs %.1f KiB (its small ring included) and %.1f fds\n", each,
		      fds);
	CHECK(each <= 64);
	for (int i = 0; i < SESSIONS; i++)
		raw_close(&r[i]);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_user_has_a_quota_of_memory),
		TEST(a_registration_waits_for_what_is_let_go),
		TEST(sessions_are_limited),
		TEST(a_users_sessions_are_limited),
		TEST(communicators_are_limited),
		TEST(a_sessions_handles_are_limited),
		TEST(a_sessions_regions_are_limited),
		TEST(a_full_ring_says_again),
		TEST(tasks_by_socket_are_limited),
		TEST(a_users_tasks_are_limited),
		TEST(parts_of_the_world_belong_to_its_user),
		TEST(a_ring_over_the_limit_is_refused),
		TEST(a_users_rings_are_limited),
		TEST(a_thousand_sessions_leave_no_trace),
		TEST(a_session_costs_little),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
