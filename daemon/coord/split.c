/* SPDX-License-Identifier: Apache-2.0 */
#include "split.h"

#include <stdlib.h>
#include <sys/random.h>

int comm_random_id(uint8_t id[NCCLSVC_ID_BYTES])
{
	return getrandom(id, NCCLSVC_ID_BYTES, 0) == NCCLSVC_ID_BYTES ? 0 : -1;
}

static int by_colour_key_rank(const void *pa, const void *pb)
{
	const struct split_order *a = pa, *b = pb;
	if (a->colour != b->colour)
		return a->colour < b->colour ? -1 : 1;
	if (a->key != b->key)
		return a->key < b->key ? -1 : 1;
	return a->rank < b->rank ? -1 : 1;
}

void split_sort(struct split_order *order, uint32_t n)
{
	qsort(order, n, sizeof(*order), by_colour_key_rank);
}
