/* SPDX-License-Identifier: Apache-2.0
 * Random messages of a group, between all ranks. */
#ifndef TESTS_GPU_LETTERS_H
#define TESTS_GPU_LETTERS_H

#include "ranks.h"

#define LETTERS	       40		  /* per group, at most */
#define LETTERS_BYTES  ((size_t)12 << 20) /* of one rank in a group */
#define LETTER_STREAMS 2

struct letter {
	int from, to;
	ncclsvc_type type;
	size_t count;
	size_t send_at, recv_at; /* in the rank's buffer */
	int stream;
};

struct letters {
	CUdeviceptr p;
	uint8_t *in, *out; /* images */
	CUstream streams[LETTER_STREAMS];
	unsigned n;
	size_t bytes;	     /* part of the buffer in use */
	uint8_t salt, guard; /* each rank has a different byte around its messages */
	struct letter all[LETTERS];
};

void letters_open(struct letters *l);
void letters_close(struct letters *l);
/* All ranks draw the same messages from `random`, with different places. */
void letters_draw(struct letters *l, const struct rank *r, uint64_t *random, uint64_t *own);
/* Call within the group. */
void letters_submit(struct letters *l, struct rank *r);
/* Call after the group is submitted: waits for the streams. */
void letters_check(struct letters *l, const struct rank *r);

#endif
