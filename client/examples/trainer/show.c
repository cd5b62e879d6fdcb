/* SPDX-License-Identifier: Apache-2.0
 * Output of a run. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "trainer.h"

#define CURVE_LINES 20
#define CURVE_WIDTH 60

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

static int times_fd = STDERR_FILENO;

int times_open(void)
{
	const int fd = memfd_create("times", 0);
	/* All ranks share one file description in append mode, so that none overwrites another. */
	if (fd >= 0 && fcntl(fd, F_SETFL, O_APPEND) == 0)
		times_fd = fd;
	return fd;
}

void times_add(const struct times *t)
{
	dprintf(times_fd, "%4d  %-7s  %9" PRIu64 "  %7.1f  %7.1f  %7.1f  %7.1f  %7.1f\n", t->rank,
		t->after, t->from, t->connect_ms, t->join_ms, t->plan_ms, t->step_ms, t->all_ms);
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

/* Draws the mean of each part of the run; a part that an earlier life ran is empty. */
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
