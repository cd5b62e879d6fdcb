/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that clients share with the daemon can fail under it: a client has punched a hole into it,
 * or a page is damaged. The system's answer is SIGBUS, also for holes, since the daemon refuses, by
 * userfaultfd(2), to allocate pages in a client's memory: they would be charged to the daemon. Such
 * a fault ends the session that the memory belongs to, and not the daemon. The handler puts other
 * pages in the place, and the scheduler asks here before it believes what it has computed.
 * Wayland's compositors treat their clients' buffers alike.
 */
#ifndef DAEMON_FAULT_H
#define DAEMON_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room for so many mappings. The pages that replace others have sink_bytes, whole pages, in all.
 * notify is called by the signal's handler. Once in a process; returns 0 or -errno. */
int fault_start(uint32_t room, size_t sink_bytes, void (*notify)(void *arg), void *arg);
void fault_stop(void);

/* How many of the system's mappings (vm.max_map_count) a mapping of so many bytes takes at most,
 * whatever of it fails. They are counted before it is made: the handler's mmap cannot fail then. */
uint32_t fault_mappings(size_t bytes);

/* Watches a mapping until fault_unwatch, which goes before it is unmapped. filled: all of its pages
 * are there, and none is to be allocated (where the system has userfaultfd). Returns its number, 0
 * if there is no room: a fault in it would end the process, so it must not be used. */
uint32_t fault_watch(void *base, size_t bytes, bool filled, uint32_t owner);
void fault_unwatch(uint32_t number);

/* Has anything failed that is still watched? Any thread; cheap. */
extern _Atomic uint32_t fault_count;
static inline bool fault_any(void)
{
	return atomic_load_explicit(&fault_count, memory_order_relaxed);
}
/* Has this mapping, which is watched, failed? 0: there is none. Any thread; cheap. */
bool fault_failed(uint32_t number);
/* The next mapping that has failed since notify, and its owner; each is returned once. 0: no more
 * has. */
uint32_t fault_next(uint32_t *owner);

#endif
