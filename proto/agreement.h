/* SPDX-License-Identifier: Apache-2.0
 * The agreement words of lists of tensors: 4 bits say what the member submits, 60 stand for what
 * all members must have in common beside that: types and shapes. The daemon only compares them. */
#ifndef PROTO_AGREEMENT_H
#define PROTO_AGREEMENT_H

#include <stdint.h>

#define AGREED_DIGEST_BITS 60

enum agreed {
	AGREED_STATIC = 1,
	AGREED_SHAPES, /* shapes are on their way */
	AGREED_AHEAD,  /* what they announced */
	AGREED_ALL_REDUCE,
	AGREED_ALL_GATHER,
	AGREED_REDUCE_SCATTER,
	AGREED_PLANNED, /* shapes of a planned list are on their way; of which one */
};

static inline enum agreed agreed_of(uint64_t word)
{
	return (enum agreed)(word >> AGREED_DIGEST_BITS);
}

/* "a list of static shapes"; NULL: not known here. */
const char *svc_agreed_name(uint64_t word);

#endif
