/* SPDX-License-Identifier: Apache-2.0
 * Datagrams with file descriptors, and memfds that can be trusted. */
#ifndef PROTO_FDIO_H
#define PROTO_FDIO_H

#include <sys/types.h>

#include "svc_limits.h"
#include "wire.h"

#define SVC_FDS_KERNEL 253 /* in one message, at most (SCM_MAX_FD) */

/* Sends one message with up to SVC_FDS_MAX fds, which stay the caller's. Never raises SIGPIPE;
 * EINTR is retried. Returns 0 or -errno. flags: MSG_DONTWAIT or 0. */
int svc_send(int sock, const void *message, size_t length, const int *fds, unsigned nfds,
	     int flags);

/* Receives one message of at most size bytes. All fds that came are close-on-exec; up to
 * SVC_FDS_MAX go to fds and are the caller's, more are closed and counted in *nfds all the same.
 * Returns the length, 0 at the end of the connection, or -errno: -EMSGSIZE when the message or its
 * control data was cut (every fd is closed then). EINTR is retried. */
ssize_t svc_recv(int sock, void *message, size_t size, int *fds, unsigned *nfds, int flags);

/* The same, but all fds that came are the caller's, also where the message was cut (-EMSGSIZE). */
ssize_t svc_recv_all(int sock, void *message, size_t size, int fds[SVC_FDS_KERNEL], unsigned *nfds,
		     int flags);

/* Closes fds[0..n) and sets them to -1. */
void svc_close_fds(int *fds, unsigned n);

enum svc_fd_kind {
	SVC_FD_OTHER,
	SVC_FD_MEMORY, /* of shared memory or hugetlbfs: a memfd, or a file in a tmpfs */
	SVC_FD_CUDA,   /* NVIDIA's driver's */
};

/* Says of what kind a descriptor of unknown origin is, without asking any file system's server:
 * FUSE and NFS answer from what the kernel knows. Every other call on a descriptor that a user
 * chose may take as long as that user likes. A descriptor that was opened with O_PATH is of no
 * kind. */
enum svc_fd_kind svc_fd_kind(int fd);

/* Makes a memfd of the given size, sealed against shrinking and growing (and, if frozen, against
 * later seals). The caller's to close. Returns the fd or -errno. */
int svc_memfd_create(const char *name, size_t size, bool frozen);

/* The bytes that a memfd can ever have. */
uint64_t svc_memfd_limit(int fd);

/* True if fd is a memfd, not hugetlb, of at least `bytes`, that nobody can shrink: the only kind
 * whose mapping cannot fault under us. Else a sentence in text (SVC_TEXT_BYTES). */
bool svc_memfd_trusted(int fd, uint64_t bytes, char *text);

/* Does the file have as many pages as this many bytes need? A file that was only made long has
 * none: whoever touches it first allocates them, and has them counted in its control group. The
 * pages may lie elsewhere in the file, or be punched out later: this finds mistakes, it is no check
 * to rely on (daemon/base/fault.h). An exact one, by SEEK_HOLE, would wait as long as the file's
 * owner likes: he holds the inode's lock while he allocates or punches. */
bool svc_memfd_filled(int fd, uint64_t bytes);

/* Reads a regular file's first bytes, as many as there is room for: a caller that bounds the length
 * has room for one more. Waits for no other process. Returns how many there are, or -errno; -EISDIR
 * of all that is no regular file, nor /dev/null. */
ssize_t svc_read_file(const char *path, void *to, size_t size);

/* Allocates the pages of a writable mapping, and keeps what is in them. Returns 0 or -errno. */
int svc_populate(void *base, size_t bytes);

#endif
