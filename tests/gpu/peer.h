/* SPDX-License-Identifier: Apache-2.0
 * Members of a communicator of two GPUs, with staging memory, using the protocol by hand without
 * the library. */
#ifndef TESTS_GPU_PEER_H
#define TESTS_GPU_PEER_H

#include "proto/abi/peer.h"
#include "ranks.h"
#include "tests/integration/harness_raw.h"

/* A rank; its GPU has the same number. */
struct member {
	struct raw raw;
	uint32_t staging; /* region */
	uint32_t serial;  /* of the JOIN in progress */
	struct svc_join_reply joined;
};

/* Returns the region. */
uint32_t peer_lend(struct raw *raw, int device, uint64_t bytes);
void peer_join_end(struct member *m);
/* Both join with staging memory, the second one optionally without. */
void peer_join(struct member m[2], const ncclsvc_unique_id *id, bool second);
int peer_staging_fd(struct member *m, int rank);
/* Maps both pages; takes ownership of the descriptor. */
struct peer_page *peer_pages_map(int fd);
bool peer_aborted(struct peer_page *pages, int rank);
void peer_wait_aborted(struct peer_page *pages);

#endif
