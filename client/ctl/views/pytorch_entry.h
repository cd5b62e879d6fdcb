/* SPDX-License-Identifier: Apache-2.0
 * One operation, as PyTorch's flight recorder writes it. */
#ifndef CTL_PYTORCH_ENTRY_H
#define CTL_PYTORCH_ENTRY_H

#include <ncclsvc.h>

#include "base/pickle.h"

struct pytorch_entry {
	const ncclsvc_operation_info *x;
	const char *group, *label; /* the process group's */
	uint64_t record;	   /* its number in its file */
	uint64_t number;	   /* among the group's: the same on all ranks */
	int32_t rank, peer;	   /* in the group, of a Send or Recv */
};

void pytorch_entry(struct text *t, const struct pytorch_entry *e);
void pytorch_key_u64(struct text *t, const char *key, uint64_t value);
void pytorch_key_string(struct text *t, const char *key, const char *value);

#endif
