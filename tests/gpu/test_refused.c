/* SPDX-License-Identifier: Apache-2.0
 * Impossible requests are refused with a sentence that says why, and nothing breaks. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ranks.h"
#include "tests/integration/harness_raw.h"

#define MIB   ((size_t)1 << 20)
#define BYTES (4 * MIB)

/* Checks that an AllReduce on that memory is refused with this result, and a sentence that contains
 * the word. */
static void refused(struct rank *r, CUdeviceptr p, size_t count, ncclsvc_result result,
		    const char *word)
{
	stage("memory that is refused: %s", word);
	CHECK_RESULT(
		ncclsvc_all_reduce(at(p), at(p), count, NCCLSVC_UINT8, NCCLSVC_SUM, r->comm, NULL),
		result);
	if (!strstr(ncclsvc_last_error(), word))
		check_failed(__FILE__, __LINE__, "the sentence does not say \"%s\": %s", word,
			     ncclsvc_last_error());
}

static void host_memory(struct rank *r)
{
	void *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	refused(r, (uintptr_t)p, 64, NCCLSVC_UNSUPPORTED, "device memory");
	CHECK_CU(cu.cuMemHostRegister(p, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
	refused(r, (uintptr_t)p, 64, NCCLSVC_UNSUPPORTED, "host memory");
	CHECK_CU(cu.cuMemHostUnregister(p));
	munmap(p, BYTES);
	p = shared(r->session, BYTES);
	refused(r, (uintptr_t)p, 64, NCCLSVC_UNSUPPORTED, "device memory");
	CHECK_OK(ncclsvc_mem_free(r->session, p));
}

static void pool_memory(struct rank *r)
{
	CUdeviceptr p;
	CHECK_CU(cu.cuMemAllocAsync(&p, BYTES, r->stream));
	CHECK_CU(cu.cuStreamSynchronize(r->stream));
	refused(r, p, 64, NCCLSVC_UNSUPPORTED, "pool");
	CHECK_CU(cu.cuMemFreeAsync(p, r->stream));
	CHECK_CU(cu.cuStreamSynchronize(r->stream));
}

static void managed_memory(struct rank *r)
{
	CUdeviceptr p;
	CUresult (*allocate)(CUdeviceptr *, size_t, unsigned) = gpu_function("cuMemAllocManaged");
	if (!allocate) /* the stand-in has none */
		return;
	CHECK_CU(allocate(&p, BYTES, 1 /* CU_MEM_ATTACH_GLOBAL */));
	refused(r, p, 64, NCCLSVC_UNSUPPORTED, "managed");
	CHECK_CU(cu.cuMemFree(p));
}

/* Memory of cuMemCreate that cannot be shared. */
static void private_memory(struct rank *r)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = r->gpu},
	};
	CUmemAccessDesc access = {.location = prop.location,
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr p;
	CHECK_CU(cu.cuMemCreate(&handle, BYTES, &prop, 0));
	CHECK_CU(cu.cuMemAddressReserve(&p, BYTES, 0, 0, 0));
	CHECK_CU(cu.cuMemMap(p, BYTES, 0, handle, 0));
	CHECK_CU(cu.cuMemSetAccess(p, BYTES, &access, 1));
	refused(r, p, 64, NCCLSVC_UNSUPPORTED, "POSIX");
	CHECK_CU(cu.cuMemUnmap(p, BYTES));
	CHECK_CU(cu.cuMemAddressFree(p, BYTES));
	CHECK_CU(cu.cuMemRelease(handle));
}

static void beyond_its_end(struct rank *r)
{
	for (int kind = 0; kind < MEMORY_KINDS; kind++) {
		struct buffer b;
		buffer_make(&b, kind, r->gpu, r->session, BYTES);
		for (int known = 0; known < 2; known++) {
			refused(r, b.p, b.bytes + 1, NCCLSVC_INVALID_ARGUMENT, "ends after");
			refused(r, b.p + b.bytes - 64, 65, NCCLSVC_INVALID_ARGUMENT,
				"ends after 64");
			CHECK_OK(ncclsvc_all_reduce(at(b.p), at(b.p), b.bytes, NCCLSVC_UINT8,
						    NCCLSVC_SUM, r->comm, NULL));
		}
		CHECK(gpu_stream_ends(r->stream, WAIT_MS));
		CHECK_OK(ncclsvc_wait_all(r->session, WAIT_MS)); /* the GPU may be done first */
		buffer_free(&b);
		stage("freed memory");
		CHECK(ncclsvc_all_reduce(at(b.p), at(b.p), 64, NCCLSVC_UINT8, NCCLSVC_SUM, r->comm,
					 NULL) != NCCLSVC_OK);
	}
}

static void another_gpus(struct rank *r)
{
	struct buffer b;
	if (setup.gpus < 2)
		return;
	gpu_use(r->gpu + 1);
	buffer_make(&b, MEMORY_ALLOC, r->gpu + 1, r->session, BYTES);
	CUstream stream = gpu_stream();
	gpu_use(r->gpu);
	refused(r, b.p, 64, NCCLSVC_INVALID_ARGUMENT, "GPU 1");
	CHECK_CU(cu.cuMemFree(b.p));
	CHECK_CU(cu.cuMemAlloc(&b.p, BYTES));
	CHECK_OK(ncclsvc_stream_set(r->session, stream, 0));
	refused(r, b.p, 64, NCCLSVC_INVALID_ARGUMENT, "stream belongs to GPU 1");
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, 0));
	CHECK_CU(cu.cuMemFree(b.p));
	CHECK_CU(cu.cuStreamDestroy(stream));
}

static void memory_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	host_memory(&r);
	pool_memory(&r);
	managed_memory(&r);
	private_memory(&r);
	beyond_its_end(&r);
	another_gpus(&r);
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_memory(void)
{
	ranks_run(1, memory_rank, NULL);
}

/* ---- Without the client library ---- */

static struct svc_region_cuda region_request(CUdeviceptr p, size_t bytes)
{
	struct svc_region_cuda request = {.bytes = bytes, .base = p, .buffer_id = p};
	CUipcMemHandle handle;
	CHECK_CU(cu.cuIpcGetMemHandle(&handle, p));
	memcpy(request.handle, &handle, sizeof(request.handle));
	return request;
}

/* Handles that do not match their requests. */
static void lies(struct client *c, CUdeviceptr p)
{
	struct raw raw;
	raw_open(&raw, c->daemon);
	stage("a size beyond the allocation's end");
	struct svc_region_cuda request = region_request(p, 64 * MIB);
	raw_refused(&raw, SVC_REGION_CUDA, &request, sizeof(request), NULL, 0,
		    NCCLSVC_INVALID_ARGUMENT, "shorter");
	stage("a handle that names no memory");
	memset(request.handle, 0x5a, sizeof(request.handle));
	request.buffer_id++;
	raw_refused(&raw, SVC_REGION_CUDA, &request, sizeof(request), NULL, 0, NCCLSVC_SYSTEM,
		    "cannot be opened");
	stage("a device that does not exist");
	request.device = 99;
	raw_refused(&raw, SVC_REGION_CUDA, &request, sizeof(request), NULL, 0, NCCLSVC_UNSUPPORTED,
		    "99");
	stage("a file that is not GPU memory");
	request = (struct svc_region_cuda){.bytes = BYTES};
	int fd = svc_memfd_create("not GPU memory", BYTES, true);
	CHECK(fd >= 0);
	raw_refused(&raw, SVC_REGION_CUDA_FD, &request, sizeof(request), &fd, 1, NCCLSVC_SYSTEM,
		    "cannot be imported");
	raw_close(&raw);
	close(fd);
}

/* File descriptors of other kinds than GPU memory. */
static void no_memory(struct client *c)
{
	struct raw raw;
	const struct svc_region_cuda request = {.bytes = BYTES};
	int fds[] = {open("/dev/null", O_RDWR | O_CLOEXEC),
		     socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
		     open("/proc/self/exe", O_RDONLY | O_CLOEXEC)};
	raw_open(&raw, c->daemon);
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
		stage("descriptor %zu that is not GPU memory", i);
		CHECK(fds[i] >= 0);
		raw_refused(&raw, SVC_REGION_CUDA_FD, &request, sizeof(request), &fds[i], 1,
			    NCCLSVC_INVALID_ARGUMENT, "not GPU memory");
		close(fds[i]);
	}
	raw_close(&raw);
}

static uint32_t raw_mapping(struct raw *raw, const struct buffer *b)
{
	CUmemGenericAllocationHandle handle;
	struct raw_reply reply;
	struct svc_region_cuda request = {.bytes = b->bytes, .base = b->p};
	int fd;
	CHECK_CU(cu.cuMemRetainAllocationHandle(&handle, at(b->p)));
	CHECK_CU(cu.cuMemExportToShareableHandle(&fd, handle,
						 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	CHECK_CU(cu.cuMemRelease(handle));
	raw_call(raw, SVC_REGION_CUDA_FD, &request, sizeof(request), &fd, 1, &reply);
	CHECK_EQ(reply.header.result, 0);
	close(fd);
	return reply.region.region;
}

static void range_refused(struct raw *raw, struct svc_region_range request, const char *why)
{
	stage("a range: %s", why);
	raw_refused(raw, SVC_REGION_RANGE, &request, sizeof(request), NULL, 0,
		    NCCLSVC_INVALID_ARGUMENT, why);
}

static uint32_t raw_join_gpu(struct raw *raw, struct svc_record *record)
{
	struct raw_reply reply;
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	struct svc_join join = raw_join_request(&id, 1, 0);
	join.device = 0;
	raw_call(raw, SVC_JOIN, &join, sizeof(join), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	*record = (struct svc_record){.comm = reply.join.comm,
				      .epoch = reply.join.epoch,
				      .op = NCCLSVC_ALL_REDUCE,
				      .type = NCCLSVC_FLOAT32,
				      .peer = -1,
				      .count = 16};
	return reply.join.comm;
}

/* Registers one allocation twice: one region works without the other, and no memory leaks. */
static void two_names(struct client *c)
{
	struct raw raw;
	struct raw_reply reply;
	struct svc_record record;
	CUdeviceptr p;
	const size_t bytes = 256 * MIB;
	raw_open(&raw, c->daemon);
	raw_join_gpu(&raw, &record);
	stage("one allocation under two names");
	const size_t unused = gpu_unused_memory();
	CHECK_CU(cu.cuMemAlloc(&p, bytes));
	struct svc_region_cuda request = region_request(p, bytes);
	raw_call(&raw, SVC_REGION_CUDA, &request, sizeof(request), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	struct svc_region_del del = {.region = reply.region.region};
	request.buffer_id++;
	raw_call(&raw, SVC_REGION_CUDA, &request, sizeof(request), NULL, 0, &reply);
	if (!reply.header.result) { /* the driver may refuse it */
		record.src_region = record.dst_region = reply.region.region;
		raw_call(&raw, SVC_REGION_DEL, &del, sizeof(del), NULL, 0, &reply);
		CHECK_EQ(reply.header.result, 0);
		CHECK_EQ(raw_submit_wait(&raw, record).result, 0);
	}
	raw_close(&raw);
	CHECK_CU(cu.cuMemFree(p));
	CHECK(gpu_has_unused(unused - bytes / 2, WAIT_MS));
}

/* A range of n times the same part, of `bytes` bytes. */
static struct svc_region_range times(uint32_t part, uint32_t n, uint64_t bytes)
{
	struct svc_region_range r = {.bytes = n * bytes, .count = n};
	for (uint32_t i = 0; i < n; i++)
		r.parts[i] = part;
	return r;
}

/* Ranges of ranges of ranges: the limit is on the mappings that a worker makes. */
static void deep_ranges(struct raw *raw, uint32_t part, uint64_t bytes)
{
	const uint32_t n[] = {100, 10};
	struct raw_reply reply;
	for (size_t i = 0; i < sizeof(n) / sizeof(n[0]); i++) {
		const struct svc_region_range r = times(part, n[i], bytes);
		raw_call(raw, SVC_REGION_RANGE, &r, sizeof(r), NULL, 0, &reply);
		CHECK_EQ(reply.header.result, 0);
		part = reply.region.region;
		bytes = r.bytes;
	}
	range_refused(raw, times(part, 100, bytes), "at most 65536 mappings");
}

/* Ranges of missing or unsuitable parts, and one that outlives its parts. */
static void ranges(struct client *c, CUdeviceptr p)
{
	struct raw raw;
	struct raw_reply reply;
	struct buffer b;
	raw_open(&raw, c->daemon);
	buffer_make(&b, MEMORY_VMM, 0, NULL, BYTES);
	uint32_t part = raw_mapping(&raw, &b);
	struct svc_region_cuda ipc = region_request(p, BYTES);
	raw_call(&raw, SVC_REGION_CUDA, &ipc, sizeof(ipc), NULL, 0, &reply);
	uint32_t other = reply.region.region;
	struct svc_region_range r = {.bytes = 2 * b.bytes, .count = 2, .parts = {part, part}}, q;
	q = r, q.count = 1, q.parts[1] = 0;
	range_refused(&raw, q, "2 to 112 parts");
	q = r, q.count = SVC_RANGE_PARTS + 1;
	range_refused(&raw, q, "2 to 112 parts");
	q = r, q.parts[2] = part;
	range_refused(&raw, q, "not zero");
	q = r, q.parts[1] = 4000;
	range_refused(&raw, q, "not a region of this session");
	q = r, q.parts[1] = 0;
	range_refused(&raw, q, "not a region of this session");
	q = r, q.parts[1] = other;
	range_refused(&raw, q, "not memory of cuMemCreate");
	q = r, q.bytes++;
	range_refused(&raw, q, "sum of the parts");
	deep_ranges(&raw, part, b.bytes);
	stage("a range that outlives its part");
	raw_call(&raw, SVC_REGION_RANGE, &r, sizeof(r), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	struct svc_region_del del = {.region = part};
	raw_call(&raw, SVC_REGION_DEL, &del, sizeof(del), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	q = r;
	range_refused(&raw, q, "not a region of this session");
	raw_close(&raw);
	buffer_free(&b);
}

static void redop_refused(struct raw *raw, struct svc_redop_add request, int result,
			  const char *why)
{
	stage("a reduction: %s", why);
	raw_refused(raw, SVC_REDOP_ADD, &request, sizeof(request), NULL, 0, result, why);
}

/* Bad requests for reductions, and a task that names a deleted one. */
static void redops(struct client *c, CUdeviceptr p)
{
	struct raw raw;
	struct raw_reply reply;
	struct svc_record record;
	raw_open(&raw, c->daemon);
	struct svc_redop_add good = {.comm = raw_join_gpu(&raw, &record), .type = NCCLSVC_FLOAT32},
			     r;
	r = good, r.comm = 77;
	redop_refused(&raw, r, NCCLSVC_NOT_FOUND, "no communicator 77");
	r = good, r.comm = raw_join_alone(&raw).comm;
	redop_refused(&raw, r, NCCLSVC_UNSUPPORTED, "is on the host");
	for (unsigned type = NCCLSVC_BOOL; type <= NCCLSVC_UINT4 + 1; type++) {
		r = good, r.type = (uint8_t)type;
		redop_refused(&raw, r, NCCLSVC_INVALID_ARGUMENT, "cannot be reduced");
	}
	r = good, r.scalar[4] = 1;
	redop_refused(&raw, r, NCCLSVC_INVALID_ARGUMENT, "not zero");
	struct svc_redop_del del = {.comm = good.comm, .redop = 3};
	raw_refused(&raw, SVC_REDOP_DEL, &del, sizeof(del), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "was not created by REDOP_ADD");
	for (int i = 0; i < SVC_REDOPS_MADE; i++) {
		raw_call(&raw, SVC_REDOP_ADD, &good, sizeof(good), NULL, 0, &reply);
		CHECK_EQ(reply.header.result, 0);
	}
	redop_refused(&raw, good, NCCLSVC_LIMIT, "at most 48");
	del.redop = SVC_REDOP_MADE + 9;
	for (int i = 0; i < 2; i++) { /* deleting it again does no harm */
		raw_call(&raw, SVC_REDOP_DEL, &del, sizeof(del), NULL, 0, &reply);
		CHECK_EQ(reply.header.result, 0);
	}
	stage("attaching a ring after joining a communicator of GPUs");
	const struct svc_attach attach = {.entries = 16};
	raw_refused(&raw, SVC_ATTACH, &attach, sizeof(attach), NULL, 0, NCCLSVC_PROTOCOL,
		    "attach before");
	stage("a task with a destroyed reduction");
	struct svc_region_cuda request = region_request(p, BYTES);
	raw_call(&raw, SVC_REGION_CUDA, &request, sizeof(request), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	record.src_region = record.dst_region = reply.region.region;
	record.redop = SVC_REDOP_MADE + 8;
	CHECK_EQ(raw_submit_wait(&raw, record).result, 0);
	record.redop = SVC_REDOP_MADE + 9;
	CHECK(raw_submit_wait(&raw, record).result != 0);
	raw_close(&raw);
}

/* More requests than a busy worker may have. */
static void many_redops(struct client *c, pid_t worker)
{
	struct raw raw;
	struct raw_reply reply;
	struct svc_record record;
	uint32_t request_ids[SVC_REDOPS_ASKED];
	raw_open(&raw, c->daemon);
	const struct svc_redop_add add = {.comm = raw_join_gpu(&raw, &record),
					  .type = NCCLSVC_FLOAT32};
	stage("many reductions at once");
	process_stop(worker);
	for (int i = 0; i < SVC_REDOPS_ASKED; i++)
		request_ids[i] = raw_send(&raw, SVC_REDOP_ADD, &add, sizeof(add), NULL, 0);
	redop_refused(&raw, add, NCCLSVC_BUSY, "no answer yet");
	CHECK_EQ(kill(worker, SIGCONT), 0);
	for (int i = 0; i < SVC_REDOPS_ASKED; i++) {
		raw_reply_to(&raw, request_ids[i], &reply);
		CHECK_EQ(reply.header.result, i < SVC_REDOPS_MADE ? 0 : NCCLSVC_LIMIT);
	}
	for (uint32_t i = 0; i < SVC_REDOPS_MADE; i++) {
		const struct svc_redop_del del = {add.comm, SVC_REDOP_MADE + i};
		raw_call(&raw, SVC_REDOP_DEL, &del, sizeof(del), NULL, 0, &reply);
		CHECK_EQ(reply.header.result, 0);
	}
	raw_call(&raw, SVC_REDOP_ADD, &add, sizeof(add), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	raw_close(&raw);
}

/* More requests than a worker gets at a time. A session that ends meanwhile leaves nothing
 * behind. */
static void many_imports(struct client *c, CUdeviceptr p, pid_t worker, ncclsvc_session *session)
{
	enum { IMPORTS = 64 };
	struct raw gone, raw;
	struct raw_reply reply;
	const struct svc_region_cuda request = region_request(p, BYTES);
	const uint32_t before = device_info(session, 0).imports;
	stage("many imports at once");
	raw_open(&gone, c->daemon);
	raw_open(&raw, c->daemon);
	process_stop(worker);
	for (int i = 0; i < IMPORTS; i++)
		raw_send(&gone, SVC_REGION_CUDA, &request, sizeof(request), NULL, 0);
	for (int i = 0; i < IMPORTS; i++)
		raw_send(&raw, SVC_REGION_CUDA, &request, sizeof(request), NULL, 0);
	raw_close(&gone);
	CHECK_EQ(kill(worker, SIGCONT), 0);
	for (int i = 0; i < IMPORTS; i++) {
		CHECK(raw_next(&raw, &reply)); /* in any order */
		CHECK_EQ(reply.header.result, 0);
	}
	raw_close(&raw);
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;
	     device_info(session, 0).imports > before; sleep_ms(10))
		CHECK(now_ns() < end);
}

/* A session that names regions of other sessions, or bytes beyond its own region. */
static void thieves(struct client *c, CUdeviceptr p)
{
	static const char why[] = "is not within a region of this session";
	struct raw raw;
	struct raw_reply reply;
	ncclsvc_unique_id id;
	raw_open(&raw, c->daemon);
	CHECK_OK(ncclsvc_unique_id_create(&id));
	struct svc_join join = raw_join_request(&id, 1, 0);
	join.device = 0;
	raw_call(&raw, SVC_JOIN, &join, sizeof(join), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	struct svc_record record = {.comm = reply.join.comm,
				    .epoch = reply.join.epoch,
				    .op = NCCLSVC_ALL_REDUCE,
				    .type = NCCLSVC_UINT8,
				    .peer = -1,
				    .count = 64};
	for (uint32_t region = 1; region < 4; region++) {
		stage("naming region %u of others", region);
		record.src_region = record.dst_region = region;
		raw_refused(&raw, SVC_SUBMIT, &record, sizeof(record), NULL, 0,
			    NCCLSVC_INVALID_ARGUMENT, why);
	}
	struct svc_region_cuda request = region_request(p, BYTES);
	raw_call(&raw, SVC_REGION_CUDA, &request, sizeof(request), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	record.src_region = record.dst_region = reply.region.region;
	static const uint64_t offsets[] = {BYTES - 63, BYTES, UINT64_MAX - 32, UINT64_MAX};
	for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
		stage("offset %llu", (unsigned long long)offsets[i]);
		record.dst_offset = offsets[i];
		raw_refused(&raw, SVC_SUBMIT, &record, sizeof(record), NULL, 0,
			    NCCLSVC_INVALID_ARGUMENT, "");
	}
	record.src_offset = record.dst_offset = BYTES - 64;
	CHECK_EQ(raw_submit_wait(&raw, record).result, 0);
	raw_close(&raw);
}

static void raw_rank(struct client *c)
{
	struct rank r;
	struct buffer b;
	rank_open(&r, c);
	buffer_make(&b, MEMORY_ALLOC, r.gpu, r.session, BYTES);
	CHECK_OK(
		ncclsvc_all_reduce(at(b.p), at(b.p), 64, NCCLSVC_UINT8, NCCLSVC_SUM, r.comm, NULL));
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	pid_t worker = device_info(r.session, 0).pid;
	lies(c, b.p);
	no_memory(c);
	two_names(c);
	ranges(c, b.p);
	redops(c, b.p);
	many_redops(c, worker);
	many_imports(c, b.p, worker, r.session);
	thieves(c, b.p);
	stage("checking that the session is still usable");
	rank_check_usable(&r);
	CHECK_EQ(device_info(r.session, 0).pid, worker);
	buffer_free(&b);
	rank_close(&r);
}

static void test_raw(void)
{
	ranks_run(1, raw_rank, NULL);
}

/* ---- Streams ---- */

static void capture_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	CUgraph graph;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, BYTES));
	gpu_fill(p, 1, 64);
	CHECK_CU(cu.cuStreamBeginCapture(r.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	stage("a message to oneself");
	CHECK_RESULT(ncclsvc_send(at(p), 64, NCCLSVC_UINT8, 0, r.comm, NULL), NCCLSVC_UNSUPPORTED);
	CHECK(strstr(ncclsvc_last_error(), "captured"));
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), 64, NCCLSVC_UINT8, NCCLSVC_SUM, r.comm, NULL));
	CHECK_CU(cu.cuStreamEndCapture(r.stream, &graph)); /* the capture is still valid */
	if (graph)
		CHECK_CU(cu.cuGraphDestroy(graph));
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_capture(void)
{
	ranks_run(1, capture_rank, NULL);
}

const struct gpu_test refused_tests[] = {
	{"refused/memory", test_memory, 1, 60, TEST_QUICK},
	{"refused/raw", test_raw, 1, 60, TEST_QUICK},
	{"refused/capture", test_capture, 1, 60, TEST_QUICK},
	{0},
};
