/* SPDX-License-Identifier: Apache-2.0
 * Another user's processes: two ranks that reduce 16 B, and one that makes requests, through the
 * client library. With GPUs, the ranks are on GPUs, there are also requests for GPUs, and two more
 * ranks are an ordinary job: one rank is stopped, and the other's kernel waits for it. */
#ifndef ATTACK_BYSTANDER_H
#define ATTACK_BYSTANDER_H

#include "target.h"

#define BYSTANDERS 3   /* number of processes */
#define BUCKETS	   512 /* eight per power of two, in ns */

/* How long operations of one kind took. */
struct gauge {
	_Atomic uint64_t begun; /* start of the operation in progress; 0: none */
	_Atomic uint64_t done, worst;
	_Atomic uint32_t buckets[BUCKETS];
	char worst_of[32];   /* its name */
	char failure[160];   /* the first failure; "": none */
	_Atomic bool closed; /* the measurement is over: later failures do not count */
	const char *now_of;  /* the name of the operation in progress */
};

/* In memory shared by the processes. */
struct bystanders {
	const char *socket;
	bool gpus;
	_Atomic unsigned ready;
	struct gauge reduce, request;
	pid_t pids[BYSTANDERS];
	uint8_t id[128];
};

/* Starts them, and waits until all are working. False: they did not get there. */
bool bystanders_start(struct bystanders *b, struct target *t, bool gpus);
/* Discards what was measured so far. */
void bystanders_reset(struct bystanders *b);
/* Whether an operation that began before that time is still running. */
bool bystanders_held_up(const struct bystanders *b, uint64_t before_ns);
/* Ends the measurement: counts the operation in progress, and ignores later failures. True if that
 * operation is the longest. */
bool gauge_close(struct gauge *g);
double gauge_percentile_ms(const struct gauge *g, double part);
void bystanders_stop(struct bystanders *b);

/* For the bystanders themselves: one operation, and its failure. */
void gauge_begin(struct gauge *g, const char *name);
void gauge_end(struct gauge *g);
void gauge_fail(struct gauge *g, int result, const char *text);

/* bystander_gpus.c: processes, which return when they fail; and a whole session with memory of a
 * GPU. */
void gpu_reduces(struct bystanders *b);
void gpu_waits(struct bystanders *b);
void gpu_session(struct bystanders *b, int device);

#endif
