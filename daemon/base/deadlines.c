/* SPDX-License-Identifier: Apache-2.0 */
#include "deadlines.h"

#include <errno.h>
#include <stdlib.h>

static void put(struct deadlines *h, uint32_t place, struct deadline *d)
{
	h->heap[place] = d;
	d->place = place;
}

static void sift_up(struct deadlines *h, uint32_t place)
{
	struct deadline *d = h->heap[place];
	for (; place > 1 && h->heap[place / 2]->at_ns > d->at_ns; place /= 2)
		put(h, place, h->heap[place / 2]);
	put(h, place, d);
}

static void sift_down(struct deadlines *h, uint32_t place)
{
	struct deadline *d = h->heap[place];
	for (;;) {
		uint32_t child = place * 2;
		if (child > h->n)
			break;
		if (child < h->n && h->heap[child + 1]->at_ns < h->heap[child]->at_ns)
			child++;
		if (h->heap[child]->at_ns >= d->at_ns)
			break;
		put(h, place, h->heap[child]);
		place = child;
	}
	put(h, place, d);
}

int deadlines_reserve(struct deadlines *h, uint32_t n)
{
	uint32_t room = h->room ? h->room : 64;
	while (room < n + 1)
		room *= 2;
	if (room == h->room)
		return 0;
	struct deadline **heap = realloc(h->heap, room * sizeof(*heap));
	if (!heap)
		return -ENOMEM;
	h->heap = heap;
	h->room = room;
	return 0;
}

int deadlines_add(struct deadlines *h, struct deadline *d, uint64_t at_ns)
{
	if (deadlines_reserve(h, h->n + 1))
		return -ENOMEM;
	d->at_ns = at_ns;
	put(h, ++h->n, d);
	sift_up(h, h->n);
	return 0;
}

void deadlines_take(struct deadlines *h, struct deadline *d)
{
	uint32_t place = d->place;
	d->place = 0;
	struct deadline *last = h->heap[h->n--];
	if (last == d)
		return;
	put(h, place, last);
	sift_up(h, place);
	sift_down(h, last->place);
}

void deadlines_fini(struct deadlines *h)
{
	free(h->heap);
	*h = (struct deadlines){0};
}
