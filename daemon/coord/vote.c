/* SPDX-License-Identifier: Apache-2.0 */
#include "vote.h"

static bool names(const ncclsvc_status *st, int32_t rank)
{
	for (uint32_t i = 0; i < st->missing_count && i < NCCLSVC_MISSING_SHOWN; i++)
		if (st->missing[i] == rank)
			return true;
	return false;
}

static void add_missing(ncclsvc_status *st, const ncclsvc_status *from)
{
	for (uint32_t i = 0; i < from->missing_count && i < NCCLSVC_MISSING_SHOWN; i++) {
		if (names(st, from->missing[i]))
			continue;
		if (st->missing_count < NCCLSVC_MISSING_SHOWN)
			st->missing[st->missing_count] = from->missing[i];
		st->missing_count++;
	}
	if (from->missing_count > NCCLSVC_MISSING_SHOWN)
		st->missing_count += from->missing_count - NCCLSVC_MISSING_SHOWN;
}

static void add_failed(struct outcome *o, const struct failed_note *failed)
{
	const bool differs = mismatch_is_cause(&failed->status);
	if (!o->failed || (mismatch_is_cause(&o->status) && !differs))
		o->status = failed->status;
	else if (failed->status.result == o->status.result && o->status.result != NCCLSVC_MISMATCH)
		add_missing(&o->status, &failed->status);
	o->failed = true;
	for (uint32_t k = 0; k < failed->posted.nkinds; k++)
		mismatch_add(&o->posted, &failed->posted.kinds[k].record,
			     failed->posted.kinds[k].rank, failed->posted.kinds[k].count);
}

void outcome_add(struct outcome *o, const struct vote *v)
{
	if (v->kind == VOTE_READY)
		mismatch_add(&o->posted, &v->record, v->rank, v->count);
	if (v->failed)
		add_failed(o, v->failed);
}
