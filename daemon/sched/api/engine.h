/* SPDX-License-Identifier: Apache-2.0
 * The host engine: an executor that runs tasks on shared host memory, in threads of this process.
 */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "executor.h"

struct transport;

struct engine_config {
	unsigned threads;	 /* that move data, including the engine's own; >= 1 */
	uint32_t tasks_max;	 /* alive at once */
	uint32_t user_tasks_max; /* per user */
	int spin_us; /* how long to poll after the last record before sleeping; -1: choose */
	uint32_t sessions_max, comms_max;
	const struct mpi_api *mpi; /* NULL: one node */
	uint32_t node, nodes;
	const struct transport *const *transports; /* [TRANSPORTS] */
};

/* Address space that engine_create uses, including stacks. */
uint64_t engine_bytes(const struct engine_config *config);
/* Returns NULL with errno set. */
struct executor *engine_create(const struct engine_config *config, executor_notify *notify,
			       void *arg);

#endif
