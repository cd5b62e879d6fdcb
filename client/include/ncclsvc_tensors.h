/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of tensors as single operations: sent and received as one aggregated buffer, and reduced,
 * gathered and scattered as one. On a communicator of the host or of GPUs.
 *
 * A list call that is refused (a bad argument, no memory) still takes its turn, so that nobody
 * waits for it in vain. It fails with the same result on all members of the operation: on its own
 * at once, with the reason in full; on the others, ncclsvc_last_status has the field
 * NCCLSVC_FIELD_REFUSAL, the rank that has refused as rank_a, and an ncclsvc_refusal as value_a. (A
 * daemon of protocol version 1 tells them INVALID_ARGUMENT alone.) No tensor moves then. What the
 * members must have in common (mode, tag, types, shapes) is compared before anything moves:
 * MISMATCH on all sides, in words.
 *
 * Threads: an ncclsvc_tensors and its requests are used by one thread at a time. The calling thread
 * must not have a timeline set; nor a task group open, but for calls that return a request.
 * GPUs: tensors are device memory of the communicator's GPU. Their copies are put on the stream
 * that the thread has set (ncclsvc_stream_set), before and after the operation: all is in stream
 * order. After ncclsvc_stream_set with NCCLSVC_STREAM_DETACHED, the stream waits for a list all the
 * same. Of a call that does not wait and fails, outputs hold anything; of one that waits, nothing
 * has moved. Errors and times are as in ncclsvc.h.
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

/* A tensor with its dimensions: NCCLSVC_TENSOR(x, NCCLSVC_FLOAT32, 2, 3), or without any a scalar.
 * In C, they live as long as the block in which it stands; in C++ until the end of the expression,
 * so there it is for arguments. */
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

/* Where n parts of these sizes stand in an aggregated buffer: each begins at the end of the one
 * before it, rounded up to 256; *total is the last one's end. offsets has room for n, or is NULL.
 * INVALID_ARGUMENT: the sum overflows. */
ncclsvc_result ncclsvc_aggregate(const uint64_t *bytes, size_t n, uint64_t *offsets,
				 uint64_t *total);

/* How a vector of `total` elements is divided among the ranks of a group: filled up to a multiple
 * of 32 x size (by a whole one if it is such), each rank owns the range [rank x per_rank, +
 * per_rank). */
typedef struct ncclsvc_partition {
	uint64_t total, padded, per_rank; /* elements */
} ncclsvc_partition;

/* INVALID_ARGUMENT: size is not positive, or padded overflows. */
ncclsvc_result ncclsvc_partition_of(uint64_t total, int size, ncclsvc_partition *partition);

/* For n tensors of these element counts, laid one after the other: owners[i] is the rank in whose
 * range tensor i begins. INVALID_ARGUMENT: one does not end in that range; the sentence names it.
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

/* Prepares the communicator for lists. It stays the caller's, and must outlive *lists, which is the
 * caller's, too, to be closed before the session. All members call it, once: it joins one more
 * communicator of theirs, in host memory, for what lists say before their data, and blocks up to
 * timeout_ms for that. RANK_TAKEN: this rank has lists on the communicator already. Others as of
 * ncclsvc_comm_join. */
ncclsvc_result ncclsvc_tensors_open(ncclsvc_comm *comm, int timeout_ms, ncclsvc_tensors **lists);
/* The same, of this rank's group of a world: types 0 to 5. Groups that are one communicator
 * (ncclsvc_world_comm gives the same for both), as those of this rank alone, have one
 * ncclsvc_tensors: opened for one of them, it is RANK_TAKEN for the others. */
ncclsvc_result ncclsvc_tensors_open_group(const ncclsvc_world *world, ncclsvc_group_type type,
					  int timeout_ms, ncclsvc_tensors **lists);
/* After the communicator has been rejoined: all members call it. */
ncclsvc_result ncclsvc_tensors_rejoin(ncclsvc_tensors *lists, int timeout_ms);
/* BUSY: a request is under way, or a copy of one that failed is still on its stream; nothing
 * happened. Requests that have ended are freed, too. NULL is allowed. */
ncclsvc_result ncclsvc_tensors_close(ncclsvc_tensors *lists);
/* Bytes copied so far between tensors and the library's buffers; those that go as they lie are not.
 */
uint64_t ncclsvc_tensors_copied(const ncclsvc_tensors *lists);

/* Sets the data of n tensors to one new piece of memory (of the session, or lent on the
 * communicator's GPU), at the offsets of ncclsvc_aggregate: so the list is sent as it lies, and
 * received so with NCCLSVC_MESSAGE_ONE_BUFFER. Tensors without elements get NULL. *memory is the
 * caller's, to be given to ncclsvc_mem_free; NULL if there is nothing. Also within a message's
 * allocate. INVALID_ARGUMENT: a tensor's; the sentence names it. Others as of ncclsvc_mem_alloc and
 * ncclsvc_mem_alloc_device, which it waits for. */
ncclsvc_result ncclsvc_tensors_allocate(ncclsvc_tensors *lists, ncclsvc_tensor *tensors, size_t n,
					void **memory);

/* ---- Send and Recv ----------------------------------------------------------------------------
 *
 * Both sides give the same tag and mode. Lists from one rank to another match in order. A refused
 * call takes its turn, too: the peer's list fails with it. Some take none, and the peer's list
 * matches the next one instead: lists or message is NULL; message.size is wrong or a field is set
 * that the library does not know; remote_rank is the own rank or no rank, so that no peer is known;
 * the thread's task group or timeline does not allow the call; or it is made within allocate. A
 * list that the daemon ends with LIMIT (user_tasks_max, say) has not taken its turn: once a call
 * has seen that, this rank's further lists are STALE_EPOCH until it has left the communicator and
 * joined it again.
 *
 * A list whose tensors already stand at the offsets of ncclsvc_aggregate from the first one's start
 * is sent as it lies. It is received as it lies if there are no gaps between tensors, or if
 * NCCLSVC_MESSAGE_ONE_BUFFER says that they are nobody else's. Other lists are copied. */

typedef enum ncclsvc_shapes {
	NCCLSVC_SHAPES_STATIC = 1, /* the receiver knows all types and shapes, and gives the same */
	NCCLSVC_SHAPES_AHEAD = 2,  /* the sender sends them first */
} ncclsvc_shapes;

/* Flags of a message. */
#define NCCLSVC_MESSAGE_ONE_BUFFER 1u /* Recv may write to the gaps between tensors */

/* The receiver's: is given types and shapes (valid until it returns) and sets every tensor's data.
 * Anything but OK refuses the message: the result is that of the call, on both sides. (Results that
 * speak of a session's or a communicator's own state, as DAEMON_LOST, AGAIN or TIMEOUT do, become
 * INVALID_ARGUMENT.) Its caller reads what ncclsvc_set_error was given, or why the callback's last
 * call of the library has failed. List functions but ncclsvc_tensors_allocate are refused within
 * it: INVALID_ARGUMENT. */
typedef ncclsvc_result ncclsvc_allocate(ncclsvc_tensor *tensors, size_t n, void *arg);

typedef struct ncclsvc_message {
	size_t size;	   /* sizeof(ncclsvc_message): lets the struct grow */
	bool input_signal; /* must be true */
	int64_t remote_rank;
	int64_t tag;
	ncclsvc_shapes shapes;
	unsigned flags;
	size_t n; /* tensors: the same on both sides */
	/* Read during the call; what data points to belongs to the message until it has ended. Recv
	 * with shapes sent ahead: what is allowed; ndims or a dimension of -1 allows any, data is
	 * not read. */
	const ncclsvc_tensor *tensors;
	ncclsvc_allocate *allocate; /* Recv: NULL, with static shapes, if every data is given */
	void *arg;		    /* of allocate */
} ncclsvc_message;

/* Each sends or receives one message and waits for it. *output_signal (may be NULL) is set to true
 * when that is done, and is false otherwise. timeout_ms: for the peer to come; negative: the
 * communicator's own (ncclsvc_comm_set_timeout). INVALID_ARGUMENT: input_signal is false, or
 * remote_rank is the own rank; others are in the sentence. MISMATCH: mode, tag, types or shapes are
 * not the peer's, or not those that are allowed. AGAIN: the ring is full; nothing was submitted. */
ncclsvc_result ncclsvc_tensors_send(ncclsvc_tensors *lists, const ncclsvc_message *message,
				    int timeout_ms, bool *output_signal);
ncclsvc_result ncclsvc_tensors_recv(ncclsvc_tensors *lists, const ncclsvc_message *message,
				    int timeout_ms, bool *output_signal);
/* The same for one tensor of a static shape: each is a list of one, and matches such a list. */
ncclsvc_result ncclsvc_tensor_send(ncclsvc_tensors *lists, ncclsvc_tensor tensor, int64_t peer,
				   int64_t tag, int timeout_ms);
ncclsvc_result ncclsvc_tensor_recv(ncclsvc_tensors *lists, ncclsvc_tensor tensor, int64_t peer,
				   int64_t tag, int timeout_ms);
/* Each begins one. On success *request is the caller's, to be freed. Where shapes are sent ahead,
 * requests go on only within list calls of this rank, which drive all requests of the
 * ncclsvc_tensors: a list is submitted when the data of those that were begun before is. Plain
 * operations of the communicator must not overtake such a list: the caller holds them back. An
 * error ends it before it has begun, as above.
 *
 * In a task group (ncclsvc_group_begin), the lists are submitted together: two ranks can send to
 * each other. If some send their shapes ahead, the data of all that the group has on one
 * ncclsvc_tensors is one group of its own, when all their shapes are known; if several of those go
 * from one rank to another, the other side has them in one group, too. A list that is refused takes
 * its turn in the group. If ncclsvc_group_end fails, so do the group's lists, and their peers are
 * told; after AGAIN, and BUSY (the group has plain operations, which would overtake a list with its
 * shapes ahead), nothing of it was submitted. Before it, wait and test are INVALID_ARGUMENT. */
ncclsvc_result ncclsvc_tensors_isend(ncclsvc_tensors *lists, const ncclsvc_message *message,
				     ncclsvc_request **request);
ncclsvc_result ncclsvc_tensors_irecv(ncclsvc_tensors *lists, const ncclsvc_message *message,
				     ncclsvc_request **request);

/* Waits until it has ended and returns its result (also of lists in plans); tensors are then the
 * caller's again. TIMEOUT: of this wait, and it goes on, if ncclsvc_last_status has number 0.
 * Waiting twice is allowed. */
ncclsvc_result ncclsvc_request_wait(ncclsvc_request *request, int timeout_ms);
/* IN_PROGRESS, or the result. Does not wait. */
ncclsvc_result ncclsvc_request_test(ncclsvc_request *request);
/* BUSY: it has not ended; nothing happened. NULL is allowed. */
ncclsvc_result ncclsvc_request_free(ncclsvc_request *request);

/* ---- In plans ----------------------------------------------------------------------------------
 *
 * A list is a task of a plan's open group, as in ncclsvc_plan.h. What a plan can know of it, all of
 * a static list, is matched by ncclsvc_plan_end; of shapes sent ahead, number and types of the
 * tensors are, and shapes are agreed on in each iteration. Groups with the same lists of shapes
 * ahead must be able to begin together, on the host, too. tensors: types, and dims (ignored with
 * shapes ahead); read during the call. MISMATCH at plan_end, in words: one is a list and the other
 * is not, mode, tag, types or shapes differ. Else as ncclsvc_plan_send and ncclsvc_plan_recv, but
 * the own rank is no peer. */
ncclsvc_result ncclsvc_plan_tensors_send(ncclsvc_plan *plan, ncclsvc_shapes shapes, int64_t tag,
					 const ncclsvc_tensor *tensors, size_t n, int peer);
ncclsvc_result ncclsvc_plan_tensors_recv(ncclsvc_plan *plan, ncclsvc_shapes shapes, int64_t tag,
					 const ncclsvc_tensor *tensors, size_t n, int peer);

/* Submit a list, in any order, and return. It takes the earliest free place of its operation, peer,
 * mode and tag; plain tasks have other places. lists are of the plan's communicator. *request is
 * the caller's, to be waited for and freed; it ends with its own data, perhaps before its group.
 * GPUs: as ncclsvc_plan_submit_send, but outputs are there when the request has ended; and nothing
 * of a later group can be submitted on the stream of a list that waits for its shapes (BUSY). An
 * error submits nothing, and the place is free: INVALID_ARGUMENT also if other types or shapes were
 * planned. With shapes ahead it goes on within list calls, once all such lists of its group are
 * submitted and the groups before are whole; ncclsvc_plan_reset counts it as submitted only when
 * its shapes are known: wait for the request first. It fails with CANCELLED if the plan is
 * terminated before, and with STALE_EPOCH if the plan was committed again. */
ncclsvc_result ncclsvc_plan_submit_tensors_send(ncclsvc_plan *plan, ncclsvc_tensors *lists,
						const ncclsvc_message *message,
						ncclsvc_request **request);
ncclsvc_result ncclsvc_plan_submit_tensors_recv(ncclsvc_plan *plan, ncclsvc_tensors *lists,
						const ncclsvc_message *message,
						ncclsvc_request **request);

/* ---- Collectives -------------------------------------------------------------------------------
 *
 * All members give the same number of tensors with the same types and shapes; the tensors of one
 * list are of one type. outputs has the same shapes; it may be NULL, or alias inputs tensor by
 * tensor: then they are worked on in place. timeout_ms and errors are as with Send and Recv. Each
 * has a variant that returns a request instead of waiting: pass request (then timeout_ms is not
 * used), or NULL. */

/* One AllReduce over all tensors, which may lie anywhere. They are copied, but for tensors that lie
 * one after the other without gaps in one piece of memory (of the session, or one GPU allocation),
 * inputs and outputs alike. Bytes between tensors are neither read nor written: who wants them
 * reduced, too, gives one tensor over all of it. */
ncclsvc_result ncclsvc_tensors_all_reduce(ncclsvc_tensors *lists, const ncclsvc_tensor *inputs,
					  const ncclsvc_tensor *outputs, size_t n,
					  ncclsvc_redop redop, int timeout_ms,
					  ncclsvc_request **request);
/* The tensors laid one after the other are divided by ncclsvc_partition_tensors, those of int4 and
 * uint4 by their bytes. Each rank's inputs
 * count where it owns them (data of others may be NULL); every rank gets all tensors as outputs. */
ncclsvc_result ncclsvc_tensors_all_gather(ncclsvc_tensors *lists, const ncclsvc_tensor *inputs,
					  const ncclsvc_tensor *outputs, size_t n, int timeout_ms,
					  ncclsvc_request **request);
/* Divided likewise. The owner of a tensor gets it reduced; its other outputs are its inputs. */
ncclsvc_result ncclsvc_tensors_reduce_scatter(ncclsvc_tensors *lists, const ncclsvc_tensor *inputs,
					      const ncclsvc_tensor *outputs, size_t n,
					      ncclsvc_redop redop, int timeout_ms,
					      ncclsvc_request **request);

#ifdef __cplusplus
}
#endif
#endif
