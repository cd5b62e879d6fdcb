/* SPDX-License-Identifier: Apache-2.0
 * The connections with the other daemons: link.c. Frames, and the kinds of messages in them; what
 * each says is in coord/messages.h. */
#ifndef CHANNEL_LINK_H
#define CHANNEL_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cluster.h"
#include "svc_limits.h"

enum control_kind {
	CONTROL_HELLO = 1, /* first, from both sides: struct control_hello */
	CONTROL_BEAT,	   /* -> all: this node is alive; the last: it ends in good order */
	CONTROL_JOIN,	   /* -> rendezvous: the node that the id decides */
	CONTROL_WITHDRAW,  /* -> rendezvous, coordinator: a member has gone, or its time is up */
	CONTROL_REFUSE,	   /* rendezvous -> node, or node -> rendezvous: a JOIN's error */
	CONTROL_START,	   /* rendezvous -> members' nodes */
	CONTROL_BREAK,	   /* -> members' nodes, rendezvous, coordinator: the epoch is over */
	CONTROL_LEFT,	   /* -> the same: one member has left it, or its plan alone */
	CONTROL_SPLIT,	   /* -> coordinator, rank 0's node: a member's */
	CONTROL_PLAN,	   /* -> coordinator: a member's, in chunks */
	CONTROL_RESULT, /* coordinator -> members' nodes: what came of all members' SPLIT or plan */
	CONTROL_NCCL_READY, /* -> rank 0's node: an epoch may begin here, or cannot */
	CONTROL_NCCL_USE,   /* rank 0's node -> members' nodes: this communicator, or none */
	CONTROL_NCCL_FREE,  /* -> rank 0's node: a part is used no more, or broken; and back: all go
			     */
	CONTROL_LIST,	    /* -> any node: a client there asks for a chunk of a list */
	CONTROL_LISTED,	    /* the answer */
	CONTROL_END,
};

struct control_header {
	uint32_t length; /* of what follows */
	uint16_t kind;
	uint16_t reserved;
};

struct control_hello {
	uint32_t magic;
	uint32_t node;
	uint8_t key[CLUSTER_KEY_BYTES];
};

struct control_beat {
	uint32_t last;
};

/* The longest body. */
#define CONTROL_BODY_MAX (SVC_HOST_RANKS_MAX * 160)

/* Returns 0, or -1 after a message was logged. */
int link_listen(struct cluster *c, const char *address);
/* Connects to all others, and waits for those that connect to this one. */
int link_all(struct cluster *c);
/* To another node. */
void link_send(struct cluster *c, uint32_t node, enum control_kind kind, const void *body,
	       size_t size);
/* Handles what came before there was a server. */
void link_handle_kept(struct cluster *c);
void link_close_all(struct cluster *c);
/* Sends beats from now on. */
void link_start_beats(struct cluster *c);
/* What it has not taken yet is so much that large things should wait. */
bool link_is_full(const struct cluster *c, uint32_t node);

#endif
