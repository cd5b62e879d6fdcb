/* SPDX-License-Identifier: Apache-2.0 */
#include "node_numbers.h"

#include <string.h>

#include "list_messages.h"
#include "messages.h"
#include "proto/wire.h"

typedef void visit_fn(void *arg, uint32_t *node);

/* In place of an unsigned number, -1 says none. */
static void visit_signed(int32_t *node, visit_fn *visit, void *arg)
{
	uint32_t number = (uint32_t)*node;
	if (*node < 0)
		return;
	visit(arg, &number);
	*node = (int32_t)number;
}

static void visit_break(struct control_break *b, visit_fn *visit, void *arg)
{
	if (b->node >= 0)
		visit(arg, &b->by);
	visit_signed(&b->node, visit, arg);
	if (b->first.result && b->first.field == NCCLSVC_FIELD_NODE) {
		uint32_t number = (uint32_t)b->first.value_a;
		visit(arg, &number);
		b->first.value_a = number;
	}
}

/* ---- Lists ---- */

/* 1 + the number; 0: none, or it is unknown here. */
static void visit_optional(uint32_t *node, visit_fn *visit, void *arg)
{
	uint32_t number = *node - 1;
	if (!*node)
		return;
	visit(arg, &number);
	*node = number + 1; /* of CLUSTER_NO_NODE: 0 */
}

static void visit_task(ncclsvc_task_info *i, visit_fn *visit, void *arg)
{
	for (uint32_t k = 0; k < i->ask_count && k < NCCLSVC_MISSING_SHOWN; k++)
		visit(arg, &i->ask_nodes[k]);
}

static void visit_record(uint32_t what, void *record, visit_fn *visit, void *arg)
{
	if (what == SVC_LIST_COMMS)
		visit_optional(&((ncclsvc_comm_info *)record)->ask_node, visit, arg);
	else if (what == SVC_LIST_MEMBERS)
		visit_optional(&((ncclsvc_member_info *)record)->elsewhere, visit, arg);
	else if (what == SVC_LIST_TASKS)
		visit_task(record, visit, arg);
	else if (what == SVC_LIST_FAILURES)
		visit_signed(&((ncclsvc_failure_info *)record)->node, visit, arg);
	else if (what == SVC_LIST_LATENESS)
		visit(arg, &((ncclsvc_lateness_info *)record)->node);
}

/* All nodes run the same program, so records have the length that this one knows. */
static size_t record_bytes(uint32_t what)
{
	switch (what) {
	case SVC_LIST_COMMS:
		return sizeof(ncclsvc_comm_info);
	case SVC_LIST_MEMBERS:
		return sizeof(ncclsvc_member_info);
	case SVC_LIST_TASKS:
		return sizeof(ncclsvc_task_info);
	case SVC_LIST_FAILURES:
		return sizeof(ncclsvc_failure_info);
	case SVC_LIST_LATENESS:
		return sizeof(ncclsvc_lateness_info);
	default:
		return SIZE_MAX;
	}
}

static void visit_list(char *body, size_t size, visit_fn *visit, void *arg)
{
	const size_t head = sizeof(struct control_listed) + sizeof(struct svc_list_reply);
	struct svc_list_reply r;
	if (size < head)
		return;
	memcpy(&r, body + sizeof(struct control_listed), sizeof(r));
	const size_t bytes = record_bytes(r.what);
	if (r.record_size != bytes)
		return;
	for (size_t at = head; size - at >= bytes && r.count--; at += bytes)
		visit_record(r.what, body + at, visit, arg);
}

/* ---- All messages ---- */

/* How many entries of that size follow a message's head. */
static size_t entries(size_t size, size_t head, size_t entry)
{
	return size < head ? 0 : (size - head) / entry;
}

void messages_visit_nodes(unsigned kind, void *body, size_t size, visit_fn *visit, void *arg)
{
	if (kind == CONTROL_START) {
		struct control_start *m = body;
		const size_t n = entries(size, sizeof(*m), sizeof(m->members[0]));
		for (size_t k = 0; k < n; k++)
			visit(arg, &m->members[k].node);
		if (size >= sizeof(*m))
			visit_signed(&m->lost, visit, arg);
	} else if (kind == CONTROL_RESULT) {
		struct control_result *m = body;
		const size_t n = entries(size, sizeof(*m), sizeof(m->subcomms[0]));
		for (size_t k = 0; k < n; k++)
			visit(arg, &m->subcomms[k].node);
	} else if (kind == CONTROL_NCCL_READY) {
		struct control_nccl_ready *m = body;
		const size_t n = entries(size, sizeof(*m), sizeof(m->gpus[0]));
		for (size_t k = 0; k < n; k++)
			visit(arg, &m->gpus[k].node);
	} else if (kind == CONTROL_LISTED) {
		visit_list(body, size, visit, arg);
	} else if (kind == CONTROL_BREAK && size == sizeof(struct control_break)) {
		visit_break(body, visit, arg);
	} else if (kind == CONTROL_NCCL_FREE && size == sizeof(struct control_nccl_free)) {
		visit_signed(&((struct control_nccl_free *)body)->node, visit, arg);
	}
}
