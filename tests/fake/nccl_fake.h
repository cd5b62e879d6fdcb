/* SPDX-License-Identifier: Apache-2.0
 * Internal interfaces of the libnccl stand-in. */
#ifndef NCCL_FAKE_H
#define NCCL_FAKE_H

#include <pthread.h>
#include <stdint.h>

#include "fake_nccl.h"
#include "proto/ncclsvc_types.h"

#define RANKS_MAX 64
#define BOX	  ((size_t)128 << 10) /* bytes that a rank publishes per round */
#define PIPE	  ((size_t)64 << 10)  /* buffer from one rank to another */

/* ---- Shared between ranks ---- */

/* A call's parameters. In a collective, all of them must match on all ranks. */
struct call {
	uint64_t count;
	int32_t kind; /* ncclsvc_op */
	int32_t type;
	int32_t redop;
	int32_t root;
};

struct member_slot {
	int pid;
	int gpu; /* physical GPU number */
	unsigned long long start;
	_Atomic uint64_t posted, taken; /* rounds */
	atomic_int gone;		/* destroyed or aborted */
	struct call calls[2];		/* indexed by the round's parity, like the boxes */
};

/* A one-way channel between two ranks. The sender announces a message and writes its bytes; the
 * receiver acknowledges it. */
struct pipe {
	_Atomic uint64_t announced, acknowledged; /* messages */
	_Atomic uint64_t written, read;		  /* bytes */
	uint64_t bytes;				  /* size of the announced message */
	int32_t type;
	atomic_int connected; /* mask: PIPE_SENDER and PIPE_RECEIVER have called */
};

enum { PIPE_SENDER = 1, PIPE_RECEIVER = 2 };

struct shared {
	uint64_t magic;
	int maker;
	int nranks; /* 0 until the first rank joins */
	unsigned long long maker_start;
	atomic_int joined, left;
	atomic_int error; /* ncclResult_t, visible to all ranks */
	int reserved;
	struct member_slot slots[RANKS_MAX];
	/* then nranks * nranks pipes, 2 * nranks boxes, and the pipes' bytes */
};

/* ---- Private to this process ---- */

struct ncclComm {
	struct shared *shared;
	size_t size;
	int nranks, rank;
	CUcontext context;
	uint64_t round;
	_Atomic uint64_t launched, ended; /* launches run one at a time */
	atomic_int aborted;
	struct ncclComm *next_in_group;
	struct launch *group; /* of the open group: one per stream; the first holds all works */
};

/* One operation. */
struct work {
	struct work *next;
	struct call call; /* root is the peer of a Send or Recv */
	const char *src;
	char *dst;
	char scalar[8]; /* factor of a PreMulSum */
	/* While the operation runs: */
	struct fake_pin src_pin, dst_pin;
	uint64_t at; /* transferred bytes of a p2p message */
	bool begun, done;
};

/* One unit of work of a stream: a call, or a group's calls on one communicator. */
struct launch {
	struct launch *next; /* next in the open group */
	struct ncclComm *comm;
	CUstream stream;
	uint64_t ticket;
	struct work *works, **tail;
	const atomic_int *stop;
};

/* nccl_comm.c */
struct pipe *shared_pipe(const struct ncclComm *c, int from, int to);
char *shared_pipe_bytes(const struct ncclComm *c, int from, int to);
char *shared_box(const struct ncclComm *c, int rank, uint64_t round);
__attribute__((format(printf, 2, 3))) ncclResult_t nccl_error(ncclResult_t result,
							      const char *format, ...);

/* Runs the open group's ncclCommInitRankConfig calls concurrently. */
ncclResult_t joins_run(void);

/* nccl_ops.c */
size_t nccl_width(int type);
void launch_run(void *arg, const atomic_int *stop);
/* Afterwards the communicator may be freed, too. */
void launch_free(void *arg);
/* False after an abort or a context fault; waits end then. */
bool launch_on(const struct launch *l);
/* Sets the communicator's error for all ranks. As in NCCL, the launch hangs until the abort. */
void launch_fail(struct launch *l, ncclResult_t error);
size_t src_bytes(const struct ncclComm *c, const struct call *call);
size_t dst_bytes(const struct ncclComm *c, const struct call *call);

void work_free(struct work *w);

/* nccl_collective.c, nccl_p2p.c: return false if the launch cannot continue */
bool collective_run(struct launch *l, struct work *w);
bool p2p_run(struct launch *l);
/* As in NCCL, the first Send and Recv between two ranks wait for each other inside the call. */
void p2p_connect(const struct launch *l);
ncclResult_t p2p_connected(const struct launch *l);

/* nccl_group.c */
ncclResult_t nccl_submit(struct ncclComm *c, CUstream stream, struct work *work);
bool nccl_grouping(void);
/* Records an error for the open group, if there is one. Returns the error. */
ncclResult_t nccl_group_note(ncclResult_t error);

/* nccl_redop.c: the reductions of ncclRedOpCreatePreMulSum. redop_scalar returns false if redop is
 * not one of them. */
#define FAKE_PREMULSUM 5 /* same for all ranks, whose own numbers may differ */
bool redop_scalar(const struct ncclComm *c, int redop, int type, char scalar[8]);
void redops_forget(const struct ncclComm *c);
/* nccl_reduce.c: multiplies n elements in place. */
void nccl_scale(char *at, size_t n, int type, const char *scalar);
/* Reduces n elements from each rank's box, in rank order. */
void nccl_reduce(char *to, char *const *from, int ranks, size_t n, int type, int redop);

#endif
