/* SPDX-License-Identifier: Apache-2.0
 * A communicator of two GPUs whose members this process plays: the test writes into their pages
 * what the library and its kernels would. */
#ifndef TESTS_GPU_SCENE_H
#define TESTS_GPU_SCENE_H

#include "peer.h"

struct scene {
	struct client *c;
	struct member m[2];
	ncclsvc_unique_id id;
	struct peer_page *pages;
};

/* An epoch begins; closes one that is over. */
void scene_open(struct scene *s);
void scene_close(struct scene *s);
/* A member's session and staging memory. */
void scene_member(struct scene *s, int rank);
struct peer_page *scene_page(struct scene *s, int rank);

/* What the library says: how many collectives were submitted. */
void scene_submitted(struct scene *s, int rank, uint64_t n);

bool scene_over(struct scene *s);
void scene_quiet(struct scene *s);
/* The status that the member hears. */
ncclsvc_status scene_heard(struct scene *s, int rank);
/* Both hear the same. */
ncclsvc_status scene_ends(struct scene *s, ncclsvc_result result);

#endif
