/* SPDX-License-Identifier: Apache-2.0
 * A rank's process, which executes orders. */
#ifndef TESTS_WORKERS_RANK_H
#define TESTS_WORKERS_RANK_H

#include "workers.h"

void rank_main(struct client *c);
/* Reports how much of its GPU's memory is unused. */
void unused_main(struct client *c);

#endif
