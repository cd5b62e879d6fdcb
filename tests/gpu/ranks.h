/* SPDX-License-Identifier: Apache-2.0
 * Ranks on GPUs, one process each, and their daemon. */
#ifndef TESTS_GPU_RANKS_H
#define TESTS_GPU_RANKS_H

#include "tests.h"

/* The state of a rank's process. */
struct rank {
	struct client *c;
	int rank, n, gpu;
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	CUstream stream;	/* set on the session */
	ncclsvc_result may_end; /* kernels_may_end */
};

/* The number of GPUs that most tests use: all that they may, up to 4. */
int ranks_count(void);

/* rank_prepare opens everything except the communicator, which rank_join joins. rank_open does
 * both, on GPU c->rank, unless ranks share GPUs (setup.per_gpu). */
void rank_prepare(struct rank *r, struct client *c, int gpu);
void rank_join(struct rank *r);
void rank_open(struct rank *r, struct client *c);
void rank_close(struct rank *r);
/* Checks that the communicator is usable: sums over all ranks on the rank's stream. */
void rank_check_usable(struct rank *r);
/* Waits for the task, which must succeed. */
void rank_wait(struct rank *r, ncclsvc_task task);
/* Waits for the stream and the session's tasks. All of them must succeed. */
void rank_sync(struct rank *r);

void gpu_daemon_start(struct daemon *d);
/* Waits until the workers hold no trainer's memory, and stops the daemon. */
void gpu_daemon_stop(struct daemon *d);
/* Starts a daemon, runs n ranks to their end, and stops the daemon. */
void ranks_run(int n, client_main *main, void *arg);
/* Runs two ranks as threads of this process. */
void rank_threads(const struct client *c, void *(*main)(void *rank));
/* Waits for the ranks until the test's time is up. */
void ranks_end(struct client *clients, int n);

ncclsvc_device_info device_info(ncclsvc_session *session, int device);
/* Waits until the workers hold no imported memory. */
void workers_finish(const struct daemon *d);

/* Checks that the output of `ncclsvc-ctl why` contains the text. */
void why_says(const struct daemon *d, const char *text);

/* Rank functions that run on one node or several. */
client_main random_rank, values_rank, mismatch_rank, circle_rank, timeout_rank;

/* The number of open fds of each worker. */
struct worker_fds {
	int n, pid[RANKS_MAX], fds[RANKS_MAX];
};
void worker_fds_note(const struct daemon *d, struct worker_fds *w);
/* Checks that no worker that still runs has more open fds than before. */
void worker_fds_check(const struct daemon *d, const struct worker_fds *before);

/* The number of file descriptors that the process has open. */
int open_fds(int pid);

#endif
