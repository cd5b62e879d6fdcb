/* SPDX-License-Identifier: Apache-2.0 */
#include "slow_fds.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/fdio.h"

int slow_socket(void)
{
	static char data[1 << 16];
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const struct linger linger = {1, 2};
	socklen_t size = sizeof(address);
	int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(server, (struct sockaddr *)&address, size) || listen(server, 1) ||
	    getsockname(server, (struct sockaddr *)&address, &size) ||
	    connect(client, (struct sockaddr *)&address, size) ||
	    setsockopt(client, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)))
		return -1;
	while (send(client, data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	return client; /* the other side stays open and is not read */
}

int slow_memfd(void)
{
	const size_t bytes = (size_t)1 << 30;
	int fd = svc_memfd_create("attack", bytes, true);
	return fallocate(fd, 0, 0, (off_t)bytes) ? -1 : fd;
}

/* ---- A FUSE file: linux/fuse.h's protocol ---- */

#define FILE_NODE 2

static char file_path[96];

bool slow_file_mount(struct attacker *a, const char *directory)
{
	char options[128];
	a->fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (a->fuse < 0 || unshare(CLONE_NEWNS) ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return false;
	snprintf(options, sizeof(options),
		 "fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other", a->fuse, ATTACKER_UID,
		 ATTACKER_UID);
	snprintf(file_path, sizeof(file_path), "%s/file", directory);
	return !mount("attack", directory, "fuse", MS_NOSUID | MS_NODEV, options);
}

bool slow_file_possible(void)
{
	int status = 1;
	pid_t pid = fork();
	if (!pid)
		_exit(slow_file_mount(&(struct attacker){0}, "/tmp") ? 0 : 1);
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status;
}

static struct fuse_attr attributes(uint64_t node)
{
	return (struct fuse_attr){.ino = node,
				  .mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0666,
				  .nlink = 1,
				  .size = 4096,
				  .uid = ATTACKER_UID,
				  .gid = ATTACKER_UID};
}

static void answer(int fuse, const struct fuse_in_header *in, int error, const void *body,
		   size_t length)
{
	char message[256];
	const struct fuse_out_header out = {
		.len = (uint32_t)(sizeof(out) + length), .error = error, .unique = in->unique};
	memcpy(message, &out, sizeof(out));
	if (length)
		memcpy(message + sizeof(out), body, length);
	ssize_t n = write(fuse, message, out.len);
	(void)n;
}

static void serve(int fuse, const struct fuse_in_header *in, const void *body)
{
	const struct fuse_init_in *asked = body;
	const struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION,
					   .minor = FUSE_KERNEL_MINOR_VERSION,
					   .max_readahead = asked->max_readahead,
					   .max_write = 4096};
	const struct fuse_entry_out entry = {.nodeid = FILE_NODE, .attr = attributes(FILE_NODE)};
	const struct fuse_attr_out attr = {.attr = attributes(in->nodeid)};
	const struct fuse_open_out opened = {.open_flags = FOPEN_DIRECT_IO};
	switch (in->opcode) {
	case FUSE_INIT:
		answer(fuse, in, 0, &init, sizeof(init));
		break;
	case FUSE_LOOKUP:
		answer(fuse, in, 0, &entry, sizeof(entry));
		break;
	case FUSE_GETATTR:
		answer(fuse, in, 0, &attr, sizeof(attr));
		break;
	case FUSE_OPEN:
		answer(fuse, in, 0, &opened, sizeof(opened));
		break;
	case FUSE_FLUSH:
	case FUSE_RELEASE:
		answer(fuse, in, 0, NULL, 0);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	default:
		answer(fuse, in, -38 /* ENOSYS */, NULL, 0);
	}
}

void slow_file_serve(struct attacker *a)
{
	static char message[FUSE_MIN_READ_BUFFER + 4096];
	const pid_t group = getpgrp();
	if (!attack_fork()) {
		close(a->fuse); /* held only by the server, so that waiting calls return when the
				   server dies */
		return;
	}
	for (ssize_t n; (n = read(a->fuse, message, sizeof(message))) > 0;) {
		struct fuse_in_header in;
		memcpy(&in, message, sizeof(in));
		if (!in.pid || getpgid((pid_t)in.pid) == group)
			serve(a->fuse, &in, message + sizeof(in));
	}
	_exit(0);
}

int slow_file(void)
{
	return open(file_path, O_RDWR | O_CLOEXEC);
}
