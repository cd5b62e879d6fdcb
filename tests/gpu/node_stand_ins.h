/* SPDX-License-Identifier: Apache-2.0
 * Several daemons on this machine stand in for nodes, each with its own GPUs. */
#ifndef TESTS_GPU_NODE_STAND_INS_H
#define TESTS_GPU_NODE_STAND_INS_H

#include "ranks.h"
#include "tests/integration/node_daemons.h"

struct nodes {
	struct cluster c;
	int n, each; /* daemons, and GPUs of each */
};

/* GPU k belongs to node k / each. */
void nodes_start(struct nodes *w, int n, int each);
/* Waits until the workers hold no trainer's memory, and stops the daemons. */
void nodes_stop(struct nodes *w);
struct daemon *node_of(struct nodes *w, int gpu);
/* Starts a rank on each GPU. */
void nodes_clients(struct nodes *w, struct client *clients, client_main *main, void *arg);
/* Like ranks_run. */
void nodes_run(int n, int each, client_main *main, void *arg);
/* Checks that n creations of an NCCL communicator of that many ranks are logged; each of its ranks
 * logs one. */
void nodes_check_inits(const struct nodes *w, int nranks, int n);

#endif
