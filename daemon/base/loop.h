/* SPDX-License-Identifier: Apache-2.0
 * The supervisor's event loop: a libuv loop, a count of its open handles, and one timer for all
 * deadlines. */
#ifndef BASE_LOOP_H
#define BASE_LOOP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct loop;

/* A job that would block the loop for long: run is called in a thread of its own, then done in the
 * loop's thread. In between, that thread owns the job's data, and the loop stays open. */
struct loop_job {
	void (*run)(struct loop_job *job);
	void (*done)(struct loop_job *job);
	struct loop *loop;
	pthread_t thread;
	struct loop_job *next; /* in the list of jobs that have run */
};

struct loop {
	uv_loop_t *uv;
	unsigned handles; /* libuv handles still open */
	bool closing;	  /* no new work starts */
	uv_timer_t timer;
	uint64_t next_deadline_ns; /* when the timer fires; 0: it is not set */
	unsigned jobs;		   /* not done yet */
	uv_async_t on_job;	   /* a job has run */
	pthread_mutex_t job_lock;
	struct loop_job *jobs_run;
	/* Ends what is overdue; returns the next deadline, or 0 for none. */
	uint64_t (*expire)(void *arg, uint64_t now);
	void *arg;
};

/* libuv aborts the process when an allocation fails, so this lets it use the reserve, too. Call
 * this before any other function of libuv. */
void loop_init_memory(void);

void loop_open(struct loop *l, uv_loop_t *uv, uint64_t (*expire)(void *arg, uint64_t now),
	       void *arg);
/* Calls expire at that time, but not before the loop has polled its descriptors again. Periodic
 * ticks (workers, MPS, nodes, systemd's watchdog) and deadlines outside a server's life (cluster,
 * own_socket, the daemon's end) have timers of their own. */
void loop_deadline(struct loop *l, uint64_t at_ns);
/* steps: of about 20 ns each. A short job runs synchronously, as does any job if no thread can be
 * created. */
void loop_run_job(struct loop *l, struct loop_job *job, uint64_t steps);
/* Stops the timer for deadlines. The loop must then run until no handle is open. */
void loop_close(struct loop *l);

#endif
