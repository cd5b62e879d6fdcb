/* SPDX-License-Identifier: Apache-2.0 */
#include "spin.h"

#define WORTH_NS     UINT64_C(200000) /* per core beyond the waiting thread's */
#define WORTH_MAX_NS UINT64_C(300000)

#define WEIGHT 65536u /* total weight of all waits */
#define FADE   16     /* each wait takes this fraction of the weight */

#define LOST_SHARE  16		       /* polling pauses for this multiple of the lost time */
#define LOST_MAX_NS UINT64_C(10000000) /* longer: the thread was stopped, cores are not scarce */

/* The value of a wake-up on a machine with this many cores. 0 with one core, since the process that
 * could end the wait needs it. */
static uint64_t worth_ns(unsigned cores)
{
	const uint64_t ns = cores ? (cores - 1) * WORTH_NS : 0;
	return ns < WORTH_MAX_NS ? ns : WORTH_MAX_NS;
}

/* In half steps: the cost of the recent waits with a budget of this many steps. */
static uint64_t cost(const struct spin *s, unsigned steps)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < steps; i++)
		sum += s->recent[i] * (2 * i + 1);
	for (unsigned i = steps; i <= SPIN_STEPS; i++)
		sum += s->recent[i] * (uint64_t)(2 * steps + 2 * SPIN_STEPS);
	return sum;
}

static void choose(struct spin *s)
{
	unsigned best = 0;
	for (unsigned steps = 1; steps <= SPIN_STEPS; steps++)
		if (cost(s, steps) < cost(s, best))
			best = steps;
	const uint64_t least_ns = s->worth_ns < SPIN_BASE_NS ? s->worth_ns : SPIN_BASE_NS;
	s->budget_ns = s->worth_ns * best / SPIN_STEPS;
	if (s->budget_ns < least_ns)
		s->budget_ns = least_ns;
}

void spin_init(struct spin *s, int us, unsigned cores)
{
	*s = (struct spin){.always = us >= 0};
	if (s->always)
		s->worth_ns = s->budget_ns = (uint64_t)us * 1000;
	else
		spin_value(s, worth_ns(cores));
}

void spin_value(struct spin *s, uint64_t worth_ns)
{
	if (s->worth_ns == worth_ns)
		return;
	s->worth_ns = worth_ns;
	choose(s);
}

void spin_learn(struct spin *s, uint64_t waited_ns)
{
	const uint64_t step_ns = s->worth_ns / SPIN_STEPS;
	const uint64_t at = step_ns ? (waited_ns - 1) / step_ns : SPIN_STEPS;
	if (s->always || !s->worth_ns)
		return;
	for (unsigned i = 0; i <= SPIN_STEPS; i++)
		s->recent[i] -= s->recent[i] / FADE;
	s->recent[at < SPIN_STEPS ? at : SPIN_STEPS] += WEIGHT / FADE;
	choose(s);
}

void spin_lost(struct spin *s, uint64_t lost_ns, uint64_t now)
{
	s->scarce_ns = now + LOST_SHARE * (lost_ns < LOST_MAX_NS ? lost_ns : LOST_MAX_NS);
}

uint64_t spin_nap_ns(uint64_t waited_ns, unsigned share)
{
	const uint64_t ns = waited_ns / share;
	return ns < SPIN_NAP_MIN_NS ? SPIN_NAP_MIN_NS : ns > SPIN_NAP_MAX_NS ? SPIN_NAP_MAX_NS : ns;
}
