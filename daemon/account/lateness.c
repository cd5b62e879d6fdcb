/* SPDX-License-Identifier: Apache-2.0 */
#include "lateness.h"

#include <stdlib.h>

#define LATE_MAX (UINT32_C(1) << 30) /* us */

struct comm_lateness *lateness_create(uint32_t nranks)
{
	const struct comm_lateness *l = NULL;
	return calloc(1, sizeof(*l) + nranks * sizeof(l->members[0]));
}

/* ---- The scheduler ---- */

/* Stores have an order, so that readers see no sums of an earlier half under the new number. */
static void set32(_Atomic uint32_t *word, uint32_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
}

static void set64(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
}

static uint32_t get32(const _Atomic uint32_t *word)
{
	return atomic_load_explicit(word, memory_order_acquire);
}

static uint64_t get64(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_acquire);
}

/* There is one writer. */
static void add(_Atomic uint32_t *counter, uint32_t by)
{
	set32(counter, get32(counter) + by);
}

static struct lateness_half *half_of_member(struct comm_lateness *l, uint32_t rank, uint64_t now)
{
	const uint32_t number = lateness_half_of(now);
	struct lateness_half *h = &l->members[rank].halves[number & 1];
	if (get32(&h->number) == number)
		return h;
	set32(&h->number, 0);
	set32(&h->last, 0);
	set32(&h->max_us, 0);
	for (uint32_t i = 0; i < NCCLSVC_LATENESS_BINS - 1; i++) {
		set32(&h->bins[i].collectives, 0);
		set32(&h->bins[i].sum_us, 0);
	}
	set32(&h->number, number);
	return h;
}

static struct comm_half *half_of_comm(struct comm_lateness *l, uint64_t now, uint64_t collectives)
{
	const uint32_t number = lateness_half_of(now);
	struct comm_half *h = &l->halves[number & 1];
	if (get32(&h->number) == number)
		return h;
	set32(&h->number, 0);
	set32(&h->kinds, 0);
	set64(&h->first_ns, now);
	set64(&h->first, collectives);
	set32(&h->number, number);
	return h;
}

/* The bins of 1 us, 2 us, 4 us, ... */
static uint32_t bin_of(uint32_t us)
{
	const uint32_t bin = 31 - (uint32_t)__builtin_clz(us);
	return bin < NCCLSVC_LATENESS_BINS - 1 ? bin : NCCLSVC_LATENESS_BINS - 2;
}

static void add_to_comm(struct comm_lateness *l, uint64_t now, const struct late_arrival *a)
{
	struct comm_half *h = half_of_comm(l, now, a->collectives);
	set32(&h->kinds, get32(&h->kinds) | UINT32_C(1) << a->op);
	set64(&h->latest_ns, now);
	set64(&h->latest, a->collectives);
}

void lateness_add(struct comm_lateness *l, uint64_t now, const struct late_arrival *a)
{
	struct lateness_half *h = half_of_member(l, a->rank, now);
	const uint64_t exact = a->late_ns / LATENESS_UNIT;
	const uint32_t us = exact < LATE_MAX ? (uint32_t)exact : LATE_MAX;
	const uint32_t bin = bin_of(us);
	add_to_comm(l, now, a);
	add(&h->bins[bin].collectives, 1);
	add(&h->bins[bin].sum_us, us);
	if (us > get32(&h->max_us))
		set32(&h->max_us, us);
	if (a->last)
		add(&h->last, 1);
}

/* ---- The supervisor ---- */

struct sums {
	uint64_t first_ns, latest_ns;
	uint64_t first, latest;
	uint64_t us[NCCLSVC_LATENESS_BINS];
};

static void read_comm(const struct comm_half *h, struct sums *s, ncclsvc_lateness_info *i)
{
	const uint64_t first_ns = get64(&h->first_ns), latest_ns = get64(&h->latest_ns);
	i->kinds |= get32(&h->kinds);
	if (first_ns < s->first_ns) {
		s->first_ns = first_ns;
		s->first = get64(&h->first);
	}
	if (latest_ns > s->latest_ns) {
		s->latest_ns = latest_ns;
		s->latest = get64(&h->latest);
	}
}

static void read_member(const struct lateness_half *h, struct sums *s, ncclsvc_lateness_info *i)
{
	const uint64_t max = (uint64_t)get32(&h->max_us) * LATENESS_UNIT;
	for (uint32_t bin = 1; bin < NCCLSVC_LATENESS_BINS; bin++) {
		i->histogram[bin] += get32(&h->bins[bin - 1].collectives);
		s->us[bin] += get32(&h->bins[bin - 1].sum_us);
	}
	i->last += get32(&h->last);
	i->max_ns = max > i->max_ns ? max : i->max_ns;
}

/* The mean of the bin that has the nth operation, by lateness, from 1. */
static uint64_t mean_of_bin(const struct sums *s, const ncclsvc_lateness_info *i, uint64_t nth)
{
	uint64_t before = 0;
	uint32_t bin = 0;
	while (bin < NCCLSVC_LATENESS_BINS - 1 && before + i->histogram[bin] < nth)
		before += i->histogram[bin++];
	return i->histogram[bin] ? s->us[bin] * LATENESS_UNIT / i->histogram[bin] : 0;
}

/* Since a rank was late first. */
static void count_operations(const struct sums *s, uint64_t came, ncclsvc_lateness_info *i)
{
	uint32_t late = 0;
	for (uint32_t bin = 1; bin < NCCLSVC_LATENESS_BINS; bin++)
		late += i->histogram[bin];
	const uint64_t n = came > s->first ? came - s->first : 0;
	i->operations = n < late ? late : n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
	i->histogram[0] = i->operations - late;
}

bool lateness_read(const struct comm_lateness *l, uint32_t rank, uint64_t came, uint64_t now,
		   ncclsvc_lateness_info *i)
{
	struct sums s = {.first_ns = UINT64_MAX};
	for (uint32_t k = 0; k < 2; k++) {
		const struct lateness_half *h = &l->members[rank].halves[k];
		if (lateness_is_recent(get32(&l->halves[k].number), now))
			read_comm(&l->halves[k], &s, i);
		if (lateness_is_recent(get32(&h->number), now))
			read_member(h, &s, i);
	}
	if (!s.latest_ns)
		return false;
	count_operations(&s, came, i);
	for (uint32_t bin = 0; bin < NCCLSVC_LATENESS_BINS; bin++)
		i->sum_ns += s.us[bin] * LATENESS_UNIT;
	i->median_ns = mean_of_bin(&s, i, ((uint64_t)i->operations + 1) / 2);
	i->p99_ns = mean_of_bin(&s, i, ((uint64_t)i->operations * 99 + 99) / 100);
	if (s.latest > s.first && s.latest_ns > s.first_ns)
		i->interval_ns = (s.latest_ns - s.first_ns) / (s.latest - s.first);
	i->age_ns = now > s.latest_ns ? now - s.latest_ns : 0;
	return true;
}
