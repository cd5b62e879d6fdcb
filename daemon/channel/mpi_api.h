/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of Open MPI that the daemon uses, as a table of functions, which the module
 * ncclsvc-mpi.so exports as MPI_API_SYMBOL. The daemon itself is not linked with MPI, and opens the
 * module only when it is one of several nodes.
 *
 * After start, one thread at a time calls these functions. Only start, allgather and finish block.
 */
#ifndef CLUSTER_MPI_API_H
#define CLUSTER_MPI_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MPI_API_VERSION 3
#define MPI_API_SYMBOL	"ncclsvc_mpi"

#define MPI_TAG_CONTROL 1 /* messages, received in order */
#define MPI_TAG_DATA	2 /* this tag and all above carry data */

struct mpi_place {
	int node, nodes;   /* rank and size of the world */
	int local, locals; /* the same among the processes that share this machine's memory */
	int thread_level;  /* as given */
	int tag_max;
	char library[128];
};

/* How Open MPI reaches the other nodes, unless its own environment variables say otherwise. */
struct mpi_network {
	bool one_machine;      /* use only shared memory */
	const char *interface; /* otherwise, for TCP, the interface to use; NULL: any */
};

/* A send or a receive that has ended. */
struct mpi_done {
	void *cookie;
	size_t bytes; /* received */
	bool failed;  /* or was cancelled */
};

struct mpi_api {
	uint32_t version;

	/* Returns 0, or -1 with a sentence in why. Waits for all nodes. */
	int (*start)(const struct mpi_network *network, struct mpi_place *place, char *why,
		     size_t size);
	/* bytes is the same on all nodes. Returns 0 or -1. */
	int (*allgather)(const void *mine, void *all, size_t bytes);

	/* Length is at most INT_MAX. The memory stays in use until the cookie is returned. Return 0
	 * or -1. */
	int (*send)(const void *from, size_t bytes, int node, int tag, void *cookie);
	/* A control message. Returns 1 if it completed at once, as most small ones do; then no
	 * cookie is returned. */
	int (*say)(const void *from, size_t bytes, int node, void *cookie);
	int (*receive)(void *to, size_t bytes, int node, int tag, void *cookie);
	/* Returns those that have completed, at most max. */
	unsigned (*poll)(struct mpi_done *done, unsigned max);
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

#endif
