/* SPDX-License-Identifier: Apache-2.0
 * Communicators: the handles, and what the daemon says of them. */
#ifndef CLIENT_CORE_COMM_H
#define CLIENT_CORE_COMM_H

#include <stdbool.h>

#include "base/api.h"
#include "proto/wire.h"

struct ncclsvc_comm {
	ncclsvc_session *session;
	ncclsvc_comm *next;
	uint32_t key;	 /* in this process: never reused in a session */
	uint32_t handle; /* in the daemon's session; 0: none yet */
	uint64_t uid;
	uint32_t epoch;
	int nranks, rank;
	int device;	       /* of this process; NCCLSVC_DEVICE_HOST */
	int32_t daemon_device; /* the daemon's number for it */
	bool world, split;
	ncclsvc_unique_id id;
	uint64_t timeout_ns;
	uint64_t seq;	      /* of the next task in this epoch */
	uint64_t collectives; /* in this epoch */
	/* The memory that its kernels share (cuda/peer.h), and the most bytes of an operation that
	 * is theirs.
	 */
	struct peer *peer;
	uint32_t peer_bytes;
	struct peer *bare; /* without kernels: what CUDA graphs need in its place; NULL: none */
	/* Not OK: the epoch is over and why. */
	ncclsvc_result broken;
	ncclsvc_status end;
	bool broken_told; /* by ncclsvc_comm_error */
	bool end_told;	  /* by any call: others are STALE_EPOCH */
	char label[NCCLSVC_NAME_BYTES];
};

static inline struct peer *comm_captures(const ncclsvc_comm *comm)
{
	return comm->peer ? comm->peer : comm->bare;
}

ncclsvc_comm *comm_by_handle(const ncclsvc_session *s, uint32_t handle); /* locked */
ncclsvc_comm *comm_by_key(const ncclsvc_session *s, uint32_t key);	 /* locked */
void comm_unlink(ncclsvc_session *s, const ncclsvc_comm *comm);		 /* locked */
bool join_reply_valid(const struct svc_join_reply *reply);
/* A new epoch begins. Locked. */
void comm_apply(ncclsvc_session *s, ncclsvc_comm *comm, const struct svc_join_reply *reply);
/* OK, or the epoch is over: what has ended it if no call has told that, else STALE_EPOCH; with a
 * sentence. Locked. */
ncclsvc_result comm_check(ncclsvc_comm *comm);
/* OK, or what has ended the epoch, with a sentence. Locked. */
ncclsvc_result comm_end(const ncclsvc_comm *comm);
void comm_event(ncclsvc_session *s, const struct svc_event_comm *event); /* locked */
/* Leaves what a reply to JOIN or SPLIT brought that came too late for its caller. Locked. */
void comm_give_back(ncclsvc_session *s, const struct svc_join_reply *reply);
/* Another id, made of this one: the same for all who make it with the same key. */
void id_derive(const ncclsvc_unique_id *from, uint64_t key, ncclsvc_unique_id *to);
const char *comm_label(const ncclsvc_session *s, uint32_t key); /* locked */
void comms_break(ncclsvc_session *s); /* all: the daemon is lost; locked */
void comms_free(ncclsvc_session *s);

#endif
