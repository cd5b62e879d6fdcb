/* SPDX-License-Identifier: Apache-2.0
 * What the files of the stand-in for libcuda share. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <sys/types.h>

#include "fake_cuda.h"

#define FAKE_PAGE	((size_t)4096)
#define FAKE_GRANULE	((size_t)2 << 20) /* of cuMemCreate */
#define FAKE_PATH_MAX	512
#define ROUND_UP(n, to) (((n) + (to)-1) / (to) * (to))

/* ---- cuda_device.c: the process's view of the GPUs ----------------------------------------- */

struct CUctx_st {
	int device;
	unsigned refs;	  /* of the primary context; under the device lock */
	atomic_int error; /* CUresult; sticky */
};

/* Every call comes through one of these. enter: needs cuInit only. enter_context: needs a current
 * context that has not failed. */
CUresult enter(void);
CUresult enter_context(struct CUctx_st **context);
struct CUctx_st *context_of(CUdevice device);
bool device_valid(CUdevice device);
size_t device_memory(void);

/* All that this process has, or will have, have failed. */
void contexts_fail(CUresult error);

/* ---- cuda_mps.c ---------------------------------------------------------------------------- */

/* For cuInit. Succeeds without a connection if nobody answers. */
CUresult mps_connect(void);
bool mps_connected(void);
/* In a child, which has no part in its parent's connection. */
void mps_forked(void);

/* ---- cuda_checkpoint.c --------------------------------------------------------------------- */

/* Returns once the process is not locked. */
void checkpoint_wait(void);

/* ---- cuda_connections.c -------------------------------------------------------------------- */

/* A stream waits from here to there. */
void connection_hold(void);
void connection_give_back(void);
/* Before a stream begins anything: until there is a connection for it, or its context has failed.
 */
void connection_await(const atomic_int *stop);

/* ---- shared.c: what all processes know ----------------------------------------------------- */

/* Physical memory: one file, or a memfd where no other process finds it by name. */
struct physical {
	uint32_t slot;
	uint64_t generation; /* never used twice in a directory */
	size_t bytes;	     /* what is counted; the file has a trailer behind them */
	int gpu;	     /* physical number */
};

struct trailer {
	uint64_t magic;
	struct physical physical;
	uint32_t kind;
};

CUresult shared_open(void);
/* Counts the memory and makes its file. The returned fd is the caller's. */
CUresult shared_create(int gpu, size_t bytes, uint32_t kind, struct physical *physical, int *fd);
/* Opens it by name. Fails (-1) when its owner has freed it or is dead. */
int shared_find(const struct physical *physical);
/* Copies this process's memory, whose descriptor is `from`, to new memory and drops the old.
 * *physical and *fd become those of the new memory; the fd is the caller's. */
CUresult shared_move(struct physical *physical, uint32_t kind, int from, int *fd);
/* This process uses it, too. It is counted again if nobody held it any more. */
CUresult shared_hold(int fd, struct physical *physical, uint32_t kind);
/* No longer. With unlink, it cannot be found by its name any more. */
void shared_drop(const struct physical *physical, bool unlink);
size_t shared_unused(int gpu);
bool trailer_read(int fd, struct trailer *trailer);
/* NCCLSVC_FAKE_NO_NODE: physical numbers of GPUs whose device node this process lacks: "0 1". The
 * real driver opens no memory of theirs. */
bool has_device_node(int gpu);

/* ---- arena.c: addresses -------------------------------------------------------------------- */

/* Addresses given back are given out again, the last first, for the same span. Nothing is mapped at
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
	size_t bytes; /* as asked for */
	size_t span;  /* of addresses */
	char *at;     /* where the bytes are: base, but for registered memory an alias */
	enum range_kind kind;
	int device;
	uint64_t buffer_id;
	atomic_uint pins;
	struct physical physical; /* but for RANGE_VMM and RANGE_HOST */
	unsigned opens;		  /* RANGE_IMPORT */
	struct vmm *vmm;
	bool accessible;
	/* RANGE_ALLOC: */
	struct physical exported; /* what its handle names; generation 0: no handle was asked for */
	bool restored;		  /* from a checkpoint: its handles cannot be opened */
};

extern pthread_rwlock_t table_lock;
/* The range that holds p, or NULL. Under the lock. */
struct range *table_find(CUdeviceptr p);
/* Whether any range overlaps. Under the lock. */
bool table_overlaps(const char *base, size_t bytes);
/* Takes a copy on the heap and gives it a buffer id. NULL: no memory. Under the write lock. */
struct range *table_add(const struct range *range);
/* Waits until nothing pins it, and takes it out; free it. NULL: not there, or of another kind.
 * Under the write lock, which it drops meanwhile. */
struct range *table_remove(CUdeviceptr base, enum range_kind kind);
struct range *table_next(size_t i); /* under the lock; NULL: no more */
/* The id of the newest buffer. */
uint64_t table_newest(void);
/* From now on this thread replays what was captured when that was the newest buffer: what it pins
 * must have been there. 0: it replays nothing. */
void table_replay(uint64_t newest);

/* ---- cuda_stream.c ------------------------------------------------------------------------- */

/* NULL: no such stream, with *error set. */
struct CUstream_st *stream_enter(CUstream handle, CUresult *error);
/* Puts it on the stream, or into the graph into which that is captured. Takes arg, also if it
 * fails. */
CUresult stream_put(struct CUstream_st *stream, const struct fake_work *work, void *arg);
/* The same of a stream that is not captured, but arg remains the caller's if it fails. */
CUresult stream_queue(struct CUstream_st *stream, const struct fake_work *work, void *arg);
/* Waits for what is on it. */
CUresult stream_wait(struct CUstream_st *stream);
/* Waits for every stream of the context. */
CUresult streams_wait(struct CUctx_st *context);
struct CUctx_st *stream_context(const struct CUstream_st *stream);
bool stream_legacy(const struct CUstream_st *stream);
/* The legacy stream waits for it, and it for that. */
bool stream_blocking(const struct CUstream_st *stream);

/* ---- cuda_capture.c ------------------------------------------------------------------------ */

struct CUgraphNode_st;
struct capture;

struct nodes {
	struct CUgraphNode_st **at;
	size_t n;
};

/* Where a stream is in a capture, or what an event stands for that was recorded in it. */
struct capture_point {
	struct capture *capture; /* NULL: none */
	struct nodes after;	 /* what the next node depends on */
	struct CUstream_st *stream;
	struct capture_point *next; /* of the capture's streams */
};

/* Of a stream; cuda_stream.c has it. */
struct capture_point *stream_point(struct CUstream_st *stream);
/* If the stream is captured, the work becomes a node's, which takes arg. */
CUresult capture_put(struct CUstream_st *stream, const struct fake_work *work, void *arg,
		     bool *captured);
bool capture_active(struct CUstream_st *stream);
/* Calls that ask a stream, or a context, for what a captured one does not have. They spoil the
 * capture. */
CUresult capture_refuse(struct CUstream_st *stream);
CUresult capture_refuse_context(const struct CUctx_st *context);
/* Calls that the driver holds to be unsafe while something is captured. They spoil it unless the
 * modes of the thread and of the capture allow them. */
CUresult capture_unsafe(void);
/* An event is recorded or waited for, and there is no node for it. recorded: of one that is in no
 * capture, that it was ever recorded. */
CUresult capture_record(struct CUstream_st *stream, struct capture_point *event, bool *captured);
CUresult capture_wait(struct CUstream_st *stream, struct capture_point *event, bool recorded,
		      bool *captured);
/* An event is asked whether it is done. */
CUresult capture_asked(const struct capture_point *event);
void capture_leave(struct capture_point *point);

/* ---- cuda_host.c --------------------------------------------------------------------------- */

/* Whether the thread runs a host function or the destructor of a user object. */
bool host_calling(void);

/* ---- cuda_collective.c --------------------------------------------------------------------- */

struct peer_messages;
struct peer_kernel;

/* NULL: no kernel of client/kernels has that name. */
const struct peer_kernel *peer_kernel_find(const char *name);
/* Copies the kernel's argument, which begins with a struct peer_call. Dies if the kernel has fewer
 * blocks or threads, or the argument is not one that it takes. */
void peer_kernel_launch(const struct peer_kernel *kernel, unsigned blocks, unsigned threads,
			const void *argument, struct peer_messages *m);
/* Runs the kernel's blocks, as its twin. An address that is not mapped fails the context,
 * and *stop ends a kernel that waits. */
void peer_kernel_run(struct CUctx_st *context, const struct peer_kernel *kernel, unsigned blocks,
		     const struct peer_messages *argument, const atomic_int *stop);

/* ---- cuda_memory.c ------------------------------------------------------------------------- */

CUresult memory_new(struct CUctx_st *context, size_t bytes, enum range_kind kind, CUdeviceptr *p);
CUresult memory_free(CUdeviceptr p, enum range_kind kind);
/* A checkpoint puts other physical memory with the same contents under what this process has
 * allocated. IPC handles name the former memory until memory_restore. */
CUresult memory_move(void);
CUresult memory_restore(void);
/* cuda_vmm.c: what a mapping holds. Under the table's lock. */
void vmm_unref(struct vmm *vmm);
/* For memory_move, of what was created here. */
CUresult vmms_move(void);
bool vmm_imported(const struct vmm *vmm);
bool vmm_exportable(const struct vmm *vmm);

#endif
