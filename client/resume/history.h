/* SPDX-License-Identifier: Apache-2.0
 * What a member has done in an epoch that continues after a restart of the daemon, and what follows
 * from all members' histories. No sockets, no locks. */
#ifndef CLIENT_RESUME_HISTORY_H
#define CLIENT_RESUME_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/svc_limits.h"

/* The orders in which operations match: all collectives, Sends to a rank, Recvs from a rank, those
 * of plans, in the plans' order; and SPLITs. */
enum history_order {
	HISTORY_COLLECTIVES,
	HISTORY_SENDS,
	HISTORY_RECVS,
	HISTORY_PLANNED_SENDS,
	HISTORY_PLANNED_RECVS,
	HISTORY_SPLITS,
};

enum history_kind {
	HISTORY_SUBMITTED, /* `to` operations so far; of plans, all of the current iterations */
	HISTORY_PENDING,   /* those from `from` up to, but not including, `to` have not ended, or
			      are not submitted yet */
	HISTORY_DAMAGED,   /* `from` was half done in place */
};

struct history_line {
	uint16_t order, kind;
	int32_t peer; /* -1 for collectives and SPLITs */
	uint64_t from, to;
};

/* More than a member can have: each pending task can be damaged, too, and each planned one
 * not submitted yet; the rest is for damage of earlier restarts. Members make room for as many as
 * any of them says. */
#define HISTORY_LINES_MAX (4 * SVC_RING_MAX + SVC_PLAN_TASKS + 4 * SVC_HOST_RANKS_MAX + 64)

struct history {
	struct history_line *lines;
	size_t n, room;
};

/* False: out of memory. Pending operations of one order are added in that order. */
bool history_add(struct history *h, const struct history_line *line);

/* All members' lines: nranks times `room` of them, zeros (SUBMITTED 0) behind a member's last. */
struct histories {
	const struct history_line *lines;
	const int32_t *nodes; /* [nranks]: equal for ranks of one node; NULL: all are on one */
	uint32_t nranks;
	size_t room;
};

enum history_verdict {
	HISTORY_REPEAT, /* nobody has seen it end */
	HISTORY_DONE,	/* a member of this node has seen it succeed, so it has for all of them */
	HISTORY_LOST,	/* its input is overwritten in part */
	HISTORY_MISSED, /* it has succeeded on other nodes, which do not repeat it */
};

/* Decides what becomes of this rank's operation. sends_only: it gives the rank nothing. */
enum history_verdict history_judge(const struct histories *all, uint32_t rank, unsigned order,
				   int32_t peer, uint64_t number, bool sends_only);
/* False: a member has done an operation that another one has never submitted, so they are not of
 * one epoch. */
bool history_fits(const struct histories *all, uint32_t rank);

#endif
