/* SPDX-License-Identifier: Apache-2.0
 * Staging memory, which the kernels of a communicator's members share: the daemon hands it out, and
 * aborts the kernels. The test speaks the protocol itself, without the library. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "peer_members.h"

static void staging_refused(struct member *m, uint32_t comm, int rank, ncclsvc_result result,
			    const char *why)
{
	struct svc_staging request = {.comm = comm, .rank = rank};
	raw_refused(&m->raw, SVC_STAGING, &request, sizeof(request), NULL, 0, result, why);
}

/* ---- Refusals ---- */

static void join_refused(struct member *m, int device, uint32_t staging)
{
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	struct svc_join request = raw_join_request(&id, 2, 0);
	request.device = device;
	request.staging = staging;
	raw_refused(&m->raw, SVC_JOIN, &request, sizeof(request), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "is not memory of cuMemCreate on device");
}

static void bad_staging(struct member m[2])
{
	stage("invalid staging memory");
	const uint32_t small = peer_memory(&m[0].raw, 0, PEER_STAGING / 2);
	join_refused(&m[0], 0, small);
	join_refused(&m[0], 1, m[0].staging);
	join_refused(&m[0], SVC_DEVICE_HOST, m[0].staging);
	join_refused(&m[0], 0, 77);
	join_refused(&m[0], 0, UINT32_MAX);
	struct svc_region_del del = {.region = small};
	struct raw_reply reply;
	raw_call(&m[0].raw, SVC_REGION_DEL, &del, sizeof(del), NULL, 0, &reply);
	join_refused(&m[0], 0, small);
}

/* ---- An epoch with staging memory ---- */

static void handed_out(struct member m[2])
{
	stage("opening both members' staging memory");
	CHECK(m[0].joined.peer_bytes > 0);
	CHECK_EQ(m[1].joined.peer_bytes, m[0].joined.peer_bytes);
	int fds[2][2];
	for (int i = 0; i < 2; i++)
		for (int rank = 0; rank < 2; rank++)
			fds[i][rank] = peer_staging_fd(&m[i], rank);
	struct stat a, b;
	for (int rank = 0; rank < 2; rank++) {
		CHECK(!fstat(fds[0][rank], &a) && !fstat(fds[1][rank], &b));
		CHECK(a.st_ino == b.st_ino);
	}
	svc_close_fds(fds[0], 2);
	svc_close_fds(fds[1], 2);
	staging_refused(&m[0], m[0].joined.comm, 2, NCCLSVC_INVALID_ARGUMENT, "has no rank 2");
	staging_refused(&m[0], m[0].joined.comm, -2, NCCLSVC_INVALID_ARGUMENT, "has no rank -2");
	staging_refused(&m[0], 1000, 0, NCCLSVC_NOT_FOUND, "no communicator 1000");
}

/* Bytes of all regions that the daemon charges to users. */
static uint64_t held_bytes(struct raw *raw)
{
	struct raw_reply reply;
	struct svc_daemon_info_request request = {0};
	raw_call(raw, SVC_DAEMON_INFO, &request, sizeof(request), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	return reply.info.info.region_bytes;
}

/* The member's region may be deleted: the daemon holds the memory itself, and charges it to the
 * member. */
static void region_goes(struct member *m)
{
	struct raw_reply reply;
	struct svc_region_del del = {.region = m->staging};
	CHECK_EQ(held_bytes(&m->raw), 2 * PEER_STAGING); /* two members */
	raw_call(&m->raw, SVC_REGION_DEL, &del, sizeof(del), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK_EQ(held_bytes(&m->raw), 2 * PEER_STAGING);
	close(peer_staging_fd(m, 0));
}

static void held_becomes(struct raw *raw, uint64_t bytes)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; held_bytes(raw) != bytes; sleep_ms(1))
		CHECK(now_ns() < end);
}

static void nothing_is_held(struct client *c)
{
	struct raw raw;
	stage("waiting for the daemon to release the staging memory");
	raw_open(&raw, c->daemon);
	held_becomes(&raw, 0);
	raw_close(&raw);
}

static void peer_dies(struct client *c, struct member m[2], const ncclsvc_unique_id *id)
{
	stage("a peer that dies");
	struct peer_control *controls = peer_controls_map(peer_staging_fd(&m[0], -1));
	CHECK(!peer_aborted(controls, 0) && !peer_aborted(controls, 1));
	raw_close(&m[1].raw);
	peer_wait_aborted(controls);
	munmap(controls, 2 * PEER_CONTROL_BYTES);
	staging_refused(&m[0], m[0].joined.comm, 0, NCCLSVC_STALE_EPOCH, "staging memory");

	stage("an epoch in which only one member has staging memory");
	raw_open(&m[1].raw, c->daemon);
	m[1].staging = peer_memory(&m[1].raw, 1, PEER_STAGING);
	m[0].staging = peer_memory(&m[0].raw, 0, PEER_STAGING);
	peer_join(m, id, false);
	CHECK_EQ(m[0].joined.peer_bytes, 0);
	CHECK_EQ(m[1].joined.peer_bytes, 0);
	staging_refused(&m[0], m[0].joined.comm, 0, NCCLSVC_STALE_EPOCH, "staging memory");
}

/* Members name their own staging memory in a SPLIT, too. */
static void split(struct member m[2])
{
	stage("a split");
	const uint32_t whole[2] = {m[0].joined.comm, m[1].joined.comm};
	for (int i = 0; i < 2; i++) {
		struct svc_split request = {.comm = whole[i], .staging = m[i].staging};
		m[i].request_id =
			raw_send(&m[i].raw, SVC_SPLIT, &request, sizeof(request), NULL, 0);
	}
	peer_join_end(&m[0]);
	peer_join_end(&m[1]);
	CHECK(m[0].joined.comm != whole[0]);
	CHECK(m[0].joined.peer_bytes > 0);
	CHECK_EQ(m[1].joined.peer_bytes, m[0].joined.peer_bytes);
	close(peer_staging_fd(&m[0], 1));
	m[0].joined.comm = whole[0];
	m[1].joined.comm = whole[1];
}

/* A member leaves: the others' kernels continue, and its memory stays until the epoch ends. */
static void member_leaves(struct member m[2])
{
	ncclsvc_unique_id id;
	struct raw_reply reply;
	stage("a member that leaves");
	CHECK_OK(ncclsvc_unique_id_create(&id));
	peer_join(m, &id, true);
	split(m);
	struct peer_control *controls = peer_controls_map(peer_staging_fd(&m[0], -1));
	struct svc_leave leave = {.comm = m[1].joined.comm};
	raw_call(&m[1].raw, SVC_LEAVE, &leave, sizeof(leave), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK(!peer_aborted(controls, 0));
	close(peer_staging_fd(&m[0], 1)); /* a rank can still open it */
	leave.comm = m[0].joined.comm;
	raw_call(&m[0].raw, SVC_LEAVE, &leave, sizeof(leave), NULL, 0, &reply);
	peer_wait_aborted(controls);
	munmap(controls, 2 * PEER_CONTROL_BYTES);
}

static void staging_rank(struct client *c)
{
	struct member m[2];
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int i = 0; i < 2; i++) {
		raw_open(&m[i].raw, c->daemon);
		m[i].staging = peer_memory(&m[i].raw, i, PEER_STAGING);
	}
	bad_staging(m);
	peer_join(m, &id, true);
	handed_out(m);
	region_goes(&m[0]);
	peer_dies(c, m, &id);
	member_leaves(m);
	raw_close(&m[0].raw);
	raw_close(&m[1].raw);
	nothing_is_held(c);
}

static void test_staging(void)
{
	ranks_run(1, staging_rank, NULL);
}

/* The direct transport's size limit in an epoch, and its source. */
struct limit {
	uint32_t bytes;
	ncclsvc_peer_source source;
};

static void is_listed(const struct daemon *d, const struct limit *due)
{
	ncclsvc_session *session = session_open(d);
	ncclsvc_comm_info *list;
	size_t n, found = 0;
	CHECK_OK(ncclsvc_list_comms(session, &list, &n));
	for (size_t i = 0; i < n; i++) {
		if (list[i].state != NCCLSVC_COMM_READY)
			continue;
		CHECK_EQ(list[i].peer_bytes, due->bytes);
		CHECK_EQ(list[i].peer_source, due->source);
		found++;
	}
	CHECK_EQ(found, 1);
	ncclsvc_list_free(list);
	ncclsvc_close(session);
}

static void check_limit(const struct daemon *d, const struct limit *due)
{
	struct member m[2];
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int i = 0; i < 2; i++) {
		raw_open(&m[i].raw, d);
		m[i].staging = peer_memory(&m[i].raw, i, PEER_STAGING);
	}
	peer_join(m, &id, true);
	CHECK_EQ(m[0].joined.peer_bytes, due->bytes);
	CHECK_EQ(m[1].joined.peer_bytes, due->bytes);
	is_listed(d, due);
	held_becomes(&m[0].raw, due->bytes ? 2 * PEER_STAGING : 0);
	raw_close(&m[0].raw);
	raw_close(&m[1].raw);
}

static void limit_rank(struct client *c)
{
	check_limit(c->daemon, c->arg);
}

static void has_limit(const char *key, const char *value, struct limit due)
{
	setenv(key, value, 1);
	ranks_run(1, limit_rank, &due);
	unsetenv(key);
}

static void test_bytes(void)
{
	static const char key[] = "NCCLSVCD_PEER_BYTES";
	has_limit(key, "8M", (struct limit){8 << 20, NCCLSVC_PEER_SET});
	has_limit(key, "5000", (struct limit){5000, NCCLSVC_PEER_SET});
	/* The default without MPS. */
	has_limit(key, "auto", (struct limit){UINT32_MAX, NCCLSVC_PEER_DEFAULT});
	has_limit(key, "0", (struct limit){0, NCCLSVC_PEER_UNKNOWN});
}

/* ---- Results measured on the machine ---- */

struct measured {
	char dir[32], path[48];
	char gpu[NCCLSVC_NAME_BYTES];
};

static void get_model(struct client *c)
{
	struct measured *f = c->arg;
	ncclsvc_session *session = session_open(c->daemon);
	ncclsvc_device_info *list;
	size_t n;
	CHECK_OK(ncclsvc_list_devices(session, &list, &n));
	memcpy(f->gpu, list[0].name, sizeof(f->gpu));
	ncclsvc_list_free(list);
	ncclsvc_close(session);
}

/* %s in the format is replaced by the GPUs' model. */
static void write_measured(const struct measured *f, const char *format)
{
	FILE *file = fopen(f->path, "we");
	CHECK(file);
	char *text;
	const char *model = strstr(format, "%s");
	CHECK(asprintf(&text, "%.*s%s%s\n", model ? (int)(model - format) : (int)strlen(format),
		       format, model ? f->gpu : "", model ? model + 2 : "") > 0);
	CHECK(fputs(text, file) >= 0);
	CHECK(!fclose(file));
	free(text);
}

/* Starts a daemon with this file, and checks the limit and the log. */
static void starts_with(struct measured *f, const char *text, struct limit due, const char *log)
{
	struct daemon d;
	write_measured(f, text);
	gpu_daemon_start(&d);
	check_limit(&d, &due);
	CHECK(daemon_logged(&d, log));
	gpu_daemon_stop(&d);
}

static void is_read_again(struct measured *f)
{
	struct daemon d;
	const struct limit none = {UINT32_MAX, NCCLSVC_PEER_DEFAULT};
	const struct limit first = {1 << 20, NCCLSVC_PEER_MEASURED};
	const struct limit second = {2 << 20, NCCLSVC_PEER_MEASURED};
	unlink(f->path);
	gpu_daemon_start(&d);
	stage("no file with measurements");
	check_limit(&d, &none);
	stage("a new file with measurements");
	write_measured(f, "2 no 1048576 %s");
	CHECK_EQ(kill(d.pid, SIGHUP), 0);
	CHECK(daemon_logged(&d, "sets the largest operations"));
	check_limit(&d, &first);
	stage("an invalid file");
	write_measured(f, "2 no 1M %s");
	CHECK_EQ(kill(d.pid, SIGHUP), 0);
	CHECK(daemon_logged(&d, "is not used"));
	check_limit(&d, &none);
	stage("another valid file");
	write_measured(f, "2 no 2097152 %s");
	CHECK_EQ(kill(d.pid, SIGHUP), 0);
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; now_ns() < end; sleep_ms(5)) {
		ncclsvc_session *session = session_open(&d);
		ncclsvc_device_info *list;
		size_t n;
		CHECK_OK(ncclsvc_list_devices(session, &list, &n));
		const bool read = list[0].peer_source == NCCLSVC_PEER_MEASURED;
		ncclsvc_list_free(list);
		ncclsvc_close(session);
		if (read)
			break;
	}
	check_limit(&d, &second);
	stage("the file is removed");
	CHECK_EQ(unlink(f->path), 0);
	CHECK_EQ(kill(d.pid, SIGHUP), 0);
	CHECK(daemon_logged(&d, "no longer has limits"));
	check_limit(&d, &none);
	gpu_daemon_stop(&d);
}

static void test_measured(void)
{
	struct measured f = {.dir = "/tmp/ncclsvc-test-XXXXXX"};
	const struct limit none = {UINT32_MAX, NCCLSVC_PEER_DEFAULT};
	CHECK(mkdtemp(f.dir));
	snprintf(f.path, sizeof(f.path), "%s/crossover", f.dir);
	setenv("STATE_DIRECTORY", f.dir, 1);
	struct daemon d;
	gpu_daemon_start(&d);
	get_model(&(struct client){.daemon = &d, .arg = &f});
	gpu_daemon_stop(&d);

	starts_with(&f, "2 no 1048576 %s", (struct limit){1 << 20, NCCLSVC_PEER_MEASURED},
		    "sets the largest operations");
	starts_with(&f, "2 yes 1048576 %s", none, "sets the largest operations");
	starts_with(&f, "3 no 1048576 %s", none, "sets the largest operations");
	starts_with(&f, "2 no 1048576 %s X", none, "it was measured on different GPUs");
	starts_with(&f, "2 no 10485760000 %s", none, "is not used: line 1: ");
	starts_with(&f,
		    "\x7f"
		    "ELF",
		    none, "is not used: line 1: ");
	setenv("NCCLSVCD_PEER_BYTES", "3M", 1);
	starts_with(&f, "2 no 1048576 %s", (struct limit){3 << 20, NCCLSVC_PEER_SET}, "");
	unsetenv("NCCLSVCD_PEER_BYTES");
	is_read_again(&f);
	unsetenv("STATE_DIRECTORY");
	snprintf(f.path, sizeof(f.path), "%s/failures", f.dir);
	CHECK_EQ(unlink(f.path), 0);
	CHECK_EQ(rmdir(f.dir), 0);
}

static void test_reach(void)
{
	if (!setup.fake)
		skip_test("only stand-ins can lack peer access");
	const char *key = "NCCLSVC_FAKE_NO_PEER";
	has_limit(key, "1-0", (struct limit){0, NCCLSVC_PEER_UNKNOWN});
	has_limit(key, "0-2", (struct limit){UINT32_MAX, NCCLSVC_PEER_DEFAULT});
}

/* ---- A member whose process lacks a GPU's device node ---- */

static void out_of_reach_rank(struct client *c)
{
	struct member m[2];
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int i = 0; i < 2; i++) {
		raw_open(&m[i].raw, c->daemon);
		struct svc_join join = raw_join_request(&id, 2, i);
		join.device = i;
		join.staging = peer_memory(&m[i].raw, i, PEER_STAGING);
		join.out_of_reach = i ? 0 : 1 << 1;
		m[i].request_id = raw_send(&m[i].raw, SVC_JOIN, &join, sizeof(join), NULL, 0);
	}
	for (int i = 0; i < 2; i++) {
		peer_join_end(&m[i]);
		CHECK_EQ(m[i].joined.peer_bytes, 0);
	}
	is_listed(c->daemon, &(struct limit){0, NCCLSVC_PEER_OUT_OF_REACH});
	raw_close(&m[0].raw);
	raw_close(&m[1].raw);
}

static void test_out_of_reach(void)
{
	ranks_run(1, out_of_reach_rank, NULL);
}

const struct gpu_test peer_tests[] = {
	{"peer/staging", test_staging, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"peer/bytes", test_bytes, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"peer/measured", test_measured, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"peer/reach", test_reach, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"peer/out-of-reach", test_out_of_reach, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
