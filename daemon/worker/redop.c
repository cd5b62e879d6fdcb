/* SPDX-License-Identifier: Apache-2.0
 * Reductions that trainers create: NCCL's PreMulSum on the slot's communicator. */
#include <stdio.h>
#include <string.h>

#include "worker.h"

void redop_add(struct worker *w, struct worker_message *m)
{
	struct comm_slot *l = m->redop.slot < WORKER_COMM_SLOTS ? &w->slots[m->redop.slot] : NULL;
	unsigned i = 0;
	if (!l || !l->comm || l->failed) {
		m->result = NCCLSVC_STALE_EPOCH;
		snprintf(m->text, sizeof(m->text), "the communicator has ended");
		return;
	}
	while (i < SVC_REDOPS_MADE && l->redops[i].made)
		i++;
	if (i == SVC_REDOPS_MADE) {
		m->result = NCCLSVC_LIMIT;
		snprintf(m->text, sizeof(m->text),
			 "a member can have at most %d reductions at once", SVC_REDOPS_MADE);
		return;
	}
	_Alignas(8) uint8_t scalar[sizeof(m->redop.scalar)];
	memcpy(scalar, m->redop.scalar, sizeof(scalar));
	ncclResult_t result = nccl.ncclRedOpCreatePreMulSum(&l->redops[i].op, scalar, m->redop.type,
							    ncclScalarHostImmediate, l->comm);
	if (result) {
		m->result = NCCLSVC_NCCL_ERROR;
		snprintf(m->text, sizeof(m->text), "NCCL cannot create the reduction: %s",
			 nccl.ncclGetErrorString(result));
		return;
	}
	l->redops[i].made = true;
	l->redops[i].type = m->redop.type;
	m->redop.redop = SVC_REDOP_MADE + i;
}

void redop_del(struct worker *w, const struct worker_message *m)
{
	struct comm_slot *l = m->redop.slot < WORKER_COMM_SLOTS ? &w->slots[m->redop.slot] : NULL;
	bool all = m->kind == WORKER_REDOPS_CLEAR;
	for (unsigned i = 0; l && l->comm && i < SVC_REDOPS_MADE; i++) {
		if (!l->redops[i].made || (!all && m->redop.redop != SVC_REDOP_MADE + i))
			continue;
		nccl.ncclRedOpDestroy(l->redops[i].op, l->comm);
		l->redops[i].made = false;
	}
}

bool redop_find(const struct comm_slot *l, unsigned redop, int type, ncclRedOp_t *op)
{
	*op = (ncclRedOp_t)redop;
	if (redop < SVC_REDOP_MADE)
		return true;
	const unsigned i = redop - SVC_REDOP_MADE;
	if (i >= SVC_REDOPS_MADE || !l->redops[i].made || l->redops[i].type != type)
		return false;
	*op = l->redops[i].op;
	return true;
}
