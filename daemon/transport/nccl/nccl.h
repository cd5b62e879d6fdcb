/* SPDX-License-Identifier: Apache-2.0
 * Shared by the files of the NCCL transport. */
#ifndef TRANSPORT_NCCL_H
#define TRANSPORT_NCCL_H

#include "sched/base/state.h"

struct slot_progress;
struct launch;

extern const struct transport nccl_transport;

struct nccl {
	struct comm *launched;	    /* with tasks in flight */
	struct creation *creations; /* on this node alone, waiting for their turn */
	/* Bitmaps, for this round of launch_sets: later launches must not overtake one that has no
	 * room there. */
	uint32_t full_devices;
	uint64_t full_round;
};

static inline struct nccl *nccl_of(const struct scheduler *sched)
{
	return sched->transport_state[TRANSPORT_NCCL];
}

/* launch.c */
struct slot_progress *nccl_progress(const struct scheduler *sched, const struct member *m);
/* One of its launched tasks has ended. */
void nccl_completed(struct scheduler *sched, struct member *m);

/* completion.c: as in struct transport. */
/* Ends the tasks that the GPUs have completed. */
bool nccl_poll(struct scheduler *sched);
bool nccl_runs(struct scheduler *sched);
void nccl_epoch_end(struct scheduler *sched, struct comm *c);
void nccl_dead(struct scheduler *sched, struct comm *c);
void nccl_release(struct scheduler *sched, struct comm *c);

/* creation.c */
/* Takes ownership of it. */
void creation_add(struct scheduler *sched, struct creation *k);
/* Cancels it, if its turn has not come. */
void creation_cancel(struct scheduler *sched, uint64_t number);
/* Launches the creations of this node alone. */
void creation_poll(struct scheduler *sched);
void creation_finish(struct scheduler *sched);

#endif
