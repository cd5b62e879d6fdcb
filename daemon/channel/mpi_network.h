/* SPDX-License-Identifier: Apache-2.0
 * Open MPI's own connections: which network they use, and when Open MPI stops listening. */
#ifndef CLUSTER_MPI_NETWORK_H
#define CLUSTER_MPI_NETWORK_H

#include "mpi_start.h"

/* Call before MPI_Init. Sets Open MPI's variables, except those set in the environment. Returns
 * whether MPI_Init makes all connections that will be needed, so that the ports may be closed after
 * it. */
bool mpi_network_choose(const struct mpi_network *network);
/* Call after MPI_Init. Makes Open MPI stop listening. */
void mpi_network_close_ports(void);

#endif
