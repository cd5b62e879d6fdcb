/* SPDX-License-Identifier: Apache-2.0
 * The MPS server of the daemon's workers. */
#ifndef CLIENT_CUDA_MPS_H
#define CLIENT_CUDA_MPS_H

#include "base/connection.h"

/* Sets the environment as the connection's daemon advises, unless CUDA is already initialized in
 * this process or the user has chosen otherwise. */
void mps_join(const struct connection *c);
/* How CUDA uses the device in this process. *server is as in struct mps. */
ncclsvc_mps mps_of_device(int device, uint64_t *server);

#endif
