/* SPDX-License-Identifier: Apache-2.0
 * What the files of list operations share.
 *
 *   layout.c, partition.c   pure arithmetic
 *   list.c                  a caller's list, checked and copied
 *   agree.c                 the words that members compare, and what it means if they differ
 *   announce.c              types and shapes on their way to the receiver
 *   context.c, copy.c       buffers, and copies to and from them
 *   request.c               an operation under way; point_to_point.c, collective.c: its steps
 */
#ifndef CLIENT_TENSORS_H
#define CLIENT_TENSORS_H

#include "base/error.h"
#include "core/comm.h"
#include "core/op.h"
#include "proto/spin.h"

struct CUevent_st;

/* ---- list.c ---------------------------------------------------------------------------------- */

struct list {
	size_t n;
	ncclsvc_tensor *tensors; /* a copy, but for the data */
	int64_t *dims;		 /* of all tensors */
	uint64_t *counts, *bytes, *offsets;
	uint64_t total; /* of the aggregated buffer */
};

/* Checks and copies. wild: a dimension, or ndims, of -1 is allowed, and nothing is known of sizes.
 */
ncclsvc_result list_take(struct list *list, const ncclsvc_tensor *tensors, size_t n, bool wild);
/* Room for n tensors with so many dimensions in all. */
ncclsvc_result list_make(struct list *list, size_t n, size_t dims);
/* Sizes and offsets, once types and dims are there. */
ncclsvc_result list_measure(struct list *list);
void list_free(struct list *list);
/* OK if every tensor that has bytes has data on the lists' device. */
ncclsvc_result list_placed(const ncclsvc_tensors *lists, const struct list *list);
/* Where the aggregated buffer would be, if the tensors lie like one; else NULL. gaps: there may be
 * some. */
char *list_as_it_lies(const struct list *list, bool gaps);
/* Of a GPU's memory: which allocation; 0: none that CUDA knows. */
uint64_t list_memory_id(const ncclsvc_tensors *lists, const char *at);
/* Where it is, if it can be sent or received as it lies; else NULL. */
char *list_in_place(const ncclsvc_tensors *lists, const struct list *list, bool gaps);
/* Where the first tensor is, if the others lie behind it without gaps, in one piece of memory; else
 * NULL. *bytes: of all of them. */
char *list_in_a_row(const ncclsvc_tensors *lists, const struct list *list, uint64_t *bytes);

/* ---- layout.c: FNV-1a --------------------------------------------------------------------------
 */

#define DIGEST_START UINT64_C(0xcbf29ce484222325)
uint64_t digest_add(uint64_t digest, uint64_t word);
uint64_t digest_tensors(const ncclsvc_tensor *tensors, size_t n);

/* ---- agree.c -----------------------------------------------------------------------------------
 */

enum agreed {
	AGREED_STATIC = 1,
	AGREED_SHAPES, /* shapes are on their way */
	AGREED_AHEAD,  /* what they announced */
	AGREED_ALL_REDUCE,
	AGREED_ALL_GATHER,
	AGREED_REDUCE_SCATTER,
};

/* Never 0, never SVC_AGREEMENT_REFUSED. */
uint64_t agreement(enum agreed what, int64_t tag, uint64_t digest);
/* If that was why the task failed, says so in words. Returns result. */
ncclsvc_result agreement_explain(ncclsvc_session *s, ncclsvc_task task, ncclsvc_result result);

/* ---- announce.c ---------------------------------------------------------------------------------
 */

#define ANNOUNCE_FIRST 128 /* words in the first message; the rest, if any, is a second one */

/* All words, the first message filled up; the caller's. NULL: no memory. */
uint64_t *announce_write(const struct list *list, size_t *nwords);
/* How many words there are in all, of a list that should have n tensors. */
ncclsvc_result announce_length(const uint64_t *first, size_t n, size_t *nwords);
/* Checks every word, and fills a list without data. */
ncclsvc_result announce_read(const uint64_t *words, size_t nwords, struct list *list);
/* OK if the list is one that `allowed` allows. */
ncclsvc_result announce_allowed(const struct list *list, const struct list *allowed);

/* ---- context.c
 * ----------------------------------------------------------------------------------- */

struct stage_buffer {
	struct stage_buffer *next;
	char *at;
	size_t bytes;
	uint32_t generation; /* of the link it was made with */
	bool busy;
	uint64_t clean; /* digest of the layout whose gaps are zero; 0: none */
};

struct ncclsvc_tensors {
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	ncclsvc_comm
		*host; /* for what is said beforehand: comm itself, or, on GPUs, one beside it */
	struct stage_buffer *buffers;
	struct ncclsvc_request *requests;
	struct spin spin; /* of waits for copies */
	uint64_t copied;
};

static inline bool on_gpu(const ncclsvc_tensors *lists)
{
	return lists->comm->device >= 0;
}

ncclsvc_result buffer_get(ncclsvc_tensors *lists, uint64_t bytes, struct stage_buffer **buffer);
void buffer_put(struct stage_buffer *buffer); /* NULL is allowed */

/* ---- copy.c: host memory at once, GPU memory on the thread's stream
 * ---------------------------------- */

struct part {
	char *at;	 /* the tensor's */
	uint64_t offset; /* in the buffer */
	uint64_t bytes;
};

/* The n parts, in ascending order, to the buffer; what is between them and from start to end
 * becomes zero. layout: a digest of all that, or 0: the gaps are cleared anew. */
ncclsvc_result copy_in(ncclsvc_tensors *lists, struct stage_buffer *buffer,
		       const struct part *parts, size_t n, uint64_t start, uint64_t end,
		       uint64_t layout);
/* On a GPU: after the task, if there is one, and *event (may be NULL) is recorded behind it, the
 * caller's. */
ncclsvc_result copy_out(ncclsvc_tensors *lists, const struct stage_buffer *buffer,
			const struct part *parts, size_t n, ncclsvc_task task,
			struct CUevent_st **event);
/* From tensor to tensor, where they are not the same. at: what they are copied to. */
ncclsvc_result copy_through(ncclsvc_tensors *lists, const struct part *from, char *const *at,
			    size_t n);
/* IN_PROGRESS, OK or an error. Frees the event unless it is IN_PROGRESS. */
ncclsvc_result copy_done(ncclsvc_tensors *lists, struct CUevent_st **event);

/* ---- request.c
 * ------------------------------------------------------------------------------------ */

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
	char why[LOST_TEXT * 2];
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
ncclsvc_result requests_settled(ncclsvc_tensors *lists, int peer);
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
