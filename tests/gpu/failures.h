/* SPDX-License-Identifier: Apache-2.0
 * Rounds in which a process is killed. */
#ifndef TESTS_GPU_FAILURES_H
#define TESTS_GPU_FAILURES_H

#include <stdbool.h>

/* When the victim dies. */
enum when {
	IDLE = 1, /* no rank has any work */
	BETWEEN,  /* all submit small tasks, one after the other */
	WAITING,  /* the victim's tasks wait for the others */
	AWAITED,  /* the others' tasks wait for the victim */
	INSIDE,	  /* large collectives are running */
	TORN,	  /* the same, and the victim's session ends while its stream continues */
	FAULT,	  /* as AWAITED, by an illegal access of its own */
	END,
};

/* nodes 0: on one daemon, with all GPUs. worker: kills a worker instead of a trainer. */
void failure_rounds(int nodes, int each, enum when when, bool worker);

#endif
