/* SPDX-License-Identifier: Apache-2.0
 * Preloaded into tests and the programs they start (CONTRIBUTING.md has the command): some system
 * calls begin or end late, as on a busy machine. */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ONE_IN	 80	  /* one in this many calls begins late, and one ends late */
#define DELAY_NS 20000000 /* maximum; half of the delays are at most a sixteenth of it */

static uint32_t random_number(void)
{
	static _Thread_local uint64_t x;
	struct timespec t;
	if (!x) {
		clock_gettime(CLOCK_MONOTONIC, &t);
		x = ((uint64_t)t.tv_nsec << 32 ^ (uint64_t)gettid()) | 1;
	}
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return (uint32_t)(x >> 24);
}

static void delay(void)
{
	const int error = errno;
	if (random_number() % ONE_IN)
		return;
	const long ns = random_number() % DELAY_NS;
	nanosleep(&(struct timespec){.tv_nsec = random_number() % 2 ? ns : ns / 16}, NULL);
	errno = error;
}

#define DELAYED(type, name, parameters, arguments)                                                 \
	type name parameters                                                                       \
	{                                                                                          \
		static type(*next) parameters;                                                     \
		if (!next)                                                                         \
			next = (type(*) parameters)dlsym(RTLD_NEXT, #name);                        \
		delay();                                                                           \
		const type result = next arguments;                                                \
		delay();                                                                           \
		return result;                                                                     \
	}
DELAYED(int, epoll_wait, (int fd, struct epoll_event *events, int n, int ms), (fd, events, n, ms))
DELAYED(int, epoll_pwait, (int fd, struct epoll_event *events, int n, int ms, const sigset_t *mask),
	(fd, events, n, ms, mask))
DELAYED(int, epoll_pwait2,
	(int fd, struct epoll_event *events, int n, const struct timespec *t, const sigset_t *mask),
	(fd, events, n, t, mask))
DELAYED(int, poll, (struct pollfd * fds, nfds_t n, int ms), (fds, n, ms))
DELAYED(int, ppoll, (struct pollfd * fds, nfds_t n, const struct timespec *t, const sigset_t *mask),
	(fds, n, t, mask))
DELAYED(ssize_t, read, (int fd, void *to, size_t bytes), (fd, to, bytes))
DELAYED(ssize_t, write, (int fd, const void *from, size_t bytes), (fd, from, bytes))
DELAYED(ssize_t, recv, (int fd, void *to, size_t bytes, int flags), (fd, to, bytes, flags))
DELAYED(ssize_t, send, (int fd, const void *from, size_t bytes, int flags),
	(fd, from, bytes, flags))
DELAYED(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))
DELAYED(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
DELAYED(int, sched_yield, (void), ())
DELAYED(int, pthread_cond_timedwait,
	(pthread_cond_t * changed, pthread_mutex_t *lock, const struct timespec *until),
	(changed, lock, until))

/* Delays futex calls only: waits and wakes. */
long syscall(long number, ...)
{
	static long (*next)(long, ...);
	va_list list;
	long a[6];
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (!next)
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	if (number == SYS_futex)
		delay();
	const long result = next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (number == SYS_futex)
		delay();
	return result;
}
