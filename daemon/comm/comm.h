/* SPDX-License-Identifier: Apache-2.0
 * Communicators on this node. A communicator goes through epochs. An epoch starts when every rank
 * has sent JOIN, and ends when a member dies: then the survivors and the process that takes the
 * free rank must JOIN again, and count their tasks from 0. The scheduler knows one epoch at a time.
 *
 * The files, bottom up; each uses only those before it:
 *   communicators and their state: epoch.c, find.c, consequences.c, state.c, handles.c
 *   messages to other nodes, and those that arrive too early: unexpected.c, remote.c
 *   the record of failures: report.c
 *   the end of SPLITs, plans, communicators and epochs: requests.c, comm.c, end.c
 *   GPUs; failed JOINs, and the start of an epoch: gpu.c, refuse.c, start.c
 *   members' requests: join.c, split.c, plan.c, leave.c, redop.c, world.c
 *   messages from other nodes: nodes/
 *   deadlines: expire.c
 */
#ifndef DAEMON_COMM_H
#define DAEMON_COMM_H

#include "communicator.h"
#include "coord/missing.h"

struct control_break;

/* ---- find.c ---- */

/* This node's part of that communicator; NULL: none. */
struct communicator *comm_find(const struct comms *s, const uint8_t *id);
/* The communicator of this handle of the session, and the session's rank there; NULL: none. */
struct communicator *comm_of_handle(struct session *c, uint32_t handle, int32_t *rank);
/* Has the session joined a communicator of GPUs? */
bool comm_uses_gpus(const struct session *c);

/* ---- state.c ---- */

/* For launched tasks whose epoch has ended. */
uint64_t comm_completion_ns(const struct communicator *m);
/* In this slot, the scheduler expects the epoch across nodes with this name (slot UINT32_MAX: in
 * none); 0: it expects none any more. */
void comm_name_epoch(struct comms *s, uint32_t slot, uint64_t internode_id);
/* Schedules a check of the communicator by that time. */
void comm_deadline(struct communicator *m, uint64_t at_ns);
/* Schedules the end of the member's JOIN by that time; 0: it has no deadline any more. */
void comm_join_deadline(struct comms *s, struct member *member, uint64_t at_ns);
/* When the communicator may be forgotten, if no rank is taken until then. */
uint64_t comm_idle_end(const struct communicator *m);
/* No rank is taken and no task runs. */
static inline bool comm_is_forgettable(const struct communicator *m)
{
	return m->life.state == NCCLSVC_EPOCH_IDLE && !m->world;
}
/* The answer to comm_is_forgettable may have changed. */
void comm_note_idle(struct communicator *m);
static inline bool comm_alive(const struct member *member)
{
	return member->session != NULL;
}
/* Is the member on this node, and in the running epoch? A session that waits in JOIN is not: it
 * waits for a rank whose member has left or, until the rendezvous refuses it, for a rank of another
 * node. */
static inline bool comm_takes_part(const struct member *member)
{
	return comm_alive(member) && member->state == NCCLSVC_MEMBER_JOINED;
}
/* No other process can join this part of a SPLIT. */
static inline bool comm_can_wait(const struct communicator *m)
{
	return m->reply_opcode == SVC_JOIN;
}
/* Is the member, of the epoch that is about to begin, or of any if this daemon is alone, here? */
bool comm_is_member_here(const struct communicator *m, uint32_t k);
/* Does the rank's member wait on this node, in the JOIN that the START answers? A restarted daemon
 * reuses session numbers, so the pid must match, too. */
bool comm_joins_in(const struct communicator *m, const struct control_start *start, uint32_t k);
/* An epoch is about to begin with this rank. Is the rank's member on this node and still waiting in
 * the same JOIN: it has not left, been replaced, or sent another JOIN? */
bool comm_is_still_there(const struct communicator *m, uint32_t k);
/* An epoch runs, and none of its members has left it. */
bool comm_is_whole(const struct communicator *m);
/* Are all members of the epoch that are on this node asleep? */
bool comm_sleeps(const struct communicator *m);
/* An epoch can begin: all ranks have joined. */
bool comm_all_joined(const struct communicator *m);
/* The state that inspection shows (ncclsvc_comm_state). */
uint32_t comm_state(const struct communicator *m);
/* Applies an event to the communicator, after its members have changed: makes the
 * transition of epoch.h. why: the status of pending tasks, if this ends an epoch. */
void comm_event_for(struct communicator *m, ncclsvc_epoch_cause cause, const ncclsvc_status *why);
/* The same for events that are nobody's fault. */
void comm_event(struct communicator *m, ncclsvc_epoch_cause cause);

/* ---- handles.c ---- */

/* 0: the session is at its limit. */
uint32_t comm_new_handle(struct session *c, struct communicator *m, int32_t rank);
/* This handle; 0: it is taken, or beyond the limit. */
uint32_t comm_claim_handle(struct session *c, struct communicator *m, int32_t rank,
			   uint32_t handle);
void comm_vacate(struct communicator *m, struct member *member, uint32_t state);

/* ---- comm.c ---- */

/* Returns 0 or -ENOMEM; even then, call comm_free_all. */
int comms_open(struct comms *s);
/* The account must belong to the communicator's user and already hold something else. Returns NULL
 * if over a limit or out of memory: *result and text say which. */
struct communicator *comm_create(struct comms *s, const uint8_t *id, uint32_t nranks,
				 struct account *a, int *result, char text[SVC_TEXT_BYTES]);
void comm_forget(struct comms *s, struct communicator *m);
/* The world exists already and nobody holds it. From now on it belongs to this user. */
void comm_hand_over(struct communicator *m, struct account *a);
/* A member is about to take a rank: what the communicator is called, and whose job it is of. */
void comm_name(struct communicator *m, const struct session *c,
	       const char label[NCCLSVC_NAME_BYTES]);
void comm_free_all(struct comms *s);

/* ---- end.c ---- */

/* Ends the epoch on all nodes because of one member; the others are told to rejoin. */
void comm_break_epoch(struct communicator *m, ncclsvc_epoch_cause cause, int32_t rank);
/* Ends the epoch on this node; pending tasks and the members, which must rejoin, get the status.
 * rank: the one at fault, or -1. The caller logs it. */
void comm_end_epoch(struct communicator *m, ncclsvc_epoch_cause cause, const ncclsvc_status *why,
		    int32_t rank);
/* Likewise, because of a member (-1: none), its GPU, or a node (-1: none), and logs a line. */
void comm_break_for(struct communicator *m, ncclsvc_epoch_cause cause, int reason, int32_t rank,
		    int32_t node);
/* A member's GPU, or NCCL, failed; ends the running epoch for all members. */
void comm_gpu_lost(struct communicator *m, int result, int32_t rank);
/* Another node has ended the epoch. */
void comm_broken_elsewhere(struct communicator *m, const struct control_break *b);
/* Ends every epoch for this reason, without blaming a member. */
void comm_close_all(struct comms *s, int reason);

/* ---- nccl/nccl_use.c: the scheduler's events of these names ---- */

void comm_event_nccl_wanted(struct comms *s, uint32_t slot, uint32_t epoch);
void comm_event_nccl_taken(struct comms *s, uint32_t slot, uint32_t epoch, bool taken);

/* ---- gpu.c ---- */

/* True if every worker exists and knows its member's timelines, and NCCL has a communicator.
 * Otherwise the missing parts have been requested, and comm_try_start follows. */
bool comm_gpus_ready(struct comms *s, struct communicator *m);
void comm_epoch_dirty(struct comms *s, uint32_t slot);

/* ---- refuse.c ---- */

/* Answers a JOIN with this error, which is reported to those that wait for the rank. */
void comm_turn_away(struct session *c, struct communicator *m, uint32_t request_id, int32_t rank,
		    int result, const char *format, ...) __attribute__((format(printf, 6, 7)));
void comm_refuse_join(struct communicator *m, uint32_t rank, int result, const char *text);
/* Answers every waiting JOIN with this error; rank: the one at fault, or -1. Tells other nodes that
 * were about to begin. */
void comm_fail_joins(struct comms *s, struct communicator *m, int result, int32_t rank,
		     const char *why);
/* The same, on behalf of another node. */
void comm_not_begun(struct communicator *m, ncclsvc_epoch_cause cause, int result, const char *why);
/* This rank of the epoch that is about to begin is missing again; the others wait for its next
 * holder. all: the other nodes do not know yet. */
void comm_join_again(struct communicator *m, int32_t rank, bool all);
/* An epoch that waits for GPUs cannot begin, as this rank has been freed. */
void comm_left_while_joining(struct comms *s, struct communicator *m, int32_t rank);
/* This rank's JOIN is overdue. */
void comm_expire_join(struct comms *s, struct communicator *m, uint32_t rank);

/* ---- start.c ---- */

/* If every rank is taken and its GPU is ready: starts the epoch and answers every member. */
void comm_try_start(struct comms *s, struct communicator *m);
/* why: the failure, if result is not OK. */
void comm_nccl_ready(struct communicator *m, int result, const char *why);
/* A resource that a communicator of GPUs waited for may be available now. */
void comm_gpu_ready(struct comms *s);
void comm_session_known(struct session *c);
void comm_epoch_gone(struct comms *s, uint32_t slot);

/* ---- join.c, leave.c, world.c ---- */

void comm_join(struct comms *s, struct session *c, uint32_t request_id,
	       const struct svc_join *request);
void comm_leave(struct session *c, uint32_t request_id, uint32_t handle);
void comm_abort(struct session *c, uint32_t request_id, const struct svc_abort *request);
/* join: id of the request to cancel. */
void comm_join_cancel(struct session *c, uint32_t request_id, uint32_t join);
/* Frees the ranks of a session that ends, until that time at the latest. True: all are free. */
bool comm_session_gone(struct comms *s, struct session *c, uint64_t until_ns);
int comm_create_world(struct comms *s);
void world_tell(struct comms *s, struct session *c, uint32_t request_id);

/* ---- expire.c ---- */

/* Ends what is overdue, for EXPIRE_TURN_NS per call; returns the next deadline, 0 for none. Visits
 * only communicators and members whose deadline has passed. */
uint64_t comm_expire(struct comms *s, uint64_t now);
/* The configuration has changed. */
void comms_reload(struct comms *s);

#endif
