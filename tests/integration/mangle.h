/* SPDX-License-Identifier: Apache-2.0
 * Simulates a broken daemon: a relay (version_relay.h) makes random changes to the daemon's
 * messages, and to the ring whose fd they carry. */
#ifndef TESTS_MANGLE_H
#define TESTS_MANGLE_H

#include <stddef.h>
#include <stdint.h>

/* Tests try `seeds` schedules, starting with seed 1. NCCLSVC_TEST_SEEDS overrides their number, and
 * NCCLSVC_TEST_SEED the first seed. */
struct mangle_seeds {
	unsigned long first, n;
};
struct mangle_seeds mangle_seeds(unsigned long seeds);
/* Call before starting the relay. The seed also determines how often messages are changed. */
void mangle_seed(uint64_t seed);
void mangle(unsigned char *message, size_t *length, int *fds, unsigned *nfds);

#endif
