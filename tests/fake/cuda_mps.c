/* SPDX-License-Identifier: Apache-2.0
 * A process's connection to the MPS control daemon, if one answers in CUDA_MPS_PIPE_DIRECTORY:
 * mps_control.c, or a test that answers like it. The real driver's default directory is not used,
 * because its content does not belong to the tests. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fake.h"

static int connection = -1;
static bool connected; /* stays set after the connection ends, as in the driver */

/* MPS serves one user. */
static bool is_ours(int fd)
{
	struct ucred peer = {0};
	socklen_t size = sizeof(peer);
	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid == geteuid();
}

/* The server ends with its control daemon, and destroys the contexts. */
static void *watch(void *arg)
{
	struct pollfd p = {.fd = *(int *)arg, .events = POLLRDHUP};
	while (poll(&p, 1, -1) < 1)
		;
	contexts_fail(CUDA_ERROR_MPS_RPC_FAILURE);
	return NULL;
}

static CUresult watch_start(void)
{
	pthread_t thread;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&thread, NULL, watch, &connection);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_detach(thread);
	return CUDA_SUCCESS;
}

CUresult mps_connect(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
	char answer = 'n';
	if (!directory || !*directory ||
	    snprintf(address.sun_path, sizeof(address.sun_path), "%s/control", directory) >=
		    (int)sizeof(address.sun_path))
		return CUDA_SUCCESS;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address))) {
		close(fd);
		return CUDA_SUCCESS;
	}
	if (!is_ours(fd) || recv(fd, &answer, 1, 0) != 1 || answer != 'y') {
		close(fd);
		return CUDA_ERROR_MPS_CONNECTION_FAILED;
	}
	connection = fd;
	connected = true;
	return watch_start();
}

bool mps_connected(void)
{
	return connected;
}

void mps_forked(void)
{
	if (connection >= 0)
		close(connection);
	connection = -1;
}
