/* SPDX-License-Identifier: Apache-2.0
 * The direct transport in a session: operations that run as kernels on the trainer's own streams
 * (proto/abi/peer_abi.h), without the daemon. It decides which members take part, holds the memory
 * that the kernels share, and aborts them. */
#ifndef CLIENT_CUDA_PEER_H
#define CLIENT_CUDA_PEER_H

#include <pthread.h>

#include "core/comm_handle.h"
#include "core/op.h"
#include "core/task_slot.h"
#include "cuda/capture/capture.h"
#include "kernels/variant.h"
#include "proto/abi/peer_abi.h"
#include "proto/cuda/allocation.h"

#define WARP 32

enum kernel {
	KERNEL_NONE,
	KERNEL_LL,
	KERNEL_DIRECT,
	KERNEL_COPIES, /* the kernel of KERNEL_LL, without data, between copies (copies.c) */
	KERNEL_MESSAGES,
	KERNELS,
};

/* ncclsvc_comm_suspend and ncclsvc_comm_resume (sleep.c). */
enum peer_sleep {
	PEER_AWAKE,
	PEER_QUIET,  /* its kernels have ended; it waits for all members' kernels to end */
	PEER_ASLEEP, /* its memory is freed, others' memory is unmapped, and the daemon was informed
		      */
	PEER_WAKING, /* its own memory is allocated again; it waits for the others' */
};

struct import;
struct importer;
struct capture_graph;

struct peer_module {
	CUmodule modules[KERNELS];
	CUfunction functions[KERNELS][PEER_VARIANTS]; /* only KERNEL_DIRECT has several */
};

/* The driver is asked about a buffer once: a query takes more than a tenth of a submission. */
#define PEER_CHECKED 64

/* Others' shares (importer.c). */
struct peer_imports {
	struct importer *importer; /* NULL: nothing is mapped */
	struct import *first;
	uint32_t known[PEER_RANKS], mapped[PEER_RANKS]; /* how many, of each rank */
	uint32_t missing[PEER_RANKS]; /* the first that is not in the table, for lack of memory; 0:
					 none is */
	uint64_t position, reported;  /* how much of the log is done, and reported */
	bool later;		      /* some of that is to be unmapped */
	bool asleep;		      /* nothing is mapped for now */
};

/* The newest kernel that was launched. */
struct peer_newest {
	bool any; /* there is one */
	uint32_t kernel_seq;
	unsigned long long stream_id;
	CUcontext stream_context;
	unsigned blocks;
};

/* A member's kernels in one epoch. */
struct peer {
	struct capture *capture; /* orders the kernels, and holds them */
	const struct peer_module *module;
	uint16_t out_of_reach; /* as in JOIN */
	uint8_t ranks_per_gpu; /* the most ranks of the communicator on one GPU */
	uint8_t blocks;	       /* the most blocks of a kernel */
	uint64_t copy_slot;    /* the size of a slot for copy engines; 0: they are not used */
	uint64_t staging_bytes[PEER_RANKS];   /* of each rank's staging memory */
	struct allocation own;		      /* its staging memory */
	uint32_t own_region, own_connections; /* its region, and the connection
						 (session_connections) that it is of */
	struct peer_control *controls;	      /* of all ranks; NULL: not open yet */
	struct peer_control *control;	      /* of this rank */
	size_t controls_bytes;
	int controls_fd;       /* for the next daemon, which may continue the epoch */
	struct peer_call call; /* the argument that all kernels share */
	CUstream asking;       /* for queries of the GPU */
	CUevent fork;	       /* of operations beside others; used with the session's lock */

	/* With the session's lock. Kernels in graphs do not count. */
	uint32_t kernel_seq;	      /* of the newest kernel */
	uint8_t kernel_seq_blocks;    /* its number of blocks */
	uint32_t coll_seq;	      /* of the newest collective */
	uint32_t messages[PEER_DIRS]; /* messages so far */
	uint32_t turns[PEER_DIRS];    /* turns in the current group */
	uint32_t over; /* this kernel is known to have ended, like all earlier ones */
	uint32_t completed[PEER_BLOCKS]; /* by block: the newest kernel it ended */
	uint32_t posting;  /* how many more kernels post their ends for a waiting thread */
	uint64_t asked_ns; /* when the GPU was last asked */
	uint64_t checked[PEER_CHECKED]; /* buffers known to be GPU memory, by hash */
	/* Numbers of its shares (shares.c), by their regions' entries; NULL: none yet */
	uint32_t *shares, nshares;
	uint32_t said; /* after a reset of the log: number of the last share that was said again */
	struct peer_imports imports;
	enum peer_sleep sleep;
	uint32_t wake_connections; /* session_connections when it became WAKING */
	uint16_t unmapped;	   /* bitmap of ranks whose staging memory is not mapped */
	void *saved_staging; /* the host's copy of the member's staging memory; NULL: it is mapped
			      */

	/* With capture.turn, which keeps launches in the order of kernel_seq: */
	pthread_cond_t turned;
	uint32_t launched;   /* or skipped */
	atomic_bool failed;  /* a launch has failed: no other follows */
	uint32_t failed_seq; /* then: its kernel_seq */
	uint32_t records;
	struct peer_newest newest;
};

static inline bool peer_is_open(const struct peer *p)
{
	return p->control;
}

/* ---- peer_memory.c ---- */

/* Maps the other members' staging memory, and all control blocks. Not locked; yields. */
ncclsvc_result peer_map_all(ncclsvc_session *s, ncclsvc_comm *comm, struct peer *p);
/* The rank's staging memory, as a descriptor; -1: the control blocks. Locked; yields. */
ncclsvc_result peer_staging_fetch(ncclsvc_session *s, const ncclsvc_comm *comm, int32_t rank,
				  int *fd);
/* Frees the kernels and all that they have. */
void peer_free(struct peer *p);

/* ---- peer_module.c ---- */

/* The device's kernels, loaded at first use. The context must be current. Locked. */
const struct peer_module *peer_module_of(struct gpu *g, int device);
void peer_module_unload(const struct cuda *cuda, struct peer_module *m);

/* ---- peer_submit.c ---- */

/* Refuses operations that cannot be launched or captured. before: how many kernels of the group
 * count as pending. Locked. */
ncclsvc_result peer_prepare(struct gpu *g, struct op *op, uint32_t before);
/* Records the operation as the next one of its communicator, which has kernels, whether or not this
 * one is a kernel. Locked. */
void peer_enter(struct op *op, struct slot *slot);
/* Launches the kernel of n operations. Not locked. */
ncclsvc_result peer_launch(const struct op *ops, unsigned n);
/* Captures the kernel of n operations, whose streams are all being captured into one graph. Not
 * locked. */
ncclsvc_result peer_capture(const struct op *ops, unsigned n);
/* The same for a communicator of one rank, whose operation is a copy. Locked. */
ncclsvc_result peer_capture_alone(const struct gpu *g, struct op *op);
/* Makes later work on the stream wait for the kernel's task, which is pending. Locked. */
ncclsvc_result peer_stream_wait(ncclsvc_session *s, CUstream handle, const struct slot *slot);

/* ---- peer_messages.c ---- */

static inline unsigned peer_dir_of(const struct svc_record *r)
{
	return r->op == NCCLSVC_SEND ? PEER_DIR_TO((unsigned)r->peer)
				     : PEER_DIR_FROM((unsigned)r->peer);
}
/* Gives each message of the group, whose kernels are chosen, its turn. Locked. */
void peer_turns(struct op *ops, unsigned n);
/* Describes the kernel of these messages: its argument, if m is not NULL, and its threads. Returns
 * its number of blocks. */
unsigned peer_messages_describe(const struct peer *p, const struct op *ops, unsigned n,
				struct peer_messages *m, unsigned *threads);

/* ---- peer_task.c ---- */

extern const struct kernel_callbacks peer_callbacks;
/* Updates the kernels' progress, asking the GPU if needed. Locked. */
void peer_ask(struct peer *p);
/* Reports the member's progress to the daemon, once its kernels have ended. Kernels that need not
 * wait report none, and the host does not count those in graphs. Locked. */
void peer_post_end(const struct peer *p);
/* Whether nothing of it runs; asks the GPU if nothing else reports the end. Locked. */
bool peer_is_quiet(struct peer *p);
/* Makes the stream wait until all blocks of the kernel, or of later ones, have reported their end.
 * The context must be current. */
CUresult peer_wait_ended(const struct peer *p, CUstream stream, uint32_t kernel_seq,
			 unsigned blocks);
/* Whether all blocks of that kernel have ended, according to the GPU's last answer. */
bool peer_blocks_completed(const struct peer *p, uint32_t kernel_seq, unsigned blocks);

#endif
