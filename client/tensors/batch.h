/* SPDX-License-Identifier: Apache-2.0
 * The requests of one task group form a batch; so does a single request. First everything that
 * goes ahead of their data is submitted together, then the data. Batches are processed in order:
 * the next one begins when the data of the previous one has been submitted. So ranks that begin
 * their lists in matching orders also submit them in matching orders, whichever list they wait for
 * first. */
#ifndef CLIENT_BATCH_H
#define CLIENT_BATCH_H

#include "tensors.h"

struct thread_state;

struct batch {
	struct batch *next;
	struct ncclsvc_request *first;
	uint32_t epoch, host_epoch; /* epochs of lists->comm and lists->host */
	bool open;		    /* its task group has not ended */
	bool begun;		    /* the first submissions of its requests are done */
	bool ahead; /* some send their shapes ahead, so the data of all comes later */
	/* For planned lists: the group, in this iteration. */
	uint32_t group;
	uint64_t iteration;
};

/* ---- batch.c ---- */

/* NULL with the error set. */
struct batch *batch_new(ncclsvc_tensors *lists);
void batch_add(struct batch *b, struct ncclsvc_request *r);
/* Submits what goes ahead; if nothing does, the data too. False: the ring is full. */
bool batch_begin(struct batch *b);
/* Advances what goes ahead of the data, in steps. Each step is a task group of all requests that
 * have one, because two ranks may both send first. True: only data is missing. */
bool batch_go_on(struct batch *b);
/* Submits the data that batch_go_on has left. False: the ring is full. */
bool batch_submit_data(struct batch *b);
/* All requests have taken their turns. Frees the batch. */
void batch_close(struct batch *b);
/* Ends a batch whose turns no peer waits for: all requests fail with the last error. */
void batch_give_up(struct batch *b, ncclsvc_result result);
/* Whether its epochs continue, with the error set if not. */
ncclsvc_result batch_check(const struct batch *b);
/* Adds what batch_begin would submit to the thread's task group. */
ncclsvc_result batch_join(struct batch *b, struct thread_state *t);
/* The task group has ended with this result; joined: it contained this batch. */
void batch_group_ended(struct batch *b, bool joined, ncclsvc_result result);

/* ---- queue.c ---- */

/* Refuses a call made within a receiver's allocate. */
ncclsvc_result lists_callable(const ncclsvc_tensors *lists);
/* The same; also refuses if the thread has a timeline set, or an open group and the call waits. */
ncclsvc_result lists_usable(const ncclsvc_tensors *lists, bool waits);
/* The request takes its turn, or joins the thread's open group. On an error it is ended and freed,
 * after its peers are informed if necessary. */
ncclsvc_result request_begin(struct ncclsvc_request *r, ncclsvc_result prepared);
/* Advances all turns of all lists as far as possible. */
void lists_go_on(ncclsvc_tensors *lists);
/* Whether the turns of other requests depend on calls of lists_go_on. */
bool lists_await_others(const ncclsvc_tensors *lists, const struct ncclsvc_request *r);
/* Whether nothing of it is submitted yet because others have their turn. */
bool request_is_held(const struct ncclsvc_request *r);
/* Whether its task group has not ended. */
bool request_is_open(const struct ncclsvc_request *r);

#endif
