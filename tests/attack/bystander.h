/* SPDX-License-Identifier: Apache-2.0
 * Another user's processes: two ranks that reduce 16 B, and one that makes requests, by the client
 * library. With GPUs, the ranks are on GPUs, requests are made for GPUs, too, and two more ranks
 * are an ordinary job: one rank is stopped, and the other rank's kernel waits for it. */
#ifndef ATTACK_BYSTANDER_H
#define ATTACK_BYSTANDER_H

#include "target.h"

#define BYSTANDERS 3   /* processes */
#define BUCKETS	   512 /* eight to each power of two, of ns */

/* How long operations of one kind took. */
struct gauge {
	_Atomic uint64_t begun; /* of the one under way; 0: none */
	_Atomic uint64_t done, worst;
	_Atomic uint32_t buckets[BUCKETS];
	char worst_of[32];   /* its name */
	char failure[160];   /* the first; "": none */
	_Atomic bool closed; /* the end of one bystander is no failure of another */
	const char *now_of;  /* the name of what is under way */
};

/* In memory that the processes share. */
struct bystanders {
	const char *socket;
	bool gpus;
	_Atomic unsigned ready;
	struct gauge reduce, request;
	pid_t pids[BYSTANDERS];
	uint8_t id[128];
};

/* Starts them, and waits until all are at work. False: they did not get there. */
bool bystanders_start(struct bystanders *b, struct target *t, bool gpus);
/* Forgets what was measured so far. */
void bystanders_reset(struct bystanders *b);
/* Is an operation under way that began before that time? */
bool bystanders_held_up(const struct bystanders *b, uint64_t before_ns);
/* Ends the measurement: counts the operation that is still under way, and keeps no later failure.
 * True if that operation is the longest. */
bool gauge_close(struct gauge *g);
double gauge_percentile_ms(const struct gauge *g, double part);
void bystanders_stop(struct bystanders *b);

/* For the bystanders themselves: one operation, and its failure. */
void gauge_begin(struct gauge *g, const char *name);
void gauge_end(struct gauge *g);
void gauge_fail(struct gauge *g, int result, const char *text);

/* bystander_gpus.c: processes, which return when they fail; and a session with memory of a GPU,
 * from its first word to its last. */
void gpu_reduces(struct bystanders *b);
void gpu_waits(struct bystanders *b);
void gpu_session(struct bystanders *b, int device);

#endif
