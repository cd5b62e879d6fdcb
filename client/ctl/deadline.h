/* SPDX-License-Identifier: Apache-2.0
 * Ends the program when the daemon takes too long, whatever the library waits for. */
#ifndef CTL_DEADLINE_H
#define CTL_DEADLINE_H

#include <stdint.h>

/* Restarts the clock. When it runs out, the program exits. */
void deadline_start(uint64_t ns);
void deadline_stop(void);
/* The time in milliseconds, at least 1, for a call that takes a timeout. */
int deadline_ms(uint64_t ns);

#endif
