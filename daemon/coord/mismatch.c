/* SPDX-License-Identifier: Apache-2.0 */
#include "mismatch.h"

void mismatch_add(struct mismatch *m, const struct svc_record *record, int32_t rank, uint32_t count)
{
	uint64_t a, b;
	uint32_t i = 0;
	while (i < m->nkinds && svc_record_differs(&m->kinds[i].record, record, &a, &b))
		i++;
	if (i == MISMATCH_KINDS)
		return;
	if (i == m->nkinds) {
		m->kinds[m->nkinds].record = *record;
		m->kinds[m->nkinds].rank = rank;
		m->kinds[m->nkinds++].count = count;
		return;
	}
	m->kinds[i].count += count;
	if (rank < m->kinds[i].rank)
		m->kinds[i].rank = rank;
}

/* The kind posted most often; of two equal ones, that of the lowest rank. */
static uint32_t largest(const struct mismatch *m)
{
	uint32_t best = 0;
	for (uint32_t i = 1; i < m->nkinds; i++)
		if (m->kinds[i].count > m->kinds[best].count ||
		    (m->kinds[i].count == m->kinds[best].count &&
		     m->kinds[i].rank < m->kinds[best].rank))
			best = i;
	return best;
}

static uint32_t lowest_but(const struct mismatch *m, uint32_t one)
{
	uint32_t best = !one;
	for (uint32_t i = 0; i < m->nkinds; i++)
		if (i != one && m->kinds[i].rank < m->kinds[best].rank)
			best = i;
	return best;
}

bool mismatch_is_cause(const ncclsvc_status *st)
{
	return st->result == NCCLSVC_MISMATCH && st->field != NCCLSVC_FIELD_ORDER &&
	       st->field != NCCLSVC_FIELD_REFUSAL && st->field != NCCLSVC_FIELD_PLAN;
}

bool mismatch_status(const struct mismatch *m, uint32_t nranks, ncclsvc_status *st)
{
	if (m->nkinds < 2)
		return false;
	const uint32_t one = largest(m), other = lowest_but(m, one);
	*st = (ncclsvc_status){.result = NCCLSVC_MISMATCH,
			       .rank_a = m->kinds[one].rank,
			       .rank_b = m->kinds[other].rank};
	st->field = svc_record_differs(&m->kinds[one].record, &m->kinds[other].record, &st->value_a,
				       &st->value_b);
	if (nranks > 2 && m->kinds[one].count == nranks - 1 && m->kinds[other].count == 1) {
		st->missing_count = 1;
		st->missing[0] = st->rank_b;
	}
	return true;
}
