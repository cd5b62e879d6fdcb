/* SPDX-License-Identifier: Apache-2.0 */
#include "socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Waiting connections, accepted in order whoever they belong to. */
#define BACKLOG 1024

#define LOCK_PATH_MAX (sizeof(((struct listen_socket *)0)->path) + 8)

static void lock_path(const char *socket, char path[LOCK_PATH_MAX])
{
	snprintf(path, LOCK_PATH_MAX, "%s.lock", socket);
}

static int open_lock(const char *socket, int flags)
{
	char path[LOCK_PATH_MAX];
	lock_path(socket, path);
	return open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
}

/* Two daemons that start at once must not mistake each other's new socket for a stale one, so only
 * the holder of the lock may replace it. Returns 0 or -1. */
static int take_lock(struct listen_socket *ls, char *why, size_t why_size)
{
	ls->lock_fd = open_lock(ls->path, O_CREAT);
	if (ls->lock_fd < 0) {
		snprintf(why, why_size, "cannot create %s.lock: %s", ls->path, strerror(errno));
		return -1;
	}
	if (flock(ls->lock_fd, LOCK_EX | LOCK_NB) == 0)
		return 0;
	snprintf(why, why_size,
		 "another ncclsvcd serves %s; stop it, or choose another path with --socket",
		 ls->path);
	close(ls->lock_fd);
	ls->lock_fd = -1;
	return -1;
}

static int remove_stale(struct listen_socket *ls, const struct sockaddr_un *addr, char *why,
			size_t why_size)
{
	struct stat st;
	if (lstat(ls->path, &st) < 0)
		return 0;
	if (!S_ISSOCK(st.st_mode)) {
		snprintf(why, why_size, "%s exists but is not a socket; remove it", ls->path);
		return -1;
	}
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int error =
		fd < 0 || connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0 ? errno : 0;
	if (fd >= 0)
		close(fd);
	/* Full backlog, or a socket of another type: it is in use. */
	if (!error || error == EAGAIN || error == EPROTOTYPE) {
		snprintf(why, why_size,
			 "another program answers on %s; stop it, or choose another path with "
			 "--socket",
			 ls->path);
		return -1;
	}
	if (unlink(ls->path) < 0) {
		snprintf(why, why_size, "cannot remove the stale socket %s: %s", ls->path,
			 strerror(errno));
		return -1;
	}
	return 0;
}

int socket_open(struct listen_socket *ls, const char *path, mode_t mode, char *why, size_t why_size)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct stat st;
	*ls = (struct listen_socket){.fd = -1, .lock_fd = -1};
	if (strlen(path) >= sizeof(addr.sun_path)) {
		snprintf(why, why_size, "the socket path has %zu bytes, the limit is %zu",
			 strlen(path), sizeof(addr.sun_path) - 1);
		return -1;
	}
	strcpy(addr.sun_path, path);
	strcpy(ls->path, path);
	if (take_lock(ls, why, why_size))
		return -1;
	if (remove_stale(ls, &addr, why, why_size)) {
		socket_close(ls);
		return -1;
	}
	ls->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	mode_t mask = umask(~mode & 0777);
	int error = ls->fd < 0 || bind(ls->fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
				    listen(ls->fd, BACKLOG) < 0 || lstat(path, &st) < 0
			    ? errno
			    : 0;
	umask(mask);
	if (error) {
		snprintf(why, why_size, "cannot listen on %s: %s", path, strerror(error));
		socket_close(ls);
		return -1;
	}
	ls->dev = st.st_dev;
	ls->ino = st.st_ino;
	return 0;
}

/* Does the path name this file now? */
static bool is_at(const char *path, dev_t dev, ino_t ino)
{
	struct stat st;
	return lstat(path, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

bool socket_is_own(const struct listen_socket *ls)
{
	char path[LOCK_PATH_MAX];
	struct stat lock;
	lock_path(ls->path, path);
	return is_at(ls->path, ls->dev, ls->ino) && fstat(ls->lock_fd, &lock) == 0 &&
	       is_at(path, lock.st_dev, lock.st_ino);
}

int socket_take(struct listen_socket *ls)
{
	int fd = ls->fd;
	ls->fd = -1;
	return fd;
}

void socket_close(struct listen_socket *ls)
{
	if (ls->fd >= 0)
		close(ls->fd);
	if (ls->lock_fd < 0)
		return;
	if (ls->ino && is_at(ls->path, ls->dev, ls->ino))
		unlink(ls->path);
	/* The lock file stays: removing it would let two daemons lock two files with the same name.
	 */
	close(ls->lock_fd);
	ls->fd = ls->lock_fd = -1;
}

/* ---- Notes, in the lock file ---- */

int socket_note(const struct listen_socket *ls, const char *line)
{
	const size_t n = strlen(line);
	if (ftruncate(ls->lock_fd, 0) < 0 || pwrite(ls->lock_fd, line, n, 0) != (ssize_t)n)
		return -errno;
	return 0;
}

void socket_read_note(const struct listen_socket *ls, char *line, size_t size)
{
	const ssize_t n = pread(ls->lock_fd, line, size - 1, 0);
	line[n > 0 ? n : 0] = '\0';
}

void socket_forget_note(const char *path)
{
	const int fd = open_lock(path, 0);
	if (fd < 0)
		return;
	/* If this fails, the next daemon has the note. */
	if (flock(fd, LOCK_EX | LOCK_NB) == 0 && ftruncate(fd, 0) < 0)
		errno = 0;
	close(fd);
}
