/* SPDX-License-Identifier: Apache-2.0
 * Address ranges by kind of memory, and which of them operations are using. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct range **ranges; /* sorted by base */
static size_t nranges, room;
static uint64_t last_buffer_id;
static _Thread_local uint64_t replayed; /* the newest buffer when it was captured, or 0 */

/* Index of the first range that ends above p. */
static size_t lower(uintptr_t p)
{
	size_t low = 0, high = nranges;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if ((uintptr_t)ranges[middle]->base + ranges[middle]->bytes <= p)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct range *table_find(CUdeviceptr p)
{
	size_t i = lower((uintptr_t)p);
	return i < nranges && (uintptr_t)ranges[i]->base <= p ? ranges[i] : NULL;
}

bool table_overlaps(const char *base, size_t bytes)
{
	size_t i = lower((uintptr_t)base);
	return i < nranges && (uintptr_t)ranges[i]->base < (uintptr_t)base + bytes;
}

struct range *table_next(size_t i)
{
	return i < nranges ? ranges[i] : NULL;
}

struct range *table_add(const struct range *range)
{
	if (nranges == room) {
		size_t more = room ? 2 * room : 64;
		struct range **grown = realloc(ranges, more * sizeof(struct range *));
		if (!grown)
			return NULL;
		ranges = grown;
		room = more;
	}
	struct range *r = malloc(sizeof(*r));
	if (!r)
		return NULL;
	memcpy(r, range, sizeof(*r));
	r->buffer_id = ++last_buffer_id;
	atomic_init(&r->pins, 0);
	size_t i = lower((uintptr_t)r->base);
	memmove(ranges + i + 1, ranges + i, (nranges - i) * sizeof(struct range *));
	ranges[i] = r;
	nranges++;
	return r;
}

struct range *table_remove(CUdeviceptr base, enum range_kind kind)
{
	unsigned round = 0;
	for (;;) {
		struct range *r = table_find(base);
		if (!r || (uintptr_t)r->base != base || r->kind != kind)
			return NULL;
		if (atomic_load(&r->pins) == 0) {
			size_t i = lower((uintptr_t)base);
			nranges--;
			memmove(ranges + i, ranges + i + 1, (nranges - i) * sizeof(struct range *));
			return r;
		}
		pthread_rwlock_unlock(&table_lock);
		fake_pause(&round);
		pthread_rwlock_wrlock(&table_lock);
	}
}

/* Whether p is in a range and the bytes end in it, or in adjacent mappings. */
static bool holds(CUdeviceptr p, size_t bytes)
{
	const struct range *first = table_find(p), *r = first;
	if (!first || !first->accessible)
		return false;
	for (CUdeviceptr end = p + bytes; (p = (uintptr_t)r->base + r->bytes) < end;) {
		r = table_find(p);
		if (!r || !r->accessible || r->kind != RANGE_VMM || first->kind != RANGE_VMM)
			return false;
	}
	return true;
}

static void pin_all(CUdeviceptr p, size_t bytes, int by)
{
	CUdeviceptr end = p + bytes;
	struct range *r = table_find(p);
	while (r) {
		atomic_fetch_add(&r->pins, by);
		p = (uintptr_t)r->base + r->bytes;
		r = p < end ? table_find(p) : NULL;
	}
}

uint64_t table_newest(void)
{
	pthread_rwlock_rdlock(&table_lock);
	const uint64_t id = last_buffer_id;
	pthread_rwlock_unlock(&table_lock);
	return id;
}

uint64_t table_replay(uint64_t newest)
{
	const uint64_t before = replayed;
	replayed = newest;
	return before;
}

/* A mapping of cuMemMap may be newer. */
static void replay_check(CUdeviceptr p, size_t bytes, bool good)
{
	if (!good)
		fake_die("a graph uses memory that is not there: it was freed since the capture");
	const CUdeviceptr end = p + bytes;
	for (const struct range *r; p < end; p = (uintptr_t)r->base + r->bytes) {
		r = table_find(p);
		if (r->buffer_id > replayed && r->kind != RANGE_VMM)
			fake_die("a graph uses memory that was freed since the capture: other "
				 "memory is there");
	}
}

bool fake_pin(struct fake_pin *pin, CUdeviceptr p, size_t bytes)
{
	pthread_rwlock_rdlock(&table_lock);
	bool good = bytes <= UINTPTR_MAX - p && holds(p, bytes);
	if (replayed)
		replay_check(p, bytes, good);
	if (good) {
		struct range *r = table_find(p);
		pin_all(p, bytes, 1);
		*pin = (struct fake_pin){
			.range = r, .at = r->at + (p - (uintptr_t)r->base), .p = p, .bytes = bytes};
	}
	pthread_rwlock_unlock(&table_lock);
	return good;
}

void fake_unpin(struct fake_pin *pin)
{
	pthread_rwlock_rdlock(&table_lock);
	pin_all(pin->p, pin->bytes, -1);
	pthread_rwlock_unlock(&table_lock);
	pin->range = NULL;
}
