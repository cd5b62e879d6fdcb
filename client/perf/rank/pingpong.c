/* SPDX-License-Identifier: Apache-2.0
 * The lower bound for any service: each operation is a message to another process and back, over a
 * SOCK_SEQPACKET socket. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rank.h"

#define BYTES 144 /* the size of a task record with its message header */

struct pingpong_rank {
	struct rank rank;
	int fd;
};

static bool allocate(struct rank *r, size_t bytes, char **p)
{
	*p = malloc(bytes);
	return *p || rank_fail(r, NCCLSVC_NO_MEMORY, "out of memory");
}

static bool release(struct rank *r, char *p)
{
	(void)r;
	free(p);
	return true;
}

static bool submit(struct rank *r, const struct work *w, char *send_buffer, char *recv_buffer)
{
	const int fd = ((struct pingpong_rank *)r)->fd;
	char message[BYTES] = {0};
	(void)w, (void)send_buffer, (void)recv_buffer;
	return (send(fd, message, BYTES, MSG_NOSIGNAL) == BYTES &&
		recv(fd, message, BYTES, 0) == BYTES) ||
	       rank_fail(r, NCCLSVC_SYSTEM, "the ping-pong ended: %s", strerror(errno));
}

static void echo(int fd)
{
	char message[BYTES];
	while (recv(fd, message, BYTES, 0) == BYTES &&
	       send(fd, message, BYTES, MSG_NOSIGNAL) == BYTES)
		;
}

/* The child ends when the rank closes its end of the pair. */
static pid_t start_echo(struct pingpong_rank *p, int command_fd)
{
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -1;
	pid_t pid = fork();
	if (pid == 0) {
		close(pair[0]);
		close(command_fd);
		echo(pair[1]);
		_exit(0);
	}
	close(pair[1]);
	p->fd = pair[0];
	return pid;
}

static bool barrier(struct rank *r)
{
	(void)r;
	return true;
}

int pingpong_main(int fd)
{
	static const struct backend backend = {
		.allocate = allocate, .release = release, .submit = submit, .barrier = barrier};
	struct pingpong_rank p = {.rank = {.backend = &backend, .nranks = 1}, .fd = -1};
	struct rank *r = &p.rank;
	pid_t child = start_echo(&p, fd);
	bool good = child > 0 || rank_fail(r, NCCLSVC_SYSTEM,
					   "can't start the echo of the "
					   "ping-pong: %s",
					   strerror(errno));
	good = message_send(fd, &r->reply, sizeof(r->reply)) && good && rank_serve(r, fd);
	if (p.fd >= 0)
		close(p.fd);
	if (child > 0)
		waitpid(child, NULL, 0);
	free(r->send);
	free(r->recv);
	return good ? 0 : 1;
}
