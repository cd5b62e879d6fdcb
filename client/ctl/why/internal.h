/* SPDX-License-Identifier: Apache-2.0
 * Parts of the analysis behind why.h. A rank of a communicator is a node; it waits for the ranks
 * its task waits for, or, with no task there, for whatever its session waits for elsewhere. */
#ifndef CTL_WHY_INTERNAL_H
#define CTL_WHY_INTERNAL_H

#include "base/text.h"
#include "why.h"

#define WHY_STEPS_MAX 20000000 /* in all: about a second */

#define WHY_STEPS 256 /* in one chain */
#define WHY_TOLD  3   /* chains told in one paragraph */
#define WHY_ALSO  3   /* consequences named in one paragraph */

#define WHY_SILENT_ADVICE "Look whether that machine runs, and its ncclsvcd is not stopped."
#define WHY_STATE_STOPPED "stopped" /* a culprit's state */

struct why {
	const struct why_input *in;
	const struct snapshot *s;
	const ncclsvc_task_info **tasks; /* pending ones, by communicator, rank, sequence */
	size_t ntasks;
	const ncclsvc_member_info **by_session;
	uint32_t *seen; /* per member of the snapshot: the last walk that came by */
	uint32_t walk;
	uint64_t *steps; /* looks at a record so far; beyond WHY_STEPS_MAX it is broken off */
};

/* Is it still worth while? A daemon that is false may list what has no end, or nearly none. */
static inline bool why_goes_on(const struct why *w)
{
	return *w->steps < WHY_STEPS_MAX;
}

void why_index(struct why *w, const struct why_input *in, uint64_t *steps);
void why_index_free(struct why *w);
/* What a rank is at: its first pending task, and those after it that are not queued behind it. */
const ncclsvc_task_info **why_tasks(const struct why *w, uint64_t comm, int32_t rank, size_t *n);
/* These two find members as snapshot_members and snapshot_member do. */
const ncclsvc_member_info *why_members(const struct why *w, uint64_t comm, size_t *n);
const ncclsvc_member_info *why_member(const struct why *w, uint64_t comm, int32_t rank);
/* Every place of a session in a communicator. */
const ncclsvc_member_info **why_memberships(const struct why *w, uint32_t session, size_t *n);
bool why_session_has_tasks(const struct why *w, uint32_t session);
/* The state of the member's process, as its node says; '\0' if unknown. */
char why_process(const struct why *w, const ncclsvc_member_info *m);

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
	char process; /* state of the last step's process */
};

/* From a rank that waits at t to the cause on the side of `rank`, one of those it waits for. */
void why_walk(struct why *w, const ncclsvc_task_info *t, int32_t rank, struct why_path *best);

/* Tasks of several ranks that are one operation, or (no tasks) a communicator that forms. */
struct why_group {
	const ncclsvc_task_info **tasks;
	size_t n;
	const ncclsvc_comm_info *comm; /* NULL: unknown */
	uint64_t age_ns;
	bool age_known;
};

/* The tasks that ranks have been at for longer than the threshold, ordered by operation; the list
 * is the caller's. Counts what waits into the report. */
const ncclsvc_task_info **why_held_up(const struct why *w, size_t *nheld,
				      struct why_report *report);
/* Groups of these, and of communicators that lack members; the oldest first. */
struct why_group *why_gather(const struct why *w, const ncclsvc_task_info **held, size_t nheld,
			     size_t *ngroups);
/* Fill in the finding, but for its text, which goes to out. */
void why_find_tasks(struct why *w, const struct why_group *g, struct why_finding *f,
		    struct text *out);
void why_find_joining(struct why *w, const struct why_group *g, struct why_finding *f,
		      struct text *out);

/* device.c */
bool why_on_gpus(const struct why *w, uint64_t comm);
/* A member whose GPU has no worker to use; NULL: none. */
const ncclsvc_member_info *why_bad_device(const struct why *w, uint64_t comm);
/* "the worker of device 1, where rank 1 (...) is, is lost, ..." */
void why_tell_device(const struct why *w, const ncclsvc_member_info *m, struct text *out);
void why_find_launched(struct why *w, const struct why_group *g, struct why_finding *f,
		       struct text *out);
void why_blame(const struct why *w, struct why_finding *f, uint64_t comm, int32_t rank,
	       bool stopped);

/* plan.c: " of its plan's group 2 it has not submitted the Recv from rank 1". False, and
 * nothing, if the rank has no plan that lacks something. */
bool why_add_missing(const struct why *w, uint64_t comm, int32_t rank, struct text *out);
void why_find_held(struct why *w, const struct why_group *g, struct why_finding *f,
		   struct text *out);

/* Who is in a communicator that is not complete, and who is not. */
struct why_census {
	int32_t *joined, *dead, *broken, *absent, *unknown;
	size_t njoined, ndead, nbroken, nabsent, nunknown;
};

/* nodes.c: what this node does not know of other nodes' ranks. */

/* WHY_SILENT or WHY_ELSEWHERE, by the nodes that the task asks; WHY_NONE: it asks none. */
enum why_cause why_asks(const struct why *w, const ncclsvc_task_info *t);
/* Adds to the finding, each once, the nodes that the task asks, or this one. */
void why_name_nodes(struct why_finding *f, const ncclsvc_task_info *t);
void why_name_node(struct why_finding *f, uint32_t node);
/* "of ranks 4 and 5 on node 2 (b) it is not known here whether they have: ask on node 2 (b)", for
 * each node, those first that are silent. */
void why_tell_nodes(const struct why *w, const ncclsvc_task_info *t, struct text *out);
/* A node of the communicator's members that is silent; NULL: none. */
const ncclsvc_node_info *why_silent_node(const struct why *w, uint64_t comm);
/* "node 2 (b, ncclsvcd's pid 77) has not been heard of for 3.2 s: it is the first suspect". */
void why_tell_silent(const ncclsvc_node_info *n, struct text *out);

/* "rank 2 (pid 4711, trainer-2)" */
void why_add_rank(const struct why *w, uint64_t comm, int32_t rank, struct text *out);
/* "world (id 1, 4 ranks)"; without the size if nranks is 0 */
void why_add_comm(const struct why *w, uint64_t id, uint32_t nranks, struct text *out);

/* "Communicator world (id 1, 4 ranks) has waited 12.3 s at AllReduce #7 (...): " */
/* "AllReduce #7", "AllReduce #2 of CUDA graph 1" */
void why_add_operation(const char *op, uint64_t seq, uint32_t graph, struct text *out);
void why_add_head(const struct why *w, const struct why_group *g, const char *verb,
		  struct text *out);
void why_tell_waiting(const struct why *w, const struct why_group *g, const struct why_finding *f,
		      const struct why_path *paths, size_t npaths, size_t more, struct text *out);
void why_tell_input(const struct why *w, const struct why_group *g, struct text *out);
void why_tell_running(const struct why *w, const struct why_group *g, struct text *out);
void why_tell_joining(const struct why *w, const struct why_group *g, const struct why_census *c,
		      struct text *out);
void why_tell_also(const struct why *w, const struct why_finding *f, struct text *out);

#endif
