/* SPDX-License-Identifier: Apache-2.0
 * Messages about memory (wire.h tells what holds of all): the session's own, and regions. */
#ifndef PROTO_WIRE_MEMORY_H
#define PROTO_WIRE_MEMORY_H

#include <stdint.h>

#include "ncclsvc_types.h"
#include "svc_limits.h"

/* Asks for a ring. The reply brings three fds: the session memory (a memfd sealed against
 * shrinking, growing and further sealing; struct svc_ring is at its start), the doorbell eventfd
 * (client writes; the daemon waits for it edge-triggered, and never reads it) and the client's end
 * of the completion socket (daemon writes). Once per session. */
struct svc_attach {
	uint32_t entries; /* power of two, SVC_RING_MIN..ring_max */
	uint32_t reserved;
};

struct svc_attach_reply {
	uint64_t size; /* bytes of the session memory */
	uint32_t entries;
	uint32_t reserved;
};

/* Registers shared memory: one fd, a memfd with F_SEAL_SHRINK, at least `bytes` long, without
 * holes, not hugetlb. The daemon maps it; the client may close its fd. */
enum svc_region_kind {
	SVC_REGION_MEMFD = 0,
	/* Memory of a GPU: */
	SVC_REGION_IPC = 1,	 /* cuMemAlloc's, by CUDA IPC handle */
	SVC_REGION_VMM = 2,	 /* cuMemCreate's, by file descriptor */
	SVC_REGION_LENT = 3,	 /* the daemon's own */
	SVC_REGION_MAPPINGS = 4, /* several of cuMemCreate's, one behind the other */
};

struct svc_region_add {
	uint64_t bytes;
	uint32_t kind;
	uint32_t reserved;
};

struct svc_region_reply {
	uint32_t region;
	uint32_t reserved;
};

/* Registers a whole allocation of a GPU's memory with that GPU's worker. SVC_REGION_CUDA: made by
 * cuMemAlloc, handle from cuIpcGetMemHandle. SVC_REGION_CUDA_FD: made by cuMemCreate, and one fd,
 * from cuMemExportToShareableHandle; handle is zero. The reply is svc_region_reply. */
struct svc_region_cuda {
	uint64_t bytes;	    /* of the allocation */
	uint64_t base;	    /* the client's address of it, for inspection */
	uint64_t buffer_id; /* CU_POINTER_ATTRIBUTE_BUFFER_ID, for inspection */
	int32_t device;	    /* the daemon's, as SVC_LIST_DEVICES numbers them */
	uint32_t reserved;
	uint8_t handle[64];
};

/* Asks for memory of the daemon's. The reply brings one fd, to be imported as cuMemCreate's memory.
 * It is given back by SVC_REGION_DEL, or with the session. */
struct svc_region_lend {
	uint64_t bytes;
	int32_t device;
	uint32_t reserved;
};

struct svc_region_lend_reply {
	uint32_t region;
	uint32_t reserved;
	uint64_t bytes; /* rounded up: what is to be mapped */
};

/* Several regions of one device as one, mapped one behind the other in the order of parts, for
 * buffers that lie across mappings. Parts are of SVC_REGION_CUDA_FD, or ranges themselves; they may
 * be forgotten before the range is. The reply is svc_region_reply. */
#define SVC_RANGE_PARTS	 112
#define SVC_RANGE_MAPPED 65536 /* in all, with the parts of ranges in it */

struct svc_region_range {
	uint64_t bytes; /* of all parts together */
	uint64_t base;	/* the client's address of it, for inspection */
	int32_t device;
	uint32_t count; /* of parts, from 2; the rest is zero */
	uint32_t parts[SVC_RANGE_PARTS];
};

/* Forgets a region. BUSY while a pending task names it. wait_ms: of memory of GPUs, the reply comes
 * once the GPU's worker has closed its import, so that the owner can free the memory; TIMEOUT: the
 * region is forgotten, and its import is closed later. From version 2; in version 1 it is zero. */
struct svc_region_del {
	uint32_t region;
	uint32_t wait_ms; /* SVC_DEL_WAIT_MS at most; 0: the reply comes at once */
};

#define SVC_DEL_WAIT_MS 10000

#endif
