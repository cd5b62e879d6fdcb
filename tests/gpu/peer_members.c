/* SPDX-License-Identifier: Apache-2.0 */
#include "peer_members.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

uint32_t peer_region(struct raw *raw, int device, const struct buffer *b)
{
	const struct svc_region_cuda r = {.bytes = b->bytes, .base = b->p, .device = device};
	CUmemGenericAllocationHandle handle;
	struct raw_reply reply;
	int fd;
	CHECK_CU(cu.cuMemRetainAllocationHandle(&handle, at(b->p)));
	CHECK_CU(cu.cuMemExportToShareableHandle(&fd, handle,
						 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	CHECK_CU(cu.cuMemRelease(handle));
	raw_call(raw, SVC_REGION_CUDA_FD, &r, sizeof(r), &fd, 1, &reply);
	CHECK_EQ(reply.header.result, 0);
	close(fd);
	return reply.region.region;
}

uint32_t peer_memory(struct raw *raw, int device, uint64_t bytes)
{
	struct buffer b;
	CUcontext before = NULL;
	if (cu.cuCtxGetCurrent)
		cu.cuCtxGetCurrent(&before);
	gpu_use(device);
	buffer_make(&b, MEMORY_VMM, device, NULL, bytes);
	const uint32_t region = peer_region(raw, device, &b);
	buffer_free(&b);
	CHECK_CU(cu.cuCtxSetCurrent(before));
	return region;
}

void peer_accepted(struct raw *raw, unsigned opcode, const void *body, size_t length, const int *fd)
{
	struct raw_reply reply;
	raw_call(raw, opcode, body, length, fd, fd != NULL, &reply);
	CHECK_EQ(reply.header.result, 0);
}

static void join_begin(struct member *m, const ncclsvc_unique_id *id, int rank, uint32_t staging)
{
	struct svc_join join = raw_join_request(id, 2, rank);
	join.device = rank;
	join.staging = staging;
	m->request_id = raw_send(&m->raw, SVC_JOIN, &join, sizeof(join), NULL, 0);
}

void peer_join_end(struct member *m)
{
	struct raw_reply reply;
	raw_reply_to(&m->raw, m->request_id, &reply);
	CHECK_EQ(reply.header.result, 0);
	m->joined = reply.join;
}

void peer_join(struct member m[2], const ncclsvc_unique_id *id, bool second)
{
	join_begin(&m[0], id, 0, m[0].staging);
	join_begin(&m[1], id, 1, second ? m[1].staging : 0);
	peer_join_end(&m[0]);
	peer_join_end(&m[1]);
}

int peer_staging_fd(struct member *m, int rank)
{
	struct raw_reply reply;
	struct svc_staging request = {.comm = m->joined.comm, .rank = rank};
	raw_call(&m->raw, SVC_STAGING, &request, sizeof(request), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK_EQ(reply.nfds, 1);
	return reply.fds[0];
}

struct peer_control *peer_controls_map(int fd)
{
	struct stat st;
	CHECK(!fstat(fd, &st));
	CHECK_EQ(st.st_size, 2 * PEER_CONTROL_BYTES);
	CHECK(ftruncate(fd, PEER_CONTROL_BYTES) < 0);
	void *p = mmap(NULL, 2 * PEER_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	close(fd);
	return p;
}

bool peer_aborted(struct peer_control *controls, int rank)
{
	return atomic_load_explicit(&peer_control_of(controls, (uint32_t)rank)->abort,
				    memory_order_acquire);
}

void peer_wait_aborted(struct peer_control *controls)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;
	     !peer_aborted(controls, 0) || !peer_aborted(controls, 1); sleep_ms(1))
		CHECK(now_ns() < end);
}
