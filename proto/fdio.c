/* SPDX-License-Identifier: Apache-2.0 */
#include "fdio.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

union control {
	char bytes[CMSG_SPACE(sizeof(int) * SVC_FDS_KERNEL)];
	struct cmsghdr align;
};

int svc_send(int sock, const void *message, size_t length, const int *fds, unsigned nfds, int flags)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * SVC_FDS_MAX)];
		struct cmsghdr align;
	} control;
	struct iovec iov = {(void *)message, length};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	if (nfds > SVC_FDS_MAX)
		return -EINVAL;
	if (nfds) {
		memset(&control, 0, sizeof(control));
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * nfds);
	}
	for (;;) {
		ssize_t n = sendmsg(sock, &msg, flags | MSG_NOSIGNAL);
		if (n >= 0)
			return (size_t)n == length ? 0 : -EMSGSIZE;
		if (errno != EINTR)
			return -errno;
	}
}

static void take_fds(struct msghdr *msg, int *fds, unsigned *nfds)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n && *nfds < SVC_FDS_KERNEL; i++)
			memcpy(&fds[(*nfds)++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
	}
}

ssize_t svc_recv_all(int sock, void *message, size_t size, int fds[SVC_FDS_KERNEL], unsigned *nfds,
		     int flags)
{
	union control control;
	struct iovec iov = {message, size};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	ssize_t n;
	*nfds = 0;
	do
		n = recvmsg(sock, &msg, flags | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	take_fds(&msg, fds, nfds);
	return msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? -EMSGSIZE : n;
}

ssize_t svc_recv(int sock, void *message, size_t size, int *fds, unsigned *nfds, int flags)
{
	int all[SVC_FDS_KERNEL];
	ssize_t n = svc_recv_all(sock, message, size, all, nfds, flags);
	const unsigned kept = n == -EMSGSIZE ? 0 : *nfds < SVC_FDS_MAX ? *nfds : SVC_FDS_MAX;
	memcpy(fds, all, kept * sizeof(*fds));
	svc_close_fds(all + kept, *nfds - kept);
	if (n == -EMSGSIZE)
		*nfds = 0;
	return n;
}

void svc_close_fds(int *fds, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
}

/* The character device of exported GPU memory, /dev/nvidiactl: 195 by convention. */
static unsigned nvidia_major = 195;

static void read_nvidia_major(void)
{
	char line[128], name[64];
	unsigned major_number;
	FILE *f = fopen("/proc/devices", "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%u %63s", &major_number, name) == 2 &&
		    (!strcmp(name, "nvidiactl") || !strcmp(name, "nvidia-frontend")))
			nvidia_major = major_number;
	if (f)
		fclose(f);
}

enum svc_fd_kind svc_fd_kind(int fd)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct statx st;
	if (fcntl(fd, F_GET_SEALS) >= 0)
		return SVC_FD_MEMORY;
	const int flags = fcntl(fd, F_GETFL);
	if (flags < 0 || flags & O_PATH ||
	    statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) ||
	    !S_ISCHR(st.stx_mode))
		return SVC_FD_OTHER;
	pthread_once(&once, read_nvidia_major);
	return st.stx_rdev_major == nvidia_major ? SVC_FD_CUDA : SVC_FD_OTHER;
}

int svc_memfd_create(const char *name, size_t size, bool frozen)
{
	int seals = F_SEAL_SHRINK | F_SEAL_GROW | (frozen ? F_SEAL_SEAL : 0);
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)size) < 0 || fcntl(fd, F_ADD_SEALS, seals) < 0) {
		int error = errno;
		close(fd);
		return -error;
	}
	return fd;
}

bool svc_memfd_trusted(int fd, uint64_t bytes, char *text)
{
	struct stat st;
	struct statfs fs;
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0) {
		snprintf(text, SVC_TEXT_BYTES, "the region's fd is not a memfd");
		return false;
	}
	if (!(seals & F_SEAL_SHRINK)) {
		snprintf(text, SVC_TEXT_BYTES,
			 "the memfd is not sealed with F_SEAL_SHRINK, so its owner could truncate "
			 "it");
		return false;
	}
	if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) {
		snprintf(text, SVC_TEXT_BYTES, "the memfd is sealed against writing");
		return false;
	}
	if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
		snprintf(text, SVC_TEXT_BYTES,
			 "the memfd's descriptor is not open for reading and writing: pass the one "
			 "of "
			 "memfd_create, or one that was opened with O_RDWR");
		return false;
	}
	/* A hugetlb page that is not available raises SIGBUS on access. */
	if (fstatfs(fd, &fs) < 0 || fs.f_type != TMPFS_MAGIC) {
		snprintf(text, SVC_TEXT_BYTES,
			 "only ordinary (not hugetlb) memfds can be registered");
		return false;
	}
	if (fstat(fd, &st) < 0 || st.st_size < 0 || (uint64_t)st.st_size < bytes) {
		snprintf(text, SVC_TEXT_BYTES, "the memfd is smaller than the region");
		return false;
	}
	return true;
}

uint64_t svc_memfd_limit(int fd)
{
	struct stat st;
	const bool grows = !(fcntl(fd, F_GET_SEALS) & F_SEAL_GROW);
	return grows || fstat(fd, &st) ? SVC_REGION_MAX : (uint64_t)st.st_size;
}

bool svc_memfd_filled(int fd, uint64_t bytes)
{
	struct stat st;
	return !fstat(fd, &st) && (uint64_t)st.st_blocks * 512 >= bytes;
}

static bool is_null_device(const struct stat *st)
{
	return S_ISCHR(st->st_mode) && st->st_rdev == makedev(1, 3);
}

ssize_t svc_read_file(const char *path, void *to, size_t size)
{
	struct stat st;
	size_t done = 0;
	ssize_t n = 0;
	/* Opening a pipe must not block. */
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) || !(S_ISREG(st.st_mode) || is_null_device(&st))) {
		close(fd);
		return -EISDIR;
	}
	while (done < size && (n = read(fd, (char *)to + done, size - done)) > 0)
		done += (size_t)n;
	const int error = errno;
	close(fd);
	return n < 0 ? -error : (ssize_t)done;
}

bool svc_read_text(const char *path, char *text, size_t size)
{
	const ssize_t n = svc_read_file(path, text, size - 1);
	text[n > 0 ? n : 0] = '\0';
	return n > 0;
}

int svc_populate(void *base, size_t bytes)
{
	int done;
	do
		done = madvise(base, bytes, MADV_POPULATE_WRITE);
	while (done && (errno == EINTR || errno == EAGAIN));
	if (!done)
		return 0;
	if (errno == EFAULT) /* an access would have raised SIGBUS */
		return -ENOMEM;
	if (errno != EINVAL)
		return -errno;
	/* Before Linux 5.14. Others may be writing to the page. */
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	for (size_t at = 0; at < bytes; at += page)
		atomic_fetch_or_explicit((_Atomic char *)base + at, 0, memory_order_relaxed);
	return 0;
}
