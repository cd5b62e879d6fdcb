/* SPDX-License-Identifier: Apache-2.0
 * The baseline's ranks: ncclsvc-perf-mpi under mpirun. Each connects to a socket of ours, so that
 * between rounds it sleeps in recv and takes no CPU from the side that is measured. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "build_config.h"
#include "listener.h"
#include "process.h"

static bool run_mpirun(struct crew *crew, const char *program, const char *socket, uint32_t n,
		       bool oversubscribe)
{
	char ranks[16];
	/* On this machine, also in a Slurm job of several. */
	const char *argv[12] = {"mpirun", "--mca", "ras", "^slurm", "-n", ranks};
	size_t at = 6;
	snprintf(ranks, sizeof(ranks), "%u", n);
	if (geteuid() == 0)
		argv[at++] = "--allow-run-as-root";
	if (oversubscribe)
		argv[at++] = "--oversubscribe";
	argv[at++] = program;
	argv[at++] = socket;
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

bool crew_start_mpi(struct crew *crew, uint32_t n, int timeout_ms)
{
	static const char *const places[] = {"../libexec/ncclsvc", NCCLSVC_LIBEXECDIR, NULL};
	char program[PATH_MAX];
	struct door door;
	*crew = (struct crew){.what = "baseline rank", .timeout_ms = timeout_ms};
	if (!find_program("ncclsvc-perf-mpi", "NCCLSVC_PERF_MPI", places, program,
			  sizeof(program))) {
		complain("--baseline mpi needs a build with Open MPI (libopenmpi-dev)");
		return false;
	}
	if (!door_open(&door, crew, n))
		return false;
	snprintf(crew->log, sizeof(crew->log), "%s/mpirun.log", private_dir());

	/* Oversubscription changes how Open MPI waits, so it is asked for only where it must be:
	 * more ranks than CPUs, or a machine whose slots mpirun counts differently. */
	bool oversubscribe = (long)n > sysconf(_SC_NPROCESSORS_ONLN);
	enum door_outcome outcome = DOOR_FAILED;
	if (run_mpirun(crew, program, door.socket, n, oversubscribe))
		outcome = door_admit(&door, crew);
	if (outcome == DOOR_REFUSED && !oversubscribe &&
	    run_mpirun(crew, program, door.socket, n, true))
		outcome = door_admit(&door, crew);
	if (outcome != DOOR_ENTERED && !caught_signal()) {
		complain("the Open MPI baseline did not start; mpirun said:");
		show_tail(crew->log);
	}
	door_close(&door);
	return outcome == DOOR_ENTERED;
}
