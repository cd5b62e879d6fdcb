/* SPDX-License-Identifier: Apache-2.0
 * Finds members that a communicator lacks, and those that have not made a request that the others
 * wait in. */
#include "find.h"
#include "finding.h"
#include "sentences.h"

#include <stdlib.h>
#include <string.h>

static void count_member(const struct why *w, const ncclsvc_comm_info *c, int32_t rank,
			 struct why_census *census)
{
	const ncclsvc_member_info *m = why_member(w, c->comm, rank);
	switch (m ? m->state : NCCLSVC_MEMBER_ABSENT) {
	case NCCLSVC_MEMBER_JOINING:
	case NCCLSVC_MEMBER_JOINED:
		census->joined[census->njoined++] = rank;
		break;
	case NCCLSVC_MEMBER_DEAD:
		census->dead[census->ndead++] = rank;
		break;
	case NCCLSVC_MEMBER_BROKEN:
		census->broken[census->nbroken++] = rank;
		break;
	case NCCLSVC_MEMBER_UNKNOWN:
		census->unknown[census->nunknown++] = rank;
		break;
	default:
		census->absent[census->nabsent++] = rank;
	}
}

static void blame_all(const struct why *w, struct why_finding *f, const int32_t *ranks, size_t n,
		      enum why_cause cause)
{
	for (size_t i = 0; i < n; i++)
		why_blame(w, f, f->comm, ranks[i], cause);
}

void why_find_joining(struct why *w, const struct why_group *g, struct why_report *report)
{
	struct text out = TEXT_INIT(-1);
	const ncclsvc_comm_info *c = g->comm;
	const ncclsvc_member_info *bad = why_bad_device(w, c->comm, false);
	int32_t *ranks = ctl_calloc((size_t)c->nranks * 5, sizeof(*ranks));
	struct why_census census = {
		.joined = ranks,
		.dead = ranks + c->nranks,
		.broken = ranks + 2 * (size_t)c->nranks,
		.absent = ranks + 3 * (size_t)c->nranks,
		.unknown = ranks + 4 * (size_t)c->nranks,
	};
	for (uint32_t rank = 0; rank < c->nranks; rank++)
		count_member(w, c, (int32_t)rank, &census);
	const bool silent = c->ask_node && why_node_is_silent(w, c->ask_node - 1);
	struct why_finding f = why_finding_of(g, silent				  ? WHY_SILENT
						 : bad				  ? WHY_WORKER
						 : census.ndead || census.nbroken ? WHY_DEAD
						 : census.nunknown		  ? WHY_ELSEWHERE
										  : WHY_JOINING);
	blame_all(w, &f, census.dead, census.ndead, WHY_DEAD);
	/* While a rank or a worker lacks, members that live have nothing to rejoin. */
	if (!census.ndead && !bad)
		blame_all(w, &f, census.broken, census.nbroken, WHY_DEAD);
	blame_all(w, &f, census.absent, census.nabsent, WHY_JOINING);
	if (bad)
		why_name_worker(w, &f, bad);
	if (c->ask_node)
		why_name_node(&f, c->ask_node - 1);
	f.nwaiting = census.njoined;
	f.waiting = ctl_calloc(f.nwaiting, sizeof(*f.waiting));
	memcpy(f.waiting, census.joined, f.nwaiting * sizeof(*f.waiting));
	why_tell_joining(w, g, &census, &out);
	free(ranks);
	why_report(w, report, &f, &out);
}

/* Only the member's own node knows what it has called. */
static bool lacks(const struct why *w, const ncclsvc_member_info *m, uint32_t request)
{
	return snapshot_knows(w->s, m) && m->state == NCCLSVC_MEMBER_JOINED &&
	       m->request != request;
}

void why_find_request(struct why *w, const struct why_group *g, struct why_report *report)
{
	size_t n;
	struct text out = TEXT_INIT(-1);
	const ncclsvc_member_info *m = why_members(w, g->comm->comm, &n);
	struct why_finding f = {
		.comm = g->comm->comm,
		.op = g->request == NCCLSVC_REQUEST_SPLIT ? "Split" : "PlanEnd",
		.seq = WHY_NO_SEQ,
		.age_ns = g->age_ns,
		.age_known = true,
		.cause = WHY_ELSEWHERE,
		.device = -1,
		.waiting = ctl_calloc(n, sizeof(*f.waiting)),
	};
	for (size_t i = 0; i < n; i++) {
		if (m[i].request == g->request)
			f.waiting[f.nwaiting++] = m[i].rank;
		if (!lacks(w, &m[i], g->request))
			continue;
		const bool halted = process_is_halted(why_process(w, &m[i]));
		const enum why_cause cause = halted ? WHY_STOPPED : WHY_MISSING;
		if (cause > f.cause || f.cause == WHY_ELSEWHERE)
			f.cause = cause;
		why_blame(w, &f, m[i].comm, m[i].rank, cause);
	}
	for (size_t i = 0; i < n && f.cause == WHY_ELSEWHERE; i++)
		if (m[i].elsewhere)
			why_name_node(&f, m[i].elsewhere - 1);
	why_tell_request(w, &f, &out);
	why_report(w, report, &f, &out);
}
