/* SPDX-License-Identifier: Apache-2.0
 * Staging memory: slots of one size. Some are pinned; the others are ordinary shared memory, whose
 * pages are freed with them. */
#include <stdlib.h>
#include <sys/mman.h>

#include "base/nofail.h"
#include "staged.h"

static char *address(const struct scheduler *sched, uint32_t slot)
{
	return staging_of(sched)->slots.base + (size_t)slot * STAGING_SLOT_BYTES;
}

void slots_add(struct scheduler *sched, const struct command *c)
{
	struct slots *s = &staging_of(sched)->slots;
	const uint32_t pinned = c->staging.pinned, all = c->staging.slots;
	*s = (struct slots){.base = c->staging.base, .all_pinned = pinned};
	s->pinned = nofail_calloc(pinned, sizeof(*s->pinned), "staging memory");
	s->more = nofail_calloc(all - pinned + 1, sizeof(*s->more), "staging memory");
	/* Stacks, so that the first slots are reused first, and the rest is seldom touched. */
	while (s->npinned < pinned) {
		s->pinned[s->npinned] = pinned - 1 - s->npinned;
		s->npinned++;
	}
	while (s->nmore < all - pinned) {
		s->more[s->nmore] = all - 1 - s->nmore;
		s->nmore++;
	}
}

bool slots_take(struct scheduler *sched, uint32_t n, bool any, char **out)
{
	struct slots *s = &staging_of(sched)->slots;
	if (n > s->npinned && (!any || n > s->npinned + s->nmore))
		return false;
	for (uint32_t i = 0; i < n; i++)
		out[i] = address(sched, s->npinned ? s->pinned[--s->npinned] : s->more[--s->nmore]);
	return true;
}

void slots_give(struct scheduler *sched, char *slot)
{
	struct slots *s = &staging_of(sched)->slots;
	uint32_t i = (uint32_t)((size_t)(slot - s->base) / STAGING_SLOT_BYTES);
	if (i < s->all_pinned) {
		s->pinned[s->npinned++] = i;
		return;
	}
	madvise(slot, STAGING_SLOT_BYTES, MADV_REMOVE);
	s->more[s->nmore++] = i;
}

void slots_free(struct scheduler *sched)
{
	free(staging_of(sched)->slots.pinned);
	free(staging_of(sched)->slots.more);
}
