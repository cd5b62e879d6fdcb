/* SPDX-License-Identifier: Apache-2.0
 * The driver's checkpoint and restore of the calling process. */
#ifndef TESTS_GPU_CHECKPOINTS_H
#define TESTS_GPU_CHECKPOINTS_H

/* Skips the test if the driver cannot checkpoint the process. */
void checkpoints_needed(void);
/* The process's memory leaves the GPU, and comes back. */
void checkpoint_leave(void);
void checkpoint_return(void);

#endif
