/* SPDX-License-Identifier: Apache-2.0
 * What device.c, landing.c and sequence.c share. */
#ifndef ENGINE_DEVICE_H
#define ENGINE_DEVICE_H

#include "sched/span.h"

/* Tasks that have met, and are not launched yet. */
struct meeting {
	struct meeting *prev, *next;
	struct comm *comm;
	struct crossing at; /* where, if with other nodes */
	struct wish *wish;  /* the sequencer knows; NULL: not yet, or it need not */
	uint32_t ntasks;
	struct task *tasks[];
};

/* device.c: one of its launched tasks is over. */
void device_land(struct engine *e, struct member *m);

#endif
