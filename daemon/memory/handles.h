/* SPDX-License-Identifier: Apache-2.0
 * Ownership of the memory that CUDA IPC handles name.
 *
 * A handle is 64 bytes. Unlike a file descriptor, it proves nothing: bytes 48 to 55 number the
 * exporting process and its allocation, and driver 580 opens it for any user who may open the GPU's
 * device node. So the first tenant to register a handle owns it until that tenant's last
 * registration of it ends, and other tenants are refused. Two keys are bound to the tenant: the
 * handle's bytes, on any GPU, and the address at which a GPU's worker has mapped the memory. If the
 * driver ignores some of the bytes, the memory has several handles, but only one address in a
 * process.
 *
 * This prevents other tenants from naming the memory while its owner is connected. It does not
 * prove who exported the memory. The pid in bytes 8 to 11 could not prove that either, since the
 * driver ignores it.
 *
 * A registration holds at most two entries of about 150 bytes each; users' registrations are
 * limited (SHARE_REGIONS, SVC_SESSION_REGIONS). All operations take constant time. */
#ifndef MEMORY_HANDLES_H
#define MEMORY_HANDLES_H

#include <stdint.h>

#include "proto/ncclsvc_types.h"

struct session;
struct handle_owner;
struct mapping;

struct handles {
	struct handle_owner *by_name;
};

/* The client names mapping->handle. PERMISSION: another tenant owns it. NO_MEMORY. */
ncclsvc_result handle_bind(struct handles *all, const struct session *c, struct mapping *m);
/* The GPU's worker has mapped it at this address. PERMISSION: another tenant owns the memory.
 * NO_MEMORY. */
ncclsvc_result handle_mapped(struct handles *all, const struct session *c, struct mapping *m,
			     uint64_t address);
/* The error sentence for such a result. */
const char *handle_refusal(ncclsvc_result result);
/* The worker is gone, and the address with it. */
void handle_unmapped(struct mapping *m);
/* The registration ends. */
void handle_unbind(struct mapping *m);

#endif
