/* SPDX-License-Identifier: Apache-2.0
 * How many cores the daemon, its workers and the ranks use meanwhile, as the kernel counts them. */
#ifndef PERF_CORES_H
#define PERF_CORES_H

#include "options.h"
#include "ranks.h"

enum cores_part { CORES_DAEMON, CORES_WORKERS, CORES_RANKS, CORES_PARTS };

struct cores_process {
	pid_t pid;
	enum cores_part part;
	int64_t before_ns;
};

/* Zero at first. */
struct cores {
	struct cores_process *processes;
	size_t n;
	uint64_t since_ns, wall_ns;
	int64_t used_ns[CORES_PARTS];
	bool unknown[CORES_PARTS]; /* some process was not this user's to know, or has ended */
};

/* Each complains and returns false on failure. */

/* The daemons that the ranks use, and the workers that they have now. */
bool cores_add_daemons(struct cores *cores, const struct options *options, const char *socket);
bool cores_add_ranks(struct cores *cores, const struct ranks *ranks);

/* Time counts between start and stop, and adds up until it is cleared. */
void cores_clear(struct cores *cores);
void cores_start(struct cores *cores);
void cores_stop(struct cores *cores);
/* Cores used on average; NAN: unknown. */
double cores_used(const struct cores *cores, enum cores_part part);
void cores_free(struct cores *cores);

#endif
