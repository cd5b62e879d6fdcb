/* SPDX-License-Identifier: Apache-2.0
 *
 * The supervisor's data, all of one thread.
 *
 *   server.c   listening, accepting, the executor's events, deadlines
 *   client.c   one connection: reading, replying, ending
 *   request.c  what each message does
 *   comm*.c    communicators: join, rejoin, leave, split, and the death of members
 *   memory.c   session memory and regions, quotas
 *   plan*.c    plans: committed, matched, terminated
 *   list.c     snapshots for inspection
 *   gpu*.c     the GPUs' workers, their communicators and memory
 *   cluster/   the other nodes
 */
#ifndef DAEMON_SERVER_STATE_H
#define DAEMON_SERVER_STATE_H

#include <uthash.h>

#include "account/account.h"
#include "coord/missing.h"
#include "account/task_table.h"
#include "ring.h"
#include "sched/executor.h"
#include "server.h"
#include "worker/queue.h"

#define GPUS_MAX 16

struct client;
struct cluster;
struct control_break;
struct control_parts;
struct control_start;
struct gpu;
struct physical;
struct plan;
struct staging;

struct mapping {
	bool used;
	bool leaving;  /* the executor was asked to let it go */
	bool pending;  /* a GPU's worker was asked to import it */
	uint32_t kind; /* enum svc_region_kind */
	int32_t device;
	int fd;		  /* GPU memory's; -1: none */
	void *base;	  /* host memory, as mapped here */
	uint64_t address; /* GPU memory, as the worker mapped it; 0: not there */
	uint64_t import;  /* of the last request for that: an answer to an older one is late */
	uint64_t bytes, buffer_id;
	uint64_t since_ns;
	uint32_t fault;	    /* number of fault_watch */
	uint8_t handle[64]; /* CUDA IPC */
	struct span *span;  /* of a span, else NULL */
};

struct seat {
	uint32_t state;	       /* ncclsvc_member_state */
	struct client *client; /* NULL: absent or dead */
	uint32_t handle;       /* in client->memberships */
	uint32_t serial;       /* of the JOIN that waits */
	uint64_t deadline_ns;  /* of that; 0: none */
	uint64_t since_ns;     /* when it came */
	int32_t pid;	       /* the last holder's */
	int32_t device;
	int32_t node; /* of the epoch's member, if that is another one; else -1 */
	int32_t far_pid;
	uint64_t redops; /* bits: its worker may have made them, and not been told to let them go */
	bool fresh;	 /* this JOIN made the handle: it goes if the JOIN fails */
	bool overdue;	 /* its home was asked who is late */
	bool late;	 /* its JOIN's deadline has passed in this attempt of the members to join */
};

struct split_request {
	bool here;
	int32_t colour, key;
	uint32_t serial;
	uint64_t deadline_ns;
	bool overdue; /* its home was asked who is late */
};

enum muster_state { MUSTER_NONE, MUSTER_READY, MUSTER_OVER };

/* A plan that waits for the other members'. */
struct commit {
	bool here;
	bool overdue; /* its home was asked who is late */
	uint32_t serial;
	uint64_t deadline_ns;
};

struct communicator {
	struct server *server;
	uint32_t slot;
	uint64_t uid;
	uint8_t id[NCCLSVC_ID_BYTES];
	char label[NCCLSVC_NAME_BYTES];
	bool world;
	bool cuda;		   /* its members' devices are GPUs */
	bool acquiring;		   /* waits for its physical communicator */
	unsigned reply_opcode;	   /* what its members wait for: JOIN or SPLIT */
	struct physical *physical; /* while an epoch runs or is about to */
	uint32_t owner;		   /* uid */
	struct account *account;   /* that its ranks count for */
	uint32_t nranks, epoch;
	uint32_t state;	    /* ncclsvc_comm_state */
	struct seat *seats; /* [nranks] */
	uint32_t joining, occupied;
	struct refusal refused; /* the last of this attempt to join */
	bool late_reported;	/* that this attempt came to nothing in time */
	bool running;		/* the executor has it, up to EVENT_EPOCH_GONE */
	bool ended;		/* ... and was told that the epoch is over */
	uint64_t ended_ns;
	struct board_entry *board;   /* of the epoch that runs */
	struct split_request *split; /* [nranks]; NULL: none under way */
	uint32_t splitting;
	struct plan *plan;	/* in force, and the executor's; NULL: none */
	struct plan *forming;	/* NULL: none */
	struct commit *commits; /* [nranks]; NULL: none waits */
	uint32_t committing;
	uint32_t plan_round; /* with other nodes: verdicts heard in this epoch */
	bool plan_lost;	     /* this round's was given up here, and the verdict has not come */
	uint64_t since_ns, idle_ns;
	/* With other nodes: */
	uint32_t remote;	     /* members of the epoch on other nodes */
	struct control_start *start; /* all have joined; NULL: not yet, or it has begun */
	enum muster_state muster;    /* of GPUs across nodes: what the registrar knows of start */
	struct control_break *start_break; /* that is over already */
	UT_hash_handle hh;		   /* by id */
};

struct membership {
	struct communicator *comm; /* NULL: free handle */
	int32_t rank;
	struct svc_event_comm event; /* that the socket did not take at once; comm 0: none */
};

/* A message that the socket did not take at once. */
struct outgoing {
	struct outgoing *prev, *next;
	int fds[SVC_FDS_MAX];
	unsigned nfds;
	size_t length;
	char message[];
};

enum client_state {
	CLIENT_NEW, /* has not said hello */
	CLIENT_OPEN,
	CLIENT_CLOSING,
};

struct client {
	struct server *server;
	uint32_t slot, id;
	enum client_state state;
	int fd;
	int32_t pid;
	uint32_t uid;
	bool refused;			   /* may not use this daemon */
	uint16_t version_min, version_max; /* as it said */
	char name[NCCLSVC_NAME_BYTES];
	ncclsvc_mps mps; /* and the next two: as it said when it joined with a GPU last */
	uint64_t mps_server;
	int32_t mps_device;
	struct account *account;
	uint64_t since_ns;
	uv_poll_t poll;
	bool poll_closed, executor_gone;
	bool known;	 /* at its end: the executor has it */
	char lost[64];	 /* why it is to be closed; empty: it is not */
	int lost_reason; /* for its BYE; 0: none, nobody would read it */
	struct outgoing *out;
	uint32_t queued;     /* bytes of those */
	uint64_t retry_ns;   /* when to send them again; 0: when the socket has room */
	bool events;	     /* some membership has one */
	uint32_t leaving_at; /* at its end: the next membership to be vacated */
	struct client *prev_leaving, *next_leaving;
	unsigned cancels; /* that the executor has not answered */
	unsigned redops;  /* that a worker has not */
	struct session_counts counts;

	struct svc_ring *ring; /* NULL: none */
	size_t ring_size;
	uint32_t ring_fault; /* number of fault_watch */
	uint32_t entries;
	int doorbell, completion;
	int ring_fd; /* kept for GPUs' workers; else -1 */
	uint32_t gpu_asked,
		gpu_known; /* bits: workers that were told of the timelines, and have them */

	struct mapping *mappings; /* [1..nmappings) */
	uint32_t nmappings, regions;
	uint64_t region_bytes;

	struct membership *memberships; /* [1..nmemberships) */
	uint32_t nmemberships, comms;
	uint32_t last_plan; /* handle */
	struct client *prev, *next;
};

struct listener {
	uv_poll_t poll;
	int fd;
	struct server *server;
	struct listener *next;
};

struct server {
	uv_loop_t *loop;
	const struct config *config;
	const char *path; /* of its socket: what belongs to this daemon alone is beside it */
	struct executor *executor;
	uv_async_t events, faults;
	uv_timer_t timer;
	uint64_t next_deadline_ns; /* what the timer is set for; 0: nothing */
	struct listener *listeners;
	int spare_fd; /* given up for a moment to turn a connection away when fds run out */
	struct client *clients;
	struct client **by_slot; /* [SVC_SESSIONS_MAX] */
	uint32_t nclients;
	bool retries;		/* some client has retry_ns */
	struct client *leaving; /* that still hold memberships */
	uv_idle_t leave;
	uint32_t last_session;
	struct accounts accounts;
	struct communicator *comms;	    /* by id */
	struct communicator **comm_by_slot; /* [SVC_COMMS_MAX] */
	uint32_t ncomms;
	uint64_t last_comm, last_plan;
	struct plan *plans;
	struct communicator *world;
	struct cluster *cluster; /* NULL: this node is alone */
	uint32_t world_first;	 /* this node's first rank in the world */
	struct gpu *gpus[GPUS_MAX];
	uint32_t ngpus;
	struct gpu_mps *mps; /* NULL: there are no GPUs */
	struct physical *physicals;
	bool lanes[WORKER_LANES]; /* in use */
	uint64_t makings;	  /* so far */
	struct staging *staging;  /* that device memory goes through; NULL: NCCL carries it */
	uint64_t last_import;
	uint64_t start_ns;
	bool draining, closing;
	unsigned handles; /* libuv handles still open */
	void (*drained)(void *arg);
	void *drained_arg;
	void (*pong)(void *arg);
	void *pong_arg;
};

/* server.c */
void server_command(struct server *s, const struct command *c);
/* Makes sure that deadlines are looked at by then. */
void server_deadline(struct server *s, uint64_t at_ns);
struct client *server_find(struct server *s, uint32_t id);
/* May this client act on what belongs to uid? */
bool server_allows(const struct client *c, uint32_t uid);

/* client.c */
/* The account's share of sessions and of fds was taken; the client gives it back. */
struct client *client_create(struct server *s, int fd, struct account *account,
			     const struct ucred *cred);
/* Sends a reply. fds stay the caller's. */
void client_reply(struct client *c, unsigned opcode, uint32_t serial, const void *body, size_t size,
		  const int *fds, unsigned nfds);
void client_error(struct client *c, unsigned opcode, uint32_t serial, int result,
		  const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Tells of the epoch's end. At most one event waits for each membership. */
void client_comm_event(struct client *c, const struct svc_event_comm *event);
/* Sends again what could not be sent; returns when to call next, 0: when something else fails. */
uint64_t client_retry(struct server *s, uint64_t now);
/* Ends the session. A reason other than 0 is told in an event with the text. */
void client_close(struct client *c, int reason, const char *text);
void client_executor_gone(struct client *c);

/* request.c */
void request_handle(struct client *c, const struct svc_header *h, const void *body, int *fds);

/* comm.c */
int comm_create_world(struct server *s);
void comm_join(struct client *c, uint32_t serial, const struct svc_join *j);
void comm_leave(struct client *c, uint32_t serial, uint32_t handle);
void comm_split(struct client *c, uint32_t serial, const struct svc_split *r);
/* Vacates the seats of a client that is gone, until then at the most. True: all of them. */
bool comm_client_gone(struct client *c, uint64_t until_ns);
void comm_epoch_gone(struct server *s, uint32_t slot);
void comm_epoch_dirty(struct server *s, uint32_t slot);
/* Ends what is overdue; returns the next deadline, 0 for none. */
uint64_t comm_expire(struct server *s, uint64_t now);
/* What a communicator of GPUs waited for may be there now. */
void comm_gpu_ready(struct server *s);
void comm_session_known(struct client *c);
/* why: what failed, if result is not OK. */
void comm_physical_ready(struct communicator *m, int result, const char *why);
/* A member's GPU, or NCCL, failed: the epoch that runs is over for all. */
void comm_gpu_lost(struct communicator *m, int result, int32_t rank);
/* Ends every epoch for this reason, so that no member takes the blame. */
void comm_close_all(struct server *s, int reason);
/* Other nodes: all have joined; the epoch was ended by another node; a member there left; the node
 * is gone; the engine could not go on; the home refuses a JOIN, a SPLIT; or tells who joins what.
 */
void comm_gathered(struct communicator *m, const struct control_start *start);
void comm_broken_elsewhere(struct communicator *m, const struct control_break *b);
void comm_left_elsewhere(struct communicator *m, int32_t rank);
void comm_node_lost(struct communicator *m, uint32_t node);
void comm_span_failed(struct server *s, uint32_t slot, uint32_t epoch, int result, int32_t node);
void comm_refuse_join(struct server *s, struct communicator *m, uint32_t rank, int result,
		      const char *text);
void comm_split_refused(struct communicator *m, int result, const char *text);
void comm_split_parts(struct communicator *m, const struct control_parts *p);
void comm_free_all(struct server *s);

/* plan.c */
void plan_commit(struct client *c, uint32_t serial, const struct svc_plan_commit *r, int fd);
void plan_terminate(struct client *c, uint32_t serial, const struct svc_plan_drop *r);
void plan_dropped(struct server *s, uint32_t asker, uint32_t serial);
void plan_gone(struct server *s, struct plan *p);
void plan_free_all(struct server *s);

/* memory.c */
/* Has the loop make its threads: without memory, later, it would abort. */
void memory_start(struct server *s);
void memory_attach(struct client *c, uint32_t serial, const struct svc_attach *a);
void memory_add(struct client *c, uint32_t serial, const struct svc_region_add *r, int fd);
void memory_remove(struct client *c, uint32_t serial, uint32_t region);
void memory_removed(struct client *c, uint32_t serial, uint32_t region, bool gone);
void memory_free_all(struct client *c);
/* Ends the sessions whose memory has failed (fault.h). */
void memory_fail(struct server *s);
/* The number of a free entry of c->mappings; 0: the session has its limit. */
uint32_t memory_free_region(struct client *c);
/* Counts a region of this kind, before it is made, for the session and its user. False: an error
 * was sent. */
bool memory_take(struct client *c, unsigned opcode, uint32_t serial, uint32_t kind, uint64_t bytes);
void memory_give(struct client *c, uint32_t kind, uint64_t bytes);

/* list.c */
void list_send(struct client *c, uint32_t serial, uint32_t what, uint64_t from);
void list_daemon(struct client *c, uint32_t serial);

/* world.c */
void world_tell(struct client *c, uint32_t serial);

#endif
