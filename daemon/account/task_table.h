/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of every task, in memory that inspection reads without asking the scheduler or slowing
 * it down. There is one writer and any number of readers. A version guards each slot; it is odd
 * while the slot is written. Words are stored with release and loaded with acquire, which orders
 * them without fences (and costs nothing on x86).
 */
#ifndef DAEMON_TASK_TABLE_H
#define DAEMON_TASK_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct table_entry {
	uint64_t uid;
	uint64_t comm_uid;
	uint64_t seq;
	uint64_t count, bytes;
	uint64_t submitted_ns;
	uint32_t comm; /* slot */
	int32_t rank;
	int32_t peer, pid;
	uint32_t session; /* id */
	uint32_t epoch;
	uint32_t nranks, group;
	uint8_t op, type, redop, reserved;
	uint32_t state;
	uint64_t state_ns;
	uint32_t graph, graph_place; /* as in its record, like the following */
	uint32_t plan, plan_group, plan_task;
	uint32_t collective; /* its number among its rank's, the low half; 0: not known yet */
};

#define TABLE_WORDS (sizeof(struct table_entry) / sizeof(uint64_t))

struct table_slot {
	_Alignas(64) _Atomic uint64_t version;
	_Atomic uint64_t words[TABLE_WORDS];
};

struct task_table {
	struct table_slot *slots;
	uint32_t size;
	_Atomic uint32_t high;		    /* all slots from this one on are empty */
	uint64_t *used;			    /* bitmap of slots with an entry */
	uint32_t room;			    /* all words of `used` before this one are full */
	_Atomic uint64_t pending;	    /* tasks, including those without an entry so far */
	_Atomic uint64_t completed, failed; /* completed includes failed */
	_Atomic uint64_t messages;	    /* sent to other nodes' schedulers */
};

/* Counters of one session's tasks. The scheduler writes them; inspection reads them. */
struct session_counts {
	_Atomic uint64_t submitted, completed, failed;
};

/* Adds to a counter that has only one writer. */
static inline void table_count(_Atomic uint64_t *counter, int64_t by)
{
	uint64_t n = atomic_load_explicit(counter, memory_order_relaxed);
	atomic_store_explicit(counter, n + (uint64_t)by, memory_order_relaxed);
}

/* Memory that the table takes per task. */
static inline uint64_t table_bytes_each(void)
{
	return sizeof(struct table_slot);
}

/* Returns 0 or -ENOMEM. */
int table_init(struct task_table *t, uint32_t size);
void table_fini(struct task_table *t);

/* Writes the entry into the lowest empty slot and returns the slot. There is a slot for every task.
 */
uint32_t table_put(struct task_table *t, const struct table_entry *e);
void table_state(struct task_table *t, uint32_t slot, uint32_t state, uint64_t now);
void table_clear(struct task_table *t, uint32_t slot);

/* False if the slot is empty. */
bool table_get(const struct task_table *t, uint32_t slot, struct table_entry *e);

#endif
