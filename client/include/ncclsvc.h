/* SPDX-License-Identifier: Apache-2.0
 *
 * libncclsvc: collectives and point-to-point as a service of the node's ncclsvcd.
 *
 * Threads: every function may be called from any thread. Calls on one session are serialised by a
 * mutex of that session, which no call holds while it waits; use a session per thread where
 * submission rate matters. A task group belongs to the thread that began it.
 *
 * Processes: a session belongs to the process that opened it; after fork() the child must not use
 * it (it may open its own). The child's copy of the connection is closed, so the daemon sees the
 * parent's end. In the child, calls return DAEMON_LOST, if no other thread was in the library at
 * the fork, and ncclsvc_close does nothing.
 *
 * Signals: no handlers are installed, SIGPIPE is never raised, no threads are created.
 *
 * Errors: every function that can fail returns an ncclsvc_result. For the calling thread it stores
 * a sentence in ncclsvc_last_error() and the details for programs in ncclsvc_last_status(). On
 * failure, outputs are untouched unless stated.
 *
 * Time: all timeouts are milliseconds; negative means none, 0 means "do not wait".
 */
#ifndef NCCLSVC_H
#define NCCLSVC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ncclsvc_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NCCLSVC_NO_TIMEOUT (-1)

#ifdef __GNUC__
#define NCCLSVC_PRINTF(at, first) __attribute__((format(printf, at, first)))
#else
#define NCCLSVC_PRINTF(at, first)
#endif

typedef struct ncclsvc_session ncclsvc_session; /* one connection to the daemon */
typedef struct ncclsvc_comm ncclsvc_comm;	/* one rank of one communicator */
typedef uint64_t ncclsvc_task;			/* a submitted task of a session; 0 is none */

typedef struct ncclsvc_unique_id {
	uint8_t bytes[NCCLSVC_ID_BYTES];
} ncclsvc_unique_id;

/* ---- Errors and version ---------------------------------------------------------------- */

/* "MISMATCH". Static; never NULL. */
const char *ncclsvc_result_name(ncclsvc_result result);
/* "members of a communicator submitted different tasks". Static; never NULL. */
const char *ncclsvc_result_meaning(ncclsvc_result result);
/* This thread's last failure as one sentence that names ranks, pids and fields where they are
 * known, and leaves out the result's name. Valid until the thread's next call. Never NULL. */
const char *ncclsvc_last_error(void);
/* The same for programs: *status has the result that the call returned. If a task failed, or the
 * end of an epoch is the reason, it also has the known ranks, pids, field and values; otherwise
 * ranks are -1 and all other fields 0. number is the task, or 0 if no task has ended: TIMEOUT with
 * number 0 means that the wait itself timed out, and the task continues. Valid as long as the
 * sentence. INVALID_ARGUMENT: status is NULL. */
ncclsvc_result ncclsvc_last_status(ncclsvc_status *status);
/* For callbacks that fail: stores the sentence (formatted like printf, cut to some 600 bytes,
 * control characters replaced by spaces) as the thread's last error, and returns the result. A
 * result that is no failure becomes INVALID_ARGUMENT. */
NCCLSVC_PRINTF(2, 3)
ncclsvc_result ncclsvc_set_error(ncclsvc_result result, const char *format, ...);
/* The library's version, "1.2.3". Static. */
const char *ncclsvc_version(void);
/* 1 if the library has the kernels for operations on GPUs; 0 if it was built without a
 * compiler for them. */
int ncclsvc_has_kernels(void);

/* Names of the vocabulary ("AllReduce", "float32", "sum", "waiting-peers", "type"); "?" if unknown.
 * Static. */
const char *ncclsvc_op_name(unsigned op);
const char *ncclsvc_type_name(unsigned type);
const char *ncclsvc_redop_name(unsigned redop);
const char *ncclsvc_state_name(unsigned state);
const char *ncclsvc_epoch_state_name(unsigned state);
const char *ncclsvc_epoch_cause_name(unsigned cause);
const char *ncclsvc_ending_name(unsigned ending);
const char *ncclsvc_failure_name(unsigned failure);
const char *ncclsvc_field_name(unsigned field);
/* Bytes of one element; 0 if unknown. */
size_t ncclsvc_type_size(unsigned type);
/* Writes status as one sentence, NUL-terminated; returns buf. */
char *ncclsvc_status_sentence(const ncclsvc_status *status, char *buf, size_t size);

/* ---- Sessions -------------------------------------------------------------------------- */

typedef struct ncclsvc_options {
	size_t size;	    /* sizeof(ncclsvc_options): lets the struct grow */
	const char *socket; /* NULL: $NCCLSVC_SOCKET, else the user's daemon, else the system's */
	const char *name;   /* shown by ncclsvc-ctl; NULL: the program's name */
	uint32_t ring_entries; /* tasks, counted from the oldest in flight: a power of two,
				* 16..65536; 0: 1024. LIMIT: more than the daemon's ring_max
				* (default: 16384) */
	bool no_ring;	       /* submit over the socket: slower, for debugging and comparison */
	int timeout_ms;	       /* to connect and attach; 0: 5000 */
	/* The name of the job, shown by ncclsvc-ctl: 63 characters of printable ASCII. NULL:
	 * $NCCLSVC_JOB, else what the launcher says (see libncclsvc(3)). */
	const char *job;
	/* The other processes that may join this session's communicators. The member that joins
	 * first on a node decides, so set the same value for all. DEFAULT: $NCCLSVC_ADMIT
	 * ("tenant", "user", "any"), else the tenant: processes of the same user in the same job,
	 * pod, container or service (see libncclsvc(3)). The members' GPUs can access each other's
	 * buffers. */
	ncclsvc_admit admit;
	/* How long the session waits by itself for the next daemon when the daemon ends (see
	 * libncclsvc(3)); set the same value for all ranks. 0: $NCCLSVC_REATTACH_MS, else 10000;
	 * negative: it does not wait. At most 3600000. */
	int reattach_ms;
} ncclsvc_options;

/* Connects to a daemon and attaches. options may be NULL. On success the caller owns *session and
 * closes it with ncclsvc_close. Blocks up to the timeout. DAEMON_LOST: nobody listens there.
 *
 * Where the daemon's workers use MPS, this process must use it, too, or compute and communication
 * take turns on the GPUs. If CUDA is not initialized yet, and CUDA_MPS_PIPE_DIRECTORY is not set
 * (or was set only by an earlier session), this call sets it, sets NCCLSVC_MPS_DIRECTORY to the
 * same value, and sets CUDA_DEVICE_MAX_CONNECTIONS to 32 if that is not set; or it removes what an
 * earlier session with another daemon has set. So open the first session before CUDA is
 * initialized, and, as setenv is not thread-safe, before other threads read the environment. A
 * program that sets CUDA_MPS_PIPE_DIRECTORY itself prevents all this. */
ncclsvc_result ncclsvc_open(const ncclsvc_options *options, ncclsvc_session **session);

/* Leaves every communicator, abandons pending tasks, frees all memory of the session (pointers from
 * ncclsvc_mem_alloc included) and the communicator handles. NULL is allowed. Does not block, unless
 * the session has had GPU communicators (see there). No other call on the session may be running or
 * follow.
 */
void ncclsvc_close(ncclsvc_session *session);

/* After DAEMON_LOST: connects again to the same socket, registers the session's memory again
 * (contents survive: they are this process's memory) and rejoins its communicators with their ids,
 * ranks and sizes, which waits for their other members. Handles and pointers stay valid; tasks that
 * were pending have failed. Splits are not rejoined: split again. Waits up to timeout_ms for a
 * daemon, also while the previous one still exits. Each attempt finishes what a failed one left
 * undone; OK means that nothing is left. BUSY: another thread is reattaching. */
ncclsvc_result ncclsvc_reattach(ncclsvc_session *session, int timeout_ms);

/* ---- Communicators --------------------------------------------------------------------- */

/* Creates a random id, which the application passes to the other ranks by its own means. Any
 * process that knows it and that the first member admits can join (ncclsvc_options). Needs no
 * daemon, and so the ranks must be on one node, or on nodes whose daemons mpirun has started
 * together. */
ncclsvc_result ncclsvc_unique_id_create(ncclsvc_unique_id *id);
/* The same for ranks on any nodes whose daemons reach each other: the session's daemon creates the
 * id, which says where it runs, and there the members gather. Whoever knows the id may join, so
 * keep it secret. Waits for the daemon's answer, for at most 10 s. */
ncclsvc_result ncclsvc_unique_id_request(ncclsvc_session *session, ncclsvc_unique_id *id);

/* Like ncclCommInitRank: joins communicator `id` of nranks as `rank`; returns when all have joined.
 * *comm belongs to the session; free it with ncclsvc_comm_leave. MISMATCH: the others passed
 * another nranks. RANK_TAKEN: a live process holds the rank. TIMEOUT names the missing ranks. */
ncclsvc_result ncclsvc_comm_join(ncclsvc_session *session, const ncclsvc_unique_id *id, int nranks,
				 int rank, int timeout_ms, ncclsvc_comm **comm);

/* The rank that the launcher has given the process in its environment: torchrun (RANK, WORLD_SIZE),
 * Open MPI (OMPI_COMM_WORLD_RANK, _SIZE), PMI (PMI_RANK, PMI_SIZE), srun (SLURM_PROCID,
 * SLURM_STEP_NUM_TASKS), or, without any of these, PMIx (PMIX_RANK). Only a launcher whose job has
 * as many processes as the world has ranks counts. */
#define NCCLSVC_RANK_LAUNCHER (-2)

/* Joins the daemon's world communicator (its --ranks) as `rank`, as any free rank if -1, or as the
 * launcher's rank if NCCLSVC_RANK_LAUNCHER. With several nodes, the world has the ranks of all of
 * them, node 0's first; `rank` must be one of this node's. INVALID_ARGUMENT: no launcher's job has
 * the world's size, or two of them disagree; or the rank is another node's. */
ncclsvc_result ncclsvc_comm_world(ncclsvc_session *session, int rank, int timeout_ms,
				  ncclsvc_comm **comm);

/* Like ncclCommSplit: all members call; those of one colour form a communicator, ranked by (key,
 * old rank). A member with a negative colour takes part and gets *newcomm = NULL. Between
 * standalone daemons, TIMEOUT also if the split's result is lost with a connection: 30 s after it.
 */
ncclsvc_result ncclsvc_comm_split(ncclsvc_comm *parent, int colour, int key, int timeout_ms,
				  ncclsvc_comm **newcomm);

/* Names the communicator that this thread's next join or split makes, for inspection, logs and
 * errors: 47 characters of printable ASCII. A longer name is cut, other characters become '?'. The
 * first name that a member gives counts. NULL or "": none. */
void ncclsvc_comm_label_next(const char *label);

/* Tunes the GPU communicator that this thread's next join or split makes, for programs that need
 * the multiprocessors themselves. blocks: the most thread blocks of a kernel, 1 to 32; 0: no limit.
 * The minimum of all members applies. If all members ask for copy_engines, these move the data of
 * large AllGathers, AllToAlls, Broadcasts, Gathers and Scatters, and each member takes 64 MiB more
 * of its GPU (libncclsvc(3)). */
void ncclsvc_comm_tuning_next(unsigned blocks, int copy_engines);

/* Joining in two steps, so that another thread can cancel it: _begin sends the request, and _wait
 * waits for its answer, which comes by the timeout given to _begin. */
typedef struct ncclsvc_joining ncclsvc_joining;

/* Like ncclsvc_comm_join_device, or ncclsvc_comm_join if device is NCCLSVC_DEVICE_HOST. On success
 * the caller owns *joining and frees it with ncclsvc_joining_free before it closes the session. */
ncclsvc_result ncclsvc_comm_join_begin(ncclsvc_session *session, const ncclsvc_unique_id *id,
				       int nranks, int rank, int device, int timeout_ms,
				       ncclsvc_joining **joining);
/* Like ncclsvc_comm_split. Leaving the parent before the answer has come ends the split.
 */
ncclsvc_result ncclsvc_comm_split_begin(ncclsvc_comm *parent, int colour, int key, int timeout_ms,
					ncclsvc_joining **joining);
/* Call it once. */
ncclsvc_result ncclsvc_joining_wait(ncclsvc_joining *joining, ncclsvc_comm **comm);
/* From any thread: the wait ends with CANCELLED, unless all have joined before. The rank of a join
 * is free for the next join. A split continues without this member, which leaves its part when the
 * session's next call finds the answer. */
void ncclsvc_joining_cancel(ncclsvc_joining *joining);
/* Call it when no thread waits. Cancels a request that was not waited for. NULL is allowed. */
void ncclsvc_joining_free(ncclsvc_joining *joining);

/* After PEER_GONE: joins the communicator's next epoch with the same handle and rank. Returns when
 * all members (the restarted one too) have joined. Tasks of the previous epoch can no longer run,
 * and its unreported errors are cleared. */
ncclsvc_result ncclsvc_comm_rejoin(ncclsvc_comm *comm, int timeout_ms);

/* Leaves the communicator and frees the handle. The rank's pending tasks are cancelled; the others'
 * fail with PEER_GONE. If another thread waits in a rejoin, it returns CANCELLED; a reattach
 * continues without this communicator. NULL is allowed. */
ncclsvc_result ncclsvc_comm_leave(ncclsvc_comm *comm);

/* Aborts whatever the member's operations wait for inside GPUs: its streams continue, and a call of
 * another thread that is blocked on a full stream returns. Then leave or rejoin the communicator.
 * The daemon ends the epoch, and the others' tasks fail with PEER_GONE. From any thread, also while
 * others are inside calls with the communicator; does not block. NULL is allowed. */
void ncclsvc_comm_abort(ncclsvc_comm *comm);

/* The number of CUDA graphs with operations of the communicator's present epoch: graphs that the
 * program has not destroyed, or that still have an instantiation. Once the communicator is left, or
 * has another epoch, launches of these operations do nothing and do not wait. Copies of
 * communicators of one rank do not count. From any thread; does not block. NULL: 0. */
unsigned ncclsvc_comm_graphs(ncclsvc_comm *comm);

/* Not 0: launches of these graphs run, or wait for earlier work on their streams; or one has been
 * aborted, and ncclsvc_comm_error is about to say why. From any thread; does not block. NULL: 0. */
int ncclsvc_comm_graphs_running(ncclsvc_comm *comm);

int ncclsvc_comm_rank(const ncclsvc_comm *comm);
int ncclsvc_comm_size(const ncclsvc_comm *comm);
uint32_t ncclsvc_comm_epoch(const ncclsvc_comm *comm);
void ncclsvc_comm_get_id(const ncclsvc_comm *comm, ncclsvc_unique_id *id);

/* Returns and clears the first error of the communicator that no wait has reported yet (of a task
 * that no call waited for, or a lost member). OK: none. Never blocks. */
ncclsvc_result ncclsvc_comm_error(ncclsvc_comm *comm);

/* Deadline of tasks submitted from now on, counted from their submission. Negative: none (the
 * default). When it passes, the task fails on every member with TIMEOUT, which names the missing
 * ranks. */
ncclsvc_result ncclsvc_comm_set_timeout(ncclsvc_comm *comm, int timeout_ms);

/* ---- Memory ---------------------------------------------------------------------------- */

/* Shared memory, zeroed, page-aligned, registered with the daemon: the fast path for buffers. The
 * call allocates all of its pages, which takes some 0.2 s per GiB. Freed with ncclsvc_mem_free or
 * with the session. bytes > 0. LIMIT: the user's quota is reached. NO_MEMORY: the system has no
 * pages. */
ncclsvc_result ncclsvc_mem_alloc(ncclsvc_session *session, size_t bytes, void **ptr);

/* Registers the first `bytes` of the caller's memfd, which must be sealed with F_SEAL_SHRINK, and
 * maps it at *ptr. Allocates missing pages. Do not punch holes into the memfd while it is
 * registered: that ends the session. The caller keeps the fd and may close it. Freed like the
 * above. */
ncclsvc_result ncclsvc_mem_register_fd(ncclsvc_session *session, int fd, size_t bytes, void **ptr);

/* Unregisters and unmaps. ptr is a pointer from alloc, register_fd or alloc_device. BUSY: a pending
 * task uses it, or a reattach is registering it; nothing happened. NULL is allowed. Memory of a GPU
 * is released by the daemon first, as by ncclsvc_mem_forget; that may take a second. The program's
 * own kernels must have finished with it. */
ncclsvc_result ncclsvc_mem_free(ncclsvc_session *session, void *ptr);

/* ---- Operations ------------------------------------------------------------------------
 *
 * Semantics and counts match NCCL's. All are non-blocking: they submit and return; buffers belong
 * to the service until the task is done. Tasks of one communicator run in order of submission
 * (tasks of one task group are unordered among themselves); communicators are independent.
 *
 * Buffers are memory of the session (above), or any other pointer. For other pointers the library
 * copies through its own shared memory, which is slower: the source at submission, the destination
 * when a wait, test or dispatch finds the task done. Until then the result is not in place.
 *
 * In place: AllReduce, Broadcast, Reduce, AllToAll: sendbuf == recvbuf. AllGather, Gather (root):
 * sendbuf == recvbuf + rank * count. ReduceScatter, Scatter (root): recvbuf == sendbuf + rank *
 * count. Any other overlap is refused. A count of 0 is allowed: it synchronises, and moves nothing.
 *
 * Reductions go in rank order, so results are bitwise identical on every rank and in every run.
 * float16 and bfloat16 accumulate in float32 and are rounded once; avg of integers divides the
 * 64-bit sum and truncates towards zero; integer sums and products wrap. bool, int16, uint16,
 * int4 and uint4 can be moved, not reduced: INVALID_ARGUMENT. For int4 and uint4, count counts
 * bytes, which hold two elements each.
 *
 * *task may be NULL if no call is to wait for the task (the communicator then reports its error).
 * Errors at submission: INVALID_ARGUMENT, AGAIN (the ring is full, or 512 tasks are pending on the
 * stream, or on the direct transport of the communicator, or fewer beside CUDA graphs: nothing was
 * submitted), DAEMON_LOST; and once the epoch is over, the reason (for example PEER_GONE, with rank
 * and pid), or STALE_EPOCH if an earlier call has reported the reason: rejoin. Other errors are the
 * task's. */

/* sendbuf, recvbuf: count elements. */
ncclsvc_result ncclsvc_all_reduce(const void *sendbuf, void *recvbuf, size_t count,
				  ncclsvc_type type, ncclsvc_redop redop, ncclsvc_comm *comm,
				  ncclsvc_task *task);
/* sendbuf: sendcount elements; recvbuf: nranks * sendcount. */
ncclsvc_result ncclsvc_all_gather(const void *sendbuf, void *recvbuf, size_t sendcount,
				  ncclsvc_type type, ncclsvc_comm *comm, ncclsvc_task *task);
/* sendbuf: nranks * recvcount elements; recvbuf: recvcount. */
ncclsvc_result ncclsvc_reduce_scatter(const void *sendbuf, void *recvbuf, size_t recvcount,
				      ncclsvc_type type, ncclsvc_redop redop, ncclsvc_comm *comm,
				      ncclsvc_task *task);
/* count elements; sendbuf is read on the root alone and may be NULL elsewhere. */
ncclsvc_result ncclsvc_broadcast(const void *sendbuf, void *recvbuf, size_t count,
				 ncclsvc_type type, int root, ncclsvc_comm *comm,
				 ncclsvc_task *task);
/* count elements; recvbuf is written on the root alone and may be NULL elsewhere. */
ncclsvc_result ncclsvc_reduce(const void *sendbuf, void *recvbuf, size_t count, ncclsvc_type type,
			      ncclsvc_redop redop, int root, ncclsvc_comm *comm,
			      ncclsvc_task *task);
/* sendbuf, recvbuf: nranks * count elements; block r goes to and comes from rank r. */
ncclsvc_result ncclsvc_all_to_all(const void *sendbuf, void *recvbuf, size_t count,
				  ncclsvc_type type, ncclsvc_comm *comm, ncclsvc_task *task);
/* sendbuf: count elements; recvbuf: nranks * count on the root, may be NULL elsewhere. */
ncclsvc_result ncclsvc_gather(const void *sendbuf, void *recvbuf, size_t count, ncclsvc_type type,
			      int root, ncclsvc_comm *comm, ncclsvc_task *task);
/* sendbuf: nranks * count elements on the root, may be NULL elsewhere; recvbuf: count. */
ncclsvc_result ncclsvc_scatter(const void *sendbuf, void *recvbuf, size_t count, ncclsvc_type type,
			       int root, ncclsvc_comm *comm, ncclsvc_task *task);
/* count elements to or from peer. The k-th Send from a to b matches the k-th Recv at b from a.
 * Exchange in both directions belongs in one task group, as with NCCL. */
ncclsvc_result ncclsvc_send(const void *sendbuf, size_t count, ncclsvc_type type, int peer,
			    ncclsvc_comm *comm, ncclsvc_task *task);
ncclsvc_result ncclsvc_recv(void *recvbuf, size_t count, ncclsvc_type type, int peer,
			    ncclsvc_comm *comm, ncclsvc_task *task);
ncclsvc_result ncclsvc_barrier(ncclsvc_comm *comm, ncclsvc_task *task);

/* Like ncclGroupStart and ncclGroupEnd: the thread's operations in between, on any communicators of
 * the session, are submitted together and are unordered among themselves. Groups do not nest. If an
 * operation in between is refused, group_end submits nothing and returns that error. group_end
 * stores each *task. A group must fit into the ring; the group is over even if group_end fails. */
ncclsvc_result ncclsvc_group_begin(ncclsvc_session *session);
ncclsvc_result ncclsvc_group_end(ncclsvc_session *session);
/* Ends the thread's group without submitting anything; each *task is untouched, and requests of
 * lists end with CANCELLED. Does not block. INVALID_ARGUMENT: the thread has begun no group. */
ncclsvc_result ncclsvc_group_abandon(ncclsvc_session *session);

/* ---- Timelines: order by counters in shared memory --------------------------------------
 *
 * A timeline holds two counters, ready and done, both 0 at first. While a timeline is set on a
 * thread, its tasks wait until ready >= value, and set done to at least value when they end (failed
 * or not). So work can be queued before its input exists. */
typedef struct ncclsvc_timeline ncclsvc_timeline;

/* LIMIT: the session has 63 already; UNSUPPORTED: it has no ring. Freed with the session or by
 * _destroy.
 */
ncclsvc_result ncclsvc_timeline_create(ncclsvc_session *session, ncclsvc_timeline **timeline);
/* BUSY: a pending task uses it. NULL is allowed. */
ncclsvc_result ncclsvc_timeline_destroy(ncclsvc_timeline *timeline);
/* The calling thread's submissions on this session use (timeline, value) until set to NULL. */
ncclsvc_result ncclsvc_timeline_set(ncclsvc_session *session, ncclsvc_timeline *timeline,
				    uint64_t value);
/* Raises ready to value (never lowers it). */
ncclsvc_result ncclsvc_timeline_signal(ncclsvc_timeline *timeline, uint64_t value);
/* The done counter now. */
uint64_t ncclsvc_timeline_done(const ncclsvc_timeline *timeline);

/* ---- GPUs -------------------------------------------------------------------------------
 *
 * A communicator joined with a device runs on NCCL, in the daemon's worker of that GPU, on this
 * process's own device memory. The first such call opens libcuda.so.1; devices are this process's
 * CUDA ordinals (CUDA_VISIBLE_DEVICES counts), which the daemon finds by UUID.
 *
 * Streams: an operation on such a communicator returns at once. It runs after the work that is on
 * the thread's stream (ncclsvc_stream_set; otherwise CUDA's default stream), and later work on that
 * stream runs after it: the GPU itself waits, no host thread does. Waiting on the host
 * (ncclsvc_wait) is optional, and reports errors. If a task fails, the host sees it at once; its
 * stream continues when no GPU writes for the task any more (NCCL takes half a second to abort), or
 * when no operation under way has ended for a second. The contents of its buffers are then
 * undefined: check ncclsvc_comm_error. After PEER_GONE and WORKER_LOST, fill buffers again only on
 * that stream, or once the communicator has been rejoined. A stream that waits for a lost daemon
 * continues as soon as any call of the library notices the loss. If no thread of the process is in
 * the library (for example, all are in cudaStreamSynchronize), the daemon's workers, which outlive
 * it for a moment, release the stream. Each stream in use with a communicator takes one of the
 * session's 63 timelines, until idle. A thread that has set a timeline cannot submit such
 * operations (UNSUPPORTED). One more error: SYSTEM, the driver refused the stream's part. The task
 * is then submitted, and runs unordered.
 *
 * Buffers: memory of cuMemAlloc (cudaMalloc), or cuMemCreate (with a POSIX handle type); any part
 * of an allocation. It is imported at its first use, ~0.1 ms. Memory that cannot be shared between
 * processes (of cudaMallocAsync's pools, managed, host) is refused by name. A buffer may lie across
 * several cuMemCreate mappings. Freeing an allocation that no pending task uses is always allowed.
 * Its memory returns to the GPU when another is used for the first time, at ncclsvc_mem_sweep, or
 * when the session closes; or at once, if ncclsvc_mem_forget was called before. ncclsvc_close waits
 * for the work on this process's GPUs. */

struct CUstream_st; /* a CUstream, or cudaStream_t */

#define NCCLSVC_DEVICE_HOST (-1)

/* Like ncclsvc_comm_join, with this process's GPU `device`. UNSUPPORTED: no driver here, or the
 * daemon has no worker for that GPU. MISMATCH: others joined with host memory. Two ranks may use
 * one GPU if all ranks are on one node and use the direct transport; otherwise MISMATCH or
 * UNSUPPORTED. Operations that need NCCL then fail with UNSUPPORTED: reductions of float8, plans,
 * lists, and operations of 4 GiB and more. */
ncclsvc_result ncclsvc_comm_join_device(ncclsvc_session *session, const ncclsvc_unique_id *id,
					int nranks, int rank, int device, int timeout_ms,
					ncclsvc_comm **comm);

/* Flags of ncclsvc_stream_set. */
#define NCCLSVC_STREAM_DETACHED 1u /* later work does not wait: ncclsvc_stream_wait orders it */

/* The calling thread's submissions on GPU communicators of the session use this stream until
 * another is set. NULL is CUDA's legacy default stream. The caller keeps the stream, and must not
 * destroy it while its tasks are pending.
 *
 * On a stream that is being captured into a CUDA graph, operations are captured and create no
 * tasks: *task is 0. The library sends operations for NCCL to the daemon at capture, and the call
 * blocks for the answers, at most 10 s each; LIMIT: the session has no timeline left for the
 * communicator's epoch, or the user has too many operations in graphs. UNSUPPORTED, and the capture
 * continues: premulsum on NCCL, planned operations, lists of tensors, detached streams, and Send
 * and Recv of communicators of one rank. A failure in a graph ends the epoch (ncclsvc_comm_error).
 * libncclsvc(3), CUDA GRAPHS.
 *
 * flags: 0 or NCCLSVC_STREAM_DETACHED. */
ncclsvc_result ncclsvc_stream_set(ncclsvc_session *session, struct CUstream_st *stream,
				  unsigned flags);

/* Later work on the stream runs after the task, whatever stream the task was submitted on. Returns
 * at once. Refuses a task of a host communicator. */
ncclsvc_result ncclsvc_stream_wait(ncclsvc_session *session, struct CUstream_st *stream,
				   ncclsvc_task task);

/* Allocates memory of this process's GPU `device` with cuMemCreate, so that other processes can
 * import it. *ptr is a device pointer. Not cleared. Freed with ncclsvc_mem_free or with the
 * session; survives the daemon. NO_MEMORY: the GPU is full. */
ncclsvc_result ncclsvc_mem_alloc_device(ncclsvc_session *session, int device, size_t bytes,
					void **ptr);

/* Makes the daemon release device memory that this process has freed meanwhile. It checks all of
 * the session's imported memory: call it after freeing much, or now and then. Does not wait. */
void ncclsvc_mem_sweep(ncclsvc_session *session);

/* Makes the daemon release this process's allocation that holds ptr. Call it before freeing the
 * allocation: then the memory returns to the GPU at once. Waits for tasks that use it, and for the
 * GPU's worker, up to timeout_ms (0 to 10,000) in total. TIMEOUT: the daemon releases it later,
 * when the GPU is idle, and it may be freed all the same. OK, too, if the daemon does not have it.
 * For memory of the session, use ncclsvc_mem_free. */
ncclsvc_result ncclsvc_mem_forget(ncclsvc_session *session, const void *ptr, int timeout_ms);

/* Frees the communicator's GPU memory until ncclsvc_comm_resume: the direct transport's memory in
 * this process (ncclsvc_comm_gpu_bytes), and, once all ranks of the node have called this, the
 * daemon's NCCL communicator, unless that spans nodes, is used by CUDA graphs or a plan, or has
 * PreMulSum reductions. Also unmaps other ranks' memory, which the driver requires to checkpoint
 * the process (cuCheckpointProcess*). All ranks must call it. Until the resume, submissions fail
 * with INVALID_ARGUMENT; CUDA graphs stay valid, but must not be launched, and no stream may be
 * waiting for a task of the communicator (ncclsvc_stream_wait). Blocks, up to timeout_ms, until
 * this rank's operations have ended and, with the direct transport, until all ranks have called it.
 * TIMEOUT: the error message says what is missing; repeat the call, or call ncclsvc_comm_resume.
 * BUSY: another thread is suspending or resuming it. PEER_GONE or another failure: the epoch has
 * ended. Returns OK without effect if the communicator is already suspended or in host memory. No
 * other thread may leave the communicator meanwhile. */
ncclsvc_result ncclsvc_comm_suspend(ncclsvc_comm *comm, int timeout_ms);
/* Allocates the memory again, at the same addresses. All ranks must call it. With the direct
 * transport, blocks until all ranks have called it, up to timeout_ms. TIMEOUT: the error message
 * names a rank that has not; repeat the call. NO_MEMORY, SYSTEM: the GPU may be full; try again
 * later. UNSUPPORTED: the process was restored from a checkpoint, and has CUDA graphs that cannot
 * continue; libncclsvc(3), GPUS. Otherwise like ncclsvc_comm_suspend. Returns OK without effect if
 * the communicator is not suspended. */
ncclsvc_result ncclsvc_comm_resume(ncclsvc_comm *comm, int timeout_ms);
/* The size in bytes of the direct transport's GPU memory for the communicator in this process. The
 * value is the same while the communicator is suspended, when the memory is not allocated. 0: it
 * has none. Thread-safe; does not block. */
uint64_t ncclsvc_comm_gpu_bytes(ncclsvc_comm *comm);

/* Creates a reduction for this member of a GPU communicator (others: UNSUPPORTED): each rank
 * multiplies its elements by its own scalar, and the results are summed, like
 * ncclRedOpCreatePreMulSum. scalar points to one element of `type` in host memory; the call reads
 * it. Only tasks of that type may use *redop, until it is destroyed or the communicator's epoch
 * ends; others fail with INVALID_ARGUMENT. Each member of a task passes its own. LIMIT: the member
 * has 48 already.
 *
 * The first task that needs NCCL sends the scalar to the daemon. Its submission blocks until NCCL
 * has started and the daemon replies, at most 10 s, or fails with UNSUPPORTED if there is no NCCL.
 */
ncclsvc_result ncclsvc_redop_create_premulsum(ncclsvc_comm *comm, const void *scalar,
					      ncclsvc_type type, ncclsvc_redop *redop);
/* Call it only after all tasks that use redop have ended: a pending one on NCCL would fail, and the
 * communicator with it. INVALID_ARGUMENT: no such reduction. If the daemon has it, blocks for the
 * daemon's reply, at most 10 s. */
ncclsvc_result ncclsvc_redop_destroy(ncclsvc_comm *comm, ncclsvc_redop redop);

/* ---- Completion ------------------------------------------------------------------------ */

/* Waits until the task has ended and returns its result. TIMEOUT with number 0 in
 * ncclsvc_last_status: the wait timed out, and the task continues; otherwise the task itself timed
 * out. Waiting twice is allowed. task 0 is OK. */
ncclsvc_result ncclsvc_wait(ncclsvc_session *session, ncclsvc_task task, int timeout_ms);
/* Waits for every task submitted so far; returns the first failure that no call has reported. */
ncclsvc_result ncclsvc_wait_all(ncclsvc_session *session, int timeout_ms);
/* IN_PROGRESS, or the task's result. Never blocks. */
ncclsvc_result ncclsvc_test(ncclsvc_session *session, ncclsvc_task task);
/* The full status of an ended task; IN_PROGRESS if it has not ended. The library remembers the last
 * ring_entries tasks, and the last 4096 older ones that failed; still older ones read as OK. */
ncclsvc_result ncclsvc_task_status(ncclsvc_session *session, ncclsvc_task task,
				   ncclsvc_status *status);

/* For event loops: an fd that becomes readable when there is something to dispatch (a task ended,
 * an event came, the daemon was lost). The session keeps it. Poll it for input, then call dispatch.
 */
int ncclsvc_get_fd(ncclsvc_session *session);
typedef void ncclsvc_callback(ncclsvc_task task, ncclsvc_result result, void *arg);
/* Called by dispatch, in the dispatching thread, once for each ended task; it may submit. NULL:
 * none. */
void ncclsvc_set_callback(ncclsvc_session *session, ncclsvc_callback *callback, void *arg);
/* Handles pending events, waiting up to timeout_ms for one. Returns OK also if there was none;
 * DAEMON_LOST when the connection is over. While operations of the direct transport are under way,
 * the fd becomes readable every millisecond. */
ncclsvc_result ncclsvc_dispatch(ncclsvc_session *session, int timeout_ms);

/* ---- Inspection: works while tasks hang ------------------------------------------------ */

ncclsvc_result ncclsvc_daemon(ncclsvc_session *session, ncclsvc_daemon_info *info);
/* Snapshots. The caller owns *list and frees it with ncclsvc_list_free; NULL when *n is 0. They
 * block for the daemon's answer, 10 s at most. */
ncclsvc_result ncclsvc_list_sessions(ncclsvc_session *session, ncclsvc_session_info **list,
				     size_t *n);
ncclsvc_result ncclsvc_list_comms(ncclsvc_session *session, ncclsvc_comm_info **list, size_t *n);
ncclsvc_result ncclsvc_list_members(ncclsvc_session *session, ncclsvc_member_info **list,
				    size_t *n);
ncclsvc_result ncclsvc_list_tasks(ncclsvc_session *session, ncclsvc_task_info **list, size_t *n);
ncclsvc_result ncclsvc_list_regions(ncclsvc_session *session, ncclsvc_region_info **list,
				    size_t *n);
ncclsvc_result ncclsvc_list_devices(ncclsvc_session *session, ncclsvc_device_info **list,
				    size_t *n);
/* The daemons of this one's cluster, itself included; none if it is alone. */
ncclsvc_result ncclsvc_list_nodes(ncclsvc_session *session, ncclsvc_node_info **list, size_t *n);
/* The failures of this user's communicators (of all users', on the socket for administration) that
 * the daemon keeps, from the number `from` on, in the order of their numbers. */
ncclsvc_result ncclsvc_list_failures(ncclsvc_session *session, uint64_t from,
				     ncclsvc_failure_info **list, size_t *n);
/* The daemon's flight recorder: what is pending, and the last 2,047 operations of each session of
 * this user, also of sessions that have ended; on the socket for administration, of all users'. An
 * operation that ends while the list is read can be in it twice: pending, then ended. Operations in
 * kernels are taken from memory that their processes write: when they ended is not known. */
ncclsvc_result ncclsvc_list_operations(ncclsvc_session *session, ncclsvc_operation_info **list,
				       size_t *n);
/* How late this node's ranks come to the collectives of the caller's communicators; on the socket
 * for administration, of all. */
ncclsvc_result ncclsvc_list_lateness(ncclsvc_session *session, ncclsvc_lateness_info **list,
				     size_t *n);
void ncclsvc_list_free(void *list);
/* From now on the session's lists are those of that node of the cluster, which the session's own
 * daemon asks; -1: of its own daemon again, as at first. Numbers in them (communicators, sessions,
 * tasks, GPUs) are that node's. A list then fails with TIMEOUT after 1.5 s without an answer, with
 * PEER_GONE if the node has gone, and with INVALID_ARGUMENT if there is no such node. A session
 * asks one node at a time (else BUSY). Never blocks. */
ncclsvc_result ncclsvc_list_from(ncclsvc_session *session, int node);

/* The session's number in inspection; another one once the session has connected again. NULL: 0,
 * which no session has. Never blocks. */
uint32_t ncclsvc_session_id(ncclsvc_session *session);

/* End a task, a communicator's tasks, or a session, by the ids that inspection shows. Allowed for
 * the owner, and on the socket for administration (ncclsvcd(8)). *cancelled (may be NULL): the
 * number of tasks that ended. If kernels of the communicator wait for each other, its epoch ends as
 * well: nothing less ends them. */
ncclsvc_result ncclsvc_cancel_task(ncclsvc_session *session, uint64_t task, uint64_t *cancelled);
ncclsvc_result ncclsvc_cancel_comm(ncclsvc_session *session, uint64_t comm, uint64_t *cancelled);
ncclsvc_result ncclsvc_cancel_session(ncclsvc_session *session, uint32_t id, uint64_t *cancelled);

/* on: the daemon takes no new jobs. Tenants that already use it continue, and may start new
 * processes; sessions of other tenants can't get a ring or join (DRAINING). 0: it takes new jobs
 * again. Only on the socket for administration. */
ncclsvc_result ncclsvc_drain(ncclsvc_session *session, int on);

/* An inspection-only session is an ordinary one opened with no_ring set. */

#ifdef __cplusplus
}
#endif
#endif
