/* SPDX-License-Identifier: Apache-2.0 */
#include "gpus.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attack.h"
#include "proto/cuda/allocation.h"

#define CALL_MS 120000

/* Like conn_call, but the caller owns the answer's descriptors. */
static bool ask(struct conn *c, unsigned opcode, const void *body, size_t length,
		struct answer *answer)
{
	if (conn_send(c, opcode, body, length, -1, 0))
		return false;
	while (conn_next(c, answer, CALL_MS) == 1) {
		if (answer->header.request_id == c->request_id)
			return !answer->header.result;
		svc_close_fds(answer->fds, answer->nfds);
	}
	answer->header.result = CONN_LOST;
	return false;
}

static bool create(const struct cuda *cuda, int device, uint64_t bytes, int *fd)
{
	struct allocation a = {.base = 0};
	CUcontext context;
	*fd = -1;
	if (cuda->cuDevicePrimaryCtxRetain(&context, device) || cuda->cuCtxSetCurrent(context) ||
	    allocation_make_exported(cuda, device, bytes, &a, fd))
		return false;
	allocation_unmap(cuda, a.base, a.bytes);
	return true;
}

uint32_t gpu_memory(struct conn *c, int device, uint64_t bytes, struct answer *answer)
{
	const char *why;
	const struct cuda *cuda = cuda_driver(&why);
	int fd;
	answer->header.result = NCCLSVC_UNSUPPORTED;
	if (!cuda || !create(cuda, device, bytes, &fd))
		return 0;
	const struct svc_region_cuda add = {.device = device, .bytes = bytes};
	const int result = conn_call(c, SVC_REGION_CUDA_FD, &add, sizeof(add), fd, answer);
	close(fd);
	return result ? 0 : answer->body.region.region;
}

bool gpu_forget(struct conn *c, uint32_t region)
{
	const struct svc_region_del del = {.region = region};
	struct answer answer;
	return !conn_call(c, SVC_REGION_DEL, &del, sizeof(del), -1, &answer);
}

bool gpu_join(struct conn *conns, const uint32_t *staging, struct rank ranks[GPUS])
{
	struct svc_join join = {.nranks = GPUS};
	random_id(join.id);
	for (int i = 0; i < GPUS; i++) {
		join.rank = join.device = i;
		join.staging = staging ? staging[i] : 0;
		if (conn_send(&conns[i], SVC_JOIN, &join, sizeof(join), -1, 0))
			return false;
	}
	return ranks_joined(conns, GPUS, ranks);
}

struct peer_control *gpu_controls(const struct rank *rank)
{
	const struct svc_staging request = {.comm = rank->comm, .rank = -1};
	struct answer answer;
	if (!ask(rank->conn, SVC_STAGING, &request, sizeof(request), &answer) || !answer.nfds)
		return NULL;
	void *p = mmap(NULL, GPUS * PEER_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
		       answer.fds[0], 0);
	svc_close_fds(answer.fds, answer.nfds);
	return p == MAP_FAILED ? NULL : p;
}

void gpu_controls_close(struct peer_control *controls)
{
	munmap(controls, GPUS * PEER_CONTROL_BYTES);
}

static void message_waits(struct peer_control *p, int rank, int op)
{
	const uint32_t other = (uint32_t)!rank;
	const unsigned peer_dir = op == NCCLSVC_SEND ? PEER_DIR_TO(other) : PEER_DIR_FROM(other);
	p->history[p->records % PEER_HISTORY] = (struct peer_record){
		.operation = p->records,
		.header = peer_header((uint8_t)op, NCCLSVC_UINT32, 0, (uint8_t)other, 8),
		.launched_ns = clock_ns(),
		.kernel_seq = 1,
		.message = 1,
	};
	atomic_store_explicit(&p->messages[peer_dir], 1, memory_order_release);
	atomic_store_explicit(&p->records, p->records + 1, memory_order_release);
	atomic_store_explicit(&p->waits[peer_dir], UINT64_C(1) << 32 | 1, memory_order_release);
}

void gpu_kernel_waits(struct peer_control *controls, int rank)
{
	struct peer_control *p = peer_control_of(controls, (uint32_t)rank);
	p->moves = 1;
	message_waits(p, rank, NCCLSVC_RECV);
	message_waits(p, rank, NCCLSVC_SEND);
	atomic_store_explicit(&p->begun, UINT64_C(1) << 32 | 1, memory_order_release);
}
