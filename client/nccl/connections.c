/* SPDX-License-Identifier: Apache-2.0
 * Streams that wait for the daemon occupy connections to the GPU, so the process should have as
 * many as possible. CUDA reads the variable when it initializes, which is later than this. */
#include <stdatomic.h>
#include <stdlib.h>

#include "dropin.h"
#include "proto/abi/cuda_connections.h"

#define MOST CUDA_CONNECTIONS_TEXT(CUDA_CONNECTIONS_MAX)

__attribute__((constructor)) static void ask_for_connections(void)
{
	setenv(CUDA_CONNECTIONS_VARIABLE, MOST, 0);
}

void connections_check(void)
{
	static atomic_bool checked;
	const char *text = getenv(CUDA_CONNECTIONS_VARIABLE);
	if (atomic_exchange(&checked, true) || !text || atoi(text) >= CUDA_CONNECTIONS_DEFAULT)
		return;
	warn(CUDA_CONNECTIONS_VARIABLE
	     "=%s: a stream that waits for an operation blocks others, and ranks may wait for each "
	     "other; unset it, or set it to " MOST,
	     text);
}
