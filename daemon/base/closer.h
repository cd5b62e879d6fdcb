/* SPDX-License-Identifier: Apache-2.0
 *
 * Closes file descriptors and unmaps memory that came from a client, in a thread. The last close of
 * a socket with SO_LINGER, of a file of the client's own file system (FUSE), or of a memfd of
 * gigabytes takes as long as the client likes: that must not delay other users. Each user has a
 * closer. It works in the order in which things were given to it.
 */
#ifndef DAEMON_CLOSER_H
#define DAEMON_CLOSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct closer;

enum closer_kind { CLOSER_FD, CLOSER_REGION, CLOSER_RING, CLOSER_KINDS };

/* An amount of descriptors or mappings, closed or yet to be closed. */
struct closer_amount {
	uint64_t n; /* descriptors, or what the user was charged for a mapping */
	uint64_t bytes;
};

/* closed is called when nothing is left to be done, once after closer_busy, and when the thread
 * ends; by the thread or by whoever added the last; not after closer_end. NULL: out of memory. */
struct closer *closer_create(void (*closed)(void *arg), void *arg);
/* Nothing more will be added: the thread ends when nothing is left. Does not wait for it. */
void closer_end(struct closer *c);
/* Ends it, and waits for its thread until then. A close that blocks longer goes on, and the jobs
 * behind it are done all the same. The closer may be NULL. */
void closer_destroy(struct closer *c, uint64_t until_ns);
/* Is there a thread, which closer_destroy would wait for? */
bool closer_running(struct closer *c);
/* Takes the descriptors. Where no thread can be made, this and closer_unmap do it at once. */
void closer_add(struct closer *c, const int *fds, unsigned n);
/* Takes a mapping, for which the user was charged n. */
void closer_unmap(struct closer *c, enum closer_kind kind, void *base, size_t bytes, uint64_t n);
/* Is something left to be done, or was something done that closer_closed has not returned? Then
 * closed is called when the next is done, or it was called. */
bool closer_busy(struct closer *c);
/* Returns the amounts that were closed since the last call. */
void closer_closed(struct closer *c, struct closer_amount closed[CLOSER_KINDS]);

#endif
