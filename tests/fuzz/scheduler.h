/* SPDX-License-Identifier: Apache-2.0
 * The server's scheduler, without a thread of its own. */
#ifndef FUZZ_SCHEDULER_H
#define FUZZ_SCHEDULER_H

#include <stdbool.h>

/* Does what there is to do now. */
void scheduler_settle(void);
/* The supervisor has events to read, or it has left commands. */
bool scheduler_has_more(void);

#endif
