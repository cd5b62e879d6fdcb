/* SPDX-License-Identifier: Apache-2.0
 * Rounds in which a process is killed. */
#ifndef TESTS_GPU_KILL_ROUNDS_H
#define TESTS_GPU_KILL_ROUNDS_H

#include <stdbool.h>

/* When the victim dies. */
enum when {
	IDLE = 1, /* no rank has any work */
	BETWEEN,  /* all submit small tasks, one after the other */
	WAITING,  /* the victim's tasks wait for the others */
	AWAITED,  /* the others' tasks wait for the victim */
	INSIDE,	  /* large collectives are running */
	TORN,	  /* as INSIDE, and the victim's session ends while its stream continues */
	FAULT,	  /* as AWAITED, and the victim has made an illegal memory access */
	END,
};

/* nodes: 0 for one daemon with all GPUs, else the number of daemons, with `each` GPUs. worker:
 * kills workers, not trainers. */
void failure_rounds(int nodes, int each, enum when when, bool worker);

#endif
