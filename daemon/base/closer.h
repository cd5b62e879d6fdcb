/* SPDX-License-Identifier: Apache-2.0
 *
 * Closes file descriptors that came from a client, in a thread. The last close of a socket with
 * SO_LINGER, of a file of the client's own file system (FUSE), or of a memfd of gigabytes takes as
 * long as the client likes: that must not delay other users. Each user has a closer.
 */
#ifndef DAEMON_CLOSER_H
#define DAEMON_CLOSER_H

#include <stdint.h>

struct closer;

/* NULL: out of memory. */
struct closer *closer_create(void);
/* Descriptors that still wait are closed all the same. The closer may be NULL. */
void closer_destroy(struct closer *c);
/* Takes the descriptors. Where no thread can be made, they are closed at once. */
void closer_add(struct closer *c, const int *fds, unsigned n);
/* How many it has closed since this was asked before. */
uint32_t closer_closed(struct closer *c);

#endif
