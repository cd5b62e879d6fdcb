/* SPDX-License-Identifier: Apache-2.0
 * Which members of a communicator that is split get one together. */
#ifndef COORD_SPLIT_H
#define COORD_SPLIT_H

#include <stdint.h>

#include "ncclsvc_types.h"

/* Fills the id with random bytes. Returns 0 or -1. */
int comm_random_id(uint8_t id[NCCLSVC_ID_BYTES]);

struct split_order {
	int32_t colour, key;
	uint32_t rank;
};
/* By colour, and in it as the new ranks are: by key, then by old rank. */
void split_sort(struct split_order *order, uint32_t n);

#endif
