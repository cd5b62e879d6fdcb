/* SPDX-License-Identifier: Apache-2.0
 * The baseline on GPUs: a process of ncclsvc-perf-nccl for each. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "build_config.h"
#include "listener.h"
#include "process.h"

static bool run_rank(struct crew *crew, uint32_t rank, int gpu, const char *program,
		     const char *socket, int log)
{
	char rank_text[16], n_text[16], gpu_text[16];
	snprintf(rank_text, sizeof(rank_text), "%u", rank);
	snprintf(n_text, sizeof(n_text), "%u", crew->n);
	snprintf(gpu_text, sizeof(gpu_text), "%d", gpu);
	const char *argv[] = {program, socket, rank_text, n_text, gpu_text, NULL};
	pid_t pid = spawn((char *const *)argv, log);
	if (pid < 0) {
		complain("can't run %s: %s", program, strerror(errno));
		return false;
	}
	crew->members[rank].pid = pid;
	return true;
}

static bool run_ranks(struct crew *crew, const int *gpus, const char *program, const char *socket)
{
	int log = open(crew->log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	bool good = log >= 0;
	if (!good)
		complain("can't write %s: %s", crew->log, strerror(errno));
	for (uint32_t i = 0; good && i < crew->n; i++)
		good = run_rank(crew, i, gpus[i], program, socket, log);
	if (log >= 0)
		close(log);
	return good;
}

bool crew_start_nccl(struct crew *crew, const int *gpus, uint32_t n, int timeout_ms)
{
	static const char *const places[] = {"../libexec/ncclsvc", NCCLSVC_LIBEXECDIR, NULL};
	char program[PATH_MAX];
	struct door door;
	*crew = (struct crew){
		.what = "NCCL rank", .timeout_ms = timeout_ms, .grace_ms = CREW_GPU_GRACE_MS};
	if (!find_program("ncclsvc-perf-nccl", "NCCLSVC_PERF_NCCL", places, program,
			  sizeof(program)) ||
	    !door_open(&door, crew, n))
		return false;
	snprintf(crew->log, sizeof(crew->log), "%s/nccl.log", private_dir());
	bool good = run_ranks(crew, gpus, program, door.socket) &&
		    door_admit(&door, crew) == DOOR_ENTERED;
	if (!good && !caught_signal()) {
		complain("the NCCL baseline did not start; it said:");
		show_tail(crew->log);
	}
	door_close(&door);
	return good;
}
