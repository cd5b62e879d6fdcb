/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocations that must not fail, and the reserve behind them. A client's request may fail when
 * memory runs out. The consequences of an admitted request may not: a command or an event between
 * the two threads, or a message to another node. The other side would wait for it, or go on without
 * it.
 *
 * So the process holds a reserve. If an allocation here fails, it releases a piece of the reserve
 * and tries again. While a piece is missing, the daemon admits nothing that takes memory: requests
 * (request.c), connections, communicators, rings, regions and waiting replies
 * (account_memory_left). Each of them first tries to refill the reserve.
 *
 * The reserve has 64 MiB. It must cover all allocations after admission has stopped, which end
 * everything that was admitted, even if the scheduler frees nothing meanwhile. A command and its
 * event take 368 bytes, and a region's entry in the queue for munmap takes 64. With the default
 * limits this is 33 MB: 4,096 sessions, the start and the end of 4,096 epochs, and 65,530 regions
 * (vm.max_map_count). The rest is for members that leave (176 bytes, room for 200,000), and for
 * messages about failed collectives to other nodes (at most 700 bytes, room for 50,000). MPI sends
 * and then frees these; nothing else bounds them. The reserve's pages are never touched, so it
 * costs address space, not memory. The process aborts only when the reserve is used up, too.
 */
#ifndef DAEMON_NOFAIL_H
#define DAEMON_NOFAIL_H

#include <stdbool.h>
#include <stddef.h>

#define NOFAIL_RESERVE_BYTES ((size_t)64 << 20)

/* Is the reserve whole? Refills it first if it can. Any thread; cheap if it is whole. */
bool nofail_reserve_fill(void);
/* Frees the reserve, for tests. */
void nofail_reserve_free(void);

/* Like realloc(3) and calloc(3), but never return NULL: if the reserve is used up, the process
 * aborts with a core dump, and the log says which allocation failed. Any thread. */
void *nofail_realloc(void *p, size_t bytes, const char *what);
void *nofail_calloc(size_t n, size_t bytes, const char *what);

static inline void *nofail_malloc(size_t bytes, const char *what)
{
	return nofail_realloc(NULL, bytes, what);
}

#endif
