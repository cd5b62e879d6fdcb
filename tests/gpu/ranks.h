/* SPDX-License-Identifier: Apache-2.0
 * Ranks on GPUs, a process each, and the daemon they use. */
#ifndef TESTS_GPU_RANKS_H
#define TESTS_GPU_RANKS_H

#include "tests.h"

/* What a rank's process has. */
struct rank {
	struct client *c;
	int rank, n, gpu;
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	CUstream stream; /* set on the session */
};

/* The GPUs that a test uses: all it may, 4 at most. */
int ranks_count(void);

/* Rank c->rank on GPU c->rank. The first alone: all but the communicator. */
void rank_prepare(struct rank *r, struct client *c, int gpu);
void rank_join(struct rank *r);
void rank_open(struct rank *r, struct client *c);
void rank_close(struct rank *r);
/* Sums over all ranks on the rank's stream, and checks: is the communicator usable? */
void rank_check_usable(struct rank *r);
/* Waits for the task: it is good. */
void rank_wait(struct rank *r, ncclsvc_task task);
/* The stream's work is over; its tasks, too, and none has failed. */
void rank_sync(struct rank *r);

void gpu_daemon_start(struct daemon *d);
/* Also checks that no worker holds anything of a trainer's. */
void gpu_daemon_stop(struct daemon *d);
/* A daemon, n ranks to their end, the daemon's end. */
void ranks_run(int n, client_main *main, void *arg);
/* Waits for ranks until the test's time is up. */
void ranks_end(struct client *clients, int n);

ncclsvc_device_info device_info(ncclsvc_session *session, int device);
/* Waits until the workers have let go all that trainers gave them. */
void workers_finish(const struct daemon *d);

/* ncclsvc-ctl why has the text in what it prints. */
void why_says(const struct daemon *d, const char *text);

/* Ranks that work on one node or several. */
client_main random_rank, values_rank, mismatch_rank, circle_rank, timeout_rank;

/* Open fds of each worker. */
struct worker_fds {
	int n, pid[RANKS_MAX], fds[RANKS_MAX];
};
void worker_fds_note(const struct daemon *d, struct worker_fds *w);
/* The same workers hold no more fds than that. */
void worker_fds_check(const struct daemon *d, const struct worker_fds *before);

#endif
