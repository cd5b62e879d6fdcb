/* SPDX-License-Identifier: Apache-2.0
 * Simulates launches on GPUs of several nodes, in one thread and virtual time. The sequencers
 * (daemon/coord/sequencer.c) are the daemon's own; node.c, request.c and order.c model what
 * daemon/sched does on each node: which operations it posts, requests, withdraws and launches.
 * Random programs of several processes on each node (program.c) run over channels that delay
 * messages (channel.c). check.c decides whether the result is correct. */
#ifndef LAUNCHES_H
#define LAUNCHES_H

#include <stdbool.h>
#include <stdint.h>

#include "coord/sequencer.h"
#include "coord/vote.h"
#include "schedules.h"

#define NODES_MAX 5
#define PROCESSES 2 /* per node */
#define RANKS_MAX (NODES_MAX * PROCESSES)
#define COMMS_MAX 6
#define TASKS_MAX 2048

/* ---- Mistakes planted in the model ---- */

enum plant {
	PLANT_NONE,
	PLANT_LOSE_LAUNCH,
	PLANT_LOSE_FAILED,
	PLANT_LOSE_ASK,
	PLANT_LOSE_CLOSED,
	PLANT_LOSE_WITHDRAW,
	PLANT_LOSE_LEAVE,
	PLANT_OVERTAKE,
	PLANT_STATUS,
	PLANT_MISSING,
	PLANT_NO_NEW_REQUEST,
	PLANT_NO_GROUP,
	PLANT_LATE_WITHDRAW,
	PLANTS,
};
/* Whether this mistake is planted, and should happen now. */
bool plant_now(enum plant p);

/* ---- program.c ---- */

/* A communicator across nodes. */
struct comm_plan {
	uint64_t id;
	uint32_t nnodes, nodes[NODES_MAX]; /* by place: in the order of their first ranks */
	uint32_t nranks, place_of[RANKS_MAX], process_of[RANKS_MAX];
};

enum place { UNSENT, IN_QUEUE, AT_HEAD, POSTED, RUNNING, LAUNCHED, ENDED };

struct match;

struct task {
	struct task *prev, *next; /* in its member's queue */
	struct task *next_in_group;
	uint32_t node, comm, rank, process, group;
	bool pair, sends;
	uint32_t peer;
	struct svc_record record;
	enum place place;
	bool tombstone; /* it has ended, but still takes its turn */
	bool told;	/* its status is the operation's on all nodes */
	bool has_key;	/* it was posted, with this key: */
	struct operation_key key;
	uint64_t deadline;
	struct match *match;
	ncclsvc_status status;
};

struct profile {
	uint64_t delay;		    /* maximum delay of messages */
	bool strays;		    /* processes omit, swap or change tasks */
	bool deadlines, cancels;    /* tasks have deadlines, or are cancelled */
	bool leaves, dies, regular; /* regular: none of all these */
};
extern struct profile profile;
extern struct comm_plan comms[COMMS_MAX];
extern uint32_t ncomms, nnodes;
extern struct task tasks[TASKS_MAX];
extern uint32_t ntasks;

/* Like schedule_run, for two nodes that group operations so that no order suits both: while the
 * groups wait, deadlines end them. */
bool circle_run(uint64_t seed);
void trace(uint32_t node, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool same_key(const struct operation_key *a, const struct operation_key *b);
/* Ends the communicator on all nodes soon. */
void program_end_comm(uint32_t comm);

/* ---- channel.c ---- */

void *make(size_t size);
enum message_kind { REQUEST, WITHDRAW, LEAVE, GRANTED, OVER, LAUNCH, FAILED, ASK, CLOSED, GOES_ON };

struct message {
	uint32_t from, to;
	enum message_kind kind;
	uint64_t internode_id; /* of the communicator */
	struct operation_key key;
	uint64_t number, grant;
	bool more;
	struct failed_note note; /* or only its status */
	uint32_t n, nodes[NODES_MAX];
	struct request_entry entries[]; /* of GRANTED: record.number is the grant */
};

void channel_begin(void);
struct message *message_make(uint32_t from, uint32_t to, enum message_kind kind, uint32_t nentries);
/* Takes ownership of the message. */
void channel_send(struct message *m);
void channel_lose(uint32_t node);

/* ---- node.c and request.c ---- */

struct launch_request {
	struct launch_request *prev, *next;
	uint64_t number, grant;
	bool ordered;
	uint32_t n;
	struct request_entry entries[];
};

/* An operation of several nodes, as one of them sees it. */
struct match {
	struct match *prev, *next;
	struct local_comm *at;
	struct operation_key key;
	enum vote_kind vote;
	bool asked, resolved;
	bool matched; /* may be launched, together with the operations connected to it */
	struct launch_request *request;
	uint64_t visit;
	bool known_failed; /* the sequencer has announced its failure */
	ncclsvc_status status;
	struct failed_note note; /* of VOTE_FAILED */
	uint32_t ntasks;
	struct task *tasks[PROCESSES];
};

struct member {
	struct task *queue;
	uint32_t head; /* number of tasks whose turn it is */
	struct task *collective;
};

/* A communicator on one node. */
struct local_comm {
	const struct comm_plan *plan;
	uint32_t index, node, me, here; /* here: ranks */
	struct member members[RANKS_MAX];
	uint64_t collectives, sent[RANKS_MAX][RANKS_MAX], received[RANKS_MAX][RANKS_MAX];
	struct task *collective[RANKS_MAX];
	uint32_t collective_here;
	bool poisoned; /* the current collective has failed: later posts get its status */
	ncclsvc_status poison;
	struct match *matches;
	bool begun, over, closed, unled, failed, ended;
	bool overs[NODES_MAX];
	uint64_t due_ns;
	uint64_t ended_ns;
	uint32_t nunexpected; /* messages that arrived before the communicator began */
	struct message *unexpected[256];
};

/* An operation that the sequencer has failed; its successor may have to inform other nodes. */
struct failed_operation {
	uint64_t internode_id;
	struct operation_key key;
	struct failed_note note;
};

struct node {
	bool alive, lost[NODES_MAX];
	struct sequencer *sequencer;
	struct local_comm comms[COMMS_MAX];
	struct launch_request *requests; /* in order of their numbers */
	struct launch_request *granted;	 /* launched */
	struct launch_request *orders[TASKS_MAX];
	uint32_t first_order, norders;
	uint64_t nrequests, visit;
	struct failed_operation failed[TASKS_MAX];
	uint32_t nfailed;
	bool matched_new, succession;
};

extern struct node nodes[NODES_MAX];
/* A lost sequencer's last messages may have reached only some nodes, so communicators may end. */
extern bool sequencer_died;
/* Returns whether a node of the communicator and a sequencer were lost: it is unknown what was
 * launched there. */
bool comm_is_lost(uint32_t comm);

void nodes_begin(uint32_t n);
void nodes_end(void);
uint32_t sequencer_of(const struct node *n);
void node_receive(const struct message *m);
void node_comm_begin(uint32_t node, uint32_t comm);
void node_comm_end(uint32_t node, uint32_t comm);
void node_comm_look(struct local_comm *s);
void node_learn_loss(uint32_t node, uint32_t lost);
void node_launch(struct node *n);
struct match *match_find(const struct local_comm *s, const struct operation_key *key);
struct match *match_get(struct local_comm *s, const struct operation_key *key);
void match_forget(struct match *m);
void match_ready(struct match *m);
void match_fail(struct match *m, const ncclsvc_status *st);
/* Fails an operation that all members here have posted, with records that differ. */
void match_differs(struct match *m, const ncclsvc_status *st);
void match_ask(struct match *m, const ncclsvc_status *st);

/* ---- order.c ---- */

void order_post(struct task *t); /* t's process has posted it */
void order_move(struct local_comm *s);
/* Fails a task whose deadline has passed, or that was cancelled. */
void order_fail(struct task *t, const ncclsvc_status *st);
void order_end(struct task *t, const ncclsvc_status *st, bool told);
void order_launched(struct task *t);
void order_fail_collective(struct local_comm *s, const ncclsvc_status *st);
/* Applies the sequencer's decision to an operation that has no tasks here, or that not all members
 * here have posted. */
void order_conclude_failed(struct match *m);

/* ---- sequencers.c ---- */

/* A sequencer's functions, with its allocations counted. */
void sequencers_begin(void);
void sequencers_receive(uint32_t node, const struct message *m);
void sequencers_lose(uint32_t node, uint32_t lost, bool succeeds);
void sequencers_look(uint32_t node);
void sequencers_end(void);
/* Number of allocations that a node's sequencer holds, besides itself. */
int64_t sequencers_held(uint32_t node);

/* ---- check.c ---- */

void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void check_begin(void);
void check_posted(const struct task *t);
/* Called when the node itself fails the operation. tombstone: with the status of a task that ended
 * before. */
void check_votes_failed(const struct match *m, bool tombstone);
void check_failed(uint32_t node, const struct match *m, const struct failed_note *note);
void check_launched(uint32_t node, const struct launch_request *r);
/* Checks the state at rest. */
void check_rest(void);
/* Checks the state after all communicators have ended. */
void check_end(void);

#endif
