/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"

/* An NCCL communicator with parts on several nodes. */
struct shared_comm {
	uint64_t nccl_id;
	UT_hash_handle hh;
	uint64_t idle_ns;
	uint32_t nranks;
	uint32_t users; /* nodes that have not returned their part */
	bool user[CLUSTER_NODES_MAX];
	struct control_gpu gpus[];
};

/* Nodes that are about to begin an epoch. */
struct barrier {
	uint8_t id[NCCLSVC_ID_BYTES];
	UT_hash_handle hh;
	uint32_t epoch, nranks;
	uint32_t nodes, ready; /* that take part; and those that have reported */
	bool arrived[CLUSTER_NODES_MAX];
	int32_t result, rank; /* of the first node that cannot begin; 0: none */
	bool asked;	      /* an id is being created */
	uint64_t over_ns;     /* when it was refused */
	struct control_gpu gpus[];
};

/* Calls f once for each node with a GPU in the list. Returns the number of these nodes. */
static uint32_t each_node(struct coord *c, const struct control_gpu *gpus, uint32_t n,
			  enum control_kind kind, const void *body, size_t size)
{
	bool seen[CLUSTER_NODES_MAX] = {false};
	uint32_t nodes = 0;
	for (uint32_t k = 0; k < n; k++) {
		uint32_t node = gpus[k].node;
		if (seen[node])
			continue;
		seen[node] = true;
		nodes++;
		if (body && !coord_is_gone(c, node))
			coord_send(c, node, kind, body, size);
	}
	return nodes;
}

static bool has_node(const struct control_gpu *gpus, uint32_t n, uint32_t node)
{
	for (uint32_t k = 0; k < n; k++)
		if (gpus[k].node == node)
			return true;
	return false;
}

/* ---- NCCL's communicators ---- */

static struct shared_comm *shared_find(struct coord *c, uint64_t nccl_id)
{
	struct shared_comm *j;
	HASH_FIND(hh, c->shared, &nccl_id, sizeof(nccl_id), j);
	return j;
}

static void shared_forget(struct coord *c, struct shared_comm *j)
{
	HASH_DEL(c->shared, j);
	free(j);
}

/* Drops all parts for this reason. */
static void shared_drop(struct coord *c, struct shared_comm *j, int result, int32_t rank,
			int32_t node)
{
	const struct control_nccl_free m = {
		.nccl_id = j->nccl_id, .result = result, .rank = rank, .node = node};
	each_node(c, j->gpus, j->nranks, CONTROL_NCCL_FREE, &m, sizeof(m));
	shared_forget(c, j);
}

static struct shared_comm *shared_idle(struct coord *c, const struct barrier *u)
{
	struct shared_comm *j, *tmp;
	HASH_ITER (hh, c->shared, j, tmp)
		if (!j->users && j->nranks == u->nranks &&
		    !memcmp(j->gpus, u->gpus, u->nranks * sizeof(u->gpus[0])))
			return j;
	return NULL;
}

static struct shared_comm *shared_make(struct coord *c, const struct barrier *u)
{
	struct shared_comm *j = calloc(1, sizeof(*j) + u->nranks * sizeof(j->gpus[0]));
	if (!j)
		return NULL;
	j->nccl_id = ++c->names;
	j->nranks = u->nranks;
	memcpy(j->gpus, u->gpus, u->nranks * sizeof(u->gpus[0]));
	HASH_ADD(hh, c->shared, nccl_id, sizeof(j->nccl_id), j);
	return j;
}

static void shared_take(struct shared_comm *j)
{
	for (uint32_t k = 0; k < j->nranks; k++) {
		j->users += !j->user[j->gpus[k].node];
		j->user[j->gpus[k].node] = true;
	}
}

/* ---- Epochs that are about to begin ---- */

static void barrier_forget(struct coord *c, struct barrier *u)
{
	HASH_DEL(c->barriers, u);
	free(u);
}

/* Tells all nodes, or one, which NCCL communicator to use, or that there is none. */
static void answer(struct coord *c, const struct barrier *u, const struct shared_comm *j,
		   const uint8_t *unique, int32_t only)
{
	struct control_nccl_use m = {.epoch = u->epoch, .result = u->result, .rank = u->rank};
	memcpy(m.id, u->id, sizeof(m.id));
	if (j)
		m.nccl_id = j->nccl_id;
	if (unique) {
		m.fresh = 1;
		memcpy(m.unique, unique, sizeof(m.unique));
	}
	if (only >= 0)
		coord_send(c, (uint32_t)only, CONTROL_NCCL_USE, &m, sizeof(m));
	else
		each_node(c, u->gpus, u->nranks, CONTROL_NCCL_USE, &m, sizeof(m));
}

/* Nodes that are ready are told now, the others when they report. */
static void refuse(struct coord *c, struct barrier *u, int result, int32_t rank)
{
	if (u->result)
		return;
	u->result = result;
	u->rank = rank;
	u->over_ns = coord_now(c);
	c->ops->deadline(c->arg, u->over_ns + c->keep_ns);
	for (uint32_t node = 0; node < c->n; node++)
		if (u->arrived[node] && !coord_is_gone(c, node))
			answer(c, u, NULL, NULL, (int32_t)node);
}

static void decide(struct coord *c, struct barrier *u)
{
	struct shared_comm *j = shared_idle(c, u);
	if (j) {
		shared_take(j);
		answer(c, u, j, NULL, -1);
		barrier_forget(c, u);
		return;
	}
	u->asked = true;
	c->ops->make_nccl_id(c->arg, u->id, u->epoch, u->gpus[0].device);
}

static struct barrier *barrier_make(struct coord *c, const struct control_nccl_ready *m)
{
	const size_t gpus = m->nranks * sizeof(m->gpus[0]);
	struct barrier *u = calloc(1, sizeof(*u) + gpus);
	if (!u)
		return NULL;
	memcpy(u->id, m->id, sizeof(u->id));
	u->epoch = m->epoch;
	u->nranks = m->nranks;
	memcpy(u->gpus, m->gpus, gpus);
	u->nodes = each_node(c, u->gpus, u->nranks, CONTROL_END, NULL, 0);
	HASH_ADD(hh, c->barriers, id, sizeof(u->id), u);
	return u;
}

static struct barrier *barrier_find(struct coord *c, const uint8_t *id)
{
	struct barrier *u;
	HASH_FIND(hh, c->barriers, id, sizeof(u->id), u);
	return u;
}

/* A lost node sends no more reports. */
static void barrier_check(struct coord *c, struct barrier *u)
{
	uint32_t silent = 0;
	for (uint32_t node = 0; node < c->n; node++)
		silent += !u->arrived[node] && coord_is_gone(c, node) &&
			  has_node(u->gpus, u->nranks, node);
	if (u->result && u->ready + silent == u->nodes)
		barrier_forget(c, u);
	else if (!u->result && u->ready == u->nodes && !u->asked)
		decide(c, u);
}

void nccl_pool_ready(struct coord *c, uint32_t from, const struct control_nccl_ready *m)
{
	struct barrier *u = barrier_find(c, m->id);
	if (!has_node(m->gpus, m->nranks, from) || m->gpus[0].node != c->me || (!u && m->again))
		return; /* if it has been decided, the node returns its part */
	if (u && u->epoch != m->epoch) {
		if (u->epoch > m->epoch && !u->result)
			return; /* late */
		barrier_forget(c, u);
		u = NULL;
	}
	if (!u && !(u = barrier_make(c, m))) {
		log_error("out of memory for an NCCL communicator of several nodes: the JOINs that "
			  "need it wait until their deadline");
		return;
	}
	if (!u->arrived[from])
		u->ready++;
	u->arrived[from] = true;
	for (uint32_t k = 0; k < u->nranks && !u->result; k++)
		if (coord_is_gone(c, u->gpus[k].node))
			refuse(c, u, NCCLSVC_PEER_GONE, (int32_t)k);
	if (m->result)
		refuse(c, u, m->result, m->rank);
	else if (u->result)
		answer(c, u, NULL, NULL, (int32_t)from);
	barrier_check(c, u);
}

void nccl_pool_id(struct coord *c, const uint8_t *id, uint32_t epoch, int result,
		  const uint8_t unique[NCCLSVC_ID_BYTES])
{
	struct barrier *u = barrier_find(c, id);
	if (!u || u->epoch != epoch || !u->asked)
		return;
	if (u->result) { /* a node has given up meanwhile */
		barrier_forget(c, u);
		return;
	}
	struct shared_comm *j = result ? NULL : shared_make(c, u);
	if (j) {
		shared_take(j);
		answer(c, u, j, unique, -1);
	} else {
		refuse(c, u, result ? result : NCCLSVC_NO_MEMORY, 0);
	}
	barrier_forget(c, u);
}

bool nccl_pool_give(struct coord *c, uint32_t from, const struct control_nccl_free *m)
{
	struct shared_comm *j = shared_find(c, m->nccl_id);
	if (!j)
		return false;
	if (!has_node(j->gpus, j->nranks, from))
		return true;
	if (m->result) {
		shared_drop(c, j, m->result, m->rank, -1);
		return true;
	}
	j->users -= j->user[from];
	j->user[from] = false;
	if (j->users)
		return true;
	j->idle_ns = coord_now(c);
	c->ops->deadline(c->arg, j->idle_ns);
	return true;
}

/* ---- The end ---- */

void nccl_pool_broken(struct coord *c, const struct control_break *m)
{
	struct barrier *u = barrier_find(c, m->id);
	if (u && u->epoch == m->epoch)
		refuse(c, u, m->result, m->rank);
}

void nccl_pool_node_lost(struct coord *c, uint32_t node)
{
	struct shared_comm *j, *next;
	struct barrier *u, *after;
	HASH_ITER (hh, c->shared, j, next)
		for (uint32_t k = 0; k < j->nranks; k++) {
			if (j->gpus[k].node != node)
				continue;
			shared_drop(c, j, NCCLSVC_PEER_GONE, (int32_t)k, (int32_t)node);
			break;
		}
	HASH_ITER (hh, c->barriers, u, after)
		for (uint32_t k = 0; k < u->nranks; k++) {
			if (u->gpus[k].node != node)
				continue;
			refuse(c, u, NCCLSVC_PEER_GONE, (int32_t)k);
			barrier_check(c, u);
			break;
		}
}

static uint64_t release_ns(const struct coord *c)
{
	return c->release_ns && c->release_ns < c->keep_ns ? c->release_ns : c->keep_ns;
}

uint64_t nccl_pool_expire(struct coord *c)
{
	const uint64_t now = coord_now(c), keep = c->keep_ns, release = release_ns(c);
	uint64_t next = 0;
	struct barrier *u, *after;
	HASH_ITER (hh, c->barriers, u, after) {
		if (!u->result)
			continue;
		if (u->over_ns + keep <= now) /* a node has no part of it, and sends nothing */
			barrier_forget(c, u);
		else
			next = earlier(next, u->over_ns + keep);
	}
	struct shared_comm *j, *tmp;
	HASH_ITER (hh, c->shared, j, tmp) {
		if (j->users)
			continue;
		if (j->idle_ns + release <= now)
			shared_drop(c, j, NCCLSVC_OK, -1, -1);
		else
			next = earlier(next, j->idle_ns + release);
	}
	return next;
}

void nccl_pool_free(struct coord *c)
{
	struct shared_comm *j, *next;
	struct barrier *u, *after;
	HASH_ITER (hh, c->shared, j, next)
		shared_forget(c, j);
	HASH_ITER (hh, c->barriers, u, after)
		barrier_forget(c, u);
}
