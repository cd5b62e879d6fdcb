/* SPDX-License-Identifier: Apache-2.0 */
#include "transports.h"

#include "host/host.h"
#include "internode/internode.h"
#include "nccl/nccl.h"
#include "staged/staged.h"

const struct transport *const transports[TRANSPORTS] = {
	[TRANSPORT_HOST] = &host_transport,
	[TRANSPORT_INTERNODE] = &internode_transport,
	[TRANSPORT_STAGED] = &staged_transport,
	[TRANSPORT_NCCL] = &nccl_transport,
};
