/* SPDX-License-Identifier: Apache-2.0
 * Programs whose daemon is restarted again and again, while they check every result. */
#ifndef TESTS_RESUME_PROGRAMS_H
#define TESTS_RESUME_PROGRAMS_H

#include "harness.h"

#define RANKS 4
#define COUNT 3000

enum { READY = 1, GO };

/* Shared by the test and its clients. */
extern struct shared_state {
	_Atomic int stop;
	_Atomic unsigned iterations[RANKS];
	_Atomic unsigned failed, missed;
} * shared_state;

extern char killed;	  /* the clients' argument: the daemon ends by SIGKILL */
extern unsigned progress; /* iterations of each rank between two restarts */
extern const int all_ranks[RANKS];

/* Called before the daemon is started: sessions survive it from then on. */
void share_state(void);

int32_t value_of(int rank, unsigned round, int i);
void fill(int32_t *v, int rank, unsigned round);
void check_sum(const int32_t *v, const int *ranks, int n, unsigned round);

/* With killed daemons of several nodes only. */
bool is_missed(const struct client *me, ncclsvc_result r);
/* Waits for the task. False: a daemon was killed, and this rank lacks the result. */
bool has_ended(const struct client *me, ncclsvc_session *s, ncclsvc_task task);
/* True: a rank was told to stop. */
bool agree_to_stop(const struct client *me, ncclsvc_session *s, ncclsvc_comm *comm);
/* Reductions, messages and splits. */
void work(struct client *me);

/* By SIGTERM, or by SIGKILL. On several nodes, each call restarts another node. */
void restart(struct daemon *d);
void kill_and_start(struct daemon *d);
/* Runs `main` on all ranks, and calls `again` several times meanwhile. */
void run(client_main *main, void (*again)(struct daemon *d), void *killed);

#endif
