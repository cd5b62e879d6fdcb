/* SPDX-License-Identifier: Apache-2.0
 * The command line. */
#ifndef PERF_OPTIONS_H
#define PERF_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "rank_command.h"
#include "service.h"

enum mode { MODE_COLLECTIVE, MODE_SESSIONS, MODE_JOIN, MODE_CROSSOVER };

enum baseline { BASELINE_NONE, BASELINE_MPI, BASELINE_NCCL, BASELINE_PINGPONG };

enum exit_code { EXIT_GOOD = 0, EXIT_ERROR = 1, EXIT_USAGE = 2, EXIT_WRONG = 3 };

#define ROOT_ALL   (-1)
#define ROUNDS_MAX 1000
#define QUEUED_MAX 190000 /* less than a daemon's default limit of pending tasks per user */

/* Bits for options where it matters whether they were given. */
enum given {
	GIVEN_MIN = 1,
	GIVEN_MAX = 2,
	GIVEN_RANKS = 4,
	GIVEN_SYNC = 8,
	GIVEN_EVERY = 16,
	GIVEN_CAP = 32,
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
	unsigned nodes; /* number of daemons over which the ranks are spread */
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
	bool latency;	   /* also the time of single operations */
	bool with_cpu;	   /* also measure CPU time: --every was given */
	uint64_t every_us; /* 0: operations without pauses */
	double timeout_s;
	int timeout_ms;
	unsigned count;	 /* number of sessions */
	unsigned queued; /* number of tasks beside; 0: none */
	/* On GPUs: */
	bool cuda;
	unsigned blocks; /* the most of a kernel; 0: no limit */
	bool copy_engines;
	int gpus[PERF_RANKS_MAX]; /* CUDA device numbers, by rank */
	unsigned gpus_n;	  /* given with --gpus */
	unsigned compute_ms;	  /* 0: no kernels beside the operations */
	unsigned graph;		  /* operations per CUDA graph; 0: no graphs */
	bool before;		  /* a short kernel before each operation */
	bool write;		  /* MODE_CROSSOVER: write the result to a file */
	const char *write_path;	  /* NULL: where the daemon looks for it */
	const char *command_line;
};

/* Fills options. Returns -1 to continue, or the exit status if --help, --version or a usage error
 * has been printed. */
int options_parse(struct options *options, int argc, char **argv);

/* Settles what depends on other options. Returns as options_parse. */
int options_check(struct options *options);
/* Prints an error about `what`, and returns EXIT_USAGE. */
int options_refuse(const char *format, const char *what);

/* "each", "stream" or "last". */
const char *sync_name(const struct options *options);

/* "AllReduce", "SendRecv". */
const char *perf_op_name(unsigned op);

#endif
