/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <time.h>

#include "deadline_clock.h"

uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

uint64_t deadline_in(int timeout_ms)
{
	return timeout_ms < 0 ? NO_DEADLINE : now_ns() + (uint64_t)timeout_ms * 1000000;
}

int deadline_left_ms(uint64_t deadline)
{
	if (deadline == NO_DEADLINE)
		return -1;
	uint64_t now = now_ns();
	if (now >= deadline)
		return 0;
	uint64_t ms = (deadline - now + 999999) / 1000000;
	return ms > INT_MAX ? INT_MAX : (int)ms;
}

uint64_t timeout_on_wire(int timeout_ms)
{
	if (timeout_ms < 0)
		return 0;
	return timeout_ms ? (uint64_t)timeout_ms * 1000000 : 1;
}
