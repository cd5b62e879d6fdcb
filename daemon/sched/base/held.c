/* SPDX-License-Identifier: Apache-2.0 */
#include "held.h"

#include <stdlib.h>
#include <utlist.h>

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
	if (s->held && by_number(s->held->prev, h) < 0)
		DL_APPEND(s->held, h);
	else
		DL_INSERT_INORDER(s->held, h, by_number);
}

struct held *held_find(const struct sched_session *s, uint64_t number)
{
	struct held *h;
	DL_FOREACH (s->held, h)
		if (h->record.number == number)
			break;
	return h;
}

void held_free(struct sched_session *s, struct held *h)
{
	DL_DELETE(s->held, h);
	if (h->record.comm < s->nhandles)
		s->handles[h->record.comm].held--;
	free(h);
}

void held_free_all(struct sched_session *s)
{
	while (s->held)
		held_free(s, s->held);
}
