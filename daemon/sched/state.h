/* SPDX-License-Identifier: Apache-2.0
 *
 * The host engine's own data. Everything here belongs to the engine's thread.
 *
 *   loop.c      the thread, its rounds and its sleep; commands.c: what the supervisor asks
 *   engine.c    beginning and end, queues to and from the supervisor, the memory of tasks
 *   intake.c    ring and socket records -> tasks
 *   order.c     whose turn it is on a communicator; meet.c: which tasks meet; release.h: those
 *               that fail; life.c: what these share; straight.c: past the queue
 *   plan.c      planned tasks, held until their group is whole
 *   set.c       what is launched as one, for transports that do so
 *   transport.h what moves the bytes
 *   complete.c  telling the clients; timeline.c: what their streams wait for
 *   internode/  communicators on several nodes: span.h
 *
 * A task that failed before its turn stays in its member's queue as a ghost: its client knows, but
 * the other members' matching tasks must still meet it, fail alike, and so stay aligned.
 */
#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include <pthread.h>

#include "account/task_table.h"
#include "base/deadlines.h"
#include "base/pool.h"
#include "engine.h"
#include "executor.h"
#include "spin.h"
#include "transport.h"

#define ENGINE_DEVICES 16

/* Long work is cut by steps, of some 10 ns each: looking at one task is one. */
#define STEP_RECORD 16	  /* taking a record in */
#define STEP_END    32	  /* ending a task */
#define STEP_SLICE  8192  /* of one member, session or command before others have their turn */
#define STEP_ROUND  16384 /* of all members before rings are polled again */

struct comm;
struct departure;
struct early;
struct junction;
struct launch_request;
struct meeting;
struct plan;
struct session;
struct sequencer;
struct span;
struct windows;
struct transport;
struct user;
struct worker_queue;

struct lost_span {
	uint64_t id;
	uint64_t ns; /* when; 0: none */
};

struct region {
	char *base; /* NULL: no such region; of a GPU: its worker's address */
	uint64_t bytes;
	uint32_t pins;	/* pending tasks that name it */
	int32_t device; /* -1: host */
	uint64_t lent;	/* its worker's own memory: never the same again; 0: it is not */
};

struct handle {
	struct comm *comm; /* NULL: its epoch is over, or (known false) it never was */
	int32_t rank;
	bool known;
	uint32_t ended; /* the epoch that ended last: what came too late for it is told the same */
	ncclsvc_status end; /* as its tasks were */
};

enum place {
	IN_GROUP, /* of an unfinished task group */
	IN_PLAN,  /* of a planned group that is not whole, or behind such a one */
	IN_QUEUE, /* behind its member's head */
	AT_HEAD,  /* its turn has come: waits for input or for an earlier collective of its group */
	POSTED,	  /* offered to the other members */
	RUNNING,
};

struct task {
	/* Up to `uid`, zero at first; what follows is set before it is read. */
	struct comm *comm;
	struct deadline deadline;
	uint64_t started_ns;
	uint32_t group; /* 0: none */
	uint8_t place;	/* enum place */
	bool by_socket, waits_input, ghost;
	bool simple;	/* from a ring, of host memory, a Send or Recv without a second half */
	bool published; /* inspection knows it, and its deadline counts */
	bool decided;	/* a ghost whose end is that of its collective on every member */
	uint8_t shown;	/* the state that inspection knows */
	bool flying;	/* launched on a GPU */
	uint8_t src_window, dst_window; /* as in struct launch */
	struct meeting *meeting;	/* of a set: RUNNING, and not launched yet */
	struct junction *junction;	/* RUNNING, and waits for other nodes */
	struct task *next_in_group;	/* a circle, if they are launched as one; NULL: alone */
	uint64_t visit;
	uint64_t uid;
	struct task *prev, *next; /* in a member's queue, a session's open group, or free */
	struct session *session;
	struct member *member;
	char *src, *dst;
	uint64_t submitted_ns;
	uint64_t seq;
	uint32_t slot; /* in the task table, once it is published */
	uint32_t serial;
	int32_t rank;
	struct svc_record record;
	struct task *prev_input, *next_input; /* waits for its timeline */
	struct task *next_published;	      /* with the same place in the engine's hash */
	uint64_t nth;			      /* of a collective in a queue: see decision.c */
	struct task *next_decided;
	ncclsvc_status end; /* of a ghost */
	uint64_t lane_seq;  /* of a launched task */
};

struct member {
	struct comm *comm;
	struct task *queue;
	uint32_t head_tasks; /* tasks of the queue's head whose turn it is */
	uint32_t posted, running, inputs;
	bool blocked; /* its turn, all posted, nothing runs: only others can help */
	bool gone;
	bool ready; /* in its user's list */
	struct member *next_ready;
	struct task *collective; /* the posted one */
	uint64_t nth;		 /* of the next collective that enters its queue */
	/* The head's first collective, and first Send or Recv, that is not posted; or NULL. */
	struct task *unposted[2];
	struct member_progress *progress;
	uint64_t submitted, completed;
	struct session *session; /* NULL: gone, or on another node */
	struct user *user;	 /* the session's */
	uint32_t handle;
	int32_t pid;
	int32_t device;	     /* -1: host */
	struct task *flying; /* in the order of their launch */
	uint32_t nflying;
	bool full;	     /* no more are launched until half of them have landed */
	uint64_t lane_seq;   /* of the last launch */
	uint64_t done;	     /* how far its lane had come, at the last look */
	uint32_t generation; /* of its GPU's worker, if that only copies */
	uint32_t plan_left;  /* with other nodes: it has left all plans up to this number */
};

/* Why an epoch ends. */
struct epoch_end {
	int32_t result, rank, pid, node;
};

struct comm {
	uint32_t slot, nranks, epoch;
	uint32_t here;	   /* members on this node */
	struct span *span; /* NULL: all of them are */
	bool span_failed;  /* the supervisor was asked to end the epoch */
	const struct transport *transport;
	bool launched;	   /* in its transport's list, which frees it at last */
	bool broken;	   /* what runs on GPUs is broken off: its end is no success */
	bool dead;	   /* nothing of it runs on GPUs any more */
	bool looked;	   /* its members' `done` counts as soon as ... */
	uint64_t told_by;  /* ... so many commands have run */
	bool released;	   /* its streams wait for no GPU any more */
	uint64_t moved_ns; /* on GPUs: when one of its tasks ended last, or the epoch did */
	uint64_t held;	   /* the round of set_launch in which its tasks have to wait */
	uint32_t lane;
	struct comm *prev_launched, *next_launched;
	bool may_window;	 /* small collectives on lent memory, in NCCL's symmetric windows */
	struct windows *windows; /* NULL: none was thought of */
	uint64_t uid;
	struct member *members;
	struct task *
		*collective; /* [nranks]: the current collective's tasks, NULL if not there yet */
	uint32_t collective_here;
	bool haunted; /* a ghost is among them: it ended so, and so will all */
	ncclsvc_status haunted_by;
	uint64_t collectives; /* finished */
	uint32_t decisions;   /* ghosts of collectives in queues: decision.c */
	bool misnumbered;     /* such collectives no longer have the right nth */
	uint32_t blocked, gone;
	int32_t gone_rank; /* one of them */
	struct plan *plan; /* NULL: none */
	uint32_t pending;  /* tasks alive, and members that are ready */
	uint32_t running;
	bool ended;
	bool ending;	      /* the other nodes were told, and may need a moment */
	uint32_t cleared;     /* members whose tasks have ended with the epoch */
	ncclsvc_status end;   /* what its tasks are told since */
	uint64_t reported_ns; /* when the first of these was: */
	uint32_t reported;    /* bits: results that the supervisor has been told of */
};

/* A timeline of tasks on GPUs. */
struct line {
	uint32_t flying; /* tasks */
	uint64_t owed;	 /* what done must come to, once nothing flies */
};

/* A GPU, as its worker is reached. */
struct device {
	struct worker_queue *queue; /* NULL: none */
	int doorbell;
	uint32_t wanted;
	uint64_t head;	     /* of what is written; the queue's own is what the worker may see */
	uint32_t generation; /* of its worker, if that only copies; 0: there is none */
	uint64_t copies[2];  /* seq of each lane's last */
};

/* All sessions of one uid. Users take turns, so that none waits for more than a turn of each other
 * user, whatever that one has in the engine. */
struct user {
	struct user *prev, *next; /* the engine's */
	uint32_t uid, sessions;
	uint32_t tasks;			   /* alive, ghosts too */
	struct session *active;		   /* whose rings are polled */
	struct member *ready, **ready_end; /* whose queues may move */
};

struct session {
	/* What every record needs comes first. */
	struct svc_ring *ring; /* NULL: socket only */
	uint64_t next;	       /* number of the next record */
	uint8_t *busy;	       /* [entries]: this slot's task has not ended */
	uint64_t after;	       /* the next record waits until as many commands have run */
	uint32_t entries;
	bool active; /* its ring is polled; else its doorbell is watched */
	bool dirty;  /* tasks ended since its waiters were woken */
	bool broken; /* no longer served */
	bool leaving;
	uint64_t active_ns;	      /* last time a record came */
	struct departure *departures; /* regions that are to be let go */
	struct session *next_active, *next_dirty;
	struct user *user;
	struct session_counts *counts;
	struct task *group; /* open */
	uint32_t group_tasks;
	ncclsvc_status group_end; /* why it is refused; result 0: it is not */
	uint32_t tasks;		  /* alive, ghosts too */
	uint32_t socket_tasks;
	struct handle *handles;
	struct region *regions;
	uint32_t nhandles, nregions;
	uint32_t members; /* handles that have a communicator */
	uint64_t spoiled; /* the end of an epoch that has looked at its group */

	uint64_t waited; /* the number of the record that has waited for commands */
	uint32_t slot, id;
	int32_t pid;
	int fd, doorbell, completion;
	struct session *prev_active, *next_leaving;
	uint32_t inputs;
	struct line *lines; /* [SVC_TIMELINES]; NULL: no communicator of GPUs yet */
};

/* How far the cancellation under way has come. */
struct cancelling {
	bool found, forbidden;
	uint64_t count;	   /* of tasks */
	uint32_t rank;	   /* whose tasks are looked at */
	uint32_t slot;	   /* of its plan, the next */
	struct task *last; /* of its queue; NULL: none yet */
	uint64_t last_uid;
};

struct engine {
	struct executor executor;
	struct engine_config config;
	executor_notify *notify;
	void *notify_arg;
	pthread_t thread;
	struct pool *pool;

	/* Shared with the supervisor's thread. */
	pthread_mutex_t lock;
	struct command *commands;
	uint32_t ncommands, commands_room, commands_read;
	_Atomic uint64_t commands_queued; /* so far */
	struct event *events;
	uint32_t nevents, events_room, events_read;
	struct failure failure; /* the last */
	_Atomic bool asleep;	/* the command eventfd must be written */
	int wake_fd;

	/* The engine thread's. */
	int epoll_fd;
	uint64_t now;
	uint64_t steps;	       /* of work so far: see STEP_ */
	uint64_t commands_run; /* so far */
	uint64_t ends;	       /* of epochs, so far */
	struct cancelling cancelling;
	bool pinged;	     /* the supervisor waits for a sign of life */
	uint64_t ping_turns; /* ... and is answered after as many turns of members */
	struct user *users;
	struct session **sessions; /* by slot */
	struct comm **comms;	   /* by slot */
	struct session *dirty;
	uint32_t nactive, cores;
	bool crowded;	   /* more pollers than cores: they yield at every round */
	uint32_t ready;	   /* members */
	uint64_t turns;	   /* that they have had so far */
	struct user *turn; /* whose it was last */
	struct task *inputs;
	uint32_t ninputs, inputs_due; /* due: have not been looked at since a session fell asleep */
	struct deadlines deadlines;
	struct task_table table;
	struct task *tasks;	 /* [table.size] */
	struct task *free;	 /* stack, by `next` */
	uint32_t fresh;		 /* from here on none was ever used */
	struct task **published; /* by the low bits of their uid, as many as the mask has */
	uint32_t published_mask;
	struct task **decided; /* decision.c: as many places */
	struct session *leaving;
	uint64_t uids;
	uint64_t live; /* tasks whose client does not know yet how they ended */
	uint32_t groups;
	uint32_t jobs;			   /* in the pool */
	uint32_t polled;		   /* bits: transports that have something under way */
	void *transport_state[TRANSPORTS]; /* theirs; NULL: it has none */
	struct spin spin;
	uint64_t round_ns;  /* when the loop's round began */
	uint64_t busy_ns;   /* when there last was work */
	uint64_t looked_ns; /* when the doorbells were last looked at */
	bool draining, drained, stop;
	struct device devices[ENGINE_DEVICES];
	uint32_t gpu_inputs; /* tasks that wait for what a GPU writes: their timelines */
	struct meeting *met; /* in the order in which they met */
	uint64_t lent;	     /* regions of that kind, ever */
	bool met_new;	     /* something may be launched */
	struct launch_request *requests, *orders; /* to the sequencer; and those that are due */
	uint64_t nrequests;			  /* so far */
	struct launch_request *granted;		  /* launched of late, the oldest first */
	uint32_t ngranted;
	uint32_t lost_sequencer;
	uint64_t succession_due_ns;  /* when the next one is to go on; 0: it does */
	struct sequencer *sequencer; /* this node's, if it has to be the one */
	uint64_t sequenced_ns;	     /* when somebody last said something to it */
	uint64_t launch_round;
	uint64_t inputs_ns;    /* when launched tasks' were last looked at */
	uint64_t visit, pass;  /* the pass's first visit */
	struct task **visited; /* [table.size] */
	uint32_t nvisited;
	/* Other nodes: span.h */
	struct span *spans; /* by id */
	uint32_t flights;   /* what MPI works on */
	uint32_t ops;	    /* that move bytes between nodes */
	uint32_t committed; /* tasks that wait for other nodes */
	uint64_t span_ns;   /* when another node was last heard of */
	uint64_t heard_ns;  /* when it was last listened for */
	uint64_t stuck_ns;  /* when to look for members that wait for each other */
	struct junction *asked;
	struct span *endings;
	struct message *messages;
	struct message *own; /* from this node's sequencer to this node, and back */
	struct early *early; /* by time */
	size_t early_bytes;
	struct lost_span lost_spans[1024]; /* something said of them before they began is lost */
	uint32_t nlost_spans;		   /* ever */
	uint64_t lost_all_ns;		   /* up to then, of any: there were more */
	bool *lost;			   /* [nodes] */
	uint64_t ended_spans[4096];
	uint32_t nended;

	uint32_t nunpublished;
	/* They may be over before anybody could look, and their places be others'. */
	struct {
		struct task *task;
		uint64_t uid;
	} unpublished[256];
};

/* intake.c */
/* Takes records of its ring, not too many; returns how many. */
uint32_t intake_ring(struct engine *e, struct session *s);
void intake_socket(struct engine *e, struct session *s, uint32_t serial,
		   const struct svc_record *record);
void intake_drop_group(struct engine *e, struct session *s);

/* order.c */
/* The task counts as its member's from now on. */
void order_admit(struct engine *e, struct task *t);
/* Into its member's queue. */
void order_append(struct engine *e, struct task *t);
void order_enqueue(struct engine *e, struct task *first, uint32_t n);
void order_publish(struct engine *e, struct task *t);
void order_move_ready(struct engine *e);
/* In most rounds nobody is. Some may be left for the next round. */
static inline void order_run_ready(struct engine *e)
{
	if (e->ready)
		order_move_ready(e);
}
/* Some of them, in turn. */
void order_check_inputs(struct engine *e);
void order_free_comm(struct engine *e, struct comm *c);

/* straight.c */
/* May a group of n simple tasks of this one's member be posted at once? Else order_enqueue. */
bool straight_may(const struct task *first, uint32_t n);
void straight_post(struct engine *e, struct task *first, uint32_t n);

/* plan.c */
void plan_add(struct engine *e, struct comm *c, struct plan *p);
void plan_drop(struct engine *e, const struct command *cmd);
/* Of the plan that it is of, with other nodes; else 0. */
uint32_t plan_number(const struct task *t);
/* Is it what the plan has in its place? Its rank is set. */
int plan_check(const struct task *t, const struct comm *c, const char **text);
/* Its rank has the plan that it names. */
bool plan_known(const struct task *t, const struct comm *c);
void plan_hold(struct engine *e, struct task *t);
/* The task held in a place of this member's plan, maybe NULL. False: there is no such place. */
bool plan_held(const struct member *m, uint32_t place, struct task **t);
void plan_task_ended(struct task *t);
/* Ends what is held of a member, up to so many steps. False: there is more. */
bool plan_clear(struct engine *e, const struct comm *c, int32_t rank, const ncclsvc_status *st,
		uint64_t enough);
/* Nothing of it runs any more. */
void plan_end(struct engine *e, struct comm *c);
bool plan_peer_left(const struct task *t);
ncclsvc_status plan_left_status(const struct comm *c, int32_t rank);
/* Nobody need wait for its planned tasks. */
void plan_member_left(struct engine *e, struct comm *c, int32_t rank, const ncclsvc_status *st);

/* complete.c */
extern const ncclsvc_status complete_ok;
/* How tasks that have run ended: well, unless the memory of one failed under it (fault.h); then st
 * is filled. */
const ncclsvc_status *complete_ran(struct task *const *tasks, uint32_t n, ncclsvc_status *st);
void complete_task(struct engine *e, struct task *t, const ncclsvc_status *how);
void complete_refused(struct engine *e, struct session *s, const struct svc_record *record,
		      uint32_t serial, bool by_socket, const ncclsvc_status *why, const char *text);
void complete_flush(struct engine *e);
void complete_break_session(struct engine *e, struct session *s, int result, const char *text);
ncclsvc_status status_of(int result);

/* commands.c */
/* Some of those that wait. */
void engine_run_commands(struct engine *e);
static inline bool engine_commands_wait(const struct engine *e)
{
	return atomic_load_explicit(&e->commands_queued, memory_order_acquire) != e->commands_run;
}
/* Lets regions go that commands have asked for and whose tasks have been taken in, unless they are
 * in use. */
void engine_regions_depart(struct engine *e, struct session *s);
void engine_session_poll(struct engine *e, struct session *s);
void engine_session_idle(struct engine *e, struct session *s);
/* Lets a session go that leaves. False: something of it is in use. */
bool engine_let_session_go(struct engine *e, struct session *s);
void engine_free_session(struct session *s);

/* There is, or soon will be, something in its ring. */
static inline void engine_session_active(struct engine *e, struct session *s)
{
	s->active_ns = e->now;
	if (!s->active)
		engine_session_poll(e, s);
}

/* loop.c */
/* Of the eventfd in epoll's data; else a session's slot. */
#define ENGINE_WAKES UINT64_MAX
/* The thread, until COMMAND_STOP. Returns NULL. */
void *engine_main(void *engine);

/* engine.c */
/* The next command; false: none waits. It stays until engine_command_done. */
bool engine_next_command(struct engine *e, struct command *c);
void engine_command_done(struct engine *e);
/* Inspection is to see the task, if it is not over soon; and now it sees all those. */
void engine_publish_later(struct engine *e, struct task *t);
void engine_publish(struct engine *e);
/* NULL: the user, or the table, has no room. */
struct task *task_alloc(struct engine *e, struct session *s);
void task_free(struct engine *e, struct task *t);
/* The task of that id, if inspection knows it; else NULL. */
struct task *task_find(const struct engine *e, uint64_t uid);
void engine_event(struct engine *e, const struct event *event);

#endif
