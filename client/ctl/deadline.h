/* SPDX-License-Identifier: Apache-2.0
 * Ends the program when the daemon takes too long, whatever the library waits for. */
#ifndef CTL_DEADLINE_H
#define CTL_DEADLINE_H

#include <stdint.h>

/* Restarts the clock. After 2 s it says what the process of the daemon at this socket (NULL: the
 * library's choice) is doing, and exits if that one is stopped; else it exits when the time is up.
 */
void deadline_start(uint64_t ns, const char *socket);
void deadline_stop(void);
/* The time in milliseconds, at least 1, for a call that takes a timeout. */
int deadline_ms(uint64_t ns);

#endif
