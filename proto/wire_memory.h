/* SPDX-License-Identifier: Apache-2.0
 * Messages about memory (wire.h describes what they have in common): the session's own, and
 * regions. */
#ifndef PROTO_WIRE_MEMORY_H
#define PROTO_WIRE_MEMORY_H

#include <stdint.h>

#include "ncclsvc_types.h"
#include "svc_limits.h"

/* Asks for a ring. The reply brings three fds: the session memory (a memfd sealed against
 * shrinking, growing and further sealing; struct svc_ring is at its start), the doorbell eventfd
 * (client writes; the daemon waits for it edge-triggered, and never reads it) and the client's end
 * of the completion socket (daemon writes). Once per session.
 *
 * ATTACH_AGAIN is the same in a session that has come back: it brings the session memory of the
 * previous daemon, with the same number of entries, and gets it back. AGAIN: a process of that
 * daemon still runs, so ask once more. */
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
	/* GPU memory: */
	SVC_REGION_IPC = 1,	 /* from cuMemAlloc, by CUDA IPC handle */
	SVC_REGION_VMM = 2,	 /* from cuMemCreate, by file descriptor */
	SVC_REGION_MAPPINGS = 3, /* several cuMemCreate mappings, contiguous */
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

/* Registers a whole allocation of GPU memory with the GPU's worker. SVC_REGION_CUDA: from
 * cuMemAlloc, with the handle from cuIpcGetMemHandle. SVC_REGION_CUDA_FD: from cuMemCreate, with
 * one fd from cuMemExportToShareableHandle; handle is zero. The reply is svc_region_reply. */
struct svc_region_cuda {
	uint64_t bytes;	    /* of the allocation */
	uint64_t base;	    /* the client's address of it, for members in its process */
	uint64_t buffer_id; /* CU_POINTER_ATTRIBUTE_BUFFER_ID, for inspection */
	int32_t device;	    /* the daemon's, as SVC_LIST_DEVICES numbers them */
	uint32_t reserved;
	uint8_t handle[64];
};

/* Combines several regions of one device into one, mapped contiguously in the order of parts, for
 * buffers that span mappings. Parts are of SVC_REGION_CUDA_FD, or ranges themselves; they may be
 * deleted before the range. The reply is svc_region_reply. */
#define SVC_RANGE_PARTS	 112
#define SVC_RANGE_MAPPED 65536 /* in total, including the parts of nested ranges */

struct svc_region_range {
	uint64_t bytes; /* of all parts together */
	uint64_t base;	/* the client's address of it, for members in its process */
	int32_t device;
	uint32_t count; /* number of parts, at least 2; the remaining entries are zero */
	uint32_t parts[SVC_RANGE_PARTS];
};

/* Deletes a region. BUSY while a pending task uses it. wait_ms: for GPU memory, the reply comes
 * when the GPU's worker has closed its import, and the other members that read the log of shares
 * have passed its DROP entries, so that the owner can free the memory; TIMEOUT: the region is
 * deleted, but its imports are closed later. */
struct svc_region_del {
	uint32_t region;
	uint32_t wait_ms; /* at most SVC_DEL_WAIT_MS; 0: the reply comes at once */
};

#define SVC_DEL_WAIT_MS 10000

/* The next messages let the members of an epoch with staging memory map each
 * other's registered GPU memory. Each such epoch has a log of entries: a rank shares a region, or
 * drops a share, as its region is deleted. Positions in the log count from 0.
 *
 * SVC_SHARES: the reply brings one fd, the session's bell. It becomes readable when a log has a new
 * entry of another member; a read returns 8 bytes and clears it. Every request returns the same
 * bell. */
struct svc_shares {
	uint32_t reserved[2];
};

#define SVC_SHARE_SLOTS 1024
#define SVC_SHARE_LOG	4096 /* entries of one rank that not all members have passed */

/* Shares a region of the member's device. LIMIT: the other members are too far behind in the log,
 * or the region has many shares; STALE_EPOCH: no epoch with staging memory runs. A refused share
 * does not count. */
struct svc_share {
	uint32_t comm;
	uint32_t region;
	uint32_t slot;	 /* less than SVC_SHARE_SLOTS; not used by another share of the member */
	uint32_t number; /* the member's shares in this epoch, counted from 1 */
};

/* In an epoch that continues one (SVC_RESUME_COMM), a member first repeats each of its shares, in
 * the order of their numbers, with this bit in `slot`. Then it says how many there have been, as
 * the number of region 0. */
#define SVC_SHARE_AGAIN (UINT32_C(1) << 31)

/* Reads the entry at that position. The member has passed all entries before it: it has mapped or
 * unmapped what they name, and does not ask for them again. */
struct svc_shared {
	uint32_t comm;
	/* 1: a share that it has passed since the last request and that was dropped is unmapped
	 * only later, as kernels of the member run; its owner does not wait for that. Otherwise 0.
	 */
	uint32_t later;
	uint64_t position;
};

enum svc_shared_what {
	SVC_SHARED_NONE = 0,  /* the log ends here; the bell rings when it continues */
	SVC_SHARED_MAP = 1,   /* the rank shares memory */
	SVC_SHARED_DROP = 2,  /* the rank's share of this slot and number ends: unmap it */
	SVC_SHARED_GONE = 3,  /* a share that has ended already; only the rank is valid if it is the
				 member's own */
	SVC_SHARED_COUNT = 4, /* the rank has had this number of shares; of its earlier ones, those
				 that it has not said again in this log have ended */
};

struct svc_shared_reply {
	uint32_t what; /* enum svc_shared_what */
	int32_t rank;  /* may be the member's own */
	uint32_t slot;
	uint32_t number;
	uint64_t bytes; /* this and the rest: of SVC_SHARED_MAP */
	uint64_t base;	/* its address in the owner's process */
	uint32_t kind;	/* enum svc_region_kind */
	uint32_t parts; /* for SVC_SHARED_PART; 0: the memory is opened by handle */
	uint8_t handle[64];
};

/* Returns a mapping of a shared region, in address order. The reply brings one fd, to be imported
 * as cuMemCreate memory. NOT_FOUND: the share has ended, or the region of the part is deleted. */
struct svc_shared_part {
	uint32_t comm;
	uint32_t part;
	uint64_t position; /* of the entry SVC_SHARED_MAP */
};

struct svc_shared_part_reply {
	uint64_t bytes;
};

/* The member's communicator was suspended (the member is asleep), or is being resumed (it wakes
 * up). The daemon closes a sleeping member's staging memory. Once all members of the node are
 * asleep, the log of shares starts empty, as after a restart of the daemon (SVC_SHARE_AGAIN), and
 * the daemon destroys the NCCL communicator, unless that spans nodes, is used by graphs or a plan,
 * or has made reductions. To wake up, a member of an epoch with staging memory names a region of
 * the same size as before. STALE_EPOCH: no epoch runs. UNSUPPORTED: the communicator is in host
 * memory. A JOIN that continues an epoch (SVC_RESUME_COMM) after CONTROLS, but without staging
 * memory, is of a member that is asleep. */
struct svc_sleep {
	uint32_t comm;
	uint32_t asleep;  /* 1: falls asleep; 0: wakes up */
	uint32_t staging; /* a region; 0: none */
	uint32_t reserved;
};

#endif
