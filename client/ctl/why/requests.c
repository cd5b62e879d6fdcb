/* SPDX-License-Identifier: Apache-2.0
 * Requests that all members make together: some have, and wait for the others. */
#include "internal.h"
#include "sentences.h"

#include <stdlib.h>

#define MS_NS UINT64_C(1000000)

uint32_t why_request(const struct why *w, uint64_t comm, uint64_t *age_ns)
{
	size_t n;
	uint32_t request = NCCLSVC_REQUEST_NONE;
	const ncclsvc_member_info *m = why_members(w, comm, &n);
	*age_ns = 0;
	for (size_t i = 0; i < n; i++) {
		if (!request)
			request = m[i].request;
		if (m[i].request && m[i].request_ms * MS_NS > *age_ns)
			*age_ns = m[i].request_ms * MS_NS;
	}
	return request;
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
