/* SPDX-License-Identifier: Apache-2.0
 * One table of the options: name, argument, help text, and the modes that accept them. */
#include "options.h"

#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "build_config.h"
#include "child_process.h"
#include "measured_work.h"
#include "ncclsvc.h"
#include "option_values.h"

enum kind {
	HEADING, /* a heading in the help */
	FLAG,	 /* bool */
	NUMBER,	 /* unsigned, min to max */
	COUNT,	 /* uint64_t, min to max */
	SIZE,	 /* uint64_t, with a unit */
	SECONDS, /* double, up to max */
	CHOICE,	 /* unsigned: an index in `words` */
	PATH,	 /* const char * */
	TYPES,
	REDOPS,
	ROOT,
	DEVICE,
	GPUS,
	JSON,
	WRITE,
	HELP,
	VERSION,
};

enum { OP = 1 << MODE_COLLECTIVE, SESSIONS = 1 << MODE_SESSIONS, JOIN = 1 << MODE_JOIN };
enum { CROSSOVER = 1 << MODE_CROSSOVER, DAEMONS = OP | SESSIONS | JOIN, ALL = DAEMONS | CROSSOVER };
enum { ANY, HOST, CUDA }; /* devices */

struct option_row {
	const char *name, *argument; /* argument NULL: the option takes none */
	int letter;
	unsigned modes;
	enum kind kind;
	size_t at; /* offset in struct options */
	uint64_t min, max;
	const char *words;
	unsigned device, given; /* enum given, or 0 */
	const char *help;
};

#define AT(field) offsetof(struct options, field)

static const char sync_words[] = "each stream last";

static const struct option_row rows[] = {
	{.help = "Which daemon:"},
	{"spawn-daemon", NULL, 0, DAEMONS, FLAG, AT(spawn_daemon),
	 .help = "start a daemon for this run, and stop it at the end"},
	{"socket", "PATH", 0, DAEMONS, PATH, AT(socket),
	 .help = "use the daemon that listens there"},
	{"nodes", "N", 0, OP | JOIN, NUMBER, AT(nodes), 1, 64,
	 .help = "spread the ranks over N daemons; mpirun starts them, or their sockets'\npaths "
		 "have %r for the node's number (1)"},
	{.help = "What to run, as in nccl-tests:"},
	{"minbytes", "SIZE", 'b', OP | CROSSOVER, SIZE, AT(min_bytes), .given = GIVEN_MIN,
	 .help = "smallest size, with K, M or G (32M; crossover: 1M)"},
	{"maxbytes", "SIZE", 'e', OP | CROSSOVER, SIZE, AT(max_bytes), .given = GIVEN_MAX,
	 .help = "largest size (32M; crossover: 64M)"},
	{"stepbytes", "SIZE", 'i', OP, SIZE, AT(step_bytes), .help = "step between sizes (1M)"},
	{"stepfactor", "N", 'f', OP, COUNT, AT(step_factor), 1, 65536,
	 .help = "factor between sizes, instead of a step"},
	{"iters", "N", 'n', OP | CROSSOVER, COUNT, AT(iters), 1, 1000000000,
	 .help = "iterations per round (20)"},
	{"warmup_iters", "N", 'w', OP | CROSSOVER, COUNT, AT(warmup), 0, 1000000000,
	 .help = "iterations before each round (5)"},
	{"check", "N", 'c', OP, NUMBER, AT(checks), 0, 1000000,
	 .help = "checks of every element at each size (1; 0: none)"},
	{"datatype", "NAME", 'd', OP, TYPES, .help = "element type, or all (float32)"},
	{"op", "NAME", 'o', OP, REDOPS, .help = "reduction: sum prod min max avg, or all (sum)"},
	{"root", "RANK", 'r', OP, ROOT, .help = "root, or all (0)"},
	{.help = "How:"},
	{"ranks", "N", 0, OP | JOIN | CROSSOVER, NUMBER, AT(ranks), 1, PERF_RANKS_MAX,
	 .given = GIVEN_RANKS,
	 .help = "client processes (2; join: on the host up to 64; crossover: up to all\n"
		 "GPUs)"},
	{"rounds", "N", 0, ALL, NUMBER, AT(rounds), 1, ROUNDS_MAX,
	 .help = "rounds of each measurement; the median counts (5)"},
	{"sync", "each|stream|last", 0, OP, CHOICE, AT(sync), .words = sync_words,
	 .given = GIVEN_SYNC,
	 .help = "wait for each operation; at the end; or at the end, with only the\nlast "
		 "operation ordering the stream (host: each; cuda: stream)"},
	{"every", "US", 0, OP, COUNT, AT(every_us), 0, 10000000, .given = GIVEN_EVERY,
	 .help = "one operation every US microseconds (0: without pauses); also show\nCPU time of "
		 "the daemon, its workers, the ranks and submissions"},
	{"latency", NULL, 0, OP, FLAG, AT(latency),
	 .help = "also show median and 99th percentile of single operations"},
	{"queued", "N", 0, OP, NUMBER, AT(queued), 1, QUEUED_MAX,
	 .help = "run beside N waiting tasks, which are listed once a second"},
	{"time-cap", "SECONDS", 0, OP | CROSSOVER, SECONDS, AT(time_cap_s), 0, 1000000,
	 .given = GIVEN_CAP,
	 .help = "run fewer iterations at sizes that would take longer (2; crossover: 0.5)"},
	{"baseline", "NAME", 0, OP, CHOICE, AT(baseline), .words = "none mpi nccl pingpong",
	 .help = "compare in turn with Open MPI (mpi), on GPUs with plain NCCL (nccl),\nor with "
		 "messages to a process and back (pingpong)"},
	{"device", "host|cuda", 0, OP | JOIN, DEVICE,
	 .help = "where the buffers, or members, are (host)"},
	{"plan", NULL, 0, OP, FLAG, AT(planned), .help = "sendrecv: run it as a plan"},
	{"no-ring", NULL, 0, OP | SESSIONS | JOIN, FLAG, AT(no_ring),
	 .help = "submit through the socket"},
	{"timeout", "SECONDS", 0, ALL, SECONDS, AT(timeout_s), 0, 1000000,
	 .help = "timeout of every wait (120)"},
	{"json", "[FILE|-]", 0, ALL, JSON, .help = "write results as JSON; - is standard output"},
	{"plot", "FILE", 0, OP, PATH, AT(plot_path),
	 .help = "draw ratio and bandwidth over the sizes as an SVG file"},
	{"count", "N", 0, SESSIONS, NUMBER, AT(count), 1, 16000,
	 .help = "sessions: number of sessions (1000)"},
	{.help = "On GPUs (--device cuda):"},
	{"gpus", "LIST", 0, OP | JOIN | CROSSOVER, GPUS, .device = CUDA,
	 .help = "the ranks' CUDA devices, such as 0,1 (default: rank i uses i)"},
	{"blocks", "N", 0, OP, NUMBER, AT(blocks), 1, 32, .device = CUDA,
	 .help = "let the service's kernels have at most N blocks (no limit)"},
	{"copy-engines", NULL, 0, OP, FLAG, AT(copy_engines), .device = CUDA,
	 .help = "let copy engines move the data of large operations"},
	{"list", "N", 0, OP, NUMBER, AT(lists), 1, LISTS_MAX, .device = CUDA,
	 .help = "all_gather: over lists of N tensors per rank"},
	{"compute-ms", "MS", 0, OP, NUMBER, AT(compute_ms), 1, 10000, .device = CUDA,
	 .help = "run beside kernels on another stream that fill the GPU for MS in each\nround; "
		 "the time is until both are over"},
	{"graph", "N", 0, OP, NUMBER, AT(graph), 1, 1000, .device = CUDA,
	 .help = "capture into CUDA graphs of N operations each, and launch these"},
	{"kernel", NULL, 0, OP, FLAG, AT(before), .device = CUDA,
	 .help = "run a short kernel of the rank before each operation"},
	{.help = "crossover:"},
	{"write", "[FILE]", 0, CROSSOVER, WRITE,
	 .help = "write the result for the daemon, to the file that it reads, or FILE"},
	{"help", NULL, 'h', ALL, HELP, .help = "this text"},
	{"version", NULL, 'V', ALL, VERSION, .help = "the version"},
};

#define ROWS  (sizeof(rows) / sizeof(rows[0]))
#define FIRST 256 /* getopt's value for row 0 */

/* ---- The help ---- */

static void print_help(void)
{
	puts("usage: ncclsvc-perf OP [options]\n"
	     "       ncclsvc-perf sessions [options]\n"
	     "       ncclsvc-perf join [options]\n"
	     "       ncclsvc-perf crossover [options]\n"
	     "\n"
	     "OP: all_reduce all_gather reduce_scatter broadcast reduce alltoall gather scatter\n"
	     "    sendrecv barrier\n");
	for (size_t i = 0; i < ROWS; i++) {
		const struct option_row *row = &rows[i];
		char name[64];
		if (row->kind == HEADING) {
			puts(row->help);
			continue;
		}
		snprintf(name, sizeof(name), "--%s %s", row->name,
			 row->argument ? row->argument : "");
		if (row->letter)
			printf("  -%c, %-24s", row->letter, name);
		else
			printf("      %-24s", name);
		if (strlen(name) > 23)
			printf("\n%30s", "");
		const char *text = row->help, *end;
		for (; (end = strchr(text, '\n')); text = end + 1)
			printf("%.*s\n%30s", (int)(end - text), text, "");
		puts(text);
	}
}

/* ---- One option ---- */

const char *perf_op_name(unsigned op)
{
	return op == PERF_SENDRECV ? "SendRecv" : ncclsvc_op_name(op);
}

const char *sync_name(const struct options *o)
{
	return choice_name(sync_words, o->sync);
}

static bool parse_operation(struct options *o, const char *text)
{
	unsigned mode;
	if (parse_choice(text, "sessions join crossover", &mode)) {
		o->mode = MODE_SESSIONS + mode;
		o->cuda |= o->mode == MODE_CROSSOVER;
		return true;
	}
	o->mode = MODE_COLLECTIVE;
	for (o->op = NCCLSVC_ALL_REDUCE; o->op <= NCCLSVC_BARRIER; o->op++) {
		if (o->op != NCCLSVC_RECV && same_name(text, perf_op_name(o->op)))
			return true;
	}
	return false;
}

static bool parse_root(const char *text, int *root)
{
	uint64_t n = 0;
	bool all = same_name(text, "all") || strcmp(text, "-1") == 0;
	bool good = all || parse_number(text, 0, PERF_RANKS_MAX - 1, &n);
	*root = all ? ROOT_ALL : (int)n;
	return good;
}

/* Applies one option. False: its argument is invalid. */
static bool apply(struct options *o, const struct option_row *row, const char *arg)
{
	void *field = (char *)o + row->at;
	uint64_t n = 0;
	unsigned choice = 0;
	bool good = true;
	o->given |= row->given;
	switch (row->kind) {
	case FLAG:
		*(bool *)field = true;
		return true;
	case NUMBER:
		good = parse_number(arg, row->min, row->max, &n);
		*(unsigned *)field = (unsigned)n;
		return good;
	case COUNT:
		return parse_number(arg, row->min, row->max, field);
	case SIZE:
		return parse_size(arg, field);
	case SECONDS:
		return parse_seconds(arg, (double)row->max, field);
	case CHOICE:
		return parse_choice(arg, row->words, field);
	case PATH:
		*(const char **)field = arg;
		return *arg;
	case TYPES:
		return parse_type(arg, &o->types);
	case REDOPS:
		return parse_redop(arg, &o->redops);
	case ROOT:
		return parse_root(arg, &o->root);
	case DEVICE:
		good = parse_choice(arg, "host cuda", &choice);
		o->cuda = choice;
		return good;
	case GPUS:
		return parse_list(arg, PERF_GPUS_MAX - 1, o->gpus, PERF_RANKS_MAX, &o->gpus_n);
	case JSON:
		o->json = true;
		o->json_path = arg && strcmp(arg, "-") != 0 ? arg : NULL;
		return true;
	case WRITE:
		o->write = true;
		o->write_path = arg;
		return !arg || *arg;
	case HEADING:
	case HELP:
	case VERSION:
		break;
	}
	return false;
}

/* ---- The command line ---- */

/* getopt's tables, derived from ours. */
struct getopt_tables {
	struct option longs[ROWS + 2];
	char shorts[2 * ROWS + 2];
};

/* Its argument may be omitted: the following word is only an argument if it is nothing else. */
static bool takes_file(const struct option_row *row)
{
	return row->kind == JSON || row->kind == WRITE;
}

static void make_tables(struct getopt_tables *t)
{
	size_t n = 0, at = 0;
	*t = (struct getopt_tables){0};
	t->shorts[at++] = '-'; /* return words that are not options in order */
	for (size_t i = 0; i < ROWS; i++) {
		const struct option_row *row = &rows[i];
		const int takes = !row->argument    ? no_argument
				  : takes_file(row) ? optional_argument
						    : required_argument;
		if (row->kind == HEADING)
			continue;
		t->longs[n++] = (struct option){row->name, takes, NULL, FIRST + (int)i};
		if (strcmp(row->name, "warmup_iters") == 0)
			t->longs[n++] =
				(struct option){"warmup-iters", takes, NULL, FIRST + (int)i};
		if (!row->letter)
			continue;
		t->shorts[at++] = (char)row->letter;
		if (row->argument)
			t->shorts[at++] = ':';
	}
}

static const struct option_row *row_of(int c)
{
	if (c >= FIRST)
		return &rows[c - FIRST];
	for (size_t i = 0; i < ROWS; i++) {
		if (rows[i].letter == c)
			return &rows[i];
	}
	return NULL;
}

/* Whether the word after the option is its argument: not if it is the operation, or another option.
 */
static bool is_file(const char *word, bool have_operation)
{
	struct options scratch;
	if (!word || (word[0] == '-' && word[1]))
		return false;
	return have_operation || !parse_operation(&scratch, word);
}

struct parser {
	struct options *o;
	struct getopt_tables tables;
	bool have_operation;
	bool seen[ROWS];
};

static int take_operation(struct parser *p, const char *word)
{
	if (p->have_operation)
		return options_refuse("one operation at a time: unexpected '%s'", word);
	p->have_operation = true;
	if (!parse_operation(p->o, word))
		return options_refuse("no operation '%s'", word);
	return -1;
}

static int take_option(struct parser *p, const struct option_row *row, const char *arg)
{
	p->seen[row - rows] = true;
	if (row->kind == HELP) {
		print_help();
		return EXIT_GOOD;
	}
	if (row->kind == VERSION) {
		printf("ncclsvc-perf %s (libncclsvc %s)\n", NCCLSVC_VERSION_STRING,
		       ncclsvc_version());
		return EXIT_GOOD;
	}
	if (apply(p->o, row, arg))
		return -1;
	char format[80];
	snprintf(format, sizeof(format), "--%s: '%%s' is invalid", row->name);
	return options_refuse(format, arg);
}

/* Handles argv[optind], or the options in it. Returns -1 to continue. */
static int next(struct parser *p, int argc, char **argv)
{
	int c = getopt_long(argc, argv, p->tables.shorts, p->tables.longs, NULL);
	if (c == -1) /* after "--" */
		return take_operation(p, argv[optind++]);
	if (c == 1)
		return take_operation(p, optarg);
	const struct option_row *row = row_of(c);
	if (!row) { /* getopt has printed the reason, and the options an abbreviation could mean */
		fprintf(stderr, "Try 'ncclsvc-perf --help'.\n");
		return EXIT_USAGE;
	}
	if (takes_file(row) && !optarg && is_file(argv[optind], p->have_operation))
		optarg = argv[optind++];
	return take_option(p, row, optarg);
}

/* Checks that each option applies to this mode and device. */
static int check_seen(const struct parser *p)
{
	const struct options *o = p->o;
	static const char *const modes[] = {"an operation", "sessions", "join", "crossover"};
	char format[80];
	for (size_t i = 0; i < ROWS; i++) {
		snprintf(format, sizeof(format), "%s does not take --%%s", modes[o->mode]);
		if (p->seen[i] && !(rows[i].modes >> o->mode & 1))
			return options_refuse(format, rows[i].name);
		if (p->seen[i] && rows[i].device == CUDA && !o->cuda)
			return options_refuse("--%s is for --device cuda", rows[i].name);
	}
	return -1;
}

int options_parse(struct options *o, int argc, char **argv)
{
	struct parser p = {.o = o};
	*o = (struct options){
		.min_bytes = 32 << 20,
		.max_bytes = 32 << 20,
		.step_bytes = 1 << 20,
		.iters = 20,
		.warmup = 5,
		.checks = 1,
		.types = 1u << NCCLSVC_FLOAT32,
		.redops = 1u << NCCLSVC_SUM,
		.ranks = 2,
		.nodes = 1,
		.rounds = 5,
		.time_cap_s = 2,
		.timeout_s = 120,
		.count = 1000,
	};
	make_tables(&p.tables);
	while (optind < argc) {
		int status = next(&p, argc, argv);
		if (status >= 0)
			return status;
	}
	if (!p.have_operation)
		return options_refuse("%s", "which operation?");
	int status = check_seen(&p);
	return status >= 0 ? status : options_check(o);
}
