/* SPDX-License-Identifier: Apache-2.0
 * Requests to the daemon, and their replies. */
#ifndef CLIENT_CORE_CALL_H
#define CLIENT_CORE_CALL_H

#include <stdbool.h>

#include "base/error.h"
#include "proto/wire.h"

#define REQUEST_ID_MAX	  UINT32_C(0x7fffffff) /* larger ids are tasks' */
#define REQUEST_ID_FORGET REQUEST_ID_MAX       /* the answer is dropped */

/* The daemon answers by the deadline it was given; this allows for the answer's delivery. */
#define JOIN_GRACE_NS UINT64_C(5000000000)

struct call {
	uint32_t request_id;
	uint16_t opcode;
	bool done;
	/* The request is valid for one daemon only. It fails with DAEMON_LOST if the session is
	 * away, or has reconnected since `connections` (session_connections). */
	bool bound;
	uint32_t connections;
	uint32_t comm_key; /* key of the communicator it rejoins, which may be left meanwhile */
	uint32_t beside;   /* key of the communicator whose epoch's end cancels the call; 0: none */
	int32_t result;
	int fd; /* the reply's fd, owned by the caller; -1 if none */
	/* Runs locked, in the thread that receives a successful reply, before it reads on. */
	void (*on_reply)(ncclsvc_session *s, struct call *call);
	void *arg;
	struct call *next;
	char text[LOST_TEXT]; /* the sentence of an error */
	_Alignas(8) unsigned char body[SVC_MESSAGE_MAX - sizeof(struct svc_header)];
	/* The request, which is sent again if the daemon restarts before it has answered. */
	int request_fd;
	_Alignas(8) unsigned char request[SVC_MESSAGE_MAX - sizeof(struct svc_header)];
	struct list_chunk *chunk; /* for LIST: receives the reply instead of body */
};

struct list_chunk {
	struct svc_list_reply head;
	unsigned char records[SVC_LIST_MESSAGE_MAX - sizeof(struct svc_header) -
			      sizeof(struct svc_list_reply)];
};

/* Ends an unanswered call with CANCELLED: a JOIN by the daemon's answer; other calls, and a JOIN if
 * JOIN_CANCEL cannot be sent, at once with the text. Locked. */
void call_cancel(ncclsvc_session *s, struct call *call, const char *text);
/* Cancels the calls tied to that communicator, whose epoch is over. Locked. */
void calls_cancel_beside(ncclsvc_session *s, uint32_t comm_key);
/* Ends the calls that would rejoin the communicator; what late answers bring is given back. Locked.
 */
void calls_give_up(ncclsvc_session *s, uint32_t comm_key);
/* Sends a request whose answer is dropped. False: it was not sent. Locked. */
bool call_forget(ncclsvc_session *s, unsigned opcode, const void *body);

/* ---- session_socket.c ---- */

/* call_begin sends the request; if it returns OK, call_finish must follow and waits for the reply.
 * Both locked, both yield. fd may be -1 and stays the caller's. */
ncclsvc_result call_begin(ncclsvc_session *s, struct call *call, unsigned opcode, const void *body,
			  int fd, uint64_t deadline);
ncclsvc_result call_finish(ncclsvc_session *s, struct call *call, uint64_t deadline);
ncclsvc_result call_run(ncclsvc_session *s, struct call *call, unsigned opcode, const void *body,
			int fd, uint64_t deadline);

#endif
