/* SPDX-License-Identifier: Apache-2.0
 * Requests to the daemon, and their replies. */
#ifndef CLIENT_CORE_CALL_H
#define CLIENT_CORE_CALL_H

#include <stdbool.h>

#include "base/error.h"
#include "proto/wire.h"

struct call {
	uint32_t serial;
	uint16_t opcode;
	bool done;
	uint32_t comm_key; /* of the communicator that it rejoins, which may be left meanwhile */
	uint32_t beside;   /* of one whose epoch's end cancels it; 0: none */
	int32_t result;
	int fd; /* of the reply; the caller's, -1 if none */
	/* Runs locked in the thread that receives a good reply, before it reads on */
	void (*on_reply)(ncclsvc_session *s, struct call *call);
	void *arg;
	struct call *next;
	char text[LOST_TEXT]; /* of an error */
	_Alignas(8) unsigned char body[SVC_MESSAGE_MAX - sizeof(struct svc_header)];
	struct list_chunk *chunk; /* of LIST: where the reply goes, instead of body */
};

struct list_chunk {
	struct svc_list_reply head;
	unsigned char records[SVC_LIST_MESSAGE_MAX - sizeof(struct svc_header) -
			      sizeof(struct svc_list_reply)];
};

/* Sends the request; call_finish waits for the reply. Both locked, both yield. call_begin returns
 * OK when call_finish must follow. fd may be -1 and stays the caller's. */
ncclsvc_result call_begin(ncclsvc_session *s, struct call *call, unsigned opcode, const void *body,
			  int fd, uint64_t deadline);
ncclsvc_result call_finish(ncclsvc_session *s, struct call *call, uint64_t deadline);
ncclsvc_result call_run(ncclsvc_session *s, struct call *call, unsigned opcode, const void *body,
			int fd, uint64_t deadline);
/* Ends a call that has not been answered with CANCELLED: a JOIN by the daemon's answer, others, and
 * where the daemon knows no JOIN_CANCEL, at once, with the text. Locked. */
void call_cancel(ncclsvc_session *s, struct call *call, const char *text);
/* Cancels the calls beside that communicator, whose epoch is over. Locked. */
void calls_cancel_beside(ncclsvc_session *s, uint32_t comm_key);
/* Ends the calls that would rejoin the communicator; late answers are given back. Locked. */
void calls_give_up(ncclsvc_session *s, uint32_t comm_key);
/* A request without a caller: its answer is dropped. False: it was not sent. Locked. */
bool call_forget(ncclsvc_session *s, unsigned opcode, const void *body);

#endif
