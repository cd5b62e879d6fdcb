/* SPDX-License-Identifier: Apache-2.0
 * The registrar: which NCCL communicators across nodes there are, who uses them, and which one an
 * epoch gets. It decides alone, so no two epochs get the same one, and all nodes get the same. */
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "registrar.h"

#define SERIAL_NODE_SHIFT 40

/* An NCCL communicator with parts on several nodes. */
struct joint {
	uint64_t serial;
	UT_hash_handle hh;
	uint64_t idle_ns;
	uint32_t nranks;
	uint32_t users; /* nodes that have not given their part back */
	bool user[CLUSTER_NODES_MAX];
	struct control_gpu gpus[];
};

/* Nodes that are about to begin an epoch. */
struct muster {
	uint8_t id[NCCLSVC_ID_BYTES];
	UT_hash_handle hh;
	uint32_t epoch, nranks;
	uint32_t nodes, ready; /* that take part, and of them those that have said something */
	bool said[CLUSTER_NODES_MAX];
	int32_t result, rank; /* of the first that cannot; 0: none */
	bool asked;	      /* rank 0's node makes an id */
	struct control_gpu gpus[];
};

uint32_t registrar_of(const struct cluster *c)
{
	uint32_t node = 0;
	while (c->nodes[node].gone)
		node++;
	return node;
}

uint32_t registrar_that_made(uint64_t serial)
{
	return (uint32_t)(serial >> SERIAL_NODE_SHIFT) - 1;
}

/* Calls f for each node that has a GPU in the list; each once. Returns how many there are. */
static uint32_t each_node(struct cluster *c, const struct control_gpu *gpus, uint32_t n,
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
		if (body && !c->nodes[node].gone)
			link_send(c, node, kind, body, size);
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

static struct joint *joint_find(struct cluster *c, uint64_t serial)
{
	struct joint *j;
	HASH_FIND(hh, c->joints, &serial, sizeof(serial), j);
	return j;
}

static void joint_forget(struct cluster *c, struct joint *j)
{
	HASH_DEL(c->joints, j);
	free(j);
}

/* All parts go, for this reason. */
static void joint_drop(struct cluster *c, struct joint *j, int result, int32_t rank, int32_t node)
{
	const struct control_nccl_drop m = {
		.serial = j->serial, .result = result, .rank = rank, .node = node};
	each_node(c, j->gpus, j->nranks, CONTROL_NCCL_DROP, &m, sizeof(m));
	joint_forget(c, j);
}

static struct joint *joint_idle(struct cluster *c, const struct muster *u)
{
	struct joint *j, *tmp;
	HASH_ITER (hh, c->joints, j, tmp)
		if (!j->users && j->nranks == u->nranks &&
		    !memcmp(j->gpus, u->gpus, u->nranks * sizeof(u->gpus[0])))
			return j;
	return NULL;
}

static struct joint *joint_make(struct cluster *c, const struct muster *u)
{
	struct joint *j = calloc(1, sizeof(*j) + u->nranks * sizeof(j->gpus[0]));
	if (!j)
		return NULL;
	j->serial = (uint64_t)(c->me + 1) << SERIAL_NODE_SHIFT | ++c->njoints;
	j->nranks = u->nranks;
	memcpy(j->gpus, u->gpus, u->nranks * sizeof(u->gpus[0]));
	HASH_ADD(hh, c->joints, serial, sizeof(j->serial), j);
	return j;
}

static void joint_take(struct joint *j)
{
	for (uint32_t k = 0; k < j->nranks; k++) {
		j->users += !j->user[j->gpus[k].node];
		j->user[j->gpus[k].node] = true;
	}
}

/* ---- Epochs that are about to begin ---- */

static void muster_forget(struct cluster *c, struct muster *u)
{
	HASH_DEL(c->musters, u);
	free(u);
}

/* Says to all, or to one, which NCCL communicator it is; or that there is none. */
static void answer(struct cluster *c, const struct muster *u, const struct joint *j,
		   const uint8_t *unique, int32_t only)
{
	struct control_nccl_use m = {.epoch = u->epoch, .result = u->result, .rank = u->rank};
	memcpy(m.id, u->id, sizeof(m.id));
	if (j)
		m.serial = j->serial;
	if (unique) {
		m.fresh = 1;
		memcpy(m.unique, unique, sizeof(m.unique));
	}
	if (only >= 0)
		link_send(c, (uint32_t)only, CONTROL_NCCL_USE, &m, sizeof(m));
	else
		each_node(c, u->gpus, u->nranks, CONTROL_NCCL_USE, &m, sizeof(m));
}

/* Those that are ready hear it now, the others when they come. */
static void refuse(struct cluster *c, struct muster *u, int result, int32_t rank)
{
	if (u->result)
		return;
	u->result = result;
	u->rank = rank;
	for (uint32_t node = 0; node < c->n; node++)
		if (u->said[node] && !c->nodes[node].gone)
			answer(c, u, NULL, NULL, (int32_t)node);
}

static void decide(struct cluster *c, struct muster *u)
{
	struct joint *j = joint_idle(c, u);
	if (j) {
		joint_take(j);
		answer(c, u, j, NULL, -1);
		muster_forget(c, u);
		return;
	}
	struct control_nccl_id m = {.epoch = u->epoch};
	memcpy(m.id, u->id, sizeof(m.id));
	u->asked = true;
	link_send(c, u->gpus[0].node, CONTROL_NCCL_ID, &m, sizeof(m));
}

static struct muster *muster_make(struct cluster *c, const struct control_nccl_ready *m)
{
	const size_t gpus = m->nranks * sizeof(m->gpus[0]);
	struct muster *u = calloc(1, sizeof(*u) + gpus);
	if (!u)
		return NULL;
	memcpy(u->id, m->id, sizeof(u->id));
	u->epoch = m->epoch;
	u->nranks = m->nranks;
	memcpy(u->gpus, m->gpus, gpus);
	u->nodes = each_node(c, u->gpus, u->nranks, CONTROL_END, NULL, 0);
	HASH_ADD(hh, c->musters, id, sizeof(u->id), u);
	return u;
}

static struct muster *muster_find(struct cluster *c, const uint8_t *id)
{
	struct muster *u;
	HASH_FIND(hh, c->musters, id, sizeof(u->id), u);
	return u;
}

/* A node that is gone says nothing any more. */
static void muster_check(struct cluster *c, struct muster *u)
{
	uint32_t silent = 0;
	for (uint32_t node = 0; node < c->n; node++)
		silent +=
			!u->said[node] && c->nodes[node].gone && has_node(u->gpus, u->nranks, node);
	if (u->result && u->ready + silent == u->nodes)
		muster_forget(c, u);
	else if (!u->result && u->ready == u->nodes && !u->asked)
		decide(c, u);
}

void registrar_ready(struct cluster *c, uint32_t from, const struct control_nccl_ready *m)
{
	struct muster *u = muster_find(c, m->id);
	if (!has_node(m->gpus, m->nranks, from) || (!u && m->again))
		return; /* if it has been decided, the node gives its part back */
	if (u && u->epoch != m->epoch) {
		if (u->epoch > m->epoch)
			return; /* late */
		muster_forget(c, u);
		u = NULL;
	}
	if (!u && !(u = muster_make(c, m))) {
		log_error("the registrar is out of memory: a JOIN waits until its deadline");
		return;
	}
	if (!u->said[from])
		u->ready++;
	u->said[from] = true;
	for (uint32_t k = 0; k < u->nranks && !u->result; k++)
		if (c->nodes[u->gpus[k].node].gone)
			refuse(c, u, NCCLSVC_PEER_GONE, (int32_t)k);
	if (m->result)
		refuse(c, u, m->result, m->rank);
	else if (u->result)
		answer(c, u, NULL, NULL, (int32_t)from);
	muster_check(c, u);
}

void registrar_id(struct cluster *c, uint32_t from, const struct control_nccl_id *m)
{
	struct muster *u = muster_find(c, m->id);
	if (!u || u->epoch != m->epoch || !u->asked || u->gpus[0].node != from)
		return;
	if (u->result) { /* somebody has given up meanwhile */
		muster_forget(c, u);
		return;
	}
	struct joint *j = m->result ? NULL : joint_make(c, u);
	if (j) {
		joint_take(j);
		answer(c, u, j, m->unique, -1);
	} else {
		refuse(c, u, m->result ? m->result : NCCLSVC_NO_MEMORY, 0);
	}
	muster_forget(c, u);
}

void registrar_free(struct cluster *c, uint32_t from, const struct control_nccl_free *m)
{
	struct joint *j = joint_find(c, m->serial);
	if (!j || !has_node(j->gpus, j->nranks, from))
		return;
	if (m->result) {
		joint_drop(c, j, m->result, m->rank, -1);
		return;
	}
	j->users -= j->user[from];
	j->user[from] = false;
	if (j->users)
		return;
	j->idle_ns = clock_now();
	loop_deadline(c->deadlines, j->idle_ns);
}

/* ---- The end ---- */

void registrar_node_lost(struct cluster *c, uint32_t node)
{
	struct joint *j, *next;
	struct muster *u, *after;
	HASH_ITER (hh, c->joints, j, next)
		for (uint32_t k = 0; k < j->nranks; k++) {
			if (j->gpus[k].node != node)
				continue;
			joint_drop(c, j, NCCLSVC_PEER_GONE, (int32_t)k, (int32_t)node);
			break;
		}
	HASH_ITER (hh, c->musters, u, after)
		for (uint32_t k = 0; k < u->nranks; k++) {
			if (u->gpus[k].node != node)
				continue;
			refuse(c, u, NCCLSVC_PEER_GONE, (int32_t)k);
			muster_check(c, u);
			break;
		}
}

uint64_t registrar_expire(struct cluster *c, uint64_t now, uint64_t keep_ns)
{
	uint64_t next = 0;
	struct joint *j, *tmp;
	HASH_ITER (hh, c->joints, j, tmp) {
		if (j->users)
			continue;
		if (j->idle_ns + keep_ns <= now)
			joint_drop(c, j, NCCLSVC_OK, -1, -1);
		else
			next = earlier(next, j->idle_ns + keep_ns);
	}
	return next;
}

void registrar_free_all(struct cluster *c)
{
	struct joint *j, *next;
	struct muster *u, *after;
	HASH_ITER (hh, c->joints, j, next)
		joint_forget(c, j);
	HASH_ITER (hh, c->musters, u, after)
		muster_forget(c, u);
}
