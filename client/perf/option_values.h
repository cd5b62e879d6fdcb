/* SPDX-License-Identifier: Apache-2.0
 * Parsers of option values. Each returns false if the text is invalid. */
#ifndef PERF_OPTION_VALUES_H
#define PERF_OPTION_VALUES_H

#include <stdbool.h>
#include <stdint.h>

/* Names compare without case, '-' and '_': AllReduce, all-reduce and all_reduce are equal. */
bool same_name(const char *a, const char *b);
bool parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *value);
/* "1M", "1.5G", "512": binary units, as nccl-tests reads them. */
bool parse_size(const char *text, uint64_t *value);
/* A type or reduction, or "all", as a bit set by number. */
bool parse_type(const char *text, uint32_t *set);
bool parse_redop(const char *text, uint32_t *set);
/* The index of the word in `choices` (words separated by spaces), from 0. */
bool parse_choice(const char *text, const char *choices, unsigned *which);
const char *choice_name(const char *choices, unsigned which);
/* "0,1,3": up to size numbers of 0..max. */
bool parse_list(const char *text, int max, int *list, unsigned size, unsigned *n);
/* More than 0, at most max. */
bool parse_seconds(const char *text, double max, double *value);

#endif
