/* SPDX-License-Identifier: Apache-2.0
 * Runs schedules, seed by seed. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "schedules.h"

#define PLANT_TRIES 10000 /* number of schedules within which a planted mistake must be found */

bool tracing;
unsigned planted;

static int usage(const char *program)
{
	fprintf(stderr,
		"usage: %s [--seed N] [--count N] [--seconds N] [--plant N | --plants] "
		"[--trace]\n"
		"%s\n"
		"in virtual time, starting with the seed, and stops at the first that fails.\n"
		"  --count N    run N schedules (default: 1)\n"
		"  --seconds N  run schedules for N seconds\n"
		"  --plant N    plant mistake N; --plants: plant each in turn; all must be found\n"
		"  --trace      print each event\n",
		program, simulated.about);
	if (simulated.scenarios_run)
		fputs("  --scenarios  run the scenarios of past failures instead\n", stderr);
	return 2;
}

static double seconds(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* Returns the number of schedules run; if `failure` is set, the last one failed. */
static uint64_t run(uint64_t seed, uint64_t count, double until)
{
	uint64_t n = 0;
	while ((until > 0 ? seconds() < until : n < count) && schedule_run(seed + n++))
		;
	return n;
}

/* Returns 0, or 1 if a planted mistake was not found. */
static int find_plants(uint64_t seed)
{
	int result = 0;
	for (planted = 1; planted < simulated.plants; planted++) {
		const uint64_t n = run(seed, PLANT_TRIES, 0);
		printf("%s: ", simulated.plant_name(planted));
		if (failure[0])
			printf("found after %" PRIu64 " schedules: %s\n", n, failure);
		else
			printf("NOT FOUND in %" PRIu64 " schedules\n", n);
		result |= !failure[0];
	}
	return result;
}

static void say_scenario(const char *name, uint64_t seed)
{
	printf("%s: seed %" PRIu64 " fails: %s\n", name, seed, failure);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"seed", required_argument, NULL, 's'},	   {"count", required_argument, NULL, 'n'},
		{"seconds", required_argument, NULL, 't'}, {"plant", required_argument, NULL, 'p'},
		{"plants", no_argument, NULL, 'P'},	   {"trace", no_argument, NULL, 'v'},
		{"scenarios", no_argument, NULL, 'S'},	   {NULL, 0, NULL, 0},
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
			planted = (unsigned)strtoul(optarg, NULL, 10);
		else if (o == 'P')
			plants = true;
		else if (o == 'v')
			tracing = true;
		else if (o == 'S' && simulated.scenarios_run)
			return simulated.scenarios_run(say_scenario);
		else
			return usage(argv[0]);
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
	printf("again, with all that happens: %s --seed %" PRIu64 " --trace", argv[0],
	       seed + n - 1);
	if (planted)
		printf(" --plant %u", planted);
	putchar('\n');
	return 1;
}
