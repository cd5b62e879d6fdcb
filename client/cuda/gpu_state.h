/* SPDX-License-Identifier: Apache-2.0
 * A session's GPU state, shared by this folder's files. Plans and lists use it for copies. */
#ifndef CLIENT_CUDA_GPU_STATE_H
#define CLIENT_CUDA_GPU_STATE_H

#include "core/op.h"
#include "cuda.h"
#include "page.h"
#include "session_gpu.h"

#define GPU_DEVICES    64
#define DEVICE_REGIONS 1024

/* A stream as the driver identifies it. */
struct stream {
	CUstream handle;
	unsigned long long id;
	CUcontext context; /* context of a default stream */
	CUcontext push;	   /* context to make current for its use, or NULL */
	bool captured;	   /* it is being captured into a graph, and has no id then */
};

/* A stream's tasks on one communicator, in order. It has the same index as its timeline. */
struct pair {
	bool used;
	ncclsvc_timeline *timeline;
	unsigned long long stream_id; /* never reused in a process */
	CUcontext context; /* context of a default stream, whose id alone is not enough; otherwise
			      NULL */
	uint32_t comm_key;
	uint64_t planned; /* 0: not for planned tasks; otherwise the last planned number */
	int device;
	uint64_t clock;
	bool alone;	   /* the stream does not synchronize with the default stream */
	CUdeviceptr ready; /* the counters' address in the stream's context */
	/* While a group is put on its streams: */
	bool touched;
	bool rested; /* all its earlier tasks are over */
	bool idle;   /* the stream is empty: ready is written by the CPU */
	CUstream stream;
	CUcontext push;	  /* context to make current meanwhile, or NULL */
	uint64_t wait_to; /* 0: later work does not wait */
};

struct device_region {
	uint64_t base, bytes; /* bytes is 0: the entry is free */
	uint64_t buffer;      /* CUDA's id of the allocation: never reused in a process */
	uint64_t restores;    /* the process's count of restores at registration (checkpoint.c) */
	uint64_t clock;
	uint32_t id;	 /* 0: not registered with the current daemon */
	uint32_t pins;	 /* number of pending tasks that use it */
	uint32_t shares; /* number of epochs in which it is shared */
	int device;
	bool busy;    /* a call about this region is running */
	bool mapping; /* one of several mappings in reserved addresses */
	bool gone;    /* the memory was freed: dropped when its tasks are over */
	/* A range is several mappings without gaps, for buffers that span them. Its own: */
	uint16_t *parts; /* indices of their regions, from 0; NULL: not a range */
	unsigned nparts;
	struct device_region *next_range;
};

/* An allocation whose IPC handle changes when the driver restores the process from a checkpoint. */
struct canary {
	CUdeviceptr at; /* 0: not allocated yet */
	CUcontext context;
	CUipcMemHandle handle;
	uint64_t looked_ns; /* before the current submission */
	uint64_t proven_ns; /* known as not restored until then, or unused */
};

struct gpu {
	const struct cuda *cuda;
	struct canary canary;
	uint64_t restores;		/* restores noticed so far */
	uint64_t clock;			/* counts submissions, to order regions by last use */
	CUcontext primary[GPU_DEVICES]; /* retained */
	struct page *page, *retired;	/* NULL: none; retired: of earlier connections */
	bool no_batch;			/* the driver supports only single stream operations */
	struct pair pairs[SVC_TIMELINES];
	uint32_t recent;	       /* index of the pair used last */
	struct device_region *regions; /* DEVICE_REGIONS */
	uint16_t *sorted;	       /* by base, without regions that are gone */
	unsigned nsorted;
	unsigned shared; /* regions with shares */
	/* Ends the region's shares (shares.c); set when there are any. */
	void (*shares_drop)(ncclsvc_session *s, const struct device_region *r);
	struct importer *importer;    /* NULL: none yet */
	struct device_region *ranges; /* the ranges; not sorted, because they overlap */
	struct peer_module *modules;  /* GPU_DEVICES; NULL: none yet */
	uint16_t (*pins)[2]; /* for each task slot: its regions' entries, from 1; 0: none */
	struct device_allocation *allocations; /* device_alloc.c */
};

/* device.c: the device's primary context, retained until the session closes. Locked. */
ncclsvc_result gpu_primary(struct gpu *g, int device, CUcontext *context);
/* checkpoint.c: called before the first region is registered. Locked. */
ncclsvc_result checkpoint_watch(struct gpu *g, int device);
/* Before a submission: checks whether the process was restored from a checkpoint. If so, no earlier
 * region is alive, and pending detached tasks fail when they end. Locked. */
ncclsvc_result checkpoint_look(ncclsvc_session *s, struct gpu *g, bool *restored);
/* Called after that, once the n tasks are submitted and on their streams. Because the driver
 * resumes streams at a restore, the tasks may name the old memory; then they fail too. Locked. */
ncclsvc_result checkpoint_prove(ncclsvc_session *s, struct gpu *g, unsigned n);
void checkpoint_close(struct gpu *g); /* ends the checkpoint detection */

/* stream.c: how the driver identifies a stream. stream_identify: UNSUPPORTED (stream_captured) if
 * it is being captured. */
ncclsvc_result stream_look(struct gpu *g, int device, CUstream handle, struct stream *st);
ncclsvc_result stream_identify(struct gpu *g, int device, CUstream handle, struct stream *st);
ncclsvc_result stream_captured(void); /* sets the error */
/* Finds the page as the stream's GPU sees it; the GPU must be the communicator's. Locked. */
ncclsvc_result stream_page(ncclsvc_session *s, struct gpu *g, const ncclsvc_comm *comm,
			   const struct stream *st, CUdeviceptr *address);
/* Finds the stream's timeline, or creates it. *yielded: find everything again. Locked. */
ncclsvc_result stream_find(ncclsvc_session *s, struct gpu *g, struct op *op,
			   const struct stream *st, uint64_t since, bool *yielded);
/* A timeline of the connection that no other stream takes over until it is given back (page.h).
 * Locked. */
ncclsvc_result stream_timeline(ncclsvc_session *s, struct gpu *g, uint32_t *index);
/* Gives the operation the next value of its stream's timeline. */
void streams_number(struct gpu *g, struct op *op);
/* The context that must be current while the stream is used; NULL: the current one. */
ncclsvc_result stream_context(struct gpu *g, int device, CUstream handle, CUcontext *push);
/* The counters of a pair, by its index. */
struct svc_timeline *stream_counters(const struct gpu *g, uint32_t index);
void streams_forget(ncclsvc_session *s); /* call before the connection changes */
/* stream_ops.c: puts writes and waits on the streams that stream_find found. Locked. */
ncclsvc_result streams_enqueue(ncclsvc_session *s, const struct op *ops, unsigned n);

/* device_table.c. Locked. The region that holds p, or NULL. */
struct device_region *device_region_find(const struct gpu *g, uint64_t p);
/* Whether p is in the same memory for which the region was made. */
bool device_region_alive(const struct gpu *g, const struct device_region *r, uint64_t p);
/* NULL with the error set (LIMIT): all regions are in use by submission `since` and later ones. */
struct device_region *device_region_insert(ncclsvc_session *s, struct gpu *g, uint64_t since,
					   const struct device_region *new);
/* Removes it from the table; the daemon forgets it once its tasks are over. */
void device_region_drop(ncclsvc_session *s, struct gpu *g, struct device_region *r);
/* Drops freed regions. Their memory stays occupied until the daemon releases it too. */
void device_regions_sweep(ncclsvc_session *s, struct gpu *g);
/* Forgets all regions: the daemon that knew them is gone. */
void device_regions_forget(ncclsvc_session *s, struct gpu *g);
/* Keeps the memory's regions until the task is over. */
void device_pin(ncclsvc_session *s, const struct op *op, uint64_t task);
void device_unpin(ncclsvc_session *s, uint64_t task); /* the task has ended */

/* The same for a region by its entry in the table, from 1, until it is unpinned. */
void device_entry_pin(ncclsvc_session *s, uint16_t entry);
void device_entry_unpin(ncclsvc_session *s, uint16_t entry);

/* Whether a range that contains it, directly or in a part, is being made, so that it must not be
 * dropped. */
bool ranges_hold(const struct gpu *g, const struct device_region *part);
/* A range that contains the region and is in no other range; or the region, if it is in none. */
struct device_region *ranges_outermost(const struct gpu *g, struct device_region *part);

/* device_memory.c. The caller owns *fd, by which other processes import the mapping. */
CUresult mapping_export(const struct cuda *cuda, CUdeviceptr at, int *fd);

/* A buffer whose region is being found. */
struct buffer {
	const struct op *op;
	const char *name; /* the operation's name for it */
	uint64_t at, bytes;
};
/* Finds the mapping or allocation that holds the buffer's first byte, or registers it (*yielded).
 */
ncclsvc_result device_locate(ncclsvc_session *s, struct gpu *g, const struct buffer *b,
			     uint64_t since, struct device_region **found, bool *yielded);
ncclsvc_result device_too_long(const struct buffer *b, const struct device_region *r);
/* Registers with the daemon. Yields; the result is in the table, unless the table was reset. */
ncclsvc_result device_introduce(ncclsvc_session *s, struct gpu *g, struct device_region *region,
				unsigned opcode, const void *request, int fd);

/* device_buffers.c: finds an operation's buffers, or registers them. Like stream_find. */
ncclsvc_result device_buffers_find(ncclsvc_session *s, struct gpu *g, struct op *op, uint64_t since,
				   bool *yielded);
ncclsvc_result device_buffers_find_all(ncclsvc_session *s, struct gpu *g, struct op *ops,
				       unsigned n, uint64_t since, bool *yielded);

/* device_forget.c: releases the region that holds p, once its tasks are over. Locked; yields. */
ncclsvc_result device_forget(ncclsvc_session *s, struct gpu *g, uint64_t p, uint64_t deadline);
/* device_alloc.c: frees all memory of ncclsvc_mem_alloc_device when the session closes. */
void device_allocations_free(struct gpu *g);

#endif
