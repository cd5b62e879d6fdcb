/* SPDX-License-Identifier: Apache-2.0
 * The command line, and what a run shows. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "trainer.h"

#define CURVE_LINES 20
#define CURVE_WIDTH 60

static const char help[] =
	"Usage: example_trainer [OPTIONS]\n"
	"Trains a small language model of characters on 4 processes, 2 x 2 pipeline x data "
	"parallel,\n"
	"by the daemon of $NCCLSVC_SOCKET, which must have 4 ranks (ncclsvcd --ranks 4).\n"
	"\n"
	"  --text FILE         what to learn (README.md)\n"
	"  --steps N           how long (100)\n"
	"  --rank R            be this rank only; without: start all of them, and those that are "
	"killed\n"
	"                      once more\n"
	"  --single            the same in one process, without a daemon\n"
	"  --nodes N           of N daemons, each with 4 / N ranks; in $NCCLSVC_SOCKET, %r is the "
	"node (1)\n"
	"  --device host|cuda  where the buffers are; rank R has GPU R (host)\n"
	"  --checkpoints DIR   go on from checkpoints there, and write them\n"
	"  --every N           steps between them (10)\n"
	"  --losses FILE       append a line \"step loss\" for each step\n"
	"  --curve             draw them at the end\n"
	"  --kill R:STEP       rank R kills itself there, in its first life\n";

uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void say(const char *format, ...)
{
	char line[600];
	va_list args;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	fprintf(stderr, "trainer: %s\n", line);
}

void times_add(const struct times *t)
{
	const char *fd = getenv(TIMES_FD);
	dprintf(fd ? atoi(fd) : STDERR_FILENO,
		"%4d  %-7s  %9" PRIu64 "  %7.1f  %7.1f  %7.1f  %7.1f  %7.1f\n", t->rank, t->after,
		t->from, t->connect_ms, t->join_ms, t->plan_ms, t->step_ms, t->all_ms);
}

/* ---- Losses ---- */

bool losses_open(struct losses *l, const struct options *o)
{
	*l = (struct losses){o, calloc(o->steps, sizeof(double))};
	if (!l->by_step)
		say("out of memory");
	return l->by_step;
}

void losses_add(struct losses *l, uint64_t step, double loss)
{
	l->by_step[step] = loss;
	if (!l->options->losses)
		return;
	FILE *f = fopen(l->options->losses, "ae");
	if (!f || fprintf(f, "%" PRIu64 " %.17g\n", step, loss) < 0)
		say("cannot write to %s: %s", l->options->losses, strerror(errno));
	if (f)
		fclose(f);
}

/* The mean of each part of the run; a part that an earlier life has seen shows nothing. */
void losses_close(struct losses *l)
{
	const uint64_t steps = l->options->steps;
	const uint64_t part = steps > CURVE_LINES ? (steps + CURVE_LINES - 1) / CURVE_LINES : 1;
	if (!l->options->curve)
		return;
	printf("  step    loss\n");
	for (uint64_t n = 0; n < steps; n += part) {
		double sum = 0;
		uint64_t seen = 0;
		for (uint64_t i = n; i < n + part && i < steps; i++) {
			sum += l->by_step[i];
			seen += l->by_step[i] > 0;
		}
		if (!seen)
			continue;
		double mean = sum / (double)seen;
		int width = (int)(mean / 5 * CURVE_WIDTH);
		printf("%6" PRIu64 "  %6.3f  %.*s\n", n, mean,
		       width > CURVE_WIDTH ? CURVE_WIDTH : width,
		       "############################################################");
	}
}

/* ---- Options ---- */

static bool number(const char *s, uint64_t max, uint64_t *value)
{
	char *end;
	errno = 0;
	unsigned long long n = strtoull(s, &end, 10);
	if (errno || *s < '0' || *s > '9' || *end || n > max)
		return false;
	*value = n;
	return true;
}

static bool parse_kill(struct options *o, const char *s)
{
	char rank[16];
	uint64_t r;
	const char *colon = strchr(s, ':');
	if (!colon || (size_t)(colon - s) >= sizeof(rank))
		return false;
	snprintf(rank, sizeof(rank), "%.*s", (int)(colon - s), s);
	if (!number(rank, RANKS - 1, &r) || !number(colon + 1, UINT32_MAX, &o->kill_step))
		return false;
	o->kill_rank = (int)r;
	return true;
}

static bool apply(struct options *o, int option, const char *value)
{
	uint64_t n;
	switch (option) {
	case 't':
		o->text = value;
		return true;
	case 'n':
		return number(value, 10000000, &o->steps) && o->steps;
	case 'r':
		if (!number(value, RANKS - 1, &n))
			return false;
		o->rank = (int)n;
		return true;
	case '1':
		o->single = true;
		return true;
	case 'N':
		if (!number(value, RANKS, &n) || !n || RANKS % n)
			return false;
		o->nodes = (int)n;
		return true;
	case 'd':
		o->cuda = !strcmp(value, "cuda");
		return o->cuda || !strcmp(value, "host");
	case 'c':
		o->checkpoints = value;
		return true;
	case 'e':
		return number(value, 10000000, &o->interval) && o->interval;
	case 'l':
		o->losses = value;
		return true;
	case 'v':
		o->curve = true;
		return true;
	case 'k':
		return parse_kill(o, value);
	}
	return false;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"text", required_argument, NULL, 't'},
		{"steps", required_argument, NULL, 'n'},
		{"rank", required_argument, NULL, 'r'},
		{"single", no_argument, NULL, '1'},
		{"nodes", required_argument, NULL, 'N'},
		{"device", required_argument, NULL, 'd'},
		{"checkpoints", required_argument, NULL, 'c'},
		{"every", required_argument, NULL, 'e'},
		{"losses", required_argument, NULL, 'l'},
		{"curve", no_argument, NULL, 'v'},
		{"kill", required_argument, NULL, 'k'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	const uint64_t start_ns = now_ns();
	struct options o = {.text = "README.md",
			    .program = argv[0],
			    .steps = 100,
			    .interval = 10,
			    .rank = -1,
			    .nodes = 1,
			    .kill_rank = -1};
	for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
		if (c == 'h') {
			fputs(help, stdout);
			return 0;
		}
		if (c == '?' || !apply(&o, c, optarg)) {
			if (c != '?')
				say("\"%s\" makes no sense there: see --help", optarg);
			return 2;
		}
	}
	if (optind < argc) {
		say("no argument \"%s\": see --help", argv[optind]);
		return 2;
	}
	if (o.single)
		return single_run(&o);
	return o.rank < 0 ? launch_run(&o) : rank_run(&o, start_ns);
}
