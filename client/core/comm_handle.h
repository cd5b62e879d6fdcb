/* SPDX-License-Identifier: Apache-2.0
 * Communicator handles, and what the daemon reports about them. */
#ifndef CLIENT_CORE_COMM_HANDLE_H
#define CLIENT_CORE_COMM_HANDLE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/api.h"
#include "proto/names.h"
#include "proto/wire.h"

/* A reduction that the program has created. */
struct made_redop {
	bool made;
	uint8_t type;
	uint8_t scalar[8]; /* an element of that type, followed by zeros */
	uint32_t number;   /* the daemon's; 0: the daemon does not have it yet */
};

/* How its kernels use the GPU (ncclsvc_comm_tuning_next). */
struct comm_tuning {
	uint8_t blocks; /* the most of a kernel; 0: no limit */
	bool copy_engines;
};

struct ncclsvc_comm {
	ncclsvc_session *session;
	ncclsvc_comm *next;
	uint32_t key;	 /* unique in the process: never reused in a session */
	uint32_t handle; /* number in the daemon's session; 0: none yet */
	uint64_t uid;
	uint32_t epoch;
	int nranks, rank;
	int device;	       /* of this process, or NCCLSVC_DEVICE_HOST */
	int32_t daemon_device; /* the daemon's number for it */
	bool world, split;
	ncclsvc_unique_id id;
	_Atomic uint64_t timeout_ns;
	uint64_t seq;		   /* number of the next task in this epoch */
	uint64_t collectives;	   /* number of collectives in this epoch */
	struct made_redop *redops; /* [SVC_REDOPS_MADE], of this epoch; NULL: none yet */
	struct capture
		*capture; /* its graphs (cuda/capture/capture.h); NULL: nothing captured yet */
	/* Its kernels (cuda/direct/peer.h), and the largest operation, in bytes, that they do. */
	struct peer *peer;
	uint32_t peer_bytes;
	struct comm_tuning tuning;
	/* not OK: the epoch is over, and this is why */
	ncclsvc_result broken;
	uint64_t broken_ns;
	ncclsvc_status end;
	bool broken_reported; /* ncclsvc_comm_error has reported it */
	bool end_reported;    /* some call has reported it: later calls get STALE_EPOCH */
	/* If the epoch can be continued after a restart of the daemon (comm/resume.c): */
	uint32_t lineage;   /* its name; 0: it cannot be continued */
	bool spoilt;	    /* an operation has failed, so it cannot be continued any more */
	bool leaving;	    /* the program is leaving it */
	bool resuming;	    /* the members must compare what they have done */
	bool suspended;	    /* another node's daemon has ended: the watcher continues the epoch */
	bool held;	    /* it is doing so, and this node's daemon holds the tasks */
	bool asleep;	    /* by ncclsvc_comm_suspend (comm/suspend.c) */
	bool in_transition; /* a thread is suspending or resuming it */
	uint64_t restores;  /* while asleep: the process's restores when it was suspended */
	int32_t first_here; /* the lowest rank on this node */
	uint64_t splits;    /* SPLITs that have been answered */
	uint64_t plans;	    /* plans that have been committed */
	uint64_t order;	    /* collectives so far, in all epochs of the lineage */
	/* [4 * nranks]: Sends to each rank, Recvs from each rank; and then the same of plans, where
	 * an iteration counts as a whole when it begins */
	uint64_t *messages;
	uint32_t counts;   /* changes when these begin anew */
	uint64_t *damaged; /* collectives that a killed daemon has left half done */
	size_t ndamaged;
	char why[SVC_TEXT_BYTES]; /* why it was not continued; empty: it was */
	uint32_t too_late; /* the last epoch that an operation came too late for (refusal.h) */
	char label[NCCLSVC_NAME_BYTES];
};

/* The number of the next operation in its order (struct slot). */
static inline uint64_t comm_count(ncclsvc_comm *comm, bool p2p, bool send, int32_t peer)
{
	if (!comm->messages)
		return 0;
	return p2p ? comm->messages[2 * (size_t)peer + !send]++ : comm->order++;
}

/* The count of planned Sends to the rank, or Recvs from it. comm->messages is not NULL. */
static inline uint64_t *comm_planned(const ncclsvc_comm *comm, bool send, int32_t peer)
{
	return &comm->messages[2 * ((size_t)comm->nranks + (size_t)peer) + !send];
}

/* NULL: the program has created no such reduction in this epoch. Locked. */
static inline struct made_redop *comm_redop(const ncclsvc_comm *comm, unsigned redop)
{
	struct made_redop *at = comm->redops && svc_redop_made(redop)
					? &comm->redops[redop - SVC_REDOP_MADE]
					: NULL;
	return at && at->made ? at : NULL;
}

void comm_free(ncclsvc_comm *comm);
ncclsvc_comm *comm_by_handle(const ncclsvc_session *s, uint32_t handle); /* locked */
ncclsvc_comm *comm_by_key(const ncclsvc_session *s, uint32_t key);	 /* locked */
void comm_unlink(ncclsvc_session *s, const ncclsvc_comm *comm);		 /* locked */
bool join_reply_valid(const struct svc_join_reply *reply);
/* Derives another id: the same for all who derive it with the same key. */
void id_derive(const ncclsvc_unique_id *from, uint64_t key, ncclsvc_unique_id *to);
const char *comm_label(const ncclsvc_session *s, uint32_t key); /* locked */
void comms_free(ncclsvc_session *s);

/* ---- epoch.c ---- */

/* Begins a new epoch. Locked. */
void comm_apply(ncclsvc_session *s, ncclsvc_comm *comm, const struct svc_join_reply *reply);
/* OK, or an error with a sentence if the epoch is over: its cause if no call has reported that yet,
 * else STALE_EPOCH. Locked. */
ncclsvc_result comm_check(ncclsvc_comm *comm);
/* OK, or the cause of the epoch's end, with a sentence. Locked. */
ncclsvc_result comm_end(const ncclsvc_comm *comm);
void comm_event(ncclsvc_session *s, const struct svc_event_comm *event); /* locked */
/* Leaves the communicator that a late reply to JOIN or SPLIT brought after its caller had given up.
 * Locked. */
void comm_give_back(ncclsvc_session *s, const struct svc_join_reply *reply);
void comms_break(ncclsvc_session *s); /* all of them, because the daemon is lost; locked */

#endif
