/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "build_config.h"
#include "lists.h"
#include "ncclsvc.h"
#include "process.h"
#include "values.h"
#include "work.h"

enum {
	OPT_SPAWN = 256,
	OPT_SOCKET,
	OPT_RANKS,
	OPT_NODES,
	OPT_ROUNDS,
	OPT_TIME_CAP,
	OPT_BASELINE,
	OPT_DEVICE,
	OPT_PLAIN,
	OPT_NO_RING,
	OPT_TIMEOUT,
	OPT_JSON,
	OPT_COUNT,
	OPT_SECONDS,
	OPT_QUEUED,
	OPT_LISTING,
	OPT_SYNC,
	OPT_MEMORY,
	OPT_GPUS,
	OPT_COMPUTE,
	OPT_PLAN,
	OPT_LIST,
	OPT_EVERY,
};

static const struct option long_options[] = {
	{"minbytes", required_argument, NULL, 'b'},
	{"maxbytes", required_argument, NULL, 'e'},
	{"stepbytes", required_argument, NULL, 'i'},
	{"stepfactor", required_argument, NULL, 'f'},
	{"iters", required_argument, NULL, 'n'},
	{"warmup_iters", required_argument, NULL, 'w'},
	{"warmup-iters", required_argument, NULL, 'w'},
	{"check", required_argument, NULL, 'c'},
	{"datatype", required_argument, NULL, 'd'},
	{"op", required_argument, NULL, 'o'},
	{"root", required_argument, NULL, 'r'},
	{"blocking", required_argument, NULL, 'z'},
	{"spawn-daemon", no_argument, NULL, OPT_SPAWN},
	{"socket", required_argument, NULL, OPT_SOCKET},
	{"ranks", required_argument, NULL, OPT_RANKS},
	{"nodes", required_argument, NULL, OPT_NODES},
	{"rounds", required_argument, NULL, OPT_ROUNDS},
	{"time-cap", required_argument, NULL, OPT_TIME_CAP},
	{"baseline", required_argument, NULL, OPT_BASELINE},
	{"device", required_argument, NULL, OPT_DEVICE},
	{"plain-memory", no_argument, NULL, OPT_PLAIN},
	{"no-ring", no_argument, NULL, OPT_NO_RING},
	{"timeout", required_argument, NULL, OPT_TIMEOUT},
	{"json", optional_argument, NULL, OPT_JSON},
	{"count", required_argument, NULL, OPT_COUNT},
	{"seconds", required_argument, NULL, OPT_SECONDS},
	{"queued", required_argument, NULL, OPT_QUEUED},
	{"while-listing", no_argument, NULL, OPT_LISTING},
	{"sync", required_argument, NULL, OPT_SYNC},
	{"memory", required_argument, NULL, OPT_MEMORY},
	{"gpus", required_argument, NULL, OPT_GPUS},
	{"compute-ms", required_argument, NULL, OPT_COMPUTE},
	{"plan", no_argument, NULL, OPT_PLAN},
	{"list", required_argument, NULL, OPT_LIST},
	{"every", required_argument, NULL, OPT_EVERY},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, 'V'},
	{NULL, 0, NULL, 0},
};

const char *perf_op_name(unsigned op)
{
	return op == PERF_SENDRECV ? "SendRecv" : ncclsvc_op_name(op);
}

static bool parse_operation(struct options *o, const char *text)
{
	static const struct {
		const char *name;
		enum mode mode;
	} modes[] = {
		{"submit", MODE_SUBMIT},
		{"sessions", MODE_SESSIONS},
		{"idle", MODE_IDLE},
		{"cpu", MODE_CPU},
		{"overlap", MODE_OVERLAP},
		{"start", MODE_START},
		{"gpu-memory", MODE_GPU_MEMORY},
		{"join", MODE_JOIN},
	};
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		if (same_name(text, modes[i].name)) {
			o->mode = modes[i].mode;
			return true;
		}
	}
	o->mode = MODE_COLLECTIVE;
	for (o->op = NCCLSVC_ALL_REDUCE; o->op <= NCCLSVC_BARRIER; o->op++) {
		if (o->op != NCCLSVC_RECV && same_name(text, perf_op_name(o->op)))
			return true;
	}
	return false;
}

/* Applies one option. False: its argument is bad. */
static bool apply(struct options *o, int option, const char *arg)
{
	uint64_t n = 0;
	unsigned choice = 0;
	double s = 0;
	bool good = true;
	switch (option) {
	case 'b':
		o->bytes_given = true;
		return parse_size(arg, &o->min_bytes);
	case 'e':
		o->max_given = true;
		return parse_size(arg, &o->max_bytes);
	case 'i':
		return parse_size(arg, &o->step_bytes);
	case 'f':
		return parse_number(arg, 1, 65536, &o->step_factor);
	case 'n':
		o->iters_given = true;
		return parse_number(arg, 1, 1000000000, &o->iters);
	case 'w':
		return parse_number(arg, 0, 1000000000, &o->warmup);
	case 'c':
		good = parse_number(arg, 0, 1000000, &n);
		o->checks = (unsigned)n;
		return good;
	case 'd':
		return parse_type(arg, &o->types);
	case 'o':
		return parse_redop(arg, &o->redops);
	case 'r':
		if (same_name(arg, "all") || strcmp(arg, "-1") == 0) {
			o->root = ROOT_ALL;
			return true;
		}
		good = parse_number(arg, 0, PERF_RANKS_MAX - 1, &n);
		o->root = (int)n;
		return good;
	case 'z':
		good = parse_number(arg, 0, 1, &n);
		o->sync = n ? SYNC_EACH : SYNC_STREAM;
		o->sync_given = true;
		return good;
	case OPT_SPAWN:
		o->spawn_daemon = true;
		return true;
	case OPT_SOCKET:
		o->socket = arg;
		return *arg;
	case OPT_RANKS:
		o->ranks_given = true;
		good = parse_number(arg, 1, PERF_RANKS_MAX, &n);
		o->ranks = (uint32_t)n;
		return good;
	case OPT_NODES:
		good = parse_number(arg, 1, 64, &n);
		o->nodes = (uint32_t)n;
		return good;
	case OPT_ROUNDS:
		good = parse_number(arg, 1, 10000, &n);
		o->rounds = (unsigned)n;
		return good;
	case OPT_TIME_CAP:
		return parse_seconds(arg, 1e6, &o->time_cap_s);
	case OPT_BASELINE:
		good = parse_choice(arg, "none mpi nccl", &choice);
		o->baseline = (enum baseline)choice;
		return good;
	case OPT_DEVICE:
		good = parse_choice(arg, "host cuda", &choice);
		o->cuda = choice;
		return good;
	case OPT_SYNC:
		good = parse_choice(arg, "each stream last", &choice);
		o->sync = (enum sync)choice;
		o->sync_given = true;
		return good;
	case OPT_MEMORY:
		good = parse_choice(arg, "own lent vmm", &choice);
		o->memory = (enum gpu_memory)choice;
		o->memory_given = true;
		return good;
	case OPT_GPUS:
		return parse_list(arg, PERF_GPUS_MAX - 1, o->gpus, PERF_RANKS_MAX, &o->gpus_n);
	case OPT_COMPUTE:
		good = parse_number(arg, 1, 10000, &n);
		o->compute_ms = (unsigned)n;
		return good;
	case OPT_PLAN:
		o->planned = true;
		return true;
	case OPT_LIST:
		good = parse_number(arg, 1, LISTS_MAX, &n);
		o->lists = (unsigned)n;
		return good;
	case OPT_EVERY:
		o->every_given = true;
		return parse_number(arg, 0, 10000000, &o->every_us);
	case OPT_PLAIN:
		o->plain_memory = true;
		return true;
	case OPT_NO_RING:
		o->no_ring = true;
		return true;
	case OPT_TIMEOUT:
		good = parse_seconds(arg, 1e6, &s);
		o->timeout_ms = (int)(s * 1000 < 1 ? 1 : s * 1000);
		return good;
	case OPT_JSON:
		o->json = true;
		o->json_path = arg && strcmp(arg, "-") != 0 ? arg : NULL;
		return true;
	case OPT_COUNT:
		good = parse_number(arg, 1, 16000, &n);
		o->count = (unsigned)n;
		return good;
	case OPT_SECONDS:
		good = parse_number(arg, 1, 1000000, &n);
		o->seconds = (unsigned)n;
		return good;
	case OPT_QUEUED:
		good = parse_number(arg, 1, 1 << 24, &n);
		o->queued = (unsigned)n;
		return good;
	case OPT_LISTING:
		o->while_listing = true;
		return true;
	}
	return false;
}

static const char *option_name(int option, char *buf, size_t size)
{
	for (const struct option *l = long_options; l->name; l++) {
		if (l->val == option) {
			snprintf(buf, size, "--%s", l->name);
			return buf;
		}
	}
	return "option";
}

/* Does the word after --json belong to it? Not if it is the operation, or another option. */
static bool is_json_file(const char *word, bool have_operation)
{
	struct options scratch;
	if (!word || (word[0] == '-' && word[1]))
		return false;
	return have_operation || !parse_operation(&scratch, word);
}

/* Applies argv[at], or the options in it. Returns -1 to go on. */
static int next_option(struct options *o, int argc, char **argv, bool *have_operation)
{
	char name[64];
	int c = getopt_long(argc, argv, "-b:e:i:f:n:w:c:d:o:r:z:hV", long_options, NULL);
	switch (c) {
	case -1: /* after "--" */
		optarg = argv[optind++];
		__attribute__((fallthrough));
	case 1:
		if (*have_operation)
			return options_refuse("one operation at a time: '%s' is one too many",
					      optarg);
		*have_operation = true;
		if (!parse_operation(o, optarg))
			return options_refuse("no operation '%s'", optarg);
		return -1;
	case 'h':
		fputs(options_help, stdout);
		return EXIT_GOOD;
	case 'V':
		printf("ncclsvc-perf %s (libncclsvc %s)\n", NCCLSVC_VERSION_STRING,
		       ncclsvc_version());
		return EXIT_GOOD;
	case '?': /* getopt has said why, and what a shortened name could be */
		fprintf(stderr, "Try 'ncclsvc-perf --help'.\n");
		return EXIT_USAGE;
	}
	if (c == OPT_JSON && !optarg && is_json_file(argv[optind], *have_operation))
		optarg = argv[optind++];
	if (apply(o, c, optarg))
		return -1;
	complain("%s: '%s' is not allowed", option_name(c, name, sizeof(name)), optarg);
	fprintf(stderr, "Try 'ncclsvc-perf --help'.\n");
	return EXIT_USAGE;
}

int options_parse(struct options *o, int argc, char **argv)
{
	bool have_operation = false;
	options_default(o);
	while (optind < argc) {
		int status = next_option(o, argc, argv, &have_operation);
		if (status >= 0)
			return status;
	}
	if (!have_operation)
		return options_refuse("%s", "which operation?");
	return options_check(o);
}
