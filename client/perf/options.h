/* SPDX-License-Identifier: Apache-2.0
 * The command line. */
#ifndef PERF_OPTIONS_H
#define PERF_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum mode { MODE_COLLECTIVE, MODE_SUBMIT, MODE_SESSIONS, MODE_IDLE };

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
	bool blocking;
	uint32_t ranks;
	bool ranks_given, iters_given;
	bool spawn_daemon;
	const char *socket;
	bool json;
	const char *json_path; /* NULL: stdout */
	bool baseline_mpi;
	unsigned rounds;
	double time_cap_s;
	bool no_ring, plain_memory;
	int timeout_ms;
	unsigned count, seconds, queued;
	bool while_listing;
	const char *command_line;
};

/* Fills options. Returns -1 to go on, or the exit status: --help and --version have printed, or the
 * usage error has been complained of. */
int options_parse(struct options *options, int argc, char **argv);

/* "AllReduce", "SendRecv". */
const char *perf_op_name(unsigned op);

#endif
