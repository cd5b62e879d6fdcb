/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages between a client and ncclsvcd over AF_UNIX SOCK_SEQPACKET. ncclsvc-protocol(7) tells
 * the same in words. One datagram is one message: a header, then one struct. Integers are in the
 * machine's byte order (both ends share a kernel). Reserved fields are zero, and checked.
 *
 * Every request gets exactly one reply, which carries its serial: opcode | SVC_REPLY and either
 * result 0 and the reply's struct, or a negative result and struct svc_error. Replies may come
 * in another order than requests. Events come unasked, with serial 0.
 *
 * Versions. A build speaks all versions from SVC_PROTOCOL_MIN to SVC_PROTOCOL_MAX (svc_limits.h).
 * HELLO agrees on the highest that both sides speak: struct client of the daemon and struct link of
 * the client library keep it, and the session memory shows it (struct svc_ring). The tables in
 * wire.c, read by svc_shape_of and svc_event_of, say what each version's messages look like.
 * A struct here is that of the newest version. It grows at its end only, and zero in a new field
 * means what was true before the field existed: a sender cuts the struct to the length that the
 * session's version has, a receiver fills what is missing with zeros. The code that handles a
 * message therefore never asks for the version. HELLO, struct svc_error and struct svc_event_bye
 * are the same in all versions, as they are read before there is one.
 *
 * How to add a version:
 * 1. Raise SVC_PROTOCOL_MAX.
 * 2. A new message: its opcode and structs here, a row with its first version in wire.c, a case in
 *    request_handle (daemon/server/request.c). A client that sends it to an older daemon gets
 *    UNSUPPORTED from call_begin, and sends nothing.
 *    A longer message: the field here, and in wire.c the new row, which points to the former one.
 *    A longer record or status: svc_ring_size, svc_record_slot and svc_status_slot in ring.h are
 * the only ones that know where these lie; they then need the session's version.
 * 3. ncclsvc-protocol(7): the table of opcodes, the message, HISTORY. CHANGELOG.md.
 * 4. tests/unit/test_proto_wire.c: a table of the new version's lengths; those of older versions
 *    never change. tests/integration/test_versions.c: what differs, with the real daemon; its
 *    other tests then run the new version by themselves. tests/fuzz/make_corpus.py: a seed of the
 *    new message. tests/python/ncclsvc_client.py stays a client of version 1.
 */
#ifndef PROTO_WIRE_H
#define PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ncclsvc_types.h"
#include "svc_limits.h"

struct svc_header {
	uint32_t length; /* of the whole message, this header included */
	uint16_t opcode;
	uint16_t reserved;
	uint32_t serial; /* chosen by the client, echoed in the reply */
	int32_t result;	 /* ncclsvc_result in replies, else 0 */
};

enum svc_opcode {
	SVC_HELLO = 1, /* first message; nothing else is accepted before it */
	SVC_ATTACH = 2,
	SVC_REGION_ADD = 3,
	SVC_REGION_DEL = 4,
	SVC_JOIN = 5,
	SVC_LEAVE = 6,
	SVC_SPLIT = 7,
	SVC_SUBMIT = 8,
	SVC_LIST = 9,
	SVC_DAEMON_INFO = 10,
	SVC_CANCEL = 11,
	SVC_REGION_CUDA = 12,
	SVC_REGION_CUDA_FD = 13,
	SVC_REGION_LEND = 14,
	SVC_PLAN_COMMIT = 15,
	SVC_PLAN_DROP = 16,
	SVC_WORLD = 19,
	SVC_REGION_SPAN = 24,
	SVC_REDOP_ADD = 25,
	SVC_REDOP_DEL = 26,
	SVC_JOIN_CANCEL = 27, /* from version 2 */
	SVC_OPCODE_END,

	SVC_EVENT_COMM = 0x4001,
	SVC_EVENT_BYE = 0x4002,
	SVC_EVENT_END,

	SVC_REPLY = 0x8000,
};

struct svc_error {
	uint16_t version_min, version_max;		 /* the daemon's */
	uint16_t client_version_min, client_version_max; /* as the client said; 0 before it did */
	char text[SVC_TEXT_BYTES];			 /* one sentence, NUL-terminated */
};

struct svc_hello {
	uint16_t version_min, version_max;
	uint32_t reserved;
	char name[NCCLSVC_NAME_BYTES]; /* for people; NUL-terminated */
};

/* Whether the process should use its GPUs through the MPS that the daemon's workers use, if CUDA is
 * not initialized in it yet. */
enum svc_mps_advice {
	SVC_MPS_NONE = 0, /* the workers use none */
	SVC_MPS_JOIN = 1, /* CUDA_MPS_PIPE_DIRECTORY is to be mps_directory */
	SVC_MPS_OTHER_USER =
		2, /* they do, but a process of this user cannot: MPS serves one user */
};

struct svc_hello_reply {
	uint16_t version; /* the one both speak */
	uint16_t version_min, version_max;
	uint16_t reserved;
	uint32_t session;
	uint32_t host_ranks;
	uint32_t ring_max;
	uint32_t mps;		   /* enum svc_mps_advice */
	uint64_t region_bytes_max; /* for one user, all its sessions together */
	char daemon_version[NCCLSVC_NAME_BYTES];
	char mps_directory[NCCLSVC_MPS_DIRECTORY_BYTES]; /* empty but for SVC_MPS_JOIN */
};

/* Asks for a ring. The reply brings three fds: the session memory (a memfd sealed against
 * shrinking, growing and further sealing; struct svc_ring is at its start), the doorbell eventfd
 * (client writes; the daemon waits for it edge-triggered, and never reads it) and the client's end
 * of the completion socket (daemon writes). Once per session. */
struct svc_attach {
	uint32_t entries; /* power of two, SVC_RING_MIN..ring_max */
	uint32_t reserved;
};

struct svc_attach_reply {
	uint64_t size; /* bytes of the session memory */
	uint32_t entries;
	uint32_t reserved;
};

/* Registers shared memory: one fd, a memfd with F_SEAL_SHRINK, at least `bytes` long, without
 * holes, not hugetlb. The daemon maps it; the client may close its fd. */
enum svc_region_kind {
	SVC_REGION_MEMFD = 0,
	/* Memory of a GPU: */
	SVC_REGION_IPC = 1,	/* cuMemAlloc's, by CUDA IPC handle */
	SVC_REGION_VMM = 2,	/* cuMemCreate's, by file descriptor */
	SVC_REGION_LENT = 3,	/* the daemon's own */
	SVC_REGION_SPANNED = 4, /* several of cuMemCreate's, one behind the other */
};

struct svc_region_add {
	uint64_t bytes;
	uint32_t kind;
	uint32_t reserved;
};

struct svc_region_reply {
	uint32_t region;
	uint32_t reserved;
};

/* Registers a whole allocation of a GPU's memory with that GPU's worker. SVC_REGION_CUDA: made by
 * cuMemAlloc, handle from cuIpcGetMemHandle. SVC_REGION_CUDA_FD: made by cuMemCreate, and one fd,
 * from cuMemExportToShareableHandle; handle is zero. The reply is svc_region_reply. */
struct svc_region_cuda {
	uint64_t bytes;	    /* of the allocation */
	uint64_t base;	    /* the client's address of it, for inspection */
	uint64_t buffer_id; /* CU_POINTER_ATTRIBUTE_BUFFER_ID, for inspection */
	int32_t device;	    /* the daemon's, as SVC_LIST_DEVICES numbers them */
	uint32_t reserved;
	uint8_t handle[64];
};

/* Asks for memory of the daemon's. The reply brings one fd, to be imported as cuMemCreate's memory.
 * It is given back by SVC_REGION_DEL, or with the session. */
struct svc_region_lend {
	uint64_t bytes;
	int32_t device;
	uint32_t reserved;
};

struct svc_region_lend_reply {
	uint32_t region;
	uint32_t reserved;
	uint64_t bytes; /* rounded up: what is to be mapped */
};

/* Several regions of one device as one, mapped one behind the other in the order of parts, for
 * buffers that lie across mappings. Parts are of SVC_REGION_CUDA_FD, or spans themselves; they may
 * be forgotten before the span is. The reply is svc_region_reply. */
#define SVC_SPAN_PARTS	112
#define SVC_SPAN_MAPPED 65536 /* in all, with the parts of spans in it */

struct svc_region_span {
	uint64_t bytes; /* of all parts together */
	uint64_t base;	/* the client's address of it, for inspection */
	int32_t device;
	uint32_t count; /* of parts, from 2; the rest is zero */
	uint32_t parts[SVC_SPAN_PARTS];
};

/* Forgets a region. BUSY while a pending task names it. */
struct svc_region_del {
	uint32_t region;
	uint32_t reserved;
};

#define SVC_DEVICE_HOST (-1)

/* device: SVC_DEVICE_HOST, or a number of SVC_LIST_DEVICES: then the communicator is NCCL's, its
 * members' devices differ, and its tasks move memory of these devices only. All members are of one
 * kind. As ncclCommInitRank: the reply comes when all nranks have joined. With SVC_JOIN_WORLD, id
 * and nranks are zero, and rank -1 asks for any free rank. A member of a broken communicator
 * rejoins it with the same message; its old handle stays valid and is returned again. */
enum svc_join_flags { SVC_JOIN_WORLD = 1 };

struct svc_join {
	uint8_t id[NCCLSVC_ID_BYTES];
	int32_t nranks, rank;
	int32_t device;
	uint32_t flags;
	uint64_t timeout_ns; /* 0: none */
	/* How CUDA uses the device in this process, for inspection; zeros with SVC_DEVICE_HOST. */
	uint64_t mps_server; /* as struct mps has it; 0 unless mps is NCCLSVC_MPS_ACTIVE */
	uint32_t mps;	     /* ncclsvc_mps */
	uint32_t reserved;
};

struct svc_join_reply {
	uint64_t comm_uid; /* as inspection shows it */
	uint32_t comm;	   /* handle in this session; 0: SPLIT with a negative colour */
	uint32_t epoch;
	int32_t nranks, rank;
	uint8_t id[NCCLSVC_ID_BYTES];
};

/* Takes back a JOIN of this session that has not been answered: the rank is free at once, and the
 * JOIN is answered with CANCELLED. NOT_FOUND: no JOIN with this serial waits. From version 2. */
struct svc_join_cancel {
	uint32_t serial;
	uint32_t reserved;
};

struct svc_leave {
	uint32_t comm;
	uint32_t reserved;
};

struct svc_split {
	uint32_t comm;
	int32_t colour; /* negative: takes part, joins nothing */
	int32_t key;
	uint32_t reserved;
	uint64_t timeout_ns; /* 0: none */
};

/* Makes a reduction of a communicator of GPUs: sums of what each rank has multiplied by its scalar,
 * as ncclRedOpCreatePreMulSum. It is this member's until its epoch ends; all members of a task name
 * one of theirs, of whatever number. */
#define SVC_REDOP_MADE	16 /* the first number of those */
#define SVC_REDOPS_MADE 48 /* of one member */

struct svc_redop_add {
	uint32_t comm;
	uint8_t type;
	uint8_t reserved[3];
	uint8_t scalar[8]; /* an element of that type, then zeros */
};

struct svc_redop_reply {
	uint32_t redop;
	uint32_t reserved;
};

/* Tasks that name it have ended, or will fail. */
struct svc_redop_del {
	uint32_t comm;
	uint32_t redop;
};

/* One operation. The same 128 bytes stand in the ring and in SVC_SUBMIT. */
enum svc_record_flags {
	SVC_TASK_MORE = 1, /* more tasks of this task group follow */
	/* With any of these the record's second half counts; in a ring it is not read without. Each
	 * field of it is zero without its flag. */
	SVC_TASK_TIMELINE = 2,
	SVC_TASK_AGREE = 4, /* the members' agreement words must be equal */
	SVC_TASK_PLAN = 8,
	/* GPUs: never by the kernels of NCCL's symmetric windows, which may sum in another order.
	 * Of any member, it holds for all. */
	SVC_TASK_NO_WINDOW = 16,
};
#define SVC_TASK_SECOND_HALF (SVC_TASK_TIMELINE | SVC_TASK_AGREE | SVC_TASK_PLAN)

/* An agreement word: this member takes part, but refuses. Nothing runs, and all learn who it was.
 */
#define SVC_AGREEMENT_REFUSED UINT64_MAX

struct svc_record {
	uint64_t number; /* ring: the task's number, counted from 1, stored last. Socket: any */
	uint32_t comm;
	uint32_t epoch; /* from the JOIN reply; a stale one is refused */
	uint8_t op, type, redop, flags;
	int32_t peer;	/* root or peer rank; -1 where the operation has none */
	uint64_t count; /* elements, counted as NCCL counts them for this operation */
	uint32_t src_region, dst_region;
	uint64_t src_offset, dst_offset; /* bytes */
	uint64_t timeout_ns;		 /* from when the daemon sees it; 0: none */
	/* The second half, a cache line of its own. */
	uint32_t timeline; /* with SVC_TASK_TIMELINE */
	uint32_t plan;	   /* with SVC_TASK_PLAN: the plan's handle in this session */
	uint64_t value; /* starts when timeline.ready >= value; then timeline.done becomes value */
	uint64_t agreement;		/* with SVC_TASK_AGREE, and not 0 then */
	uint32_t plan_group, plan_task; /* with SVC_TASK_PLAN */
	uint64_t reserved[4];
};

/* Commits one member's plan for the present epoch: one fd, a memfd sealed against shrinking, which
 * holds `tasks` entries, those of one group together and groups in order. The reply comes when all
 * members have committed, and their plans fit each other. Tasks of the plan then carry
 * SVC_TASK_PLAN, and are held until their group is whole. */
#define SVC_PLAN_ANY UINT64_MAX

struct svc_plan_task {
	uint32_t group; /* from 0; a group without tasks is allowed */
	uint8_t op;	/* NCCLSVC_SEND or NCCLSVC_RECV */
	uint8_t type;	/* 0 if count is SVC_PLAN_ANY */
	uint16_t reserved;
	int32_t peer;
	uint32_t reserved2;
	uint64_t count; /* elements; SVC_PLAN_ANY: whatever is submitted */
};

struct svc_plan_commit {
	uint32_t comm;
	uint32_t epoch;
	uint32_t groups, tasks;
	uint64_t timeout_ns; /* for the other members; 0: none */
	uint64_t reserved;
};

struct svc_plan_reply {
	uint64_t uid;  /* as inspection shows it */
	uint32_t plan; /* handle in this session */
	uint32_t comm; /* the request's */
};

/* The member runs no more of the plan: what is held of it, or waits for it, is cancelled. */
struct svc_plan_drop {
	uint32_t comm;
	uint32_t plan;
};

/* The reply to SUBMIT comes when the task has ended, with result 0 or the task's result, and
 * struct svc_submit_reply in both cases. (An error before it became a task: struct svc_error.) */
struct svc_submit_reply {
	ncclsvc_status status;
};

enum svc_list_what {
	SVC_LIST_SESSIONS = 1,	 /* ncclsvc_session_info */
	SVC_LIST_COMMS = 2,	 /* ncclsvc_comm_info */
	SVC_LIST_MEMBERS = 3,	 /* ncclsvc_member_info */
	SVC_LIST_TASKS = 4,	 /* ncclsvc_task_info */
	SVC_LIST_REGIONS = 5,	 /* ncclsvc_region_info */
	SVC_LIST_DEVICES = 6,	 /* ncclsvc_device_info */
	SVC_LIST_PLANS = 7,	 /* ncclsvc_plan_info */
	SVC_LIST_PLAN_TASKS = 8, /* ncclsvc_plan_task_info */
	SVC_LIST_NODES = 9,	 /* ncclsvc_node_info; empty: this node is alone */
};

struct svc_list {
	uint32_t what;
	uint32_t reserved;
	uint64_t from; /* 0, or `next` of the piece before */
};

/* `count` records of `record_size` bytes follow: a piece of the list. This is the one message that
 * may have SVC_LIST_MESSAGE_MAX bytes. A newer daemon may send longer records: read what you know
 * and step by record_size. */
struct svc_list_reply {
	uint32_t what;
	uint32_t record_size;
	uint64_t time_ns; /* CLOCK_MONOTONIC, of this piece */
	uint64_t next;	  /* where the next piece begins; 0: this was the last */
	uint32_t count;
	uint32_t reserved;
};

struct svc_daemon_info_request {
	uint64_t reserved;
};

struct svc_daemon_info_reply {
	ncclsvc_daemon_info info;
};

/* Asks what the world communicator is like, before joining it. */
struct svc_world {
	uint64_t reserved;
};

struct svc_world_reply {
	int32_t ranks;			    /* in all */
	int32_t local_ranks;		    /* of a full node; the last one may have fewer */
	int32_t node, nodes;		    /* this one, and how many */
	int32_t data, horizontal, pipeline; /* as configured; data 0: what the others leave */
	uint32_t reserved;
	uint64_t reserved2[4];
};

/* Ends a pending task, all pending tasks of a communicator, or a whole session. Allowed to the
 * owner, to root and to the daemon's own user. A task that runs is let finish. */
enum svc_cancel_kind { SVC_CANCEL_TASK = 1, SVC_CANCEL_COMM = 2, SVC_CANCEL_SESSION = 3 };

struct svc_cancel {
	uint32_t kind;
	uint32_t reserved;
	uint64_t id; /* as inspection shows it */
};

struct svc_cancel_reply {
	uint64_t cancelled; /* how many tasks ended */
};

/* The communicator's epoch is over (result says why, rank and pid who): rejoin it. */
struct svc_event_comm {
	uint32_t comm;
	uint32_t epoch; /* the one that ended */
	int32_t reason; /* ncclsvc_result */
	int32_t rank, pid;
	uint32_t reserved;
	/* From version 2: */
	uint32_t lost_node; /* 1 + the node whose daemon is gone, and rank with it; 0: none */
	uint32_t reserved2;
};

/* Last words before the daemon closes the connection. */
struct svc_event_bye {
	int32_t reason;
	uint32_t reserved;
	char text[SVC_TEXT_BYTES];
};

/* What one opcode looks like on the wire. */
struct svc_shape {
	const char *name;
	uint16_t request, reply; /* exact body lengths; an event's is that of a reply */
	uint8_t request_fds, reply_fds;
	bool records; /* the reply says how many records follow it */
	uint8_t since;
	const struct svc_shape *before; /* in versions before `since`; NULL: those lack it */
};

/* NULL: the version has no such request, no such event. Thread-safe. */
const struct svc_shape *svc_shape_of(unsigned version, unsigned opcode);
const struct svc_shape *svc_event_of(unsigned version, unsigned opcode);

/* How much of a body of the newest version the session's version has. */
size_t svc_shape_cut(const struct svc_shape *shape, size_t size);

/* The highest version that a peer which speaks min to max has in common with this build; 0: none.
 */
unsigned svc_version_choose(unsigned min, unsigned max);

enum svc_verdict {
	SVC_GOOD,      /* hand the body on */
	SVC_BAD,       /* answer with the error, go on with the session */
	SVC_MALFORMED, /* not a frame at all: end the session */
};

/* Judges a datagram that a client of this version sent: frame, opcode, body length, number of fds,
 * reserved fields of the header. On SVC_BAD and SVC_MALFORMED, text (SVC_TEXT_BYTES long) holds a
 * sentence. */
enum svc_verdict svc_check_request(unsigned version, const void *message, size_t length,
				   unsigned nfds, struct svc_header *header, char *text);

/* True if a NUL stands in text[0..size). */
bool svc_text_ends(const char *text, size_t size);

#endif
