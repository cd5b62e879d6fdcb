/* SPDX-License-Identifier: Apache-2.0
 * A communicator of two GPUs whose members this process plays: the test writes to their pages what
 * the library and its kernels would. */
#ifndef TESTS_GPU_SCENE_H
#define TESTS_GPU_SCENE_H

#include "peer.h"

struct scene {
	struct client *c;
	struct member m[2];
	ncclsvc_unique_id id;
	struct peer_page *pages;
};

/* Begins an epoch; closes the previous one. */
void scene_open(struct scene *s);
void scene_close(struct scene *s);
/* Opens a member's session and staging memory. */
void scene_member(struct scene *s, int rank);
struct peer_page *scene_page(struct scene *s, int rank);

/* Writes what the library reports: how many collectives were submitted. */
void scene_submitted(struct scene *s, int rank, uint64_t n);

bool scene_over(struct scene *s);
void scene_quiet(struct scene *s);
/* The status that the member receives. */
ncclsvc_status scene_heard(struct scene *s, int rank);
/* Checks that both receive the same. */
ncclsvc_status scene_ends(struct scene *s, ncclsvc_result result);

#endif
