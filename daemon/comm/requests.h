/* SPDX-License-Identifier: Apache-2.0
 * Requests that wait for the same request of all members: SPLIT, and plans on their way through the
 * supervisor. */
#ifndef COMM_REQUESTS_H
#define COMM_REQUESTS_H

#include "communicator.h"

struct control_result;

/* ---- requests.c: how they fail ---- */

/* Why a request of all members has ended, when no rank is at fault. */
void comm_blameless_text(const struct communicator *m, int result, uint32_t asked,
			 char text[SVC_TEXT_BYTES]);
void comm_split_refused(struct communicator *m, int result, const char *text);
/* Answers every waiting SPLIT of m with this error; rank: the one that is gone, or -1. */
void comm_split_failed(struct communicator *m, int result, int32_t rank);
/* When a new epoch begins: members of the one that it continues send their SPLITs again. */
void comm_split_forget(struct communicator *m);
/* Returns the next deadline of a SPLIT of m; 0: none. */
uint64_t comm_split_expire(struct communicator *m, uint64_t now);
/* Answers all requests that wait for a plan of m; rank: the one that is gone, or -1. */
void plan_commit_failed(struct communicator *m, int result, int32_t rank);
/* Returns the next deadline of these requests; 0: none. */
uint64_t plan_expire(struct communicator *m, uint64_t now);
/* Forgets what the members have committed so far. */
void plan_forget(struct communicator *m);
/* The waiting members get this error. */
void plan_refused(struct communicator *m, int result, const char *text);
/* Frees a plan; NULL: does nothing. */
void plan_discard(struct account *a, struct plan *p);

/* ---- split.c ---- */

void comm_split(struct session *c, uint32_t request_id, const struct svc_split *r);
/* m: the communicator being split; NULL: its epoch has ended on this node. */
void comm_split_subcomms(struct comms *s, struct communicator *m, const struct control_result *p);
/* Do members on this node wait for a subcommunicator of a split that has been decided? of: only
 * this account's members; NULL: all, including those on other nodes that gather here. */
bool comm_splits_under_way(const struct comms *s, const struct account *of);

/* ---- plan.c ---- */

void plan_commit(struct session *c, uint32_t request_id, const struct svc_plan_commit *r, int fd);
void plan_terminate(struct comms *s, struct session *c, uint32_t request_id,
		    const struct svc_plan_drop *r);
void plan_dropped(struct comms *s, uint32_t asker, uint32_t request_id);
void plan_gone(struct comms *s, struct plan *p);
void plan_free_all(struct comms *s);
/* The result of this epoch's plans. */
void plan_result(struct communicator *m, const struct control_result *v);
/* A member on another node has finished with the plan of that number. */
void plan_left_elsewhere(struct communicator *m, uint32_t rank, uint32_t number);
/* The member has left, which ends its plan. */
void plan_member_gone(struct communicator *m, uint32_t rank);

#endif
