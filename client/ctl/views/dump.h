/* SPDX-License-Identifier: Apache-2.0
 * The operations that `ncclsvc-ctl dump` shows. */
#ifndef CTL_DUMP_H
#define CTL_DUMP_H

#include "view.h"

struct dump {
	const ncclsvc_operation_info **list; /* by communicator, epoch and time of submission */
	size_t n;
};

/* The operations that the options select, each once. */
struct dump dump_of(const struct view *v);
void dump_free(struct dump *d);

#endif
