/* SPDX-License-Identifier: Apache-2.0
 * An operation on lists under way. */
#ifndef CLIENT_REQUEST_H
#define CLIENT_REQUEST_H

#include "core/op.h"
#include "tensors.h"

#define OPS_MAX 3

struct ncclsvc_request {
	ncclsvc_tensors *lists;
	struct ncclsvc_request *next;
	/* Called when all its tasks have ended well: prepares the next ones, or calls request_end.
	 */
	ncclsvc_result (*proceed)(struct ncclsvc_request *r);
	unsigned step;	/* proceed's own */
	bool undecided; /* which tasks it still needs, what comes will tell */
	bool ended;
	ncclsvc_result result;
	struct error why;  /* of result */
	uint8_t refusal;   /* ncclsvc_refusal, if this member refuses */
	uint64_t deadline; /* of tasks to come */
	bool has_deadline;
	/* Prepared and not yet submitted. */
	struct op ops[OPS_MAX];
	unsigned nops;
	/* Submitted and not yet seen to have ended. */
	ncclsvc_task tasks[OPS_MAX];
	unsigned ntasks, nseen;
	/* Turns of the operation that are not taken yet, on lists->host and lists->comm; and what
	 * is left of them once what is prepared has been submitted. */
	unsigned due_host, due_data, left_host, left_data;
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
	uint64_t range; /* for profilers */
	bool waited;	/* its caller does nothing else meanwhile */
};

/* Zeroed, in lists. NULL with the error set. */
struct ncclsvc_request *request_new(ncclsvc_tensors *lists, uint8_t op, int peer, int timeout_ms);
/* BUSY if a request with this peer, or any (-1), has tasks to come that others must not overtake.
 */
ncclsvc_result requests_finished(ncclsvc_tensors *lists, int peer);
/* Adds an operation to be submitted next; count 0 needs no buffers. */
void request_op(struct ncclsvc_request *r, ncclsvc_comm *comm, unsigned op, const void *src,
		void *dst, uint64_t count, ncclsvc_type type, uint64_t word);
/* The first submission. Frees the request if it fails, after the peers were told if need be. */
ncclsvc_result request_begin(struct ncclsvc_request *r, ncclsvc_result prepared);
/* What was brought, to where it belongs. On a GPU, go_on sees to the end of it. */
ncclsvc_result request_copy_out(struct ncclsvc_request *r, ncclsvc_task after);
void request_end(struct ncclsvc_request *r, ncclsvc_result result);
/* For calls that wait: frees it. */
ncclsvc_result request_finish(struct ncclsvc_request *r);
/* Only when it has ended. */
void request_drop(struct ncclsvc_request *r);

#endif
