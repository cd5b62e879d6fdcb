/* SPDX-License-Identifier: Apache-2.0
 * A group of random messages between all ranks. */
#ifndef TESTS_GPU_RANDOM_MESSAGES_H
#define TESTS_GPU_RANDOM_MESSAGES_H

#include "ranks.h"

#define LETTERS	       40		  /* per group, at most */
#define LETTERS_BYTES  ((size_t)12 << 20) /* of each rank's buffer */
#define LETTER_STREAMS 2

struct letter {
	int from, to;
	ncclsvc_type type;
	size_t count;
	size_t send_at, recv_at; /* offsets in the rank's buffer */
	int stream;
};

struct letters {
	CUdeviceptr p;
	uint8_t *in, *out; /* host copies of p: what is sent, and what arrived */
	CUstream streams[LETTER_STREAMS];
	unsigned n;
	size_t bytes;	     /* of the buffer, in use */
	uint8_t salt, guard; /* salt: in all contents; guard: around messages, by rank */
	struct letter all[LETTERS];
};

void letters_open(struct letters *l);
void letters_close(struct letters *l);
/* All ranks draw the same messages from `random`; each draws its offsets and streams from `own`. */
void letters_draw(struct letters *l, const struct rank *r, uint64_t *random, uint64_t *own);
/* Call it within a group. */
void letters_submit(struct letters *l, struct rank *r);
/* Waits for the streams, and checks what arrived. Call it after the group's end. */
void letters_check(struct letters *l, const struct rank *r);

#endif
