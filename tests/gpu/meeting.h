/* SPDX-License-Identifier: Apache-2.0
 * A rank that also meets the others on host memory, so that no kernel of any rank runs when the
 * ranks have met. The ranks must be on one node. */
#ifndef TESTS_GPU_MEETING_H
#define TESTS_GPU_MEETING_H

#include "kernels.h"

#define PART	   ((size_t)1 << 20) /* bytes of an operation, which zero copy moves */
#define PART_WORDS (PART / sizeof(uint32_t))

struct meeting {
	struct rank r;
	ncclsvc_comm *host;
};

void meeting_open(struct meeting *m, struct client *c);
void meeting_close(struct meeting *m);
/* Joins the others' communicator on host memory. */
ncclsvc_comm *meeting_join(struct client *c, ncclsvc_session *session);
/* Waits for all ranks, which may have operations pending on their streams. */
void meeting_reach(struct meeting *m);
/* Waits for this rank's stream and for all ranks. */
void meeting_wait(struct meeting *m);
/* Sums PART at p over all ranks, in place, until the sum no longer goes through staging memory.
 * After that, the ranks have met. */
void meeting_sum(struct meeting *m, CUdeviceptr p);
/* Sends PART to the next rank and receives it from the previous one. */
void meeting_pass(struct meeting *m, CUdeviceptr from, CUdeviceptr to);
/* Uses the beginning, the middle and the end of these bytes. */
void meeting_use(struct meeting *m, CUdeviceptr p, size_t bytes);

#endif
