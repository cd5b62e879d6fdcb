/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages between a client and ncclsvcd over AF_UNIX SOCK_SEQPACKET. ncclsvc-protocol(7) describes
 * them in words. One datagram is one message: a header, then one struct. Integers are in the
 * machine's byte order (both ends share a kernel). Reserved fields are zero, and checked.
 *
 * Every request gets exactly one reply, with the request's id: opcode | SVC_REPLY and either
 * result 0 and the reply's struct, or a negative result and struct svc_error. Replies may come in a
 * different order than requests. Events are unsolicited, with request id 0.
 *
 * Versions. A build speaks all versions from SVC_PROTOCOL_MIN to SVC_PROTOCOL_MAX (svc_limits.h).
 * HELLO selects the highest version that both sides speak; struct session of the daemon and struct
 * connection of the library store it, and the session memory shows it (struct svc_ring). The
 * tables in wire.c, read by svc_shape_of and svc_event_of, describe each version's messages. The
 * structs here are those of the newest version. A struct grows only at its end, and zero in a new
 * field means the behaviour before the field existed: a sender cuts the struct to the length in the
 * session's version, and a receiver fills in missing bytes with zeros. So the code that handles a
 * message never checks the version. HELLO, struct svc_error and struct svc_event_bye are the same
 * in all versions, since they are read before a version is selected; IDENTIFY has what HELLO
 * lacks.
 *
 * How to add a version:
 * 1. Raise SVC_PROTOCOL_MAX.
 * 2. A new message: its opcode here, its structs in wire_*.h, a row with `since` in wire.c, a case
 *    in request_handle (daemon/server/request.c). If the daemon is older, call_begin fails with
 *    UNSUPPORTED, and the client sends nothing. A longer message: the field, and in wire.c the new
 *    row, whose `before` points to the previous one. A longer record or status: only svc_ring_size,
 *    svc_record_slot and svc_status_slot in ring.h depend on where these are; they then need the
 *    session's version.
 * 3. ncclsvc-protocol(7): the table of opcodes, the message, HISTORY. CHANGELOG.md.
 * 4. tests/unit/test_proto_wire.c: a table of the new version's lengths; those of older versions
 *    never change. tests/integration/test_versions.c: the differences, with the real daemon.
 *    tests/fuzz/make_corpus.py: a seed of the new message. tests/python/ncclsvc_client.py stays a
 *    client of version 1.
 */
#ifndef PROTO_WIRE_H
#define PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ncclsvc_types.h"
#include "svc_limits.h"
#include "wire_comm.h"
#include "wire_list.h"
#include "wire_memory.h"
#include "wire_resume.h"
#include "wire_task.h"

struct svc_header {
	uint32_t length; /* of the whole message, this header included */
	uint16_t opcode;
	uint16_t reserved;
	uint32_t request_id; /* chosen by the client, echoed in the reply */
	int32_t result;	     /* ncclsvc_result in replies, else 0 */
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
	SVC_PLAN_COMMIT = 15,
	SVC_PLAN_DROP = 16,
	SVC_WORLD = 19,
	SVC_REGION_RANGE = 24,
	SVC_REDOP_ADD = 25,
	SVC_REDOP_DEL = 26,
	SVC_JOIN_CANCEL = 27,
	SVC_STAGING = 28,
	SVC_CAPTURED_GROUP_DEL = 29,
	SVC_ABORT = 30,
	SVC_IDENTIFY = 31,
	SVC_DESCRIBE = 32,
	SVC_REFUSED = 33,
	SVC_SHARES = 34,
	SVC_SHARE = 35,
	SVC_SHARED = 36,
	SVC_SHARED_PART = 37,
	SVC_DRAIN = 38,
	SVC_RESUME = 39,
	SVC_ID = 40,
	SVC_CONTROLS = 41,
	SVC_ATTACH_AGAIN = 42,
	SVC_SLEEP = 43,
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

/* Should the process use its GPUs through the MPS that the daemon's workers use, if it has not
 * initialized CUDA yet? */
enum svc_mps_advice {
	SVC_MPS_NONE = 0,	  /* the workers do not use MPS */
	SVC_MPS_JOIN = 1,	  /* set CUDA_MPS_PIPE_DIRECTORY to mps_directory */
	SVC_MPS_OTHER_TENANT = 2, /* they do, but MPS is for one tenant, and not this one */
};

struct svc_hello_reply {
	uint16_t version; /* the version selected */
	uint16_t version_min, version_max;
	uint16_t reserved;
	uint32_t session;
	uint32_t host_ranks;
	uint32_t ring_max;
	uint32_t mps;		   /* enum svc_mps_advice */
	uint64_t region_bytes_max; /* for all sessions of the user */
	char daemon_version[NCCLSVC_NAME_BYTES];
	char mps_directory[NCCLSVC_MPS_DIRECTORY_BYTES]; /* empty unless SVC_MPS_JOIN */
};

/* The name of the session's job, for people: it grants nothing. A second one replaces the first;
 * communicators keep the job that they were joined with. */
struct svc_identify {
	char job[NCCLSVC_JOB_BYTES]; /* printable ASCII (svc_label_ok); empty: none */
};

/* Sent just before the daemon closes the connection. */
struct svc_event_bye {
	int32_t reason;
	uint32_t reserved;
	char text[SVC_TEXT_BYTES];
};

/* The shape of one opcode on the wire. */
struct svc_shape {
	const char *name;
	uint16_t request, reply; /* exact body lengths; an event's is under reply */
	uint8_t request_fds, reply_fds;
	bool records;			/* the reply says how many records follow it */
	uint8_t since;			/* the version that made it so; 0: the first */
	const struct svc_shape *before; /* in versions before `since`; NULL: those lack it */
};

/* The shape that an opcode, given its newest shape, has in the version; NULL: none. */
const struct svc_shape *svc_shape_in(const struct svc_shape *shape, unsigned version);

/* Returns NULL if the version has no such request or event. Thread-safe. */
const struct svc_shape *svc_shape_of(unsigned version, unsigned opcode);
const struct svc_shape *svc_event_of(unsigned version, unsigned opcode);

/* How many bytes of a body of the newest version belong to the session's version. */
size_t svc_shape_cut(const struct svc_shape *shape, size_t size);

/* A side of a connection speaks all versions from min to max. */
struct svc_versions {
	unsigned min, max;
};
/* The highest version that both sides speak; 0: none. */
unsigned svc_version_choose(struct svc_versions ours, struct svc_versions theirs);

enum svc_validity {
	SVC_GOOD,      /* hand the body on */
	SVC_BAD,       /* answer with the error, and continue the session */
	SVC_MALFORMED, /* not a valid frame: end the session */
};

/* Validates a datagram from a client of this version: frame, opcode, body length, number of fds,
 * reserved fields of the header. For SVC_BAD and SVC_MALFORMED, text (SVC_TEXT_BYTES long) receives
 * a sentence. */
enum svc_validity svc_check_request(unsigned version, const void *message, size_t length,
				    unsigned nfds, struct svc_header *header, char *text);

/* Does text[0..size) contain a NUL? */
bool svc_text_ends(const char *text, size_t size);

#endif
