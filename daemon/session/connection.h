/* SPDX-License-Identifier: Apache-2.0
 * What waits in a connection's socket: messages may bring descriptors whose close takes as long as
 * their user likes. */
#ifndef SESSION_CONNECTION_H
#define SESSION_CONNECTION_H

struct account;

/* Closes the connection, which nobody reads any more: at once if no descriptors wait in it, else in
 * its user's thread. So connections queue behind a blocked close only if each holds a descriptor
 * that the kernel counts for their user (RLIMIT_NOFILE of descriptors in flight). */
void connection_close(struct account *a, int fd);
/* May the next message be received? It may bring SVC_FDS_KERNEL descriptors, which would be open
 * here. Returns 0; -EAGAIN: there is none; -EMFILE: it brings some, and the user's share might be
 * passed, as text says. */
int connection_may_read(struct account *a, int fd, char *text);

#endif
