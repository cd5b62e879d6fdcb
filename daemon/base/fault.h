/* SPDX-License-Identifier: Apache-2.0
 *
 * An access to memory that clients share with the daemon can fault: a client may punch a hole into
 * it, or a page may be damaged. The kernel raises SIGBUS, also for holes, since the daemon uses
 * userfaultfd(2) to prevent page allocation in a client's memory, which would be charged to the
 * daemon. Such a fault ends the session that owns the memory, not the daemon. The signal handler
 * maps other pages over the mapping, and the scheduler checks here before it trusts a result.
 * Wayland compositors handle their clients' buffers the same way.
 */
#ifndef DAEMON_FAULT_H
#define DAEMON_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reserves room for this many mappings. The replacement pages have sink_bytes in total, a multiple
 * of the page size. The signal handler calls notify. Call once per process; returns 0 or -errno. */
int fault_start(uint32_t room, size_t sink_bytes, void (*notify)(void *arg), void *arg);
void fault_stop(void);

/* The most system mappings (vm.max_map_count) that a mapping of this many bytes can split into,
 * wherever it faults. They are counted before it is created, so that the handler's mmap cannot
 * fail. */
uint32_t fault_mappings(size_t bytes);

/* Watches a mapping until fault_unwatch, which must come before munmap. filled: all its pages
 * exist, and none may be allocated (where the system has userfaultfd). Returns its number, or 0 if
 * there is no room; then the mapping must not be used, since a fault in it would end the process.
 */
uint32_t fault_watch(void *base, size_t bytes, bool filled, uint32_t owner);
void fault_unwatch(uint32_t number);

/* Has any watched mapping failed? Any thread; cheap. */
extern _Atomic uint32_t fault_count;
static inline bool fault_any(void)
{
	return atomic_load_explicit(&fault_count, memory_order_relaxed);
}
/* Has this watched mapping failed? 0 stands for no mapping. Any thread; cheap. */
bool fault_failed(uint32_t number);
/* Returns the next mapping that has failed since notify, and its owner, each once; 0: no more. */
uint32_t fault_next(uint32_t *owner);

#endif
