/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAILING_CALLS_H
#define TESTS_FAILING_CALLS_H

#include <stdatomic.h>
#include <stdint.h>

enum failing_kind {
	FAILING_NONE,
	FAILING_MEMORY, /* malloc, calloc, realloc */
	FAILING_MAPS,	/* mmap, mremap */
	FAILING_FDS, /* memfd_create, eventfd, dup, fcntl's duplicates, epoll_create1, socketpair,
			accept4 */
	FAILING_THREADS,
	FAILING_KINDS
};

/* The contents of $FAILING_CALLS, which the test and the daemon map. */
struct failing_calls {
	_Atomic int kind;	 /* the kind of call that is counted and fails */
	_Atomic int64_t before;	 /* this many succeed first */
	_Atomic int64_t failing; /* then this many fail */
	_Atomic uint64_t seen;	 /* number of calls of the kind */
};

#endif
