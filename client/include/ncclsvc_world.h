/* SPDX-License-Identifier: Apache-2.0
 *
 * The world of a training run: its ranks, its nodes, and the groups of data, horizontal and
 * pipeline parallelism. The layout is pure arithmetic; a world joins communicators for it.
 *
 * W ranks are D (data) x H (horizontal) x P (pipeline). Rank r has the coordinates x = r % H, y =
 * (r / H) % D, z = r / (H x D). The ranks of a horizontal group differ only in x, those of a data
 * group only in y, those of a pipeline group only in z. Nodes have L consecutive ranks each; if L
 * does not divide W, the last node has fewer. A data group's ranks on one node form a node-local
 * group; its ranks with the same local rank form a cross-node group.
 *
 * Threads, errors and times: see ncclsvc.h.
 */
#ifndef NCCLSVC_WORLD_H
#define NCCLSVC_WORLD_H

#include "ncclsvc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The layout: pure functions, which need neither daemon nor session ------------------- */

typedef enum ncclsvc_group_type {
	NCCLSVC_GROUP_GLOBAL = 0, /* all ranks */
	NCCLSVC_GROUP_DATA = 1,
	NCCLSVC_GROUP_NODE_LOCAL = 2, /* of the data group, on this node */
	NCCLSVC_GROUP_CROSS_NODE = 3, /* of the data group, with this local rank */
	NCCLSVC_GROUP_HORIZONTAL = 4,
	NCCLSVC_GROUP_PIPELINE = 5,
} ncclsvc_group_type;
#define NCCLSVC_GROUP_TYPES 6

/* One group as one of its ranks sees it. Its ranks, in their order, are first, first + step, ... */
typedef struct ncclsvc_group {
	int id;	   /* groups of one type are numbered from 0, in the order of their first ranks */
	int index; /* this rank's index in it */
	int size;
	int first, step;
} ncclsvc_group;

typedef struct ncclsvc_world_sizes {
	int world; /* ranks in all: 1 to 65536 */
	int local; /* ranks of a full node: 1 to world */
	int data, horizontal, pipeline;
} ncclsvc_world_sizes;

typedef struct ncclsvc_layout {
	int rank, size;		    /* of the world */
	int local_rank, local_size; /* of this node, which may be the last and have fewer ranks */
	int node, nodes;
	ncclsvc_group groups[NCCLSVC_GROUP_TYPES]; /* by ncclsvc_group_type */
} ncclsvc_layout;

/* Fills the caller's *layout for one rank. Never blocks. INVALID_ARGUMENT: the sentence names the
 * first of these conditions that does not hold: rank >= 0; world is 1 to 65536; rank < world; local
 * is 1 to world; data, then horizontal is 1 to world; horizontal divides world; data divides world;
 * data x horizontal x pipeline is world. */
ncclsvc_result ncclsvc_layout_of(const ncclsvc_world_sizes *sizes, int rank,
				 ncclsvc_layout *layout);

/* The world rank of a group's member `index`; -1 if it has none. */
int ncclsvc_group_rank(const ncclsvc_group *group, int index);

/* "data", "node_local"; "?" if unknown. Static. */
const char *ncclsvc_group_type_name(unsigned type);

/* ---- The world: one call for all communicators ------------------------------------------- */

typedef struct ncclsvc_world ncclsvc_world;

#define NCCLSVC_DEVICE_LOCAL   (-2) /* this process's GPU number local_rank */
#define NCCLSVC_WORLD_LAUNCHER (-2)

typedef struct ncclsvc_world_options {
	size_t size; /* sizeof(ncclsvc_world_options): lets the struct grow */
	int rank;    /* in the world; -1: any that is free; or NCCLSVC_RANK_LAUNCHER */
	int device;  /* NCCLSVC_DEVICE_HOST, NCCLSVC_DEVICE_LOCAL, or a CUDA ordinal of this process
		      */
	/* 0: from the daemon's configuration, section [world]. If that says nothing, horizontal and
	 * pipeline are 1, and data is the rest of the world. */
	int data, horizontal, pipeline;
	int local; /* ranks of a full node; 0: from the daemon, or with `world` from the launcher */
	/* The number of ranks of the world. 0: the daemon's world, from its configuration.
	 * Otherwise the job's world: rank is not -1, and 0 above means 1 for horizontal and
	 * pipeline. */
	int world; /* or NCCLSVC_WORLD_LAUNCHER: from the launcher of NCCLSVC_RANK_LAUNCHER */
	/* A name that all ranks of the job pass, and no other job of this user; NULL: the
	 * launcher's (see ncclsvc_world(3)). Read only during the call. */
	const char *job;
} ncclsvc_world_options;

/* Joins the daemon's world or a job's, checks that all ranks mean the same world, and joins this
 * rank's group of each type, on the host or on a GPU. All ranks call it, and it returns when all
 * have joined their groups. options may be NULL: any rank, on the host. On success the caller owns
 * *world, and frees it before it closes the session. Blocks up to timeout_ms for each
 * communicator, and before that, if standalone daemons serve the job's nodes, until the resolver
 * knows the first node's address. All groups of one rank share one communicator. INVALID_ARGUMENT:
 * the sentence names a bad parameter; nothing was joined. MISMATCH on all ranks: their parameters
 * differ; the sentence names the parameter and two ranks. MISMATCH on one rank: its world size
 * differs from that of the earlier ranks, which keep waiting. UNSUPPORTED on all ranks: one of
 * them cannot use its GPU. PEER_GONE: the named rank (pid) ended while this one waited. Other
 * results as for ncclsvc_comm_join. */
ncclsvc_result ncclsvc_world_init(ncclsvc_session *session, const ncclsvc_world_options *options,
				  int timeout_ms, ncclsvc_world **world);

/* Leaves all its communicators. NULL is allowed. */
void ncclsvc_world_free(ncclsvc_world *world);

/* Valid as long as the world. */
const ncclsvc_layout *ncclsvc_world_layout(const ncclsvc_world *world);
/* The communicator of this rank's group. The world owns it, and rejoins and leaves it. NULL if
 * there is no such type. */
ncclsvc_comm *ncclsvc_world_comm(const ncclsvc_world *world, ncclsvc_group_type type);
/* All ranks, in host memory, whatever the groups use: for small data that is not worth a GPU
 * operation. */
ncclsvc_comm *ncclsvc_world_host_comm(const ncclsvc_world *world);
/* This process's GPU, or NCCLSVC_DEVICE_HOST. */
int ncclsvc_world_device(const ncclsvc_world *world);

/* After PEER_GONE or DAEMON_LOST: connects again if necessary, and joins the next epoch of every
 * communicator of the world whose epoch is over, together with the restarted ranks, which call
 * ncclsvc_world_init. All surviving ranks call it. Handles stay valid. Does not touch the session's
 * other communicators: use ncclsvc_reattach or ncclsvc_comm_rejoin for them. Blocks like
 * ncclsvc_world_init. If it fails, call it again to finish the rest. */
ncclsvc_result ncclsvc_world_rejoin(ncclsvc_world *world, int timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
