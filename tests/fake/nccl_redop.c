/* SPDX-License-Identifier: Apache-2.0
 * Reductions created by ncclRedOpCreatePreMulSum. */
#include <string.h>

#include "nccl_fake.h"

#define MADE  256 /* for all communicators, including those still being aborted */
#define FIRST 100 /* above all built-in reductions */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	const struct ncclComm *comm; /* NULL: free */
	int type;
	char scalar[8];
} made[MADE];

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
				      int residence, ncclComm_t comm)
{
	if (!comm || !op || !scalar || !nccl_width(type) || residence != ncclScalarHostImmediate)
		return nccl_error(ncclInvalidArgument, "invalid argument of a PreMulSum");
	int i = 0;
	pthread_mutex_lock(&lock);
	while (i < MADE && made[i].comm)
		i++;
	if (i < MADE) {
		made[i].comm = comm;
		made[i].type = type;
		memcpy(made[i].scalar, scalar, nccl_width(type));
	}
	pthread_mutex_unlock(&lock);
	*op = FIRST + i;
	return i < MADE ? ncclSuccess : nccl_error(ncclInternalError, "too many PreMulSums");
}

static bool holds(const struct ncclComm *c, int redop)
{
	return redop >= FIRST && redop < FIRST + MADE && made[redop - FIRST].comm == c;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	pthread_mutex_lock(&lock);
	bool is = comm && holds(comm, op);
	if (is)
		made[op - FIRST].comm = NULL;
	pthread_mutex_unlock(&lock);
	return is ? ncclSuccess : nccl_error(ncclInvalidArgument, "invalid reduction %d", op);
}

bool redop_scalar(const struct ncclComm *c, int redop, int type, char scalar[8])
{
	pthread_mutex_lock(&lock);
	bool is = holds(c, redop) && made[redop - FIRST].type == type;
	if (is)
		memcpy(scalar, made[redop - FIRST].scalar, sizeof(made[0].scalar));
	pthread_mutex_unlock(&lock);
	return is;
}

void redops_forget(const struct ncclComm *c)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MADE; i++)
		if (made[i].comm == c)
			made[i].comm = NULL;
	pthread_mutex_unlock(&lock);
}
