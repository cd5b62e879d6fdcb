/* SPDX-License-Identifier: Apache-2.0
 * What comm.c and split.c share. */
#ifndef DAEMON_COMM_H
#define DAEMON_COMM_H

#include "server_state.h"

/* "1, 2 and 5 more" */
struct rank_names {
	char text[128];
	size_t at;
	unsigned n;
};
void rank_names_add(struct rank_names *r, uint32_t rank);
const char *rank_names_text(struct rank_names *r);

/* Fills the id with random bytes. Returns 0 or -1. */
int comm_random_id(uint8_t id[NCCLSVC_ID_BYTES]);
/* NULL: out of memory, or over comms_max. */
struct communicator *comm_create(struct server *s, const uint8_t *id, uint32_t nranks,
				 uint32_t owner);
/* 0: the session has its limit. */
uint32_t comm_new_handle(struct client *c, struct communicator *m, int32_t rank);
/* Forgets a communicator that no epoch has run on. */
void comm_discard(struct server *s, struct communicator *m);
/* Fails the JOINs of a part of a split that lost a member before it began. */
void comm_abandon(struct server *s, struct communicator *m);
/* If every seat is taken, and its GPU ready: starts the epoch and answers every member. */
void comm_try_start(struct server *s, struct communicator *m);

/* Answers every waiting SPLIT of m with this error; rank: who went, or -1. */
void comm_split_failed(struct communicator *m, int result, int32_t rank);
/* Returns the next deadline of a SPLIT of m; 0: none. */
uint64_t comm_split_expire(struct communicator *m, uint64_t now);

#endif
