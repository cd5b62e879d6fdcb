/* SPDX-License-Identifier: Apache-2.0
 * Several daemons on this machine, as nodes. mpirun starts them together, or each starts alone. */
#ifndef TESTS_NODE_DAEMONS_H
#define TESTS_NODE_DAEMONS_H

#include "harness.h"

#define CLUSTER_NODES 4

struct cluster {
	int n;
	pid_t mpirun;
	char dir[64], log[96];
	struct daemon nodes[CLUSTER_NODES]; /* pid 0: killed */
};

/* Starts n daemons with the given options (NULL ends them), and waits until they serve. */
void cluster_start(struct cluster *c, int n, ...) __attribute__((sentinel));
/* The same with GPUs: gpus[i] is node i's CUDA_VISIBLE_DEVICES. */
void cluster_start_gpus(struct cluster *c, int n, const char *const gpus[], ...)
	__attribute__((sentinel));
void cluster_start_with(struct cluster *c, int n, va_list options);
/* The same with `gpus` GPUs per node, the first ones on node 0 (0: each node has all GPUs), and
 * these transports. */
void cluster_start_staged(struct cluster *c, int n, int gpus, const char *const *transports, ...)
	__attribute__((sentinel));
/* Ends the daemons by SIGTERM; checks that nothing leaked, and that no sanitizer or assertion
 * reported anything. */
void cluster_stop(struct cluster *c);
/* With NCCLSVC_TEST_LINKS, daemons are not started by mpirun, but each by itself. */
bool cluster_is_linked(void);
/* An id whose members gather on the first node that lives, or with mpirun on any. */
ncclsvc_unique_id cluster_new_id(const struct cluster *c);
/* Kills one daemon; the others continue. */
void cluster_kill(struct cluster *c, int node);
/* Ends a daemon that was not started by mpirun, by that signal, and starts it again on the same
 * port. */
void cluster_restart(struct cluster *c, int node, int signum);
/* Restarts a daemon by SIGTERM, with another value of that option. */
void cluster_restart_with(struct cluster *c, int node, const char *option, const char *value);
/* Like cluster_restart, with all daemons at once. */
void cluster_restart_all(struct cluster *c, int signum);
bool cluster_logged(const struct cluster *c, const char *text);

enum layout {
	IN_BLOCKS, /* consecutive ranks share a node */
	IN_TURN,   /* rank r on node r % n */
};

/* Like clients_start, with ranks placed on nodes by the layout. */
void cluster_clients(struct client *clients, int nranks, const struct cluster *c,
		     enum layout layout, client_main *main, void *arg);

/* With NCCLSVC_TEST_NODES=n, daemon_start starts n daemons, and clients_start's ranks are on them
 * in turn, so that single-node tests also run on several nodes. Returns n, or 0. */
int cluster_nodes(void);
/* The cluster that daemon_start has started for d, or NULL. */
struct cluster *cluster_of(const struct daemon *d);
struct cluster *cluster_start_for(struct daemon *d, va_list options);

#endif
