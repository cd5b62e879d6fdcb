/* SPDX-License-Identifier: Apache-2.0
 * What the files of the NCCL transport share. */
#ifndef TRANSPORT_NCCL_H
#define TRANSPORT_NCCL_H

#include "sched/state.h"

struct slot_progress;
struct launch;

extern const struct transport nccl_transport;

struct nccl {
	struct comm *launched; /* with tasks in flight, or windows that come or go */
	struct windows *windowed;
	struct creation *creations; /* of this node alone, whose turn has not come */
	uint32_t windows_failed;    /* to be registered, since one was; with too many, none is */
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
/* The next launch of a member: all zero but for its slot and seq. device_ring follows. */
struct launch *nccl_next_launch(struct engine *e, struct member *m);
/* nccl_poll is to look at it. */
void nccl_watch(struct engine *e, struct comm *c);
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

/* window.c */
/* Matched tasks, by rank, are about to be launched: sets their windows. */
void window_choose(struct engine *e, struct comm *c, struct task *const *tasks, uint32_t ntasks);
void window_completed(const struct task *t);

/* window_life.c */
/* Lets windows come and go. in_flight: tasks are. True: it is not over. */
bool window_step(struct engine *e, struct comm *c, bool in_flight);
void window_region_gone(struct engine *e, const struct region *r);
/* No collective of all members will come any more. */
void window_leave(struct engine *e, struct comm *c);
/* They are gone, with NCCL's communicator if with nothing else. */
void window_free(struct engine *e, struct comm *c);
void window_finish(struct engine *e);

#endif
