/* SPDX-License-Identifier: Apache-2.0
 * A stream that waits for the daemon holds one of its process's connections to the GPU. While all
 * are held, no other stream can begin anything: compute waits for communication, and ranks may wait
 * for each other. There are 8, but 2 through MPS, unless CUDA_DEVICE_MAX_CONNECTIONS says otherwise
 * (1 to 32; measured with CUDA 13.0). CUDA reads that when it is initialized, later than this. */
#include <stdatomic.h>
#include <stdlib.h>

#include "dropin.h"

#define VARIABLE "CUDA_DEVICE_MAX_CONNECTIONS"
#define FEW	 8

__attribute__((constructor)) static void ask_for_connections(void)
{
	setenv(VARIABLE, "32", 0);
}

void connections_check(void)
{
	static atomic_bool checked;
	const char *text = getenv(VARIABLE);
	if (atomic_exchange(&checked, true) || !text || atoi(text) >= FEW)
		return;
	warn(VARIABLE
	     "=%s: a stream that waits for an operation holds up others, and ranks may wait "
	     "for each other; unset it, or set it to 32",
	     text);
}
