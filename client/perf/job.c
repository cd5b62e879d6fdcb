/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"

#include <errno.h>
#include <sys/socket.h>
#include <time.h>

uint64_t perf_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* Waits for as long as the coordinator lives: it owns the deadline and closes the socket. */
bool job_receive(int fd, struct job *job)
{
	ssize_t n;
	do
		n = recv(fd, job, sizeof(*job), 0);
	while (n < 0 && errno == EINTR);
	return n == (ssize_t)sizeof(*job);
}

bool job_send(int fd, const void *message, size_t size)
{
	ssize_t n;
	do
		n = send(fd, message, size, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n == (ssize_t)size;
}
