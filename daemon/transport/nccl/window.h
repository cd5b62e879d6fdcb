/* SPDX-License-Identifier: Apache-2.0
 * What window.c and window_life.c share. */
#ifndef ENGINE_WINDOW_H
#define ENGINE_WINDOW_H

#include "abi/worker_queue.h"
#include "nccl.h"

#define WINDOWS_SEEN	32 /* that are counted */
#define WINDOW_FAILURES 3  /* one after the other: then this machine has none */

enum stage {
	SEEN,	  /* uses are counted */
	REFUSED,  /* the workers could not: not to be asked again */
	WANTED,	  /* from here on, it has a slot */
	PREPARED, /* by all workers */
	READY,
	LEAVING,
};

struct window {
	enum stage stage;
	bool refused; /* while leaving: why */
	uint32_t uses, in_flight;
	uint64_t since, used; /* in choices of the communicator */
	uint64_t left_ns;     /* since when it is leaving */
	uint64_t bytes;
	struct window_part {
		uint64_t lent; /* as in struct region */
		uint64_t base;
	} parts[]; /* by rank */
};

struct windows {
	struct windows *prev, *next;
	struct comm *comm;
	uint64_t choices;
	struct window *slots[WORKER_WINDOWS]; /* as the workers count them */
	struct window *seen[WINDOWS_SEEN];
	bool off;      /* there will be no more */
	uint8_t asked; /* LAUNCH_*, of all workers, and not done by all; 0: nothing */
	uint32_t slot;
	uint64_t seqs[]; /* by rank: of the launch */
};

/* window_life.c: it goes, when it can. */
void window_go(const struct engine *e, struct window *w);

#endif
