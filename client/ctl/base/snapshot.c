/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ids.h"
#include "merge.h"

#include "proto/svc_limits.h"
#include "text.h"

#define SILENT_NS UINT64_C(1000000000)
#define OLD_NS	  UINT64_C(100000000) /* a part that is older is asked for again */

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

/* A daemon that is too old does not know the list. */
static ncclsvc_result take_lateness(ncclsvc_session *session, struct snapshot *s)
{
	ncclsvc_result result = ncclsvc_list_lateness(session, &s->lateness, &s->nlateness);
	return result == NCCLSVC_INVALID_ARGUMENT ? NCCLSVC_OK : result;
}

static ncclsvc_result take_lists(ncclsvc_session *session, unsigned parts, struct snapshot *s)
{
	ncclsvc_result result = NCCLSVC_OK;
	if (parts & SNAPSHOT_SESSIONS)
		result = ncclsvc_list_sessions(session, &s->sessions, &s->nsessions);
	if (result == NCCLSVC_OK && parts & SNAPSHOT_COMMS)
		result = ncclsvc_list_comms(session, &s->comms, &s->ncomms);
	if (result == NCCLSVC_OK && parts & SNAPSHOT_MEMBERS)
		result = ncclsvc_list_members(session, &s->members, &s->nmembers);
	if (result == NCCLSVC_OK && parts & SNAPSHOT_TASKS)
		result = ncclsvc_list_tasks(session, &s->tasks, &s->ntasks);
	if (result == NCCLSVC_OK && parts & SNAPSHOT_REGIONS)
		result = ncclsvc_list_regions(session, &s->regions, &s->nregions);
	if (result == NCCLSVC_OK && parts & SNAPSHOT_DEVICES)
		result = ncclsvc_list_devices(session, &s->devices, &s->ndevices);
	if (result == NCCLSVC_OK && parts & SNAPSHOT_PLANS)
		result = ncclsvc_list_plans(session, &s->plans, &s->nplans);
	if (result == NCCLSVC_OK && parts & SNAPSHOT_PLANS)
		result = ncclsvc_list_plan_tasks(session, &s->plan_tasks, &s->nplan_tasks);
	if (result == NCCLSVC_OK && parts & SNAPSHOT_FAILURES)
		result = ncclsvc_list_failures(session, 0, &s->failures, &s->nfailures);
	if (result == NCCLSVC_OK && parts & SNAPSHOT_OPERATIONS)
		result = ncclsvc_list_operations(session, &s->operations, &s->noperations);
	if (result == NCCLSVC_OK && parts & SNAPSHOT_LATENESS)
		result = take_lateness(session, s);
	return result;
}

/* ---- Other nodes ---- */

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static ncclsvc_result take_lists_from(ncclsvc_session *session, unsigned parts, int node,
				      struct snapshot *s)
{
	ncclsvc_list_from(session, node);
	const ncclsvc_result result = take_lists(session, parts, s);
	ncclsvc_list_from(session, -1);
	return result;
}

/* age_ns is when the part came, until all have. */
static void take_far(ncclsvc_session *session, unsigned parts, const ncclsvc_node_info *n,
		     struct snapshot_answer *a, struct snapshot *far)
{
	snapshot_free(far);
	a->asked = true;
	a->result = take_lists_from(session, parts, (int)n->node, far);
	a->age_ns = now_ns();
	if (a->result == NCCLSVC_OK)
		snapshot_order(far);
	else
		snapshot_free(far);
}

/* After a wait for a node: what the asked daemon has heard of it since, and parts that came before
 * that once more. */
static void renew(ncclsvc_session *session, unsigned parts, struct snapshot *s,
		  struct snapshot *far)
{
	const uint64_t now = now_ns();
	ncclsvc_node_info *nodes;
	size_t n;
	if (ncclsvc_list_nodes(session, &nodes, &n) == NCCLSVC_OK && n == s->nnodes) {
		ncclsvc_list_free(s->nodes);
		s->nodes = nodes;
		snapshot_order(s);
	}
	for (size_t i = 0; i < s->nnodes; i++)
		if (s->answers[i].asked && s->answers[i].result == NCCLSVC_OK &&
		    now - s->answers[i].age_ns > OLD_NS)
			take_far(session, parts, &s->nodes[i], &s->answers[i], &far[i]);
}

/* The parts of all other nodes, or of that one. */
static void take_nodes(ncclsvc_session *session, unsigned parts, int32_t node, struct snapshot *s,
		       struct snapshot *far)
{
	bool failed = false;
	for (size_t i = 0; i < s->nnodes; i++) {
		const ncclsvc_node_info *n = &s->nodes[i];
		if (n->state == NCCLSVC_NODE_SELF ||
		    (node != SNAPSHOT_ALL && n->node != (uint32_t)node))
			continue;
		take_far(session, parts, n, &s->answers[i], &far[i]);
		failed |= s->answers[i].result != NCCLSVC_OK;
	}
	if (failed)
		renew(session, parts, s, far);
}

/* SELF's answer, or the only node's that is wanted; NULL: there is no such node. */
static struct snapshot_answer *main_answer(struct snapshot *s, int32_t node)
{
	for (size_t i = 0; i < s->nnodes; i++)
		if (node < 0 ? s->nodes[i].state == NCCLSVC_NODE_SELF
			     : s->nodes[i].node == (uint32_t)node)
			return &s->answers[i];
	return NULL;
}

/* The parts of other nodes, too; s's nodes are known. */
static ncclsvc_result take_parts(ncclsvc_session *session, unsigned parts, int32_t node,
				 struct snapshot *s)
{
	struct snapshot *far = ctl_calloc(s->nnodes, sizeof(*far));
	s->answers = ctl_calloc(s->nnodes, sizeof(*s->answers));
	take_nodes(session, parts, node, s, far);
	struct snapshot_answer *a = main_answer(s, node);
	if (a && !a->asked)
		*a = (struct snapshot_answer){true, take_lists(session, parts, s), now_ns()};
	const ncclsvc_result result =
		a ? a->result : ncclsvc_set_error(NCCLSVC_NOT_FOUND, "there is no such node");
	const uint64_t now = now_ns();
	for (size_t i = 0; i < s->nnodes; i++)
		s->answers[i].age_ns = now - s->answers[i].age_ns;
	if (result == NCCLSVC_OK)
		merge_nodes(s, far);
	for (size_t i = 0; i < s->nnodes; i++)
		snapshot_free(&far[i]);
	free(far);
	return result;
}

ncclsvc_result snapshot_take(ncclsvc_session *session, unsigned parts, int32_t node,
			     struct snapshot *s)
{
	memset(s, 0, sizeof(*s));
	ncclsvc_result result = ncclsvc_daemon(session, &s->daemon);
	if (result == NCCLSVC_OK && (parts & SNAPSHOT_NODES || node != SNAPSHOT_LOCAL))
		result = ncclsvc_list_nodes(session, &s->nodes, &s->nnodes);
	if (result == NCCLSVC_OK)
		snapshot_order(s);
	if (result == NCCLSVC_OK && (node == SNAPSHOT_LOCAL || (node < 0 && !s->nnodes)))
		result = take_lists(session, parts, s);
	else if (result == NCCLSVC_OK && !(parts & SNAPSHOT_MERGED))
		result = take_lists_from(session, parts, node, s);
	else if (result == NCCLSVC_OK)
		result = take_parts(session, parts, node, s);
	if (result == NCCLSVC_OK)
		snapshot_order(s);
	else
		snapshot_free(s);
	return result;
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
