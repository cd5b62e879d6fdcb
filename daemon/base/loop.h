/* SPDX-License-Identifier: Apache-2.0
 * The supervisor's event loop: libuv's, how many handles of it are open, and one timer for all
 * deadlines. */
#ifndef BASE_LOOP_H
#define BASE_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct loop {
	uv_loop_t *uv;
	unsigned handles; /* libuv handles still open */
	bool closing;	  /* nothing new begins */
	uv_timer_t timer;
	uint64_t next_deadline_ns; /* what the timer is set for; 0: nothing */
	/* Ends what is overdue; returns the next deadline, 0 for none. */
	uint64_t (*expire)(void *arg, uint64_t now);
	void *arg;
};

/* What would hold the loop for long: run is called in another thread, then done in the loop's.
 * In between, what the job works on is the other thread's, and the loop stays open. */
struct loop_job {
	void (*run)(struct loop_job *job);
	void (*done)(struct loop_job *job);
	struct loop *loop;
	uv_work_t work;
};

/* libuv ends the process when it gets no memory: it gets it from the reserve, too. To be called
 * before anything else of libuv. */
void loop_init_memory(void);

void loop_open(struct loop *l, uv_loop_t *uv, uint64_t (*expire)(void *arg, uint64_t now),
	       void *arg);
/* Has expire called by then. */
void loop_deadline(struct loop *l, uint64_t at_ns);
/* steps: of some 20 ns each. A job of few is run, and done, at once. */
void loop_run_job(struct loop *l, struct loop_job *job, uint64_t steps);
/* No deadline passes any more. The loop must run until no handle is open. */
void loop_close(struct loop *l);

#endif
