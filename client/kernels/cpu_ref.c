/* SPDX-License-Identifier: Apache-2.0
 * The kernels built for the CPU: see platform.h. */
#include "collective.cu"

_Thread_local struct peer_block ncclsvc_peer_block = {0, 1};
_Thread_local void (*ncclsvc_peer_rest)(void);
