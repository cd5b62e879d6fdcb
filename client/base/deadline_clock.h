/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_BASE_DEADLINE_CLOCK_H
#define CLIENT_BASE_DEADLINE_CLOCK_H

#include <stdint.h>

#define NO_DEADLINE UINT64_MAX
#define REQUEST_MS  10000 /* deadline of a request that the daemon answers on its own */

uint64_t now_ns(void);
/* A negative timeout means NO_DEADLINE. */
uint64_t deadline_in(int timeout_ms);
/* Milliseconds for poll, rounded up: -1 for NO_DEADLINE, 0 once the deadline has passed. */
int deadline_left_ms(uint64_t deadline);
/* The timeout as messages carry it. 0 means none there, so "do not wait" becomes one nanosecond. */
uint64_t timeout_on_wire(int timeout_ms);

#endif
