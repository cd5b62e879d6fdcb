/* SPDX-License-Identifier: Apache-2.0
 * A broken daemon: what a relay (relay.h) changes at random in the daemon's messages, and in the
 * ring that they bring. */
#ifndef TESTS_MANGLE_H
#define TESTS_MANGLE_H

#include <stddef.h>
#include <stdint.h>

/* Tests try `seeds` schedules from seed 1 on. In the environment, NCCLSVC_TEST_SEEDS is another
 * number of them, and NCCLSVC_TEST_SEED another first one. */
struct mangle_seeds {
	unsigned long first, n;
};
struct mangle_seeds mangle_seeds(unsigned long seeds);
/* Before the relay is started: how much it changes depends on the seed, too. */
void mangle_seed(uint64_t seed);
void mangle(unsigned char *message, size_t *length, int *fds, unsigned *nfds);

#endif
