/* SPDX-License-Identifier: Apache-2.0 */
#include "held.h"

#include <stdlib.h>

#include "base/nofail.h"

static int by_number(const struct held *a, const struct held *b)
{
	return (a->record.number > b->record.number) - (a->record.number < b->record.number);
}

void held_keep(struct sched_session *s, const struct svc_record *record)
{
	struct held *h = nofail_malloc(sizeof(*h), "a task of a suspended epoch");
	h->record = *record;
	if (record->comm < s->nhandles)
		s->handles[record->comm].held++;
	HASH_ADD(hh, s->held, record.number, sizeof(h->record.number), h);
	const struct held *before = h->hh.prev;
	s->held_unsorted |= before && by_number(before, h) > 0;
}

void held_sort(struct sched_session *s)
{
	if (s->held_unsorted)
		HASH_SORT(s->held, by_number);
	s->held_unsorted = false;
}

struct held *held_find(const struct sched_session *s, uint64_t number)
{
	struct held *h;
	HASH_FIND(hh, s->held, &number, sizeof(number), h);
	return h;
}

void held_free(struct sched_session *s, struct held *h)
{
	HASH_DEL(s->held, h);
	if (h->record.comm < s->nhandles)
		s->handles[h->record.comm].held--;
	free(h);
}

void held_free_all(struct sched_session *s)
{
	while (s->held)
		held_free(s, s->held);
}
