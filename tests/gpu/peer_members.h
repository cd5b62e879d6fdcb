/* SPDX-License-Identifier: Apache-2.0
 * Members of a communicator of two GPUs, with staging memory. The test speaks the protocol itself,
 * without the library. */
#ifndef TESTS_GPU_PEER_MEMBERS_H
#define TESTS_GPU_PEER_MEMBERS_H

#include "proto/abi/peer_abi.h"
#include "ranks.h"
#include "tests/integration/harness_raw.h"

/* A rank; its GPU has the same number. */
struct member {
	struct raw raw;
	uint32_t staging;    /* its region */
	uint32_t request_id; /* request id of the JOIN in progress */
	struct svc_join_reply joined;
};

/* Registers memory of cuMemCreate. Returns its region. */
uint32_t peer_region(struct raw *raw, int device, const struct buffer *b);
/* The same for new memory, which only the daemon holds then. */
uint32_t peer_memory(struct raw *raw, int device, uint64_t bytes);
/* Sends a request, with a descriptor unless fd is NULL; it must succeed. */
void peer_accepted(struct raw *raw, unsigned opcode, const void *body, size_t length,
		   const int *fd);
void peer_join_end(struct member *m);
/* Both join with staging memory, the second one only if `second` is set. */
void peer_join(struct member m[2], const ncclsvc_unique_id *id, bool second);
int peer_staging_fd(struct member *m, int rank);
/* Maps both members' control blocks, and closes fd. */
struct peer_control *peer_controls_map(int fd);
bool peer_aborted(struct peer_control *controls, int rank);
void peer_wait_aborted(struct peer_control *controls);

#endif
