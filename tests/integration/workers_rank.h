/* SPDX-License-Identifier: Apache-2.0
 * A rank's process: it does what it is told. */
#ifndef TESTS_WORKERS_RANK_H
#define TESTS_WORKERS_RANK_H

#include "workers.h"

void rank_main(struct client *c);
/* Says how much memory of its GPU is unused. */
void unused_main(struct client *c);

#endif
