/* SPDX-License-Identifier: Apache-2.0
 *
 * What carries bytes, and the schedulers' messages, between nodes: a table of functions, which a
 * module exports. The daemon itself is linked with no such library; it opens a module only when it
 * serves several nodes.
 *
 * One thread at a time calls these functions, and none blocks, except finish. */
#ifndef CHANNEL_CARRIER_H
#define CHANNEL_CARRIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CARRIER_VERSION	    2
#define CARRIER_TAG_CONTROL 1 /* messages, received in order */
#define CARRIER_TAG_DATA    2 /* this tag and all above carry data */
#define CARRIER_ADDRESS_MAX 4096
#define CARRIER_NODES	    1024
#define CARRIER_SLOTS	    64		/* for listen */
#define CARRIER_MESSAGE_MAX (16 * 1024) /* likewise */

/* A send or a receive that has ended. */
struct carrier_done {
	void *cookie;
	size_t bytes; /* received */
	bool failed;  /* or was cancelled */
};

struct carrier {
	const char *name;

	/* This node's address, for others' connect. Returns its length; 0: none is needed, as all
	 * nodes are connected from the start, and the next two functions are NULL. */
	size_t (*address)(void *out, size_t size);
	/* From now on, `node` is the node with that address. Each side tells the other by which
	 * label it knows it: messages from that node carry `here`, those to it `there`. What comes
	 * with another label is dropped. A label is the node's number, plus CARRIER_NODES for each
	 * connection before. Returns 0 or -1. */
	int (*connect)(uint32_t node, const void *address, size_t bytes, uint32_t here,
		       uint32_t there);
	/* Transfers to and from the node must have been dropped; other sends soon complete as
	 * failed. */
	void (*disconnect)(uint32_t node);
	/* Returns each node with a broken connection once, and its label `here`; -1: none. NULL:
	 * only a daemon's end breaks a connection. */
	int (*broken)(uint32_t *here);

	/* Length is at most INT_MAX. The memory stays in use until the cookie is returned. Return 0
	 * or -1. On a broken connection, send and receive return 0, and the transfer soon completes
	 * as failed. */
	int (*send)(const void *from, size_t bytes, int node, int tag, void *cookie);
	/* A control message. Returns 1 if it completed at once, as most small ones do; then no
	 * cookie is returned. */
	int (*say)(const void *from, size_t bytes, int node, void *cookie);
	int (*receive)(void *to, size_t bytes, int node, int tag, void *cookie);
	/* Returns those that have completed, at most max. */
	unsigned (*poll)(struct carrier_done *done, unsigned max);
	/* For a node that is gone: a receive soon completes as failed; a send is dropped at once
	 * and never reported. */
	void (*drop)(void *cookie);

	/* Receives control messages of up to `bytes` from now on. Returns 0 or -1. */
	int (*listen)(unsigned slots, size_t bytes);
	/* Returns the next message, in the order in which each node sent them, or NULL. It is valid
	 * until the next call. */
	const void *(*hear)(size_t *bytes, int *node);

	/* alone: other daemons are gone or continue, so do not wait for them. */
	void (*finish)(bool alone);
};

struct carrier_network {
	const char *interface; /* for TCP; NULL: any */
};

/* A module exports this struct as CARRIER_SYMBOL, for standalone daemons. */
struct carrier_module {
	uint32_t version;
	/* Returns 0, or -1 with a sentence in why. */
	int (*open)(const struct carrier_network *network, char *why, size_t size);
	struct carrier carrier;
};
#define CARRIER_SYMBOL "ncclsvc_carrier"

#endif
