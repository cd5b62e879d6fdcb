/* SPDX-License-Identifier: Apache-2.0 */
#include "missing.h"

#include <stdio.h>

#include "ncclsvc_types.h"

void rank_names_add(struct rank_names *r, uint32_t rank)
{
	if (r->n++ < NCCLSVC_MISSING_SHOWN)
		r->at += (size_t)snprintf(r->text + r->at, sizeof(r->text) - r->at, "%s%u",
					  r->n > 1 ? ", " : "", rank);
}

const char *rank_names_text(struct rank_names *r)
{
	if (r->n > NCCLSVC_MISSING_SHOWN)
		snprintf(r->text + r->at, sizeof(r->text) - r->at, " and %u more",
			 r->n - NCCLSVC_MISSING_SHOWN);
	return r->text;
}

void absent_add(struct absent_ranks *a, uint32_t rank, bool late)
{
	rank_names_add(late ? &a->late : &a->never, rank);
}

void absent_text(struct absent_ranks *a, const char *label, uint32_t rank,
		 const struct refusal *refused, char text[SVC_TEXT_BYTES])
{
	int n = snprintf(text, SVC_TEXT_BYTES,
			 "of communicator %s, these ranks had %s rank %u's deadline: %s", label,
			 a->never.n ? "not joined by" : "joined and given up before", rank,
			 rank_names_text(a->never.n ? &a->never : &a->late));
	if (refused->pid && n < SVC_TEXT_BYTES)
		snprintf(text + n, SVC_TEXT_BYTES - (size_t)n, "; rank %d (pid %d) was refused: %s",
			 refused->rank, refused->pid, refused->text);
}
