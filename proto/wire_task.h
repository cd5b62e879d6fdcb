/* SPDX-License-Identifier: Apache-2.0
 * Tasks (wire.h tells what holds of all messages): the record, its end, and cancelling. */
#ifndef PROTO_WIRE_TASK_H
#define PROTO_WIRE_TASK_H

#include <stdint.h>

#include "ncclsvc_types.h"
#include "svc_limits.h"

/* One operation. The same 128 bytes stand in the ring and in SVC_SUBMIT. */
enum svc_record_flags {
	SVC_TASK_MORE = 1, /* more tasks of this task group follow */
	/* With any of these the record's second half counts; in a ring it is not read without. Each
	 * field of it is zero without its flag. */
	SVC_TASK_TIMELINE = 2,
	SVC_TASK_AGREE = 4, /* the members' agreement words and tags must be equal */
	SVC_TASK_PLAN = 8,
	SVC_TASK_UNUSED = 16, /* older libraries set it; it means nothing */
};
#define SVC_TASK_SECOND_HALF (SVC_TASK_TIMELINE | SVC_TASK_AGREE | SVC_TASK_PLAN)

/* An agreement word: this member takes part, but refuses. Nothing runs, and all learn who it was.
 */
#define SVC_AGREEMENT_REFUSED UINT64_MAX

struct svc_record {
	uint64_t number; /* ring: the task's number, counted from 1, stored last. Socket: any */
	uint32_t comm;
	uint32_t epoch; /* from the JOIN reply; a stale one is refused */
	uint8_t op, type, redop, flags;
	int32_t peer;	/* root or peer rank; -1 where the operation has none */
	uint64_t count; /* elements, counted as NCCL counts them for this operation */
	uint32_t src_region, dst_region;
	uint64_t src_offset, dst_offset; /* bytes */
	uint64_t timeout_ns;		 /* from when the daemon sees it; 0: none */
	/* The second half, a cache line of its own. */
	uint32_t timeline; /* with SVC_TASK_TIMELINE */
	uint32_t plan;	   /* with SVC_TASK_PLAN: the plan's handle in this session */
	uint64_t value; /* starts when timeline.ready >= value; then timeline.done becomes value */
	uint64_t agreement;		/* with SVC_TASK_AGREE, and not 0 then */
	uint32_t plan_group, plan_task; /* with SVC_TASK_PLAN */
	int64_t tag;			/* with SVC_TASK_AGREE */
	uint64_t reserved[3];
};

/* The reply to SUBMIT comes when the task has ended, with result 0 or the task's result, and
 * struct svc_submit_reply in both cases. (An error before it became a task: struct svc_error.) */
struct svc_submit_reply {
	ncclsvc_status status;
};

/* Ends a pending task, all pending tasks of a communicator, or a whole session. Allowed to the
 * owner, to root and to the daemon's own user. A task that runs is let finish. */
enum svc_cancel_kind { SVC_CANCEL_TASK = 1, SVC_CANCEL_COMM = 2, SVC_CANCEL_SESSION = 3 };

struct svc_cancel {
	uint32_t kind;
	uint32_t reserved;
	uint64_t id; /* as inspection shows it */
};

struct svc_cancel_reply {
	uint64_t cancelled; /* how many tasks ended */
};

#endif
