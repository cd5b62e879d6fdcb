/* SPDX-License-Identifier: Apache-2.0
 * One connection, and the resources of its process. */
#ifndef SESSION_SESSION_H
#define SESSION_SESSION_H

#include <sys/socket.h>
#include <uv.h>

#include "account/account.h"
#include "account/task_table.h"
#include "base/deadlines.h"
#include "base/ending.h"
#include "base/hash.h"
#include "proto/ring.h"

struct communicator;
struct mapping;
struct region_call;
struct sessions;

struct membership {
	struct communicator *comm; /* NULL: free handle */
	int32_t rank;
	struct svc_event_comm event; /* not accepted by the socket so far; comm 0: none */
};

/* A message that the socket did not accept at once. */
struct outgoing {
	struct outgoing *prev, *next;
	int fds[SVC_FDS_MAX];
	unsigned nfds;
	size_t length;
	char message[];
};

enum session_state {
	SESSION_NEW, /* has not said hello */
	SESSION_OPEN,
	SESSION_CLOSING,
};

struct session {
	struct sessions *sessions;
	uint32_t slot, id;
	enum session_state state;
	int fd;
	int32_t pid;
	uint32_t uid;
	struct process process; /* its, once it holds something */
	struct ending ending;	/* at its end */
	uint64_t failure;	/* the last that its process was told of (failures/); 0: none */
	uint64_t failure_ns;
	uint64_t failure_done;		   /* tasks that had succeeded a second later */
	bool failure_settled;		   /* failure_done is known */
	bool admin;			   /* it uses the socket for administration */
	bool refused;			   /* may not use this daemon */
	uint16_t version_min, version_max; /* from HELLO */
	uint16_t version;		   /* of the protocol; before HELLO, the lowest */
	char name[NCCLSVC_NAME_BYTES];
	char job[NCCLSVC_JOB_BYTES];	/* as it says */
	char cgroup[NCCLSVC_JOB_BYTES]; /* of its process, read when it connected */
	ncclsvc_mps mps; /* and the next two: as given when it last joined with a GPU */
	uint64_t mps_server;
	int32_t mps_device;
	struct account *account;
	uint64_t since_ns;
	uv_poll_t poll;
	uv_poll_cb on_poll;
	int polled; /* for these events */
	bool poll_closed, scheduler_gone;
	bool vacated, memory_gone; /* while it ends */
	bool known;		   /* while it ends: the scheduler knows it */
	char lost[64];		   /* why it will be closed; empty: it will not */
	int lost_reason;	   /* for its BYE; 0: none, as the client has closed its end */
	struct outgoing *out;
	uint32_t queued;	 /* total bytes of these */
	struct deadline retry;	 /* when to send them again; in no heap: when the socket has room */
	uint64_t retry_after_ns; /* the last interval between attempts; 0: the last message was sent
				  */
	bool events;		 /* a membership has one */
	struct {
		bool asked; /* by the request being handled */
		size_t length;
		_Alignas(8) char message[SVC_MESSAGE_MAX];
		int fds[SVC_FDS_MAX];
		unsigned nfds;
	} waiting;	     /* the waiting request; length 0: none */
	uint32_t leaving_at; /* while it ends: the next membership to be vacated */
	struct session *prev_waiting, *next_waiting; /* while it is silent, or leaving */
	bool parked;				     /* until its user has time in a turn */
	struct session *prev_parked, *next_parked;
	struct {
		uint32_t number; /* 0: none */
		uint32_t node, what, request_id;
		struct deadline deadline;
	} relayed;	   /* its LIST that another node has yet to answer */
	uint32_t nrelayed; /* the number of the last */
	unsigned cancels;  /* not answered by the scheduler yet */
	unsigned redops;   /* not answered by a worker yet */
	struct session_counts counts;

	struct svc_ring *ring; /* NULL: none */
	size_t ring_size;
	uint32_t ring_fault; /* number of fault_watch */
	uint32_t entries;
	int doorbell, completion;
	int ring_fd;		       /* kept for GPUs' workers; otherwise -1 */
	uint32_t out_of_reach;	       /* bitmap: GPUs whose memory its process cannot map */
	uint32_t gpu_asked, gpu_known; /* bitmaps: workers that were told of the timelines, and that
					  know them */

	bool resumes; /* SVC_RESUME: it survives this daemon */
	bool resumed; /* it has survived another */
	struct svc_resume next_region, next_join, next_plan; /* kind 0: none */
	int next_controls; /* CONTROLS, for the next JOIN; -1: none */

	int bell; /* comm/peer/share_log.c: rings when another member shares memory; -1: none */
	struct mapping *mappings; /* [1..nmappings) */
	uint32_t nmappings, regions;
	uint32_t free_mapping; /* the first unused one; 0: none */
	uint64_t region_bytes;
	uint32_t restoring;		  /* regions that new workers were asked to import again */
	uint32_t unrestored;		  /* of these, regions that could not be imported */
	struct region_call *region_calls; /* waiting for their turn at GPUs' workers (turns.h) */

	struct membership *memberships; /* [1..nmemberships) */
	uint32_t nmemberships, comms;
	uint32_t last_plan; /* handle */
	struct session *prev, *next;
	UT_hash_handle hh; /* by id */
};

/* The caller has taken the account's shares of sessions and fds; the session returns them. admin:
 * connected through the socket for administration. */
struct session *session_create(struct sessions *s, int fd, struct account *account,
			       const struct ucred *cred, bool admin);
/* Has it sent HELLO? */
void session_opened(struct session *c);
/* Its process is to be remembered well enough to tell how it ends. */
void session_watch_process(struct session *c);
/* Sends a reply. fds stay the caller's. */
void session_reply(struct session *c, unsigned opcode, uint32_t request_id, const void *body,
		   size_t size, const int *fds, unsigned nfds);
void session_error(struct session *c, unsigned opcode, uint32_t request_id, int result,
		   const char *format, ...) __attribute__((format(printf, 5, 6)));
/* The request being handled was refused a share. If the user still has memory to be unmapped or
 * descriptors to be closed, which count until then, the request waits and is handled again. It must
 * not have changed anything, and must not be answered now. Until then, no other request of the
 * session is read. */
bool session_wait(struct session *c);
/* A turn of the loop begins; parked sessions continue. */
void session_turn(struct sessions *s);
/* Handles waiting requests again. False: there was not enough time for all of them. */
bool session_wake(struct sessions *s);
/* Reports the epoch's end. At most one event waits for each membership. */
void session_comm_event(struct session *c, const struct svc_event_comm *event);
/* Retries messages that could not be sent, for EXPIRE_TURN_NS; returns when to call again, 0: after
 * the next failure. Visits only sessions whose time has come. */
uint64_t session_retry(struct sessions *s, uint64_t now);
/* Ends the session. A reason other than 0 is sent in an event with the text. */
void session_end(struct session *c, int reason, const char *text);
void session_scheduler_gone(struct session *c);
/* True if the session may see and end what this tenant owns (tenant_may). Administrative sessions
 * may. Root on the main socket is an ordinary user. */
bool session_allows(const struct session *c, const struct tenant *owner);
/* The same if only the owner's user is known: refuses sessions in pods and containers. */
bool session_allows_user(const struct session *c, uint32_t uid);

#endif
