/* SPDX-License-Identifier: Apache-2.0 */
#include "task_table.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The two words that change while a task lives. */
#define STATE_WORD    (offsetof(struct table_entry, op) / sizeof(uint64_t))
#define STATE_NS_WORD (offsetof(struct table_entry, state_ns) / sizeof(uint64_t))

_Static_assert(sizeof(struct table_entry) % sizeof(uint64_t) == 0, "whole words");
_Static_assert(offsetof(struct table_entry, state) == STATE_WORD * 8 + 4, "state shares op's word");

int table_init(struct task_table *t, uint32_t size)
{
	memset(t, 0, sizeof(*t));
	/* Pages are allocated when slots are first used. */
	void *p = mmap(NULL, size * sizeof(struct table_slot), PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return -ENOMEM;
	t->slots = p;
	t->size = size;
	t->used = calloc(size / 64 + 1, sizeof(*t->used));
	return t->used ? 0 : -ENOMEM;
}

void table_fini(struct task_table *t)
{
	if (t->slots)
		munmap(t->slots, t->size * sizeof(struct table_slot));
	t->slots = NULL;
	free(t->used);
	t->used = NULL;
}

static void write_begin(struct table_slot *s)
{
	uint64_t v = atomic_load_explicit(&s->version, memory_order_relaxed);
	atomic_store_explicit(&s->version, v + 1, memory_order_relaxed);
}

static void write_end(struct table_slot *s)
{
	uint64_t v = atomic_load_explicit(&s->version, memory_order_relaxed);
	atomic_store_explicit(&s->version, v + 1, memory_order_release);
}

static void store_word(struct table_slot *s, size_t word, uint64_t value)
{
	atomic_store_explicit(&s->words[word], value, memory_order_release);
}

static uint32_t take_lowest(struct task_table *t)
{
	while (t->used[t->room] == UINT64_MAX)
		t->room++;
	const uint32_t bit = (uint32_t)__builtin_ctzll(~t->used[t->room]);
	t->used[t->room] |= UINT64_C(1) << bit;
	return t->room * 64 + bit;
}

static void give_back(struct task_table *t, uint32_t slot)
{
	uint32_t high = atomic_load_explicit(&t->high, memory_order_relaxed), word = slot / 64;
	t->used[word] &= ~(UINT64_C(1) << slot % 64);
	if (word < t->room)
		t->room = word;
	if (slot + 1 < high)
		return;
	while (word && !t->used[word])
		word--;
	high = t->used[word] ? word * 64 + 64 - (uint32_t)__builtin_clzll(t->used[word]) : 0;
	atomic_store_explicit(&t->high, high, memory_order_release);
}

uint32_t table_put(struct task_table *t, const struct table_entry *e)
{
	const uint32_t slot = take_lowest(t);
	struct table_slot *s = &t->slots[slot];
	uint64_t words[TABLE_WORDS];
	memcpy(words, e, sizeof(words));
	write_begin(s);
	for (size_t i = 0; i < TABLE_WORDS; i++)
		store_word(s, i, words[i]);
	write_end(s);
	if (slot >= atomic_load_explicit(&t->high, memory_order_relaxed))
		atomic_store_explicit(&t->high, slot + 1, memory_order_release);
	return slot;
}

void table_state(struct task_table *t, uint32_t slot, uint32_t state, uint64_t now)
{
	struct table_slot *s = &t->slots[slot];
	uint64_t word = atomic_load_explicit(&s->words[STATE_WORD], memory_order_relaxed);
	write_begin(s);
	store_word(s, STATE_WORD, (word & UINT32_MAX) | (uint64_t)state << 32);
	store_word(s, STATE_NS_WORD, now);
	write_end(s);
}

void table_clear(struct task_table *t, uint32_t slot)
{
	struct table_slot *s = &t->slots[slot];
	write_begin(s);
	store_word(s, 0, 0);
	write_end(s);
	give_back(t, slot);
}

bool table_get(const struct task_table *t, uint32_t slot, struct table_entry *e)
{
	struct table_slot *s = &t->slots[slot];
	uint64_t words[TABLE_WORDS];
	/* A writer holds a slot for about 10 ns; if it stops in the middle, skip the slot. */
	for (int tries = 0; tries < 1000; tries++) {
		uint64_t before = atomic_load_explicit(&s->version, memory_order_acquire);
		if (before & 1)
			continue;
		words[0] = atomic_load_explicit(&s->words[0], memory_order_acquire);
		if (!words[0])
			return false;
		for (size_t i = 1; i < TABLE_WORDS; i++)
			words[i] = atomic_load_explicit(&s->words[i], memory_order_acquire);
		if (atomic_load_explicit(&s->version, memory_order_relaxed) == before) {
			memcpy(e, words, sizeof(*e));
			return true;
		}
	}
	return false;
}
