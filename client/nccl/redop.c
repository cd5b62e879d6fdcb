/* SPDX-License-Identifier: Apache-2.0
 * Reductions. A PreMulSum is kept when its user destroys it: tasks on NCCL that name it may still
 * be queued, and the worker then has it for the next training step, which uses the same scalar.
 * When all entries are taken, an unused one is given up once all tasks are over. Operations of an
 * open group hold theirs until they become tasks. */
#include <string.h>

#include "driver.h"
#include "nccl_operation.h"

ncclResult_t redop_take(struct operation *operation, ncclRedOp_t op)
{
	ncclComm_t comm = operation->comm;
	operation->redop = op;
	if (op < NCCL_NUM_OPS && op >= 0)
		return ncclSuccess;
	const unsigned i = (unsigned)op - NCCL_NUM_OPS;
	if (op < 0 || i >= USER_REDOPS)
		return fail(ncclInvalidArgument, "%d is not a reduction", op);
	pthread_mutex_lock(&comm->redops_lock);
	const struct user_redop redop = comm->redops[i];
	const bool fits = redop.users && redop.type == operation->type;
	comm->redops[i].queued += fits;
	pthread_mutex_unlock(&comm->redops_lock);
	if (!redop.users)
		return fail(ncclInvalidArgument,
			    "%d is not a reduction of this communicator, or has been destroyed",
			    op);
	if (!fits)
		return fail(ncclInvalidArgument,
			    "reduction %d was created for another data type: %s, not %s", op,
			    ncclsvc_type_name((unsigned)redop.type),
			    ncclsvc_type_name((unsigned)operation->type));
	operation->redop = redop.service;
	operation->user_redop = (int)i + 1;
	return ncclSuccess;
}

void redop_release(const struct operation *operation)
{
	if (!operation->user_redop)
		return;
	pthread_mutex_lock(&operation->comm->redops_lock);
	operation->comm->redops[operation->user_redop - 1].queued--;
	pthread_mutex_unlock(&operation->comm->redops_lock);
}

/* NCCL reads the scalar when the reduction is used, but the daemon is another process, so the
 * scalar is read now, after all earlier GPU work. Not called inside: the earlier work may be a task
 * of this communicator, and an abort waits for the threads inside. */
static ncclResult_t read_device(int device, const void *scalar, size_t bytes, void *to)
{
	const struct cuda *cuda;
	CUcontext context;
	CUdevice cu;
	ncclResult_t r = driver_open(&cuda);
	if (r)
		return r;
	CUresult e = cuda->cuDeviceGet(&cu, device);
	if (!e)
		e = cuda->cuDevicePrimaryCtxRetain(&context, cu);
	if (e)
		return fail(ncclUnhandledCudaError,
			    "CUDA cannot create a context on the GPU: error %d", e);
	e = cuda->cuCtxPushCurrent(context);
	if (!e) {
		e = cuda->cuCtxSynchronize();
		if (!e)
			e = cuda->cuMemcpyDtoH(to, (uintptr_t)scalar, bytes);
		cuda->cuCtxPopCurrent(&context);
	}
	cuda->cuDevicePrimaryCtxRelease(cu);
	return e ? fail(ncclUnhandledCudaError,
			"ncclRedOpCreatePreMulSum: cannot read the scalar at %p: error %d", scalar,
			e)
		 : ncclSuccess;
}

/* An entry with the same scalar, or a free one, or one that can be given up. Locked. */
static int find_entry(ncclComm_t comm, const struct user_redop *like)
{
	int free = -1, unused = -1;
	for (int i = 0; i < USER_REDOPS; i++) {
		const struct user_redop *m = &comm->redops[i];
		if (m->service && m->type == like->type &&
		    !memcmp(m->scalar, like->scalar, sizeof(m->scalar)))
			return i;
		if (!m->service)
			free = i;
		else if (!m->users && !m->queued)
			unused = i;
	}
	return free >= 0 ? free : unused;
}

/* Locked, and inside. */
static ncclResult_t make(ncclComm_t comm, const struct user_redop *like, ncclRedOp_t *op)
{
	ncclsvc_redop service;
	const int i = find_entry(comm, like);
	ncclsvc_result r = NCCLSVC_OK;
	if (i < 0)
		return fail(
			ncclInvalidUsage,
			"ncclRedOpCreatePreMulSum: a communicator can have %d at once, including "
			"those that an open group uses: destroy some, or end the group",
			USER_REDOPS);
	struct user_redop *m = &comm->redops[i];
	bool same = m->service && m->type == like->type &&
		    !memcmp(m->scalar, like->scalar, sizeof(m->scalar));
	if (m->service && !same) {
		handle_flush(comm);
		r = ncclsvc_redop_destroy(comm->service, (ncclsvc_redop)m->service);
		m->service = 0;
	}
	if (!r && !same) {
		r = ncclsvc_redop_create_premulsum(comm->service, like->scalar,
						   (ncclsvc_type)like->type, &service);
		if (!r) {
			*m = *like;
			m->service = (int)service;
		}
	}
	if (r)
		return fail_service(r);
	m->users++;
	*op = NCCL_NUM_OPS + i;
	return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
				      int residence, ncclComm_t comm)
{
	static const char function[] = "ncclRedOpCreatePreMulSum";
	struct user_redop like = {.type = type};
	const size_t bytes = (unsigned)type <= NCCLSVC_FLOAT8E5M2
				     ? ncclsvc_type_size((unsigned)type)
				     : 0; /* NCCL has no other types */
	if (!op || !scalar || !bytes)
		return fail(
			ncclInvalidArgument,
			"ncclRedOpCreatePreMulSum: op or scalar is NULL, or %d is not a data type",
			type);
	if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
		return fail(ncclInvalidArgument,
			    "ncclRedOpCreatePreMulSum: %d is not a residence of a scalar",
			    residence);
	ncclResult_t r = handle_check(comm, function);
	if (!r)
		r = handle_usable(comm, function);
	if (r)
		return r;
	handle_ref(comm);
	if (residence == ncclScalarDevice)
		r = read_device(comm->device, scalar, bytes, like.scalar);
	else
		memcpy(like.scalar, scalar, bytes);
	if (!r)
		r = handle_enter(comm, function);
	if (!r) {
		pthread_mutex_lock(&comm->redops_lock);
		r = make(comm, &like, op);
		pthread_mutex_unlock(&comm->redops_lock);
		handle_exit(comm);
	}
	handle_unref(comm);
	return r;
}
NCCL_ALIAS(ncclRedOpCreatePreMulSum);

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	ncclResult_t r = handle_check(comm, "ncclRedOpDestroy");
	if (r)
		return r;
	const unsigned i = (unsigned)op - NCCL_NUM_OPS;
	pthread_mutex_lock(&comm->redops_lock);
	bool known = i < USER_REDOPS && comm->redops[i].users;
	if (known)
		comm->redops[i].users--;
	pthread_mutex_unlock(&comm->redops_lock);
	return known ? ncclSuccess
		     : fail(ncclInvalidArgument,
			    "ncclRedOpDestroy: %d was not created, or has been "
			    "destroyed",
			    op);
}
NCCL_ALIAS(ncclRedOpDestroy);
