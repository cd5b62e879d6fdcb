/* SPDX-License-Identifier: Apache-2.0
 *
 * What the daemon uses of Open MPI, as a table of functions: the module ncclsvc-mpi.so has it under
 * the name MPI_API_SYMBOL. The daemon itself is not linked with MPI, and opens the module only when
 * it is one of several nodes.
 *
 * After start, one thread at a time calls these functions. None of them blocks but start, allgather
 * and finish.
 */
#ifndef CLUSTER_MPI_API_H
#define CLUSTER_MPI_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MPI_API_VERSION 3
#define MPI_API_SYMBOL	"ncclsvc_mpi"

#define MPI_TAG_CONTROL 1 /* messages, heard in order */
#define MPI_TAG_DATA	2 /* this one and all above carry bytes */

struct mpi_place {
	int node, nodes;   /* rank and size of the world */
	int local, locals; /* the same among those that share this machine's memory */
	int thread_level;  /* as given */
	int tag_max;
	char library[128];
};

/* How Open MPI reaches the other nodes, where its own variables in the environment do not say. */
struct mpi_network {
	bool one_machine;      /* by shared memory alone */
	const char *interface; /* else, if by TCP, through this one; NULL: through any */
};

/* A send or a receive that has ended. */
struct mpi_done {
	void *cookie;
	size_t bytes; /* received */
	bool failed;  /* or cancelled */
};

struct mpi_api {
	uint32_t version;

	/* Returns 0, or -1 with a sentence in why. Waits for all nodes. */
	int (*start)(const struct mpi_network *network, struct mpi_place *place, char *why,
		     size_t size);
	/* Of all nodes alike. Returns 0 or -1. */
	int (*allgather)(const void *mine, void *all, size_t bytes);

	/* Bytes are at most INT_MAX. The memory is in use until the cookie is done. Return 0 or -1.
	 */
	int (*send)(const void *from, size_t bytes, int node, int tag, void *cookie);
	/* A control message. Returns 1 if it is over at once, as most are that are small: then no
	 * cookie comes back. */
	int (*say)(const void *from, size_t bytes, int node, void *cookie);
	int (*receive)(void *to, size_t bytes, int node, int tag, void *cookie);
	/* Those that have ended; at most max of them. */
	unsigned (*poll)(struct mpi_done *done, unsigned max);
	/* To or from a node that is gone: a receive is done as failed, soon; a send is forgotten at
	 * once, and not heard of again. */
	void (*drop)(void *cookie);

	/* Receives control messages of up to `bytes` from now on. Returns 0 or -1. */
	int (*listen)(unsigned slots, size_t bytes);
	/* The next one, in the order in which each node sent them, or NULL. It is valid up to the
	 * next call. */
	const void *(*hear)(size_t *bytes, int *node);

	/* alone: others are gone or go on, so do not wait for them. */
	void (*finish)(bool alone);
};

#endif
