/* SPDX-License-Identifier: Apache-2.0
 *
 * The world of a training run: its ranks, its nodes, and the groups of data, horizontal and
 * pipeline parallelism. The layout is pure arithmetic; a world joins communicators for it.
 *
 * W ranks are D (data) x H (horizontal) x P (pipeline). Rank r stands at x = r % H, y = (r / H) %
 * D, z = r / (H x D). Ranks differ within a horizontal group in x alone, within a data group in y
 * alone, within a pipeline group in z alone. Every node has L ranks, one node after the other; if L
 * does not divide W, the last node has fewer. A data group's part on one node is a node-local
 * group; its ranks that have the same local rank are a cross-node group.
 *
 * Threads, errors and times are as in ncclsvc.h.
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
	int index; /* this rank's place in it */
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

/* Fills *layout, the caller's, for one rank. Never blocks. INVALID_ARGUMENT: the sentence names the
 * first of these that does not hold: rank >= 0; world is 1 to 65536; rank < world; local is 1 to
 * world; data, then horizontal is 1 to world; horizontal divides world; data divides world;
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
	/* 0: as the daemon's configuration says, section [world]. Without that, horizontal and
	 * pipeline are 1, and data is what they leave of the world. */
	int data, horizontal, pipeline;
	int local; /* ranks of a full node; 0: as the daemon, or with `world` the launcher, says */
	/* How many ranks the world has. 0: it is the daemon's, of its configuration. Else it is the
	 * job's: rank is not -1, and 0 above means 1 for horizontal and pipeline. */
	int world; /* or NCCLSVC_WORLD_LAUNCHER: as the launcher of NCCLSVC_RANK_LAUNCHER says */
	/* A name that all ranks give and no other job of this user; NULL: the launcher's (see
	 * ncclsvc_world(3)). Read during the call alone. */
	const char *job;
} ncclsvc_world_options;

/* Joins the daemon's world or that of a job, checks that all ranks mean the same one, and joins
 * this rank's group of each type, on the host or on a GPU. All ranks call it. options may be NULL:
 * any rank, on the host. On success *world is the caller's, to be freed before the session is
 * closed. Blocks up to timeout_ms for each communicator. A group of one rank shares a communicator
 * with the others such. INVALID_ARGUMENT: bad parameters are named before anything is joined.
 * MISMATCH, on all ranks: parameters differ, with the parameter and two ranks; on one rank: its
 * world has another size than that of those who came before, who wait on. UNSUPPORTED, on all
 * ranks: one of them cannot use its GPU. PEER_GONE: that rank, with its pid, ended while this one
 * waited. Others are those of ncclsvc_comm_join. */
ncclsvc_result ncclsvc_world_init(ncclsvc_session *session, const ncclsvc_world_options *options,
				  int timeout_ms, ncclsvc_world **world);

/* Leaves all its communicators. NULL is allowed. */
void ncclsvc_world_free(ncclsvc_world *world);

/* Valid as long as the world. */
const ncclsvc_layout *ncclsvc_world_layout(const ncclsvc_world *world);
/* The communicator of this rank's group. It is the world's: rejoined and left with it. NULL if
 * there is no such type. */
ncclsvc_comm *ncclsvc_world_comm(const ncclsvc_world *world, ncclsvc_group_type type);
/* All ranks, in host memory, whatever the groups are on: for what is not worth a GPU's while. */
ncclsvc_comm *ncclsvc_world_host_comm(const ncclsvc_world *world);
/* This process's GPU, or NCCLSVC_DEVICE_HOST. */
int ncclsvc_world_device(const ncclsvc_world *world);

/* After PEER_GONE or DAEMON_LOST: connects again if need be, and joins the next epoch of every
 * communicator of the world that is over, beside the restarted ranks, which call
 * ncclsvc_world_init. All surviving ranks call it. Handles stay valid. Communicators of the session
 * that are not the world's are left as they are, to ncclsvc_reattach or ncclsvc_comm_rejoin. Blocks
 * as ncclsvc_world_init. If it fails, call it again: it does what is left to do. */
ncclsvc_result ncclsvc_world_rejoin(ncclsvc_world *world, int timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
