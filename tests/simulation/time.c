/* SPDX-License-Identifier: Apache-2.0
 * Random numbers, virtual time, and its events. */
#include <stdlib.h>

#include "schedules.h"

#ifndef HAPPENINGS_MAX
#define HAPPENINGS_MAX 400000 /* per schedule */
#endif

struct happening {
	uint64_t time, order;
	int node;
	uint32_t life; /* the node's, when this was scheduled */
	void (*f)(void *arg);
	void *arg;
};

uint64_t now_ns;
static struct happening *heap;
static uint32_t n, room;
static uint64_t orders, state;
static int node_now = -1;

int time_node(void)
{
	return node_now;
}

void time_begin(uint64_t seed)
{
	state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
	now_ns = 1000 * S;
	n = 0;
	orders = 0;
}

static uint64_t random_word(void)
{
	uint64_t z = (state += UINT64_C(0x9e3779b97f4a7c15));
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

uint32_t below(uint32_t limit)
{
	return (uint32_t)(random_word() % limit);
}

bool chance(uint32_t percent)
{
	return below(100) < percent;
}

uint64_t between(uint64_t low, uint64_t high)
{
	return low + random_word() % (high - low + 1);
}

/* ---- Events ---- */

static bool is_before(const struct happening *a, const struct happening *b)
{
	return a->time != b->time ? a->time < b->time : a->order < b->order;
}

static void swap(uint32_t i, uint32_t k)
{
	const struct happening h = heap[i];
	heap[i] = heap[k];
	heap[k] = h;
}

void at(uint64_t time, int node, void (*f)(void *arg), void *arg)
{
	if (n == room) {
		room = room ? 2 * room : 1024;
		heap = realloc(heap, room * sizeof(*heap));
		if (!heap)
			abort();
	}
	heap[n] = (struct happening){time < now_ns ? now_ns : time,  ++orders, node,
				     node < 0 ? 0 : node_life(node), f,	       arg};
	for (uint32_t i = n++; i && is_before(&heap[i], &heap[(i - 1) / 2]); i = (i - 1) / 2)
		swap(i, (i - 1) / 2);
}

static struct happening next(void)
{
	const struct happening first = heap[0];
	heap[0] = heap[--n];
	for (uint32_t i = 0, k; (k = 2 * i + 1) < n; i = k) {
		if (k + 1 < n && is_before(&heap[k + 1], &heap[k]))
			k++;
		if (!is_before(&heap[k], &heap[i]))
			break;
		swap(i, k);
	}
	return first;
}

bool time_run(uint64_t duration)
{
	const uint64_t end = orders + HAPPENINGS_MAX,
		       until = duration ? now_ns + duration : UINT64_MAX;
	while (n && heap[0].time <= until && !failure[0]) {
		const struct happening h = next();
		now_ns = h.time;
		node_now = h.node;
		if (h.node < 0 || (h.life && node_life(h.node) == h.life))
			h.f(h.arg);
		node_now = -1;
		free(h.arg);
		if (orders > end)
			return false;
	}
	if (duration && !failure[0])
		now_ns = until;
	return true;
}

void time_end(void)
{
	while (n)
		free(heap[--n].arg);
	free(heap);
	heap = NULL;
	room = 0;
}
