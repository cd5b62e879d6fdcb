/* SPDX-License-Identifier: Apache-2.0
 * Starts the baselines' ranks: ncclsvc-perf-mpi under mpirun, or a process of ncclsvc-perf-nccl per
 * GPU. Each connects to a socket of this program, and sleeps in recv between rounds, so that it
 * takes no CPU from what is measured. */
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
#include "child_process.h"
#include "perf_ranks.h"

/* ---- The socket they connect to ---- */

struct listener {
	int fd;
	char socket[96];
};

enum outcome {
	CONNECTED,
	FAILED,	 /* and an error was printed */
	REFUSED, /* mpirun ended before any rank connected */
};

static bool listen_at(struct listener *l, uint32_t n)
{
	const char *dir = private_dir();
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (!dir)
		return false;
	snprintf(l->socket, sizeof(l->socket), "%s/baseline.sock", dir);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", l->socket);
	l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(l->fd, (int)n) < 0) {
		complain("can't listen at %s: %s", l->socket, strerror(errno));
		return false;
	}
	return true;
}

static void listener_close(struct listener *l)
{
	if (l->fd < 0)
		return;
	close(l->fd);
	unlink(l->socket);
	l->fd = -1;
}

static bool listener_open(struct listener *l, struct ranks *ranks, uint32_t n)
{
	*l = (struct listener){.fd = -1};
	ranks->members = calloc(n, sizeof(*ranks->members));
	if (!ranks->members)
		complain("out of memory");
	if (!ranks->members || !listen_at(l, n)) {
		listener_close(l);
		return false;
	}
	ranks->n = n;
	for (uint32_t i = 0; i < n; i++)
		ranks->members[i].fd = -1;
	return true;
}

/* Accepts one connection. False: it is not a rank of this build. */
static bool take_rank(struct ranks *ranks, int fd)
{
	struct hello hello;
	struct pollfd wait = {.fd = fd, .events = POLLIN};
	if (poll(&wait, 1, 5000) != 1 ||
	    recv(fd, &hello, sizeof(hello), MSG_DONTWAIT) != (ssize_t)sizeof(hello) ||
	    hello.magic != HELLO_MAGIC || hello.command_size != sizeof(struct command)) {
		complain("the baseline's program is from a different build; install both together");
		return false;
	}
	if (hello.nranks != (int32_t)ranks->n || hello.rank < 0 || hello.rank >= hello.nranks ||
	    ranks->members[hello.rank].fd >= 0) {
		complain("baseline rank %d of %d connected, expected %u ranks", hello.rank,
			 hello.nranks, ranks->n);
		return false;
	}
	ranks->members[hello.rank] = (struct member){.fd = fd, .pid = hello.pid};
	hello.library[COMMAND_TEXT_BYTES - 1] = '\0';
	snprintf(ranks->library, sizeof(ranks->library), "%s", hello.library);
	if (hello.rank == 0)
		memcpy(ranks->id, hello.id, sizeof(ranks->id));
	return true;
}

/* Whether one of the started programs has ended. */
static bool one_has_ended(struct ranks *ranks, char *how, size_t size)
{
	int status;
	if (ranks->mpirun) {
		if (!wait_child(ranks->mpirun, 0, &status))
			return false;
		ranks->mpirun = 0;
		describe_status(status, how, size);
		return true;
	}
	for (uint32_t i = 0; i < ranks->n; i++) {
		struct member *m = &ranks->members[i];
		if (m->fd < 0 && m->pid > 0 && wait_child(m->pid, 0, &status)) {
			m->pid = 0;
			describe_status(status, how, size);
			return true;
		}
	}
	return false;
}

static enum outcome accept_all(struct listener *l, struct ranks *ranks)
{
	uint64_t end = perf_now_ns() + (uint64_t)ranks->timeout_ms * 1000000;
	uint32_t taken = 0;
	const bool led = ranks->mpirun > 0;
	char how[96];
	while (taken < ranks->n) {
		struct pollfd wait = {.fd = l->fd, .events = POLLIN};
		if (caught_signal())
			return FAILED;
		if (perf_now_ns() >= end) {
			complain("%u of %u baseline ranks have not started within %d s",
				 ranks->n - taken, ranks->n, ranks->timeout_ms / 1000);
			return FAILED;
		}
		if (poll(&wait, 1, 100) == 1) {
			int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
			if (fd < 0)
				continue;
			if (!take_rank(ranks, fd)) {
				close(fd);
				return FAILED;
			}
			taken++;
		} else if (one_has_ended(ranks, how, sizeof(how))) {
			if (led && taken == 0)
				return REFUSED;
			complain("%s %s", led ? "mpirun" : "a baseline rank", how);
			return FAILED;
		}
	}
	return CONNECTED;
}

/* ---- Open MPI ---- */

/* Beside this program, and where they are installed. */
static const char *const places[] = {"../libexec/ncclsvc", NCCLSVC_LIBEXECDIR, NULL};

static bool run_mpirun(struct ranks *ranks, const char *program, const char *socket, uint32_t n,
		       bool oversubscribe)
{
	char ranks_text[16];
	/* Run only on this machine, even in a Slurm job with several. */
	const char *argv[12] = {"mpirun", "--mca", "ras", "^slurm", "-n", ranks_text};
	size_t at = 6;
	snprintf(ranks_text, sizeof(ranks_text), "%u", n);
	if (geteuid() == 0)
		argv[at++] = "--allow-run-as-root";
	if (oversubscribe)
		argv[at++] = "--oversubscribe";
	argv[at++] = program;
	argv[at++] = socket;
	int log = open(ranks->log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	ranks->mpirun = log >= 0 ? spawn((char *const *)argv, log) : -1;
	int error = errno;
	if (log >= 0)
		close(log);
	if (ranks->mpirun > 0)
		return true;
	ranks->mpirun = 0;
	complain("can't run mpirun: %s%s", strerror(error),
		 error == ENOENT ? "; --baseline mpi needs Open MPI (openmpi-bin)" : "");
	return false;
}

bool ranks_start_mpi(struct ranks *ranks, uint32_t n, int timeout_ms)
{
	char program[PATH_MAX];
	struct listener l;
	*ranks = (struct ranks){.what = "baseline rank", .timeout_ms = timeout_ms};
	if (!find_program("ncclsvc-perf-mpi", "NCCLSVC_PERF_MPI", places, program,
			  sizeof(program))) {
		complain("--baseline mpi needs a build with Open MPI (libopenmpi-dev)");
		return false;
	}
	if (!listener_open(&l, ranks, n))
		return false;
	snprintf(ranks->log, sizeof(ranks->log), "%s/mpirun.log", private_dir());

	/* Oversubscription changes how Open MPI waits, so it is requested only if necessary: with
	 * more ranks than CPUs, or where mpirun counts a machine's slots differently. */
	bool oversubscribe = (long)n > sysconf(_SC_NPROCESSORS_ONLN);
	enum outcome outcome = FAILED;
	if (run_mpirun(ranks, program, l.socket, n, oversubscribe))
		outcome = accept_all(&l, ranks);
	if (outcome == REFUSED && !oversubscribe && run_mpirun(ranks, program, l.socket, n, true))
		outcome = accept_all(&l, ranks);
	if (outcome != CONNECTED && !caught_signal()) {
		complain("the Open MPI baseline did not start; mpirun said:");
		show_tail(ranks->log);
	}
	listener_close(&l);
	return outcome == CONNECTED;
}

/* ---- NCCL ---- */

static bool run_rank(struct ranks *ranks, uint32_t rank, int gpu, const char *program,
		     const char *socket, int log)
{
	char rank_text[16], n_text[16], gpu_text[16];
	snprintf(rank_text, sizeof(rank_text), "%u", rank);
	snprintf(n_text, sizeof(n_text), "%u", ranks->n);
	snprintf(gpu_text, sizeof(gpu_text), "%d", gpu);
	const char *argv[] = {program, socket, rank_text, n_text, gpu_text, NULL};
	pid_t pid = spawn((char *const *)argv, log);
	if (pid < 0) {
		complain("can't run %s: %s", program, strerror(errno));
		return false;
	}
	ranks->members[rank].pid = pid;
	return true;
}

static bool run_ranks(struct ranks *ranks, const int *gpus, const char *program, const char *socket)
{
	int log = open(ranks->log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	bool good = log >= 0;
	if (!good)
		complain("can't write %s: %s", ranks->log, strerror(errno));
	for (uint32_t i = 0; good && i < ranks->n; i++)
		good = run_rank(ranks, i, gpus[i], program, socket, log);
	if (log >= 0)
		close(log);
	return good;
}

bool ranks_start_nccl(struct ranks *ranks, const int *gpus, uint32_t n, int timeout_ms)
{
	char program[PATH_MAX];
	struct listener l;
	*ranks = (struct ranks){
		.what = "NCCL rank", .timeout_ms = timeout_ms, .grace_ms = GPU_GRACE_MS};
	if (!find_program("ncclsvc-perf-nccl", "NCCLSVC_PERF_NCCL", places, program,
			  sizeof(program)) ||
	    !listener_open(&l, ranks, n))
		return false;
	snprintf(ranks->log, sizeof(ranks->log), "%s/nccl.log", private_dir());
	bool good = run_ranks(ranks, gpus, program, l.socket) && accept_all(&l, ranks) == CONNECTED;
	if (!good && !caught_signal()) {
		complain("the NCCL baseline did not start; it said:");
		show_tail(ranks->log);
	}
	listener_close(&l);
	return good;
}
