/* SPDX-License-Identifier: Apache-2.0
 * Through MPS a communicator slot has two streams on its GPU, and uses the one that a trainer hears
 * of sooner. */
#ifndef WORKER_SECOND_STREAM_H
#define WORKER_SECOND_STREAM_H

#include "gpu_api.h"
#include <stdbool.h>
#include <stdint.h>

struct comm_slot;
struct launch;
struct worker;

#define PROBE_TASKS   8	 /* that may be under way and timed */
#define PROBE_SHARP   9	 /* of one stream */
#define PROBE_SAMPLES 65 /* if few are sharp: while a worker launches it does not look */

/* How soon a trainer's stream hears of a slot's streams. */
struct stream_probe {
	bool on;
	uint32_t slot, session, timeline;
	unsigned side; /* of the two streams, in the order of the probe */
	uint64_t begun_ns;
	/* What each task took at most: all, and those of which that is nearly what they took. */
	unsigned nall, nsharp;
	uint64_t all[PROBE_SAMPLES], sharp[PROBE_SHARP];
	uint64_t first_ns; /* the first side's median */
	/* Launched on that side, the first of which is timed. */
	unsigned ntasks;
	struct {
		uint64_t seq, value;
	} tasks[PROBE_TASKS];
	uint64_t before_ns; /* when it was not yet over, at the last look */
	uint64_t over_ns;   /* when it was, at the first; 0: not yet */
	uint64_t looked_ns;
	uint64_t launched_ns; /* begun to be: whatever slot's launch was last */
};

CUresult second_stream_make(const struct worker *w, struct comm_slot *l, int priority);
/* Each may be NULL. */
void second_stream_destroy(CUstream stream, CUstream second_stream);
/* Around the last launch of a group. */
void second_stream_before(struct worker *w, const struct launch *l);
void second_stream_after(struct worker *w, const struct launch *l);
/* Before the session is closed. */
void second_stream_forget(struct worker *w, uint32_t session);
/* As often as can be while stream_probe.ntasks is not 0. */
void second_stream_watch(struct worker *w);

#endif
