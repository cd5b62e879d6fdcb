/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "ids.h"
#include "proto/svc_limits.h"

#define SILENT_NS UINT64_C(1000000000)

static int order_u64(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

static int by_session(const void *a, const void *b)
{
	return order_u64(((const ncclsvc_session_info *)a)->session,
			 ((const ncclsvc_session_info *)b)->session);
}

static int by_comm(const void *a, const void *b)
{
	return order_u64(((const ncclsvc_comm_info *)a)->comm,
			 ((const ncclsvc_comm_info *)b)->comm);
}

static int by_device(const void *pa, const void *pb)
{
	const ncclsvc_device_info *a = pa, *b = pb;
	return (a->device > b->device) - (a->device < b->device);
}

static int by_node(const void *pa, const void *pb)
{
	const ncclsvc_node_info *a = pa, *b = pb;
	return (a->node > b->node) - (a->node < b->node);
}

static int by_rank(const void *pa, const void *pb)
{
	const ncclsvc_member_info *a = pa, *b = pb;
	int order = order_u64(a->comm, b->comm);
	return order ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

static int by_plan(const void *pa, const void *pb)
{
	const ncclsvc_plan_info *a = pa, *b = pb;
	int order = order_u64(a->comm, b->comm);
	return order ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

static int by_place(const void *pa, const void *pb)
{
	const ncclsvc_plan_task_info *a = pa, *b = pb;
	int order = order_u64(a->plan, b->plan);
	if (!order)
		order = (a->rank > b->rank) - (a->rank < b->rank);
	if (!order)
		order = order_u64(a->group, b->group);
	return order ? order : order_u64(a->task, b->task);
}

static int by_lateness(const void *pa, const void *pb)
{
	const ncclsvc_lateness_info *a = pa, *b = pb;
	int order = order_u64(a->comm, b->comm);
	if (!order)
		order = order_u64(b->sum_ns, a->sum_ns);
	if (!order)
		order = order_u64(b->kernel_waited_ns, a->kernel_waited_ns);
	return order ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

static void sort(void *list, size_t n, size_t size, int (*order)(const void *, const void *))
{
	if (n > 1)
		qsort(list, n, size, order);
}

/* Bounds the counts that loops use. A malicious daemon, or one of a version with other limits, may
 * send any value. */
static void bound(struct snapshot *s)
{
	for (size_t i = 0; i < s->ncomms; i++)
		if (s->comms[i].nranks > SVC_RANKS_MAX)
			s->comms[i].nranks = SVC_RANKS_MAX;
	for (size_t i = 0; i < s->ntasks; i++) {
		if (s->tasks[i].nranks > SVC_RANKS_MAX)
			s->tasks[i].nranks = SVC_RANKS_MAX;
		if (s->tasks[i].waits_count > SVC_RANKS_MAX)
			s->tasks[i].waits_count = SVC_RANKS_MAX;
	}
	for (size_t i = 0; i < s->noperations; i++)
		if (s->operations[i].nranks > SVC_RANKS_MAX)
			s->operations[i].nranks = SVC_RANKS_MAX;
}

void snapshot_order(struct snapshot *s)
{
	bound(s);
	sort(s->sessions, s->nsessions, sizeof(*s->sessions), by_session);
	sort(s->comms, s->ncomms, sizeof(*s->comms), by_comm);
	sort(s->members, s->nmembers, sizeof(*s->members), by_rank);
	sort(s->devices, s->ndevices, sizeof(*s->devices), by_device);
	sort(s->nodes, s->nnodes, sizeof(*s->nodes), by_node);
	sort(s->plans, s->nplans, sizeof(*s->plans), by_plan);
	sort(s->plan_tasks, s->nplan_tasks, sizeof(*s->plan_tasks), by_place);
	sort(s->lateness, s->nlateness, sizeof(*s->lateness), by_lateness);
}

void snapshot_free(struct snapshot *s)
{
	ncclsvc_list_free(s->sessions);
	ncclsvc_list_free(s->comms);
	ncclsvc_list_free(s->members);
	ncclsvc_list_free(s->tasks);
	ncclsvc_list_free(s->operations);
	ncclsvc_list_free(s->regions);
	ncclsvc_list_free(s->devices);
	ncclsvc_list_free(s->plans);
	ncclsvc_list_free(s->plan_tasks);
	ncclsvc_list_free(s->nodes);
	free(s->answers);
	free(s->session_names);
	ncclsvc_list_free(s->failures);
	ncclsvc_list_free(s->lateness);
	memset(s, 0, sizeof(*s));
}

static void *find(const void *key, const void *list, size_t n, size_t size,
		  int (*order)(const void *, const void *))
{
	return n ? bsearch(key, list, n, size, order) : NULL;
}

const ncclsvc_session_info *snapshot_session(const struct snapshot *s, uint32_t session)
{
	ncclsvc_session_info key = {.session = session};
	return find(&key, s->sessions, s->nsessions, sizeof(key), by_session);
}

const ncclsvc_comm_info *snapshot_comm(const struct snapshot *s, uint64_t comm)
{
	ncclsvc_comm_info key = {.comm = comm};
	return find(&key, s->comms, s->ncomms, sizeof(key), by_comm);
}

const ncclsvc_member_info *snapshot_member(const struct snapshot *s, uint64_t comm, int32_t rank)
{
	ncclsvc_member_info key = {.comm = comm, .rank = rank};
	return find(&key, s->members, s->nmembers, sizeof(key), by_rank);
}

const ncclsvc_plan_info *snapshot_plan(const struct snapshot *s, uint64_t comm, int32_t rank)
{
	ncclsvc_plan_info key = {.comm = comm, .rank = rank};
	return find(&key, s->plans, s->nplans, sizeof(key), by_plan);
}

size_t snapshot_plan_missing(const struct snapshot *s, const ncclsvc_plan_info *plan,
			     const ncclsvc_plan_task_info **missing, size_t max)
{
	size_t n = 0, looked = 0;
	ncclsvc_plan_task_info key = {.plan = plan->plan, .rank = plan->rank, .group = plan->group};
	/* The group's first missing task, if it has any. */
	const ncclsvc_plan_task_info *t =
		find(&key, s->plan_tasks, s->nplan_tasks, sizeof(key), by_place);
	for (; t && t < s->plan_tasks + s->nplan_tasks && looked < SVC_GROUP_TASKS; t++, looked++) {
		if (t->plan != plan->plan || t->rank != plan->rank || t->group != plan->group)
			break;
		if (t->state != NCCLSVC_PLAN_MISSING)
			continue;
		if (n < max)
			missing[n] = t;
		n++;
	}
	return n;
}

const ncclsvc_device_info *snapshot_device(const struct snapshot *s, int32_t device)
{
	ncclsvc_device_info key = {.device = device};
	return find(&key, s->devices, s->ndevices, sizeof(key), by_device);
}

const ncclsvc_device_info *snapshot_member_device(const struct snapshot *s,
						  const ncclsvc_member_info *m)
{
	if (m->device < 0 || (m->elsewhere && !snapshot_knows(s, m)))
		return NULL;
	return snapshot_device(s,
			       m->elsewhere ? ids_device(m->elsewhere - 1, m->device) : m->device);
}

const struct snapshot_answer *snapshot_answer(const struct snapshot *s, uint32_t node)
{
	const ncclsvc_node_info *n = s->answers ? snapshot_node(s, node) : NULL;
	const struct snapshot_answer *a = n ? &s->answers[n - s->nodes] : NULL;
	return a && a->asked ? a : NULL;
}

bool snapshot_knows(const struct snapshot *s, const ncclsvc_member_info *m)
{
	const struct snapshot_answer *a =
		m->elsewhere ? snapshot_answer(s, m->elsewhere - 1) : NULL;
	return !m->elsewhere || (a && a->result == NCCLSVC_OK);
}

uint32_t snapshot_self(const struct snapshot *s)
{
	for (size_t i = 0; i < s->nnodes; i++)
		if (s->nodes[i].state == NCCLSVC_NODE_SELF)
			return s->nodes[i].node;
	return 0;
}

const ncclsvc_node_info *snapshot_node(const struct snapshot *s, uint32_t node)
{
	ncclsvc_node_info key = {.node = node};
	return find(&key, s->nodes, s->nnodes, sizeof(key), by_node);
}

bool node_is_silent(const ncclsvc_node_info *node)
{
	return node->state == NCCLSVC_NODE_ALIVE && node->heard_ns >= SILENT_NS;
}

/* Index of the first member that is not before (comm, any rank). */
static size_t first_member(const struct snapshot *s, uint64_t comm)
{
	size_t low = 0, high = s->nmembers;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (s->members[middle].comm < comm)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

const ncclsvc_member_info *snapshot_members(const struct snapshot *s, uint64_t comm, size_t *n)
{
	size_t begin = first_member(s, comm), end = begin;
	while (end < s->nmembers && s->members[end].comm == comm)
		end++;
	*n = end - begin;
	return *n ? s->members + begin : NULL;
}

const char *comm_state_name(unsigned state)
{
	switch (state) {
	case NCCLSVC_COMM_FORMING:
		return "forming";
	case NCCLSVC_COMM_READY:
		return "ready";
	case NCCLSVC_COMM_BROKEN:
		return "broken";
	case NCCLSVC_COMM_IDLE:
		return "idle";
	}
	return "?";
}

const char *member_state_name(unsigned state)
{
	switch (state) {
	case NCCLSVC_MEMBER_ABSENT:
		return "absent";
	case NCCLSVC_MEMBER_JOINING:
		return "joining";
	case NCCLSVC_MEMBER_JOINED:
		return "joined";
	case NCCLSVC_MEMBER_DEAD:
		return "dead";
	case NCCLSVC_MEMBER_BROKEN:
		return "broken";
	case NCCLSVC_MEMBER_UNKNOWN:
		return "unknown";
	}
	return "?";
}

const char *peer_source_name(unsigned source)
{
	switch (source) {
	case NCCLSVC_PEER_DEFAULT:
		return "default";
	case NCCLSVC_PEER_MEASURED:
		return "measured";
	case NCCLSVC_PEER_SET:
		return "set";
	case NCCLSVC_PEER_OUT_OF_REACH:
		return "out of reach";
	case NCCLSVC_PEER_SHARED_GPU:
		return "shared GPU";
	}
	return NULL;
}

const char *device_state_name(unsigned state)
{
	switch (state) {
	case NCCLSVC_DEVICE_STARTING:
		return "starting";
	case NCCLSVC_DEVICE_READY:
		return "ready";
	case NCCLSVC_DEVICE_LOST:
		return "lost";
	case NCCLSVC_DEVICE_FAILED:
		return "failed";
	}
	return "?";
}

bool task_is_pending(const ncclsvc_task_info *task)
{
	return (task->state >= NCCLSVC_QUEUED && task->state <= NCCLSVC_LAUNCHED) ||
	       task->state == NCCLSVC_WAITING_GROUP;
}

uint32_t task_waits_shown(const ncclsvc_task_info *task)
{
	return task->waits_count < NCCLSVC_MISSING_SHOWN ? task->waits_count
							 : NCCLSVC_MISSING_SHOWN;
}

uint32_t task_asks_shown(const ncclsvc_task_info *task)
{
	return task->ask_count < NCCLSVC_MISSING_SHOWN ? task->ask_count : NCCLSVC_MISSING_SHOWN;
}

bool op_is_p2p(unsigned op)
{
	return op == NCCLSVC_SEND || op == NCCLSVC_RECV;
}

bool op_reduces(unsigned op)
{
	return op == NCCLSVC_ALL_REDUCE || op == NCCLSVC_REDUCE_SCATTER || op == NCCLSVC_REDUCE;
}
