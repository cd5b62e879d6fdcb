/* SPDX-License-Identifier: Apache-2.0 */
#include "no_memory.h"

#include <stdlib.h>

#include "log.h"

void no_memory(const char *what)
{
	log_error(
		"out of memory for %s, without which nothing can be kept in order: the daemon ends",
		what);
	log_flush();
	abort();
}
