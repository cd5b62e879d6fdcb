/* SPDX-License-Identifier: Apache-2.0
 *
 * The connections to the other daemons: frames, and the kinds of messages in them. coord/messages.h
 * has the messages' contents.
 *
 * Versions. A daemon speaks all versions of this protocol from LINK_PROTOCOL_MIN to
 * LINK_PROTOCOL_MAX, so that a site can update one node after the other. Both sides' HELLO say what
 * they speak, and both select the highest common one, which struct node keeps. HELLO grows only at
 * its end, and its receiver ignores what it does not know.
 *
 * To add a version, raise LINK_PROTOCOL_MAX. Send a new kind of message only to nodes that speak
 * its version. Add fields only at the end of a struct, and let zero mean the old behaviour. The
 * code that adds the first such field must make link.c truncate the struct for older nodes, and
 * fill what they send with zeros. The version also covers the messages that schedulers exchange
 * over the carrier. Raise LINK_PROTOCOL_MIN once the release before the last is no longer
 * supported. Until the first release, version 1 may still change. */
#ifndef CHANNEL_LINK_H
#define CHANNEL_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cluster.h"
#include "proto/svc_limits.h"

#define LINK_PROTOCOL_MIN 1
#define LINK_PROTOCOL_MAX 1

enum control_kind {
	CONTROL_HELLO = 1, /* first, from both sides: struct control_hello */
	CONTROL_BEAT,	   /* -> all: this node is alive; in the last one: it exits in good order */
	CONTROL_JOIN,	   /* -> rendezvous, which the id determines */
	CONTROL_WITHDRAW,  /* -> rendezvous, coordinator: a member is gone, or its deadline has
			      passed */
	CONTROL_REFUSE,	   /* rendezvous -> node, or node -> rendezvous: a JOIN's error */
	CONTROL_START,	   /* rendezvous -> members' nodes */
	CONTROL_BREAK,	   /* -> members' nodes, rendezvous, coordinator: the epoch has ended */
	CONTROL_LEFT,	   /* -> the same: a member has left the epoch, or only its plan */
	CONTROL_SPLIT,	   /* a member's -> coordinator, rank 0's node */
	CONTROL_PLAN,	   /* a member's, in chunks -> coordinator */
	CONTROL_RESULT, /* coordinator -> members' nodes: the result of all members' SPLIT or plan
			 */
	CONTROL_NCCL_READY,  /* -> rank 0's node: an epoch can or cannot begin here */
	CONTROL_NCCL_USE,    /* rank 0's node -> members' nodes: the communicator to use, or none */
	CONTROL_NCCL_FREE,   /* -> rank 0's node: a part is unused, or broken; and back: drop all
				parts */
	CONTROL_DESCRIPTION, /* -> members' nodes: what a member says about a failure */
	CONTROL_LIST,	     /* -> any node: a client there asks for a chunk of a list */
	CONTROL_LISTED,	     /* the answer */
	CONTROL_NODE,	     /* what a number of the sender's table means: struct control_node */
	CONTROL_CLOSE,	     /* the connection is no longer needed; no message is lost */
	CONTROL_END,
};

struct control_header {
	uint32_t length; /* of the body that follows */
	uint16_t kind;
	uint16_t reserved;
};

/* First from the side that has opened the connection; then the other side answers, when its carrier
 * can reach the sender. */
struct control_hello {
	uint32_t magic;
	uint32_t protocol_min, protocol_max; /* what the sender speaks */
	uint32_t label;			     /* the receiver's: see struct carrier */
	uint64_t incarnation;
	int32_t pid;
	uint16_t port;
	uint16_t carrier_bytes; /* of the carrier's address; 0: it needs none */
	char address[CLUSTER_HOST_BYTES];
	char host[CLUSTER_HOST_BYTES];
	char version[NCCLSVC_NAME_BYTES];
	uint8_t carrier[CARRIER_ADDRESS_MAX];
};

#define CONTROL_HELLO_MAX (8 << 10) /* bytes, in any version */
_Static_assert(sizeof(struct control_hello) <= CONTROL_HELLO_MAX, "HELLO fits");

/* Sent before the first message that names the node. */
struct control_node {
	uint32_t number; /* in the sender's table */
	uint16_t port;
	uint16_t reserved;
	char address[CLUSTER_HOST_BYTES];
};

struct control_beat {
	uint32_t last;
};

/* The longest body. */
#define CONTROL_BODY_MAX (SVC_HOST_RANKS_MAX * 160)

/* Returns 0, or -1 after a message was logged. */
int link_listen(struct cluster *c, const char *address, uint16_t port);
/* Sends to another node, which this node connects to if needed. If that fails, the node is lost. */
void link_send(struct cluster *c, uint32_t node, enum control_kind kind, const void *body,
	       size_t size);
/* Handles messages that came before the server existed. */
void link_handle_kept(struct cluster *c);
void link_close_all(struct cluster *c);
/* Sends keep-alives from now on. */
void link_start_beats(struct cluster *c);
/* Is so much unsent that large messages should wait? */
bool link_is_full(const struct cluster *c, uint32_t node);

#endif
