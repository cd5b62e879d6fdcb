/* SPDX-License-Identifier: Apache-2.0
 * Messages between schedulers, and the packets that carry them. */
#ifndef SCHED_INTERNODE_MESSAGE_H
#define SCHED_INTERNODE_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "coord/node_operation.h"

#define INTERNODE_MAGIC UINT32_C(0x6e617073)

struct scheduler;

enum internode_kind {
	/* Between nodes; on GPUs, the sequencer sends them READY, FAILED and ASK. */
	INTERNODE_READY = 1, /* a record and bytes; from the sequencer: which nodes are ready */
	INTERNODE_FAILED,    /* a struct failed_note; from the sequencer: it fails on all nodes */
	INTERNODE_ASK,	     /* a status: fail, unless the node has voted */
	INTERNODE_CREDIT,    /* a struct credit_note */
	INTERNODE_OVER,	     /* the sender has ended the epoch and votes READY no more; key.seq: the
				number of collectives it has voted on; key.subop, if not 0: the
				epoch is suspended, and the sender expects GONE */
	INTERNODE_DEADLOCK,  /* between a node and the first node: a struct deadlock_note */
	INTERNODE_VOTES,     /* READY votes of several nodes: disseminate.c */
	INTERNODE_PULL,	     /* send your READY vote, if there is one: disseminate.c */
	INTERNODE_GONE,	     /* the sender has forgotten the epoch */
	/* Node -> sequencer */
	INTERNODE_REQUEST,  /* request entries; key.seq is the request's number, key.a: more follow
			     */
	INTERNODE_PROPOSE,  /* of request key.seq; key.subop is a time */
	INTERNODE_WITHDRAW, /* key.subop says of what: an operation, a creation, or all */
	/* Sequencer -> node */
	INTERNODE_PREPARE, /* propose a time for request key.seq */
	INTERNODE_LAUNCH,  /* of request key.seq; a struct launch_time */
	INTERNODE_CLOSED,  /* no launch of the communicator follows */
	INTERNODE_END,
};

/* The header of a message between schedulers. All nodes run the same program on the
 * same kind of machine. */
struct internode_header {
	uint32_t magic;
	uint16_t kind;
	uint16_t reserved;
	uint64_t internode_id;
	struct operation_key key;
	uint64_t bytes; /* that follow */
};

/* A send or a receive in progress: the first member of the cookie that the carrier returns. */
struct flight {
	void (*done)(struct scheduler *sched, struct flight *f, size_t bytes, bool failed);
};

/* Messages to one node that are sent as one: each a header and a body, padded to 8 bytes. */
struct internode_packet {
	struct flight flight; /* must come first */
	struct internode_packet *prev, *next;
	uint32_t node;
	size_t bytes;
	_Alignas(8) char data[];
};

/* Takes the next message of a packet: copies its header, and returns its body. NULL: there is none,
 * or it is not valid. */
static inline const char *internode_next(const char **at, size_t *bytes, struct internode_header *h)
{
	if (*bytes < sizeof(*h))
		return NULL;
	const char *body = *at + sizeof(*h);
	memcpy(h, *at, sizeof(*h));
	if (h->magic != INTERNODE_MAGIC || h->bytes > *bytes - sizeof(*h))
		return NULL;
	const size_t padded = (sizeof(*h) + h->bytes + 7) / 8 * 8;
	const size_t taken = padded < *bytes ? padded : *bytes;
	*at += taken;
	*bytes -= taken;
	return body;
}

#endif
