/* SPDX-License-Identifier: Apache-2.0
 * The server's scheduler, without a thread of its own. */
#ifndef THREADLESS_SCHEDULER_H
#define THREADLESS_SCHEDULER_H

#include <stdbool.h>

/* Does all pending work. */
void fuzz_settle(void);
/* Returns whether the supervisor has events to read, or the scheduler has commands. */
bool fuzz_has_more(void);

#endif
