/* SPDX-License-Identifier: Apache-2.0 */
#include "missing.h"

#include <stdio.h>

#include "proto/ncclsvc_types.h"

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

void refusal_note(struct refusal *r, int32_t rank, int32_t pid, const char *text)
{
	const struct refusal last = *r;
	if (pid && last.pid == pid && last.rank == rank)
		return;
	*r = (struct refusal){.rank = rank, .pid = pid};
	r->before = pid && last.pid ? last.before + 1 : 0;
	const int n = snprintf(r->text, sizeof(r->text), "%s", text);
	if (!r->before || n < 0 || (size_t)n >= sizeof(r->text))
		return;
	char *more = r->text + n;
	const size_t room = sizeof(r->text) - (size_t)n;
	if (r->before > 1)
		snprintf(more, room, "; %u others were refused before", r->before);
	else
		snprintf(more, room, "; rank %d (pid %d) was refused before", last.rank, last.pid);
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
