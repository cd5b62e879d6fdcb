/* SPDX-License-Identifier: Apache-2.0
 *
 * A small trainer: a language model of characters, an MLP in two stages, trained on 4 processes as
 * 2 x 2: pipeline by two, data by two. Micro-batches go through the pipeline by a plan (activations
 * one way, their gradients the other); gradients are summed over the data group by AllReduce.
 *
 *   model.c       the two stages: forward, backward, update
 *   text.c        the text and the samples of a step
 *   parallel.c    one rank of the 2 x 2; single.c: all of it in one process
 *   memory.c      its buffers, in shared memory or on a GPU
 *   checkpoint.c  what survives a crash
 *   launch.c      starts the ranks, and those that died once more
 */
#ifndef TRAINER_H
#define TRAINER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STAGES	 2
#define REPLICAS 2
#define RANKS	 (STAGES * REPLICAS)

/* ---- model.c ---- */

#define CONTEXT	   8  /* characters that the next one is guessed from */
#define EMBEDDING  12 /* numbers for each */
#define HIDDEN	   96
#define CHARACTERS 128 /* ASCII */
#define MICRO	   8   /* samples in a micro-batch */
#define MICROS	   4   /* of a replica, in a step */
#define BATCH	   (REPLICAS * MICROS * MICRO)

#define STAGE0_PARAMS (CHARACTERS * EMBEDDING + CONTEXT * EMBEDDING * HIDDEN + HIDDEN)
#define STAGE1_PARAMS (HIDDEN * HIDDEN + HIDDEN + HIDDEN * CHARACTERS + CHARACTERS)
#define ACTIVATIONS   ((size_t)MICRO * HIDDEN) /* what goes from stage 0 to stage 1 */

struct sample {
	uint8_t context[CONTEXT], next;
};

struct stage {
	int stage;
	size_t n;
	float *params, *velocity; /* [n] */
};

/* Deterministic initial values. False: out of memory. */
bool stage_make(struct stage *s, int stage);
void stage_free(struct stage *s);
void stage_init(struct stage *s);
/* act: [MICRO][HIDDEN] */
void stage0_forward(const struct stage *s, const struct sample *in, float *act);
/* Adds to grads what dact, the loss's gradient by act, asks for. */
void stage0_backward(const struct stage *s, const struct sample *in, const float *act,
		     const float *dact, float *grads);
/* Both ways at once: adds to grads, fills dact, and returns the sum of the samples' losses. */
double stage1_both(const struct stage *s, const struct sample *in, const float *act, float *dact,
		   float *grads);
/* grads: the sum over the batch. */
void stage_update(struct stage *s, const float *grads);

/* ---- text.c ---- */

struct text {
	uint8_t *at; /* below CHARACTERS */
	size_t n;
};

/* Complains and returns false if there is too little. */
bool text_read(struct text *t, const char *path);
void text_free(struct text *t);
/* A micro-batch of a step, the same whoever asks. */
void text_samples(const struct text *t, uint64_t step, int replica, int micro,
		  struct sample samples[MICRO]);

/* ---- checkpoint.c ---- */

/* The newest step that this rank can go on from; 0: the beginning. */
uint64_t checkpoint_newest(const char *dir, int rank);
/* Complain and return false. */
bool checkpoint_load(const char *dir, int rank, uint64_t step, struct stage *s);
bool checkpoint_save(const char *dir, int rank, uint64_t step, const struct stage *s,
		     uint64_t interval);

/* ---- parallel.c, single.c, launch.c ---- */

struct options {
	const char *text, *checkpoints, *losses; /* files; NULL: none */
	const char *program;
	uint64_t steps, interval; /* interval: between checkpoints */
	int rank;		  /* -1: start all of them */
	int nodes;		  /* daemons; in the socket's path, %r is the node */
	bool single, cuda, curve;
	int kill_rank; /* -1: none */
	uint64_t kill_step;
};

/* Trains as one process, or as options->rank; start_ns: when the process started. The exit status.
 */
int single_run(const struct options *o);
int rank_run(const struct options *o, uint64_t start_ns);
int launch_run(const struct options *o);

/* ---- main.c ---- */

uint64_t now_ns(void);
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

#define TIMES_FD "TRAINER_TIMES_FD" /* in a rank's environment */

/* How long it took until a rank's first step was done. */
struct times {
	int rank;
	const char *after; /* "start" of the process, or "failure" of another one */
	uint64_t from;	   /* step */
	double connect_ms, join_ms, plan_ms, step_ms, all_ms;
};
/* Shows it, or tells whoever has started the rank. */
void times_add(const struct times *t);

/* What a run shows of itself: losses into the file, and at the end as a curve. */
struct losses {
	const struct options *options;
	double *by_step; /* [steps] */
};
bool losses_open(struct losses *l, const struct options *o);
void losses_add(struct losses *l, uint64_t step, double loss);
void losses_close(struct losses *l);

#endif
