/* SPDX-License-Identifier: Apache-2.0
 * Operations on lists under way, and which of them take their turns together. */
#ifndef CLIENT_REQUEST_H
#define CLIENT_REQUEST_H

#include "core/op.h"
#include "plan/plan.h"
#include "tensors.h"

#define TASKS_MAX 3 /* what is ahead, in two parts, and the data */

struct ncclsvc_request {
	ncclsvc_tensors *lists;
	struct ncclsvc_request *next;
	struct batch *batch; /* NULL: it has taken all of its turns */
	struct ncclsvc_request *next_in_batch;
	/* Called when all its tasks have ended well: prepares the next one, or calls request_end.
	 */
	ncclsvc_result (*proceed)(struct ncclsvc_request *r);
	unsigned step; /* proceed's own */
	bool ended;
	bool forgotten; /* its caller has been told, and has it no more: it takes its turns yet */
	ncclsvc_result result;
	struct error why;  /* of result */
	uint8_t refusal;   /* ncclsvc_refusal, if this member refuses */
	uint64_t deadline; /* of tasks to come */
	bool has_deadline;
	/* Prepared and not yet submitted: what goes on lists->host, and the data. */
	struct op ahead, data;
	bool has_ahead, has_data;
	/* Turns that its peers wait for, and that are not submitted. */
	bool owes_ahead, owes_data;
	/* Submitted and not yet seen to have ended. */
	ncclsvc_task tasks[TASKS_MAX];
	unsigned ntasks, nseen;
	bool planned; /* its data's turn is a place in a plan: */
	struct plan_claim claim;
	uint8_t op; /* ncclsvc_op of data */
	int peer;   /* -1: a collective */
	int64_t tag;
	ncclsvc_shapes shapes;
	unsigned flags;
	ncclsvc_redop redop;
	ncclsvc_allocate *allocate;
	void *arg;
	struct list list, outputs, allowed;
	struct part *parts; /* copied out in the end */
	size_t nparts;
	bool copies_out;      /* what is prepared brings them */
	struct part *through; /* copied from tensor to tensor in the end */
	char **through_to;
	size_t nthrough;
	char *at; /* the aggregated buffer */
	struct stage_buffer *buffer;
	uint64_t *words; /* an announcement */
	size_t nwords;
	struct CUevent_st *event;
	struct list_stream stream; /* that was set when it was begun */
	uint64_t range;		   /* for profilers */
	bool waited;		   /* its caller does nothing else meanwhile */
};

/* ---- request.c ---- */

/* Zeroed, in lists. NULL with the error set. */
struct ncclsvc_request *request_new(ncclsvc_tensors *lists, uint8_t op, int peer, int timeout_ms);
/* Prepares what is submitted next; count 0 needs no buffers. */
ncclsvc_result request_ahead(struct ncclsvc_request *r, const void *src, void *dst, uint64_t nwords,
			     uint64_t word);
ncclsvc_result request_data(struct ncclsvc_request *r, const void *src, void *dst, uint64_t count,
			    ncclsvc_type type, uint64_t word);
/* It has failed, as the last error says: the turns that it owes are prepared as refusals. */
void request_fail(struct ncclsvc_request *r, ncclsvc_result result);
/* Nobody waits for the turns that it owes. */
void request_waive(struct ncclsvc_request *r);
/* Prepares what it submits next, if what it has submitted has ended. */
bool request_step(struct ncclsvc_request *r);
/* Nothing is missing but its data's turn, if it has to take it. */
bool request_settled(const struct ncclsvc_request *r);
/* What was brought, to where it belongs. On a GPU, its end is to be awaited. */
ncclsvc_result request_copy_out(struct ncclsvc_request *r, ncclsvc_task after);
void request_end(struct ncclsvc_request *r, ncclsvc_result result);
/* The result of one that has ended, with its sentence. */
ncclsvc_result request_told(const struct ncclsvc_request *r);
/* All turns have been taken: IN_PROGRESS, or OK when it has ended. */
ncclsvc_result request_close(struct ncclsvc_request *r);
/* For calls that wait: frees it. */
ncclsvc_result request_finish(struct ncclsvc_request *r);
/* Only when it has ended. */
void request_drop(struct ncclsvc_request *r);

/* ---- point_to_point.c ---- */

ncclsvc_result shapes_check(ncclsvc_shapes shapes);
/* Not the own rank. */
ncclsvc_result peer_check(const ncclsvc_comm *comm, int64_t peer, bool send);
ncclsvc_result message_check(const ncclsvc_message *m, bool send);
/* A request for the message, or a refusal of a call that takes no turn. */
ncclsvc_result message_request(ncclsvc_tensors *lists, const ncclsvc_message *m, bool send,
			       int timeout_ms, bool waited, struct ncclsvc_request **r);
/* Checks the rest of the message, and prepares what it submits first. */
ncclsvc_result message_prepare(struct ncclsvc_request *r, const ncclsvc_message *m);

/* ---- batch.c ----
 *
 * The requests of one task group are a batch, as is one by itself. What is ahead of their data goes
 * together, then the data. Batches go one after the other: the next one begins when the data of the
 * former has been submitted. So all ranks that begin their lists in fitting orders submit them so,
 * whatever they wait for first. */

struct batch {
	struct batch *next;
	struct ncclsvc_request *first;
	uint32_t epoch, host_epoch; /* of lists->comm and lists->host */
	bool open;		    /* its task group has not ended */
	bool begun;		    /* what its requests submit first has been submitted */
	bool ahead;		    /* some send their shapes ahead: the data of all comes later */
	/* Of a plan: its group, in this iteration. */
	uint32_t group;
	uint64_t iteration;
};

/* NULL with the error set. */
struct batch *batch_new(ncclsvc_tensors *lists);
/* What is ahead of the data goes on: in parts, each a task group of all requests that have such a
 * part, as two ranks may both send first. True: nothing is missing but data. */
bool batch_go_on(struct batch *b);
/* Its requests have taken their turns. Frees it. */
void batch_close(struct batch *b);
extern const struct list_hooks list_hooks;

/* OK, or a refusal: the call is made within a receiver's allocate. */
ncclsvc_result lists_callable(const ncclsvc_tensors *lists);
/* The same, or the thread has a timeline set, or a group open though the call waits. */
ncclsvc_result lists_usable(const ncclsvc_tensors *lists, bool waits);
/* The request takes its turn, or joins the thread's open group. An error ends and frees it, after
 * its peers were told if need be. */
ncclsvc_result request_begin(struct ncclsvc_request *r, ncclsvc_result prepared);
/* All turns of all lists go on as far as they can. */
void lists_go_on(ncclsvc_tensors *lists);
/* Do turns of other requests depend on calls of lists_go_on? */
bool lists_await_others(const ncclsvc_tensors *lists, const struct ncclsvc_request *r);
/* Nothing of it has been submitted, as others have their turn. */
bool request_is_held(const struct ncclsvc_request *r);
/* Its task group has not ended. */
bool request_is_open(const struct ncclsvc_request *r);

#endif
