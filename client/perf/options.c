/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "build_config.h"
#include "ncclsvc.h"
#include "process.h"
#include "values.h"
#include "work.h"

static const char help[] =
	"usage: ncclsvc-perf OP [options]\n"
	"       ncclsvc-perf submit [--while-listing] [options]\n"
	"       ncclsvc-perf sessions [--count N] [options]\n"
	"       ncclsvc-perf idle [--seconds S] [options]\n"
	"\n"
	"OP: all_reduce all_gather reduce_scatter broadcast reduce alltoall gather scatter\n"
	"    sendrecv barrier\n"
	"\n"
	"Which daemon:\n"
	"      --spawn-daemon          start a daemon for this run and stop it at the end\n"
	"      --socket PATH           use the daemon that listens there\n"
	"What to run, as nccl-tests:\n"
	"  -b, --minbytes SIZE         smallest size, with K, M or G (32M)\n"
	"  -e, --maxbytes SIZE         largest size (32M)\n"
	"  -i, --stepbytes SIZE        step between sizes (1M)\n"
	"  -f, --stepfactor N          factor between sizes, instead of a step\n"
	"  -n, --iters N               iterations in a round (20)\n"
	"  -w, --warmup_iters N        iterations before each round (5)\n"
	"  -c, --check N               checks of every element, at each size (1; 0: none)\n"
	"  -d, --datatype NAME         element type, or all (float32)\n"
	"  -o, --op NAME               reduction: sum prod min max avg, or all (sum)\n"
	"  -r, --root RANK             root, or all (0)\n"
	"  -z, --blocking 0|1          1: wait for each operation; 0: submit ahead (1)\n"
	"How:\n"
	"      --ranks N               client processes (2)\n"
	"      --rounds N              rounds at each size; the median counts (5)\n"
	"      --time-cap SECONDS      fewer iterations where a size would take longer (2)\n"
	"      --baseline mpi          the same with Open MPI, alternating, and the ratio\n"
	"      --device host           where the buffers are\n"
	"      --plain-memory          buffers from malloc: the staged path\n"
	"      --no-ring               submit over the socket\n"
	"      --timeout SECONDS       the longest to wait for anything (120)\n"
	"      --json [FILE|-]         results as JSON; - is standard output\n"
	"      --count N               sessions: how many; idle: sessions beside (1000; 8)\n"
	"      --seconds S             idle: how long (10); --while-listing: each phase (2)\n"
	"      --queued N              submit --while-listing: queued tasks (100000)\n"
	"  -h, --help                  this text\n"
	"  -V, --version               the version\n";

enum {
	OPT_SPAWN = 256,
	OPT_SOCKET,
	OPT_RANKS,
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
	} modes[] = {{"submit", MODE_SUBMIT}, {"sessions", MODE_SESSIONS}, {"idle", MODE_IDLE}};
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		if (strcmp(text, modes[i].name) == 0) {
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
	double s = 0;
	bool good = true;
	switch (option) {
	case 'b':
		return parse_size(arg, &o->min_bytes);
	case 'e':
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
		o->blocking = n;
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
	case OPT_ROUNDS:
		good = parse_number(arg, 1, 10000, &n);
		o->rounds = (unsigned)n;
		return good;
	case OPT_TIME_CAP:
		return parse_seconds(arg, 1e6, &o->time_cap_s);
	case OPT_BASELINE:
		o->baseline_mpi = same_name(arg, "mpi");
		return o->baseline_mpi || same_name(arg, "none");
	case OPT_DEVICE:
		return same_name(arg, "host");
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

static int refuse(const char *format, const char *what)
{
	complain(format, what);
	fprintf(stderr, "Try 'ncclsvc-perf --help'.\n");
	return EXIT_USAGE;
}

/* What only makes sense together. */
static int check_together(struct options *o)
{
	if (o->spawn_daemon && o->socket)
		return refuse("%s contradict each other", "--spawn-daemon and --socket");
	if (o->max_bytes < o->min_bytes)
		return refuse("%s is smaller than --minbytes", "--maxbytes");
	if (o->step_factor == 1)
		o->step_factor = 0;
	if (!o->step_factor && !o->step_bytes && o->max_bytes > o->min_bytes)
		return refuse("%s of 0 never reaches --maxbytes", "--stepbytes");
	if (o->step_factor && o->min_bytes == 0 && o->max_bytes > 0)
		return refuse("%s of 0 can't grow by a factor; use -i", "--minbytes");
	if (o->root >= (int)o->ranks)
		return refuse("%s is no rank: they count from 0 to --ranks - 1", "--root");
	if (o->mode != MODE_COLLECTIVE && o->baseline_mpi)
		return refuse("%s is for operations only", "--baseline");
	if (o->mode != MODE_SUBMIT && o->while_listing)
		return refuse("%s is for submit only", "--while-listing");
	return -1;
}

static void set_defaults(struct options *o)
{
	*o = (struct options){
		.min_bytes = 32 << 20,
		.max_bytes = 32 << 20,
		.step_bytes = 1 << 20,
		.iters = 20,
		.warmup = 5,
		.checks = 1,
		.types = 1u << NCCLSVC_FLOAT32,
		.redops = 1u << NCCLSVC_SUM,
		.blocking = true,
		.ranks = 2,
		.rounds = 5,
		.time_cap_s = 2,
		.timeout_ms = 120000,
		.queued = 100000,
	};
}

/* Applies argv[at], or the options in it. Returns -1 to go on. */
static int next_option(struct options *o, int argc, char **argv, bool *have_operation)
{
	char name[64];
	int c = getopt_long(argc, argv, "-:b:e:i:f:n:w:c:d:o:r:z:hV", long_options, NULL);
	switch (c) {
	case -1: /* after "--" */
		optarg = argv[optind++];
		__attribute__((fallthrough));
	case 1:
		if (*have_operation)
			return refuse("one operation at a time: '%s' is one too many", optarg);
		*have_operation = true;
		if (!parse_operation(o, optarg))
			return refuse("no operation '%s'", optarg);
		return -1;
	case 'h':
		fputs(help, stdout);
		return EXIT_GOOD;
	case 'V':
		printf("ncclsvc-perf %s (libncclsvc %s)\n", NCCLSVC_VERSION_STRING,
		       ncclsvc_version());
		return EXIT_GOOD;
	case ':':
		return refuse("%s needs an argument", argv[optind - 1]);
	case '?':
		return refuse("no option '%s'", argv[optind - 1]);
	}
	if (c == OPT_JSON && !optarg && is_json_file(argv[optind], *have_operation))
		optarg = argv[optind++];
	if (c == OPT_DEVICE && same_name(optarg, "cuda"))
		return refuse("--device %s: this version runs on host memory only", optarg);
	if (apply(o, c, optarg))
		return -1;
	complain("%s: '%s' is not allowed", option_name(c, name, sizeof(name)), optarg);
	fprintf(stderr, "Try 'ncclsvc-perf --help'.\n");
	return EXIT_USAGE;
}

int options_parse(struct options *o, int argc, char **argv)
{
	bool have_operation = false;
	set_defaults(o);
	while (optind < argc) {
		int status = next_option(o, argc, argv, &have_operation);
		if (status >= 0)
			return status;
	}
	if (!have_operation)
		return refuse("%s", "which operation?");
	return check_together(o);
}
