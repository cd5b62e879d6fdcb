/* SPDX-License-Identifier: Apache-2.0
 *
 * A small trainer: a language model of characters on D x H x P processes. Data parallelism divides
 * the batch, horizontal (tensor) parallelism the matrices of each layer, pipeline parallelism the
 * layers. With --zero, each replica keeps the optimizer's state of its part of the parameters
 * alone.
 *
 *   check.c       what is refused, by name, before anything is started
 *   stage.c       the tensors that a rank has, and which of them it updates
 *   model.c       the layers: forward and backward
 *   fixed.h       sums that have the same bits in any order
 *   text.c        the text and the samples of a step
 *   buffers.c     a rank's buffers, in shared memory or on a GPU
 *   groups.c      its communicators, and how it waits for the others
 *   pipeline.c    the plan of a step, and what each slot of it exchanges
 *   step.c        a step: forward and backward of all layers, and the optimizer
 *   trainer_rank.c  a rank's life, from the connection to the end
 *   checkpoint.c  what survives a crash
 *   launch.c      starts the ranks, and those that died once more
 *   show.c        losses and times
 */
#ifndef TRAINER_H
#define TRAINER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RANKS_MAX 64

#define CONTEXT	   8  /* characters from which the next one is predicted */
#define EMBEDDING  12 /* numbers per character */
#define WIDTH	   (CONTEXT * EMBEDDING)
#define HIDDEN	   48  /* a layer's inner width, which horizontal parallelism divides */
#define LAYERS	   4   /* divided by pipeline parallelism */
#define CHARACTERS 128 /* ASCII */
#define MICRO	   8   /* samples in a micro-batch, the unit that goes through the pipeline */

struct options {
	const char *text, *checkpoints, *losses; /* files; NULL: none */
	uint64_t steps, interval;		 /* interval: steps between checkpoints */
	uint64_t batch;				 /* samples per update, of all replicas */
	uint64_t accumulate;			 /* steps per update */
	int data, horizontal, pipeline;
	int rank;  /* -1: start all of them */
	int nodes; /* daemons; in the socket's path, %r is the node */
	bool zero, nccl;
	bool single, cuda, curve;
	int kill_rank; /* -1: none */
	uint64_t kill_step;
};

static inline int ranks_of(const struct options *o)
{
	return o->data * o->horizontal * o->pipeline;
}

/* One replica's micro-batches per step. */
static inline uint64_t micros_of(const struct options *o)
{
	return o->batch / ((uint64_t)o->data * o->accumulate * MICRO);
}

/* ---- check.c: prints errors and returns false ---- */

/* True if the options fit together. */
bool check_options(const struct options *o);
/* True if the daemon's world fits the options. */
bool check_daemon(const struct options *o);
/* A rank's socket; NULL: the library's default. The world's first ranks are node 0's. */
const char *socket_of(const struct options *o, int rank, char *path, size_t size);

/* ---- text.c ---- */

struct text {
	uint8_t *at; /* below CHARACTERS */
	size_t n;
};

struct sample {
	uint8_t context[CONTEXT], next;
};

/* Prints an error and returns false if the text is too short. */
bool text_read(struct text *t, const char *path);
void text_free(struct text *t);
/* A hash of a number. */
uint64_t mix(uint64_t x);
/* Micro-batch number `micro` of the run, counted over all steps and replicas. */
void text_samples(const struct text *t, uint64_t micro, struct sample samples[MICRO]);

/* ---- trainer_rank.c, launch.c ---- */

/* Trains as options->rank, or as one process without a daemon. start_ns: when the process started.
 * Returns the exit status. */
int rank_run(const struct options *o, uint64_t start_ns);
int launch_run(const struct options *o);

/* ---- show.c ---- */

uint64_t now_ns(void);
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* The times until a rank's first step was done. */
struct times {
	int rank;
	const char *after; /* "start" of the process, or "failure" of another one */
	uint64_t from;	   /* step */
	double connect_ms, join_ms, plan_ms, step_ms, all_ms;
};
/* Opens a file that takes the times of this process and its children. -1: none. */
int times_open(void);
/* Prints it, or adds it to the file. */
void times_add(const struct times *t);

/* Output of a run: losses in the file, and a curve at the end. */
struct losses {
	const struct options *options;
	double *by_step; /* [steps] */
};
bool losses_open(struct losses *l, const struct options *o);
void losses_add(struct losses *l, uint64_t step, double loss);
void losses_close(struct losses *l);

#endif
