/* SPDX-License-Identifier: Apache-2.0
 * What is stuck, and whose fault it is: computed from a snapshot, and from what the processes of
 * this machine are doing. */
#ifndef CTL_WHY_H
#define CTL_WHY_H

#include "base/process.h"
#include "base/snapshot.h"
#include "base/text.h"

enum why_cause {
	WHY_NONE,
	WHY_RUNNING,   /* the daemon executes it */
	WHY_ELSEWHERE, /* only another node knows */
	WHY_MISSING,   /* a live rank has not submitted */
	WHY_UNMATCHED, /* a Send without its Recv, or the reverse */
	WHY_PLAN,      /* a live rank has not submitted a task of its plan */
	WHY_JOINING,   /* ranks have not joined */
	WHY_INPUT,     /* a timeline has not been signalled */
	WHY_STOPPED,   /* a process is stopped, held by a debugger, or frozen */
	WHY_WORKER,    /* a GPU's worker is lost, stopped, or has yet to start */
	WHY_DEAD,      /* a process died, and its rank has to be filled again */
	WHY_SILENT,    /* the node that knows has not been heard of for a second */
	WHY_DEADLOCK,  /* processes wait for each other */
	WHY_CAUSES
};

#define WHY_NO_SEQ UINT64_MAX /* of a request that all members make together */

struct why_culprit {
	uint64_t comm;
	int32_t rank;
	int32_t pid; /* 0: none yet */
	uint32_t session;
	const char *name;  /* of its session, NCCLSVC_NAME_BYTES at most; NULL: unknown */
	const char *state; /* static */
	enum why_cause cause;
	bool first;		       /* the gravest cause of this operation */
	const struct process *process; /* the input's; NULL: not a process of this machine */
	char *next;		       /* the command to run next; NULL: none */
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
	bool second;	  /* an older finding has a graver cause of the same operation */
	int32_t device;	  /* whose worker is the cause; -1: none */
	int32_t worker;	  /* that worker's pid; 0: none runs */
	int32_t *waiting; /* ranks of comm */
	size_t nwaiting;
	struct why_culprit *culprits;
	size_t nculprits, culprits_room;
	uint32_t *nodes; /* that know more, the first of them */
	size_t nnodes, nodes_room;
	struct why_also *also;
	size_t nalso, also_room;
	char *text; /* one paragraph */
	char *next; /* its last words: the command to run next */
};

struct why_report {
	struct why_finding *findings; /* the oldest first */
	size_t n, room;
	uint64_t oldest_ns; /* of all tasks that wait */
	size_t pending;
	size_t unseen;	     /* groups of tasks, and communicators, that were too many to look at */
	uint64_t steps;	     /* that it took */
	struct process *far; /* for culprits on other nodes */
};

/* process_look, or process_examine if closely. What it returns stays as long as the report. */
typedef const struct process *why_look_fn(int32_t pid, bool closely, void *arg);

struct why_input {
	const struct snapshot *s;
	uint64_t after_ns;
	why_look_fn *look; /* NULL: processes can't be seen from here */
	void *arg;
};

void why_analyse(const struct why_input *in, struct why_report *report);
void why_free(struct why_report *report);
const char *why_cause_name(enum why_cause cause);
/* Describes a daemon that does not answer. p is its process; only p->pid must be known. */
void why_tell_daemon(const struct process *p, uint64_t silent_ns, struct text *out);

#endif
