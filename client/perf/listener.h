/* SPDX-License-Identifier: Apache-2.0
 * How the baseline's programs become members of a crew: each connects to a socket of ours. */
#ifndef PERF_DOOR_H
#define PERF_DOOR_H

#include "ranks.h"

struct door {
	int listener;
	char socket[96];
};

enum door_outcome {
	DOOR_ENTERED,
	DOOR_FAILED,  /* complained */
	DOOR_REFUSED, /* the leader ended before any rank came */
};

/* Listens for n members, who are made but not there yet. Complains and returns false if it can't.
 */
bool door_open(struct door *door, struct crew *crew, uint32_t n);
/* Lets all of them in, within the crew's timeout. */
enum door_outcome door_admit(struct door *door, struct crew *crew);
void door_close(struct door *door);

#endif
