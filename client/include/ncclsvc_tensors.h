/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of tensors as single operations: sent and received as one aggregated buffer, and reduced,
 * gathered and scattered as one. On a communicator of the host or of GPUs.
 *
 * A list call that is refused (a bad argument, no memory) still takes its turn, so that no peer
 * waits for it in vain. It fails with the same result on all members of the operation: on its own
 * at once, with the full reason; on the others, ncclsvc_last_status has the field
 * NCCLSVC_FIELD_REFUSAL, the refusing rank as rank_a, and an ncclsvc_refusal as value_a. (With a
 * daemon of protocol version 1, they only get INVALID_ARGUMENT.) No tensor moves then. Members
 * compare their mode, tag, types and shapes before anything moves: if these differ, all sides get
 * MISMATCH with a sentence.
 *
 * Threads: only one thread at a time may use an ncclsvc_tensors and its requests. The calling
 * thread must not have a timeline set; nor an open task group, except for calls that return a
 * request.
 *
 * GPUs: tensors are device memory of the communicator's GPU. Their copies run on the stream that
 * the thread has set (ncclsvc_stream_set), before and after the operation, in stream order. Even
 * after ncclsvc_stream_set with NCCLSVC_STREAM_DETACHED, the stream waits for a list. If a call
 * that does not wait fails, its outputs are undefined; if one that waits fails, nothing has moved.
 *
 * Errors and times: see ncclsvc.h.
 */
#ifndef NCCLSVC_TENSORS_H
#define NCCLSVC_TENSORS_H

#include "ncclsvc.h"
#include "ncclsvc_plan.h"
#include "ncclsvc_world.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Layouts: pure functions --------------------------------------------------------------- */

#define NCCLSVC_TENSOR_ALIGNMENT 256
#define NCCLSVC_TENSORS_MAX	 65536 /* in a list */
#define NCCLSVC_DIMS_MAX	 32

typedef struct ncclsvc_tensor {
	void *data; /* elements in row-major order, without gaps; may be NULL if there are none */
	ncclsvc_type type;   /* n elements of int4 or uint4 are (n + 1) / 2 bytes */
	int ndims;	     /* 0: a scalar, which has one element */
	const int64_t *dims; /* may be NULL if ndims is 0 */
} ncclsvc_tensor;

/* A tensor with its dimensions: NCCLSVC_TENSOR(x, NCCLSVC_FLOAT32, 2, 3); without dimensions, a
 * scalar. In C, the dimensions live as long as the enclosing block; in C++ until the end of the
 * expression, so use it for arguments there. */
#define NCCLSVC_TENSOR_TYPE(type, ...) (type)
#ifndef __cplusplus
#define NCCLSVC_TENSOR(data, ... /* type, dims */)                                                 \
	((ncclsvc_tensor){(data), NCCLSVC_TENSOR_TYPE(__VA_ARGS__, 0),                             \
			  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)) - 1,           \
			  (const int64_t[]){__VA_ARGS__} + 1})
#else
}
namespace ncclsvc
{
template <int n> ncclsvc_tensor tensor(void *data, ncclsvc_type type, const int64_t (&rest)[n])
{
	return {data, type, n - 1, rest + 1};
}
} // namespace ncclsvc
extern "C" {
#define NCCLSVC_TENSOR(data, ... /* type, dims */)                                                 \
	ncclsvc::tensor(data, NCCLSVC_TENSOR_TYPE(__VA_ARGS__, 0), {__VA_ARGS__})
#endif

/* *count elements in *bytes (each may be NULL). INVALID_ARGUMENT: the type is unknown, a dimension
 * is negative, there are more than NCCLSVC_DIMS_MAX, or their product overflows. */
ncclsvc_result ncclsvc_tensor_size(const ncclsvc_tensor *tensor, uint64_t *count, uint64_t *bytes);

/* The offsets of n tensors of these sizes in an aggregated buffer: each begins at the end of the
 * previous one, rounded up to 256; *total is the last one's end. offsets has room for n, or is
 * NULL. INVALID_ARGUMENT: the sum overflows. */
ncclsvc_result ncclsvc_aggregate(const uint64_t *bytes, size_t n, uint64_t *offsets,
				 uint64_t *total);

/* How a vector of `total` elements is divided among the ranks of a group: padded to the next
 * multiple of 32 x size (a full one more if it is a multiple already); each rank owns the range
 * [rank x per_rank, + per_rank). */
typedef struct ncclsvc_partition {
	uint64_t total, padded, per_rank; /* elements */
} ncclsvc_partition;

/* INVALID_ARGUMENT: size is not positive, or padded overflows. */
ncclsvc_result ncclsvc_partition_of(uint64_t total, int size, ncclsvc_partition *partition);

/* For n consecutive tensors of these element counts: owners[i] is the rank in whose range tensor i
 * begins. INVALID_ARGUMENT: a tensor does not end in that range; the sentence names it.
 * (ncclsvc_partition_fit gives views that do.) owners (room for n) and partition may be NULL. */
ncclsvc_result ncclsvc_partition_tensors(const uint64_t *counts, size_t n, int size,
					 ncclsvc_partition *partition, int *owners);

/* Some elements of one tensor, in the range of one rank. */
typedef struct ncclsvc_view {
	size_t tensor;	/* which one */
	uint64_t first; /* its first element in the view */
	int64_t count;	/* elements: the view's only dimension */
	int owner;
} ncclsvc_view;

/* Cuts n tensors of these element counts where a rank's range ends. The views, given as the list in
 * place of the tensors, are laid like them and fit the partition. A tensor within one range is one
 * view. views: room for n + size - 1; *n_views: how many there are. partition may be NULL.
 * INVALID_ARGUMENT: as above, or the counts' sum is more than INT64_MAX. */
ncclsvc_result ncclsvc_partition_fit(const uint64_t *counts, size_t n, int size,
				     ncclsvc_partition *partition, ncclsvc_view *views,
				     size_t *n_views);

/* ---- Lists on a communicator ----------------------------------------------------------------- */

typedef struct ncclsvc_tensors ncclsvc_tensors; /* list operations of one rank on a communicator */
typedef struct ncclsvc_request ncclsvc_request; /* one of them under way */

/* Prepares the communicator for lists. The caller keeps the communicator, which must outlive
 * *lists; the caller owns *lists, too, and closes it before the session. All members call it, once:
 * it joins one more communicator of theirs, in host memory, for the messages before the data of
 * lists, and blocks up to timeout_ms for that. RANK_TAKEN: this rank has lists on the communicator
 * already. Other results as for ncclsvc_comm_join. */
ncclsvc_result ncclsvc_tensors_open(ncclsvc_comm *comm, int timeout_ms, ncclsvc_tensors **lists);
/* The same, for this rank's group of a world: types 0 to 5. If two groups have the same
 * communicator (see ncclsvc_world_comm), as groups of one rank do, they share one ncclsvc_tensors:
 * open it for one of them; the others get RANK_TAKEN. */
ncclsvc_result ncclsvc_tensors_open_group(const ncclsvc_world *world, ncclsvc_group_type type,
					  int timeout_ms, ncclsvc_tensors **lists);
/* After the communicator has been rejoined: all members call it. */
ncclsvc_result ncclsvc_tensors_rejoin(ncclsvc_tensors *lists, int timeout_ms);
/* BUSY: a request is under way, or a copy of a failed one is still on its stream; nothing happened.
 * Also frees requests that have ended. NULL is allowed. */
ncclsvc_result ncclsvc_tensors_close(ncclsvc_tensors *lists);
/* Bytes copied so far between tensors and the library's buffers; lists sent in place do not count.
 */
uint64_t ncclsvc_tensors_copied(const ncclsvc_tensors *lists);

/* Sets the data of n tensors to one new piece of memory (ncclsvc_mem_alloc, or
 * ncclsvc_mem_alloc_device on the communicator's GPU), at the offsets of ncclsvc_aggregate. Such a
 * list is sent in place, and received in place with NCCLSVC_MESSAGE_ONE_BUFFER. Tensors without
 * elements get NULL. The caller owns *memory and frees it with ncclsvc_mem_free; NULL if there is
 * nothing. May be called within a message's allocate. INVALID_ARGUMENT: a bad tensor; the sentence
 * names it. Other results as for ncclsvc_mem_alloc and ncclsvc_mem_alloc_device, which it waits
 * for. */
ncclsvc_result ncclsvc_tensors_allocate(ncclsvc_tensors *lists, ncclsvc_tensor *tensors, size_t n,
					void **memory);

/* ---- Send and Recv ----------------------------------------------------------------------------
 *
 * Both sides pass the same tag and mode. Lists from one rank to another match in order. A refused
 * call takes its turn, too: the peer's list fails with it. Some refused calls take no turn, and the
 * peer's list matches the next one instead: lists or message is NULL; message.size is wrong or an
 * unknown field is set; remote_rank is the own rank or no rank, so the peer is unknown; the
 * thread's task group or timeline does not allow the call; or it is made within allocate. A list
 * that the daemon ends with LIMIT (for example user_tasks_max) has not taken its turn: once a call
 * has seen that, this rank's further lists get STALE_EPOCH until it has left the communicator and
 * joined it again.
 *
 * A list whose tensors already have the offsets of ncclsvc_aggregate from the first one's start is
 * sent in place. It is received in place if there are no gaps between tensors, or if
 * NCCLSVC_MESSAGE_ONE_BUFFER allows writing to the gaps. Other lists are copied. */

typedef enum ncclsvc_shapes {
	NCCLSVC_SHAPES_STATIC = 1, /* the receiver knows all types and shapes, and passes the
				    * same */
	NCCLSVC_SHAPES_AHEAD = 2,  /* the sender sends them first */
} ncclsvc_shapes;

/* Flags of a message. */
#define NCCLSVC_MESSAGE_ONE_BUFFER 1u /* Recv may write to the gaps between tensors */

/* The receiver's callback: gets types and shapes (valid until it returns) and sets every tensor's
 * data. Any result but OK refuses the message: the call returns it, on both sides. (Results about a
 * session's or a communicator's own state, such as DAEMON_LOST, AGAIN or TIMEOUT, become
 * INVALID_ARGUMENT.) The receiving call's error sentence is the text given to ncclsvc_set_error, or
 * the reason for which the callback's last call of the library failed. It may call no list function
 * but ncclsvc_tensors_allocate: others return INVALID_ARGUMENT. */
typedef ncclsvc_result ncclsvc_allocate(ncclsvc_tensor *tensors, size_t n, void *arg);

typedef struct ncclsvc_message {
	size_t size;	   /* sizeof(ncclsvc_message): lets the struct grow */
	bool input_signal; /* must be true */
	int64_t remote_rank;
	int64_t tag;
	ncclsvc_shapes shapes;
	unsigned flags;
	size_t n; /* number of tensors: the same on both sides */
	/* Read during the call; the memory at data belongs to the message until it has ended. For a
	 * Recv with shapes ahead: the allowed types and shapes; ndims or a dimension of -1 allows
	 * any, data is not read. */
	const ncclsvc_tensor *tensors;
	ncclsvc_allocate *allocate; /* Recv: may be NULL with static shapes if every data is set */
	void *arg;		    /* of allocate */
} ncclsvc_message;

/* Each sends or receives one message and waits for it. *output_signal (may be NULL) is set to true
 * when that is done, and is false otherwise. timeout_ms: how long to wait for the peer; negative:
 * the communicator's own (ncclsvc_comm_set_timeout). INVALID_ARGUMENT: input_signal is false, or
 * remote_rank is the own rank; the sentence names others. MISMATCH: mode, tag, types or shapes are
 * not the peer's, or not allowed. AGAIN: the ring is full; nothing was submitted. */
ncclsvc_result ncclsvc_tensors_send(ncclsvc_tensors *lists, const ncclsvc_message *message,
				    int timeout_ms, bool *output_signal);
ncclsvc_result ncclsvc_tensors_recv(ncclsvc_tensors *lists, const ncclsvc_message *message,
				    int timeout_ms, bool *output_signal);
/* The same for one tensor of a static shape: a list of one, which matches such a list. */
ncclsvc_result ncclsvc_tensor_send(ncclsvc_tensors *lists, ncclsvc_tensor tensor, int64_t peer,
				   int64_t tag, int timeout_ms);
ncclsvc_result ncclsvc_tensor_recv(ncclsvc_tensors *lists, ncclsvc_tensor tensor, int64_t peer,
				   int64_t tag, int timeout_ms);
/* Each begins a message. On success the caller owns *request, and frees it. With shapes ahead,
 * requests make progress only within list calls of this rank, which drive all requests of the
 * ncclsvc_tensors: a list's data is submitted after the data of all lists that were begun before.
 * The caller must hold back plain operations of the communicator that would overtake such a list.
 * An error ends the message before it has begun, as above.
 *
 * In a task group (ncclsvc_group_begin), the lists are submitted together, so two ranks can send to
 * each other. If some send their shapes ahead, all data of the group on one ncclsvc_tensors forms a
 * group of its own, when all shapes are known; if several of these lists go from one rank to
 * another, the other side must have them in one group, too. A refused list takes its turn in the
 * group. If ncclsvc_group_end fails, so do the group's lists, and their peers are notified. After
 * AGAIN, and BUSY (the group has plain operations, which would overtake a list with its shapes
 * ahead), nothing of the group was submitted. Before ncclsvc_group_end, wait and test return
 * INVALID_ARGUMENT. */
ncclsvc_result ncclsvc_tensors_isend(ncclsvc_tensors *lists, const ncclsvc_message *message,
				     ncclsvc_request **request);
ncclsvc_result ncclsvc_tensors_irecv(ncclsvc_tensors *lists, const ncclsvc_message *message,
				     ncclsvc_request **request);

/* Waits until the request has ended and returns its result (also for lists in plans); the caller
 * then owns the tensors again. TIMEOUT with number 0 in ncclsvc_last_status: the wait timed out,
 * and the request continues. Waiting twice is allowed. */
ncclsvc_result ncclsvc_request_wait(ncclsvc_request *request, int timeout_ms);
/* IN_PROGRESS, or the result. Does not wait. */
ncclsvc_result ncclsvc_request_test(ncclsvc_request *request);
/* BUSY: the request has not ended; nothing happened. NULL is allowed. */
ncclsvc_result ncclsvc_request_free(ncclsvc_request *request);

/* ---- In plans ----------------------------------------------------------------------------------
 *
 * A list is a task of a plan's open group, as in ncclsvc_plan.h. ncclsvc_plan_end matches
 * everything that the plan knows: all of a static list; number and types of the tensors of a list
 * with shapes ahead, whose shapes are agreed on in each iteration. Groups that share lists with
 * shapes ahead must be able to begin together, on the host, too. tensors: types, and dims (ignored
 * with shapes ahead); read during the call. MISMATCH at plan_end, with a sentence: one is a list
 * and the other is not, or mode, tag, types or shapes differ. Otherwise like ncclsvc_plan_send and
 * ncclsvc_plan_recv, but the peer cannot be the own rank. */
ncclsvc_result ncclsvc_plan_tensors_send(ncclsvc_plan *plan, ncclsvc_shapes shapes, int64_t tag,
					 const ncclsvc_tensor *tensors, size_t n, int peer);
ncclsvc_result ncclsvc_plan_tensors_recv(ncclsvc_plan *plan, ncclsvc_shapes shapes, int64_t tag,
					 const ncclsvc_tensor *tensors, size_t n, int peer);

/* Submit a list, in any order, and return. It takes the earliest free slot of its operation, peer,
 * mode and tag; plain tasks have other slots. lists are of the plan's communicator. The caller owns
 * *request, waits for it and frees it; it ends with its own data, perhaps before its group. GPUs:
 * like ncclsvc_plan_submit_send, but outputs are complete when the request has ended; and nothing
 * of a later group can be submitted on the stream of a list that waits for its shapes (BUSY). After
 * an error nothing is submitted, and the slot is free: INVALID_ARGUMENT also if other types or
 * shapes were planned. With shapes ahead the request makes progress within list calls, once all
 * such lists of its group are submitted and the groups before are complete. ncclsvc_plan_reset
 * counts it as submitted only when its shapes are known: wait for the request first. It fails with
 * CANCELLED if the plan is terminated before, and with STALE_EPOCH if the plan was committed
 * again. */
ncclsvc_result ncclsvc_plan_submit_tensors_send(ncclsvc_plan *plan, ncclsvc_tensors *lists,
						const ncclsvc_message *message,
						ncclsvc_request **request);
ncclsvc_result ncclsvc_plan_submit_tensors_recv(ncclsvc_plan *plan, ncclsvc_tensors *lists,
						const ncclsvc_message *message,
						ncclsvc_request **request);

/* ---- Collectives -------------------------------------------------------------------------------
 *
 * All members pass the same number of tensors with the same types and shapes; the tensors of one
 * list have one type. outputs has the same shapes; it may be NULL, or alias inputs tensor by
 * tensor: then the operation is in place. timeout_ms and errors are as with Send and Recv. To get a
 * request instead of waiting, pass request (timeout_ms is then unused); else NULL. */

/* One AllReduce over all tensors, which may lie anywhere. They are copied, except tensors that lie
 * one after the other without gaps in one piece of memory (of the session, or one GPU allocation),
 * in inputs and outputs alike. Bytes between tensors are neither read nor written; to reduce them,
 * too, pass one tensor over the whole buffer. */
ncclsvc_result ncclsvc_tensors_all_reduce(ncclsvc_tensors *lists, const ncclsvc_tensor *inputs,
					  const ncclsvc_tensor *outputs, size_t n,
					  ncclsvc_redop redop, int timeout_ms,
					  ncclsvc_request **request);
/* ncclsvc_partition_tensors divides the consecutive tensors, those of int4 and uint4 by their
 * bytes. A rank's inputs matter only for the tensors that it owns (data of others may be NULL);
 * every rank gets all tensors as outputs. */
ncclsvc_result ncclsvc_tensors_all_gather(ncclsvc_tensors *lists, const ncclsvc_tensor *inputs,
					  const ncclsvc_tensor *outputs, size_t n, int timeout_ms,
					  ncclsvc_request **request);
/* Divided likewise. The owner of a tensor gets it reduced; its other outputs equal its inputs. */
ncclsvc_result ncclsvc_tensors_reduce_scatter(ncclsvc_tensors *lists, const ncclsvc_tensor *inputs,
					      const ncclsvc_tensor *outputs, size_t n,
					      ncclsvc_redop redop, int timeout_ms,
					      ncclsvc_request **request);

#ifdef __cplusplus
}
#endif
#endif
