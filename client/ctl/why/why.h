/* SPDX-License-Identifier: Apache-2.0
 * What is stuck, and whose fault it is: computed from a snapshot alone. */
#ifndef CTL_WHY_H
#define CTL_WHY_H

#include "base/snapshot.h"

enum why_cause {
	WHY_NONE,
	WHY_RUNNING,   /* the daemon executes it */
	WHY_ELSEWHERE, /* only another node knows */
	WHY_MISSING,   /* a live rank has not submitted */
	WHY_UNMATCHED, /* a Send without its Recv, or the reverse */
	WHY_PLAN,      /* a live rank has not submitted a task of its plan */
	WHY_JOINING,   /* ranks have not joined */
	WHY_INPUT,     /* a timeline has not been signalled */
	WHY_STOPPED,   /* a process is stopped */
	WHY_WORKER,    /* a GPU's worker is lost, or has yet to start */
	WHY_DEAD,      /* a process died, and its rank has to be filled again */
	WHY_SILENT,    /* the node that knows has not been heard of for a second */
	WHY_DEADLOCK,  /* processes wait for each other */
};

struct why_culprit {
	uint64_t comm;
	int32_t rank;
	int32_t pid; /* 0: none yet */
	uint32_t session;
	const char *name;  /* of its session, NCCLSVC_NAME_BYTES at most; NULL: unknown */
	const char *state; /* static */
};

/* Something else that waits for the same culprits. */
struct why_also {
	uint64_t comm, seq;
	uint32_t graph; /* 0: none */
	const char *op; /* NULL: joining */
	uint64_t age_ns;
	size_t nwaiting;
};

struct why_finding {
	uint64_t comm, seq;
	uint32_t graph; /* seq is the operation's place there; 0: it is in none */
	const char *op; /* NULL: joining */
	uint64_t age_ns;
	bool age_known;
	enum why_cause cause;
	bool launched;	  /* on GPUs: it tells of all ranks of the operation */
	int32_t *waiting; /* ranks of comm */
	size_t nwaiting;
	struct why_culprit *culprits;
	size_t nculprits, culprits_room;
	uint32_t *nodes; /* that know more, the first of them */
	size_t nnodes, nodes_room;
	struct why_also *also;
	size_t nalso, also_room;
	char *text; /* one paragraph */
};

struct why_report {
	struct why_finding *findings; /* the oldest first */
	size_t n, room;
	uint64_t oldest_ns; /* of all tasks that wait */
	size_t pending;
	size_t unseen;	/* groups of tasks, and communicators, that were too many to look at */
	uint64_t steps; /* that it took */
};

/* State of a process as in /proc/PID/stat, '\0' if unknown. */
typedef char why_proc_state(int32_t pid, void *arg);

struct why_input {
	const struct snapshot *s;
	uint64_t after_ns;
	why_proc_state *proc_state; /* NULL: processes can't be seen from here */
	void *arg;
};

void why_analyse(const struct why_input *in, struct why_report *report);
void why_free(struct why_report *report);
const char *why_cause_name(enum why_cause cause);

#endif
