/* SPDX-License-Identifier: Apache-2.0 */
#include "waiting_messages.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#include "account/account.h"
#include "proto/fdio.h"

/* Messages that one close reads: a client's first ones. Many connections may close at once. */
#define DRAINED_MAX 4

enum next { NEXT_NONE, NEXT_END, NEXT_PLAIN, NEXT_BRINGS_FDS };

/* Peeks at the next message. An empty message has its sender's credentials, and the end of the
 * connection has none. The buffer has no room for descriptors: if the message brings any, the
 * kernel reports that they were truncated. */
static enum next look(int fd, int flags)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct ucred))];
	char byte;
	struct iovec iov = {&byte, sizeof(byte)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control,
			     .msg_controllen = sizeof(control)};
	const ssize_t n = recvmsg(fd, &msg, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return NEXT_NONE;
	if (n == 0 && !msg.msg_controllen)
		return NEXT_END;
	return msg.msg_flags & MSG_CTRUNC ? NEXT_BRINGS_FDS : NEXT_PLAIN;
}

static enum next peek(int fd)
{
	const int on = 1, off = 0;
	if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)))
		return NEXT_BRINGS_FDS;
	const enum next next = look(fd, MSG_PEEK);
	setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &off, sizeof(off));
	return next;
}

static bool holds_fds(int fd)
{
	shutdown(fd, SHUT_RD); /* no more messages can come */
	for (int i = 0; i < DRAINED_MAX; i++) {
		const enum next next = peek(fd);
		if (next != NEXT_PLAIN)
			return next == NEXT_BRINGS_FDS;
		look(fd, 0);
	}
	return true;
}

void connection_close(struct account *a, int fd)
{
	if (holds_fds(fd))
		account_close(a, &fd, 1);
	else
		close(fd);
}

int connection_may_read(struct account *a, int fd, char *text)
{
	if (account_take(a, SHARE_FDS, SVC_FDS_KERNEL, text)) {
		account_give(a, SHARE_FDS, SVC_FDS_KERNEL);
		return 0;
	}
	const enum next next = peek(fd);
	return next == NEXT_BRINGS_FDS ? -EMFILE : next == NEXT_NONE ? -EAGAIN : 0;
}
