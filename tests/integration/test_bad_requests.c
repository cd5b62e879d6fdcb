/* SPDX-License-Identifier: Apache-2.0
 * Well-formed requests and records with values that no client should send. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bystanders.h"
#include "harness_raw.h"
#include "proto/fdio.h"

struct scene {
	struct daemon d;
	struct bystanders b;
	struct raw r;
	struct raw_region region;
	struct svc_join_reply comm; /* of one rank */
};

#define BYTES 65536

static void scene_start(struct scene *s)
{
	daemon_start(&s->d, NULL);
	bystanders_start(&s->b, &s->d);
	raw_open(&s->r, &s->d);
	raw_attach(&s->r, 16);
	s->region = raw_region(&s->r, BYTES);
	s->comm = raw_join_alone(&s->r);
}

static void scene_end(struct scene *s)
{
	raw_region_close(&s->region);
	raw_close(&s->r);
	bystanders_end(&s->b);
	daemon_stop(&s->d);
}

/* ---- Ids ---- */

static void unknown_ids_are_not_found(void **state)
{
	struct scene s;
	static const uint32_t ids[] = {0, 2, 3, 1023, 1024, 4095, 4096, 0x7fffffff, UINT32_MAX};
	(void)state;
	scene_start(&s);
	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		struct svc_region_del del = {.region = ids[i]};
		raw_refused(&s.r, SVC_REGION_DEL, &del, sizeof(del), NULL, 0, NCCLSVC_NOT_FOUND,
			    "");
		struct svc_leave leave = {.comm = ids[i]};
		raw_refused(&s.r, SVC_LEAVE, &leave, sizeof(leave), NULL, 0, NCCLSVC_NOT_FOUND, "");
		struct svc_split split = {.comm = ids[i]};
		raw_refused(&s.r, SVC_SPLIT, &split, sizeof(split), NULL, 0, NCCLSVC_NOT_FOUND, "");
		for (uint32_t kind = SVC_CANCEL_TASK; kind <= SVC_CANCEL_SESSION; kind++) {
			struct svc_cancel cancel = {.kind = kind,
						    .id = (UINT64_C(1) << 32) + ids[i]};
			raw_refused(&s.r, SVC_CANCEL, &cancel, sizeof(cancel), NULL, 0,
				    NCCLSVC_NOT_FOUND, "");
		}
		struct svc_record task = {
			.comm = ids[i], .epoch = s.comm.epoch, .op = NCCLSVC_BARRIER, .peer = -1};
		raw_refused(&s.r, SVC_SUBMIT, &task, sizeof(task), NULL, 0, NCCLSVC_NOT_FOUND, "");
		CHECK_EQ(raw_ring_wait(&s.r, raw_ring_submit(&s.r, task)).result,
			 NCCLSVC_NOT_FOUND);
	}
	static const uint32_t whats[] = {0, 32, 100, UINT32_MAX};
	for (size_t i = 0; i < 4; i++) {
		struct svc_list list = {.what = whats[i]};
		raw_refused(&s.r, SVC_LIST, &list, sizeof(list), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
			    "");
		struct svc_cancel cancel = {.kind = i ? whats[i] : 0};
		raw_refused(&s.r, SVC_CANCEL, &cancel, sizeof(cancel), NULL, 0,
			    NCCLSVC_INVALID_ARGUMENT, "");
	}
	scene_end(&s);
}

/* ---- JOIN ---- */

static void join_refused(struct scene *s, struct svc_join join, ncclsvc_result result)
{
	raw_refused(&s->r, SVC_JOIN, &join, sizeof(join), NULL, 0, result, "");
}

static void joins_out_of_range_are_refused(void **state)
{
	struct scene s;
	struct raw_reply reply;
	ncclsvc_unique_id id;
	static const int32_t pairs[][2] = {{0, 0},	   {-1, 0},	   {2, -1},	  {2, 2},
					   {1, INT32_MAX}, {4, INT32_MIN}, {INT32_MIN, 0}};
	(void)state;
	scene_start(&s);
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
		join_refused(&s, raw_join_request(&id, pairs[i][0], pairs[i][1]),
			     NCCLSVC_INVALID_ARGUMENT);
	join_refused(&s, raw_join_request(&id, INT32_MAX, 0), NCCLSVC_LIMIT);
	join_refused(&s, raw_join_request(&id, SVC_RANKS_MAX + 1, 0), NCCLSVC_LIMIT);
	struct svc_join join = raw_join_request(&id, 2, 0);
	join.flags = 16;
	join_refused(&s, join, NCCLSVC_INVALID_ARGUMENT);
	join = raw_join_request(&id, 2, 0);
	join.timeout_ns = UINT64_MAX;
	join_refused(&s, join, NCCLSVC_INVALID_ARGUMENT);
	join = raw_join_request(&id, 2, 0);
	join.device = 0;
	join_refused(&s, join, NCCLSVC_UNSUPPORTED);
	join = (struct svc_join){.flags = SVC_JOIN_WORLD, .rank = 4, .device = SVC_DEVICE_HOST};
	join_refused(&s, join, NCCLSVC_INVALID_ARGUMENT);
	join.rank = -2;
	join_refused(&s, join, NCCLSVC_INVALID_ARGUMENT);
	join.rank = 0;
	join.nranks = 4;
	join_refused(&s, join, NCCLSVC_INVALID_ARGUMENT);
	/* A rank whose join is waiting is taken, for its own session and for others. */
	join = raw_join_request(&id, 2, 0);
	uint32_t request_id = raw_send(&s.r, SVC_JOIN, &join, sizeof(join), NULL, 0);
	join_refused(&s, join, NCCLSVC_RANK_TAKEN);
	struct raw other;
	raw_open(&other, &s.d);
	raw_refused(&other, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_RANK_TAKEN, "rank 0");
	join.rank = 1;
	raw_call(&other, SVC_JOIN, &join, sizeof(join), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	raw_reply_to(&s.r, request_id, &reply);
	CHECK_EQ(reply.header.result, 0);
	raw_close(&other);
	scene_end(&s);
}

static void a_host_daemon_has_no_devices(void **state)
{
	struct daemon d;
	struct raw r;
	struct raw_reply reply;
	static const int32_t devices[] = {-1, 0, 1, 31, INT32_MAX, INT32_MIN};
	int fd = svc_memfd_create("no device's", SVC_PAGE, true);
	(void)state;
	CHECK(fd >= 0);
	daemon_start(&d, "--device", "host", NULL);
	raw_open(&r, &d);
	for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
		struct svc_region_cuda region = {.bytes = SVC_PAGE, .device = devices[i]};
		raw_refused(&r, SVC_REGION_CUDA, &region, sizeof(region), NULL, 0,
			    NCCLSVC_UNSUPPORTED, "device");
		raw_refused(&r, SVC_REGION_CUDA_FD, &region, sizeof(region), &fd, 1,
			    NCCLSVC_UNSUPPORTED, "device");
	}
	struct svc_list list = {.what = SVC_LIST_DEVICES};
	raw_call(&r, SVC_LIST, &list, sizeof(list), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK_EQ(reply.list.count, 0);
	CHECK_EQ(reply.list.record_size, sizeof(ncclsvc_device_info));
	/* A memfd does not match any kind of GPU memory. */
	for (uint32_t kind = 1; kind <= 4; kind++) {
		struct svc_region_add add = {.bytes = SVC_PAGE, .kind = kind};
		raw_refused(&r, SVC_REGION_ADD, &add, sizeof(add), &fd, 1, NCCLSVC_INVALID_ARGUMENT,
			    "");
	}
	close(fd);
	raw_close(&r);
	daemon_stop(&d);
}

/* ---- Records ---- */

struct bad_record {
	const char *what;
	struct svc_record r;
	ncclsvc_result result;
};

#define AR .op = NCCLSVC_ALL_REDUCE, .type = NCCLSVC_INT32, .peer = -1
#define BAD(what, ...)                                                                             \
	{                                                                                          \
		what, {__VA_ARGS__}, NCCLSVC_INVALID_ARGUMENT                                      \
	}

static const struct bad_record bad_records[] = {
	BAD("operation 0", .op = 0, .peer = -1),
	BAD("operation 12", .op = 12, .peer = -1),
	BAD("operation 255", .op = 255, .peer = -1),
	BAD("type 10", .op = NCCLSVC_ALL_REDUCE, .type = 10, .peer = -1, .count = 1),
	BAD("type 255", .op = NCCLSVC_ALL_GATHER, .type = 255, .peer = -1),
	BAD("reduction 5", AR, .redop = 5, .count = 1),
	BAD("reduction 255", AR, .redop = 255, .count = 1),
	BAD("root 1 of 1", .op = NCCLSVC_BROADCAST, .type = NCCLSVC_INT8, .peer = 1),
	BAD("root -1", .op = NCCLSVC_REDUCE, .type = NCCLSVC_INT8, .peer = -1),
	BAD("peer 7", .op = NCCLSVC_SEND, .type = NCCLSVC_INT8, .peer = 7),
	BAD("peer INT_MIN", .op = NCCLSVC_RECV, .type = NCCLSVC_INT8, .peer = INT32_MIN),
	BAD("count overflows", AR, .count = UINT64_MAX),
	BAD("count overflows to little", AR, .count = (UINT64_C(1) << 62) + 1),
	BAD("timeline 64", AR, .flags = SVC_TASK_TIMELINE, .timeline = 64),
	BAD("timeline max", AR, .flags = SVC_TASK_TIMELINE, .timeline = UINT32_MAX),
	BAD("timeline 0", AR, .flags = SVC_TASK_TIMELINE),
	BAD("timeout", AR, .timeout_ns = UINT64_MAX),
	BAD("flags", AR, .flags = 0xfe),
	BAD("a graph without a captured group", AR, .flags = SVC_TASK_TIMELINE, .timeline = 1,
	    .graph = 1),
	BAD("a captured group without a timeline", AR, .flags = SVC_TASK_CAPTURED_GROUP,
	    .value = 1),
	BAD("captured group 0", AR, .flags = SVC_TASK_CAPTURED_GROUP | SVC_TASK_TIMELINE,
	    .timeline = 1),
	BAD("captured group of 33 bits", AR, .flags = SVC_TASK_CAPTURED_GROUP | SVC_TASK_TIMELINE,
	    .timeline = 1, .value = UINT64_C(1) << 32),
	BAD("plan", AR, .flags = SVC_TASK_TIMELINE, .timeline = 1, .plan = 1),
	BAD("a plan's task without a plan", AR, .flags = SVC_TASK_TIMELINE, .timeline = 1,
	    .plan_task = 1),
	BAD("reserved", AR, .flags = SVC_TASK_TIMELINE, .timeline = 1, .reserved = {0, 1}),
	BAD("agreement 0", AR, .flags = SVC_TASK_AGREE),
	BAD("tag without agreement", AR, .flags = SVC_TASK_TIMELINE, .timeline = 1, .tag = 1),
	BAD("agreement and a timeline", AR, .flags = SVC_TASK_AGREE, .agreement = 1, .timeline = 1),
	BAD("agreement and a value", AR, .flags = SVC_TASK_AGREE, .agreement = 1, .value = 1),
	BAD("no region", AR, .count = 1),
	BAD("no source", AR, .count = 1, .dst_region = 1),
	BAD("no destination", AR, .count = 1, .src_region = 1),
	BAD("unknown region", AR, .count = 1, .src_region = 1, .dst_region = 2),
	BAD("region max", AR, .count = 1, .src_region = UINT32_MAX, .dst_region = 1),
	BAD("one too many", AR, .count = BYTES / 4 + 1, .src_region = 1, .dst_region = 1),
	BAD("offset at the end", AR, .count = 1, .src_region = 1, .dst_region = 1,
	    .src_offset = BYTES, .dst_offset = BYTES),
	BAD("offset across the end", AR, .count = 1, .src_region = 1, .dst_region = 1,
	    .src_offset = BYTES - 3, .dst_offset = BYTES - 3),
	BAD("offset wraps", AR, .count = 4, .src_region = 1, .dst_region = 1,
	    .src_offset = UINT64_MAX - 7, .dst_offset = UINT64_MAX - 7),
	BAD("destination alone outside", AR, .count = 4, .src_region = 1, .dst_region = 1,
	    .dst_offset = BYTES - 4),
	BAD("overlap", AR, .count = 16, .src_region = 1, .dst_region = 1, .dst_offset = 4),
};

static void bad_records_fail_alone(void **state)
{
	struct scene s;
	struct raw_reply reply;
	(void)state;
	scene_start(&s);
	CHECK_EQ(s.region.id, 1);
	memset(s.region.base, 0x11, BYTES);
	for (size_t i = 0; i < sizeof(bad_records) / sizeof(bad_records[0]); i++) {
		const struct bad_record *bad = &bad_records[i];
		struct svc_record r = bad->r;
		r.comm = s.comm.comm;
		r.epoch = s.comm.epoch;
		raw_call(&s.r, SVC_SUBMIT, &r, sizeof(r), NULL, 0, &reply);
		ncclsvc_status st = raw_ring_wait(&s.r, raw_ring_submit(&s.r, r));
		if (reply.header.result != bad->result || st.result != bad->result ||
		    reply.body != sizeof(struct svc_error))
			check_failed(__FILE__, __LINE__,
				     "%s: result %d by socket, %d by ring, not %d", bad->what,
				     reply.header.result, st.result, bad->result);
		/* A valid record directly after it succeeds. */
		r = (struct svc_record){.comm = s.comm.comm, .epoch = s.comm.epoch, AR};
		r.count = BYTES / 4;
		r.src_region = r.dst_region = 1;
		CHECK_EQ(raw_ring_wait(&s.r, raw_ring_submit(&s.r, r)).result, 0);
	}
	for (int i = 0; i < BYTES; i++)
		CHECK_EQ(((char *)s.region.base)[i], 0x11);
	scene_end(&s);
}

static void a_bad_record_fails_its_whole_group(void **state)
{
	struct scene s;
	(void)state;
	scene_start(&s);
	struct svc_record good = {
		.comm = s.comm.comm, .epoch = s.comm.epoch, .op = NCCLSVC_BARRIER, .peer = -1};
	struct svc_record bad = good;
	bad.op = 99;
	for (int place = 0; place < 3; place++) {
		uint64_t n[3];
		for (int i = 0; i < 3; i++) {
			struct svc_record r = i == place ? bad : good;
			r.flags = i < 2 ? SVC_TASK_MORE : 0;
			n[i] = raw_ring_submit(&s.r, r);
		}
		for (int i = 0; i < 3; i++)
			CHECK(raw_ring_wait(&s.r, n[i]).result == NCCLSVC_INVALID_ARGUMENT);
		CHECK_EQ(raw_ring_wait(&s.r, raw_ring_submit(&s.r, good)).result, 0);
	}
	/* A group left open is dropped together with its session. */
	good.flags = SVC_TASK_MORE;
	raw_ring_submit(&s.r, good);
	scene_end(&s);
}

static void a_group_has_its_limit(void **state)
{
	struct daemon d;
	struct raw r;
	(void)state;
	time_limit(120);
	daemon_start(&d, NULL);
	raw_open(&r, &d);
	raw_attach(&r, 8192);
	struct svc_join_reply comm = raw_join_alone(&r);
	struct svc_record task = {.comm = comm.comm,
				  .epoch = comm.epoch,
				  .op = NCCLSVC_BARRIER,
				  .peer = -1,
				  .flags = SVC_TASK_MORE};
	uint64_t first = r.last + 1;
	for (int i = 0; i < SVC_GROUP_TASKS; i++)
		raw_ring_submit(&r, task);
	task.flags = 0;
	uint64_t last = raw_ring_submit(&r, task);
	CHECK_EQ(raw_ring_wait(&r, first).result, NCCLSVC_LIMIT);
	CHECK_EQ(raw_ring_wait(&r, last).result, NCCLSVC_LIMIT);
	CHECK_EQ(raw_ring_wait(&r, raw_ring_submit(&r, task)).result, 0);
	raw_close(&r);
	daemon_stop(&d);
}

static void a_region_in_use_is_busy(void **state)
{
	struct daemon d;
	struct raw a, b;
	struct raw_reply reply;
	ncclsvc_unique_id id;
	(void)state;
	daemon_start(&d, NULL);
	raw_open(&a, &d);
	raw_open(&b, &d);
	CHECK_OK(ncclsvc_unique_id_create(&id));
	struct svc_join ja = raw_join_request(&id, 2, 0), jb = raw_join_request(&id, 2, 1);
	uint32_t request_id = raw_send(&a, SVC_JOIN, &ja, sizeof(ja), NULL, 0);
	raw_call(&b, SVC_JOIN, &jb, sizeof(jb), NULL, 0, &reply);
	raw_reply_to(&a, request_id, &reply);
	CHECK_EQ(reply.header.result, 0);
	struct raw_region ra = raw_region(&a, SVC_PAGE), rb = raw_region(&b, SVC_PAGE);
	struct svc_record task = {.comm = reply.join.comm, .epoch = reply.join.epoch, AR};
	task.count = 4;
	task.src_region = task.dst_region = 1;
	request_id = raw_send(&a, SVC_SUBMIT, &task, sizeof(task), NULL, 0);
	struct svc_region_del del = {.region = ra.id};
	raw_refused(&a, SVC_REGION_DEL, &del, sizeof(del), NULL, 0, NCCLSVC_BUSY, "region 1");
	CHECK_EQ(raw_submit_wait(&b, task).result, 0);
	raw_reply_to(&a, request_id, &reply);
	CHECK_EQ(reply.header.result, 0);
	raw_call(&a, SVC_REGION_DEL, &del, sizeof(del), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	raw_refused(&a, SVC_REGION_DEL, &del, sizeof(del), NULL, 0, NCCLSVC_NOT_FOUND, "");
	raw_refused(&a, SVC_SUBMIT, &task, sizeof(task), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "region");
	raw_region_close(&ra);
	raw_region_close(&rb);
	raw_close(&a);
	raw_close(&b);
	daemon_stop(&d);
}

/* ---- The memory of a session that has come back ---- */

static void memory_refused(const struct daemon *d, int fd, ncclsvc_result result, const char *text)
{
	struct raw r;
	const struct svc_attach attach = {.entries = 16};
	raw_open(&r, d);
	raw_refused(&r, SVC_ATTACH_AGAIN, &attach, sizeof(attach), &fd, 1, result, text);
	raw_attach(&r, 16); /* the session is as it was */
	raw_close(&r);
}

static int memory_of(size_t bytes, int seals)
{
	const int fd = svc_memfd_create("memory", bytes, false);
	CHECK(fd >= 0);
	CHECK(!seals || !fcntl(fd, F_ADD_SEALS, seals));
	return fd;
}

static void forged_memory_is_refused(void **state)
{
	struct daemon d;
	const size_t bytes = svc_ring_size(16);
	const int file = open("/dev/zero", O_RDWR | O_CLOEXEC);
	const int whole = memory_of(bytes, 0), shorter = memory_of(bytes - SVC_PAGE, 0),
		  longer = memory_of(bytes + SVC_PAGE, 0),
		  write_sealed = memory_of(bytes, F_SEAL_WRITE);
	(void)state;
	daemon_start(&d, NULL);
	memory_refused(&d, file, NCCLSVC_INVALID_ARGUMENT, "not a memfd");
	memory_refused(&d, shorter, NCCLSVC_INVALID_ARGUMENT, "smaller");
	memory_refused(&d, longer, NCCLSVC_INVALID_ARGUMENT, "not a ring of 16 entries");
	memory_refused(&d, write_sealed, NCCLSVC_INVALID_ARGUMENT, "sealed against writing");
	struct raw r;
	const struct svc_attach odd = {.entries = 17};
	raw_open(&r, &d);
	raw_refused(&r, SVC_ATTACH_AGAIN, &odd, sizeof(odd), &whole, 1, NCCLSVC_INVALID_ARGUMENT,
		    "power of two");
	raw_close(&r);
	svc_close_fds((int[]){file, whole, shorter, longer, write_sealed}, 5);
	daemon_stop(&d);
}

/* The memory says which processes may still write to it. */
static void memory_is_refused_while_its_writers_run(void **state)
{
	struct daemon d, other;
	struct raw r;
	struct raw_reply reply;
	const struct svc_attach attach = {.entries = 16};
	const size_t bytes = svc_ring_size(16);
	const int fd = memory_of(bytes, 0);
	struct svc_ring *ring = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	(void)state;
	CHECK(ring != MAP_FAILED);
	daemon_start(&d, NULL);
	daemon_start(&other, NULL);
	raw_open(&r, &d);
	ring->daemon = other.pid;
	raw_refused(&r, SVC_ATTACH_AGAIN, &attach, sizeof(attach), &fd, 1, NCCLSVC_AGAIN,
		    "has not exited");
	ring->daemon = getpid(); /* it is no daemon's process */
	ring->workers[SVC_RING_WORKERS - 1] = other.pid;
	raw_refused(&r, SVC_ATTACH_AGAIN, &attach, sizeof(attach), &fd, 1, NCCLSVC_AGAIN,
		    "has not exited");
	ring->workers[0] = INT32_MIN;
	daemon_stop(&other);
	raw_call(&r, SVC_ATTACH_AGAIN, &attach, sizeof(attach), &fd, 1, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK_EQ(ring->daemon, d.pid);
	svc_close_fds(reply.fds, 3);
	raw_close(&r);
	munmap(ring, bytes);
	close(fd);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(unknown_ids_are_not_found),
		TEST(joins_out_of_range_are_refused),
		TEST(a_host_daemon_has_no_devices),
		TEST(bad_records_fail_alone),
		TEST(a_bad_record_fails_its_whole_group),
		TEST(a_group_has_its_limit),
		TEST(a_region_in_use_is_busy),
		TEST(forged_memory_is_refused),
		TEST(memory_is_refused_while_its_writers_run),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
