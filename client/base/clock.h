/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_BASE_CLOCK_H
#define CLIENT_BASE_CLOCK_H

#include <stdint.h>

#define NO_DEADLINE UINT64_MAX
#define REQUEST_MS  10000 /* for an answer that the daemon gives alone */

uint64_t now_ns(void);
/* Negative: NO_DEADLINE. */
uint64_t deadline_in(int timeout_ms);
/* For poll: -1 for NO_DEADLINE, 0 when it has passed, rounded up. */
int deadline_left_ms(uint64_t deadline);
/* As a message says it: 0 is none, so "do not wait" becomes one nanosecond. */
uint64_t timeout_on_wire(int timeout_ms);

#endif
