/* SPDX-License-Identifier: Apache-2.0
 * Computes how the tasks of undisturbed programs must end. Which tasks match does not depend on
 * when they are posted, so this advances all ranks as far as possible. When all ranks wait, that is
 * a deadlock, whatever they post later: the tasks they wait in end, and the ranks continue with the
 * rest. */
#include <string.h>

#include "deadlocks.h"

struct queue {
	uint32_t next, end;   /* tasks that have not had their turn */
	uint32_t head, until; /* tasks that have had it: running or ended */
};

static struct queue queues[RANKS_MAX];
static uint32_t nranks;

static bool waits(uint32_t task)
{
	return tasks[task].expected == EXPECT_PENDING;
}

/* The first task that the rank waits in; UINT32_MAX: it does not wait. */
static uint32_t first_waiting(const struct queue *q)
{
	for (uint32_t i = q->head; i < q->until; i++)
		if (waits(i))
			return i;
	return UINT32_MAX;
}

static bool next_head(struct queue *q)
{
	if (first_waiting(q) != UINT32_MAX || q->next == q->end)
		return false;
	q->head = q->next;
	do
		q->next++;
	while (q->next < q->end && tasks[q->next].group == tasks[q->head].group);
	q->until = q->next;
	return true;
}

/* The head's collectives are posted one after the other. */
static uint32_t posted_collective(const struct queue *q)
{
	for (uint32_t i = q->head; i < q->until; i++)
		if (waits(i) && tasks[i].peer < 0)
			return i;
	return UINT32_MAX;
}

static bool match_collective(void)
{
	uint32_t all[RANKS_MAX];
	for (uint32_t k = 0; k < nranks; k++) {
		all[k] = posted_collective(&queues[k]);
		if (all[k] == UINT32_MAX)
			return false;
	}
	for (uint32_t k = 0; k < nranks; k++)
		tasks[all[k]].expected = EXPECT_OK;
	return true;
}

static uint32_t posted_pair(uint32_t rank, uint8_t op, uint32_t peer)
{
	const struct queue *q = &queues[rank];
	for (uint32_t i = q->head; i < q->until; i++)
		if (waits(i) && tasks[i].op == op && tasks[i].peer == (int32_t)peer)
			return i;
	return UINT32_MAX;
}

static bool match_pair(uint32_t a, uint32_t b)
{
	const uint32_t send = posted_pair(a, NCCLSVC_SEND, b);
	const uint32_t recv = posted_pair(b, NCCLSVC_RECV, a);
	if (send == UINT32_MAX || recv == UINT32_MAX)
		return false;
	tasks[send].expected = tasks[recv].expected = EXPECT_OK;
	return true;
}

static void go_on(void)
{
	bool any = true;
	while (any) {
		any = match_collective();
		for (uint32_t a = 0; a < nranks; a++) {
			any |= next_head(&queues[a]);
			for (uint32_t b = 0; b < nranks; b++)
				any |= a != b && match_pair(a, b);
		}
	}
}

static bool break_deadlock(uint32_t number)
{
	for (uint32_t k = 0; k < nranks; k++)
		if (first_waiting(&queues[k]) == UINT32_MAX)
			return false;
	for (uint32_t k = 0; k < nranks; k++) {
		tasks[first_waiting(&queues[k])].first = true;
		for (uint32_t i = queues[k].head; i < queues[k].until; i++)
			if (waits(i)) {
				tasks[i].expected = EXPECT_DEADLOCK;
				tasks[i].deadlock = number;
			}
	}
	return true;
}

static void expect_of(uint32_t comm)
{
	uint32_t number = 0;
	nranks = comms[comm].nranks;
	memset(queues, 0, sizeof(queues));
	for (uint32_t i = ntasks; i--;) {
		struct queue *q = &queues[tasks[i].rank];
		if (tasks[i].comm != comm)
			continue;
		q->end = q->end ? q->end : i + 1;
		q->next = q->head = q->until = i;
	}
	do
		go_on();
	while (break_deadlock(number++));
}

void expect_all(void)
{
	for (uint32_t i = 0; i < ncomms; i++)
		expect_of(i);
}
