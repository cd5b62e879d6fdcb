/* SPDX-License-Identifier: Apache-2.0
 * The command line. */
#ifndef PERF_OPTIONS_H
#define PERF_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "command.h"
#include "service.h"

enum mode { MODE_COLLECTIVE, MODE_SESSIONS, MODE_JOIN, MODE_CROSSOVER };

enum baseline { BASELINE_NONE, BASELINE_MPI, BASELINE_NCCL, BASELINE_PINGPONG };

enum exit_code { EXIT_GOOD = 0, EXIT_ERROR = 1, EXIT_USAGE = 2, EXIT_WRONG = 3 };

#define ROOT_ALL   (-1)
#define ROUNDS_MAX 1000
#define QUEUED_MAX 190000 /* less than the daemon lets a user have pending, by default */

/* The options of which it matters whether they were given: bits. */
enum given {
	GIVEN_MIN = 1,
	GIVEN_MAX = 2,
	GIVEN_RANKS = 4,
	GIVEN_SYNC = 8,
	GIVEN_MEMORY = 16,
	GIVEN_EVERY = 32,
	GIVEN_CAP = 64,
};

struct options {
	enum mode mode;
	unsigned op;	/* MODE_COLLECTIVE: ncclsvc_op, SendRecv as PERF_SENDRECV */
	unsigned given; /* enum given */
	uint64_t min_bytes, max_bytes, step_bytes;
	uint64_t step_factor; /* 0: steps of step_bytes */
	uint64_t iters, warmup;
	unsigned checks;
	uint32_t types, redops; /* sets of bits by number */
	int root;
	enum sync sync;
	unsigned ranks;
	bool spawn_daemon;
	unsigned nodes; /* daemons that the ranks are spread over */
	const char *socket;
	bool json;
	const char *json_path; /* NULL: stdout */
	const char *plot_path; /* NULL: none */
	enum baseline baseline;
	unsigned rounds;
	double time_cap_s;
	bool no_ring;
	bool planned;
	unsigned lists;	   /* 0: none */
	bool latency;	   /* the time of single operations, too */
	bool with_cpu;	   /* the CPU time is measured, too: --every was given */
	uint64_t every_us; /* 0: one operation behind the other */
	double timeout_s;
	int timeout_ms;
	unsigned count;	 /* of sessions */
	unsigned queued; /* tasks beside; 0: none */
	enum memory memory;
	/* On GPUs: */
	bool cuda;
	int gpus[PERF_RANKS_MAX]; /* CUDA ordinals, by rank */
	unsigned gpus_n;	  /* given with --gpus */
	unsigned compute_ms;	  /* 0: no kernels beside the operations */
	unsigned graph;		  /* so many operations in a CUDA graph; 0: they are in none */
	bool before;		  /* a short kernel before each operation */
	bool write;		  /* MODE_CROSSOVER: what was measured, to a file */
	const char *write_path;	  /* NULL: where the daemon looks for it */
	const char *command_line;
};

/* Fills options. Returns -1 to go on, or the exit status: --help and --version have printed, or the
 * usage error has been complained of. */
int options_parse(struct options *options, int argc, char **argv);

/* Settles what depends on other options. As options_parse. */
int options_check(struct options *options);
/* Complains of `what`, and returns EXIT_USAGE. */
int options_refuse(const char *format, const char *what);

/* "each", "own", "shared": as the options and the JSON call them. */
const char *sync_name(const struct options *options);
const char *memory_name(const struct options *options);

/* "AllReduce", "SendRecv". */
const char *perf_op_name(unsigned op);

#endif
