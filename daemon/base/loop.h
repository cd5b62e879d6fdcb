/* SPDX-License-Identifier: Apache-2.0
 * The supervisor's event loop: libuv's, how many handles of it are open, and one timer for all
 * deadlines. */
#ifndef BASE_LOOP_H
#define BASE_LOOP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct loop;

/* A job that would hold the loop for long: run is called in a thread of its own, then done in the
 * loop's. In between, that thread owns what the job works on, and the loop stays open. */
struct loop_job {
	void (*run)(struct loop_job *job);
	void (*done)(struct loop_job *job);
	struct loop *loop;
	pthread_t thread;
	struct loop_job *next; /* of those that were run */
};

struct loop {
	uv_loop_t *uv;
	unsigned handles; /* libuv handles still open */
	bool closing;	  /* nothing new begins */
	uv_timer_t timer;
	uint64_t next_deadline_ns; /* what the timer is set for; 0: nothing */
	unsigned jobs;		   /* that are not done */
	uv_async_t on_job;	   /* one was run */
	pthread_mutex_t job_lock;
	struct loop_job *jobs_run;
	/* Ends what is overdue; returns the next deadline, 0 for none. */
	uint64_t (*expire)(void *arg, uint64_t now);
	void *arg;
};

/* libuv ends the process when it gets no memory: it gets it from the reserve, too. To be called
 * before anything else of libuv. */
void loop_init_memory(void);

void loop_open(struct loop *l, uv_loop_t *uv, uint64_t (*expire)(void *arg, uint64_t now),
	       void *arg);
/* Has expire called then, but not before the loop has looked at its descriptors again. */
void loop_deadline(struct loop *l, uint64_t at_ns);
/* steps: of some 20 ns each. A job of few is run, and done, at once; so is any if there can be no
 * thread. */
void loop_run_job(struct loop *l, struct loop_job *job, uint64_t steps);
/* No deadline passes any more. The loop must run until no handle is open. */
void loop_close(struct loop *l);

#endif
