/* SPDX-License-Identifier: Apache-2.0
 *
 * The vocabulary that trainers, the daemon and the tools share: results, operations, types,
 * reductions, and the records that inspection returns. Installed beside ncclsvc.h.
 *
 * Numbers are part of the protocol: they are never reused and only ever appended.
 */
#ifndef NCCLSVC_TYPES_H
#define NCCLSVC_TYPES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, "NAME", "what it means") */
#define NCCLSVC_RESULTS(X)                                                                         \
	X(NCCLSVC_OK, 0, "OK", "success")                                                          \
	X(NCCLSVC_IN_PROGRESS, 1, "IN_PROGRESS", "not finished yet")                               \
	X(NCCLSVC_INVALID_ARGUMENT, -1, "INVALID_ARGUMENT", "an argument is out of range")         \
	X(NCCLSVC_PROTOCOL, -2, "PROTOCOL", "a message or a ring breaks the protocol")             \
	X(NCCLSVC_VERSION, -3, "VERSION", "client and daemon share no protocol version")           \
	X(NCCLSVC_MISMATCH, -4, "MISMATCH", "members of a communicator submitted different tasks") \
	X(NCCLSVC_PEER_GONE, -5, "PEER_GONE", "another member has ended")                          \
	X(NCCLSVC_TIMEOUT, -6, "TIMEOUT", "the deadline passed")                                   \
	X(NCCLSVC_LIMIT, -7, "LIMIT", "a quota or limit is reached; nothing was changed")          \
	X(NCCLSVC_CANCELLED, -8, "CANCELLED", "cancelled on request")                              \
	X(NCCLSVC_DAEMON_LOST, -9, "DAEMON_LOST", "the daemon is gone; reattach")                  \
	X(NCCLSVC_WORKER_LOST, -10, "WORKER_LOST", "the GPU worker was lost")                      \
	X(NCCLSVC_PERMISSION, -11, "PERMISSION", "this user may not do that")                      \
	X(NCCLSVC_NOT_FOUND, -12, "NOT_FOUND", "no such communicator, region, session or task")    \
	X(NCCLSVC_RANK_TAKEN, -13, "RANK_TAKEN", "another live member holds this rank")            \
	X(NCCLSVC_STALE_EPOCH, -14, "STALE_EPOCH", "the communicator moved on; rejoin it")         \
	X(NCCLSVC_BUSY, -15, "BUSY", "still in use by a pending task")                             \
	X(NCCLSVC_DRAINING, -16, "DRAINING", "the daemon is shutting down")                        \
	X(NCCLSVC_NO_MEMORY, -17, "NO_MEMORY", "out of memory")                                    \
	X(NCCLSVC_UNSUPPORTED, -18, "UNSUPPORTED", "not supported by this daemon or device")       \
	X(NCCLSVC_SYSTEM, -19, "SYSTEM", "a system call failed")                                   \
	X(NCCLSVC_AGAIN, -20, "AGAIN", "the ring is full; wait for a task and try again")          \
	X(NCCLSVC_NCCL_ERROR, -21, "NCCL_ERROR", "NCCL failed; ncclsvc-ctl devices tells how")

/* X(name, value, "Name") */
#define NCCLSVC_OPS(X)                                                                             \
	X(NCCLSVC_ALL_REDUCE, 1, "AllReduce")                                                      \
	X(NCCLSVC_ALL_GATHER, 2, "AllGather")                                                      \
	X(NCCLSVC_REDUCE_SCATTER, 3, "ReduceScatter")                                              \
	X(NCCLSVC_BROADCAST, 4, "Broadcast")                                                       \
	X(NCCLSVC_REDUCE, 5, "Reduce")                                                             \
	X(NCCLSVC_ALL_TO_ALL, 6, "AllToAll")                                                       \
	X(NCCLSVC_GATHER, 7, "Gather")                                                             \
	X(NCCLSVC_SCATTER, 8, "Scatter")                                                           \
	X(NCCLSVC_SEND, 9, "Send")                                                                 \
	X(NCCLSVC_RECV, 10, "Recv")                                                                \
	X(NCCLSVC_BARRIER, 11, "Barrier")

/* X(name, value, "name", bytes). Two elements of int4 or uint4 share a byte, as in ONNX; operations
 * count bytes of these types. */
#define NCCLSVC_TYPES(X)                                                                           \
	X(NCCLSVC_INT8, 0, "int8", 1)                                                              \
	X(NCCLSVC_UINT8, 1, "uint8", 1)                                                            \
	X(NCCLSVC_INT32, 2, "int32", 4)                                                            \
	X(NCCLSVC_UINT32, 3, "uint32", 4)                                                          \
	X(NCCLSVC_INT64, 4, "int64", 8)                                                            \
	X(NCCLSVC_UINT64, 5, "uint64", 8)                                                          \
	X(NCCLSVC_FLOAT16, 6, "float16", 2)                                                        \
	X(NCCLSVC_FLOAT32, 7, "float32", 4)                                                        \
	X(NCCLSVC_FLOAT64, 8, "float64", 8)                                                        \
	X(NCCLSVC_BFLOAT16, 9, "bfloat16", 2)                                                      \
	X(NCCLSVC_FLOAT8E4M3, 10, "float8e4m3", 1) /* on GPUs only */                              \
	X(NCCLSVC_FLOAT8E5M2, 11, "float8e5m2", 1)                                                 \
	X(NCCLSVC_BOOL, 12, "bool", 1) /* this and the following can only be moved */              \
	X(NCCLSVC_INT16, 13, "int16", 2)                                                           \
	X(NCCLSVC_UINT16, 14, "uint16", 2)                                                         \
	X(NCCLSVC_INT4, 15, "int4", 1)                                                             \
	X(NCCLSVC_UINT4, 16, "uint4", 1)

/* X(name, value, "name"): values as in ncclRedOp_t */
#define NCCLSVC_REDOPS(X)                                                                          \
	X(NCCLSVC_SUM, 0, "sum")                                                                   \
	X(NCCLSVC_PROD, 1, "prod")                                                                 \
	X(NCCLSVC_MAX, 2, "max")                                                                   \
	X(NCCLSVC_MIN, 3, "min")                                                                   \
	X(NCCLSVC_AVG, 4, "avg")

/* X(name, value, "name"): a task's states, in the order it passes through them */
#define NCCLSVC_STATES(X)                                                                          \
	X(NCCLSVC_QUEUED, 1, "queued")		     /* behind an earlier task of its rank */      \
	X(NCCLSVC_WAITING_PEERS, 2, "waiting-peers") /* other ranks have not submitted */          \
	X(NCCLSVC_WAITING_INPUT, 3, "waiting-input") /* its timeline is not ready */               \
	X(NCCLSVC_LAUNCHED, 4, "launched")	     /* the daemon or worker runs it */            \
	X(NCCLSVC_DONE, 5, "done")                                                                 \
	X(NCCLSVC_FAILED, 6, "failed")                                                             \
	X(NCCLSVC_WAITING_GROUP, 7, "waiting-group") /* planned, and its group is incomplete */

/* X(name, value, "name"): what a MISMATCH is about */
#define NCCLSVC_FIELDS(X)                                                                          \
	X(NCCLSVC_FIELD_NONE, 0, "none")                                                           \
	X(NCCLSVC_FIELD_OP, 1, "operation")                                                        \
	X(NCCLSVC_FIELD_COUNT, 2, "count")                                                         \
	X(NCCLSVC_FIELD_TYPE, 3, "type")                                                           \
	X(NCCLSVC_FIELD_REDOP, 4, "reduction")                                                     \
	X(NCCLSVC_FIELD_ROOT, 5, "root")                                                           \
	X(NCCLSVC_FIELD_NRANKS, 6, "nranks")                                                       \
	X(NCCLSVC_FIELD_ORDER, 7, "order") /* every member waits for another: a deadlock */        \
	X(NCCLSVC_FIELD_AGREEMENT, 8, "agreement")                                                 \
	X(NCCLSVC_FIELD_PLAN, 9, "plan") /* only one side is planned */                            \
	/* PEER_GONE: the daemon of node value_a is gone; TIMEOUT: it does not answer. value_b: 0, \
	 * or its IPv4 address, then 16 bits of its port: the number is the daemon's own. Without  \
	 * a field, value_b of PEER_GONE is likewise for the node of rank_a, if the communicator   \
	 * spans nodes */                                                                          \
	X(NCCLSVC_FIELD_NODE, 12, "node")                                                          \
	/* LIMIT: user value_a has value_b tasks pending, which is the limit or, if the daemon is  \
	 * full, more than any other user has */                                                   \
	X(NCCLSVC_FIELD_USER_TASKS, 13, "user_tasks_max")                                          \
	X(NCCLSVC_FIELD_TASKS, 14, "tasks_max")                                                    \
	/* TIMEOUT: all ranks have submitted it, but some task groups are incomplete */            \
	X(NCCLSVC_FIELD_GROUP, 15, "group")                                                        \
	X(NCCLSVC_FIELD_TAG, 16, "tag") /* of lists; values are signed */                          \
	/* rank_a has refused a list for reason value_a (ncclsvc_refusal), value_b is its word */  \
	X(NCCLSVC_FIELD_REFUSAL, 17, "refusal")

/* X(name, value, "why"): why a member has refused a list, in addition to the result. Treat unknown
 * values as NONE. */
#define NCCLSVC_REFUSALS(X)                                                                        \
	X(NCCLSVC_REFUSAL_NONE, 0, "") /* see the result */                                        \
	X(NCCLSVC_REFUSAL_SIGNAL, 1, "its input_signal is false")                                  \
	X(NCCLSVC_REFUSAL_SHAPES, 2, "it does not allow the sender's types or shapes")             \
	X(NCCLSVC_REFUSAL_ALLOCATE, 3, "its allocate callback failed")

/* X(name, value, "name"): the states of a communicator's epoch on its node. The daemon's
 * comm/epoch.h has the table of their transitions. */
#define NCCLSVC_EPOCH_STATES(X)                                                                    \
	X(NCCLSVC_EPOCH_IDLE, 1, "idle")       /* no member here, and no task runs */              \
	X(NCCLSVC_EPOCH_FORMING, 2, "forming") /* all members here wait in JOIN */                 \
	X(NCCLSVC_EPOCH_BROKEN, 3, "broken")   /* members keep their ranks, and must JOIN again */ \
	X(NCCLSVC_EPOCH_ACQUIRING, 4, "acquiring") /* all have joined; GPUs are being prepared */  \
	X(NCCLSVC_EPOCH_RUNNING, 5, "running")	   /* the scheduler runs its tasks */              \
	X(NCCLSVC_EPOCH_LEFT, 6, "left")	   /* only other nodes' members continue */        \
	X(NCCLSVC_EPOCH_DRAINING, 7, "draining")   /* over; the scheduler ends its tasks */        \
	X(NCCLSVC_EPOCH_GONE, 8, "gone")	   /* forgotten, or the daemon exits */

/* X(name, value, "name"): why an epoch's state changes */
#define NCCLSVC_EPOCH_CAUSES(X)                                                                    \
	X(NCCLSVC_CAUSE_JOINED, 1, "joined")		 /* a member */                            \
	X(NCCLSVC_CAUSE_GATHERED, 2, "gathered")	 /* other nodes: all ranks have joined */  \
	X(NCCLSVC_CAUSE_GPUS_AWAITED, 3, "gpus-awaited") /* all ranks have joined, with GPUs */    \
	X(NCCLSVC_CAUSE_STARTED, 4, "started")		 /* in the scheduler */                    \
	X(NCCLSVC_CAUSE_LEFT, 5, "left")		 /* a member */                            \
	X(NCCLSVC_CAUSE_MEMBER_DIED, 6, "member-died")	 /* its session ended */                   \
	X(NCCLSVC_CAUSE_REFUSED, 7, "refused")		 /* a JOIN */                              \
	X(NCCLSVC_CAUSE_DEADLINE, 8, "deadline")	 /* of a JOIN, of idleness, of draining */ \
	X(NCCLSVC_CAUSE_START_FAILED, 9, "start-failed") /* NCCL, a worker, or another node */     \
	X(NCCLSVC_CAUSE_NODE_LOST, 10, "node-lost")	 /* a node with members */                 \
	X(NCCLSVC_CAUSE_GPU_LOST, 11, "gpu-lost")	 /* a member's worker, or NCCL there */    \
	X(NCCLSVC_CAUSE_ENDED_ELSEWHERE, 12, "ended-elsewhere") /* by another node */              \
	X(NCCLSVC_CAUSE_NODES_FAILED, 13, "nodes-failed") /* the nodes cannot continue together */ \
	X(NCCLSVC_CAUSE_RENEWED, 14, "renewed")	    /* a member joins beside one that left */      \
	X(NCCLSVC_CAUSE_RELEASED, 15, "released")   /* by the scheduler */                         \
	X(NCCLSVC_CAUSE_FORGOTTEN, 16, "forgotten") /* another one needed its slot */              \
	X(NCCLSVC_CAUSE_DAEMON_ENDS, 17, "daemon-ends")                                            \
	X(NCCLSVC_CAUSE_FAULT, 18, "fault") /* a transition that is not in the table */            \
	X(NCCLSVC_CAUSE_KERNEL_STUCK, 19, "kernel-stuck") /* a member's kernel waits in vain */    \
	X(NCCLSVC_CAUSE_GRAPH_FAILED, 20, "graph-failed") /* an operation that a graph started */  \
	X(NCCLSVC_CAUSE_ABORTED, 21, "aborted")		  /* by a member */                        \
	X(NCCLSVC_CAUSE_SUSPENDED, 22, "suspended")	  /* its members continue it */

/* X(name, value, "name"): how a rank's part in an epoch ended; see ncclsvc_status.ending_code */
#define NCCLSVC_ENDINGS(X)                                                                         \
	X(NCCLSVC_ENDED_UNKNOWN, 0, "ended") /* how is unknown */                                  \
	X(NCCLSVC_ENDED_LEFT, 1, "left")                                                           \
	X(NCCLSVC_ENDED_ABORTED, 2, "aborted")                                                     \
	X(NCCLSVC_ENDED_CLOSED, 3, "closed")		 /* its session; the process goes on */    \
	X(NCCLSVC_ENDED_EXITED, 4, "exited")		 /* code: the exit status; -1: unknown */  \
	X(NCCLSVC_ENDED_KILLED, 5, "killed")		 /* code: the signal; 0: unknown */        \
	X(NCCLSVC_ENDED_NO_MEMORY, 6, "out-of-memory")	 /* killed by the kernel's OOM killer */   \
	X(NCCLSVC_ENDED_DISCONNECTED, 7, "disconnected") /* by the daemon */

/* X(name, value, "name"): the kinds of failures that the daemon keeps */
#define NCCLSVC_FAILURES(X)                                                                        \
	X(NCCLSVC_FAILURE_TASK, 1, "operation") /* its communicator's epoch goes on */             \
	X(NCCLSVC_FAILURE_EPOCH, 2, "epoch")	/* a rank, a node or a GPU is lost */              \
	X(NCCLSVC_FAILURE_KERNEL, 3, "kernel")	/* the epoch ended for its members' kernels */     \
	X(NCCLSVC_FAILURE_REQUEST, 4,                                                              \
	  "request") /* a JOIN, a SPLIT, a plan, or a refused operation */

#define NCCLSVC_ENUM4(name, value, ...) name = (value),
typedef enum ncclsvc_result { NCCLSVC_RESULTS(NCCLSVC_ENUM4) } ncclsvc_result;
typedef enum ncclsvc_op { NCCLSVC_OPS(NCCLSVC_ENUM4) } ncclsvc_op;
typedef enum ncclsvc_type { NCCLSVC_TYPES(NCCLSVC_ENUM4) } ncclsvc_type;
typedef enum ncclsvc_redop { NCCLSVC_REDOPS(NCCLSVC_ENUM4) } ncclsvc_redop;
typedef enum ncclsvc_state { NCCLSVC_STATES(NCCLSVC_ENUM4) } ncclsvc_state;
typedef enum ncclsvc_field { NCCLSVC_FIELDS(NCCLSVC_ENUM4) } ncclsvc_field;
typedef enum ncclsvc_refusal { NCCLSVC_REFUSALS(NCCLSVC_ENUM4) } ncclsvc_refusal;
typedef enum ncclsvc_epoch_state { NCCLSVC_EPOCH_STATES(NCCLSVC_ENUM4) } ncclsvc_epoch_state;
typedef enum ncclsvc_epoch_cause { NCCLSVC_EPOCH_CAUSES(NCCLSVC_ENUM4) } ncclsvc_epoch_cause;
typedef enum ncclsvc_ending { NCCLSVC_ENDINGS(NCCLSVC_ENUM4) } ncclsvc_ending;
typedef enum ncclsvc_failure { NCCLSVC_FAILURES(NCCLSVC_ENUM4) } ncclsvc_failure;
#undef NCCLSVC_ENUM4

#define NCCLSVC_ID_BYTES      128 /* as ncclUniqueId */
#define NCCLSVC_NAME_BYTES    48  /* NUL included */
#define NCCLSVC_LABEL_BYTES   24  /* NUL included */
#define NCCLSVC_JOB_BYTES     64  /* NUL included */
#define NCCLSVC_REFUSED_BYTES 256 /* NUL included */
#define NCCLSVC_MISSING_SHOWN 8	  /* ranks named one by one in a status */
#define NCCLSVC_EPOCH_STEPS   8	  /* number of an epoch's state changes that are remembered */
#define NCCLSVC_LATENESS_BINS 28  /* of a histogram of lateness */

#define NCCLSVC_FROZEN 'F' /* of a process: by its cgroup; no state of /proc */

/* The full status of an ended task. `missing` holds the first of missing_count ranks. For a
 * MISMATCH, this is the one rank that differs from all others, if there is one: rank_b. For a
 * TIMEOUT, these ranks had not submitted the operation: rank_b is the first of them, and rank_a the
 * rank whose deadline passed. For WORKER_LOST, rank_a is the rank that the worker served, value_a
 * its GPU's number on that node, and pid_b the worker's pid. A pid of 0 means unknown. The ring and
 * messages use exactly this layout: a successful task needs only its first 64 bytes, a cache line.
 */
typedef struct ncclsvc_status {
	uint64_t number;       /* the task's number in its session */
	int32_t result;	       /* ncclsvc_result */
	uint32_t field;	       /* ncclsvc_field */
	uint64_t submitted_ns; /* CLOCK_MONOTONIC */
	uint64_t started_ns;   /* 0: it never started */
	uint64_t done_ns;
	int32_t rank_a, rank_b; /* the ranks that differ, or the lost rank (a); -1: none */
	int32_t pid_a, pid_b;
	uint32_t epoch; /* communicator epoch the task belonged to */
	uint32_t missing_count;
	uint64_t value_a, value_b; /* the differing values, for MISMATCH */
	int32_t missing[NCCLSVC_MISSING_SHOWN];
	uint32_t ending; /* ncclsvc_ending of rank_a, for PEER_GONE */
	int32_t ending_code;
	uint32_t follows; /* 1: rank_a ended because of an earlier failure (ncclsvc-ctl failures) */
	uint32_t reserved;
} ncclsvc_status;

/* Inspection records. Ages are nanoseconds at the time of the snapshot. */
typedef struct ncclsvc_session_info {
	uint32_t session;
	int32_t pid;
	uint32_t uid;
	uint32_t ring_entries; /* 0: submits over the socket only */
	uint64_t age_ns;
	uint64_t submitted, completed, failed; /* tasks so far */
	uint32_t comms, regions;
	uint64_t region_bytes;
	char name[NCCLSVC_NAME_BYTES];
	uint32_t mps;	   /* ncclsvc_mps, once it has joined with a GPU; before that UNKNOWN */
	uint32_t protocol; /* its protocol version */
	/* The job that its process belongs to: as the process says (it can say anything), and as
	 * the daemon has read it from /proc: the pod, container, Slurm step or systemd unit. Empty:
	 * unknown. */
	char job[NCCLSVC_JOB_BYTES];
	char cgroup[NCCLSVC_JOB_BYTES];
	/* If its node is asked by number, and the asker may act on the session, else 0: the state
	 * of the process as in /proc/PID/stat, or NCCLSVC_FROZEN, and the pid of the process that
	 * traces it. */
	uint32_t process_state;
	int32_t tracer_pid;
	/* The unit of its tenant, fixed when it connected: a job, pod, container, service, or the
	 * user's logins. Empty: unknown. name, job and cgroup are empty unless its user or an
	 * administrator asks. */
	char tenant[NCCLSVC_JOB_BYTES];
} ncclsvc_session_info;

/* The processes that may join a communicator, if they know its id. The member that joins first on a
 * node decides for this node. Between nodes, only users are compared. */
typedef enum ncclsvc_admit {
	NCCLSVC_ADMIT_DEFAULT = 0, /* in options: $NCCLSVC_ADMIT, or else the tenant */
	NCCLSVC_ADMIT_TENANT = 1,  /* the user's in the same job, pod, container or service */
	NCCLSVC_ADMIT_USER = 2,	   /* all of the user */
	NCCLSVC_ADMIT_ANY = 3,	   /* those of all users */
} ncclsvc_admit;

/* Whether an epoch on GPUs of this node has an NCCL communicator, which takes GPU memory. */
typedef enum ncclsvc_comm_nccl {
	NCCLSVC_COMM_NCCL_NONE = 0, /* no such epoch runs, or its memory is staged */
	NCCLSVC_COMM_NCCL_HELD = 1,
	NCCLSVC_COMM_NCCL_ON_DEMAND = 2, /* the next operation on NCCL gets one */
	NCCLSVC_COMM_NCCL_AWAITED = 3,	 /* an operation waits for it */
	NCCLSVC_COMM_NCCL_SUSPENDED =
		4, /* none: the node's ranks have suspended the communicator */
} ncclsvc_comm_nccl;

typedef enum ncclsvc_comm_state {
	NCCLSVC_COMM_FORMING = 1, /* some ranks have joined */
	NCCLSVC_COMM_READY = 2,	  /* all ranks have joined this epoch */
	NCCLSVC_COMM_BROKEN = 3,  /* a member is gone; survivors must rejoin */
	NCCLSVC_COMM_IDLE = 4,	  /* no member; kept warm for the next JOIN */
} ncclsvc_comm_state;

/* A change of an epoch's state. */
typedef struct ncclsvc_epoch_step {
	uint32_t state; /* ncclsvc_epoch_state after the change */
	uint32_t cause; /* ncclsvc_epoch_cause */
	uint64_t age_ns;
} ncclsvc_epoch_step;

/* The source of the direct transport's size limit. */
typedef enum ncclsvc_peer_source {
	NCCLSVC_PEER_UNKNOWN = 0, /* no kernels */
	NCCLSVC_PEER_DEFAULT = 1,
	NCCLSVC_PEER_MEASURED = 2, /* ncclsvc-perf crossover, on this machine */
	NCCLSVC_PEER_SET = 3,	   /* peer_bytes in ncclsvcd.conf(5) */
	/* No kernels: a member's process cannot map the memory of another member's GPU. */
	NCCLSVC_PEER_OUT_OF_REACH = 4,
	/* Two ranks share a GPU, so kernels run everything, and NCCL nothing. */
	NCCLSVC_PEER_SHARED_GPU = 5,
} ncclsvc_peer_source;

typedef struct ncclsvc_comm_info {
	uint64_t comm; /* unique in the daemon's lifetime */
	uint32_t nranks, joined;
	uint32_t epoch;
	uint32_t state; /* ncclsvc_comm_state */
	uint32_t pending;
	uint32_t uid; /* owner's; see tenant */
	uint64_t age_ns;
	uint8_t id[NCCLSVC_ID_BYTES];	/* a key: zeros unless the owner or an administrator asks */
	char label[NCCLSVC_NAME_BYTES]; /* as its users name it; else "world", "PARENT/split 2
					 * colour 1", or the start of the id in hex */
	/* 1 + the number of the node that knows which ranks have joined; 0: this one. */
	uint32_t ask_node;
	/* Last refused JOIN of a missing rank; while the epoch runs: the last refused operation of
	 * a rank of this node that has submitted none since. */
	int32_t refused_rank, refused_pid;
	char refused[NCCLSVC_REFUSED_BYTES]; /* why; empty: none was refused */
	/* On this node. 0: unknown here. */
	uint32_t epoch_state;	 /* ncclsvc_epoch_state */
	uint64_t epoch_state_ns; /* how long it has been in that state */
	uint32_t epoch_faults; /* events without a transition in the table: defects of the daemon */
	uint32_t epoch_step_count;
	ncclsvc_epoch_step epoch_steps[NCCLSVC_EPOCH_STEPS]; /* latest first */
	/* The size limit for operations in the members' kernels; 0: all run on NCCL. */
	uint32_t peer_bytes;
	uint32_t peer_source;	     /* ncclsvc_peer_source */
	char job[NCCLSVC_JOB_BYTES]; /* of the member of this node that joined first: as in its
				      * session, job or else cgroup. Empty: unknown */
	/* The same on all nodes that know the communicator, and no key. 0: the node is alone.
	 */
	uint64_t cluster_comm;
	/* How many collectives of this epoch went through staging memory, as a member had not
	 * mapped the others' buffers, at least not yet. */
	uint64_t staged;
	/* The owner's unit, as in ncclsvc_session_info; empty: unknown. Label, job and refusal are
	 * hidden from users who are neither its owner nor members. */
	char tenant[NCCLSVC_JOB_BYTES];
	uint32_t admit; /* ncclsvc_admit; 0: unknown here */
	uint32_t nccl;	/* ncclsvc_comm_nccl */
	/* The most blocks of one of its kernels, and whether copy engines move large data
	 * (ncclsvc_comm_tuning_next). 0 without kernels. */
	uint32_t blocks, copy_engines;
} ncclsvc_comm_info;

/* The transport of a GPU's memory. */
typedef enum ncclsvc_transport {
	NCCLSVC_TRANSPORT_NCCL = 0,
	NCCLSVC_TRANSPORT_MPI = 1, /* staged through pinned host memory; between nodes, MPI */
} ncclsvc_transport;

typedef enum ncclsvc_member_state {
	NCCLSVC_MEMBER_ABSENT = 0,  /* never joined, or left cleanly */
	NCCLSVC_MEMBER_JOINING = 1, /* waits for the others */
	NCCLSVC_MEMBER_JOINED = 2,
	NCCLSVC_MEMBER_DEAD = 3,    /* its session ended while joined, which ended the epoch */
	NCCLSVC_MEMBER_BROKEN = 4,  /* alive, but must rejoin */
	NCCLSVC_MEMBER_UNKNOWN = 5, /* perhaps joined on another node: ask `elsewhere` */
} ncclsvc_member_state;

/* A request that all members make together, and that is answered when all have. */
typedef enum ncclsvc_member_request {
	NCCLSVC_REQUEST_NONE = 0,
	NCCLSVC_REQUEST_SPLIT = 1,
	NCCLSVC_REQUEST_PLAN = 2, /* ncclsvc_plan_end */
} ncclsvc_member_request;

typedef struct ncclsvc_member_info {
	uint64_t comm;
	int32_t rank;
	uint32_t state; /* ncclsvc_member_state */
	uint32_t session;
	int32_t pid; /* the last process that held the rank; 0: none yet */
	uint32_t epoch;
	int32_t device;	     /* -1: host */
	uint64_t submitted;  /* tasks in this epoch; counted only on the member's own node */
	uint64_t completed;  /* tasks in this epoch, failures included */
	uint64_t waiting_ns; /* age of its JOIN while joining, else of the task in turn; 0: none */
	uint32_t elsewhere;  /* 1 + the other node that knows more; 0: none */
	uint32_t transport;  /* ncclsvc_transport, of a GPU's memory; the host's: 0 */
	uint32_t request;    /* ncclsvc_member_request: what it waits for, on its own node */
	uint32_t request_ms; /* for how long */
} ncclsvc_member_info;

typedef struct ncclsvc_task_info {
	uint64_t task; /* unique in the daemon's lifetime; the id for ncclsvc_cancel_task */
	uint64_t comm;
	uint64_t seq; /* position among this rank's tasks on the communicator, from 0 */
	uint64_t count, bytes;
	uint8_t op, type, redop, state;
	int32_t rank, peer; /* peer: root or peer rank; -1 if the operation has neither */
	int32_t pid;
	uint32_t session, epoch, nranks;
	uint32_t group;	      /* shared by the tasks of a task group; 0: none */
	uint64_t age_ns;      /* since the daemon saw it */
	uint64_t state_ns;    /* in its current state */
	uint32_t waits_count; /* total number of ranks on this node that it waits for */
	int32_t waits_for[NCCLSVC_MISSING_SHOWN]; /* the first of these ranks */
	/* Nodes that have not reported all their ranks ready; ask these nodes. */
	uint32_t ask_count;
	uint32_t ask_nodes[NCCLSVC_MISSING_SHOWN]; /* the first of these nodes */
	/* Not 0: the operation is a kernel of its process on the communicator, and this is the
	 * kernel's number. The daemon has no task for it: task is 0, and it cannot be cancelled. */
	uint32_t kernel;
	/* Not 0: the operation is in a CUDA graph, and this is the graph's number among the
	 * process's graphs with operations of the epoch, from 1. seq is then the operation's index
	 * in the graph. */
	uint32_t graph;
	char label[NCCLSVC_LABEL_BYTES]; /* set with ncclsvc_plan_label, if it is planned; empty:
					    none */
	char tenant[NCCLSVC_JOB_BYTES];	 /* its process's, as in ncclsvc_session_info */
} ncclsvc_task_info;

/* X(name, value, "name"): what moves an operation's data */
#define NCCLSVC_OPERATION_TRANSPORTS(X)                                                            \
	X(NCCLSVC_OPERATION_HOST, 1, "host")	 /* the daemon's threads */                        \
	X(NCCLSVC_OPERATION_NODES, 2, "nodes")	 /* host memory: the daemons of several nodes */   \
	X(NCCLSVC_OPERATION_NCCL, 3, "nccl")	 /* NCCL in the GPUs' workers */                   \
	X(NCCLSVC_OPERATION_STAGED, 4, "staged") /* a GPU's memory, through pinned host memory */  \
	X(NCCLSVC_OPERATION_KERNEL, 5, "kernel") /* a kernel on the trainer's GPU */

#define NCCLSVC_ENUM4(name, value, ...) name = (value),
typedef enum ncclsvc_operation_transport {
	NCCLSVC_OPERATION_TRANSPORTS(NCCLSVC_ENUM4)
} ncclsvc_operation_transport;
#undef NCCLSVC_ENUM4

/* An operation that the daemon's flight recorder has: one of a session's last, or one that is
 * pending. Times are CLOCK_MONOTONIC of the daemon's host; 0: it has not come so far, or that is
 * not known. */
typedef struct ncclsvc_operation_info {
	uint64_t comm;
	uint64_t seq;	     /* as in ncclsvc_task_info */
	uint64_t collective; /* number of a collective among its rank's, which is the same on all
				ranks, mod 2^32 */
	uint64_t count, bytes;
	uint64_t submitted_ns;
	uint64_t matched_ns; /* all ranks, or the peer, had submitted it */
	uint64_t started_ns; /* of a kernel: it was first seen to wait for other ranks */
	uint64_t done_ns;    /* of a kernel that has ended well: not known */
	int32_t result;	     /* ncclsvc_result; IN_PROGRESS: it is pending */
	uint8_t op, type;
	uint8_t state;	   /* ncclsvc_state */
	uint8_t transport; /* ncclsvc_operation_transport; 0: not known */
	int32_t rank, peer, pid;
	uint32_t session, epoch, nranks;
	uint32_t uid;	/* its process's user */
	uint32_t graph; /* as in ncclsvc_task_info, as the next */
	uint32_t kernel;
	uint32_t ended; /* 1: its session has ended */
	char comm_label[NCCLSVC_NAME_BYTES];
	char label[NCCLSVC_LABEL_BYTES];
	uint32_t wrapped; /* 1: its session has had more operations than the daemon keeps */
	uint32_t reserved;
	uint64_t comm_key; /* of the communicator, the same on all nodes */
} ncclsvc_operation_info;

typedef struct ncclsvc_region_info {
	uint32_t session, region;
	int32_t pid;
	uint32_t kind; /* 0: memfd; of a GPU: 1: cuMemAlloc, 2: cuMemCreate, 3: a range */
	uint64_t bytes;
	uint64_t age_ns;
	int32_t device; /* -1: host */
	uint32_t reserved;
} ncclsvc_region_info;

/* One member's position in its plan. Groups and tasks count from 0. */
typedef struct ncclsvc_plan_info {
	uint64_t plan; /* unique in the daemon's lifetime; the same on all members */
	uint64_t comm;
	int32_t rank, pid;
	uint32_t session, epoch;
	uint32_t groups, tasks;
	uint64_t iterations; /* finished */
	uint32_t running;    /* the first unfinished group */
	uint32_t group; /* the first group that lacks tasks of this member; equal to groups: none
			   does */
	uint32_t group_tasks, group_enqueued;
	uint32_t enqueued; /* tasks of this iteration */
	uint32_t left;	   /* 1: the member has terminated it */
	uint64_t age_ns;
} ncclsvc_plan_info;

typedef enum ncclsvc_plan_state {
	NCCLSVC_PLAN_MISSING = 1, /* not submitted in this iteration */
	NCCLSVC_PLAN_ENQUEUED =
		2,	       /* waits for the rest of its group or for earlier groups, or runs */
	NCCLSVC_PLAN_DONE = 3, /* its group has ended */
} ncclsvc_plan_state;

typedef struct ncclsvc_plan_task_info {
	uint64_t plan;
	int32_t rank, peer;
	uint32_t group, task; /* task: within its group */
	uint8_t op, type;     /* type: if count is given */
	uint8_t state;	      /* ncclsvc_plan_state */
	uint8_t ahead;	      /* 1: a list, which is also MISSING until its shapes are known */
	uint8_t reserved[4];
	uint64_t count;			 /* UINT64_MAX: any */
	char label[NCCLSVC_LABEL_BYTES]; /* set with ncclsvc_plan_label; empty: none */
} ncclsvc_plan_task_info;

typedef enum ncclsvc_device_state {
	NCCLSVC_DEVICE_STARTING = 1, /* its worker is being started */
	NCCLSVC_DEVICE_READY = 2,
	NCCLSVC_DEVICE_LOST = 3,   /* its worker is gone; a new one will be started */
	NCCLSVC_DEVICE_FAILED = 4, /* unusable; text says why */
} ncclsvc_device_state;

typedef enum ncclsvc_mps {
	NCCLSVC_MPS_NONE = 0,	/* the process uses the GPU directly */
	NCCLSVC_MPS_ACTIVE = 1, /* through an MPS server */
	NCCLSVC_MPS_UNKNOWN = 2,
	NCCLSVC_MPS_OTHER = 3, /* through another server than the GPU's worker */
} ncclsvc_mps;

/* The owner of the MPS control daemon that the workers use: mps in ncclsvcd.conf(5). */
typedef enum ncclsvc_mps_source {
	NCCLSVC_MPS_NOBODY = 0, /* none; ncclsvc_daemon_info says why */
	NCCLSVC_MPS_OWN = 1, /* the daemon, which started it, or took it over from a previous one */
	NCCLSVC_MPS_FOUND = 2, /* another process, since before the daemon's start */
} ncclsvc_mps_source;

/* The longest directory name that leaves room for an MPS control daemon's sockets. */
#define NCCLSVC_MPS_DIRECTORY_MAX   88
#define NCCLSVC_MPS_DIRECTORY_BYTES 96 /* with its NUL */

/* A GPU and its worker. */
typedef struct ncclsvc_device_info {
	int32_t device; /* the daemon's number for it */
	uint32_t state; /* ncclsvc_device_state */
	int32_t pid;	/* of its worker; 0: none runs */
	uint32_t restarts;
	uint8_t uuid[16];
	uint64_t memory_bytes;
	uint64_t worker_bytes; /* used by the worker's start: context, NCCL */
	uint64_t import_bytes;
	uint32_t imports;
	uint32_t device_file;		      /* 1 + N, of /dev/nvidiaN; 0: unknown */
	uint32_t nccl_comms, nccl_comms_idle; /* NCCL communicators, and those in the pool */
	int32_t driver_version, nccl_version; /* 13000: 13.0; 22809: 2.28.9 */
	uint32_t mps;			      /* ncclsvc_mps */
	uint32_t transport;		      /* ncclsvc_transport */
	uint64_t mps_server; /* the same for all processes that share a server; 0: none */
	uint64_t age_ns;     /* in this state */
	char name[NCCLSVC_NAME_BYTES];
	char text[128]; /* last error; may be empty */
	/* ncclsvc_peer_source for communicators of this GPU model; MEASURED: for some of them. */
	uint32_t peer_source;
	uint32_t reserved;
} ncclsvc_device_info;

typedef enum ncclsvc_node_state {
	NCCLSVC_NODE_SELF = 1,
	NCCLSVC_NODE_ALIVE = 2,
	NCCLSVC_NODE_LEFT = 3, /* its daemon has exited cleanly */
	NCCLSVC_NODE_LOST = 4, /* its daemon, or the whole node, died */
} ncclsvc_node_state;

/* A node's daemon. */
typedef struct ncclsvc_node_info {
	uint32_t node;
	uint32_t state; /* ncclsvc_node_state */
	int32_t pid;
	uint32_t host_ranks; /* of the world, on this node */
	uint64_t gone_ns;    /* since it left or was lost; 0: it has not */
	char host[64];
	char address[64];  /* of its connections with other daemons */
	uint64_t heard_ns; /* since its last message, if it is alive */
	uint64_t messages; /* sent to other nodes by the queried node, without keep-alives */
} ncclsvc_node_info;

#define NCCLSVC_FAILURE_RANKS 64 /* that ended because of a failure, and are named */
#define NCCLSVC_FAILURE_BYTES 512

/* A failure, and what followed from it. Times are of CLOCK_REALTIME. */
typedef struct ncclsvc_failure_info {
	uint64_t failure; /* its number, also after a restart of the daemon */
	uint64_t cause;	  /* the failure that led to this one; 0: none did */
	uint64_t unix_ns;
	uint64_t comm;	  /* ncclsvc_comm_info.comm, until the daemon is restarted */
	uint64_t seq;	  /* of the operation; 0 without one */
	uint64_t pending; /* tasks that were pending in an epoch that ended */
	uint32_t kind;	  /* ncclsvc_failure */
	int32_t result;	  /* ncclsvc_result */
	uint32_t field;	  /* ncclsvc_field */
	uint32_t op;	  /* ncclsvc_op, of TASK or a refused operation; else 0 */
	uint32_t epoch, nranks, uid;
	uint32_t ending; /* ncclsvc_ending of the rank */
	int32_t ending_code;
	int32_t rank, pid; /* the rank at fault; -1, 0: none in particular */
	int32_t device;	   /* its GPU; -1: host, or unknown */
	int32_t node;	   /* where it is; -1: this node is alone */
	uint32_t comms;	   /* other communicators whose epochs ended for the same reason */
	uint32_t ended;	   /* ranks that ended within a minute, of which the first are named */
	int32_t ended_ranks[NCCLSVC_FAILURE_RANKS];
	int32_t ended_pids[NCCLSVC_FAILURE_RANKS];
	uint32_t reserved;
	char label[NCCLSVC_NAME_BYTES]; /* the communicator's */
	char host[64];			/* the node's; empty: this node is alone */
	char job[NCCLSVC_JOB_BYTES];	/* as in ncclsvc_comm_info */
	char text[NCCLSVC_FAILURE_BYTES];
	char tenant[NCCLSVC_JOB_BYTES]; /* as in ncclsvc_comm_info */
} ncclsvc_failure_info;

/* How long after the first rank a rank of the asked node came to its communicator's collectives, in
 * the last 30 to 60 seconds. A rank comes when its task has its turn; on GPUs, when it has been
 * submitted and has its turn, whatever its stream does. Operations on the direct transport are not
 * among these operations: kernels count themselves how long they wait, from 50 us on. Where no rank
 * was late by 1 us, and the communicator has no kernels, there is no record. */
typedef struct ncclsvc_lateness_info {
	uint64_t comm;
	int32_t rank, pid;
	uint32_t session, epoch;
	uint32_t node;	       /* the asked one; 0 if it is alone */
	uint32_t nranks;       /* of the communicator */
	uint32_t operations;   /* collectives that the rank came to, from the first late one on */
	uint32_t last;	       /* of these: it came alone, after all other ranks */
	uint32_t kinds;	       /* bits: 1 << ncclsvc_op, of those to which a rank was late */
	uint32_t kernel_waits; /* kernels of the rank that waited longest for this one, which did */
	uint64_t kernel_waited_ns; /* how long they waited for it */
	uint64_t kernel_window_ns; /* in this time; 0: the communicator has no kernels */
	/* The median and the 99th percentile are means of the histogram's bin that they are in. */
	uint64_t sum_ns, median_ns, p99_ns, max_ns;
	uint64_t interval_ns; /* mean time between collectives */
	uint64_t age_ns;      /* since a rank was late */
	/* Operations by lateness: less than 1 us; 1 us; 2 or 3 us; 4 to 7 us; ... ; 2^26 us and
	 * more */
	uint32_t histogram[NCCLSVC_LATENESS_BINS];
} ncclsvc_lateness_info;

typedef enum ncclsvc_draining {
	NCCLSVC_SERVING = 0,
	NCCLSVC_ENDING = 1,  /* it was asked to end, and takes no new work */
	NCCLSVC_DRAINED = 2, /* it takes no new jobs: ncclsvc_drain */
} ncclsvc_draining;

typedef struct ncclsvc_daemon_info {
	char version[NCCLSVC_NAME_BYTES];
	uint16_t protocol_min, protocol_max;
	int32_t pid;
	uint32_t uid;
	uint32_t draining; /* ncclsvc_draining */
	uint64_t uptime_ns;
	uint32_t host_ranks, host_threads;
	uint32_t sessions, sessions_max;
	uint32_t comms, comms_max;
	uint32_t regions, tasks_max;
	uint64_t region_bytes;
	uint64_t tasks_pending, tasks_completed, tasks_failed;
	ncclsvc_status last_failure; /* of any session; result 0: none yet */
	uint64_t last_failure_comm;
	uint64_t last_failure_age_ns;
	uint32_t mps;	     /* ncclsvc_mps_source */
	int32_t mps_pid;     /* of the control daemon, if it is the daemon's own; else 0 */
	uint32_t mps_starts; /* how often the daemon has started one */
	uint32_t mps_losses; /* workers that ended while they used MPS */
	uint64_t mps_age_ns; /* since it was started, taken over or found */
	char mps_text[128];  /* directory of its sockets; NOBODY: why there is none */
} ncclsvc_daemon_info;

#ifdef __cplusplus
}
#endif
#endif
