/* SPDX-License-Identifier: Apache-2.0
 * What comm*.c and split.c share. */
#ifndef DAEMON_COMM_H
#define DAEMON_COMM_H

#include "communicator.h"
#include "coord/missing.h"

struct control_break;
struct control_start;

/* The account, of the user to whom it belongs, holds something else already. NULL: over a limit, or
 * out of memory, as text says. */
struct communicator *comm_create(struct comms *s, const uint8_t *id, uint32_t nranks,
				 struct account *a, char text[SVC_TEXT_BYTES]);
/* The world, which nobody holds and which is there already, belongs to this user from now on. */
void comm_hand_over(struct communicator *m, struct account *a);
/* 0: the session has its limit. */
uint32_t comm_new_handle(struct client *c, struct communicator *m, int32_t rank);
/* Forgets a communicator that no epoch has run on. */
void comm_discard(struct comms *s, struct communicator *m);
/* Has the communicator looked at by then. */
void comm_deadline(struct communicator *m, uint64_t at_ns);
/* Has the member's JOIN ended by then; 0: there is no deadline any more. */
void comm_join_deadline(struct comms *s, struct member *member, uint64_t at_ns);
/* When it may be forgotten, if no rank is taken until then. */
uint64_t comm_idle_end(const struct communicator *m);
/* No rank is taken, and no task runs. */
static inline bool comm_is_forgettable(const struct communicator *m)
{
	return m->life.state == NCCLSVC_EPOCH_IDLE && !m->world;
}
/* Whether that is so has perhaps changed. */
void comm_note_idle(struct communicator *m);
/* If every rank is taken, and its GPU ready: starts the epoch and answers every member. */
void comm_try_start(struct comms *s, struct communicator *m);

/* Answers every waiting SPLIT of m with this error; rank: who went, or -1. */
void comm_split_failed(struct communicator *m, int result, int32_t rank);
/* Returns the next deadline of a SPLIT of m; 0: none. */
uint64_t comm_split_expire(struct communicator *m, uint64_t now);

/* plan.c: answers everybody who waits for a plan of m; rank: who went, or -1. */
void plan_commit_failed(struct communicator *m, int result, int32_t rank);
/* Returns the next deadline of such; 0: none. */
uint64_t plan_expire(struct communicator *m, uint64_t now);
/* The member has left, and its plan with it. */
void plan_member_gone(struct communicator *m, uint32_t rank);
struct control_result;
/* What came of this epoch's plans. */
void plan_result(struct communicator *m, const struct control_result *v);
/* A member of another node is through with the plan of that number. */
void plan_left_elsewhere(struct communicator *m, uint32_t rank, uint32_t number);
/* m is about to be freed. */
void plan_forget(struct communicator *m);

/* comm.c */
static inline bool comm_alive(const struct member *member)
{
	return member->client != NULL;
}
/* It is of this node, and of the epoch that runs. A client that waits in JOIN is not: for a rank
 * whose member has left, or, until the rendezvous refuses it, for one of another node. */
static inline bool comm_takes_part(const struct member *member)
{
	return comm_alive(member) && member->state == NCCLSVC_MEMBER_JOINED;
}
/* An epoch runs, and no member has left it. */
bool comm_is_whole(const struct communicator *m);
/* Why a request that all members make together has ended, if that is no rank's fault. */
void comm_blameless_text(const struct communicator *m, int result, uint32_t asked,
			 char text[SVC_TEXT_BYTES]);
void comm_vacate(struct communicator *m, struct member *member, uint32_t state);
void comm_forget(struct comms *s, struct communicator *m);
/* Ends the epoch, on all nodes, because of one member; the others are told to rejoin. */
void comm_break_epoch(struct communicator *m, ncclsvc_epoch_cause cause, int32_t rank);
/* Ends the epoch here; pending tasks and the members, who are to rejoin, are told why. rank: whose
 * fault it is, or -1. What comes of it in the log is the caller's. */
void comm_end_epoch(struct communicator *m, ncclsvc_epoch_cause cause, const ncclsvc_status *why,
		    int32_t rank);
/* The same because of one member (-1: none), of its GPU, or of a node (-1: none), with a line in
 * the log. */
void comm_break_for(struct communicator *m, ncclsvc_epoch_cause cause, int reason, int32_t rank,
		    int32_t node);

/* state.c: this has happened to the communicator, and its members are as they are since: makes the
 * transition of epoch.h. why: what pending tasks are told, if an epoch ends by it. */
void comm_event_for(struct communicator *m, ncclsvc_epoch_cause cause, const ncclsvc_status *why);
/* The same of what is nobody's fault. */
void comm_event(struct communicator *m, ncclsvc_epoch_cause cause);
/* The scheduler expects the epoch across nodes with this name in that slot (UINT32_MAX: in none);
 * 0: not any more. */
void comm_name_epoch(struct comms *s, uint32_t slot, uint64_t internode_id);
/* An epoch can begin: all ranks have joined. */
bool comm_all_joined(const struct communicator *m);
/* For launched tasks, once their epoch is over. */
uint64_t comm_completion_ns(const struct comms *s);

/* join.c: this rank's JOIN is overdue. */
void comm_expire_join(struct comms *s, struct communicator *m, uint32_t rank);
/* Answers a JOIN with this error, which those hear of who wait for the rank. */
void comm_turn_away(struct client *c, struct communicator *m, uint32_t serial, int32_t rank,
		    int result, const char *format, ...) __attribute__((format(printf, 6, 7)));

/* An epoch is about to begin with this rank, and the rank's member is of this node and waits in
 * JOIN as before: it has not left since, nor has another one taken its place, nor the same with
 * another JOIN. */
bool comm_is_still_there(const struct communicator *m, uint32_t k);

/* gpu.c: true if every worker is there and knows its member's timelines, and NCCL has a
 * communicator. Else whatever is missing has been asked for, and comm_try_start follows. */
bool comm_gpus_ready(struct comms *s, struct communicator *m);
/* Answers every JOIN that waits with this error; rank: whose fault it is, or -1. Other nodes that
 * were about to begin are told. */
void comm_fail_joins(struct comms *s, struct communicator *m, int result, int32_t rank,
		     const char *why);
/* The same, when another node has told this one. */
void comm_not_begun(struct communicator *m, ncclsvc_epoch_cause cause, int result, const char *why);
/* Of the epoch that is about to begin, this rank is missing again: the others wait on, for whoever
 * comes. all: the other nodes do not know yet. */
void comm_join_again(struct communicator *m, int32_t rank, bool all);
/* An epoch that waits for the GPUs cannot begin without this rank, which is free already. */
void comm_left_while_joining(struct comms *s, struct communicator *m, int32_t rank);
/* Of a SPLIT, nobody else can come. */
static inline bool comm_can_wait(const struct communicator *m)
{
	return m->reply_opcode == SVC_JOIN;
}
/* The epoch that is about to begin, or any of a daemon that is alone: is this member of this node?
 */
bool comm_is_member_here(const struct communicator *m, uint32_t k);
/* Members are all of the host or all of GPUs, each of its own. False: an error was sent. */
bool comm_device_fits(struct client *c, struct communicator *m, uint32_t serial,
		      const struct svc_join *j, int32_t rank);

/* The communicator that the session calls so, and its rank there; NULL: none. */
struct communicator *comm_of_handle(struct client *c, uint32_t handle, int32_t *rank);

/* ---- describe.c ---- */

struct control_description;
void comm_describe(struct client *c, uint32_t serial, const struct svc_describe *request);
/* A member has said that; the oldest of DESCRIPTIONS_KEPT gives way. */
void description_keep(struct communicator *m, const struct control_description *d);

/* ---- For the layers above ---- */

/* Returns 0 or -ENOMEM; comm_free_all is due then, too. */
int comms_open(struct comms *s);
int comm_create_world(struct comms *s);
void comm_join(struct comms *s, struct client *c, uint32_t serial, const struct svc_join *request);
void comm_leave(struct client *c, uint32_t serial, uint32_t handle);
void comm_abort(struct client *c, uint32_t serial, const struct svc_abort *request);
/* join: the serial of the request that is taken back. */
void comm_join_cancel(struct client *c, uint32_t serial, uint32_t join);
void comm_split(struct client *c, uint32_t serial, const struct svc_split *r);
/* Frees the ranks of a client that is gone, until then at the most. True: all of them. */
bool comm_client_gone(struct comms *s, struct client *c, uint64_t until_ns);
/* What inspection shows: ncclsvc_comm_state. */
uint32_t comm_state(const struct communicator *m);
void comm_epoch_gone(struct comms *s, uint32_t slot);
void comm_epoch_dirty(struct comms *s, uint32_t slot);
/* Ends what is overdue; returns the next deadline, 0 for none. It looks at those communicators and
 * members alone whose time has come, for EXPIRE_TURN_NS each. */
uint64_t comm_expire(struct comms *s, uint64_t now);
/* What a communicator of GPUs waited for may be there now. */
void comm_gpu_ready(struct comms *s);
void comm_session_known(struct client *c);
/* Has it joined a communicator of GPUs? */
bool comm_uses_gpus(const struct client *c);
/* why: what failed, if result is not OK. */
void comm_nccl_ready(struct communicator *m, int result, const char *why);
/* A member's GPU, or NCCL, failed: the epoch that runs is over for all. */
void comm_gpu_lost(struct communicator *m, int result, int32_t rank);
/* Ends every epoch for this reason, so that no member takes the blame. */
void comm_close_all(struct comms *s, int reason);
/* Other nodes: all have joined; the epoch was ended by another node; a member there left; the node
 * is gone; the engine could not go on; a JOIN, a SPLIT is refused; who joins what.
 */
void comm_gathered(struct communicator *m, const struct control_start *start);
void comm_broken_elsewhere(struct communicator *m, const struct control_break *b);
void comm_left_elsewhere(struct communicator *m, int32_t rank);
void comm_node_lost(struct communicator *m, uint32_t node);
void comm_member_left(struct comms *s, uint32_t slot, uint32_t epoch, int32_t rank);
void comm_internode_failed(struct comms *s, uint32_t slot, uint32_t epoch, int result,
			   int32_t node);
/* An operation that a stream started has failed with that status: the epoch is over for it. */
void comm_trigger_failed(struct comms *s, uint32_t slot, const ncclsvc_status *st);
void comm_refuse_join(struct communicator *m, uint32_t rank, int result, const char *text);
void comm_split_refused(struct communicator *m, int result, const char *text);
/* m: that is split; NULL: its epoch is over here. */
void comm_split_parts(struct comms *s, struct communicator *m, const struct control_result *p);
/* The configuration has changed. */
void comms_reload(struct comms *s);
void comm_free_all(struct comms *s);

/* world.c */
void world_tell(struct comms *s, struct client *c, uint32_t serial);

#endif
