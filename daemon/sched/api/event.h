/* SPDX-License-Identifier: Apache-2.0
 * Reports from a scheduler to the supervisor (scheduler.h). */
#ifndef SCHED_EVENT_H
#define SCHED_EVENT_H

#include "proto/ncclsvc_types.h"
#include "proto/svc_limits.h"

struct plan;

enum event_kind {
	EVENT_SESSION_GONE = 1,
	EVENT_SESSION_BROKEN, /* it violated the protocol in its ring, or does not read its socket
			       */
	EVENT_REGION_GONE,
	EVENT_REGION_BUSY,
	EVENT_EPOCH_GONE,
	EVENT_PLAN_GONE,
	EVENT_PLAN_DROPPED,
	EVENT_CANCELLED,
	EVENT_QUIET, /* no task runs on a GPU, or the wait for them is over */
	EVENT_DRAINED,
	EVENT_PONG,
	EVENT_EPOCH_DIRTY, /* nodes may have launched differently; its NCCL communicator is unusable
			    */
	EVENT_TASKS_FAILED,  /* of a communicator whose epoch continues; for the log */
	EVENT_TASK_REFUSED,  /* it never was a task; the other members may wait for it */
	EVENT_TASK_TOO_LATE, /* for its epoch, which had ended because a member was gone: the first
				of the session's */
	EVENT_CAPTURED_GROUP_FAILED, /* of a communicator whose epoch must end because of it; has
				 `tasks`, too */
	EVENT_MEMBER_LEFT,	/* another node reported this about its member, through a failure */
	EVENT_NODE_CARRIED,	/* the answer to COMMAND_NODE_CARRY, or a later failure */
	EVENT_NCCL_WANTED,	/* an epoch without NCCL communicator has tasks for NCCL */
	EVENT_NCCL_TAKEN,	/* or not, as tasks need it */
	EVENT_INTERNODE_FAILED, /* an epoch on several nodes cannot continue; end it on all of them
				 */
};

struct event {
	enum event_kind kind;
	uint32_t session;
	union {
		struct {
			int32_t result;
			const char *text; /* static */
		} broken;
		struct {
			uint32_t region, request_id;
		} region;
		struct {
			uint32_t comm;
		} epoch;
		struct {
			uint32_t node, here; /* the command's */
			bool failed;
		} carried;
		struct {
			uint32_t comm, epoch;
			bool taken;
		} nccl;
		struct plan *plan;
		struct {
			uint32_t comm, epoch;
			int32_t result;
			int32_t node; /* at fault; -1: none */
		} internode;
		struct {
			uint32_t comm, epoch;
			int32_t rank;
		} left;
		struct { /* the first of them */
			uint32_t comm;
			int32_t rank;
			uint32_t op;
			uint64_t seq;
			ncclsvc_status status;
		} tasks;
		struct {
			uint32_t comm, epoch;
			int32_t rank;
			uint32_t op;
			uint64_t seq; /* the rank's operations so far */
			int result;
			char text[SVC_TEXT_BYTES];
		} refused;
		struct {
			uint32_t handle, epoch, op;
		} too_late;
		struct {
			uint32_t asker, request_id;
		} dropped;
		struct {
			uint32_t asker, request_id;
			int32_t result;
			uint64_t count;
		} cancelled;
	};
};

#endif
