/* SPDX-License-Identifier: Apache-2.0
 * The address at which other nodes reach this node. */
#ifndef CHANNEL_REACH_H
#define CHANNEL_REACH_H

#include <net/if.h>
#include <stdbool.h>

#include "cluster.h"

struct reach {
	char interface[IF_NAMESIZE]; /* empty: no interface of this machine has the address */
	char address[CLUSTER_HOST_BYTES];
};

/* By cluster_interface; without it, of any interface but loopback. one_machine: without it,
 * loopback. */
struct reach reach_choose(const struct config *config, bool one_machine);
/* This daemon, except for its address and port. Returns 0, or -1 if no random numbers are
 * available. */
int node_info_fill(struct node_info *info, const struct config *config);

#endif
