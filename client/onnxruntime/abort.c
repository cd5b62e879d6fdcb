/* SPDX-License-Identifier: Apache-2.0
 * Ends what the process waits for. ONNX Runtime does not show RunOptions.terminate to custom
 * operators, so programs call this library. */
#include <stdatomic.h>
#include <time.h>

#include "interrupt/interrupt.h"
#include "ort.h"

static atomic_uint aborts;

void ncclsvc_ort_abort(void)
{
	atomic_fetch_add(&aborts, 1);
}

struct timespec abort_look(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_nsec += ABORT_LOOK_MS * 1000000;
	t.tv_sec += t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	return t;
}

unsigned abort_mark(void)
{
	return atomic_load(&aborts);
}

bool abort_came(unsigned mark)
{
	if (interrupt_is_python() && interrupt_is_noted())
		ncclsvc_ort_abort();
	return atomic_load(&aborts) != mark;
}
