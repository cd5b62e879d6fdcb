/* SPDX-License-Identifier: Apache-2.0
 * The client's side of the session memory. session_memory.h states the rules. */
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "connection.h"
#include "deadline_clock.h"
#include "session_memory.h"

#define POLLS_PER_CLOCK 16
#define PAUSE_NS	1000 /* a pause can take longer than an answer */
#define YIELD_NS	2000

bool ring_ended(const struct connection *c, uint64_t n, bool *bad)
{
	uint64_t now = svc_number_load(&svc_status_slot(c->ring, c->entries, n)->number);
	*bad = now != n && now != svc_number_before(c->entries, n);
	return now == n;
}

void ring_publish(const struct connection *c, uint64_t n, const struct svc_record *record)
{
	struct svc_record *slot = svc_record_slot(c->ring, c->entries, n);
	const size_t first = sizeof(slot->number);
	const size_t size = record->flags & SVC_TASK_SECOND_HALF ? sizeof(*slot) : SVC_HALF;
	memcpy((char *)slot + first, (const char *)record + first, size - first);
	svc_number_store(&slot->number, n);
}

void ring_restart(const struct connection *c)
{
	for (uint64_t n = 0; n < c->entries; n++) {
		svc_number_store(&svc_record_slot(c->ring, c->entries, n)->number, 0);
		svc_number_store(&svc_status_slot(c->ring, c->entries, n)->number, 0);
	}
}

void ring_doorbell(const struct connection *c)
{
	const uint64_t one = 1;
	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load_explicit(&c->ring->asleep, memory_order_relaxed))
		return;
	/* The write fails only if the counter is full, and then the daemon has been woken. */
	ssize_t written = write(c->doorbell, &one, sizeof(one));
	(void)written;
}

static bool poll_for(const struct connection *c, uint64_t n, struct spin *spin, uint64_t start,
		     uint64_t deadline)
{
	const uint64_t *number = &svc_status_slot(c->ring, c->entries, n)->number;
	/* The scheduler may be waiting for this core: yield to it, at once if cores are scarce. */
	uint64_t spent = 0;
	uint64_t alone =
		atomic_load_explicit(&c->ring->crowded, memory_order_relaxed) ? 0 : YIELD_NS;
	do {
		for (int i = 0; i < POLLS_PER_CLOCK; i++) {
			if (svc_number_load(number) == n) {
				/* The thread also waits for the next task of the group. */
				__builtin_prefetch(svc_status_slot(c->ring, c->entries, n + 1));
				spin_waited(spin, spent);
				return true;
			}
			if (spent > PAUSE_NS)
				spin_pause();
		}
		if (spent >= alone)
			sched_yield();
		uint64_t before = spent, now = now_ns();
		spent = now - start;
		spin_looked(spin, spent - before, now);
	} while (spent < spin_budget_ns(spin, start + spent) && start + spent < deadline);
	return false;
}

static bool sleep_for(const struct connection *c, uint64_t n, uint64_t now, uint64_t deadline)
{
	const uint64_t *number = &svc_status_slot(c->ring, c->entries, n)->number;
	if (now >= deadline)
		return svc_number_load(number) == n;
	uint64_t ns = deadline - now < SLICE_NS ? deadline - now : SLICE_NS;
	struct timespec t = {.tv_nsec = (long)(ns % 1000000000)};
	bool woken = true;
	atomic_fetch_add(&c->ring->waiters, 1);
	uint32_t wake = atomic_load(&c->ring->wake);
	atomic_thread_fence(memory_order_seq_cst);
	if (svc_number_load(number) != n && !atomic_load(&c->ring->ended))
		woken = syscall(SYS_futex, &c->ring->wake, FUTEX_WAIT, wake, &t, NULL, 0) == 0;
	atomic_fetch_sub(&c->ring->waiters, 1);
	return woken || svc_number_load(number) == n;
}

bool ring_sleep(const struct connection *c, uint64_t n, struct spin *spin, uint64_t deadline)
{
	const uint64_t start = now_ns();
	if (!spin)
		return sleep_for(c, n, start, deadline);
	spin_value(spin, atomic_load_explicit(&c->ring->spin_ns, memory_order_relaxed));
	if (spin_budget_ns(spin, start) && poll_for(c, n, spin, start, deadline))
		return true;
	bool woken = sleep_for(c, n, now_ns(), deadline);
	spin_waited(spin, now_ns() - start);
	return woken;
}

void ring_wake(const struct connection *c)
{
	atomic_fetch_add(&c->ring->wake, 1);
	syscall(SYS_futex, &c->ring->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
