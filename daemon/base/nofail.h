/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocations that must not fail, and the reserve behind them. A request of a client may fail for
 * want of memory. What an admitted request leads to may not: a command or an event between the two
 * threads, a message to another node. The other side would wait for it, or go on without it.
 *
 * So the process holds a reserve. An allocation here that fails releases a piece of it and tries
 * again. While a piece is missing, nothing is admitted that takes memory: requests (request.c),
 * connections, communicators, rings, regions and waiting replies (account_memory_left). Each of
 * them first tries to fill the reserve again.
 *
 * The reserve has 64 MiB. It must cover what is allocated here after admission has stopped: what
 * ends the things that were admitted, if the scheduler runs none of it meanwhile. A command and its
 * event take 368 bytes, and a region's entry in the queue of what is to be unmapped 64. With the
 * default limits there are 4,096 sessions, the start and the end of 4,096 epochs, and 65,530
 * regions (vm.max_map_count) that may end: 33 MB. The rest is for members
 * that leave (176 bytes, room for 200,000), and for the messages of failed collectives to other
 * nodes (at most 700 bytes, room for 50,000), which are freed when MPI has sent them; those have no
 * other bound. The reserve's pages are not touched: it costs address space, not memory. Only when
 * it is used up, too, does the process end itself.
 */
#ifndef DAEMON_NOFAIL_H
#define DAEMON_NOFAIL_H

#include <stdbool.h>
#include <stddef.h>

#define NOFAIL_RESERVE_BYTES ((size_t)64 << 20)

/* Is the reserve whole? Fills it first, as far as there is memory. Any thread; cheap if it is. */
bool nofail_reserve_fill(void);
/* Gives the reserve back, for tests. */
void nofail_reserve_free(void);

/* As realloc(3) and calloc(3), but never NULL: if the reserve is used up, the process ends with a
 * core, and the log says what for there is no memory. Any thread. */
void *nofail_realloc(void *p, size_t bytes, const char *what);
void *nofail_calloc(size_t n, size_t bytes, const char *what);

static inline void *nofail_malloc(size_t bytes, const char *what)
{
	return nofail_realloc(NULL, bytes, what);
}

#endif
