/* SPDX-License-Identifier: Apache-2.0
 * Reductions. */
#include "dropin.h"

ncclResult_t redop_find(ncclComm_t comm, ncclRedOp_t op, ncclDataType_t type, int *redop)
{
	(void)comm;
	(void)type;
	if (op < 0 || op >= NCCL_NUM_OPS)
		return fail(ncclInvalidArgument, "%d is no reduction", op);
	*redop = op;
	return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
				      int residence, ncclComm_t comm)
{
	(void)op;
	(void)scalar;
	(void)type;
	(void)residence;
	ncclResult_t r = handle_check(comm, "ncclRedOpCreatePreMulSum");
	return r ? r
		 : fail(ncclInvalidUsage,
			"ncclRedOpCreatePreMulSum: the service has no PreMulSum: multiply before, "
			"and use ncclSum, or ncclAvg");
}
NCCL_TWIN(ncclRedOpCreatePreMulSum);

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	ncclResult_t r = handle_check(comm, "ncclRedOpDestroy");
	return r ? r : fail(ncclInvalidArgument, "ncclRedOpDestroy: %d was not created", op);
}
NCCL_TWIN(ncclRedOpDestroy);
