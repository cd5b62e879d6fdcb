/* SPDX-License-Identifier: Apache-2.0
 * Messages that no client should send: each gets its documented error, and other clients are not
 * affected. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bystanders.h"
#include "harness_raw.h"

/* One daemon, bystanders, and a raw session to misbehave with. */
struct scene {
	struct daemon d;
	struct bystanders b;
	struct raw r;
};

static void scene_start(struct scene *s)
{
	daemon_start(&s->d, NULL);
	bystanders_start(&s->b, &s->d);
	raw_open(&s->r, &s->d);
}

/* Checks that the session in s->r works. */
static void still_works(struct scene *s)
{
	struct svc_daemon_info_request request = {0};
	struct raw_reply reply;
	raw_call(&s->r, SVC_DAEMON_INFO, &request, sizeof(request), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
}

static void scene_end(struct scene *s)
{
	raw_close(&s->r);
	bystanders_end(&s->b);
	daemon_stop(&s->d);
}

static void ended(struct scene *s, ncclsvc_result reason)
{
	raw_ends(&s->r, reason);
	raw_close(&s->r);
	raw_open(&s->r, &s->d);
}

/* ---- Frames ---- */

static void malformed_frames_end_their_session_alone(void **state)
{
	struct scene s;
	char message[4096] = {0};
	(void)state;
	scene_start(&s);
	/* Shorter than a header. */
	for (size_t n = 1; n < sizeof(struct svc_header); n++) {
		CHECK_EQ(raw_send_bytes(&s.r, message, n, NULL, 0), 0);
		ended(&s, NCCLSVC_PROTOCOL);
	}
	/* A header with a wrong length. */
	static const uint32_t lies[] = {0, 1, 16, 23, 25, 512, 4096, 0x80000000, 0xffffffff};
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct svc_header header = {
			.length = lies[i], .opcode = SVC_LEAVE, .request_id = 1};
		memcpy(message, &header, sizeof(header));
		CHECK_EQ(raw_send_bytes(&s.r, message, 24, NULL, 0), 0);
		ended(&s, NCCLSVC_PROTOCOL);
	}
	/* Longer than any message. */
	struct svc_header header = {
		.length = sizeof(message), .opcode = SVC_LEAVE, .request_id = 1};
	memcpy(message, &header, sizeof(header));
	CHECK_EQ(raw_send_bytes(&s.r, message, sizeof(message), NULL, 0), 0);
	ended(&s, NCCLSVC_PROTOCOL);
	scene_end(&s);
}

static void an_empty_message_ends_its_session_and_leaks_nothing(void **state)
{
	struct scene s;
	struct raw_reply reply;
	int fd[2];
	(void)state;
	scene_start(&s);
	CHECK_EQ(pipe2(fd, O_CLOEXEC), 0);
	for (int i = 0; i < 10; i++) {
		CHECK_EQ(raw_send_bytes(&s.r, "", 0, fd, i % 3), 0);
		while (raw_next(&s.r, &reply))
			;
		raw_close(&s.r);
		raw_open(&s.r, &s.d);
	}
	svc_close_fds(fd, 2);
	scene_end(&s);
}

static void wrong_lengths_are_refused(void **state)
{
	struct scene s;
	char body[SVC_MESSAGE_MAX] = {0};
	(void)state;
	scene_start(&s);
	for (unsigned op = SVC_HELLO; op < SVC_OPCODE_END; op++) {
		if (!svc_shape_of(SVC_PROTOCOL_MAX, op))
			continue;
		size_t right = svc_shape_of(SVC_PROTOCOL_MAX, op)->request;
		const size_t wrong[] = {0, right - 1, right + 1, right + 8,
					SVC_MESSAGE_MAX - sizeof(struct svc_header)};
		for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
			raw_refused(&s.r, op, body, wrong[i], NULL, 0, NCCLSVC_PROTOCOL, "bytes");
	}
	still_works(&s);
	scene_end(&s);
}

static void unknown_opcodes_and_reserved_header_fields_are_refused(void **state)
{
	struct scene s;
	struct raw_reply reply;
	static const unsigned unknown[] = {0,	   SVC_OPCODE_END,	 100,	0x4001, 0x4002,
					   0x7fff, SVC_REPLY | SVC_LIST, 0xffff};
	(void)state;
	scene_start(&s);
	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
		raw_refused(&s.r, unknown[i], "12345678", 8, NULL, 0, NCCLSVC_PROTOCOL, "opcode");
	struct {
		struct svc_header header;
		struct svc_list body;
	} m = {{.length = sizeof(m), .opcode = SVC_LIST, .request_id = 77, .reserved = 1}, {0}};
	CHECK_EQ(raw_send_bytes(&s.r, &m, sizeof(m), NULL, 0), 0);
	raw_reply_to(&s.r, 77, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_PROTOCOL);
	m.header.reserved = 0;
	m.header.result = -1;
	CHECK_EQ(raw_send_bytes(&s.r, &m, sizeof(m), NULL, 0), 0);
	raw_reply_to(&s.r, 77, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_PROTOCOL);
	still_works(&s);
	scene_end(&s);
}

static void reserved_body_fields_are_refused(void **state)
{
	struct scene s;
	(void)state;
	scene_start(&s);
	struct svc_join_reply comm = raw_join_alone(&s.r);
	struct raw_region region = raw_region(&s.r, SVC_PAGE);
	struct svc_attach attach = {.entries = 16, .reserved = 1};
	raw_refused(&s.r, SVC_ATTACH, &attach, sizeof(attach), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "");
	struct svc_region_add add = {.bytes = SVC_PAGE, .reserved = 1};
	raw_refused(&s.r, SVC_REGION_ADD, &add, sizeof(add), &region.fd, 1,
		    NCCLSVC_INVALID_ARGUMENT, "");
	struct svc_region_del del = {.region = region.id, .wait_ms = SVC_DEL_WAIT_MS + 1};
	raw_refused(&s.r, SVC_REGION_DEL, &del, sizeof(del), NULL, 0, NCCLSVC_INVALID_ARGUMENT, "");
	struct svc_leave leave = {.comm = comm.comm, .reserved = 1};
	raw_refused(&s.r, SVC_LEAVE, &leave, sizeof(leave), NULL, 0, NCCLSVC_INVALID_ARGUMENT, "");
	struct svc_split split = {.comm = comm.comm, .staging = 1};
	raw_refused(&s.r, SVC_SPLIT, &split, sizeof(split), NULL, 0, NCCLSVC_INVALID_ARGUMENT, "");
	split = (struct svc_split){.comm = comm.comm, .reserved = {0, 1}};
	raw_refused(&s.r, SVC_SPLIT, &split, sizeof(split), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "reserved field");
	struct svc_list list = {.what = SVC_LIST_TASKS, .node = 1};
	raw_refused(&s.r, SVC_LIST, &list, sizeof(list), NULL, 0, NCCLSVC_INVALID_ARGUMENT, "");
	struct svc_daemon_info_request info = {.reserved = 1};
	raw_refused(&s.r, SVC_DAEMON_INFO, &info, sizeof(info), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "");
	struct svc_cancel cancel = {.kind = SVC_CANCEL_COMM, .id = comm.comm_uid, .reserved = 1};
	raw_refused(&s.r, SVC_CANCEL, &cancel, sizeof(cancel), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "");
	raw_region_close(&region);
	scene_end(&s);
}

/* ---- HELLO ---- */

static void the_first_message_is_hello(void **state)
{
	struct scene s;
	char body[SVC_MESSAGE_MAX] = {0};
	int fd = svc_memfd_create("early", SVC_PAGE, true);
	(void)state;
	scene_start(&s);
	raw_close(&s.r);
	raw_connect(&s.r, &s.d);
	for (unsigned op = SVC_HELLO + 1; op < SVC_OPCODE_END; op++) {
		const struct svc_shape *shape = svc_shape_of(SVC_PROTOCOL_MIN, op);
		if (!shape)
			continue;
		raw_refused(&s.r, op, body, shape->request, &fd, shape->request_fds,
			    NCCLSVC_PROTOCOL, "HELLO");
	}
	raw_hello(&s.r);
	struct svc_hello hello = {.version_min = 1, .version_max = 1, .name = "twice"};
	raw_refused(&s.r, SVC_HELLO, &hello, sizeof(hello), NULL, 0, NCCLSVC_PROTOCOL, "HELLO");
	still_works(&s);
	close(fd);
	scene_end(&s);
}

static void versions_without_overlap_are_both_named(void **state)
{
	struct scene s;
	static const uint16_t ranges[][2] = {
		{SVC_PROTOCOL_MAX + 1, 7}, {900, 901}, {0, 0}, {7, 2}, {65535, 65535}};
	(void)state;
	scene_start(&s);
	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
		struct svc_hello hello = {
			.version_min = ranges[i][0], .version_max = ranges[i][1], .name = "other"};
		struct raw_reply reply;
		raw_close(&s.r);
		raw_connect(&s.r, &s.d);
		raw_call(&s.r, SVC_HELLO, &hello, sizeof(hello), NULL, 0, &reply);
		CHECK_EQ(reply.header.result, NCCLSVC_VERSION);
		CHECK_EQ(reply.error.version_min, SVC_PROTOCOL_MIN);
		CHECK_EQ(reply.error.version_max, SVC_PROTOCOL_MAX);
		CHECK_EQ(reply.error.client_version_min, ranges[i][0]);
		CHECK_EQ(reply.error.client_version_max, ranges[i][1]);
		raw_ends(&s.r, NCCLSVC_VERSION);
	}
	scene_end(&s);
}

static void the_highest_common_version_is_spoken(void **state)
{
	struct scene s;
	static const uint16_t cases[][3] = {
		{0, 999, SVC_PROTOCOL_MAX},
		{SVC_PROTOCOL_MAX, 65535, SVC_PROTOCOL_MAX},
		{0, SVC_PROTOCOL_MIN, SVC_PROTOCOL_MIN},
	};
	(void)state;
	scene_start(&s);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct svc_hello hello = {
			.version_min = cases[i][0], .version_max = cases[i][1], .name = "wide"};
		struct raw_reply reply;
		raw_close(&s.r);
		raw_connect(&s.r, &s.d);
		raw_call(&s.r, SVC_HELLO, &hello, sizeof(hello), NULL, 0, &reply);
		CHECK_EQ(reply.header.result, 0);
		CHECK_EQ(reply.hello.version, cases[i][2]);
	}
	scene_end(&s);
}

static void a_bad_hello_may_be_said_again(void **state)
{
	struct scene s;
	(void)state;
	scene_start(&s);
	raw_close(&s.r);
	raw_connect(&s.r, &s.d);
	struct svc_hello hello = {.version_min = 1, .version_max = 1};
	memset(hello.name, 'x', sizeof(hello.name));
	raw_refused(&s.r, SVC_HELLO, &hello, sizeof(hello), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "name");
	memset(hello.name, 0, sizeof(hello.name));
	hello.reserved = 1;
	raw_refused(&s.r, SVC_HELLO, &hello, sizeof(hello), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "reserved");
	raw_hello(&s.r);
	scene_end(&s);
}

/* ---- File descriptors ---- */

static void stray_and_missing_fds_are_refused_and_closed(void **state)
{
	struct scene s;
	char body[SVC_MESSAGE_MAX] = {0};
	int fds[253], pipefd[2];
	(void)state;
	scene_start(&s);
	CHECK_EQ(pipe2(pipefd, O_CLOEXEC), 0);
	for (int i = 0; i < 253; i++)
		fds[i] = pipefd[i % 2];
	static const unsigned numbers[] = {0, 1, 2, 3, 4, 5, 16, 100, 253};
	for (unsigned op = SVC_HELLO; op < SVC_OPCODE_END; op++) {
		const struct svc_shape *shape = svc_shape_of(SVC_PROTOCOL_MAX, op);
		for (size_t i = 0; shape && i < sizeof(numbers) / sizeof(numbers[0]); i++)
			if (numbers[i] != shape->request_fds)
				raw_refused(&s.r, op, body, shape->request, fds, numbers[i],
					    NCCLSVC_PROTOCOL, "file descriptors");
	}
	/* With a malformed frame. */
	CHECK_EQ(raw_send_bytes(&s.r, "x", 1, fds, 253), 0);
	ended(&s, NCCLSVC_PROTOCOL);
	close(pipefd[1]);
	/* The daemon has closed its copies of the write end, so read returns 0. */
	char c;
	alarm(60);
	CHECK_EQ(read(pipefd[0], &c, 1), 0);
	time_limit(60);
	close(pipefd[0]);
	scene_end(&s);
}

static void region_refused(struct scene *s, int fd, uint64_t bytes, ncclsvc_result result,
			   const char *why)
{
	struct svc_region_add add = {.bytes = bytes};
	CHECK(fd >= 0);
	raw_refused(&s->r, SVC_REGION_ADD, &add, sizeof(add), &fd, 1, result, why);
	close(fd);
}

static int memfd_of(size_t bytes, unsigned flags, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
	if (fd >= 0 && (ftruncate(fd, (off_t)bytes) || (seals && fcntl(fd, F_ADD_SEALS, seals)))) {
		close(fd);
		return -1;
	}
	return fd;
}

static void regions_that_could_fault_are_refused(void **state)
{
	struct scene s;
	int pipefd[2];
	char path[64];
	(void)state;
	scene_start(&s);
	const ncclsvc_result bad = NCCLSVC_INVALID_ARGUMENT;
	region_refused(&s, memfd_of(8192, 0, 0), 8192, bad, "F_SEAL_SHRINK");
	region_refused(&s, memfd_of(8192, 0, F_SEAL_GROW), 8192, bad, "F_SEAL_SHRINK");
	region_refused(&s, memfd_of(8192, 0, F_SEAL_SHRINK), 8193, bad, "smaller");
	region_refused(&s, memfd_of(0, 0, F_SEAL_SHRINK), 1, bad, "smaller");
	region_refused(&s, memfd_of(8192, 0, F_SEAL_SHRINK | F_SEAL_WRITE), 8192, bad, "writing");
	region_refused(&s, memfd_of(8192, 0, F_SEAL_SHRINK), 0, bad, "bytes");
	region_refused(&s, memfd_of(8192, 0, F_SEAL_SHRINK), UINT64_MAX, bad, "bytes");
	CHECK_EQ(pipe2(pipefd, O_CLOEXEC), 0);
	region_refused(&s, pipefd[0], 4096, bad, "memfd");
	region_refused(&s, pipefd[1], 4096, bad, "memfd");
	region_refused(&s, open("/dev/zero", O_RDWR | O_CLOEXEC), 4096, bad, "memfd");
	region_refused(&s, open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC), 4096, bad, "memfd");
	/* A memfd reopened for reading cannot be mapped for writing. */
	int fd = memfd_of(8192, 0, F_SEAL_SHRINK);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int readonly = open(path, O_RDONLY | O_CLOEXEC);
	struct svc_region_add add = {.bytes = 8192};
	struct raw_reply reply;
	raw_call(&s.r, SVC_REGION_ADD, &add, sizeof(add), &readonly, 1, &reply);
	CHECK(reply.header.result < 0);
	close(readonly);
	close(fd);
	fd = memfd_of(8192, 0, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE);
	raw_call(&s.r, SVC_REGION_ADD, &add, sizeof(add), &fd, 1, &reply);
	CHECK(reply.header.result < 0);
	close(fd);
	still_works(&s);
	scene_end(&s);
}

static void a_hugetlb_region_is_refused(void **state)
{
	struct scene s;
	(void)state;
	int fd = memfd_of(2 << 20, MFD_HUGETLB, F_SEAL_SHRINK);
	if (fd < 0)
		skip_because("this kernel gives no hugetlb memfd: %s", strerror(errno));
	scene_start(&s);
	region_refused(&s, fd, 2 << 20, NCCLSVC_INVALID_ARGUMENT, "hugetlb");
	scene_end(&s);
}

static void a_registered_memfd_cannot_be_cut(void **state)
{
	struct scene s;
	(void)state;
	scene_start(&s);
	struct raw_region region = raw_region(&s.r, 1 << 20);
	struct svc_join_reply comm = raw_join_alone(&s.r);
	struct svc_record task = {.comm = comm.comm,
				  .epoch = comm.epoch,
				  .op = NCCLSVC_ALL_REDUCE,
				  .type = NCCLSVC_INT8,
				  .peer = -1,
				  .count = 1 << 20,
				  .src_region = region.id,
				  .dst_region = region.id};
	CHECK(ftruncate(region.fd, 0) < 0 && errno == EPERM);
	CHECK(ftruncate(region.fd, 4096) < 0 && errno == EPERM);
	CHECK_EQ(raw_submit_wait(&s.r, task).result, 0);
	/* A hole punched into it reads as zeros, and does not fault. */
	memset(region.base, 1, region.bytes);
	CHECK_EQ(fallocate(region.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20), 0);
	CHECK_EQ(raw_submit_wait(&s.r, task).result, 0);
	CHECK_EQ(((char *)region.base)[12345], 0);
	raw_region_close(&region);
	scene_end(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(malformed_frames_end_their_session_alone),
		TEST(an_empty_message_ends_its_session_and_leaks_nothing),
		TEST(wrong_lengths_are_refused),
		TEST(unknown_opcodes_and_reserved_header_fields_are_refused),
		TEST(reserved_body_fields_are_refused),
		TEST(the_first_message_is_hello),
		TEST(versions_without_overlap_are_both_named),
		TEST(the_highest_common_version_is_spoken),
		TEST(a_bad_hello_may_be_said_again),
		TEST(stray_and_missing_fds_are_refused_and_closed),
		TEST(regions_that_could_fault_are_refused),
		TEST(a_hugetlb_region_is_refused),
		TEST(a_registered_memfd_cannot_be_cut),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
