/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a thread that waits for work polls before it parks, and how long it naps if it gets no
 * wake-up. The scheduler, the workers and waiting clients all follow this rule.
 *
 * Polling saves a wake-up but uses a core. A wake-up is worth `worth_ns` of polling. Each wait
 * longer than SPIN_BASE_NS is added to a histogram in which older waits decay. The budget is the
 * polling time that would have been cheapest for these waits: a wait that ends within it costs its
 * length, a longer one costs the budget and a wake-up. So a thread polls longer than SPIN_BASE_NS
 * only if enough recent waits ended within the budget to pay for the others, and the wake-ups saved
 * bound the time wasted by polling.
 *
 * If a polling thread's two readings of the clock are far apart, the kernel gave its core to other
 * threads. Then the thread parks at once, for a time that grows with the time lost.
 *
 * A struct spin belongs to one thread. The functions make no system calls. */
#ifndef PROTO_SPIN_H
#define PROTO_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define SPIN_STEPS 8 /* budgets to choose from, in addition to SPIN_BASE_NS: up to worth_ns */

/* Every wait polls this long, so shorter ones cost no wake-up. */
#define SPIN_BASE_NS UINT64_C(16000)
/* Between two readings of the clock: the core was taken away. */
#define SPIN_LOST_NS UINT64_C(1000000)

/* Naps while waiting for an end, which is noticed late by at most this fraction of the wait. */
#define SPIN_NAP_SHARE	16
#define SPIN_NAP_MIN_NS UINT64_C(20000)
#define SPIN_NAP_MAX_NS UINT64_C(20000000)
#define SPIN_SLACK_NS	5000 /* timer slack of threads that nap */

#define SPIN_AUTO (-1)

struct spin {
	uint64_t worth_ns;  /* 0: the thread never polls */
	uint64_t budget_ns; /* chosen for the waits seen recently */
	uint64_t scarce_ns; /* until then the thread does not poll */
	/* Weights of waits, by eighths of worth_ns; the last one for longer waits. */
	uint32_t recent[SPIN_STEPS + 1];
	bool always; /* poll for worth_ns in every wait */
};

/* us: how long to poll in every wait, or SPIN_AUTO for the rule above. */
void spin_init(struct spin *s, int us, unsigned cores);

/* Likewise by the rule, with a given worth. The thread's history stays. */
void spin_value(struct spin *s, uint64_t worth_ns);

/* How long to poll from the beginning of a wait. */
static inline uint64_t spin_budget_ns(const struct spin *s, uint64_t now)
{
	return now < s->scarce_ns && !s->always ? 0 : s->budget_ns;
}

void spin_learn(struct spin *s, uint64_t waited_ns);
void spin_lost(struct spin *s, uint64_t lost_ns, uint64_t now);

/* A wait has ended with work. */
static inline void spin_waited(struct spin *s, uint64_t waited_ns)
{
	if (waited_ns > SPIN_BASE_NS)
		spin_learn(s, waited_ns);
}

/* A polling thread has read the clock again after this time. */
static inline void spin_looked(struct spin *s, uint64_t since_ns, uint64_t now)
{
	if (since_ns > SPIN_LOST_NS)
		spin_lost(s, since_ns, now);
}

/* How long to sleep between checks without a wake-up: of memory written by a GPU, or for messages
 * of other nodes. The end is noticed late by at most one part in `share` of the wait so far, or by
 * SPIN_NAP_MIN_NS. */
uint64_t spin_nap_ns(uint64_t waited_ns, unsigned share);

/* Between two polls. */
static inline void spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#endif
