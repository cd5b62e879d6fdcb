/* SPDX-License-Identifier: Apache-2.0
 * Whether a process that starts CUDA now would share its GPUs through NVIDIA's MPS, and through
 * which server; or what there is in a directory. No CUDA here: the same environment and the same
 * socket that the driver looks at. */
#ifndef PROTO_MPS_H
#define PROTO_MPS_H

#include <stdint.h>

enum mps_state {
	MPS_ABSENT,  /* no control daemon: the GPU is used directly */
	MPS_STALE,   /* one that has ended left its socket behind: as if there were none */
	MPS_REFUSED, /* one may run, but this user may not connect to it */
	MPS_RUNNING, /* the driver will connect, or has */
};

struct mps {
	enum mps_state state;
	uint64_t server;     /* equal for processes of one control daemon; 0: there is none */
	uint32_t uid;	     /* of the control daemon; only if there is one */
	char directory[108]; /* where it was looked for: no longer than a socket's address */
};

#define MPS_DEFAULT_DIRECTORY "/tmp/nvidia-mps" /* the driver's */

#define MPS_VARIABLE	 "CUDA_MPS_PIPE_DIRECTORY"
/* The directory that the library has set there, in this process or in one before it: no choice of
 * the user's, and for whom it is right only the daemon knows. */
#define MPS_LED_VARIABLE "NCCLSVC_MPS_DIRECTORY"

/* The directory that the user has chosen for this process; NULL: none. */
const char *mps_chosen(void);
/* Has CUDA look there, unless it is initialized. */
void mps_lead(const char *directory);
/* Takes that back, if it was done. */
void mps_leave(void);

/* Where this process's environment leads. */
void mps_look(struct mps *m);
/* In this directory. */
void mps_look_at(struct mps *m, const char *directory);

/* How this process, which has initialized CUDA, uses its GPUs: ncclsvc_mps, and *server as above.
 * error and enabled: what CUDA answers for CU_DEVICE_ATTRIBUTE_MPS_ENABLED. A driver that does not
 * know it leaves what the environment says. */
uint32_t mps_in_use(int error, int enabled, uint64_t *server);

#endif
