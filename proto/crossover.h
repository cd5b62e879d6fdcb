/* SPDX-License-Identifier: Apache-2.0
 *
 * The largest size at which collectives are faster in their members' kernels than on NCCL, as
 * measured by `ncclsvc-perf crossover`: a file per machine, which the daemon reads. A line has the
 * number of ranks, whether they and the workers share their GPUs through MPS (yes, no), the bytes,
 * and the GPUs' model: "2 yes 8388608 NVIDIA H200". '#' begins a comment. */
#ifndef PROTO_CROSSOVER_H
#define PROTO_CROSSOVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ncclsvc_types.h"

#define CROSSOVER_LIMITS 256 /* per file */
#define CROSSOVER_BYTES	 (UINT32_C(1) << 30)
#define CROSSOVER_TEXT	 256

struct crossover_limit {
	uint32_t ranks, bytes;
	bool mps;
	char gpu[NCCLSVC_NAME_BYTES];
};

struct crossover {
	uint32_t n;
	struct crossover_limit limits[CROSSOVER_LIMITS];
};

/* $STATE_DIRECTORY/crossover in a systemd service, /var/lib/ncclsvc/crossover for root,
 * $XDG_STATE_HOME/ncclsvc/crossover (~/.local/state) for a user. False: the environment does not
 * define it. */
bool crossover_default_path(char *path, size_t size);

/* A missing file has no limits. False: the file has an error, which `why` describes, and c has no
 * limits. */
bool crossover_read(struct crossover *c, const char *path, char why[CROSSOVER_TEXT]);
/* NULL: there is none. */
const struct crossover_limit *crossover_find(const struct crossover *c, const char *gpu,
					     uint32_t ranks, bool mps);
/* Adds a limit, or replaces the one for the same GPUs, ranks and MPS. False: it is invalid, or
 * there is no room. */
bool crossover_put(struct crossover *c, const struct crossover_limit *limit);
/* Replaces the file, and creates its directories. Returns 0, or errno. */
int crossover_write(const struct crossover *c, const char *path);

#endif
