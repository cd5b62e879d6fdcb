/* SPDX-License-Identifier: Apache-2.0
 * Internal interfaces of the libcuda stand-in. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <sys/types.h>

#include "fake_cuda.h"

#define FAKE_PAGE	((size_t)4096)
#define FAKE_GRANULE	((size_t)2 << 20) /* for cuMemCreate */
#define FAKE_PATH_MAX	512
#define ROUND_UP(n, to) (((n) + (to)-1) / (to) * (to))

/* ---- cuda_device.c: the process's view of the GPUs ----------------------------------------- */

struct CUctx_st {
	int device;
	unsigned refs;	   /* of the primary context; under the device lock */
	atomic_int error;  /* CUresult; sticky */
	atomic_uint peers; /* bitmap of the devices whose allocations its kernels can access */
};

/* Every call begins with one of these. enter: needs only cuInit. enter_context: needs a current
 * context that has not failed. */
CUresult enter(void);
CUresult enter_context(struct CUctx_st **context);
struct CUctx_st *context_of(CUdevice device);
bool device_valid(CUdevice device);
size_t device_memory(void);

/* Fails all contexts that this process has, or will have. */
void contexts_fail(CUresult error);

/* ---- cuda_mps.c ---------------------------------------------------------------------------- */

/* For cuInit. Succeeds without a connection if no control daemon answers. */
CUresult mps_connect(void);
bool mps_connected(void);
/* For a forked child, which must not use its parent's connection. */
void mps_forked(void);

/* ---- cuda_checkpoint.c --------------------------------------------------------------------- */

/* Returns once the process is not locked. */
void checkpoint_wait(void);

/* ---- cuda_connections.c -------------------------------------------------------------------- */

/* Brackets a stream's wait. */
void connection_hold(void);
void connection_give_back(void);
/* Before a stream starts anything: waits until it gets a connection, or its context has failed. */
void connection_await(const atomic_int *stop);

/* ---- shared.c: state shared by all processes ----------------------------------------------- */

/* Physical memory: a file, or a memfd if no other process needs to find it by name. */
struct physical {
	uint32_t slot;
	uint64_t generation; /* unique in a directory */
	size_t bytes;	     /* the size that is counted; the file has a trailer behind it */
	int gpu;	     /* physical GPU number */
};

struct trailer {
	uint64_t magic;
	struct physical physical;
	uint32_t kind;
};

CUresult shared_open(void);
/* Counts the memory and creates its file. The caller owns the returned fd. */
CUresult shared_create(int gpu, size_t bytes, uint32_t kind, struct physical *physical, int *fd);
/* Opens it by name. Fails (-1) if its owner has freed it or is dead. */
int shared_find(const struct physical *physical);
/* Copies this process's memory, whose descriptor is `from`, to new memory and drops the old.
 * *physical and *fd become those of the new memory; the caller owns the fd. */
CUresult shared_move(struct physical *physical, uint32_t kind, int from, int *fd);
/* Adds this process as a user. The memory is counted again if nobody held it. */
CUresult shared_hold(int fd, struct physical *physical, uint32_t kind);
/* Removes this process as a user. With unlink, it can no longer be found by name. */
void shared_drop(const struct physical *physical, bool unlink);
size_t shared_unused(int gpu);
bool trailer_read(int fd, struct trailer *trailer);

/* ---- arena.c: addresses -------------------------------------------------------------------- */

/* Returned addresses are handed out again, the last first, for the same span. Nothing is mapped at
 * them. Under the table's lock. NULL: none left. */
char *arena_take(size_t span);
void arena_give(char *base, size_t span);
bool arena_holds(CUdeviceptr p);

/* ---- cuda_table.c: address ranges ---------------------------------------------------------- */

enum range_kind {
	RANGE_ALLOC = 1,  /* cuMemAlloc */
	RANGE_POOL = 2,	  /* cuMemAllocAsync */
	RANGE_IMPORT = 3, /* cuIpcOpenMemHandle */
	RANGE_VMM = 4,	  /* cuMemMap */
	RANGE_HOST = 5,	  /* cuMemHostRegister */
};

struct vmm;

struct range {
	char *base;
	size_t bytes; /* the requested size */
	size_t span;  /* size in addresses */
	char *at;     /* address of the bytes: base, or for registered memory an alias */
	enum range_kind kind;
	int device;
	uint64_t buffer_id;
	atomic_uint pins;
	struct physical physical; /* except for RANGE_VMM and RANGE_HOST */
	unsigned opens;		  /* RANGE_IMPORT */
	struct vmm *vmm;
	bool accessible;
	/* RANGE_ALLOC: */
	struct physical exported; /* named by its handle; generation 0: no handle yet */
	bool restored;		  /* restored from a checkpoint: its handles cannot be opened */
};

extern pthread_rwlock_t table_lock;
/* The range that holds p, or NULL. Under the lock. */
struct range *table_find(CUdeviceptr p);
/* Whether any range overlaps. Under the lock. */
bool table_overlaps(const char *base, size_t bytes);
/* Copies it to the heap and gives it a buffer id. NULL: out of memory. Under the write lock. */
struct range *table_add(const struct range *range);
/* Waits until nothing pins it, and removes it; the caller frees it. NULL: not there, or of another
 * kind. Under the write lock, which it releases meanwhile. */
struct range *table_remove(CUdeviceptr base, enum range_kind kind);
struct range *table_next(size_t i); /* under the lock; NULL: no more */
/* The id of the newest buffer. */
uint64_t table_newest(void);
/* Makes this thread replay work captured when `newest` was the newest buffer: every buffer it pins
 * must have existed then. 0: no replay. */
uint64_t table_replay(uint64_t newest);

/* ---- cuda_stream.c ------------------------------------------------------------------------- */

/* NULL: no such stream, with *error set. */
struct CUstream_st *stream_enter(CUstream handle, CUresult *error);
/* Puts the work on the stream, or into the graph into which the stream is captured. Takes ownership
 * of arg, even on failure. */
CUresult stream_put(struct CUstream_st *stream, const struct fake_work *work, void *arg);
/* The same for a stream that is not captured, but on failure the caller keeps arg. */
CUresult stream_queue(struct CUstream_st *stream, const struct fake_work *work, void *arg);
/* Waits for the stream's work. */
CUresult stream_wait(struct CUstream_st *stream);
/* Waits for every stream of the context. */
CUresult streams_wait(struct CUctx_st *context);
struct CUctx_st *stream_context(const struct CUstream_st *stream);
bool stream_legacy(const struct CUstream_st *stream);
/* Whether the stream and the legacy stream wait for each other. */
bool stream_blocking(const struct CUstream_st *stream);

/* ---- cuda_capture.c ------------------------------------------------------------------------ */

struct CUgraphNode_st;
struct capture;

struct nodes {
	struct CUgraphNode_st **at;
	size_t n;
};

/* A stream's position in a capture, or that of an event recorded in it. */
struct capture_point {
	struct capture *capture; /* NULL: none */
	struct nodes after;	 /* what the next node depends on */
	struct CUstream_st *stream;
	struct capture_point *next; /* next of the capture's streams */
};

/* A stream's point, stored in cuda_stream.c. */
struct capture_point *stream_point(struct CUstream_st *stream);
/* If the stream is captured, the work becomes a node, which takes ownership of arg. */
CUresult capture_put(struct CUstream_st *stream, const struct fake_work *work, void *arg,
		     bool *captured);
bool capture_active(struct CUstream_st *stream);
/* For queries of a stream or a context that a captured one cannot answer. They invalidate the
 * capture. */
CUresult capture_refuse(struct CUstream_st *stream);
CUresult capture_refuse_context(const struct CUctx_st *context);
/* For calls that the driver considers unsafe during a capture. They invalidate the capture unless
 * the modes of the thread and of the capture allow them. */
CUresult capture_unsafe(void);
/* A captured stream records or waits for an event, without a node. recorded: whether an event
 * outside captures was ever recorded. */
CUresult capture_record(struct CUstream_st *stream, struct capture_point *event, bool *captured);
CUresult capture_wait(struct CUstream_st *stream, struct capture_point *event, bool recorded,
		      bool *captured);
/* For queries of an event. */
CUresult capture_asked(const struct capture_point *event);
void capture_leave(struct capture_point *point);

/* ---- cuda_host.c --------------------------------------------------------------------------- */

/* Whether the thread is running a host function or a user object's destructor. */
bool host_calling(void);

/* ---- cuda_collective.c --------------------------------------------------------------------- */

struct peer_messages;
struct peer_kernel;

/* NULL: no kernel of client/kernels has that name. */
const struct peer_kernel *peer_kernel_find(const char *name);
/* Copies the kernel's argument, which begins with a struct peer_call. Aborts if the kernel supports
 * fewer blocks or threads, or does not accept the argument. */
void peer_kernel_launch(const struct peer_kernel *kernel, unsigned blocks, unsigned threads,
			const void *argument, struct peer_messages *m);
/* Runs the kernel's blocks on the CPU. An unmapped address fails the context, and *stop ends
 * a kernel that waits. */
void peer_kernel_run(struct CUctx_st *context, const struct peer_kernel *kernel, unsigned blocks,
		     const struct peer_messages *argument, const atomic_int *stop);

/* ---- cuda_memory.c ------------------------------------------------------------------------- */

CUresult memory_new(struct CUctx_st *context, size_t bytes, enum range_kind kind, CUdeviceptr *p);
CUresult memory_free(CUdeviceptr p, enum range_kind kind);
/* For a checkpoint: moves what this process has allocated to other physical memory with the same
 * contents. IPC handles name the old memory until memory_restore. */
CUresult memory_move(void);
CUresult memory_restore(void);
/* cuda_vmm.c: drops a mapping's reference. Under the table's lock. */
void vmm_unref(struct vmm *vmm);
/* For memory_move: moves memory created here. */
CUresult vmms_move(void);
bool vmm_imported(const struct vmm *vmm);
bool vmm_exportable(const struct vmm *vmm);

#endif
