/* SPDX-License-Identifier: Apache-2.0
 *
 * Inputs and expected results. Inputs of reductions are small integers, chosen so that the result
 * is exact in the element type whatever the order; those of copies are arbitrary bits. */
#ifndef PERF_DATA_H
#define PERF_DATA_H

#include "work.h"

#define DATA_GUARD 64 /* bytes after a buffer that must stay as data_poison left them */

/* Fills a rank's send buffer of work_sides(w, rank).send elements. */
void data_fill(const struct work *w, uint64_t seed, uint32_t rank, void *send);
/* Overwrites bytes + DATA_GUARD bytes. */
void data_poison(void *buffer, uint64_t bytes);
/* Elements of a rank's received buffer that are not exactly the expected ones. */
uint64_t data_wrong(const struct work *w, uint64_t seed, uint32_t rank, const void *recv);
/* Guard elements (of one byte) that were overwritten behind `bytes`. */
uint64_t data_guard_wrong(const void *buffer, uint64_t bytes);

#endif
