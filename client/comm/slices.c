/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/group/slices.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/comm_handle.h"
#include "proto/operation.h"
#include "submit.h"

static struct slice_op slice_op(const struct op *op, unsigned at)
{
	return (struct slice_op){
		.comm = op->comm->id.bytes,
		.nranks = op->comm->nranks,
		.rank = op->comm->rank,
		.peer = op->record.peer,
		.message = svc_op_is_p2p(op->record.op),
		.sends = op->record.op == NCCLSVC_SEND,
		.at = at,
	};
}

static void number(struct op *ops, const struct slice_op *order, unsigned n)
{
	for (unsigned i = 0, slice = 0; i < n; slice++)
		for (unsigned end = i + slices_cut(order + i, n - i, SVC_GROUP_TASKS); i < end; i++)
			ops[i].route.slice = slice;
}

ncclsvc_result ops_slice(struct op *ops, unsigned n)
{
	struct op *copies = malloc(n * sizeof(*copies));
	struct slice_op *order = malloc(n * sizeof(*order));
	const bool room = copies && order;
	if (room) {
		memcpy(copies, ops, n * sizeof(*copies));
		for (unsigned i = 0; i < n; i++)
			order[i] = slice_op(&ops[i], i);
		slices_order(order, n);
		for (unsigned i = 0; i < n; i++)
			ops[i] = copies[order[i].at];
		number(ops, order, n);
	}
	free(copies);
	free(order);
	return room ? NCCLSVC_OK : error_set(NCCLSVC_NO_MEMORY, "out of memory");
}
