/* SPDX-License-Identifier: Apache-2.0
 * Preloaded into the daemon (LD_PRELOAD). In the file $FAILING_CALLS, the test sets a kind of call,
 * how many of them succeed first, and how many then fail. Calls inside the C library are not
 * affected. (With 64-bit offsets, fcntl and mmap here are fcntl64 and mmap64, as in the daemon.) */
#include "failing_calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* The C library's own functions, under names that are not replaced here. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);

static struct failing_calls *calls;

static void *next(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

#define NEXT(name)                                                                                 \
	static __typeof__(name) *next_##name;                                                      \
	if (!next_##name)                                                                          \
	next_##name = (__typeof__(name) *)next(#name)

__attribute__((constructor)) static void open_calls(void)
{
	const char *path = getenv("FAILING_CALLS");
	const int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *p = fd < 0 ? MAP_FAILED
			 : mmap(NULL, sizeof(*calls), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (p != MAP_FAILED)
		calls = p;
}

static bool fails(enum failing_kind kind, int error)
{
	if (!calls || calls->kind != (int)kind)
		return false;
	atomic_fetch_add(&calls->seen, 1);
	if (atomic_fetch_sub(&calls->before, 1) > 0 || atomic_fetch_sub(&calls->failing, 1) <= 0)
		return false;
	errno = error;
	return true;
}

void *malloc(size_t bytes)
{
	return fails(FAILING_MEMORY, ENOMEM) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
	return fails(FAILING_MEMORY, ENOMEM) ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
	return fails(FAILING_MEMORY, ENOMEM) ? NULL : __libc_realloc(p, bytes);
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	NEXT(mmap);
	return fails(FAILING_MAPS, ENOMEM) ? MAP_FAILED
					   : next_mmap(at, bytes, protection, flags, fd, offset);
}

void *mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...)
{
	NEXT(mremap);
	va_list list;
	va_start(list, flags);
	void *at = flags & MREMAP_FIXED ? va_arg(list, void *) : NULL;
	va_end(list);
	return fails(FAILING_MAPS, ENOMEM) ? MAP_FAILED
					   : next_mremap(old, old_bytes, bytes, flags, at);
}

int memfd_create(const char *name, unsigned flags)
{
	NEXT(memfd_create);
	return fails(FAILING_FDS, EMFILE) ? -1 : next_memfd_create(name, flags);
}

int eventfd(unsigned value, int flags)
{
	int (*next_eventfd)(unsigned, int) = (int (*)(unsigned, int))next("eventfd");
	return fails(FAILING_FDS, EMFILE) ? -1 : next_eventfd(value, flags);
}

int dup(int fd)
{
	NEXT(dup);
	return fails(FAILING_FDS, EMFILE) ? -1 : next_dup(fd);
}

int epoll_create1(int flags)
{
	int (*next_epoll)(int) = (int (*)(int))next("epoll_create1");
	return fails(FAILING_FDS, EMFILE) ? -1 : next_epoll(flags);
}

int socketpair(int domain, int type, int protocol, int fds[2])
{
	int (*next_socketpair)(int, int, int, int *) =
		(int (*)(int, int, int, int *))next("socketpair");
	return fails(FAILING_FDS, EMFILE) ? -1 : next_socketpair(domain, type, protocol, fds);
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
	int (*next_accept)(int, struct sockaddr *, socklen_t *, int) =
		(int (*)(int, struct sockaddr *, socklen_t *, int))next("accept4");
	return fails(FAILING_FDS, EMFILE) ? -1 : next_accept(fd, address, length, flags);
}

int fcntl(int fd, int command, ...)
{
	NEXT(fcntl);
	va_list list;
	va_start(list, command);
	void *argument = va_arg(list, void *);
	va_end(list);
	if ((command == F_DUPFD || command == F_DUPFD_CLOEXEC) && fails(FAILING_FDS, EMFILE))
		return -1;
	return next_fcntl(fd, command, argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	NEXT(pthread_create);
	return fails(FAILING_THREADS, EAGAIN) ? EAGAIN
					      : next_pthread_create(thread, attr, run, arg);
}
