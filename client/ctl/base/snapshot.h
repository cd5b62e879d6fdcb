/* SPDX-License-Identifier: Apache-2.0
 * What the daemon reported at one moment, and look-ups in it. */
#ifndef CTL_SNAPSHOT_H
#define CTL_SNAPSHOT_H

#include <ncclsvc_plan.h>

enum snapshot_part {
	SNAPSHOT_SESSIONS = 1,
	SNAPSHOT_COMMS = 2,
	SNAPSHOT_MEMBERS = 4,
	SNAPSHOT_TASKS = 8,
	SNAPSHOT_REGIONS = 16,
	SNAPSHOT_DEVICES = 32,
	SNAPSHOT_PLANS = 64, /* plans and their tasks */
	SNAPSHOT_NODES = 256,
	SNAPSHOT_FAILURES = 512,
	SNAPSHOT_OPERATIONS = 4096,
	SNAPSHOT_LATENESS = 1024,
	SNAPSHOT_MERGED = 16384, /* other nodes' lists are merged: ALL is possible */
};

#define SNAPSHOT_LOCAL (-1) /* the asked daemon's node */
#define SNAPSHOT_ALL   (-2) /* all nodes of its cluster */

/* The outcome of asking a node for its lists. */
struct snapshot_answer {
	bool asked;
	ncclsvc_result result; /* OK: they are in the snapshot */
	uint64_t age_ns;       /* of the lists */
};

/* Another node's name for a session that is in the snapshot. */
struct snapshot_session_name {
	uint32_t node, session;
};

/* Numbers of other nodes' sessions, communicators, tasks, plans and GPUs are not those nodes' own
 * (ids.h), so that each is there once. Members of other nodes have `elsewhere` set. */
struct snapshot {
	ncclsvc_daemon_info daemon;
	struct snapshot_answer
		*answers; /* of each of `nodes`; NULL: only those of one node were wanted */
	struct snapshot_session_name *session_names;
	size_t nsession_names;
	ncclsvc_session_info *sessions;
	ncclsvc_comm_info *comms;
	ncclsvc_member_info *members;
	ncclsvc_task_info *tasks;
	ncclsvc_operation_info *operations;
	ncclsvc_region_info *regions;
	ncclsvc_device_info *devices;
	ncclsvc_plan_info *plans;	    /* sorted by communicator and rank */
	ncclsvc_plan_task_info *plan_tasks; /* sorted by plan, rank and place */
	size_t nsessions, ncomms, nmembers, ntasks, nregions, ndevices, nplans, nplan_tasks, nnodes;
	ncclsvc_node_info *nodes;	 /* by number */
	ncclsvc_failure_info *failures;	 /* by node and number */
	ncclsvc_lateness_info *lateness; /* by communicator, the ranks that are late most first */
	size_t nfailures, noperations, nlateness;
};

/* snapshot_take.c: fetches the daemon's state and the lists in `lists`, of this node (its number,
 * or one of the constants above), and sorts them. On failure nothing is allocated, and
 * ncclsvc_last_error says why. With ALL, a node that does not answer is no failure. */
ncclsvc_result snapshot_take(ncclsvc_session *session, unsigned lists, int32_t node,
			     struct snapshot *s);
void snapshot_free(struct snapshot *s);
/* CLOCK_MONOTONIC. */
uint64_t snapshot_now_ns(void);
/* Sorts for the look-ups: sessions, communicators and devices by id, members by communicator and
 * rank. */
void snapshot_order(struct snapshot *s);

/* NULL: not in the snapshot. */
const ncclsvc_session_info *snapshot_session(const struct snapshot *s, uint32_t session);
const ncclsvc_comm_info *snapshot_comm(const struct snapshot *s, uint64_t comm);
const ncclsvc_member_info *snapshot_member(const struct snapshot *s, uint64_t comm, int32_t rank);
/* The communicator's members, *n of them, sorted by rank. */
const ncclsvc_member_info *snapshot_members(const struct snapshot *s, uint64_t comm, size_t *n);

/* NULL: the rank has no plan there. */
const ncclsvc_plan_info *snapshot_plan(const struct snapshot *s, uint64_t comm, int32_t rank);
/* The unsubmitted tasks of the member's current group: stores the first max of them, returns how
 * many there are. */
size_t snapshot_plan_missing(const struct snapshot *s, const ncclsvc_plan_info *plan,
			     const ncclsvc_plan_task_info **missing, size_t max);

const ncclsvc_device_info *snapshot_device(const struct snapshot *s, int32_t device);
/* The member's; NULL also if its node is not in the snapshot. */
const ncclsvc_device_info *snapshot_member_device(const struct snapshot *s,
						  const ncclsvc_member_info *m);

/* NULL: it was not asked. */
const struct snapshot_answer *snapshot_answer(const struct snapshot *s, uint32_t node);
/* Did the node that the member is on tell of it? */
bool snapshot_knows(const struct snapshot *s, const ncclsvc_member_info *m);

/* The asked daemon's node; 0 if it is alone. */
uint32_t snapshot_self(const struct snapshot *s);
/* NULL: there is only one node, or no such node. */
const ncclsvc_node_info *snapshot_node(const struct snapshot *s, uint32_t node);
/* True if nothing has been heard from it for a second, which is several heartbeats. */
bool node_is_silent(const ncclsvc_node_info *node);

/* "?" if unknown. */
const char *comm_state_name(unsigned state);
const char *member_state_name(unsigned state);
const char *device_state_name(unsigned state);
/* The name of an ncclsvc_peer_source; NULL: unknown. */
const char *peer_source_name(unsigned source);
bool task_is_pending(const ncclsvc_task_info *task);
/* How many entries of waits_for, and of ask_nodes, are valid. */
uint32_t task_waits_shown(const ncclsvc_task_info *task);
uint32_t task_asks_shown(const ncclsvc_task_info *task);
bool op_is_p2p(unsigned op);
bool op_reduces(unsigned op);

#endif
