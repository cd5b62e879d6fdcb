/* SPDX-License-Identifier: Apache-2.0
 * Quantities as people read them. */
#ifndef CTL_UNITS_H
#define CTL_UNITS_H

#include "snapshot.h"
#include "text.h"

/* "850 us", "12 ms", "12.3 s", "3m12s", "2h05m", "3d04h" */
void units_age(struct text *t, uint64_t ns);
/* "512 B", "1.5 MiB" */
void units_bytes(struct text *t, uint64_t bytes);
/* "3, 5 (+12)", or "-" for none: `shown` ranks out of `total` */
void units_waits(struct text *t, const int32_t *ranks, uint32_t shown, uint32_t total);
/* A communicator's or task's number, with its node if it is another one's: "17", "17@2" */
void units_number(struct text *t, uint64_t id);
/* "node 2 (hostname)" */
void units_node(struct text *t, const struct snapshot *s, uint32_t node);
/* "node 1 (a), node 2 (b) (+12)" */
void units_nodes(struct text *t, const struct snapshot *s, const uint32_t *nodes, uint32_t shown,
		 uint32_t total);
/* "rank 3", "ranks 0, 1 and 3"; when they are many "127 of 128 ranks" */
void units_ranks(struct text *t, const int32_t *ranks, size_t n, uint32_t nranks);

#endif
