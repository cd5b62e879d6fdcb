/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SCARCE_MEMORY_H
#define TESTS_SCARCE_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The contents of $SCARCE_MEMORY, which the test and the daemon map. */
struct scarce_memory {
	_Atomic bool scarce;
	_Atomic int64_t left;	  /* bytes */
	_Atomic uint64_t refused; /* allocations that failed */
};

#endif
