/* SPDX-License-Identifier: Apache-2.0
 * Operations on communicators whose members are on several nodes. internode/ lies above these
 * files, and implements the table (internode/internode_comm.h). If all members are on this node,
 * the functions below do nothing, and return false or 0. */
#ifndef SCHED_NODES_H
#define SCHED_NODES_H

#include "state.h"

struct set_match;

struct nodes_ops {
	void (*comm_free)(struct scheduler *sched, struct comm *c);
	/* Tasks that wait for other nodes end with the epoch. */
	void (*end_epoch)(struct scheduler *sched, struct comm *c);

	/* ---- Collectives ---- */

	/* All local members have posted the collective. differ: NULL if they agree. False: the
	 * caller must act. */
	bool (*post_collective)(struct scheduler *sched, struct comm *c,
				const ncclsvc_status *differ);
	/* This node cannot run the current collective. False: the caller must act. */
	bool (*fail_collective)(struct scheduler *sched, struct comm *c, const ncclsvc_status *st);
	/* Other nodes have already decided the end of the current collective: poison it. */
	void (*look)(struct scheduler *sched, struct comm *c);
	/* Has this node voted on the current collective while other votes are missing? */
	bool (*voted)(struct comm *c);
	/* When the first report arrived that another node is ready for the current collective; 0:
	 * none has. */
	uint64_t (*first_ns)(struct comm *c);
	/* Are all other nodes known to be ready for the current collective? On GPUs, that is not
	 * known. */
	bool (*awaited)(struct comm *c);

	/* ---- Sends and Recvs, whose peer is on another node ---- */

	void (*post_p2p)(struct scheduler *sched, struct task *t);

	/* ---- Failures ---- */

	/* A task that waits for other nodes must fail: asks them. */
	void (*ask)(struct scheduler *sched, struct task *t, const ncclsvc_status *st);
	/* A local member has left; operations that wait for it fail. */
	void (*member_left)(struct scheduler *sched, struct comm *c, int32_t rank,
			    const ncclsvc_status *st);
	/* The match will not be launched, so its request is void. */
	void (*drop_request)(struct scheduler *sched, const struct set_match *m);

	/* ---- Plans ---- */

	/* A new plan, whose pairs count from 0. */
	void (*plan_begins)(const struct comm *c);
	/* A local member has left its plan; plan operations that wait for it fail. */
	void (*plan_left)(struct scheduler *sched, struct comm *c, int32_t rank);
};

static inline void nodes_comm_free(struct scheduler *sched, struct comm *c)
{
	if (c->internode)
		sched->nodes->comm_free(sched, c);
}

static inline void nodes_end_epoch(struct scheduler *sched, struct comm *c)
{
	if (c->internode)
		sched->nodes->end_epoch(sched, c);
}

static inline bool nodes_post_collective(struct scheduler *sched, struct comm *c,
					 const ncclsvc_status *differ)
{
	return c->internode && sched->nodes->post_collective(sched, c, differ);
}

static inline bool nodes_fail_collective(struct scheduler *sched, struct comm *c,
					 const ncclsvc_status *st)
{
	return c->internode && sched->nodes->fail_collective(sched, c, st);
}

static inline void nodes_look(struct scheduler *sched, struct comm *c)
{
	if (c->internode)
		sched->nodes->look(sched, c);
}

static inline bool nodes_voted(struct scheduler *sched, struct comm *c)
{
	return c->internode && sched->nodes->voted(c);
}

static inline void nodes_member_left(struct scheduler *sched, struct comm *c, int32_t rank,
				     const ncclsvc_status *st)
{
	if (c->internode)
		sched->nodes->member_left(sched, c, rank, st);
}

#endif
