/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that clients share with the daemon can fail under it: a client has punched a hole into it,
 * or a page is damaged. The system's answer is SIGBUS, also for holes, since the daemon refuses, by
 * userfaultfd(2), to allocate pages in a client's memory: they would be charged to the daemon. Such
 * a fault ends the session that the memory belongs to, and not the daemon. The handler puts other
 * pages in the place, and the engine asks here before it believes what it has computed. Wayland's
 * compositors treat their clients' buffers alike.
 */
#ifndef DAEMON_FAULT_H
#define DAEMON_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room for so many mappings. notify is called by the signal's handler. Once in a process; returns 0
 * or -errno. */
int fault_start(uint32_t room, void (*notify)(void *arg), void *arg);
void fault_stop(void);

/* Watches a mapping until fault_unwatch, which goes before it is unmapped. filled: all of its pages
 * are there, and none is to be allocated (where the system has userfaultfd). Returns its number, 0
 * if there is no room: then a fault in it ends the process. One thread calls both. */
uint32_t fault_watch(void *base, size_t bytes, bool filled);
void fault_unwatch(uint32_t number);

/* Has anything failed that is still watched? Any thread; cheap. */
extern _Atomic uint32_t fault_count;
static inline bool fault_any(void)
{
	return atomic_load_explicit(&fault_count, memory_order_relaxed);
}
/* Has the mapping that holds this address failed? Any thread; looks at all mappings. */
bool fault_at(const void *address);

#endif
