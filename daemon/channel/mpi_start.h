/* SPDX-License-Identifier: Apache-2.0
 *
 * How daemons that mpirun starts together find each other: a table of functions, which the module
 * ncclsvc-mpi.so exports as MPI_START_SYMBOL, with MPI as their carrier. These functions block. */
#ifndef CHANNEL_MPI_START_H
#define CHANNEL_MPI_START_H

#include "carrier.h"

#define MPI_START_SYMBOL "ncclsvc_mpi"

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

struct mpi_start {
	uint32_t version; /* CARRIER_VERSION */

	/* Returns 0, or -1 with a sentence in why. Waits for all nodes. */
	int (*start)(const struct mpi_network *network, struct mpi_place *place, char *why,
		     size_t size);
	/* bytes is the same on all nodes. Returns 0 or -1. */
	int (*allgather)(const void *mine, void *all, size_t bytes);
	struct carrier carrier;
};

#endif
