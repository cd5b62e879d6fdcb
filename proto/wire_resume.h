/* SPDX-License-Identifier: Apache-2.0
 * Messages of sessions that survive their daemon (wire.h describes what all messages have in
 * common). */
#ifndef PROTO_WIRE_RESUME_H
#define PROTO_WIRE_RESUME_H

#include <stdint.h>

/* svc_join_reply.lineage, in such a session, names an epoch and those that continue it; 0: it
 * cannot be continued. With this bit, the epoch continues one, and its members first compare what
 * they have done. */
#define SVC_LINEAGE_RESUMED (UINT32_C(1) << 31)

enum svc_resume_kind {
	/* After ATTACH: the client connects again by itself when the daemon ends, and submits its
	 * unfinished tasks to the next one. A daemon that shuts down neither waits for them nor
	 * fails them. */
	SVC_RESUME_SESSION = 1,
	/* In a session that has come back: */
	SVC_RESUME_REGION = 2, /* the next request that registers memory gets this number */
	SVC_RESUME_COMM = 3,   /* the next JOIN continues this lineage, and gets this handle */
	SVC_RESUME_JOIN = 4,   /* the previous daemon has not answered the next JOIN */
	SVC_RESUME_LEFT = 5,   /* the next JOIN only says that the session has left this lineage */
	SVC_RESUME_PLAN = 6,   /* the next PLAN_COMMIT continues a plan, and gets this handle */
	/* After svc_event_comm.suspended and SVC_RESUME_COMM, of tasks that the daemon holds: */
	SVC_RESUME_TASK = 7,  /* this one is over */
	SVC_RESUME_NOT = 8,   /* those of this communicator fail, since it is not continued */
	SVC_RESUME_TASKS = 9, /* all others are submitted to their continued epochs */
};

struct svc_resume {
	uint32_t kind;
	uint32_t number; /* of the region; or the handle; with TASK: 0 if it has run, 1: it fails */
	uint32_t lineage; /* with SVC_RESUME_COMM; otherwise 0 */
	uint32_t reserved;
	uint64_t done; /* with COMM on a GPU: group/done.h; with TASK: its number in the ring */
};

/* Before a JOIN with SVC_RESUME_COMM on a GPU: the control blocks, as STAGING has returned them, of
 * the epoch that it continues. Its kernels have run on meanwhile. */
struct svc_controls {
	uint32_t reserved[2];
};

#endif
