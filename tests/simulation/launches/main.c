/* SPDX-License-Identifier: Apache-2.0
 * Runs schedules, seed by seed. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "launches.h"

#define PLANT_TRIES 3000 /* schedules in which a planted mistake must be found */

static const char usage[] =
	"usage: launches [--seed N] [--count N] [--seconds N] [--plant N | --plants] [--circle]\n"
	"                [--trace]\n"
	"Runs schedules of launches on GPUs of several nodes in virtual time, from the seed on,\n"
	"and says what is wrong after the first that fails.\n"
	"  --count N    so many schedules (default: 1)\n"
	"  --seconds N  as many as there is time for\n"
	"  --plant N    with a mistake on purpose; --plants: with each, which must all be found\n"
	"  --circle     of groups that wait for each other through two communicators\n"
	"  --trace      prints what happens\n";

static double seconds(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static bool (*one_run)(uint64_t seed) = schedule_run;

/* Returns how many have run; the last one failed if failure is set. */
static uint64_t run(uint64_t seed, uint64_t count, double until)
{
	uint64_t n = 0;
	while ((until > 0 ? seconds() < until : n < count) && one_run(seed + n++))
		;
	return n;
}

/* Returns 0, or 1: one was not found. */
static int find_plants(uint64_t seed)
{
	int result = 0;
	for (planted = PLANT_NONE + 1; planted < PLANTS; planted++) {
		const uint64_t n = run(seed, PLANT_TRIES, 0);
		printf("%s: ", plant_name(planted));
		if (failure[0])
			printf("found after %" PRIu64 " schedules: %s\n", n, failure);
		else
			printf("NOT FOUND in %" PRIu64 " schedules\n", n);
		result |= !failure[0];
	}
	return result;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"seed", required_argument, NULL, 's'},	   {"count", required_argument, NULL, 'n'},
		{"seconds", required_argument, NULL, 't'}, {"plant", required_argument, NULL, 'p'},
		{"plants", no_argument, NULL, 'P'},	   {"circle", no_argument, NULL, 'c'},
		{"trace", no_argument, NULL, 'v'},	   {NULL, 0, NULL, 0},
	};
	uint64_t seed = 1, count = 1;
	double until = 0;
	bool plants = false;
	for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		if (o == 's')
			seed = strtoull(optarg, NULL, 10);
		else if (o == 'n')
			count = strtoull(optarg, NULL, 10);
		else if (o == 't')
			until = seconds() + strtod(optarg, NULL);
		else if (o == 'p')
			planted = (enum plant)strtoul(optarg, NULL, 10);
		else if (o == 'P')
			plants = true;
		else if (o == 'c')
			one_run = circle_run;
		else if (o == 'v')
			tracing = true;
		else {
			fputs(usage, stderr);
			return 2;
		}
	}
	if (plants)
		return find_plants(seed);
	const uint64_t n = run(seed, count, until);
	if (!failure[0]) {
		printf("%" PRIu64 " schedules, from seed %" PRIu64 "\n", n, seed);
		return 0;
	}
	printf("seed %" PRIu64 " fails, after %" PRIu64 " schedules: %s\n", seed + n - 1, n,
	       failure);
	printf("again, with all that happens: %s --seed %" PRIu64 " --trace%s", argv[0],
	       seed + n - 1, one_run == circle_run ? " --circle" : "");
	if (planted)
		printf(" --plant %u", (unsigned)planted);
	putchar('\n');
	return 1;
}
