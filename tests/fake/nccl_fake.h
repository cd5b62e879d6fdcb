/* SPDX-License-Identifier: Apache-2.0
 * What the files of the stand-in for libnccl share. */
#ifndef NCCL_FAKE_H
#define NCCL_FAKE_H

#include <pthread.h>
#include <stdint.h>

#include "fake_nccl.h"
#include "ncclsvc_types.h"

#define RANKS_MAX 64
#define BOX	  ((size_t)128 << 10) /* what a rank shows to all at once */
#define PIPE	  ((size_t)64 << 10)  /* bytes under way from one rank to another */

/* ---- Shared between ranks ---- */

/* What a rank calls; members of a collective must agree on all of it. */
struct call {
	uint64_t count;
	int32_t kind; /* ncclsvc_op */
	int32_t type;
	int32_t redop;
	int32_t root;
};

struct member_slot {
	int pid;
	int gpu; /* physical */
	unsigned long long start;
	_Atomic uint64_t posted, taken; /* rounds */
	atomic_int gone;		/* destroyed, or aborted */
	struct call calls[2];		/* by the round's parity, as the boxes */
};

/* From one rank to another. A message is announced, its bytes follow, and it is acknowledged. */
struct pipe {
	_Atomic uint64_t announced, acknowledged; /* messages */
	_Atomic uint64_t written, read;		  /* bytes */
	uint64_t bytes;				  /* of the announced one */
	int32_t type;
	atomic_int connected; /* PIPE_SENDER and PIPE_RECEIVER, who have called */
};

enum { PIPE_SENDER = 1, PIPE_RECEIVER = 2 };

struct shared {
	uint64_t magic;
	int maker;
	int nranks; /* 0 before the first rank */
	unsigned long long maker_start;
	atomic_int joined, left;
	atomic_int error; /* ncclResult_t that all ranks see */
	int reserved;
	struct member_slot slots[RANKS_MAX];
	/* then nranks * nranks pipes, 2 * nranks boxes, and the pipes' bytes */
};

/* ---- Of this process ---- */

struct ncclComm {
	struct shared *shared;
	size_t size;
	int nranks, rank;
	CUcontext context;
	uint64_t round;
	_Atomic uint64_t launched, ended; /* one runs after the other */
	atomic_int aborted;
	struct ncclComm *next_in_group;
	struct launch *group; /* of the open group: a launch for each stream, works in the first */
};

/* One operation. */
struct work {
	struct work *next;
	struct call call; /* root: of p2p the peer */
	const char *src;
	char *dst;
	char scalar[8]; /* of a PreMulSum */
	/* While it runs: */
	struct fake_pin src_pin, dst_pin;
	uint64_t at; /* bytes of a p2p message that are done */
	bool begun, done;
};

/* What a stream runs at once: a call, or a group's calls on one communicator. */
struct launch {
	struct launch *next; /* in a group */
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

/* The open group's ncclCommInitRankConfig, all at once. */
ncclResult_t joins_run(void);

/* nccl_ops.c */
size_t nccl_width(int type);
void launch_run(void *arg, const atomic_int *stop);
/* The communicator may go now, too. */
void launch_free(void *arg);
/* Whether to go on waiting: not after an abort or a fault of the context. */
bool launch_on(const struct launch *l);
/* For all ranks: it hangs until it is aborted, as the real one does. */
void launch_fail(struct launch *l, ncclResult_t error);
size_t src_bytes(const struct ncclComm *c, const struct call *call);
size_t dst_bytes(const struct ncclComm *c, const struct call *call);

void work_free(struct work *w);

/* nccl_collective.c, nccl_p2p.c: false when the launch is over */
bool collective_run(struct launch *l, struct work *w);
bool p2p_run(struct launch *l);
/* As NCCL, whose first Send and Recv between two ranks wait for each other in the call itself. */
void p2p_connect(const struct launch *l);
ncclResult_t p2p_connected(const struct launch *l);

/* nccl_group.c */
ncclResult_t nccl_submit(struct ncclComm *c, CUstream stream, struct work *work);
bool nccl_grouping(void);
/* An error in an open group is the group's. Returns it. */
ncclResult_t nccl_group_note(ncclResult_t error);

/* nccl_redop.c: what ncclRedOpCreatePreMulSum has made. The scalar of one; false: it is none. */
#define FAKE_PREMULSUM 5 /* what ranks agree on, whatever number each has for it */
bool redop_scalar(const struct ncclComm *c, int redop, int type, char scalar[8]);
void redops_forget(const struct ncclComm *c);
/* nccl_reduce.c: multiplies in place. */
void nccl_scale(char *at, size_t n, int type, const char *scalar);
/* n elements of each of the ranks' boxes, in the order of ranks. */
void nccl_reduce(char *to, char *const *from, int ranks, size_t n, int type, int redop);

#endif
