/* SPDX-License-Identifier: Apache-2.0
 * Communicators being created. */
#ifndef NCCL_START_H
#define NCCL_START_H

#include "handle.h"

enum start_kind { START_JOIN, START_SPLIT };

/* A communicator being created. The start holds references to comm and parent. */
struct start {
	enum start_kind kind;
	ncclComm_t comm;   /* NULL: a split without this rank */
	ncclComm_t parent; /* for a split, otherwise NULL */
	ncclUniqueId id;
	int nranks, rank; /* for a join */
	int colour, key;  /* for a split */
	uint64_t number;  /* for a split that waits for its parent's earlier ones; 0: for none */
	bool anew;	  /* its parent's ranks first join another communicator by this id */
	bool nonblocking;
	bool has_thread;
	pthread_t thread;
	int over;		 /* eventfd that counts ended starts; -1: none */
	atomic_bool interrupted; /* by SIGINT */
	ncclResult_t result;
	char text[768];
	ncclComm_t *out; /* the user's handle, reset to NULL if a blocking start fails */
	struct start *next;
};

/* Runs the starts of a group, and takes ownership of the list. ncclInProgress if one continues in
 * the background. */
ncclResult_t starts_run(struct start *list);
/* Drops a start of a group that failed earlier; a communicator that its user keeps fails too. */
void start_drop(struct start *start, ncclResult_t why, const char *text);
/* How long to wait for all ranks to join, suspend or resume a communicator, in milliseconds. */
int start_timeout_ms(void);
/* Starts a thread that blocks signals. False: it cannot be started. A thread that is never
 * joined must detach itself: in glibc 2.36, pthread_detach reads the thread's memory after
 * detaching it, when the thread may already have ended. */
bool thread_run(void *(*main)(void *), void *arg, pthread_t *thread);

#endif
