/* SPDX-License-Identifier: Apache-2.0
 * Open MPI's own connections: through which network it makes them, and when it stops listening. */
#ifndef CLUSTER_MPI_NETWORK_H
#define CLUSTER_MPI_NETWORK_H

#include "mpi_api.h"

/* Before MPI_Init: sets Open MPI's variables, but none that the environment has. Returns whether
 * MPI_Init makes all connections there will be, so that the ports may be closed after it. */
bool mpi_network_choose(const struct mpi_network *network);
/* After MPI_Init: Open MPI listens no more. */
void mpi_network_close_ports(void);

#endif
