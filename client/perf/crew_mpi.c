/* SPDX-License-Identifier: Apache-2.0
 * The baseline's ranks: ncclsvc-perf-mpi under mpirun. Each connects to a socket of ours, so that
 * between rounds it sleeps in recv and takes no CPU from the side that is measured. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "build_config.h"
#include "crew.h"
#include "process.h"

struct launch {
	char program[PATH_MAX];
	char socket[96];
	int listener;
};

static bool open_listener(struct launch *l, uint32_t n)
{
	const char *dir = private_dir();
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (!dir)
		return false;
	snprintf(l->socket, sizeof(l->socket), "%s/baseline.sock", dir);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", l->socket);
	l->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->listener < 0 ||
	    bind(l->listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(l->listener, (int)n) < 0) {
		complain("can't listen at %s: %s", l->socket, strerror(errno));
		return false;
	}
	return true;
}

static bool run_mpirun(struct crew *crew, const struct launch *l, uint32_t n, bool oversubscribe)
{
	char ranks[16];
	const char *argv[8] = {"mpirun", "-n", ranks};
	size_t at = 3;
	snprintf(ranks, sizeof(ranks), "%u", n);
	if (geteuid() == 0)
		argv[at++] = "--allow-run-as-root";
	if (oversubscribe)
		argv[at++] = "--oversubscribe";
	argv[at++] = l->program;
	argv[at++] = l->socket;
	int log = open(crew->log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	crew->leader = log >= 0 ? spawn((char *const *)argv, log) : -1;
	int error = errno;
	if (log >= 0)
		close(log);
	if (crew->leader > 0)
		return true;
	crew->leader = 0;
	complain("can't run mpirun: %s%s", strerror(error),
		 error == ENOENT ? "; --baseline mpi needs Open MPI (openmpi-bin)" : "");
	return false;
}

/* Takes one connection. False: it is not a rank of this build. */
static bool take_rank(struct crew *crew, int fd, uint32_t n)
{
	struct job_hello hello;
	struct pollfd wait = {.fd = fd, .events = POLLIN};
	if (poll(&wait, 1, 5000) != 1 ||
	    recv(fd, &hello, sizeof(hello), MSG_DONTWAIT) != (ssize_t)sizeof(hello) ||
	    hello.magic != JOB_MAGIC || hello.job_size != sizeof(struct job)) {
		complain("ncclsvc-perf-mpi is of another build; install both together");
		return false;
	}
	if (hello.nranks != (int32_t)n || hello.rank < 0 || hello.rank >= hello.nranks ||
	    crew->members[hello.rank].fd >= 0) {
		complain("baseline rank %d of %d connected, expected %u ranks", hello.rank,
			 hello.nranks, n);
		return false;
	}
	crew->members[hello.rank] = (struct crew_member){.fd = fd, .pid = hello.pid};
	hello.library[JOB_TEXT_BYTES - 1] = '\0';
	snprintf(crew->library, sizeof(crew->library), "%s", hello.library);
	return true;
}

enum outcome { STARTED, FAILED, REFUSED /* mpirun ended before any rank came */ };

static enum outcome accept_ranks(struct crew *crew, const struct launch *l, uint32_t n)
{
	uint64_t end = perf_now_ns() + (uint64_t)crew->timeout_ms * 1000000;
	uint32_t taken = 0;
	int status;
	char how[96];
	while (taken < n) {
		struct pollfd wait = {.fd = l->listener, .events = POLLIN};
		if (caught_signal())
			return FAILED;
		if (perf_now_ns() >= end) {
			complain("%u of %u baseline ranks have not started within %d s", n - taken,
				 n, crew->timeout_ms / 1000);
			return FAILED;
		}
		if (poll(&wait, 1, 100) == 1) {
			int fd = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC);
			if (fd < 0)
				continue;
			if (!take_rank(crew, fd, n)) {
				close(fd);
				return FAILED;
			}
			taken++;
		} else if (wait_child(crew->leader, 0, &status)) {
			crew->leader = 0;
			if (taken == 0)
				return REFUSED;
			complain("mpirun %s", describe_status(status, how, sizeof(how)));
			return FAILED;
		}
	}
	return STARTED;
}

bool crew_start_mpi(struct crew *crew, uint32_t n, int timeout_ms)
{
	static const char *const places[] = {"../libexec/ncclsvc", NCCLSVC_LIBEXECDIR, NULL};
	struct launch l = {.listener = -1};
	*crew = (struct crew){.what = "baseline rank", .timeout_ms = timeout_ms};
	if (!find_program("ncclsvc-perf-mpi", "NCCLSVC_PERF_MPI", places, l.program,
			  sizeof(l.program))) {
		complain("--baseline mpi needs a build with Open MPI (libopenmpi-dev)");
		return false;
	}
	crew->members = calloc(n, sizeof(*crew->members));
	if (!crew->members || !open_listener(&l, n)) {
		if (l.listener >= 0)
			close(l.listener);
		return false;
	}
	crew->n = n;
	for (uint32_t i = 0; i < n; i++)
		crew->members[i].fd = -1;
	snprintf(crew->log, sizeof(crew->log), "%s/mpirun.log", private_dir());

	/* Oversubscription changes how Open MPI waits, so it is asked for only where it must be:
	 * more ranks than CPUs, or a machine whose slots mpirun counts differently. */
	bool oversubscribe = (long)n > sysconf(_SC_NPROCESSORS_ONLN);
	enum outcome outcome = FAILED;
	if (run_mpirun(crew, &l, n, oversubscribe))
		outcome = accept_ranks(crew, &l, n);
	if (outcome == REFUSED && !oversubscribe && run_mpirun(crew, &l, n, true))
		outcome = accept_ranks(crew, &l, n);
	if (outcome != STARTED && !caught_signal()) {
		complain("the Open MPI baseline did not start; mpirun said:");
		show_tail(crew->log);
	}
	close(l.listener);
	return outcome == STARTED;
}
