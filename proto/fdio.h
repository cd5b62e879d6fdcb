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

/* Receives one message of at most size bytes. All received fds are close-on-exec; up to SVC_FDS_MAX
 * go to fds and are the caller's. Others are closed, but also counted in *nfds. Returns the length,
 * 0 at the end of the connection, or -errno: -EMSGSIZE if the message or its control data was
 * truncated (then every fd is closed). EINTR is retried. */
ssize_t svc_recv(int sock, void *message, size_t size, int *fds, unsigned *nfds, int flags);

/* The same, but the caller owns all received fds, even if the message was truncated (-EMSGSIZE). */
ssize_t svc_recv_all(int sock, void *message, size_t size, int fds[SVC_FDS_KERNEL], unsigned *nfds,
		     int flags);

/* Closes fds[0..n) and sets them to -1. */
void svc_close_fds(int *fds, unsigned n);

enum svc_fd_kind {
	SVC_FD_OTHER,
	SVC_FD_MEMORY, /* of shared memory or hugetlbfs: a memfd, or a file in a tmpfs */
	SVC_FD_CUDA,   /* of NVIDIA's driver */
};

/* Determines the kind of a descriptor of unknown origin without contacting any file system's
 * server: FUSE and NFS answer from cached state. Any other call on a descriptor that a user chose
 * may take as long as that user wants. A descriptor opened with O_PATH has no kind. */
enum svc_fd_kind svc_fd_kind(int fd);

/* Creates a memfd of the given size, sealed against shrinking and growing (and, if frozen, against
 * later seals). The caller must close it. Returns the fd or -errno. */
int svc_memfd_create(const char *name, size_t size, bool frozen);

/* The largest size that a memfd can ever have. */
uint64_t svc_memfd_limit(int fd);

/* True if fd is a memfd, not hugetlb, of at least `bytes`, and sealed against shrinking: the only
 * kind whose mapping cannot be truncated under us. Otherwise writes a sentence to text
 * (SVC_TEXT_BYTES). */
bool svc_memfd_trusted(int fd, uint64_t bytes, char *text);

/* Does the file have as many pages as this many bytes need? A file that was only extended has none:
 * the first process to touch a page allocates it, charged to its control group. The pages may lie
 * elsewhere in the file, or be punched out later, so this finds mistakes but gives no guarantee
 * (daemon/base/fault.h does). An exact check, with SEEK_HOLE, could wait as long as the file's
 * owner wants, who holds the inode's lock while allocating or punching. */
bool svc_memfd_filled(int fd, uint64_t bytes);

/* Reads the first bytes of a regular file, up to the given size; to enforce a maximum length, pass
 * a buffer of one byte more. Does not wait for other processes. Returns the number of bytes, or
 * -errno; -EISDIR for anything but a regular file or /dev/null. */
ssize_t svc_read_file(const char *path, void *to, size_t size);
/* The same as a string of less than `size` bytes. False: there is nothing, or it can't be read. */
bool svc_read_text(const char *path, char *text, size_t size);

/* Allocates the pages of a writable mapping, and keeps their contents. Returns 0 or -errno. */
int svc_populate(void *base, size_t bytes);

#endif
