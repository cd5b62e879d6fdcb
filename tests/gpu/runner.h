/* SPDX-License-Identifier: Apache-2.0
 * Runs one test in a separate process group, under a watchdog. */
#ifndef TESTS_GPU_RUNNER_H
#define TESTS_GPU_RUNNER_H

#include "tests.h"

struct tally {
	int passed, failed, skipped;
};

/* Creates the memory that tests and their ranks write to; call once, before any test. */
void runner_open(void);
/* Runs the test, prints its result, and counts it. */
void runner_run(const struct gpu_test *test, struct tally *tally);
void runner_skip(const struct gpu_test *test, const char *why, struct tally *tally);
/* Counts the GPUs in a separate process. -1: text says why there are none. */
int runner_count_gpus(char *text, size_t size);

/* Removes a directory and the files in it. */
void remove_directory(const char *path);

#endif
