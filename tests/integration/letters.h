/* SPDX-License-Identifier: Apache-2.0
 * A letter is one list of tensors in transit: what is sent, and what must arrive. */
#ifndef TESTS_LETTERS_H
#define TESTS_LETTERS_H

#include "tensor_ranks.h"

#define S NCCLSVC_SHAPES_STATIC
#define A NCCLSVC_SHAPES_AHEAD

#define LETTER_TENSORS 200 /* maximum; lists of more than 60 are announced in two messages */

struct letter {
	bool send;
	ncclsvc_message message;
	unsigned seed; /* seed of the values, and of shapes that are sent ahead */
	ncclsvc_tensor tensors[LETTER_TENSORS];
	int64_t dims[LETTER_TENSORS][2];
	struct got got;
	ncclsvc_request *request;
};

/* Sets up a list of n tensors to or from the peer. */
void letter_make(struct letter *l, bool send, int peer, ncclsvc_shapes shapes, int64_t tag,
		 size_t n, unsigned seed);
/* Allocates memory for tensors that are sent, or whose shapes are static. */
void letter_fill(struct letter *l);
/* Makes and fills the list, and starts its transfer. */
void letter_begin(const struct side *x, struct letter *l, bool send, int peer,
		  ncclsvc_shapes shapes, int64_t tag, size_t n, unsigned seed);
/* Waits for the list, checks what arrived, and frees everything. */
void letter_end(struct letter *l);
/* The same for a list that must fail. */
void letter_fails(struct letter *l, ncclsvc_result result, const char *why);
void letter_free(struct letter *l);

#endif
