/* SPDX-License-Identifier: Apache-2.0
 * List operations in progress. */
#ifndef CLIENT_LIST_REQUEST_H
#define CLIENT_LIST_REQUEST_H

#include "core/op.h"
#include "plan/member_plan.h"
#include "tensors.h"

#define TASKS_MAX 3 /* what goes ahead, in two steps, and the data */

struct ncclsvc_request {
	ncclsvc_tensors *lists;
	struct ncclsvc_request *next;
	struct batch *batch; /* NULL: all turns have been taken */
	struct ncclsvc_request *next_in_batch;
	/* Called when all its tasks have ended successfully: prepares the next one, or calls
	 * request_end. */
	ncclsvc_result (*proceed)(struct ncclsvc_request *r);
	unsigned step; /* for proceed */
	bool ended;
	bool forgotten; /* the caller has its result and no longer uses it, but it still takes its
			   turns */
	ncclsvc_result result;
	struct error why;  /* error that belongs to result */
	uint8_t refusal;   /* an ncclsvc_refusal, if this member refuses */
	uint64_t deadline; /* deadline of tasks not yet submitted */
	bool has_deadline;
	/* Prepared but not yet submitted: the task on lists->host, and the data. */
	struct op ahead, data;
	bool has_ahead, has_data;
	/* Unsubmitted turns that its peers wait for. */
	bool owes_ahead, owes_data;
	/* Submitted, and not yet known to have ended. */
	ncclsvc_task tasks[TASKS_MAX];
	unsigned ntasks, nseen;
	bool planned; /* the turn of its data is a slot of a plan: */
	struct list_slot slot;
	uint8_t op; /* ncclsvc_op of data */
	int peer;   /* -1: a collective */
	int64_t tag;
	ncclsvc_shapes shapes;
	unsigned flags;
	ncclsvc_redop redop;
	ncclsvc_allocate *allocate;
	void *arg;
	struct list list, outputs, allowed;
	struct piece *pieces; /* copied out at the end */
	size_t npieces;
	bool copies_out;       /* the prepared task receives them */
	struct piece *through; /* copied from tensor to tensor at the end */
	char **through_to;
	size_t nthrough;
	char *at; /* the aggregated buffer */
	struct stage_buffer *buffer;
	uint64_t *words; /* an announcement */
	size_t nwords;
	struct CUevent_st *event;
	struct list_stream stream; /* the stream that was set when the request began */
	uint64_t range;		   /* for profilers */
	bool waited;		   /* its caller waits for it and does nothing else */
};

/* ---- list_request.c ---- */

/* A zeroed request in `lists`. NULL with the error set. */
struct ncclsvc_request *request_new(ncclsvc_tensors *lists, uint8_t op, int peer, int timeout_ms);
/* Prepares the next submission; with count 0 it needs no buffers. */
ncclsvc_result request_ahead(struct ncclsvc_request *r, const void *src, void *dst, uint64_t nwords,
			     uint64_t word);
ncclsvc_result request_data(struct ncclsvc_request *r, const void *src, void *dst, uint64_t count,
			    ncclsvc_type type, uint64_t word);
/* The request has failed with the last error: prepares refusals for the turns it owes. */
void request_fail(struct ncclsvc_request *r, ncclsvc_result result);
/* Drops the turns it owes, because nobody waits for them. */
void request_waive(struct ncclsvc_request *r);
/* Prepares its next submission if everything it has submitted has ended. */
bool request_step(struct ncclsvc_request *r);
/* Whether nothing is missing except its data's turn, if it has one. */
bool request_settled(const struct ncclsvc_request *r);
/* Copies received data to where it belongs. On a GPU, the caller must wait for the end of the copy.
 */
ncclsvc_result request_copy_out(struct ncclsvc_request *r, ncclsvc_task after);
void request_end(struct ncclsvc_request *r, ncclsvc_result result);
/* The result of a request that has ended, with its sentence. */
ncclsvc_result request_result(const struct ncclsvc_request *r);
/* Called when all turns are taken: IN_PROGRESS, or OK when it has ended. */
ncclsvc_result request_close(struct ncclsvc_request *r);
/* Only for a request that has ended. */
void request_drop(struct ncclsvc_request *r);

/* ---- wait.c ---- */

/* For calls that wait: frees the request. */
ncclsvc_result request_finish(struct ncclsvc_request *r);

/* ---- point_to_point.c ---- */

ncclsvc_result shapes_check(ncclsvc_shapes shapes);
/* Refuses the own rank. */
ncclsvc_result peer_check(const ncclsvc_comm *comm, int64_t peer, bool send);
ncclsvc_result message_check(const ncclsvc_message *m, bool send);
/* Creates a request for the message, or refuses a call that takes no turn. */
ncclsvc_result message_request(ncclsvc_tensors *lists, const ncclsvc_message *m, bool send,
			       int timeout_ms, bool waited, struct ncclsvc_request **r);
/* Checks the rest of the message, and prepares the request's first submission. */
ncclsvc_result message_prepare(struct ncclsvc_request *r, const ncclsvc_message *m);

#endif
