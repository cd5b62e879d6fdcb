/* SPDX-License-Identifier: Apache-2.0
 * Several daemons on this machine, started by mpirun, that stand for nodes. */
#ifndef TESTS_CLUSTER_H
#define TESTS_CLUSTER_H

#include "harness.h"

#define CLUSTER_NODES 4

struct cluster {
	int n;
	pid_t mpirun;
	char dir[64], log[96];
	struct daemon nodes[CLUSTER_NODES]; /* their pid, socket and log; a pid of 0: killed */
};

/* Starts n daemons with the given options (NULL ends them), and waits until they serve. */
void cluster_start(struct cluster *c, int n, ...) __attribute__((sentinel));
/* The same with GPUs: gpus[i] is what node i has, as CUDA_VISIBLE_DEVICES says it. */
void cluster_start_gpus(struct cluster *c, int n, const char *const gpus[], ...)
	__attribute__((sentinel));
void cluster_start_with(struct cluster *c, int n, va_list options);
/* The same with `gpus` GPUs each, the first on node 0 (0: all GPUs each), and these transports. */
void cluster_start_staged(struct cluster *c, int n, int gpus, const char *const *transports, ...)
	__attribute__((sentinel));
/* Ends them by SIGTERM to mpirun; checks that they end, and that no sanitizer said anything. */
void cluster_stop(struct cluster *c);
/* SIGKILL to one daemon; the others go on. */
void cluster_kill(struct cluster *c, int node);
bool cluster_logged(const struct cluster *c, const char *text);

enum layout {
	IN_BLOCKS, /* the first ranks on node 0 ... */
	IN_TURN,   /* rank r on node r % n */
};

/* As clients_start, with rank r on a node by the layout. */
void cluster_clients(struct client *clients, int nranks, const struct cluster *c,
		     enum layout layout, client_main *main, void *arg);

/* With NCCLSVC_TEST_NODES=n, what daemon_start starts is n daemons, and the ranks that
 * clients_start starts are on them in turn: so tests of one node are tests of several, too. Returns
 * n, or 0. */
int cluster_nodes(void);
/* The cluster that d, which daemon_start has filled, is the first node of, or NULL. */
struct cluster *cluster_of(const struct daemon *d);
struct cluster *cluster_start_for(struct daemon *d, va_list options);

#endif
