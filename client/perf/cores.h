/* SPDX-License-Identifier: Apache-2.0
 * How many cores the daemon, its workers and the ranks use during a run, as the kernel counts them.
 */
#ifndef PERF_CORES_H
#define PERF_CORES_H

#include "options.h"
#include "perf_ranks.h"

enum cores_part { CORES_DAEMON, CORES_WORKERS, CORES_RANKS, CORES_PARTS };

struct cores_process {
	pid_t pid;
	enum cores_part part;
	int64_t before_ns;
};

/* Zero-initialized. */
struct cores {
	struct cores_process *processes;
	size_t n;
	uint64_t since_ns, wall_ns;
	int64_t used_ns[CORES_PARTS];
	bool unknown[CORES_PARTS]; /* a process is not accessible to this user, or has ended */
};

/* Each complains and returns false on failure. */

/* Adds the daemons that the ranks use, and their current workers. */
bool cores_add_daemons(struct cores *cores, const struct options *options, const char *socket);
bool cores_add_ranks(struct cores *cores, const struct ranks *ranks);

/* Counts time between start and stop, cumulative until cleared. */
void cores_clear(struct cores *cores);
void cores_start(struct cores *cores);
void cores_stop(struct cores *cores);
/* Cores used on average; NAN: unknown. */
double cores_used(const struct cores *cores, enum cores_part part);
void cores_free(struct cores *cores);

#endif
