/* SPDX-License-Identifier: Apache-2.0 */
#include "no_memory.h"

#include <stdlib.h>

#include "log.h"

void no_memory(const char *what)
{
	log_error("out of memory for %s, without which the daemon cannot go on: it ends", what);
	log_flush();
	abort();
}
