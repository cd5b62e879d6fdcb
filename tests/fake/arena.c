/* SPDX-License-Identifier: Apache-2.0
 * Addresses for device memory, reserved at once so that nothing else is mapped between them. */
#include <stdlib.h>
#include <sys/mman.h>

#include "fake.h"

#define ARENA_BYTES ((size_t)256 << 30)

struct hole {
	char *base;
	size_t span;
};

static char *arena;
static size_t used;
static struct hole *holes;
static size_t nholes, room;

char *arena_take(size_t span)
{
	for (size_t i = nholes; i-- > 0;) {
		if (holes[i].span != span)
			continue;
		char *base = holes[i].base;
		for (size_t j = i + 1; j < nholes; j++)
			holes[j - 1] = holes[j];
		nholes--;
		return base;
	}
	if (!arena) {
		char *p = mmap(NULL, ARENA_BYTES, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED)
			return NULL;
		madvise(p, ARENA_BYTES, MADV_DONTDUMP);
		arena = p;
		used = (size_t)(-(uintptr_t)p % FAKE_GRANULE);
	}
	if (span > ARENA_BYTES - used)
		return NULL;
	char *base = arena + used;
	used += ROUND_UP(span, FAKE_GRANULE);
	return base;
}

void arena_give(char *base, size_t span)
{
	/* Nothing may remain at the old address. */
	if (mmap(base, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		 0) == MAP_FAILED)
		abort();
	if (nholes == room) {
		size_t more = room ? 2 * room : 64;
		struct hole *grown = realloc(holes, more * sizeof(*holes));
		if (!grown)
			return; /* only the addresses are lost */
		holes = grown;
		room = more;
	}
	holes[nholes++] = (struct hole){base, span};
}

bool arena_holds(CUdeviceptr p)
{
	return arena && p >= (uintptr_t)arena && p - (uintptr_t)arena < ARENA_BYTES;
}
