/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for nvidia-cuda-mps-control, only for tests. It reproduces the observed behaviour of
 * driver 580's program:
 *
 *   -f    Serves in CUDA_MPS_PIPE_DIRECTORY until quit or a signal ends it. A second instance for
 *         the same directory exits with code 1. Directory names of more than 88 bytes are too long
 *         for its sockets.
 *   ps    Prints a heading and one line per client.
 *   quit  Refuses new clients. The daemon exits with its last client, and so does the process that
 *         sent the command.
 *
 * Another process of the same program reads ps and quit from its standard input. A client is a
 * process that keeps a connection to `control`, as the libcuda stand-in does. SIGTERM and SIGKILL
 * end the daemon and all clients' connections at once, as the real daemon's end also ends its
 * server.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CLIENTS 64
#define ASKERS	8
#define FIRST	2 /* fds[] begins with the two sockets */

enum { CONTROL, PRIVILEGED };

struct service {
	struct pollfd fds[FIRST + CLIENTS + ASKERS];
	int pids[FIRST + CLIENTS + ASKERS]; /* 0: connection of a `ps` or `quit` command */
	nfds_t n;
	bool quitting, served; /* served: at least one client has connected */
};

static struct sockaddr_un place(const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
	int n = snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s",
			 directory ? directory : "/tmp/nvidia-mps", name);
	if (n >= (int)sizeof(address.sun_path)) {
		fprintf(stderr, "the directory's name is too long\n");
		exit(EXIT_FAILURE);
	}
	return address;
}

static int listen_on(const char *name)
{
	struct sockaddr_un address = place(name);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	unlink(address.sun_path);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) ||
	    listen(fd, CLIENTS)) {
		perror(address.sun_path);
		exit(EXIT_FAILURE);
	}
	return fd;
}

static void become_the_only_one(void)
{
	struct sockaddr_un name = place("control_lock");
	int fd = open(name.sun_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB)) {
		printf("An instance of this daemon is already running\n");
		exit(EXIT_FAILURE);
	}
	name = place("nvidia-cuda-mps-control.pid");
	FILE *f = fopen(name.sun_path, "w");
	if (!f || fprintf(f, "%d", (int)getpid()) < 0 || fclose(f))
		exit(EXIT_FAILURE);
}

static unsigned clients(const struct service *s)
{
	unsigned n = 0;
	for (nfds_t i = FIRST; i < s->n; i++)
		n += s->pids[i] != 0;
	return n;
}

static void admit(struct service *s, nfds_t from)
{
	struct ucred peer = {0};
	socklen_t size = sizeof(peer);
	int fd = accept4(s->fds[from].fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		return;
	getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
	const bool refused = from == CONTROL && (s->quitting || clients(s) == CLIENTS);
	const char welcome = refused ? 'n' : 'y';
	if ((from == CONTROL && send(fd, &welcome, 1, MSG_NOSIGNAL) != 1) || refused ||
	    s->n == sizeof(s->fds) / sizeof(s->fds[0])) {
		close(fd);
		return;
	}
	s->served |= from == CONTROL;
	s->fds[s->n] = (struct pollfd){.fd = fd, .events = POLLIN};
	s->pids[s->n++] = from == CONTROL ? peer.pid : 0;
}

static void tell_clients(const struct service *s, int fd)
{
	char text[64 * (CLIENTS + 1)];
	int n = 0;
	if (clients(s))
		n = snprintf(text, sizeof(text), "PID       ID        SERVER\n");
	else if (!s->served)
		n = snprintf(text, sizeof(text), "Server not found\n");
	for (nfds_t i = FIRST; i < s->n; i++)
		if (s->pids[i])
			n += snprintf(text + n, sizeof(text) - (size_t)n, "%-9d 1         %d\n",
				      s->pids[i], (int)getpid());
	send(fd, text, (size_t)n, MSG_NOSIGNAL);
}

static void hear(struct service *s, nfds_t i)
{
	char text[64];
	ssize_t n = recv(s->fds[i].fd, text, sizeof(text) - 1, 0);
	if (n > 0 && !s->pids[i]) {
		text[n] = '\0';
		if (!strcmp(text, "quit\n")) {
			s->quitting = true;
			return; /* the sender of quit waits until this process exits */
		}
		if (!strcmp(text, "ps\n"))
			tell_clients(s, s->fds[i].fd);
	}
	close(s->fds[i].fd);
	s->fds[i] = s->fds[--s->n];
	s->pids[i] = s->pids[s->n];
}

static int serve(void)
{
	static struct service s = {.n = FIRST};
	become_the_only_one();
	s.fds[PRIVILEGED] =
		(struct pollfd){.fd = listen_on("control_privileged"), .events = POLLIN};
	s.fds[CONTROL] = (struct pollfd){.fd = listen_on("control"), .events = POLLIN};
	while (!s.quitting || clients(&s)) {
		if (poll(s.fds, s.n, -1) < 0 && errno != EINTR)
			return EXIT_FAILURE;
		for (nfds_t i = s.n; i-- > 0;) {
			if (!s.fds[i].revents)
				continue;
			if (i < FIRST)
				admit(&s, i);
			else
				hear(&s, i);
		}
	}
	return 0;
}

static int ask(void)
{
	char line[64], answer[64 * (CLIENTS + 1)];
	while (fgets(line, sizeof(line), stdin)) {
		struct sockaddr_un address = place("control_privileged");
		int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) ||
		    send(fd, line, strlen(line), MSG_NOSIGNAL) < 0) {
			printf("Cannot find MPS control daemon process\n");
			return EXIT_FAILURE;
		}
		ssize_t n = recv(fd, answer, sizeof(answer), 0);
		if (n > 0)
			fwrite(answer, 1, (size_t)n, stdout);
		close(fd);
	}
	return 0;
}

int main(int argc, char *argv[])
{
	return argc > 1 && !strcmp(argv[1], "-f") ? serve() : ask();
}
