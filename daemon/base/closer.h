/* SPDX-License-Identifier: Apache-2.0
 *
 * Closes file descriptors and unmaps memory that came from a client, in a thread. The last close of
 * a socket with SO_LINGER, of a file of the client's own file system (FUSE), or of a memfd of
 * gigabytes can take as long as the client wants, and must not delay other users. Each user has a
 * closer, which works in FIFO order.
 */
#ifndef DAEMON_CLOSER_H
#define DAEMON_CLOSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct closer;

enum closer_kind { CLOSER_FD, CLOSER_REGION, CLOSER_RING, CLOSER_KINDS };

/* A number of descriptors or mappings, closed or still to be closed. */
struct closer_amount {
	uint64_t n; /* descriptors, or the user's charge for a mapping */
	uint64_t bytes;
};

/* closed is called once after closer_busy, when no work is left, and when the thread ends; the
 * thread calls it, or the caller that added the last job. It is not called after closer_end.
 * Returns NULL if out of memory. */
struct closer *closer_create(void (*closed)(void *arg), void *arg);
/* No more work will be added; the thread ends when it has finished. Does not wait for it. */
void closer_end(struct closer *c);
/* Ends the closer, and waits for its thread until the deadline. A close that blocks longer
 * continues, and the jobs behind it still run. The closer may be NULL. */
void closer_destroy(struct closer *c, uint64_t until_ns);
/* Is there a thread that closer_destroy would wait for? */
bool closer_running(struct closer *c);
/* Takes the descriptors. If no thread can be created, this and closer_unmap work synchronously. */
void closer_add(struct closer *c, const int *fds, unsigned n);
/* Takes a mapping for which the user was charged n. */
void closer_unmap(struct closer *c, enum closer_kind kind, void *base, size_t bytes, uint64_t n);
/* Is work left, or finished but not yet returned by closer_closed? Then closed is called after the
 * next job, or has been called already. */
bool closer_busy(struct closer *c);
/* Returns what was closed since the last call. */
void closer_closed(struct closer *c, struct closer_amount closed[CLOSER_KINDS]);

#endif
