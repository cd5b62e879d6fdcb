/* SPDX-License-Identifier: Apache-2.0 */
#include "listener.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "process.h"

static bool listen_at(struct door *door, uint32_t n)
{
	const char *dir = private_dir();
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (!dir)
		return false;
	snprintf(door->socket, sizeof(door->socket), "%s/baseline.sock", dir);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", door->socket);
	door->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (door->listener < 0 ||
	    bind(door->listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(door->listener, (int)n) < 0) {
		complain("can't listen at %s: %s", door->socket, strerror(errno));
		return false;
	}
	return true;
}

bool door_open(struct door *door, struct crew *crew, uint32_t n)
{
	*door = (struct door){.listener = -1};
	crew->members = calloc(n, sizeof(*crew->members));
	if (!crew->members)
		complain("out of memory");
	if (!crew->members || !listen_at(door, n)) {
		door_close(door);
		return false;
	}
	crew->n = n;
	for (uint32_t i = 0; i < n; i++)
		crew->members[i].fd = -1;
	return true;
}

void door_close(struct door *door)
{
	if (door->listener < 0)
		return;
	close(door->listener);
	unlink(door->socket);
	door->listener = -1;
}

/* Takes one connection. False: it is not a rank of this build. */
static bool take_rank(struct crew *crew, int fd)
{
	struct job_hello hello;
	struct pollfd wait = {.fd = fd, .events = POLLIN};
	if (poll(&wait, 1, 5000) != 1 ||
	    recv(fd, &hello, sizeof(hello), MSG_DONTWAIT) != (ssize_t)sizeof(hello) ||
	    hello.magic != JOB_MAGIC || hello.job_size != sizeof(struct job)) {
		complain("the baseline's program is of another build; install both together");
		return false;
	}
	if (hello.nranks != (int32_t)crew->n || hello.rank < 0 || hello.rank >= hello.nranks ||
	    crew->members[hello.rank].fd >= 0) {
		complain("baseline rank %d of %d connected, expected %u ranks", hello.rank,
			 hello.nranks, crew->n);
		return false;
	}
	crew->members[hello.rank] = (struct crew_member){.fd = fd, .pid = hello.pid};
	hello.library[JOB_TEXT_BYTES - 1] = '\0';
	snprintf(crew->library, sizeof(crew->library), "%s", hello.library);
	if (hello.rank == 0)
		memcpy(crew->id, hello.id, sizeof(crew->id));
	return true;
}

/* A program that was to come has ended. */
static bool somebody_ended(struct crew *crew, char *how, size_t size)
{
	int status;
	if (crew->leader) {
		if (!wait_child(crew->leader, 0, &status))
			return false;
		crew->leader = 0;
		describe_status(status, how, size);
		return true;
	}
	for (uint32_t i = 0; i < crew->n; i++) {
		struct crew_member *m = &crew->members[i];
		if (m->fd < 0 && m->pid > 0 && wait_child(m->pid, 0, &status)) {
			m->pid = 0;
			describe_status(status, how, size);
			return true;
		}
	}
	return false;
}

enum door_outcome door_admit(struct door *door, struct crew *crew)
{
	uint64_t end = perf_now_ns() + (uint64_t)crew->timeout_ms * 1000000;
	uint32_t taken = 0;
	bool led = crew->leader > 0;
	char how[96];
	while (taken < crew->n) {
		struct pollfd wait = {.fd = door->listener, .events = POLLIN};
		if (caught_signal())
			return DOOR_FAILED;
		if (perf_now_ns() >= end) {
			complain("%u of %u baseline ranks have not started within %d s",
				 crew->n - taken, crew->n, crew->timeout_ms / 1000);
			return DOOR_FAILED;
		}
		if (poll(&wait, 1, 100) == 1) {
			int fd = accept4(door->listener, NULL, NULL, SOCK_CLOEXEC);
			if (fd < 0)
				continue;
			if (!take_rank(crew, fd)) {
				close(fd);
				return DOOR_FAILED;
			}
			taken++;
		} else if (somebody_ended(crew, how, sizeof(how))) {
			if (led && taken == 0)
				return DOOR_REFUSED;
			complain("%s %s", led ? "mpirun" : "a baseline rank", how);
			return DOOR_FAILED;
		}
	}
	return DOOR_ENTERED;
}
