/* SPDX-License-Identifier: Apache-2.0 */
#include "rank_command.h"

#include <errno.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

uint64_t perf_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

uint64_t perf_cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

struct pace pace_start(uint64_t every_us)
{
	if (every_us)
		prctl(PR_SET_TIMERSLACK, 1); /* instead of waking 50 us late */
	return (struct pace){.every_ns = every_us * 1000, .next_ns = perf_now_ns()};
}

void pace_wait(struct pace *p)
{
	const uint64_t now = perf_now_ns();
	if (!p->every_ns)
		return;
	if (now < p->next_ns) {
		struct timespec t = {(time_t)(p->next_ns / 1000000000),
				     (long)(p->next_ns % 1000000000)};
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
			;
		p->paused_ns += perf_now_ns() - now;
	} else {
		p->next_ns = now;
	}
	p->next_ns += p->every_ns;
}

/* No timeout: ncclsvc-perf owns the deadline, and closes the socket when it ends. */
bool command_receive(int fd, struct command *command)
{
	ssize_t n;
	do
		n = recv(fd, command, sizeof(*command), 0);
	while (n < 0 && errno == EINTR);
	return n == (ssize_t)sizeof(*command);
}

bool message_send(int fd, const void *message, size_t size)
{
	ssize_t n;
	do
		n = send(fd, message, size, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n == (ssize_t)size;
}

int command_connect(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (snprintf(address.sun_path, sizeof(address.sun_path), "%s", path) >=
	    (int)sizeof(address.sun_path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		int error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

bool hello_send(int fd, struct hello *hello)
{
	hello->magic = HELLO_MAGIC;
	hello->command_size = sizeof(struct command);
	hello->pid = getpid();
	return message_send(fd, hello, sizeof(*hello));
}
