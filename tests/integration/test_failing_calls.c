/* SPDX-License-Identifier: Apache-2.0
 * A client makes all kinds of requests while the daemon's calls for memory, mappings, descriptors
 * or threads fail (failing_calls.c): from the first call on, then from the second, and so on. Each
 * request must get an answer, or its session must end. Then the next client must be served, and
 * nothing of the first may be left.
 *
 * $FAILING_EVERY=n tries one in n calls (default 7); scripts/failing-calls tries all. */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../attack/attack.h"
#include "../attack/conn.h"
#include "failing_calls.h"
#include "harness.h"

#define REGION_BYTES 65536
#define ANSWER_MS    5000
#define JOIN_NS	     UINT64_C(300000000)
#define NO_ANSWER    (-1001) /* no result, like CONN_LOST */

static struct failing_calls *calls;
static int64_t trying; /* the first call that fails */
static char path[] = "/tmp/ncclsvc-failing-XXXXXX";

uint64_t clock_ns(void)
{
	return now_ns();
}

/* ---- Requests that may fail ---- */

/* Closes the session, if the daemon has not. That also answers the other rank's request. */
static int lose(struct conn *c, int result)
{
	conn_close(c);
	return result;
}

static int answer(struct conn *c, struct answer *a)
{
	for (const uint64_t end = now_ns() + ANSWER_MS * 1000000ull; now_ns() < end;) {
		const int got = conn_next(c, a, 100);
		if (got == CONN_LOST)
			return lose(c, CONN_LOST);
		if (got != 1)
			continue;
		if (a->header.request_id == c->request_id && a->header.opcode & SVC_REPLY)
			return a->header.result;
		svc_close_fds(a->fds, a->nfds);
	}
	return NO_ANSWER;
}

static int call(struct conn *c, unsigned opcode, const void *body, size_t length, int fd,
		struct answer *a)
{
	memset(a, 0, sizeof(*a));
	if (c->sock < 0)
		return CONN_LOST;
	if (conn_send(c, opcode, body, length, fd, 0))
		return lose(c, CONN_LOST);
	const int result = answer(c, a);
	CHECK(result != NO_ANSWER);
	if (opcode != SVC_ATTACH)
		svc_close_fds(a->fds, a->nfds);
	return result;
}

/* Sends the request for two ranks, which wait for each other: if one is refused, its session is
 * closed, to end the other's wait. */
static bool call_both(struct conn c[2], unsigned opcode, const void *body[2], size_t length,
		      const int fds[2], struct answer a[2])
{
	int results[2] = {0, 0};
	if (c[0].sock < 0 || c[1].sock < 0)
		return false;
	for (int i = 0; i < 2; i++)
		if (conn_send(&c[i], opcode, body[i], length, fds[i], 0)) {
			conn_close(&c[i]);
			conn_close(&c[!i]);
			return false;
		}
	bool waits[2] = {c[0].sock >= 0, c[1].sock >= 0};
	for (const uint64_t end = now_ns() + ANSWER_MS * 1000000ull; waits[0] || waits[1];) {
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__,
				     "request %u has no answer (ranks 0: %d, 1: %d), "
				     "the other's result is %d; the call that failed is %lld",
				     opcode, waits[0], waits[1], waits[0] ? results[1] : results[0],
				     (long long)trying);
		for (int i = 0; i < 2; i++) {
			if (!waits[i])
				continue;
			const int got = conn_next(&c[i], &a[i], 2);
			const bool due = got == 1 && a[i].header.opcode & SVC_REPLY &&
					 a[i].header.request_id == c[i].request_id;
			if (got == 1)
				svc_close_fds(a[i].fds, a[i].nfds);
			if (!due && got != CONN_LOST)
				continue;
			waits[i] = false;
			results[i] = due ? a[i].header.result : CONN_LOST;
			if (results[i] && waits[!i])
				conn_close(&c[i]);
		}
	}
	return c[0].sock >= 0 && c[1].sock >= 0 && !results[0] && !results[1];
}

/* ---- The client ---- */

static bool join(struct conn c[2], struct rank ranks[2])
{
	/* The timeout ends a rank's wait for one that was refused, which might try again. */
	struct svc_join r[2] = {{.nranks = 2, .device = SVC_DEVICE_HOST, .timeout_ns = JOIN_NS}};
	r[1] = r[0];
	r[1].rank = 1;
	const void *bodies[2] = {&r[0], &r[1]};
	struct answer a[2];
	random_id(r[0].id);
	memcpy(r[1].id, r[0].id, sizeof(r[1].id));
	if (!call_both(c, SVC_JOIN, bodies, sizeof(r[0]), (const int[2]){-1, -1}, a))
		return false;
	for (int i = 0; i < 2; i++)
		ranks[i] = (struct rank){&c[i], a[i].body.join.comm, a[i].body.join.epoch,
					 a[i].body.join.comm_uid};
	return true;
}

/* SPLIT into one part, which both leave. */
static bool split(struct conn c[2], const struct rank ranks[2])
{
	struct svc_split r[2] = {{.comm = ranks[0].comm}, {.comm = ranks[1].comm, .key = 1}};
	const void *bodies[2] = {&r[0], &r[1]};
	struct answer a[2], left;
	if (!call_both(c, SVC_SPLIT, bodies, sizeof(r[0]), (const int[2]){-1, -1}, a))
		return false;
	bool good = true;
	for (int i = 0; i < 2; i++)
		good &= !call(&c[i], SVC_LEAVE, &(struct svc_leave){.comm = a[i].body.join.comm},
			      sizeof(struct svc_leave), -1, &left);
	return good;
}

static bool plan(struct conn c[2], const struct rank ranks[2])
{
	struct svc_plan_commit r[2];
	const void *bodies[2] = {&r[0], &r[1]};
	struct answer a[2], dropped;
	int fds[2];
	for (int i = 0; i < 2; i++) {
		const struct svc_plan_task task = {.op = i ? NCCLSVC_RECV : NCCLSVC_SEND,
						   .peer = !i,
						   .count = 4,
						   .type = NCCLSVC_FLOAT32};
		r[i] = (struct svc_plan_commit){
			.comm = ranks[i].comm, .epoch = ranks[i].epoch, .groups = 1, .tasks = 1};
		fds[i] = svc_memfd_create("plan", sizeof(task), true);
		CHECK(pwrite(fds[i], &task, sizeof(task), 0) == sizeof(task));
	}
	bool good = call_both(c, SVC_PLAN_COMMIT, bodies, sizeof(r[0]), fds, a);
	svc_close_fds(fds, 2);
	for (int i = 0; good && i < 2; i++) {
		const struct svc_plan_drop drop = {.comm = ranks[i].comm,
						   .plan = a[i].body.plan.plan};
		good = !call(&c[i], SVC_PLAN_DROP, &drop, sizeof(drop), -1, &dropped);
	}
	return good;
}

static bool barrier(struct conn c[2], const struct rank ranks[2])
{
	bool good = true;
	for (int i = 0; i < 2; i++)
		if (c[i].ring) {
			const struct svc_record record = rank_record(&ranks[i]);
			conn_submit(&c[i], &record);
		}
	for (int i = 0; i < 2; i++)
		good &= c[i].ring && !conn_wait(&c[i], c[i].last, ANSWER_MS);
	return good;
}

/* The first rank submits through the socket; the second cancels the task, which answers it. */
static bool submit_and_cancel(struct conn c[2], const struct rank ranks[2])
{
	const struct svc_record record = rank_record(&ranks[0]);
	const struct svc_cancel cancel = {.kind = SVC_CANCEL_COMM, .id = ranks[0].uid};
	struct answer a;
	if (c[0].sock < 0 || conn_send(&c[0], SVC_SUBMIT, &record, sizeof(record), -1, 0))
		return false;
	const uint32_t submit = c[0].request_id;
	const bool good = !call(&c[1], SVC_CANCEL, &cancel, sizeof(cancel), -1, &a);
	if (!good) /* then the end of the session ends the task */
		return false;
	c[0].request_id = submit;
	const int result = answer(&c[0], &a);
	CHECK(result != NO_ANSWER);
	return result == NCCLSVC_OK || result == NCCLSVC_CANCELLED;
}

static bool lists(struct conn *c)
{
	struct answer a;
	bool good = true;
	for (uint32_t what = SVC_LIST_SESSIONS; what <= SVC_LIST_PLAN_TASKS; what++)
		good &= !call(c, SVC_LIST, &(struct svc_list){.what = what},
			      sizeof(struct svc_list), -1, &a);
	return good & !call(c, SVC_DAEMON_INFO, &(struct svc_daemon_info_request){0},
			    sizeof(struct svc_daemon_info_request), -1, &a);
}

static bool attach(struct conn *c)
{
	const struct svc_attach request = {.entries = 16};
	struct answer a;
	if (call(c, SVC_ATTACH, &request, sizeof(request), -1, &a)) {
		svc_close_fds(a.fds, a.nfds);
		return false;
	}
	CHECK_EQ(a.nfds, 3);
	c->ring = mmap(NULL, a.body.attach.size, PROT_READ | PROT_WRITE, MAP_SHARED, a.fds[0], 0);
	CHECK(c->ring != MAP_FAILED);
	c->ring_size = a.body.attach.size;
	c->entries = request.entries;
	c->doorbell = a.fds[1];
	c->completion = a.fds[2];
	svc_close_fds(a.fds, 1);
	return true;
}

static uint32_t region(struct conn *c)
{
	const struct svc_region_add request = {.bytes = REGION_BYTES, .kind = SVC_REGION_MEMFD};
	struct answer a;
	int fd = svc_memfd_create("region", REGION_BYTES, true);
	CHECK(fd >= 0 && !posix_fallocate(fd, 0, REGION_BYTES));
	const int result = call(c, SVC_REGION_ADD, &request, sizeof(request), fd, &a);
	close(fd);
	return result ? 0 : a.body.region.region;
}

/* Makes every request once. Returns whether all succeeded. */
static bool everything(const char *socket)
{
	struct conn c[2];
	struct rank ranks[2];
	struct answer a;
	bool good = conn_open(&c[0], socket);
	good &= conn_open(&c[1], socket);
	uint32_t regions[2] = {0};
	for (int i = 0; i < 2; i++) {
		good &= attach(&c[i]);
		regions[i] = region(&c[i]);
		good &= regions[i] != 0;
	}
	const bool joined = join(c, ranks);
	good &= joined;
	good = good && barrier(c, ranks);
	good &= joined && split(c, ranks);
	good &= joined && plan(c, ranks);
	good &= lists(&c[0]);
	good &= joined && submit_and_cancel(c, ranks);
	for (int i = 0; i < 2; i++) {
		if (regions[i])
			good &= !call(&c[i], SVC_REGION_DEL,
				      &(struct svc_region_del){.region = regions[i]},
				      sizeof(struct svc_region_del), -1, &a);
		/* The second session ends without leaving. */
		if (joined && !i)
			good &= !call(&c[i], SVC_LEAVE, &(struct svc_leave){.comm = ranks[i].comm},
				      sizeof(struct svc_leave), -1, &a);
	}
	for (int i = 0; i < 2; i++)
		conn_close(&c[i]);
	return good;
}

/* ---- The daemon ---- */

/* Users' limits are small, so that a leak soon exhausts them. */
static void start(struct daemon *d)
{
	calls->kind = FAILING_NONE;
	setenv("FAILING_CALLS", path, 1);
	setenv("LD_PRELOAD", program("FAILING_CALLS_LIBRARY"), 1);
	daemon_start(d, "--user-sessions-max=4", "--user-comms-max=3", "--user-tasks-max=8",
		     "--user-region-bytes=160K", "--comm-idle-seconds=0", "--device=host", NULL);
	unsetenv("LD_PRELOAD");
	unsetenv("FAILING_CALLS");
}

static void arm(enum failing_kind kind, int64_t before, int64_t failing)
{
	calls->kind = FAILING_NONE;
	calls->seen = 0;
	calls->before = before;
	calls->failing = failing;
	calls->kind = (int)kind;
}

/* Tries again and again, because the daemon ends the first client's sessions meanwhile. */
static bool is_served(const char *socket)
{
	for (const uint64_t end = now_ns() + ANSWER_MS * 1000000ull; now_ns() < end; sleep_ms(5))
		if (everything(socket))
			return true;
	return false;
}

static void fail_each(enum failing_kind kind, int64_t failing)
{
	const char *given = getenv("FAILING_EVERY");
	const int64_t every = given ? atoi(given) : 7;
	struct daemon d;
	start(&d);
	CHECK(everything(d.socket));
	arm(kind, INT64_MAX / 2, 0);
	CHECK(everything(d.socket));
	const int64_t all = (int64_t)calls->seen;
	print_message("%lld calls\n", (long long)all);
	/* If not all calls are tried, each run begins with another one. */
	for (int64_t n = every > 1 ? (int64_t)(now_ns() / 1000 % (uint64_t)every) : 0; n < all;
	     n += every) {
		trying = n;
		arm(kind, n, failing);
		everything(d.socket);
		arm(FAILING_NONE, 0, 0);
		if (!is_served(d.socket))
			check_failed(__FILE__, __LINE__,
				     "after call %lld of kind %d failed, clients are not served",
				     (long long)n, kind);
		daemon_finishes(&d);
	}
	daemon_stop(&d);
}

static void memory_fails(void **state)
{
	(void)state;
	fail_each(FAILING_MEMORY, 1);
	fail_each(FAILING_MEMORY, 3);
	fail_each(FAILING_MEMORY, 10);
}

static void maps_fail(void **state)
{
	(void)state;
	fail_each(FAILING_MAPS, 1);
}

static void descriptors_fail(void **state)
{
	(void)state;
	fail_each(FAILING_FDS, 1);
}

static void threads_fail(void **state)
{
	(void)state;
	fail_each(FAILING_THREADS, INT64_MAX / 2);
}

static int map_calls(void **state)
{
	(void)state;
	const int fd = mkstemp(path);
	if (fd < 0 || ftruncate(fd, sizeof(*calls)))
		return -1;
	calls = mmap(NULL, sizeof(*calls), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return calls == MAP_FAILED ? -1 : 0;
}

static int unmap_calls(void **state)
{
	(void)state;
	munmap(calls, sizeof(*calls));
	return unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(memory_fails),
		TEST(maps_fail),
		TEST(descriptors_fail),
		TEST(threads_fail),
	};
	return cmocka_run_group_tests_name("failing_calls", tests, map_calls, unmap_calls);
}
