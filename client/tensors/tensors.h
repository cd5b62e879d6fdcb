/* SPDX-License-Identifier: Apache-2.0
 * Shared by the files of list operations. Bottom up:
 *
 *   layout.c, partition.c   pure arithmetic
 *   list.c                  a caller's list, checked and copied
 *   announce.c              types and shapes on their way to the receiver
 *   describe.c              what members tell each other after a failure
 *   agree.c                 the words that members compare, and what it means if they differ
 *   buffer.c, copy.c        buffers, and copies to and from them
 *   list_request.c          an operation under way
 *   batch.c                 requests that are submitted together; planned.c: those of a plan
 *   queue.c                 the order of batches
 *   wait.c                  waiting for requests
 *   point_to_point.c, collective.c, plan.c   the operations
 *   context.c               lists on a communicator
 */
#ifndef CLIENT_TENSORS_H
#define CLIENT_TENSORS_H

#include "base/error.h"
#include "core/comm_handle.h"
#include "proto/spin.h"
#include "proto/wire.h"

struct CUevent_st;
struct CUstream_st;
struct ncclsvc_request;

/* ---- list.c ---- */

struct list {
	size_t n;
	ncclsvc_tensor *tensors; /* a copy, without the data */
	int64_t *dims;		 /* dimensions of all tensors */
	uint64_t *counts, *bytes, *offsets;
	uint64_t total; /* size of the aggregated buffer */
};

/* Checks and copies the tensors. wild: a dimension or ndims may be -1, and sizes are unknown. */
ncclsvc_result list_take(struct list *list, const ncclsvc_tensor *tensors, size_t n, bool wild);
/* Allocates n tensors with that many dimensions in all. */
ncclsvc_result list_make(struct list *list, size_t n, size_t dims);
/* Computes sizes and offsets, once types and dims are set. */
ncclsvc_result list_measure(struct list *list);
void list_free(struct list *list);
/* OK if every non-empty tensor has data on the lists' device. */
ncclsvc_result list_placed(const ncclsvc_tensors *lists, const struct list *list);
/* Address of the aggregated buffer, if the tensors already have its layout; else NULL. gaps: there
 * may be gaps. */
char *list_as_it_lies(const struct list *list, bool gaps);
/* The allocation of GPU memory; 0: CUDA knows none. */
uint64_t list_memory_id(const ncclsvc_tensors *lists, const char *at);
/* Its address, if the list can be sent or received as it is; else NULL. */
char *list_in_place(const ncclsvc_tensors *lists, const struct list *list, bool gaps);
/* Address of the first tensor, if the others follow it without gaps in one allocation; else NULL.
 * *bytes: total size. */
char *list_in_a_row(const ncclsvc_tensors *lists, const struct list *list, uint64_t *bytes);

/* ---- layout.c: FNV-1a ---- */

#define DIGEST_START UINT64_C(0xcbf29ce484222325)
uint64_t digest_add(uint64_t digest, uint64_t word);
uint64_t digest_tensors(const ncclsvc_tensor *tensors, size_t n);

/* ---- agree.c ---- */

/* Never 0, never a refusal (SVC_AGREEMENT_REFUSES). */
uint64_t agreement(enum agreed what, uint64_t digest);
/* If a refusal or a difference was why the task failed, asks the other members for more about it,
 * and sets the error. Returns result. */
ncclsvc_result agreement_explain(struct ncclsvc_request *r, ncclsvc_task task,
				 ncclsvc_result result);

/* ---- describe.c: the slow path, after a failure ---- */

/* Says the sentence (up to 200 bytes of it) about a refusal, and returns the word that refuses. */
uint64_t refusal_describe(ncclsvc_tensors *lists, uint64_t word, const char *sentence);
/* Reads the refusing member's sentence: a string, empty if none arrives. */
void refusal_read(ncclsvc_tensors *lists, const ncclsvc_status *st,
		  char text[SVC_DESCRIPTION_BYTES]);
/* The two ranks of the status have lists that differ, and this member's is one like rank_a's or
 * rank_b's: finds the first difference, together with the other ranks. False: it did not come out
 * in time. */
bool lists_compare(ncclsvc_tensors *lists, const struct list *list, uint64_t word,
		   const ncclsvc_status *st, char *text, size_t size);

/* ---- announce.c ---- */

#define ANNOUNCE_FIRST 128 /* words in the first message; the rest, if any, is a second one */

/* All words, with the first message padded; the caller frees them. NULL: out of memory. */
uint64_t *announce_write(const struct list *list, size_t *nwords);
/* Reads the total number of words, of a list that should have n tensors. Sets *nwords even if the
 * number of tensors differs. */
ncclsvc_result announce_length(const uint64_t *first, size_t n, size_t *nwords);
/* Checks every word, and fills in a list without data. */
ncclsvc_result announce_read(const uint64_t *words, size_t nwords, struct list *list);
/* OK if `allowed` permits the list. */
ncclsvc_result announce_allowed(const struct list *list, const struct list *allowed);

/* ---- buffer.c ---- */

struct stage_buffer {
	struct stage_buffer *next;
	char *at;
	size_t bytes;
	bool busy;
	struct CUevent_st
		*copied; /* recorded behind the last copy to it; NULL: that copy is over */
	uint64_t clean;	 /* digest of the layout whose gaps are zero; 0: none */
};

struct list_stream {
	struct CUstream_st *handle;
	bool detached;
};

struct ncclsvc_tensors {
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	ncclsvc_comm *host; /* a second communicator, in host memory, for what goes ahead */
	struct stage_buffer *buffers;
	struct ncclsvc_request *requests;
	struct batch *queue;		       /* the first batch has its turn */
	struct batch *planned;		       /* batches of plans, in any order */
	struct batch *open;		       /* batch of the thread's open task group, or NULL */
	struct ncclsvc_tensors *next_in_group; /* next lists with a batch in this group */
	struct list_stream stream; /* for copies: stream of the request that makes progress */
	struct spin spin;	   /* for waits for copies */
	uint64_t copied;
	bool allocating; /* a receiver's allocate is running */
	/* The communicator's epoch in which a list missed its turn, and the one in which a peer did
	 * not describe a failure; 0: none. */
	uint32_t missed_epoch, silent_epoch;
};

static inline bool on_gpu(const ncclsvc_tensors *lists)
{
	return lists->comm->device >= 0;
}

ncclsvc_result buffer_get(ncclsvc_tensors *lists, uint64_t bytes, struct stage_buffer **buffer);
void buffer_put(struct stage_buffer *buffer);	     /* NULL is allowed. */
ncclsvc_result buffers_free(ncclsvc_tensors *lists); /* all of them, which are idle */

/* ---- copy.c: host memory at once, GPU memory on the request's stream ---- */

/* A piece of a tensor that is copied to or from the buffer. */
struct piece {
	char *at;	 /* in the tensor */
	uint64_t offset; /* in the buffer */
	uint64_t bytes;
};

/* Copies the n pieces, in ascending order, to the buffer, and zeroes the gaps between start and
 * end. layout: a digest of all this, or 0 to clear the gaps again. */
ncclsvc_result copy_in(ncclsvc_tensors *lists, struct stage_buffer *buffer,
		       const struct piece *pieces, size_t n, uint64_t start, uint64_t end,
		       uint64_t layout);
/* On a GPU, copies after the task, if there is one, and records *event (event may be NULL) behind
 * the copy; the caller owns it. */
ncclsvc_result copy_out(ncclsvc_tensors *lists, const struct stage_buffer *buffer,
			const struct piece *pieces, size_t n, ncclsvc_task task,
			struct CUevent_st **event);
/* Copies from tensor to tensor, unless they are the same. at: the destinations. */
ncclsvc_result copy_through(ncclsvc_tensors *lists, const struct piece *from, char *const *at,
			    size_t n);
/* IN_PROGRESS, OK or an error. Frees the event unless IN_PROGRESS. */
ncclsvc_result copy_done(ncclsvc_tensors *lists, struct CUevent_st **event);

#endif
