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

/* What a communicator needs. */
struct nccl_comm_want {
	struct communicator *user;
	struct nccl_comm **held; /* where the user keeps what it has */
	const struct account *account;
	uint32_t nranks, nnodes;
	uint32_t n; /* ranks on this node */
	struct nccl_comm_rank locals[GPUS_MAX];
};

/* Of one across nodes, what is here. */
struct nccl_comm {
	struct nccl_comm *prev, *next;
	struct gpus *gpus;
	struct communicator *user; /* NULL: in the pool, or on its way there */
	struct nccl_comm **held;   /* the user's, as the next one */
	const struct account *account;
	uint32_t slot, nranks, nnodes;
	uint32_t n;		   /* ranks on this node */
	uint64_t serial;	   /* its parts on other nodes have the same; 0: there are none */
	bool told;		   /* the NCCL pool knows that it is broken */
	int32_t lost;		   /* rank because of which; -1: none */
	uint32_t waiting;	   /* answers still to come */
	uint64_t number;	   /* of its creation; 0: it is not asked for yet */
	struct creation *creation; /* until the engine gets it */
	bool ready, bad, aborting;
	bool released; /* while aborting: nothing waits for input any more */
	uint64_t idle_ns, abort_ns;
	int32_t result; /* and text: why it could not be made */
	char text[SVC_TEXT_BYTES];
	uint8_t id[NCCLSVC_ID_BYTES];
	struct nccl_comm_rank locals[]; /* [n]: those here, in their order */
};

/* Gives the user one, now or with the callback `made`. */
void nccl_comm_acquire(struct gpus *s, const struct nccl_comm_want *w);
/* Whether p is good and has these GPUs in this order. p may be NULL. */
bool nccl_comm_fits(const struct nccl_comm *p, const struct nccl_comm_want *w);
/* A new one, with a slot but nothing behind it; NULL: there is no room. */
struct nccl_comm *nccl_comm_make(struct gpus *s, const struct nccl_comm_want *w, uint64_t serial);
/* NCCL makes it, by p->id; the callback `made` follows. */
void nccl_comm_init(struct nccl_comm *p);
/* The user takes p from the pool. */
void nccl_comm_take(struct nccl_comm *p, const struct nccl_comm_want *w);
/* The user gives up p, which cannot be used again. */
void nccl_comm_detach(struct nccl_comm *p);
/* Its creation has failed; workers that are still busy with it get a shorter deadline. */
void nccl_comm_fail(struct nccl_comm *p, int result, const char *why);
/* Whether the GPU's worker is creating a communicator whose other part has failed: such a worker
 * may have to be killed. */
bool nccl_comm_stuck(const struct gpu *g);
/* Ends p in good order. No communicator uses it. */
void nccl_comm_destroy(struct nccl_comm *p);
/* Until when to wait for an NCCL communicator that fits, and that all members of its user have
 * left. 0: there is none. */
uint64_t nccl_comm_due(const struct gpus *s, const struct nccl_comm_want *w);
/* The epoch is over and no task runs: back to the pool. *held is NULL afterwards. */
void nccl_comm_release(struct nccl_comm **held);
/* Aborts p: its epoch has ended, and what the GPUs still run may never end by itself. */
void nccl_comm_abort(struct nccl_comm *p, const char *why);
/* Tells the coordinator of the NCCL pool that this node no longer uses its part; or why the part is
 * broken, and because of which rank (-1: none). */
void nccl_comm_give_back(struct gpus *s, uint64_t serial, int result, int32_t rank);
void nccl_comm_gpu_lost(struct gpus *s, const struct gpu *g);
void nccl_comm_slot_failed(struct gpus *s, struct gpu *g, uint32_t slot, const char *text);
/* Destroys what was idle for too long, and lets aborts go on; returns the next deadline. */
uint64_t nccl_comm_expire(struct gpus *s, uint64_t now);
void nccl_comm_free_all(struct gpus *s);

#endif
