/* SPDX-License-Identifier: Apache-2.0
 * One operation, as PyTorch's flight recorder writes it. */
#include "pytorch_entry.h"

#include <stdio.h>

#include "proto/operation.h"

static const char *name_of(unsigned op)
{
	static const char *const names[] = {
		[NCCLSVC_ALL_REDUCE] = "all_reduce",
		[NCCLSVC_ALL_GATHER] = "_all_gather_base",
		[NCCLSVC_REDUCE_SCATTER] = "_reduce_scatter_base",
		[NCCLSVC_BROADCAST] = "broadcast",
		[NCCLSVC_REDUCE] = "reduce",
		[NCCLSVC_ALL_TO_ALL] = "all_to_all",
		[NCCLSVC_GATHER] = "gather",
		[NCCLSVC_SCATTER] = "scatter",
		[NCCLSVC_SEND] = "send",
		[NCCLSVC_RECV] = "recv",
		[NCCLSVC_BARRIER] = "barrier",
	};
	return op < sizeof(names) / sizeof(names[0]) && names[op] ? names[op] : "barrier";
}

/* Names of c10's types. */
static const char *type_of(unsigned type)
{
	static const char *const names[] = {
		[NCCLSVC_INT8] = "Char",
		[NCCLSVC_UINT8] = "Byte",
		[NCCLSVC_INT32] = "Int",
		[NCCLSVC_UINT32] = "UInt32",
		[NCCLSVC_INT64] = "Long",
		[NCCLSVC_UINT64] = "UInt64",
		[NCCLSVC_FLOAT16] = "Half",
		[NCCLSVC_FLOAT32] = "Float",
		[NCCLSVC_FLOAT64] = "Double",
		[NCCLSVC_BFLOAT16] = "BFloat16",
		[NCCLSVC_FLOAT8E4M3] = "Float8_e4m3fn",
		[NCCLSVC_FLOAT8E5M2] = "Float8_e5m2",
		[NCCLSVC_BOOL] = "Bool",
		[NCCLSVC_INT16] = "Short",
		[NCCLSVC_UINT16] = "UInt16",
	};
	return type < sizeof(names) / sizeof(names[0]) && names[type] ? names[type] : "Byte";
}

static const char *state_of(const ncclsvc_operation_info *x)
{
	if (x->result == NCCLSVC_OK)
		return "completed";
	return x->started_ns && x->result == NCCLSVC_IN_PROGRESS ? "started" : "scheduled";
}

void pytorch_key_u64(struct text *t, const char *key, uint64_t value)
{
	pickle_string(t, key);
	pickle_u64(t, value);
}

void pytorch_key_string(struct text *t, const char *key, const char *value)
{
	pickle_string(t, key);
	pickle_string(t, value);
}

static void put_time(struct text *t, const char *key, uint64_t ns)
{
	pickle_string(t, key);
	if (ns)
		pickle_u64(t, ns);
	else
		pickle_none(t);
}

/* One tensor, of one dimension. */
static void put_tensors(struct text *t, const char *sizes, const char *types, uint64_t count,
			unsigned type)
{
	pickle_string(t, sizes);
	pickle_list(t);
	pickle_list(t);
	pickle_u64(t, count);
	pickle_list_end(t);
	pickle_list_end(t);
	pickle_string(t, types);
	pickle_list(t);
	pickle_string(t, type_of(type));
	pickle_list_end(t);
}

static void put_name(struct text *t, const struct pytorch_entry *e)
{
	char name[64];
	if (e->x->op == NCCLSVC_SEND)
		snprintf(name, sizeof(name), "nccl:send %d->%d", e->rank, e->peer);
	else if (e->x->op == NCCLSVC_RECV)
		snprintf(name, sizeof(name), "nccl:recv %d<-%d", e->rank, e->peer);
	else
		snprintf(name, sizeof(name), "nccl:%s", name_of(e->x->op));
	pytorch_key_string(t, "profiling_name", name);
}

/* Sends are numbered apart from collectives, which the analysis would confuse with them. */
#define P2P_NUMBERS (UINT64_C(1) << 40)

void pytorch_entry(struct text *t, const struct pytorch_entry *e)
{
	const ncclsvc_operation_info *x = e->x;
	const bool p2p = svc_op_is_p2p(x->op);
	const uint64_t each = x->nranks * x->count;
	pickle_dict(t);
	pytorch_key_u64(t, "record_id", e->record);
	pytorch_key_u64(t, "pg_id", x->comm);
	pickle_string(t, "process_group");
	pickle_list(t);
	pickle_string(t, e->group);
	pickle_string(t, e->label);
	pickle_list_end(t);
	pytorch_key_u64(t, "collective_seq_id", e->number);
	pytorch_key_u64(t, "p2p_seq_id", p2p ? P2P_NUMBERS + e->number : 0);
	pytorch_key_u64(t, "op_id", x->seq);
	put_name(t, e);
	pytorch_key_u64(t, "time_created_ns", x->submitted_ns);
	put_time(t, "time_discovered_started_ns", x->started_ns);
	put_time(t, "time_discovered_completed_ns", x->done_ns);
	put_tensors(t, "input_sizes", "input_dtypes", svc_op_sends_each(x->op) ? each : x->count,
		    x->type);
	put_tensors(t, "output_sizes", "output_dtypes",
		    svc_op_receives_each(x->op) ? each : x->count, x->type);
	pytorch_key_string(t, "state", state_of(x));
	pickle_string(t, "is_p2p");
	pickle_bool(t, p2p);
	pickle_string(t, "retired");
	pickle_bool(t, x->result != NCCLSVC_IN_PROGRESS);
	pytorch_key_u64(t, "timeout_ms", 0);
	pickle_string(t, "frames");
	pickle_list(t);
	pickle_list_end(t);
	pickle_dict_end(t);
}
