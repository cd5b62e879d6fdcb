/* SPDX-License-Identifier: Apache-2.0
 * The operations. The service checks their arguments at submission. */
#include "nccl_config.h"
#include "nccl_group.h"

static ncclResult_t operate(const char *function, unsigned op, const void *src, void *dst,
			    size_t count, ncclDataType_t type, ncclRedOp_t redop, int peer,
			    ncclComm_t comm, CUstream stream, const ncclCollConfig_t *config)
{
	struct operation operation = {
		.comm = comm,
		.stream = stream,
		.op = op,
		.src = src,
		.dst = dst,
		.count = count,
		.type = type,
		.peer = peer,
	};
	ncclResult_t r = handle_check(comm, function);
	if (!r && (unsigned)type > NCCLSVC_FLOAT8E5M2)
		r = fail(ncclInvalidArgument, "%s: %d is not a data type", function, type);
	if (!r)
		r = coll_config_read(config, function, &operation.launched);
	if (!r && redop >= 0)
		r = redop_take(&operation, redop);
	if (r)
		return r;
	const bool grouped = group_is_open();
	r = grouped ? group_add_operation(&operation) : operations_submit(&operation, 1);
	if (r || !grouped)
		redop_release(&operation);
	return r;
}

#define NO_REDOP (-1)
#define NO_PEER	 0

ncclResult_t ncclAllReduceConfig(const void *src, void *dst, size_t count, ncclDataType_t type,
				 ncclRedOp_t op, ncclComm_t comm, CUstream stream,
				 const ncclCollConfig_t *config)
{
	return operate("ncclAllReduce", NCCLSVC_ALL_REDUCE, src, dst, count, type, op, NO_PEER,
		       comm, stream, config);
}
NCCL_ALIAS(ncclAllReduceConfig);

ncclResult_t ncclAllReduce(const void *src, void *dst, size_t count, ncclDataType_t type,
			   ncclRedOp_t op, ncclComm_t comm, CUstream stream)
{
	return ncclAllReduceConfig(src, dst, count, type, op, comm, stream, NULL);
}
NCCL_ALIAS(ncclAllReduce);

ncclResult_t ncclReduceConfig(const void *src, void *dst, size_t count, ncclDataType_t type,
			      ncclRedOp_t op, int root, ncclComm_t comm, CUstream stream,
			      const ncclCollConfig_t *config)
{
	return operate("ncclReduce", NCCLSVC_REDUCE, src, dst, count, type, op, root, comm, stream,
		       config);
}
NCCL_ALIAS(ncclReduceConfig);

ncclResult_t ncclReduce(const void *src, void *dst, size_t count, ncclDataType_t type,
			ncclRedOp_t op, int root, ncclComm_t comm, CUstream stream)
{
	return ncclReduceConfig(src, dst, count, type, op, root, comm, stream, NULL);
}
NCCL_ALIAS(ncclReduce);

ncclResult_t ncclBroadcastConfig(const void *src, void *dst, size_t count, ncclDataType_t type,
				 int root, ncclComm_t comm, CUstream stream,
				 const ncclCollConfig_t *config)
{
	return operate("ncclBroadcast", NCCLSVC_BROADCAST, src, dst, count, type, NO_REDOP, root,
		       comm, stream, config);
}
NCCL_ALIAS(ncclBroadcastConfig);

ncclResult_t ncclBroadcast(const void *src, void *dst, size_t count, ncclDataType_t type, int root,
			   ncclComm_t comm, CUstream stream)
{
	return ncclBroadcastConfig(src, dst, count, type, root, comm, stream, NULL);
}
NCCL_ALIAS(ncclBroadcast);

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
		       CUstream stream)
{
	return operate("ncclBcast", NCCLSVC_BROADCAST, buffer, buffer, count, type, NO_REDOP, root,
		       comm, stream, NULL);
}
NCCL_ALIAS(ncclBcast);

ncclResult_t ncclReduceScatterConfig(const void *src, void *dst, size_t recvcount,
				     ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
				     CUstream stream, const ncclCollConfig_t *config)
{
	return operate("ncclReduceScatter", NCCLSVC_REDUCE_SCATTER, src, dst, recvcount, type, op,
		       NO_PEER, comm, stream, config);
}
NCCL_ALIAS(ncclReduceScatterConfig);

ncclResult_t ncclReduceScatter(const void *src, void *dst, size_t recvcount, ncclDataType_t type,
			       ncclRedOp_t op, ncclComm_t comm, CUstream stream)
{
	return ncclReduceScatterConfig(src, dst, recvcount, type, op, comm, stream, NULL);
}
NCCL_ALIAS(ncclReduceScatter);

ncclResult_t ncclAllGatherConfig(const void *src, void *dst, size_t sendcount, ncclDataType_t type,
				 ncclComm_t comm, CUstream stream, const ncclCollConfig_t *config)
{
	return operate("ncclAllGather", NCCLSVC_ALL_GATHER, src, dst, sendcount, type, NO_REDOP,
		       NO_PEER, comm, stream, config);
}
NCCL_ALIAS(ncclAllGatherConfig);

ncclResult_t ncclAllGather(const void *src, void *dst, size_t sendcount, ncclDataType_t type,
			   ncclComm_t comm, CUstream stream)
{
	return ncclAllGatherConfig(src, dst, sendcount, type, comm, stream, NULL);
}
NCCL_ALIAS(ncclAllGather);

ncclResult_t ncclAlltoAllConfig(const void *src, void *dst, size_t count, ncclDataType_t type,
				ncclComm_t comm, CUstream stream, const ncclCollConfig_t *config)
{
	return operate("ncclAlltoAll", NCCLSVC_ALL_TO_ALL, src, dst, count, type, NO_REDOP, NO_PEER,
		       comm, stream, config);
}
NCCL_ALIAS(ncclAlltoAllConfig);

ncclResult_t ncclAlltoAll(const void *src, void *dst, size_t count, ncclDataType_t type,
			  ncclComm_t comm, CUstream stream)
{
	return ncclAlltoAllConfig(src, dst, count, type, comm, stream, NULL);
}
NCCL_ALIAS(ncclAlltoAll);

ncclResult_t ncclGatherConfig(const void *src, void *dst, size_t count, ncclDataType_t type,
			      int root, ncclComm_t comm, CUstream stream,
			      const ncclCollConfig_t *config)
{
	return operate("ncclGather", NCCLSVC_GATHER, src, dst, count, type, NO_REDOP, root, comm,
		       stream, config);
}
NCCL_ALIAS(ncclGatherConfig);

ncclResult_t ncclGather(const void *src, void *dst, size_t count, ncclDataType_t type, int root,
			ncclComm_t comm, CUstream stream)
{
	return ncclGatherConfig(src, dst, count, type, root, comm, stream, NULL);
}
NCCL_ALIAS(ncclGather);

ncclResult_t ncclScatterConfig(const void *src, void *dst, size_t count, ncclDataType_t type,
			       int root, ncclComm_t comm, CUstream stream,
			       const ncclCollConfig_t *config)
{
	return operate("ncclScatter", NCCLSVC_SCATTER, src, dst, count, type, NO_REDOP, root, comm,
		       stream, config);
}
NCCL_ALIAS(ncclScatterConfig);

ncclResult_t ncclScatter(const void *src, void *dst, size_t count, ncclDataType_t type, int root,
			 ncclComm_t comm, CUstream stream)
{
	return ncclScatterConfig(src, dst, count, type, root, comm, stream, NULL);
}
NCCL_ALIAS(ncclScatter);

ncclResult_t ncclSend(const void *src, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
		      CUstream stream)
{
	return operate("ncclSend", NCCLSVC_SEND, src, NULL, count, type, NO_REDOP, peer, comm,
		       stream, NULL);
}
NCCL_ALIAS(ncclSend);

ncclResult_t ncclRecv(void *dst, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
		      CUstream stream)
{
	return operate("ncclRecv", NCCLSVC_RECV, NULL, dst, count, type, NO_REDOP, peer, comm,
		       stream, NULL);
}
NCCL_ALIAS(ncclRecv);
