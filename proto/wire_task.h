/* SPDX-License-Identifier: Apache-2.0
 * Tasks (wire.h describes what all messages have in common): records, results and cancelling. */
#ifndef PROTO_WIRE_TASK_H
#define PROTO_WIRE_TASK_H

#include <stdint.h>

#include "ncclsvc_types.h"
#include "svc_limits.h"

/* One operation. The same 128 bytes stand in the ring and in SVC_SUBMIT. */
enum svc_record_flags {
	SVC_TASK_MORE = 1, /* more tasks of this task group follow */
	/* If any of these flags is set, the record's second half is used; otherwise it is not read
	 * from a ring. Each of its fields is zero without the field's flag. */
	SVC_TASK_TIMELINE = 2,
	SVC_TASK_AGREE = 4, /* the members' agreement words and tags must be equal */
	SVC_TASK_PLAN = 8,
	/* A stream starts the task, through the word timeline.ready. */
	SVC_TASK_CAPTURED_GROUP = 32,
};
#define SVC_TASK_SECOND_HALF                                                                       \
	(SVC_TASK_TIMELINE | SVC_TASK_AGREE | SVC_TASK_PLAN | SVC_TASK_CAPTURED_GROUP)

/* A task group with SVC_TASK_CAPTURED_GROUP, all of one communicator, timeline and value (a
 * captured group's number, not 0, at most 32 bits), waits in the daemon until the stream has
 * written that number to the timeline's `ready`. Then the daemon resets `ready` to 0 and submits
 * the tasks. When they have run, the GPU writes 1 to the low half of `done`, in a 32-bit write; the
 * stream waits for done >= 1, and writes 0 to the low half. So a CUDA graph, in which all values
 * are fixed, can be launched repeatedly. The streams ensure that only one group of a timeline is in
 * progress at a time.
 *
 * Before `ready`, the stream writes 1 to `go`: the input is ready. The worker resets `go`. If
 * captured groups n and n + 1 are kept, n + 1 always follows n. So the daemon may launch n + 1
 * ahead, and the GPU waits for `go`.
 *
 * Tasks submitted by socket (SVC_SUBMIT) are kept, as the reply confirms, and run each time the
 * number is written, until SVC_CAPTURED_GROUP_DEL. Tasks in the ring run once, and end like any
 * other.
 *
 * If any captured task of a timeline fails, the daemon permanently sets the high half of `done`:
 * streams stop waiting, no task runs, and the communicator's epoch has ended. */
#define SVC_CAPTURED_GROUP_DONE UINT64_C(1)
#define SVC_CAPTURED_GROUP_DEAD (UINT64_C(1) << 32)
#define SVC_CAPTURED_GROUP_MAX	UINT32_MAX

/* An agreement word whose four highest bits are set means that this member takes part, but refuses.
 * Then the operation does not run, and all members learn who refused, and why: the low 8 bits are
 * the negated result, the next 8 an ncclsvc_refusal (task.h packs them). The other 44 are not 0 if
 * the member has said more about this word, in a sentence (SVC_DESCRIBE). For members that
 * give no reason, all bits are set. */
#define SVC_AGREEMENT_REFUSES (UINT64_C(0xf) << 60)
#define SVC_AGREEMENT_SAYS    (UINT64_C(0xfffffffffff) << 16)
#define SVC_AGREEMENT_REFUSED UINT64_MAX

/* The words of lists of tensors: 4 bits say what the member submits, 60 stand for what all must
 * have in common beside that: types and shapes. The daemon only compares words. */
#define AGREED_DIGEST_BITS 60

enum agreed {
	AGREED_STATIC = 1,
	AGREED_SHAPES, /* shapes are on their way */
	AGREED_AHEAD,  /* what they announced */
	AGREED_ALL_REDUCE,
	AGREED_ALL_GATHER,
	AGREED_REDUCE_SCATTER,
	AGREED_PLANNED, /* shapes of a planned list are on their way; of which one */
};

static inline enum agreed agreed_of(uint64_t word)
{
	return (enum agreed)(word >> AGREED_DIGEST_BITS);
}

struct svc_record {
	uint64_t number; /* ring: the task's number, counted from 1, stored last. Socket: any */
	uint32_t comm;
	uint32_t epoch; /* from the JOIN reply; an old one is refused */
	uint8_t op, type, redop, flags;
	int32_t peer;	/* root or peer rank; -1 if the operation has neither */
	uint64_t count; /* elements, counted as in NCCL for this operation */
	uint32_t src_region, dst_region;
	uint64_t src_offset, dst_offset; /* bytes */
	uint64_t timeout_ns;		 /* from when the daemon sees it; 0: none */
	/* The second half, in a separate cache line. */
	uint32_t timeline; /* with SVC_TASK_TIMELINE */
	uint32_t plan;	   /* with SVC_TASK_PLAN: the plan's handle in this session */
	uint64_t value; /* starts when timeline.ready >= value; then timeline.done becomes value */
	uint64_t agreement;		/* with SVC_TASK_AGREE, where it is not 0 */
	uint32_t plan_group, plan_task; /* with SVC_TASK_PLAN */
	int64_t tag;			/* with SVC_TASK_AGREE */
	/* With SVC_TASK_CAPTURED_GROUP, for inspection: the number of the CUDA graph that starts
	 * it, from 1, and the operation's index in the graph; 0: it is in none. */
	uint32_t graph, graph_place;
	uint64_t reserved[2];
};

/* The reply to SUBMIT comes when the task has ended, with result 0 or the task's result, and struct
 * svc_submit_reply in both cases. (For an error before it became a task: struct svc_error.) */
struct svc_submit_reply {
	ncclsvc_status status;
};

/* Deletes the kept tasks of this captured group, as no graph contains them any more. */
struct svc_captured_group_del {
	uint32_t timeline;
	uint32_t value;
};

/* Ends a pending task, all pending tasks of a communicator, or a whole session. Allowed to the
 * owner, root and the daemon's own user. A running task is allowed to finish. */
enum svc_cancel_kind { SVC_CANCEL_TASK = 1, SVC_CANCEL_COMM = 2, SVC_CANCEL_SESSION = 3 };

struct svc_cancel {
	uint32_t kind;
	uint32_t reserved;
	uint64_t id; /* the id in inspection */
};

struct svc_cancel_reply {
	uint64_t cancelled; /* number of tasks ended */
};

/* The daemon takes no new jobs: ATTACH and JOIN of tenants without a ring fail with DRAINING. Only
 * for administration. */
struct svc_drain {
	uint32_t on; /* 0: it takes new jobs again */
	uint32_t reserved;
};

/* Members compare agreement words, which say that something differs, and not what. After a failure,
 * they tell each other: the daemon keeps what this member says about a word of its own, for the
 * members of this epoch (of late: 32 descriptions), and answers with what the peer has said about
 * one of its words. Only the members know what a description means. */
struct svc_describe {
	uint32_t comm;
	uint32_t epoch;
	uint64_t about; /* 0: says nothing */
	int32_t peer;	/* -1: asks nothing */
	uint32_t reserved;
	uint64_t peer_about;
	uint8_t text[SVC_DESCRIPTION_BYTES];
};

/* The library has refused an operation, which therefore never becomes a task; the other members may
 * wait for it. */
struct svc_refused {
	uint32_t comm;
	uint32_t epoch;
	uint64_t seq; /* the member's operations so far, on all transports */
	int32_t result;
	uint8_t op;
	uint8_t reserved[3];
	char text[SVC_TEXT_BYTES]; /* why; NUL-terminated */
};

struct svc_describe_reply {
	uint32_t known; /* 1: here it is; 0: it may come yet, perhaps from another node */
	uint32_t reserved;
	uint8_t text[SVC_DESCRIPTION_BYTES];
};

struct svc_plan_reply {
	uint64_t uid;  /* as inspection shows it */
	uint32_t plan; /* handle in this session */
	uint32_t comm; /* the request's */
};

/* The member runs no more of the plan: its held tasks, and tasks that wait for them, are cancelled.
 */
struct svc_plan_drop {
	uint32_t comm;
	uint32_t plan;
};

#endif
