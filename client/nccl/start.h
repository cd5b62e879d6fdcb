/* SPDX-License-Identifier: Apache-2.0
 * Communicators that begin. */
#ifndef NCCL_START_H
#define NCCL_START_H

#include "handle.h"

enum start_kind { START_JOIN, START_SPLIT };

/* A communicator that begins. The start holds references to both. */
struct start {
	enum start_kind kind;
	ncclComm_t comm;   /* NULL: a split that this rank is no part of */
	ncclComm_t parent; /* of a split; NULL else */
	ncclUniqueId id;
	int nranks, rank; /* of a join */
	int colour, key;  /* of a split */
	uint64_t number;  /* of a split that waits for its parent's earlier ones; 0: of none */
	bool anew;	  /* its parent's ranks join another one first, by the id */
	bool nonblocking;
	bool has_thread;
	pthread_t thread;
	int over;		 /* eventfd that counts those that have ended; -1: none */
	atomic_bool interrupted; /* by SIGINT */
	ncclResult_t result;
	char text[768];
	ncclComm_t *out; /* the user's handle: set back to NULL if a blocking start fails */
	struct start *next;
};

/* Runs it, or keeps it for ncclGroupEnd; takes it over. */
ncclResult_t start_begin(struct start *start);
/* Runs the starts of a group, and owns the list from then on. ncclInProgress if one goes on in the
 * background. */
ncclResult_t starts_run(struct start *list);
/* Drops a start of a group that failed before: a communicator that its user keeps has failed, too.
 */
void start_drop(struct start *start, ncclResult_t why, const char *text);
/* A thread that takes no signals. False: there can be none. */
bool thread_run(void *(*main)(void *), void *arg, pthread_t *thread);

#endif
