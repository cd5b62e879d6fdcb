/* SPDX-License-Identifier: Apache-2.0
 * Would a process that starts CUDA now share its GPUs through NVIDIA's MPS, and through which
 * server? Or what is in a given MPS directory? Without CUDA: checks the same environment and socket
 * as the driver. */
#ifndef PROTO_MPS_H
#define PROTO_MPS_H

#include <stdint.h>

enum mps_state {
	MPS_ABSENT,  /* no control daemon, so the GPU is used directly */
	MPS_STALE,   /* a control daemon has exited and left its socket: like ABSENT */
	MPS_REFUSED, /* one may run, but this user may not connect to it */
	MPS_RUNNING, /* the driver will connect, or has done so */
};

struct mps {
	enum mps_state state;
	uint64_t server;     /* identifies the control daemon; 0: none */
	uint32_t uid;	     /* of the control daemon, if there is one */
	char directory[108]; /* that was checked; short enough for a socket address */
};

#define MPS_DEFAULT_DIRECTORY "/tmp/nvidia-mps" /* the driver's */

#define MPS_VARIABLE	 "CUDA_MPS_PIPE_DIRECTORY"
/* The directory that the library has set, in this process or an earlier one. It is not the user's
 * choice, and only the daemon knows for which tenants it is right. */
#define MPS_LED_VARIABLE "NCCLSVC_MPS_DIRECTORY"

/* The directory that the user has chosen for this process; NULL: none. */
const char *mps_chosen(void);
/* Makes CUDA use that directory, unless it is initialized already. */
void mps_lead(const char *directory);
/* Reverts that, if it was done. */
void mps_leave(void);

/* The state according to this process's environment. */
void mps_look(struct mps *m);
/* The state of this directory. */
void mps_look_at(struct mps *m, const char *directory);

/* How this process, which has initialized CUDA, uses its GPUs: ncclsvc_mps, and *server as above.
 * error and enabled: CUDA's answer for CU_DEVICE_ATTRIBUTE_MPS_ENABLED. If the driver does not know
 * the attribute, the environment decides. */
uint32_t mps_in_use(int error, int enabled, uint64_t *server);

#endif
