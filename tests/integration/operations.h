/* SPDX-License-Identifier: Apache-2.0
 * Operations with checked results, for tests on one node and on several. */
#ifndef TESTS_OPERATIONS_H
#define TESTS_OPERATIONS_H

#include "harness.h"

#define GUARD 64 /* bytes after a result that nothing may change */

/* The buffers and parameters of one call. */
struct call {
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	char *send, *recv; /* both large enough for anything; recv is followed by a guard */
	int rank, nranks, root;
	ncclsvc_op op;
	ncclsvc_type type;
	ncclsvc_redop redop;
	size_t count, size; /* in elements; size of one element in bytes */
	bool in_place;
};

/* Fills the source, runs the operation, and checks the whole result and that nothing else has
 * changed. */
void run_call(const struct call *c);
/* The same with every type, and every reduction if the operation reduces. */
void every_type(struct call *c);

#endif
