/* SPDX-License-Identifier: Apache-2.0
 * What a session knows of GPUs, shared by this folder's files; plans and lists use it for copies.
 */
#ifndef CLIENT_CUDA_STATE_H
#define CLIENT_CUDA_STATE_H

#include "core/op.h"
#include "cuda.h"
#include "gpu.h"
#include "page.h"

#define GPU_DEVICES    64
#define DEVICE_REGIONS 1024

/* A stream as the driver knows it. */
struct stream {
	CUstream handle;
	unsigned long long id;
	CUcontext context; /* of a default stream */
	CUcontext push;	   /* to be current when it is used, or NULL */
	bool captured;	   /* into a graph, just now: then it has no id */
};

/* A stream's tasks on one communicator, in order. Its index is its timeline's. */
struct pair {
	bool used;
	ncclsvc_timeline *timeline;
	unsigned long long stream_id; /* never reused in a process */
	CUcontext context;	      /* of a default stream, whose id is not enough; else NULL */
	uint32_t comm_key;
	uint64_t planned; /* 0: not for planned tasks; else the last one's */
	int device;
	uint64_t clock;
	bool alone;	   /* a default stream's work does not come before the stream's own */
	CUdeviceptr ready; /* the counters, as the stream's context sees them */
	/* While a group is put on its streams: */
	bool touched;
	bool rested; /* all its former tasks are over */
	bool idle;   /* nothing is on the stream: ready is written from here */
	CUstream stream;
	CUcontext push;	  /* to be current meanwhile, or NULL */
	uint64_t wait_to; /* 0: later work does not wait */
};

struct device_region {
	uint64_t base, bytes; /* bytes is 0: the place is free */
	uint64_t buffer;      /* CUDA's id of the allocation: never reused in a process */
	uint64_t restores;    /* of the process, when it was registered; see checkpoint.c */
	uint64_t clock;
	uint32_t id;   /* 0: not registered with the present daemon */
	uint32_t pins; /* pending tasks */
	int device;
	bool busy; /* a call about it is under way */
	bool lent;
	bool mapping; /* one of several in reserved addresses */
	bool gone;    /* the memory was freed: goes when its tasks are over */
	/* A range is several mappings without gaps, for buffers that lie across them. Its own: */
	uint16_t *parts; /* places of their regions, from 0; NULL: no range */
	unsigned nparts;
	struct device_region *next_range;
};

/* An allocation whose IPC handle changes when the driver restores the process from a checkpoint. */
struct canary {
	CUdeviceptr at; /* 0: none yet */
	CUcontext context;
	CUipcMemHandle handle;
	uint64_t looked_ns; /* before the present submission */
	uint64_t proven_ns; /* not restored until then, or not in use */
};

struct gpu {
	const struct cuda *cuda;
	struct canary canary;
	uint64_t restores;		/* that were noticed */
	uint64_t clock;			/* counts submissions, to tell what was used last */
	CUcontext primary[GPU_DEVICES]; /* retained */
	struct page *page, *retired;	/* NULL: none */
	bool no_batch;			/* the driver takes single stream operations alone */
	struct pair pairs[SVC_TIMELINES];
	uint32_t recent;	       /* pair */
	struct device_region *regions; /* DEVICE_REGIONS */
	uint16_t *sorted;	       /* by base; those that are gone are left out */
	unsigned nsorted;
	struct device_region *ranges; /* of these; they are not sorted, for they overlap */
	struct peer_module *modules;  /* GPU_DEVICES; NULL: none yet */
	uint64_t reach_generation;    /* 1 + that of the connection; 0: not known yet */
	uint16_t out_of_reach;	      /* then the daemon's devices that were tried in vain */
	uint16_t (*pins)[2]; /* for each slot of tasks: places of its regions, from 1; 0: none */
};

/* device.c: the device's primary context, retained until the session closes. Locked. */
ncclsvc_result gpu_primary(struct gpu *g, int device, CUcontext *context);
/* checkpoint.c: before the first region is registered. Locked. */
ncclsvc_result checkpoint_watch(struct gpu *g, int device);
/* Before a submission: was the process restored from a checkpoint since? Then no region of before
 * is alive, and detached tasks that are pending fail at their ends. Locked. */
ncclsvc_result checkpoint_look(ncclsvc_session *s, struct gpu *g, bool *restored);
/* After that, once the n tasks are submitted and on their streams. They may name the memory from
 * before, since the driver lets streams go on when the process is restored: then they fail, too.
 * Locked. */
ncclsvc_result checkpoint_prove(ncclsvc_session *s, struct gpu *g, unsigned n);
void checkpoint_close(struct gpu *g); /* ends the watch */

/* stream.c: what the driver knows of a stream. identify: UNSUPPORTED, if it is being captured. */
ncclsvc_result stream_look(struct gpu *g, int device, CUstream handle, struct stream *st);
ncclsvc_result stream_identify(struct gpu *g, int device, CUstream handle, struct stream *st);
/* Finds the stream's timeline, or makes it. *yielded: find everything again. Locked. */
ncclsvc_result stream_find(ncclsvc_session *s, struct gpu *g, struct op *op, uint64_t since,
			   bool *yielded);
/* A timeline of the connection that no other stream takes over, until it is among those that are
 * given back (page.h). Locked. */
ncclsvc_result stream_line(ncclsvc_session *s, struct gpu *g, uint32_t *index);
/* Gives the operation the next value of its stream's timeline. */
void streams_number(struct gpu *g, struct op *op);
/* The context that has to be current while the stream is used; NULL: the present one. */
ncclsvc_result stream_context(struct gpu *g, int device, CUstream handle, CUcontext *push);
/* Of a pair, by its index. */
struct svc_timeline *stream_counters(const struct gpu *g, uint32_t index);
void streams_forget(ncclsvc_session *s); /* the connection is about to change */
/* stream_ops.c: puts writes and waits on the streams that stream_find found. Locked. */
ncclsvc_result streams_enqueue(ncclsvc_session *s, const struct op *ops, unsigned n);

/* device_table.c. Locked. The region that holds p, or NULL. */
struct device_region *device_region_find(const struct gpu *g, uint64_t p);
/* True if p lies in the very memory that the region was made for. */
bool device_region_alive(const struct gpu *g, const struct device_region *r, uint64_t p);
/* NULL with the error set (LIMIT): regions of submission `since` and later are in use. */
struct device_region *device_region_insert(ncclsvc_session *s, struct gpu *g, uint64_t since,
					   const struct device_region *new);
/* Takes it out: nothing finds it any more, and the daemon forgets it once its tasks are over. */
void device_region_drop(ncclsvc_session *s, struct gpu *g, struct device_region *r);
/* Drops what has been freed: it stays the GPU's until the daemon lets it go, too. */
void device_regions_sweep(ncclsvc_session *s, struct gpu *g);
/* The daemon that knew them is gone: lent ones stay, without a number. */
void device_regions_forget(struct gpu *g);
/* The memory stays known until the task is over. */
void device_pin(ncclsvc_session *s, const struct op *op, uint64_t task);
void device_unpin(ncclsvc_session *s, uint64_t task); /* it has ended */

/* The same of a region by its place, from 1, for as long as is needed. */
void device_place_pin(ncclsvc_session *s, uint16_t place);
void device_place_unpin(ncclsvc_session *s, uint16_t place);

/* device_range.c: a buffer that begins in the mapping `first` and does not end there. */
struct buffer;
ncclsvc_result range_locate(ncclsvc_session *s, struct gpu *g, const struct buffer *b,
			    uint64_t since, struct device_region **found, bool *yielded);
/* Those that have the mapping among their parts. */
void ranges_drop(ncclsvc_session *s, struct gpu *g, const struct device_region *part);
void range_unlink(struct gpu *g, const struct device_region *range);
/* One that has it among its parts, or among theirs, is being made: it is not to be dropped. */
bool ranges_hold(const struct gpu *g, const struct device_region *part);

/* device_memory.c, for that: a buffer on its way into a region. */
struct buffer {
	const struct op *op;
	const char *name; /* as the operation calls it */
	uint64_t at, bytes;
};
/* The mapping, or allocation, that holds the buffer's first byte: found, or registered (*yielded).
 */
ncclsvc_result device_locate(ncclsvc_session *s, struct gpu *g, const struct buffer *b,
			     uint64_t since, struct device_region **found, bool *yielded);
ncclsvc_result device_too_long(const struct buffer *b, const struct device_region *r);
/* Asks the daemon. Yields; what it registered is in the table, unless that was made anew. */
ncclsvc_result device_introduce(ncclsvc_session *s, struct gpu *g, struct device_region *region,
				unsigned opcode, const void *request, int fd);

/* device_memory.c: finds an operation's buffers, or registers them. As stream_find. */
ncclsvc_result device_place(ncclsvc_session *s, struct gpu *g, struct op *op, uint64_t since,
			    bool *yielded);

/* lend.c: memory that the daemon has lent, zeroed, mapped for the process's device. Not locked. */
struct lent {
	CUdeviceptr at;
	size_t bytes;
	uint32_t region;
	uint32_t generation; /* of the connection */
};
/* Can this process map so much memory of the daemon's device `number`? Also true if the daemon
 * lends none. */
bool lent_can_map(ncclsvc_session *s, int32_t number, int device, size_t bytes);
ncclsvc_result lent_map(ncclsvc_session *s, int32_t number, int device, size_t bytes,
			struct lent *lent);
/* The daemon forgets the region; the memory stays mapped. */
void lent_forget(ncclsvc_session *s, const struct lent *lent);
/* Maps an allocation that came as a file descriptor; the context is current. */
CUresult shared_map(const struct cuda *cuda, int fd, CUdevice device, size_t bytes,
		    CUdeviceptr *at);
void shared_unmap(const struct cuda *cuda, CUdeviceptr at, size_t bytes);
/* Everything that is lent, when the session closes. */
void device_lent_free(struct gpu *g);

#endif
