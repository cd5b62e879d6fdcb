/* SPDX-License-Identifier: Apache-2.0
 * Parts of the analysis behind why.h. A rank of a communicator is a node; it waits for the ranks
 * its task waits for, or, with no task there, for whatever its session waits for elsewhere. */
#ifndef CTL_WHY_INTERNAL_H
#define CTL_WHY_INTERNAL_H

#include "base/text.h"
#include "why.h"

#define WHY_STEPS_MAX 20000000 /* in all: about a second */

#define WHY_STEPS 256 /* in one chain */
#define WHY_SHOWN 3   /* culprits shown in one paragraph */
#define WHY_ALSO  3   /* consequences named in one paragraph */

struct why_fault;

struct why {
	const struct why_input *in;
	const struct snapshot *s;
	const ncclsvc_task_info **tasks; /* pending ones, by communicator, rank, sequence */
	size_t ntasks;
	const ncclsvc_member_info **by_session;
	uint32_t *seen; /* per member of the snapshot: the last walk that came by */
	uint32_t walk;
	struct why_fault *faults;  /* of one operation, by cause */
	const struct process *far; /* of the snapshot's sessions, those of other nodes */
	uint64_t *steps; /* looks at a record so far; beyond WHY_STEPS_MAX it is broken off */
};

/* Is it still worth while? A daemon that is false may list what has no end, or nearly none. */
static inline bool why_goes_on(const struct why *w)
{
	return *w->steps < WHY_STEPS_MAX;
}

/* index.c: records of the snapshot, and the state of processes. */

void why_index(struct why *w, const struct why_input *in, uint64_t *steps);
void why_index_free(struct why *w);
/* The tasks that hold a rank: its first pending task, and those after it that are not queued behind
 * it. */
const ncclsvc_task_info **why_tasks(const struct why *w, uint64_t comm, int32_t rank, size_t *n);
/* These two find members as snapshot_members and snapshot_member do. */
const ncclsvc_member_info *why_members(const struct why *w, uint64_t comm, size_t *n);
const ncclsvc_member_info *why_member(const struct why *w, uint64_t comm, int32_t rank);
/* Every place of a session in a communicator. */
const ncclsvc_member_info **why_memberships(const struct why *w, uint32_t session, size_t *n);
/* The state of the member's process. Never NULL: UNSEEN without a member, or if its node is another
 * one and has not reported it. */
const struct process *why_process(const struct why *w, const ncclsvc_member_info *m);
const struct process *why_look_at(const struct why *w, int32_t pid, bool closely);

/* nodes.c: what this node does not know of other nodes' ranks. */

bool why_node_is_silent(const struct why *w, uint32_t node);
/* WHY_SILENT or WHY_ELSEWHERE, by the nodes that the task asks; WHY_NONE: it asks none. */
enum why_cause why_asks(const struct why *w, const ncclsvc_task_info *t);
/* The peer, or all ranks of that node: the caller frees them. */
int32_t *why_ranks_of(const struct why *w, const ncclsvc_task_info *t, uint32_t node,
		      size_t *found);
/* A node of the communicator's members that is silent; NULL: none. */
const ncclsvc_node_info *why_silent_node(const struct why *w, uint64_t comm);

/* device.c: the GPUs of members, and their workers. */

/* NULL: the rank has no GPU, or its node has not told of it. */
const ncclsvc_device_info *why_device(const struct why *w, const ncclsvc_member_info *m);
bool why_on_gpus(const struct why *w, uint64_t comm);
/* The worker of the member's GPU cannot run: it is stopped, frozen, or held by a debugger. */
bool why_worker_is_halted(const struct why *w, const ncclsvc_member_info *m);
/* A member whose GPU has no worker to use; NULL: none. kernels: the operation runs in trainers'
 * kernels, and needs no worker that runs. */
const ncclsvc_member_info *why_bad_device(const struct why *w, uint64_t comm, bool kernels);

/* Tasks of several ranks that are one operation, or (no tasks) a communicator that forms, or whose
 * members wait for others to make the same request. */
struct why_group {
	const ncclsvc_task_info **tasks;
	size_t n;
	const ncclsvc_comm_info *comm; /* NULL: unknown */
	uint32_t request;	       /* ncclsvc_member_request */
	uint64_t age_ns;
	bool age_known;
};

/* gather.c: the tasks that ranks have been at for longer than the threshold, ordered by operation;
 * the list is the caller's. Counts what waits into the report. */
const ncclsvc_task_info **why_held_up(const struct why *w, size_t *nheld,
				      struct why_report *report);
/* Groups of these, and of communicators that lack members; the oldest first. */
struct why_group *why_gather(const struct why *w, const ncclsvc_task_info **held, size_t nheld,
			     size_t *ngroups);

struct why_step {
	uint64_t comm;
	int32_t rank;
	const ncclsvc_member_info *m; /* NULL: nobody has joined as this rank */
	const ncclsvc_task_info *t;   /* what it is at; NULL: nothing is pending there */
};

/* A chain of waits, from step 0 on. The last step is to blame; or, with cycle >= 0, it waits for
 * step[cycle]. */
struct why_path {
	struct why_step step[WHY_STEPS];
	unsigned n;
	int cycle;
	enum why_cause cause;
};

/* walk.c: from a rank that waits at t to the cause on the side of `rank`, one of those it waits
 * for. */
void why_walk(struct why *w, const ncclsvc_task_info *t, int32_t rank, struct why_path *best);

#endif
