/* SPDX-License-Identifier: Apache-2.0
 * Asks the daemon, and through it the daemons of other nodes, for the lists of a snapshot. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "merge.h"
#include "snapshot.h"
#include "text.h"

#define OLD_NS UINT64_C(100000000) /* lists that are older are asked for again */

/* A daemon that is too old does not know the list. */
static ncclsvc_result take_lateness(ncclsvc_session *session, struct snapshot *s)
{
	ncclsvc_result result = ncclsvc_list_lateness(session, &s->lateness, &s->nlateness);
	return result == NCCLSVC_INVALID_ARGUMENT ? NCCLSVC_OK : result;
}

static ncclsvc_result take_lists(ncclsvc_session *session, unsigned lists, struct snapshot *s)
{
	ncclsvc_result result = NCCLSVC_OK;
	if (lists & SNAPSHOT_SESSIONS)
		result = ncclsvc_list_sessions(session, &s->sessions, &s->nsessions);
	if (result == NCCLSVC_OK && lists & SNAPSHOT_COMMS)
		result = ncclsvc_list_comms(session, &s->comms, &s->ncomms);
	if (result == NCCLSVC_OK && lists & SNAPSHOT_MEMBERS)
		result = ncclsvc_list_members(session, &s->members, &s->nmembers);
	if (result == NCCLSVC_OK && lists & SNAPSHOT_TASKS)
		result = ncclsvc_list_tasks(session, &s->tasks, &s->ntasks);
	if (result == NCCLSVC_OK && lists & SNAPSHOT_REGIONS)
		result = ncclsvc_list_regions(session, &s->regions, &s->nregions);
	if (result == NCCLSVC_OK && lists & SNAPSHOT_DEVICES)
		result = ncclsvc_list_devices(session, &s->devices, &s->ndevices);
	if (result == NCCLSVC_OK && lists & SNAPSHOT_PLANS)
		result = ncclsvc_list_plans(session, &s->plans, &s->nplans);
	if (result == NCCLSVC_OK && lists & SNAPSHOT_PLANS)
		result = ncclsvc_list_plan_tasks(session, &s->plan_tasks, &s->nplan_tasks);
	if (result == NCCLSVC_OK && lists & SNAPSHOT_FAILURES)
		result = ncclsvc_list_failures(session, 0, &s->failures, &s->nfailures);
	if (result == NCCLSVC_OK && lists & SNAPSHOT_OPERATIONS)
		result = ncclsvc_list_operations(session, &s->operations, &s->noperations);
	if (result == NCCLSVC_OK && lists & SNAPSHOT_LATENESS)
		result = take_lateness(session, s);
	return result;
}

/* ---- Other nodes ---- */

uint64_t snapshot_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static ncclsvc_result take_lists_from(ncclsvc_session *session, unsigned lists, int node,
				      struct snapshot *s)
{
	ncclsvc_list_from(session, node);
	const ncclsvc_result result = take_lists(session, lists, s);
	ncclsvc_list_from(session, -1);
	return result;
}

/* age_ns is when the lists came, until all have. */
static void take_far(ncclsvc_session *session, unsigned lists, const ncclsvc_node_info *n,
		     struct snapshot_answer *a, struct snapshot *far)
{
	snapshot_free(far);
	a->asked = true;
	a->result = take_lists_from(session, lists, (int)n->node, far);
	a->age_ns = snapshot_now_ns();
	if (a->result == NCCLSVC_OK)
		snapshot_order(far);
	else
		snapshot_free(far);
}

/* After a wait for a node: what the asked daemon has heard of it since, and lists that came before
 * that once more. */
static void renew(ncclsvc_session *session, unsigned lists, struct snapshot *s,
		  struct snapshot *far)
{
	const uint64_t now = snapshot_now_ns();
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
			take_far(session, lists, &s->nodes[i], &s->answers[i], &far[i]);
}

/* The lists of all other nodes, or of that one. */
static void take_nodes(ncclsvc_session *session, unsigned lists, int32_t node, struct snapshot *s,
		       struct snapshot *far)
{
	bool failed = false;
	for (size_t i = 0; i < s->nnodes; i++) {
		const ncclsvc_node_info *n = &s->nodes[i];
		if (n->state == NCCLSVC_NODE_SELF ||
		    (node != SNAPSHOT_ALL && n->node != (uint32_t)node))
			continue;
		take_far(session, lists, n, &s->answers[i], &far[i]);
		failed |= s->answers[i].result != NCCLSVC_OK;
	}
	if (failed)
		renew(session, lists, s, far);
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

/* The lists of other nodes, too; s's nodes are known. */
static ncclsvc_result take_merged(ncclsvc_session *session, unsigned lists, int32_t node,
				  struct snapshot *s)
{
	struct snapshot *far = ctl_calloc(s->nnodes, sizeof(*far));
	s->answers = ctl_calloc(s->nnodes, sizeof(*s->answers));
	take_nodes(session, lists, node, s, far);
	struct snapshot_answer *a = main_answer(s, node);
	if (a && !a->asked)
		*a = (struct snapshot_answer){true, take_lists(session, lists, s),
					      snapshot_now_ns()};
	const ncclsvc_result result =
		a ? a->result : ncclsvc_set_error(NCCLSVC_NOT_FOUND, "there is no such node");
	const uint64_t now = snapshot_now_ns();
	for (size_t i = 0; i < s->nnodes; i++)
		s->answers[i].age_ns = now - s->answers[i].age_ns;
	if (result == NCCLSVC_OK)
		merge_nodes(s, far);
	for (size_t i = 0; i < s->nnodes; i++)
		snapshot_free(&far[i]);
	free(far);
	return result;
}

ncclsvc_result snapshot_take(ncclsvc_session *session, unsigned lists, int32_t node,
			     struct snapshot *s)
{
	memset(s, 0, sizeof(*s));
	ncclsvc_result result = ncclsvc_daemon(session, &s->daemon);
	if (result == NCCLSVC_OK && (lists & SNAPSHOT_NODES || node != SNAPSHOT_LOCAL))
		result = ncclsvc_list_nodes(session, &s->nodes, &s->nnodes);
	if (result == NCCLSVC_OK)
		snapshot_order(s);
	if (result == NCCLSVC_OK && (node == SNAPSHOT_LOCAL || (node < 0 && !s->nnodes)))
		result = take_lists(session, lists, s);
	else if (result == NCCLSVC_OK && !(lists & SNAPSHOT_MERGED))
		result = take_lists_from(session, lists, node, s);
	else if (result == NCCLSVC_OK)
		result = take_merged(session, lists, node, s);
	if (result == NCCLSVC_OK)
		snapshot_order(s);
	else
		snapshot_free(s);
	return result;
}
