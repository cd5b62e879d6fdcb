/* SPDX-License-Identifier: Apache-2.0
 * NCCL communicators: nccl_comm.c. */
#ifndef GPU_NCCL_COMM_H
#define GPU_NCCL_COMM_H

#include "gpu.h"

struct account;

struct nccl_comm_rank {
	uint32_t rank;
	int32_t device;
};

/* The requirements of a communicator. */
struct nccl_comm_want {
	struct communicator *user;
	struct nccl_comm **held; /* where the user stores its NCCL communicator */
	const struct account *account;
	uint32_t nranks, nnodes;
	uint32_t n; /* ranks on this node */
	struct nccl_comm_rank locals[GPUS_MAX];
};

/* The local part of a communicator, perhaps across nodes. */
struct nccl_comm {
	struct nccl_comm *prev, *next;
	struct gpus *gpus;
	struct communicator *user; /* NULL: in the pool, or on its way there */
	struct nccl_comm **held;   /* of the user, as is the next one */
	const struct account *account;
	uint32_t slot, nranks, nnodes;
	uint32_t n;		   /* ranks on this node */
	uint64_t nccl_id;	   /* shared with its parts on other nodes; 0: there are none */
	uint32_t owner;		   /* then: the node of its first GPU, whose pool it belongs to */
	bool reported;		   /* the NCCL pool knows that it is broken */
	int32_t lost;		   /* the rank at fault; -1: none */
	uint32_t waiting;	   /* answers still to come */
	uint64_t number;	   /* of its creation; 0: not requested yet */
	struct creation *creation; /* until the scheduler takes it */
	bool ready, bad, aborting;
	bool released; /* while aborting: its tasks no longer wait for input */
	uint64_t idle_ns, abort_ns;
	uint64_t progress, used_ns; /* completed operations, and when that last changed */
	int32_t result;		    /* and text: why its creation failed */
	char text[SVC_TEXT_BYTES];
	uint8_t id[NCCLSVC_ID_BYTES];
	struct nccl_comm_rank locals[]; /* [n]: the local ranks, in order */
};

/* Gives the user one, at once or later through the callback `made`. */
void nccl_comm_acquire(struct gpus *s, const struct nccl_comm_want *w);
/* Is p intact, with these GPUs in this order? p may be NULL. */
bool nccl_comm_fits(const struct nccl_comm *p, const struct nccl_comm_want *w);
/* Creates an empty one with a slot; NULL: there is no room. nccl_id, owner: see above. */
struct nccl_comm *nccl_comm_make(struct gpus *s, const struct nccl_comm_want *w, uint64_t nccl_id,
				 uint32_t owner);
/* Makes NCCL create it with p->id; the callback `made` follows. */
void nccl_comm_init(struct nccl_comm *p);
/* The user takes p from the pool. */
void nccl_comm_take(struct nccl_comm *p, const struct nccl_comm_want *w);
/* The user gives up p, which cannot be used again. */
void nccl_comm_detach(struct nccl_comm *p);
/* Its creation has failed; workers still busy with it get a shorter deadline. */
void nccl_comm_fail(struct nccl_comm *p, int result, const char *why);
/* Is the GPU's worker creating a communicator whose other part has failed? Such a worker may have
 * to be killed. */
bool nccl_comm_stuck(const struct gpu *g);
/* Does the GPU's worker have a communicator, perhaps an unused one? */
bool nccl_comm_on(const struct gpu *g);
/* Destroys p in good order. No communicator uses it. */
void nccl_comm_destroy(struct nccl_comm *p);
/* Until when to wait for a matching NCCL communicator whose user has lost all members; 0: there is
 * none. */
uint64_t nccl_comm_due(const struct gpus *s, const struct nccl_comm_want *w);
/* The epoch has ended and no task runs: returns it to the pool, and sets *held to NULL. */
void nccl_comm_release(struct nccl_comm **held);
/* Aborts p: its epoch has ended, and its work on the GPUs may never end by itself. */
void nccl_comm_abort(struct nccl_comm *p, const char *why);
/* Tells its owner that this node no longer uses its part, or why the part is broken, and the rank
 * at fault (-1: none). */
void nccl_comm_give_back(struct gpus *s, uint32_t owner, uint64_t nccl_id, int result,
			 int32_t rank);
void nccl_comm_gpu_lost(struct gpus *s, const struct gpu *g);
void nccl_comm_slot_failed(struct gpus *s, struct gpu *g, uint32_t slot, const char *text);
/* Destroys communicators that were idle too long, and continues aborts; returns the next deadline.
 */
uint64_t nccl_comm_expire(struct gpus *s, uint64_t now);
void nccl_comm_free_all(struct gpus *s);

#endif
