/* SPDX-License-Identifier: Apache-2.0
 * Whose memory a CUDA IPC handle names.
 *
 * A handle is 64 bytes. Unlike a file descriptor, it proves nothing: bytes 48 to 55 number the
 * exporting process and its allocation, and driver 580 opens it for any user who may open the GPU's
 * device node. So the first user to register a handle owns it until that user's
 * last registration of it ends, and other users are refused. Bound are the bytes, whatever the GPU,
 * and the address where a GPU's worker has mapped the memory: if the driver ignores some of the
 * bytes, the memory has several handles, but in one process it has one address.
 *
 * That stops memory from being named by others while its owner is connected. It does not prove who
 * exported it. Nor could the pid in bytes 8 to 11: the driver ignores it.
 *
 * A registration holds two entries at most, of some 150 bytes each; users' registrations are
 * limited (SHARE_REGIONS, SVC_SESSION_REGIONS). All takes constant time. */
#ifndef MEMORY_HANDLES_H
#define MEMORY_HANDLES_H

#include <stdint.h>

#include "ncclsvc_types.h"

struct client;
struct handle_owner;
struct mapping;

struct handles {
	struct handle_owner *by_name;
};

/* The client names mapping->handle. PERMISSION: it is another user's. NO_MEMORY. */
ncclsvc_result handle_bind(struct handles *all, const struct client *c, struct mapping *m);
/* The GPU's worker has mapped it there. PERMISSION: it is another user's memory. NO_MEMORY. */
ncclsvc_result handle_mapped(struct handles *all, const struct client *c, struct mapping *m,
			     uint64_t address);
/* The sentence for such a result. */
const char *handle_refusal(ncclsvc_result result);
/* The worker is gone, and the address with it. */
void handle_unmapped(struct mapping *m);
/* The registration ends. */
void handle_unbind(struct mapping *m);

#endif
