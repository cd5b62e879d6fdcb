/* SPDX-License-Identifier: Apache-2.0
 * Python's pickle format, protocol 2: as much of it as PyTorch's analysis of flight recorders
 * reads. A dictionary's keys and values are written in turn. */
#ifndef CTL_PICKLE_H
#define CTL_PICKLE_H

#include "text.h"

void pickle_begin(struct text *t);
void pickle_end(struct text *t);
void pickle_dict(struct text *t);
void pickle_dict_end(struct text *t);
void pickle_list(struct text *t);
void pickle_list_end(struct text *t);
void pickle_string(struct text *t, const char *s);
void pickle_u64(struct text *t, uint64_t value);
void pickle_bool(struct text *t, bool value);
void pickle_none(struct text *t);

#endif
