/* SPDX-License-Identifier: Apache-2.0
 * The command line. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

static const char help[] =
	"Usage: example_trainer [OPTIONS]\nTrains a small character-level language model on D x H "
	"x P processes, with the daemon at\n$NCCLSVC_SOCKET, whose world must have that many ranks "
	"(ncclsvcd --ranks N).\n\n  --data D            replicas, which divide the batch (1)\n  "
	"--horizontal H      slices of each layer's matrices (1)\n  --pipeline P        stages, "
	"which divide the layers (1)\n  --zero              each replica keeps only its part of "
	"the optimizer's state (ZeRO-1)\n  --nccl              refuse to start if GPU memory does "
	"not go through NCCL\n  --batch N           samples per update (64)\n  --accumulate N      "
	"steps per update, which divide the batch (1)\n  --steps N           number of steps "
	"(100)\n  --text FILE         what to learn (README.md)\n  --rank R            run only "
	"this rank; default: start all ranks, and restart those that\n                      are "
	"killed\n  --single            the same in one process, without a daemon\n  --nodes N      "
	"     use N daemons, each with an equal part of the ranks; in\n                      "
	"$NCCLSVC_SOCKET, %r is the node (1)\n  --device host|cuda  where the buffers are; rank R "
	"uses GPU R (host)\n  --checkpoints DIR   write checkpoints there, and continue from "
	"them\n  --every N           steps between checkpoints (10)\n  --losses FILE       append "
	"a line \"step loss\" for each step\n  --curve             draw the losses at the end\n  "
	"--kill R:STEP       rank R kills itself at this step, in its first life\n";

static bool number(const char *s, uint64_t min, uint64_t max, uint64_t *value)
{
	char *end;
	errno = 0;
	unsigned long long n = strtoull(s, &end, 10);
	if (errno || *s < '0' || *s > '9' || *end || n < min || n > max)
		return false;
	*value = n;
	return true;
}

static bool small(const char *s, uint64_t min, int *value)
{
	uint64_t n;
	if (!number(s, min, RANKS_MAX, &n))
		return false;
	*value = (int)n;
	return true;
}

static bool parse_kill(struct options *o, const char *s)
{
	char rank[16];
	const char *colon = strchr(s, ':');
	if (!colon || (size_t)(colon - s) >= sizeof(rank))
		return false;
	snprintf(rank, sizeof(rank), "%.*s", (int)(colon - s), s);
	return small(rank, 0, &o->kill_rank) && number(colon + 1, 0, UINT32_MAX, &o->kill_step);
}

static bool apply(struct options *o, int option, const char *value)
{
	switch (option) {
	case 'D':
		return small(value, 1, &o->data);
	case 'H':
		return small(value, 1, &o->horizontal);
	case 'P':
		return small(value, 1, &o->pipeline);
	case 'b':
		return number(value, 1, 65536, &o->batch);
	case 'a':
		return number(value, 1, 65536, &o->accumulate);
	case 'n':
		return number(value, 1, 10000000, &o->steps);
	case 'e':
		return number(value, 1, 10000000, &o->interval);
	case 'r':
		return small(value, 0, &o->rank);
	case 'N':
		return small(value, 1, &o->nodes);
	case 'd':
		o->cuda = !strcmp(value, "cuda");
		return o->cuda || !strcmp(value, "host");
	case 't':
		o->text = value;
		return true;
	case 'c':
		o->checkpoints = value;
		return true;
	case 'l':
		o->losses = value;
		return true;
	case 'k':
		return parse_kill(o, value);
	}
	return false;
}

/* False: refused, and the reason was printed. */
static bool parse(int argc, char **argv, struct options *o, bool *help_wanted)
{
	enum { FLAG = 256 };
	static const struct option options[] = {
		{"data", required_argument, NULL, 'D'},
		{"horizontal", required_argument, NULL, 'H'},
		{"pipeline", required_argument, NULL, 'P'},
		{"batch", required_argument, NULL, 'b'},
		{"accumulate", required_argument, NULL, 'a'},
		{"text", required_argument, NULL, 't'},
		{"steps", required_argument, NULL, 'n'},
		{"rank", required_argument, NULL, 'r'},
		{"nodes", required_argument, NULL, 'N'},
		{"device", required_argument, NULL, 'd'},
		{"checkpoints", required_argument, NULL, 'c'},
		{"every", required_argument, NULL, 'e'},
		{"losses", required_argument, NULL, 'l'},
		{"kill", required_argument, NULL, 'k'},
		{"zero", no_argument, NULL, FLAG},
		{"nccl", no_argument, NULL, FLAG + 1},
		{"single", no_argument, NULL, FLAG + 2},
		{"curve", no_argument, NULL, FLAG + 3},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	bool *const flags[] = {&o->zero, &o->nccl, &o->single, &o->curve};
	for (int c, i; (c = getopt_long(argc, argv, "h", options, &i)) != -1;) {
		if (c == '?')
			return false;
		if (c == 'h')
			*help_wanted = true;
		else if (c >= FLAG)
			*flags[c - FLAG] = true;
		else if (!apply(o, c, optarg)) {
			say("invalid value \"%s\" for --%s: see --help", optarg, options[i].name);
			return false;
		}
	}
	if (optind < argc)
		say("unexpected argument \"%s\": see --help", argv[optind]);
	return optind == argc;
}

int main(int argc, char **argv)
{
	const uint64_t start_ns = now_ns();
	bool help_wanted = false;
	struct options o = {.text = "README.md",
			    .steps = 100,
			    .interval = 10,
			    .batch = 64,
			    .accumulate = 1,
			    .data = 1,
			    .horizontal = 1,
			    .pipeline = 1,
			    .rank = -1,
			    .nodes = 1,
			    .kill_rank = -1};
	if (!parse(argc, argv, &o, &help_wanted))
		return 2;
	if (help_wanted) {
		fputs(help, stdout);
		return 0;
	}
	if (!check_options(&o))
		return 2;
	return o.single || o.rank >= 0 ? rank_run(&o, start_ns) : launch_run(&o);
}
