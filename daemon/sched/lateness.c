/* SPDX-License-Identifier: Apache-2.0 */
#include "lateness.h"

#include "internode/node_match.h"
#include "state.h"

#define US     1000
#define US_MAX (UINT32_C(1) << 30)

/* ---- The scheduler ---- */

static void begin_collective(const struct engine *e, struct comm *c)
{
	const uint64_t elsewhere = c->internode ? node_match_first_ns(c) : 0;
	c->first_ns = c->latest_ns = elsewhere ? elsewhere : e->now;
	c->lateness_half = lateness_half_of(e->now);
}

/* Stores have an order, so that readers see no sums of an earlier half under the new number. */
static void set32(_Atomic uint32_t *word, uint32_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
}

static void begin_half(struct lateness_half *h, uint32_t number, uint64_t now)
{
	set32(&h->number, 0);
	set32(&h->last, 0);
	set32(&h->kinds, 0);
	set32(&h->max_us, 0);
	atomic_store_explicit(&h->first_ns, now, memory_order_release);
	for (uint32_t i = 0; i < NCCLSVC_LATENESS_BINS; i++) {
		set32(&h->bins[i].operations, 0);
		set32(&h->bins[i].sum_us, 0);
	}
	set32(&h->number, number);
}

static uint32_t bin_of(uint32_t us)
{
	const uint32_t bits = us ? 32 - (uint32_t)__builtin_clz(us) : 0;
	return bits < NCCLSVC_LATENESS_BINS ? bits : NCCLSVC_LATENESS_BINS - 1;
}

/* There is one writer. */
static void add(_Atomic uint32_t *counter, uint32_t by)
{
	const uint32_t n = atomic_load_explicit(counter, memory_order_relaxed);
	atomic_store_explicit(counter, n + by, memory_order_relaxed);
}

static void set_bits(_Atomic uint32_t *word, uint32_t bits)
{
	const uint32_t n = atomic_load_explicit(word, memory_order_relaxed);
	if ((n | bits) != n)
		atomic_store_explicit(word, n | bits, memory_order_relaxed);
}

/* The other members, of all nodes, came before. */
static bool comes_last(const struct engine *e, struct comm *c)
{
	return c->collective_here == c->here && e->now > c->latest_ns &&
	       (!c->internode || node_match_awaited(c));
}

void lateness_count(struct engine *e, const struct task *t)
{
	struct comm *c = t->comm;
	if (!c->lateness)
		return;
	if (c->collective_here == 1)
		begin_collective(e, c);
	struct lateness_half *h = &c->lateness[t->rank].halves[c->lateness_half & 1];
	if (atomic_load_explicit(&h->number, memory_order_relaxed) != c->lateness_half)
		begin_half(h, c->lateness_half, e->now);
	const uint64_t exact_us = (e->now - c->first_ns) / US;
	const uint32_t us = exact_us < US_MAX ? (uint32_t)exact_us : US_MAX;
	const uint32_t bin = bin_of(us);
	add(&h->bins[bin].operations, 1);
	add(&h->bins[bin].sum_us, us);
	if (us > atomic_load_explicit(&h->max_us, memory_order_relaxed))
		atomic_store_explicit(&h->max_us, us, memory_order_relaxed);
	set_bits(&h->kinds, UINT32_C(1) << t->record.op);
	if (comes_last(e, c))
		add(&h->last, 1);
	atomic_store_explicit(&h->latest_ns, e->now, memory_order_relaxed);
	c->latest_ns = e->now;
}

/* ---- The supervisor ---- */

struct sums {
	uint64_t first_ns, latest_ns;
	uint64_t us[NCCLSVC_LATENESS_BINS];
};

static void read_half(const struct lateness_half *h, struct sums *s, ncclsvc_lateness_info *i)
{
	const uint64_t first = atomic_load(&h->first_ns), latest = atomic_load(&h->latest_ns);
	const uint64_t max = (uint64_t)atomic_load(&h->max_us) * US;
	for (uint32_t bin = 0; bin < NCCLSVC_LATENESS_BINS; bin++) {
		const uint32_t n = atomic_load(&h->bins[bin].operations);
		i->operations += n;
		i->histogram[bin] += n;
		s->us[bin] += atomic_load(&h->bins[bin].sum_us);
	}
	i->last += atomic_load(&h->last);
	i->kinds |= atomic_load(&h->kinds);
	i->max_ns = max > i->max_ns ? max : i->max_ns;
	s->first_ns = first < s->first_ns ? first : s->first_ns;
	s->latest_ns = latest > s->latest_ns ? latest : s->latest_ns;
}

/* The mean of the bin that has the nth operation, by lateness, from 1. */
static uint64_t mean_of_bin(const struct sums *s, const ncclsvc_lateness_info *i, uint64_t nth)
{
	uint64_t before = 0;
	uint32_t bin = 0;
	while (bin < NCCLSVC_LATENESS_BINS - 1 && before + i->histogram[bin] < nth)
		before += i->histogram[bin++];
	return i->histogram[bin] ? s->us[bin] * US / i->histogram[bin] : 0;
}

bool lateness_read(const struct member_lateness *l, uint64_t now, ncclsvc_lateness_info *i)
{
	struct sums s = {.first_ns = UINT64_MAX};
	for (uint32_t k = 0; k < 2; k++)
		if (lateness_is_recent(atomic_load(&l->halves[k].number), now))
			read_half(&l->halves[k], &s, i);
	if (!i->operations)
		return false;
	for (uint32_t bin = 0; bin < NCCLSVC_LATENESS_BINS; bin++)
		i->sum_ns += s.us[bin] * US;
	i->median_ns = mean_of_bin(&s, i, ((uint64_t)i->operations + 1) / 2);
	i->p99_ns = mean_of_bin(&s, i, ((uint64_t)i->operations * 99 + 99) / 100);
	i->span_ns = s.latest_ns > s.first_ns ? s.latest_ns - s.first_ns : 0;
	i->age_ns = now > s.latest_ns ? now - s.latest_ns : 0;
	return true;
}
