/* SPDX-License-Identifier: Apache-2.0
 * Device memory: registration, refusals, memory of the session, GPUs out of reach. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client_cuda.h"
#include "proto/abi/peer_abi.h"

static ncclsvc_result try_reduce(ncclsvc_comm *comm, const void *from, void *to, size_t n)
{
	return ncclsvc_all_reduce(from, to, n, NCCLSVC_FLOAT32, NCCLSVC_SUM, comm, NULL);
}

static void an_allocation_is_registered_once(void **state)
{
	ncclsvc_comm *comm;
	CUstream stream;
	(void)state;
	ncclsvc_session *s = open_gpu(&comm, &stream);
	CUdeviceptr a = new_memory(4 * MiB), b = new_memory(MiB);
	assert_int_equal(try_reduce(comm, pointer(a + 4096), pointer(a + 2 * MiB), 100),
			 NCCLSVC_OK);
	struct svc_record r = record(1);
	assert_int_equal(peer.ncuda, 1);
	assert_int_equal(peer.cuda[0].bytes, 4 * MiB);
	assert_int_equal(peer.cuda[0].base, a);
	assert_int_equal(peer.cuda[0].device, DAEMON_DEVICE(0));
	assert_int_equal(r.src_region, peer.cuda_ids[0]);
	assert_int_equal(r.dst_region, peer.cuda_ids[0]);
	assert_int_equal(r.src_offset, 4096);
	assert_int_equal(r.dst_offset, 2 * MiB);
	assert_int_equal(try_reduce(comm, pointer(a), pointer(b), 100), NCCLSVC_OK);
	assert_int_equal(peer.ncuda, 2);
	assert_int_equal(record(2).src_region, peer.cuda_ids[0]);
	assert_int_equal(record(2).dst_region, peer.cuda_ids[1]);
	reduce(comm, b, 100);
	assert_int_equal(record(3).src_region, peer.cuda_ids[1]);
	assert_int_equal(peer.ncuda, 2);
	/* A buffer may extend to the allocation's last byte, but not beyond. */
	reduce(comm, b, MiB / 4);
	assert_int_equal(try_reduce(comm, pointer(b + 4), pointer(b + 4), MiB / 4),
			 NCCLSVC_INVALID_ARGUMENT);
	says("ends after 1048572");
	assert_int_equal(peer.opcodes[SVC_REGION_ADD], 0);
	ncclsvc_close(s);
	GOOD(cu.cuMemFree(a));
	GOOD(cu.cuMemFree(b));
	GOOD(cu.cuStreamDestroy(stream));
}

static void freed_memory_is_another_when_it_comes_back(void **state)
{
	ncclsvc_comm *comm;
	CUstream stream;
	(void)state;
	ncclsvc_session *s = open_gpu(&comm, &stream);
	CUdeviceptr a = new_memory(8 * MiB), other = new_memory(8 * MiB);
	reduce(comm, a, 100);
	wait_ready(record(1).timeline, 1);
	GOOD(cu.cuMemFree(a));
	CUdeviceptr b = new_memory(8 * MiB);
	assert_int_equal(a, b); /* otherwise this tests nothing */
	reduce(comm, b, 100);
	assert_int_equal(peer.ncuda, 2);
	assert_int_not_equal(peer.cuda[0].buffer_id, peer.cuda[1].buffer_id);
	assert_int_equal(record(2).src_region, peer.cuda_ids[1]);
	/* A pending task used the old memory. */
	peer_sync(s);
	assert_int_equal(peer.ndeleted, 0);
	work(1);
	assert_int_equal(ncclsvc_wait_all(s, 0), NCCLSVC_TIMEOUT);
	peer_sync(s);
	assert_int_equal(peer.ndeleted, 1);
	assert_int_equal(peer.deleted[0], peer.cuda_ids[0]);
	/* Freed memory is dropped when the next is registered, even if its address is not reused.
	 */
	work(2);
	assert_int_equal(ncclsvc_wait_all(s, WAIT_MS), NCCLSVC_OK);
	GOOD(cu.cuMemFree(b));
	reduce(comm, other, 100);
	peer_sync(s);
	assert_int_equal(peer.ndeleted, 2);
	assert_int_equal(peer.deleted[1], peer.cuda_ids[1]);
	ncclsvc_close(s);
	GOOD(cu.cuMemFree(other));
	GOOD(cu.cuStreamDestroy(stream));
}

/* As with expandable segments: one address range, several mappings. */
static void mappings_are_registered_one_by_one(void **state)
{
	ncclsvc_comm *comm;
	CUstream stream;
	CUdeviceptr p;
	(void)state;
	ncclsvc_session *s = open_gpu(&comm, &stream);
	const size_t one = 2 * MiB;
	GOOD(cu.cuMemAddressReserve(&p, 3 * one, 0, 0, 0));
	map_at(p, one, create(one, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	map_at(p + one, one, create(one, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	map_at(p + 2 * one, one, create(one, 0));
	unsigned fds = open_fds();
	assert_int_equal(try_reduce(comm, pointer(p + 8), pointer(p + one + 16), 100), NCCLSVC_OK);
	assert_int_equal(peer.opcodes[SVC_REGION_CUDA_FD], 2);
	assert_int_equal(peer.opcodes[SVC_REGION_CUDA], 0);
	assert_int_equal(peer.cuda[1].base, p + one);
	assert_int_equal(peer.cuda[1].bytes, one);
	assert_int_equal(record(1).src_offset, 8);
	assert_int_equal(record(1).dst_offset, 16);
	assert_int_equal(open_fds(), fds);
	assert_int_equal(try_reduce(comm, pointer(p + one + 64), pointer(p + one + 64), one / 4),
			 NCCLSVC_UNSUPPORTED);
	says("without a POSIX handle type");
	assert_int_equal(peer.opcodes[SVC_REGION_RANGE], 0);
	assert_int_equal(try_reduce(comm, pointer(p + 2 * one), pointer(p + 2 * one), 1),
			 NCCLSVC_UNSUPPORTED);
	says("without a POSIX handle type");
	/* Another allocation at the same address. */
	work(1);
	assert_int_equal(ncclsvc_wait_all(s, WAIT_MS), NCCLSVC_OK);
	GOOD(cu.cuMemUnmap(p, one));
	map_at(p, one, create(one, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	reduce(comm, p, 1);
	assert_int_equal(peer.opcodes[SVC_REGION_CUDA_FD], 3);
	peer_sync(s);
	assert_int_equal(peer.ndeleted, 1);
	assert_int_equal(peer.deleted[0], peer.cuda_ids[0]);
	/* Freed mappings do not hide a larger one at the same address. */
	for (int i = 0; i < 3; i++)
		GOOD(cu.cuMemUnmap(p + (size_t)i * one, one));
	map_at(p, 2 * one, create(2 * one, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	reduce(comm, p + one + 8, 1);
	assert_int_equal(peer.cuda[3].bytes, 2 * one);
	assert_int_equal(record(3).src_offset, one + 8);
	ncclsvc_close(s);
	GOOD(cu.cuMemUnmap(p, 2 * one));
	GOOD(cu.cuMemAddressFree(p, 3 * one));
	GOOD(cu.cuStreamDestroy(stream));
}

/* A buffer across mappings gets one region for all of them, which is dropped with any of them. */
static void mappings_make_a_range(void **state)
{
	ncclsvc_comm *comm;
	CUstream stream;
	CUdeviceptr p;
	(void)state;
	ncclsvc_session *s = open_gpu(&comm, &stream);
	const size_t one = 2 * MiB;
	GOOD(cu.cuMemAddressReserve(&p, 4 * one, 0, 0, 0));
	for (size_t i = 0; i < 3; i++)
		map_at(p + i * one, one, create(one, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	unsigned fds = open_fds();
	assert_int_equal(try_reduce(comm, pointer(p + 64), pointer(p + 64), one / 4), NCCLSVC_OK);
	assert_int_equal(peer.opcodes[SVC_REGION_CUDA_FD], 2);
	assert_int_equal(peer.opcodes[SVC_REGION_RANGE], 1);
	assert_int_equal(peer.range.count, 2);
	assert_int_equal(peer.range.bytes, 2 * one);
	assert_int_equal(peer.range.parts[0], peer.cuda_ids[0]);
	assert_int_equal(peer.range.parts[1], peer.cuda_ids[1]);
	assert_int_equal(record(1).src_region, peer.range_id);
	assert_int_equal(record(1).src_offset, 64);
	assert_int_equal(open_fds(), fds);
	/* The range is known, and no part of it is registered again. */
	assert_int_equal(try_reduce(comm, pointer(p + 8), pointer(p + 8), one / 4), NCCLSVC_OK);
	assert_int_equal(peer.opcodes[SVC_REGION_RANGE], 1);
	/* A buffer inside one mapping uses that mapping's region. */
	assert_int_equal(try_reduce(comm, pointer(p + one), pointer(p + one), 4), NCCLSVC_OK);
	assert_int_equal(record(3).src_region, peer.cuda_ids[1]);
	/* This buffer ends beyond the last mapping. */
	assert_int_equal(try_reduce(comm, pointer(p + 8), pointer(p + 8), 3 * one / 4),
			 NCCLSVC_INVALID_ARGUMENT);
	says("its memory ends after");
	for (unsigned i = 1; i <= 3; i++)
		work(i);
	assert_int_equal(ncclsvc_wait_all(s, WAIT_MS), NCCLSVC_OK);
	/* If one mapping is replaced, so is every range that contains it. */
	uint32_t old = peer.range_id;
	GOOD(cu.cuMemUnmap(p + one, one));
	map_at(p + one, one, create(one, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	assert_int_equal(try_reduce(comm, pointer(p + 64), pointer(p + 64), one / 4), NCCLSVC_OK);
	assert_int_equal(peer.opcodes[SVC_REGION_RANGE], 2);
	assert_int_not_equal(peer.range_id, old);
	assert_int_equal(record(4).src_region, peer.range_id);
	peer_sync(s);
	assert_int_equal(peer.ndeleted, 2);
	assert_true(peer.deleted[0] == old || peer.deleted[1] == old);
	ncclsvc_close(s);
	for (size_t i = 0; i < 3; i++)
		GOOD(cu.cuMemUnmap(p + i * one, one));
	GOOD(cu.cuMemAddressFree(p, 4 * one));
	GOOD(cu.cuStreamDestroy(stream));
}

/* More parts than fit into one message. */
static void many_mappings_are_ranges_of_ranges(void **state)
{
	ncclsvc_comm *comm;
	CUstream stream;
	CUdeviceptr p;
	(void)state;
	ncclsvc_session *s = open_gpu(&comm, &stream);
	const size_t one = 2 * MiB, n = SVC_RANGE_PARTS + 3;
	GOOD(cu.cuMemAddressReserve(&p, n * one, 0, 0, 0));
	for (size_t i = 0; i < n; i++)
		map_at(p + i * one, one, create(one, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	assert_int_equal(try_reduce(comm, pointer(p + 64), pointer(p + 64), (n * one - 64) / 4),
			 NCCLSVC_OK);
	assert_int_equal(peer.opcodes[SVC_REGION_RANGE], 3);
	assert_int_equal(peer.range.count, 2);
	assert_int_equal(peer.range.bytes, n * one);
	assert_int_equal(record(1).src_region, peer.range_id);
	ncclsvc_close(s);
	for (size_t i = 0; i < n; i++)
		GOOD(cu.cuMemUnmap(p + i * one, one));
	GOOD(cu.cuMemAddressFree(p, n * one));
	GOOD(cu.cuStreamDestroy(stream));
}

static void unsharable_memory_is_refused_by_name(void **state)
{
	ncclsvc_comm *comm;
	CUstream stream;
	CUdeviceptr pool, p = new_memory(MiB);
	CUcontext context;
	CUdevice device;
	float host[4];
	(void)state;
	ncclsvc_session *s = open_gpu(&comm, &stream);
	ncclsvc_comm *hosts = world(s);
	assert_int_equal(try_reduce(comm, host, host, 4), NCCLSVC_UNSUPPORTED);
	says("needs device memory");
	assert_int_equal(try_reduce(comm, pointer(p), host, 4), NCCLSVC_UNSUPPORTED);
	says("recvbuf");
	GOOD(cu.cuMemAllocAsync(&pool, 4096, stream));
	assert_int_equal(try_reduce(comm, pointer(pool), pointer(pool), 4), NCCLSVC_UNSUPPORTED);
	says("memory pool");
	GOOD(cu.cuMemFreeAsync(pool, stream));
	assert_int_equal(try_reduce(hosts, pointer(p), pointer(p), 4), NCCLSVC_UNSUPPORTED);
	says("is device memory, but communicator world");
	if (gpus > 1) {
		CUdeviceptr far;
		GOOD(cu.cuDeviceGet(&device, 1));
		GOOD(cu.cuDevicePrimaryCtxRetain(&context, device));
		GOOD(cu.cuCtxPushCurrent(context));
		far = new_memory(MiB);
		CUstream stranger = new_stream();
		GOOD(cu.cuCtxPopCurrent(&context));
		assert_int_equal(try_reduce(comm, pointer(far), pointer(far), 4),
				 NCCLSVC_INVALID_ARGUMENT);
		says("memory of GPU 1");
		says("uses GPU 0");
		/* Also if it is known from that GPU's own communicator. */
		ncclsvc_comm *there = join_gpu(s, 1);
		assert_int_equal(try_reduce(there, pointer(far), pointer(far), 4),
				 NCCLSVC_INVALID_ARGUMENT);
		says("the stream belongs to GPU 0, communicator");
		assert_int_equal(ncclsvc_stream_set(s, stranger, 0), NCCLSVC_OK);
		reduce(there, far, 4);
		assert_int_equal(ncclsvc_stream_set(s, stream, 0), NCCLSVC_OK);
		assert_int_equal(try_reduce(comm, pointer(far), pointer(far), 4),
				 NCCLSVC_INVALID_ARGUMENT);
		says("memory of GPU 1");
		atomic_store(&timeline(record(1).timeline)->done, 1);
		stream_ends(stranger);
		GOOD(cu.cuStreamDestroy(stranger));
		GOOD(cu.cuMemFree(far));
	}
	assert_int_equal(peer.ncuda, gpus > 1 ? 2 : 1); /* p, and far once */
	ncclsvc_close(s);
	if (gpus > 1)
		GOOD(cu.cuDevicePrimaryCtxRelease(device));
	GOOD(cu.cuMemFree(p));
	GOOD(cu.cuStreamDestroy(stream));
}

static bool is_allocated(const void *p)
{
	uint64_t id;
	return !cu.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, (uintptr_t)p);
}

static void memory_of_the_session(void **state)
{
	ncclsvc_comm *comm;
	CUstream stream;
	void *own = NULL, *second = NULL;
	const unsigned word = 77;
	unsigned got = 0;
	(void)state;
	ncclsvc_session *s = open_gpu(&comm, &stream);
	const unsigned fds = open_fds();
	assert_int_equal(ncclsvc_mem_alloc_device(s, 1000, 100, &own), NCCLSVC_INVALID_ARGUMENT);
	says("there is no GPU 1000");
	if (ncclsvc_mem_alloc_device(s, 0, 100, &own))
		fail_msg("%s", ncclsvc_last_error());
	if (!fake)
		assert_int_equal(open_fds(), fds);
	/* The daemon knows it once an operation uses it. */
	assert_int_equal(peer.ncuda, 0);
	reduce(comm, (uintptr_t)own + 16, 4);
	assert_int_equal(peer.ncuda, 1);
	assert_int_equal(peer.opcodes[SVC_REGION_CUDA_FD], 1);
	assert_int_equal(record(1).src_region, peer.regions);
	assert_int_equal(record(1).src_offset, 16);
	assert_int_equal(ncclsvc_mem_free(s, (char *)own + 1), NCCLSVC_NOT_FOUND);
	assert_int_equal(ncclsvc_mem_free(s, own), NCCLSVC_BUSY);
	work(1);
	assert_int_equal(ncclsvc_wait_all(s, WAIT_MS), NCCLSVC_OK);
	peer.busy = true;
	assert_int_equal(ncclsvc_mem_free(s, own), NCCLSVC_BUSY);
	peer.busy = false;
	assert_true(is_allocated(own));
	assert_int_equal(ncclsvc_mem_free(s, own), NCCLSVC_OK);
	assert_int_equal(peer.ndeleted, 1);
	assert_int_equal(peer.deleted[0], peer.regions);
	assert_false(is_allocated(own));
	assert_int_equal(ncclsvc_mem_free(s, own), NCCLSVC_NOT_FOUND);
	/* It survives the daemon. */
	assert_int_equal(ncclsvc_mem_alloc_device(s, 0, 100, &own), NCCLSVC_OK);
	assert_int_equal(ncclsvc_mem_alloc_device(s, 0, 100, &second), NCCLSVC_OK);
	GOOD(cu.cuMemcpyHtoD((uintptr_t)own, &word, sizeof(word)));
	peer_hang_up(&peer);
	while (!ncclsvc_dispatch(s, WAIT_MS))
		;
	assert_int_equal(ncclsvc_mem_free(s, second), NCCLSVC_OK);
	assert_false(is_allocated(second));
	assert_int_equal(ncclsvc_reattach(s, WAIT_MS), NCCLSVC_OK);
	GOOD(cu.cuMemcpyDtoH(&got, (uintptr_t)own, sizeof(got)));
	assert_int_equal(got, word);
	assert_int_equal(ncclsvc_comm_rejoin(comm, WAIT_MS), NCCLSVC_OK);
	reduce(comm, (uintptr_t)own, 4);
	assert_int_equal(peer.ncuda, 2);
	ncclsvc_close(s);
	assert_false(is_allocated(own));
	assert_in_range(open_fds(), 0, fds);
	GOOD(cu.cuStreamDestroy(stream));
}

/* Overrides libc's function: /dev/nvidia7 may be opened, other GPUs' device files may not. */
int open(const char *path, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
	va_end(args);
	if (!strncmp(path, "/dev/nvidia", 11))
		path = strcmp(path, "/dev/nvidia7") ? "/dev/no-such-file" : "/dev/null";
	return openat(AT_FDCWD, path, flags, mode);
}

/* JOIN names the GPUs that CUDA does not show and whose device file cannot be opened. */
static void gpus_out_of_reach(void **state)
{
	static const uint32_t files[] = {7 + 1, 6 + 1, 0};
	ncclsvc_unique_id id;
	ncclsvc_comm *comm;
	(void)state;
	if (!fake || !ncclsvc_has_kernels())
		skip();
	ncclsvc_session *s = session(false);
	for (unsigned i = 0; i < 3; i++) {
		ncclsvc_device_info *d = &peer.devices[peer.ndevices++];
		assert_in_range(peer.ndevices, 1, sizeof(peer.devices) / sizeof(peer.devices[0]));
		*d = (ncclsvc_device_info){.device = 8 + (int32_t)i, .device_file = files[i]};
		memset(d->uuid, 0xee + (int)i, sizeof(d->uuid));
	}
	unsetenv("NCCLSVC_PEER");
	assert_int_equal(ncclsvc_unique_id_create(&id), NCCLSVC_OK);
	assert_int_equal(ncclsvc_comm_join_device(s, &id, 2, 1, 0, WAIT_MS, &comm), NCCLSVC_OK);
	assert_int_equal(peer.join_out_of_reach, 1 << 9);
	setenv("NCCLSVC_PEER", "0", 1);
	ncclsvc_close(s);
}

/* A member allocates staging memory before it knows the size of its part; kernels support up to 8
 * ranks. */
static void staging_memory_of_a_part_too_large_for_kernels(void **state)
{
	enum { RANKS = 16 };
	ncclsvc_unique_id id;
	ncclsvc_comm *parent, *part;
	size_t before, after, total;
	(void)state;
	if (!fake || !ncclsvc_has_kernels())
		skip();
	ncclsvc_session *s = session(false);
	GOOD(cu.cuMemGetInfo(&before, &total));
	peer.split_ranks = RANKS;
	unsetenv("NCCLSVC_PEER");
	assert_int_equal(ncclsvc_unique_id_create(&id), NCCLSVC_OK);
	assert_int_equal(ncclsvc_comm_join_device(s, &id, RANKS, RANKS - 1, 0, WAIT_MS, &parent),
			 NCCLSVC_OK);
	assert_int_equal(ncclsvc_comm_split(parent, 0, 0, WAIT_MS, &part), NCCLSVC_OK);
	assert_int_equal(peer.opcodes[SVC_REGION_CUDA_FD], 1);
	setenv("NCCLSVC_PEER", "0", 1);
	ncclsvc_close(s);
	GOOD(cu.cuMemGetInfo(&after, &total));
	assert_int_equal(after, before);
}

/* More allocations than the table has entries. */
static void the_table_is_bounded(void **state)
{
	enum { PLACES = 1024, MORE = 40 };
	static CUdeviceptr p[PLACES + MORE];
	ncclsvc_comm *comm;
	CUstream stream;
	(void)state;
	ncclsvc_session *s = open_gpu(&comm, &stream);
	for (unsigned i = 0; i < PLACES + MORE; i++) {
		p[i] = new_memory(4096);
		ncclsvc_task task = reduce(comm, p[i], 4);
		work(i + 1);
		assert_int_equal(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_OK);
	}
	peer_sync(s);
	assert_int_equal(peer.ncuda, PLACES + MORE);
	assert_int_equal(peer.ndeleted, MORE);
	assert_int_equal(peer.deleted[0], 1); /* the least recently used */
	ncclsvc_task task = reduce(comm, p[PLACES], 4);
	assert_int_equal(peer.ncuda, PLACES + MORE);
	work(PLACES + MORE + 1);
	assert_int_equal(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_OK);
	reduce(comm, p[0], 4);
	assert_int_equal(peer.ncuda, PLACES + MORE + 1);
	ncclsvc_close(s);
	for (unsigned i = 0; i < PLACES + MORE; i++)
		GOOD(cu.cuMemFree(p[i]));
	GOOD(cu.cuStreamDestroy(stream));
}

struct submission {
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	CUstream stream;
	CUdeviceptr at;
	size_t bytes;
	ncclsvc_result result;
};

static void *submit_across(void *arg)
{
	struct submission *w = arg;
	ncclsvc_stream_set(w->session, w->stream, NCCLSVC_STREAM_DETACHED);
	w->result = try_reduce(w->comm, pointer(w->at), pointer(w->at), w->bytes / 4);
	return NULL;
}

/* The parts of a range keep their table entries until the daemon answers. */
static void parts_of_a_range_that_is_being_made_stay(void **state)
{
	enum { OTHERS = 1024 - 3 }; /* with the range and its parts, the table is full */
	static CUdeviceptr p[OTHERS + 1];
	CUstream streams[3]; /* each has a limited number of pending tasks */
	struct submission w;
	pthread_t thread;
	(void)state;
	const size_t one = 2 * MiB;
	peer.wants_entries = 1024;
	w.session = open_gpu(&w.comm, &w.stream);
	w.bytes = 2 * one;
	GOOD(cu.cuMemAddressReserve(&w.at, w.bytes, 0, 0, 0));
	for (size_t i = 0; i < 2; i++)
		map_at(w.at + i * one, one, create(one, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	for (unsigned i = 0; i <= OTHERS; i++)
		p[i] = new_memory(4096);
	for (int i = 0; i < 3; i++)
		streams[i] = new_stream();
	for (unsigned i = 0; i < OTHERS; i++) {
		ncclsvc_stream_set(w.session, streams[i % 3], NCCLSVC_STREAM_DETACHED);
		reduce(w.comm, p[i], 4); /* keeps its entry while it is under way */
	}
	peer.holds_ranges = true;
	assert_int_equal(pthread_create(&thread, NULL, submit_across, &w), 0);
	while (!peer.opcodes[SVC_REGION_RANGE])
		usleep(1000);
	assert_int_equal(try_reduce(w.comm, pointer(p[OTHERS]), pointer(p[OTHERS]), 4),
			 NCCLSVC_LIMIT);
	says("all 1024 regions");
	peer.holds_ranges = false;
	peer_answer_range(&peer);
	pthread_join(thread, NULL);
	assert_int_equal(w.result, NCCLSVC_OK);
	assert_int_equal(peer.opcodes[SVC_REGION_RANGE], 1);
	assert_int_equal(record(OTHERS + 1).src_region, peer.range_id);
	for (unsigned i = 1; i <= OTHERS + 1; i++)
		work(i);
	reduce(w.comm, p[OTHERS], 4); /* now takes the entry of p[0] */
	work(OTHERS + 2);
	ncclsvc_close(w.session);
	for (int i = 0; i < 3; i++)
		GOOD(cu.cuStreamDestroy(streams[i]));
	for (unsigned i = 0; i <= OTHERS; i++)
		GOOD(cu.cuMemFree(p[i]));
	for (size_t i = 0; i < 2; i++)
		GOOD(cu.cuMemUnmap(w.at + i * one, one));
	GOOD(cu.cuMemAddressFree(w.at, w.bytes));
	GOOD(cu.cuStreamDestroy(w.stream));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		GPU_TEST(an_allocation_is_registered_once),
		GPU_TEST(freed_memory_is_another_when_it_comes_back),
		GPU_TEST(mappings_are_registered_one_by_one),
		GPU_TEST(mappings_make_a_range),
		GPU_TEST(many_mappings_are_ranges_of_ranges),
		GPU_TEST(unsharable_memory_is_refused_by_name),
		GPU_TEST(memory_of_the_session),
		GPU_TEST(gpus_out_of_reach),
		GPU_TEST(staging_memory_of_a_part_too_large_for_kernels),
		GPU_TEST(the_table_is_bounded),
		GPU_TEST(parts_of_a_range_that_is_being_made_stay),
	};
	setenv("NCCLSVC_PEER", "0", 1); /* only NCCL's operations use regions */
	gpus_open();
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	gpus_close();
	return failed;
}
