/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf: measures the service, in the terms of nccl-tests. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "child_process.h"
#include "modes.h"
#include "options.h"
#include "perf_output.h"
#include "private_daemon.h"

/* The command line for the JSON, to repeat the run. NULL: out of memory. */
static char *join_arguments(int argc, char **argv)
{
	size_t size = 1;
	for (int i = 0; i < argc; i++)
		size += strlen(argv[i]) + 1;
	char *line = calloc(1, size);
	for (int i = 0; line && i < argc; i++) {
		if (i)
			strcat(line, " ");
		strcat(line, argv[i]);
	}
	return line;
}

static int run(const struct options *o, const char *socket)
{
	switch (o->mode) {
	case MODE_COLLECTIVE:
		return collective_run(o, socket);
	case MODE_SESSIONS:
		return sessions_run(o, socket);
	case MODE_JOIN:
		return join_run(o, socket);
	case MODE_CROSSOVER:
		return crossover_run(o);
	}
	return EXIT_ERROR;
}

/* Checks this before starting programs whose errors would be longer. */
static bool has_driver(void)
{
	struct gpu gpu;
	bool good = gpu_load(&gpu);
	if (!good)
		complain("--device cuda needs NVIDIA's driver: %s", gpu.text);
	return good;
}

int main(int argc, char **argv)
{
	struct options o;
	/* Taken before getopt reorders the arguments. */
	char *line = join_arguments(argc, argv);
	int status = options_parse(&o, argc, argv);
	if (status >= 0 || !line) {
		free(line);
		return line ? status : EXIT_ERROR;
	}
	o.command_line = line;
	catch_signals();
	status = EXIT_ERROR;
	if (!report_possible(&o) || (o.cuda && !has_driver()))
		status = EXIT_ERROR;
	else if (!o.spawn_daemon)
		status = run(&o, o.socket);
	else if (private_daemon_start(&o))
		status = run(&o, private_daemon_socket());
	if (!private_daemon_stop() && status == EXIT_GOOD)
		status = EXIT_ERROR;
	remove_private_dir();
	free(line);
	if (caught_signal()) {
		signal(caught_signal(), SIG_DFL);
		raise(caught_signal());
	}
	return status;
}
