/* SPDX-License-Identifier: Apache-2.0
 * What is said of a communicator before it has begun here. */
#ifndef SCHED_EARLY_H
#define SCHED_EARLY_H

#include "span.h"

/* For a communicator that this node is about to hear of. */
void early_keep(struct engine *e, const struct span_header *h, const char *body, int node);
/* Takes what came before the communicator did, and gives it up if something of that is lost. */
void early_hear(struct engine *e, struct comm *c);
void early_expire(struct engine *e);
void early_finish(struct engine *e);

#endif
