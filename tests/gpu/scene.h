/* SPDX-License-Identifier: Apache-2.0
 * A communicator of two GPUs. This process plays both members: it writes to their control blocks
 * what the library and its kernels would. */
#ifndef TESTS_GPU_SCENE_H
#define TESTS_GPU_SCENE_H

#include "peer_members.h"

struct scene {
	struct client *c;
	struct member m[2];
	ncclsvc_unique_id id;
	struct peer_control *controls;
};

/* Begins an epoch, and maps its control blocks, which scene_close unmaps. */
void scene_open(struct scene *s);
void scene_close(struct scene *s);
/* Opens a member's session and staging memory. */
void scene_member(struct scene *s, int rank);
struct peer_control *scene_control(struct scene *s, int rank);

/* Writes the member's number of submitted collectives, as the library does. */
void scene_submitted(struct scene *s, int rank, uint64_t n);

bool scene_over(struct scene *s);
void scene_quiet(struct scene *s);
/* Waits for the epoch's end to be reported to the member, and returns its status. */
ncclsvc_status scene_reported(struct scene *s, int rank);
/* Waits for the end of the epoch, and checks that both members receive the same status. */
ncclsvc_status scene_ends(struct scene *s, ncclsvc_result result);

#endif
