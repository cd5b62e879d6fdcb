/* SPDX-License-Identifier: Apache-2.0
 * The ranks that a request of all members still lacks, as its error names them. */
#ifndef COORD_MISSING_H
#define COORD_MISSING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/svc_limits.h"

/* A JOIN that was refused while others wait for its rank. */
struct refusal {
	int32_t rank, pid; /* pid 0: none was refused */
	uint32_t before;   /* how many others were refused before, whom the text mentions */
	char text[SVC_TEXT_BYTES];
};

/* Another one was refused. */
void refusal_note(struct refusal *r, int32_t rank, int32_t pid, const char *text);

/* "1, 2 and 5 more" */
struct rank_names {
	char text[128];
	size_t at;
	unsigned n;
};
void rank_names_add(struct rank_names *r, uint32_t rank);
const char *rank_names_text(struct rank_names *r);

/* The ranks that an attempt to join lacks: those that never joined, and those whose own deadlines
 * have passed. The latter count as missing only if no other rank is. */
struct absent_ranks {
	struct rank_names never, late;
};
void absent_add(struct absent_ranks *a, uint32_t rank, bool late);
/* "of communicator X, these ranks had not joined by rank 1's deadline: 3; rank 3 (pid 7) ..." */
void absent_text(struct absent_ranks *a, const char *label, uint32_t rank,
		 const struct refusal *refused, char text[SVC_TEXT_BYTES]);

#endif
