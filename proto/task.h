/* SPDX-License-Identifier: Apache-2.0
 * The meaning of a task record: the bytes it reads and writes, whether it is valid, and whether two
 * members' records agree. Pure functions, shared by the library and the daemon. */
#ifndef PROTO_TASK_H
#define PROTO_TASK_H

#include "operation.h"
#include "wire.h"

/* Bytes a task reads from its source and writes to its destination for this rank. False if a
 * product overflows. Sizes follow NCCL: AllGather and Gather count what one rank sends,
 * ReduceScatter and Scatter what one rank receives, AllToAll what one rank sends to one other. */
bool svc_task_extent(const struct svc_record *r, uint32_t nranks, int32_t rank, uint64_t *src_bytes,
		     uint64_t *dst_bytes);

/* Do overlapping buffers overlap as the operation works in place: the smaller one is this rank's
 * block of the larger, or both are the same? */
bool svc_task_in_place(const struct svc_record *r, uint32_t rank, uint64_t src, uint64_t dst);

/* Bytes as counted by inspection and benchmarks: the larger of both sides. */
uint64_t svc_task_bytes(const struct svc_record *r, uint32_t nranks);

/* Checks each field of the second half against its flag. Returns 0 or a negative result with a
 * sentence in text (SVC_TEXT_BYTES; may be NULL). */
int svc_record_check_half(const struct svc_record *r, char *text);

/* Checks everything else that needs no tables: operation, type, reduction, root or peer, flags,
 * overflow; and computes the task's extent. Returns as svc_record_check_half, which it calls if a
 * flag requires the second half; without such a flag, a record copied from a ring has zeros there.
 */
int svc_record_measure(const struct svc_record *r, uint32_t nranks, int32_t rank,
		       uint64_t *src_bytes, uint64_t *dst_bytes, char *text);

/* True if the member takes part only to refuse; then no member's record counts. */
static inline bool svc_record_refuses(const struct svc_record *r)
{
	return r->agreement >= SVC_AGREEMENT_REFUSES;
}

/* Is the plan's task a list of tensors whose shapes are sent ahead? */
static inline bool svc_plan_is_ahead(const struct svc_plan_task *t)
{
	return t->agreement && t->count == SVC_PLAN_ANY;
}

/* The agreement word of a member that refuses, and its contents. Only results that can also concern
 * another member are kept; others become INVALID_ARGUMENT, so that no member mistakes them for the
 * state of its own session or communicator (such as DAEMON_LOST). The reason may be any number. */
uint64_t svc_refusal(int result, unsigned reason);
int svc_refusal_result(uint64_t word);
unsigned svc_refusal_reason(uint64_t word);

/* The first field in which two members' collectives differ, or NCCLSVC_FIELD_NONE. For a pair of
 * point-to-point tasks, a is the Send and b the Recv. Fills in the two different values. */
unsigned svc_record_differs(const struct svc_record *a, const struct svc_record *b,
			    uint64_t *value_a, uint64_t *value_b);

/* The contents of a kernel's header (abi/peer_abi.h). */
struct svc_record svc_header_record(uint64_t header);

#endif
