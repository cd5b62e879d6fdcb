/* SPDX-License-Identifier: Apache-2.0
 * Messages waiting in a connection's socket, which may bring descriptors whose close takes as long
 * as their user wants. */
#ifndef SESSION_WAITING_MESSAGES_H
#define SESSION_WAITING_MESSAGES_H

struct account;

/* Closes the connection, which is no longer read: at once if no descriptors wait in it, otherwise
 * in its user's thread. So connections queue behind a blocked close only if each holds a descriptor
 * that the kernel charges to their user (RLIMIT_NOFILE limits descriptors in flight). */
void connection_close(struct account *a, int fd);
/* May the next message be received? It may bring SVC_FDS_KERNEL descriptors, which this process
 * would hold open. Returns 0; -EAGAIN: there is no message; -EMFILE: it brings descriptors that
 * might exceed the user's share, as text says. */
int connection_may_read(struct account *a, int fd, char *text);

#endif
