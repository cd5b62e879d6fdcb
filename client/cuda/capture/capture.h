/* SPDX-License-Identifier: Apache-2.0
 * What a GPU communicator needs on streams in one epoch: its CUDA graphs, and the order of all its
 * operations, in graphs and outside. It gets that before it joins if it may have kernels
 * (direct/peer.h), otherwise when its first operation is captured. */
#ifndef CLIENT_CUDA_CAPTURE_H
#define CLIENT_CUDA_CAPTURE_H

#include <pthread.h>
#include <stdatomic.h>

#include "cuda/gpu_state.h"

struct capture_graph;
struct captured_group;
struct peer;

/* Operations in graphs that go to NCCL (captured_group.h). With the session's lock: */
struct captured_groups {
	uint32_t timeline;  /* their timeline; 0: none yet */
	struct page *page;  /* page that holds this timeline; NULL: none yet */
	CUdeviceptr words;  /* device address of its words */
	uint32_t newest;    /* number of the newest captured group */
	uint32_t graph;	    /* its graph; 0: none */
	uint32_t swept;	    /* how many of those gone have been swept */
	uint64_t due_clock; /* of the submission that captured_groups_due was last asked about */
	bool due;	    /* and its answer */
	struct captured_group *first;
	/* How many there were, and how many are gone with their graphs. */
	_Atomic uint32_t made, gone;
};

struct capture {
	struct capture *next; /* next of those that are kept */
	const struct cuda *cuda;
	CUdevice device;
	CUcontext context;    /* the device's primary context, retained; NULL: not yet */
	uint32_t connections; /* session_connections, of its timeline and captured groups */
	uint32_t table;	      /* s->generation: the table of regions that its groups pin */
	unsigned refs; /* held by its communicator, and by threads that launch or wait; locked */
	void (*unused)(struct capture *c); /* capture_unref calls it when the last one is dropped */
	struct peer *peer;		   /* the kernels, freed together with it; NULL: none */
	CUstream side_stream; /* for operations that the trainer's stream does not wait for */
	CUevent input;	      /* of those, and of operations on several streams */
	CUevent order; /* orders operations in graphs and others: recorded behind the newest */

	pthread_mutex_t turn;	      /* for what follows; no other lock is held meanwhile */
	struct capture_graph *graphs; /* newest first */
	/* How many graphs there were, and how many of them are gone. */
	_Atomic uint32_t ngraphs, graphs_gone;

	struct captured_groups groups;
};

/* Without references, it is freed once nothing of it runs or can be launched. Locked. */
static inline void capture_unref(struct capture *c)
{
	if (!--c->refs)
		c->unused(c);
}

/* Whether a graph with captured groups can still be launched. */
static inline bool captured_groups_live(const struct capture *c)
{
	return atomic_load_explicit(&c->groups.made, memory_order_acquire) !=
	       atomic_load_explicit(&c->groups.gone, memory_order_acquire);
}

/* Whether any graph can still be launched. */
static inline bool capture_graphs_live(const struct capture *c)
{
	return atomic_load_explicit(&c->ngraphs, memory_order_acquire) !=
		       atomic_load_explicit(&c->graphs_gone, memory_order_acquire) ||
	       captured_groups_live(c);
}

/* ---- capture.c. Locked. ---- */

/* Creates one with its streams and events. */
ncclsvc_result capture_new(ncclsvc_session *s, int device, struct capture **capture);
/* Gives the communicator one, unless it has one. */
ncclsvc_result capture_open(ncclsvc_session *s, ncclsvc_comm *comm);
/* Whether nothing of it runs on streams; asks the GPU if nothing else reports the end. */
bool capture_is_quiet(struct capture *c);
/* Frees all captures without references that are quiet, and whose graphs are gone. */
void captures_sweep(void);
/* Whether any of those without references uses the session's kernels. */
bool captures_use(const struct gpu *g);

#endif
