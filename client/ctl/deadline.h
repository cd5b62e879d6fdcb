/* SPDX-License-Identifier: Apache-2.0
 * Ends the program when the daemon takes too long, whatever the library is waiting for. */
#ifndef CTL_DEADLINE_H
#define CTL_DEADLINE_H

#include <stdint.h>

/* Restarts the clock. Does nothing but exit when it runs out. */
void deadline_start(uint64_t ns);
void deadline_stop(void);
/* Milliseconds for a call that takes a timeout; at least 1. */
int deadline_ms(uint64_t ns);

#endif
