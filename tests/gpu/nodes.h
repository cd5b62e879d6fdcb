/* SPDX-License-Identifier: Apache-2.0
 * Daemons that stand for nodes, each with GPUs of its own. */
#ifndef TESTS_GPU_NODES_H
#define TESTS_GPU_NODES_H

#include "ranks.h"
#include "tests/integration/cluster.h"

struct nodes {
	struct cluster c;
	int n, each; /* daemons, and GPUs of each */
};

/* GPU k is node (k / each)'s. */
void nodes_start(struct nodes *w, int n, int each);
/* Also checks that no worker holds anything of a trainer's. */
void nodes_stop(struct nodes *w);
struct daemon *node_of(struct nodes *w, int gpu);
/* Starts a rank on each GPU. */
void nodes_clients(struct nodes *w, struct client *clients, client_main *main, void *arg);
/* As ranks_run. */
void nodes_run(int n, int each, client_main *main, void *arg);
/* NCCL has made a communicator of so many ranks n times, counted by rank. */
void nodes_check_inits(const struct nodes *w, int nranks, int n);

#endif
