/* SPDX-License-Identifier: Apache-2.0
 * The command line. */
#ifndef PERF_OPTIONS_H
#define PERF_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu.h"
#include "job.h"

enum mode {
	MODE_COLLECTIVE,
	MODE_SUBMIT,
	MODE_SESSIONS,
	MODE_IDLE,
	MODE_CPU,
	MODE_OVERLAP,
	MODE_START,
	MODE_GPU_MEMORY,
	MODE_JOIN,
};

enum baseline { BASELINE_NONE, BASELINE_MPI, BASELINE_NCCL };

enum exit_code { EXIT_GOOD = 0, EXIT_ERROR = 1, EXIT_USAGE = 2, EXIT_WRONG = 3 };

#define ROOT_ALL (-1)

struct options {
	enum mode mode;
	unsigned op; /* MODE_COLLECTIVE: ncclsvc_op, SendRecv as PERF_SENDRECV */
	uint64_t min_bytes, max_bytes, step_bytes;
	uint64_t step_factor; /* 0: steps of step_bytes */
	uint64_t iters, warmup;
	unsigned checks;
	uint32_t types, redops; /* sets of bits by number */
	int root;
	enum sync sync;
	bool sync_given;
	uint32_t ranks;
	bool ranks_given, iters_given, bytes_given, max_given;
	bool spawn_daemon;
	uint32_t nodes; /* daemons that the ranks are spread over */
	const char *socket;
	bool json;
	const char *json_path; /* NULL: stdout */
	enum baseline baseline;
	unsigned rounds;
	double time_cap_s;
	bool no_ring, plain_memory;
	bool planned;
	unsigned lists;
	bool every_given; /* CPU time is told, too */
	uint64_t every_us;
	int timeout_ms;
	unsigned count, seconds, queued;
	/* On GPUs: */
	bool cuda;
	enum gpu_memory memory;
	bool memory_given;
	int gpus[PERF_RANKS_MAX]; /* CUDA ordinals, by rank */
	unsigned gpus_n;	  /* given with --gpus */
	unsigned compute_ms;
	bool while_listing;
	const char *command_line;
};

/* Fills options. Returns -1 to go on, or the exit status: --help and --version have printed, or the
 * usage error has been complained of. */
int options_parse(struct options *options, int argc, char **argv);

/* Settles what depends on other options. As options_parse. */
int options_check(struct options *options);
void options_default(struct options *options);
/* Complains of `what`, and returns EXIT_USAGE. */
int options_refuse(const char *format, const char *what);
extern const char options_help[];

/* "each", "own", "shared", "nccl": as the options and the JSON call them. */
const char *sync_name(const struct options *options);
const char *memory_name(const struct options *options);

/* "AllReduce", "SendRecv". */
const char *perf_op_name(unsigned op);

#endif
