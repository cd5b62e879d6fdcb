/* SPDX-License-Identifier: Apache-2.0
 * What the files of the NCCL transport share. */
#ifndef TRANSPORT_NCCL_H
#define TRANSPORT_NCCL_H

#include "sched/state.h"

struct slot_progress;
struct launch;

extern const struct transport nccl_transport;

struct nccl {
	struct comm *launched;	    /* with tasks in flight */
	struct creation *creations; /* of this node alone, whose turn has not come */
	/* Bits, in that round of set_launch: what has no room there is not overtaken. */
	uint32_t full_devices;
	uint64_t full_round;
};

static inline struct nccl *nccl_of(const struct engine *e)
{
	return e->transport_state[TRANSPORT_NCCL];
}

/* launch.c */
struct slot_progress *nccl_progress(const struct engine *e, const struct member *m);
/* One of its launched tasks is over. */
void nccl_completed(struct engine *e, struct member *m);

/* completion.c: as in struct transport. */
/* Ends what the GPUs have done. */
bool nccl_poll(struct engine *e);
void nccl_epoch_end(struct engine *e, struct comm *c);
void nccl_dead(struct engine *e, struct comm *c);
void nccl_release(struct engine *e, struct comm *c);

/* creation.c */
/* Takes it. */
void creation_add(struct engine *e, struct creation *k);
/* If its turn has not come. */
void creation_cancel(struct engine *e, uint64_t number);
/* Launches those of this node alone. */
void creation_poll(struct engine *e);
void creation_finish(struct engine *e);

#endif
