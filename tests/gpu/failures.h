/* SPDX-License-Identifier: Apache-2.0
 * Rounds in which somebody is killed. */
#ifndef TESTS_GPU_FAILURES_H
#define TESTS_GPU_FAILURES_H

#include <stdbool.h>

/* When somebody dies. */
enum when {
	IDLE = 1, /* nobody has anything to do */
	BETWEEN,  /* all submit small tasks, one after the other */
	WAITING,  /* the victim's tasks wait for the others */
	AWAITED,  /* the others' tasks wait for the victim */
	INSIDE,	  /* big collectives are under way */
	TORN,	  /* so, and the victim's session ends while its stream still goes on */
	FAULT,	  /* as AWAITED, and by an illegal access of its own */
	END,
};

/* nodes 0: on one daemon, with all GPUs. worker: a worker is killed, not a trainer. */
void failure_rounds(int nodes, int each, enum when when, bool worker);

#endif
