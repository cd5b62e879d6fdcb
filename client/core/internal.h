/* SPDX-License-Identifier: Apache-2.0
 *
 * What the library's files share. "Locked" means: call it with the session's lock held. "Yields"
 * means: it may drop the lock meanwhile, so what was read before must be read again. */
#ifndef CLIENT_INTERNAL_H
#define CLIENT_INTERNAL_H

#include <pthread.h>
#include <sys/types.h>
#include <sys/un.h>

/* The public functions are exported, everything else is hidden. */
#pragma GCC visibility push(default)
#include "ncclsvc.h"
#pragma GCC visibility pop
#include "proto/ring.h"
#include "proto/spin.h"
#include "proto/task.h"

#define FAILURES_KEPT 4096
#define NO_DEADLINE   UINT64_MAX
#define REQUEST_MS    10000		  /* for an answer that needs nobody but the daemon */
#define SLICE_NS      UINT64_C(100000000) /* longest sleep without a look at the socket */
#define LOST_TEXT     (SVC_TEXT_BYTES + 64)

/* ---- error.c: the thread's last error --------------------------------------------------- */

/* Stores the sentence and returns result. */
__attribute__((format(printf, 2, 3))) ncclsvc_result error_set(ncclsvc_result result,
							       const char *format, ...);
#define error_argument(...) error_set(NCCLSVC_INVALID_ARGUMENT, __VA_ARGS__)

/* ---- clock.c ----------------------------------------------------------------------------- */

uint64_t now_ns(void);
/* Negative: NO_DEADLINE. */
uint64_t deadline_in(int timeout_ms);
/* For poll: -1 for NO_DEADLINE, 0 when it has passed, rounded up. */
int deadline_left_ms(uint64_t deadline);
/* As a message says it: 0 is none, so "do not wait" becomes one nanosecond. */
uint64_t timeout_on_wire(int timeout_ms);

/* ---- frame.c: what the daemon may send -------------------------------------------------- */

/* Judges a datagram. False, with a sentence in text, if it breaks the protocol. */
bool frame_check(const void *message, size_t length, unsigned nfds, struct svc_header *header,
		 char *text);
/* Sends one request. Returns 0 or -errno; never blocks. */
int frame_send(int sock, unsigned opcode, uint32_t serial, const void *body, int fd);
/* As svc_recv, of at most SVC_MESSAGE_MAX bytes. Never blocks. */
ssize_t frame_receive(int sock, void *message, size_t room, int *fds, unsigned *nfds);
/* The sentence of a reply that carries an error, cleaned for printing. */
void frame_error_text(const void *body, int result, char *text);

/* ---- link.c: one connection ------------------------------------------------------------- */

struct link_options {
	struct sockaddr_un address;
	char name[NCCLSVC_NAME_BYTES];
	uint32_t entries;      /* of the ring */
	bool entries_required; /* false: fewer will do if the daemon allows no more */
	bool no_ring;
	bool retry; /* while nobody listens, or who does is going, until the deadline */
};

/* Shared by the session and by the threads that sleep on it, so that a reattach cannot pull the
 * mapping or the socket from under a sleeper. */
struct link {
	struct link *next, **back; /* fork.c's list; NULL: not in it */
	bool foreign;  /* this process was forked: it is the parent's, and has no fds here */
	unsigned refs; /* under the session's lock */
	int sock;
	int doorbell, completion; /* an eventfd and a socket; -1 without a ring */
	struct svc_ring *ring;	  /* NULL without a ring */
	uint32_t entries;	  /* as agreed; without a ring, as asked */
	size_t ring_size;
	enum svc_mps_advice mps; /* the daemon's; what it does not advise counts as SVC_MPS_NONE */
	char mps_directory[NCCLSVC_MPS_DIRECTORY_BYTES]; /* of SVC_MPS_JOIN */
};

ncclsvc_result link_open(const struct link_options *options, uint64_t deadline, struct link **link);
struct link *link_ref(struct link *link); /* locked */
void link_unref(struct link *link);	  /* locked, or nobody else has it */
/* fork.c: a child that is forked closes its share of those that are watched, so that the daemon
 * sees the parent's end. Unwatching closes the fds: a child between the two would keep them. */
void fork_watch(struct link *link);
void fork_unwatch(struct link *link);

/* ---- mps.c: the MPS of the daemon's workers ----------------------------------------------- */

/* Sets the environment as the link's daemon advises, if CUDA is not initialized in this process,
 * and the user has not chosen otherwise. */
void mps_join(const struct link *link);
/* How CUDA uses the device in this process; *server: as struct mps has it. */
ncclsvc_mps mps_of_device(int device, uint64_t *server);

/* ---- task.c: tasks in flight and how they ended ------------------------------------------ */

enum slot_state { SLOT_EMPTY, SLOT_PENDING, SLOT_ARRIVED, SLOT_COPYING, SLOT_ENDED };

struct chunk;

struct slot {
	uint64_t number; /* the task's handle */
	uint8_t state;
	bool called_back; /* nothing is left for dispatch to do */
	bool quiet;	  /* its failure is what was meant: nobody is told */
	bool detached;	  /* no stream waits for it: it may be pending while streams are idle */
	bool spoiled;	  /* the process was restored from a checkpoint before its end was seen */
	uint8_t op;
	uint8_t timeline;
	uint32_t comm_key, epoch;
	uint32_t place; /* in its plan, from 1; 0: none */
	uint64_t seq;	/* on its communicator, from 0 */
	uint64_t timeline_value;
	/* Staging: what goes back to a plain pointer. */
	struct chunk *chunk;
	void *out;
	size_t out_at, out_bytes;
	ncclsvc_status status; /* once ARRIVED */
};

/* A failed task, kept longer than its slot. */
struct failure {
	bool reported; /* some call has told the user */
	uint8_t op;
	uint32_t comm_key;
	uint64_t seq;
	ncclsvc_status status;
	char comm[NCCLSVC_NAME_BYTES];
	char text[LOST_TEXT]; /* more than the status can say; may be empty */
};

struct tasks {
	uint32_t entries;
	struct slot *slots;
	uint64_t next;	  /* handle of the next task */
	uint64_t base;	  /* handle minus number in the present ring; a multiple of entries */
	uint64_t oldest;  /* nothing before it is pending */
	uint64_t ended;	  /* ever */
	uint64_t running; /* socket mode: submitted and not yet answered */
	struct failure *failures; /* FAILURES_KEPT, a ring; NULL before the first */
	uint64_t nfailures;	  /* ever */
};

/* Where a task is, or was, or will be. */
static inline struct slot *task_slot(const struct tasks *t, uint64_t task)
{
	return &t->slots[task & (t->entries - 1)];
}

enum task_state { TASK_PENDING, TASK_COPYING, TASK_ENDED, TASK_FORGOTTEN };

ncclsvc_result tasks_init(struct tasks *t, uint32_t entries);
/* Handles go on after a reattach; numbers in the new ring start at 1. Locked. */
void tasks_restart(struct tasks *t);
/* Takes in what the daemon says of the task, and copies staged output. Locked; yields. */
enum task_state task_look(ncclsvc_session *s, uint64_t task);
/* Looks at every task that may be pending. Locked; yields. */
void tasks_look(ncclsvc_session *s);
/* The process was restored from a checkpoint: tasks on GPUs fail at their ends, if they are pending
 * and detached, or from the task `from` on. Locked. */
void tasks_spoil(ncclsvc_session *s, uint64_t from);
/* Room for n more tasks: OK or AGAIN. Locked; yields. */
ncclsvc_result tasks_room(ncclsvc_session *s, unsigned n);
/* The answer to a SUBMIT. Locked. */
bool task_answer(ncclsvc_session *s, uint32_t serial, const void *body, size_t length, int result);
uint32_t task_serial(uint64_t task);
/* An ended task's slot still knows it, and that it did not fail. Locked. */
static inline bool task_went_well(const struct tasks *t, uint64_t task)
{
	const struct slot *slot = task_slot(t, task);
	return slot->number == task && !slot->status.result;
}
/* Writes the status of an ended task; zeros with result OK for a forgotten one. Locked. */
void task_status_of(ncclsvc_session *s, uint64_t task, ncclsvc_status *status);
/* failure.c: remembers that the task failed; text says more than the status, or is "". Locked */
void failure_keep(ncclsvc_session *s, const struct slot *slot, const char *text);
struct failure *failure_find(const struct tasks *t, uint64_t task);
/* Returns an ended task's result, leaves its sentence, and counts it as told. Locked. */
ncclsvc_result task_report(ncclsvc_session *s, uint64_t task);
/* wait.c: OK once the task is over, else TIMEOUT; task_over looks once. Locked; yields. */
ncclsvc_result task_wait(ncclsvc_session *s, uint64_t task, uint64_t deadline);
bool task_over(ncclsvc_session *s, uint64_t task);
/* The same for the first failure nobody was told of: of one communicator (key), or of any (0) up
 * to a task, in which case all of those count as told. OK: none. Locked. */
ncclsvc_result failures_report(ncclsvc_session *s, uint32_t comm_key, uint64_t last);
void failures_forgive(ncclsvc_session *s, uint32_t comm_key); /* locked */
/* Raises `done` of pending tasks' timelines, so that nobody waits for a lost daemon. Locked. */
void tasks_release_timelines(ncclsvc_session *s);

/* ---- ring.c ------------------------------------------------------------------------------ */

/* The stores before it are seen before the loads after it. Not atomic_thread_fence, which
 * ThreadSanitizer does not know. */
static inline void full_fence(void)
{
	__sync_synchronize();
}

/* True if task number n of the ring has ended. *bad: the slot holds what it cannot hold. */
bool ring_ended(const struct link *l, uint64_t n, bool *bad);
void ring_publish(const struct link *l, uint64_t n, const struct svc_record *record);
/* After publishing: wakes the daemon if it sleeps. */
void ring_doorbell(const struct link *l);
/* Sleeps until number n may have ended, at most a slice. First polls as `spin` says, which learns
 * from it; NULL: does not poll. False: a whole slice or the deadline passed. */
bool ring_sleep(const struct link *l, uint64_t n, struct spin *spin, uint64_t deadline);
/* Wakes this process's sleepers. */
void ring_wake(const struct link *l);

/* ---- socket.c: requests, replies, events --------------------------------------------------- */

struct call {
	uint32_t serial;
	uint16_t opcode;
	bool done;
	uint32_t comm_key; /* of the communicator that it rejoins, which may be left meanwhile */
	int32_t result;
	int fd; /* of the reply; the caller's, -1 if none */
	/* Runs locked in the thread that receives a good reply, before it reads on */
	void (*on_reply)(ncclsvc_session *s, struct call *call);
	void *arg;
	struct call *next;
	char text[LOST_TEXT]; /* of an error */
	_Alignas(8) unsigned char body[SVC_MESSAGE_MAX - sizeof(struct svc_header)];
	struct list_piece *piece; /* of LIST: where the reply goes, instead of body */
};

struct list_piece {
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
/* Ends the calls that would rejoin the communicator; a late answer is nobody's. Locked. */
void calls_give_up(ncclsvc_session *s, uint32_t comm_key);
/* A request whose answer nobody needs. Locked. */
void call_forget(ncclsvc_session *s, unsigned opcode, const void *body);

/* Reads one message, or waits while another thread does. False: the deadline passed. Locked;
 * yields. */
bool socket_step(ncclsvc_session *s, uint64_t deadline);
/* Reads what is there, unless another thread is at it. Returns how much it read. Locked. */
unsigned socket_pump(ncclsvc_session *s);
/* Waits until another thread changed something. False: the deadline passed. Locked; yields. */
bool session_wait(ncclsvc_session *s, uint64_t deadline);
/* The connection is over. Locked. */
__attribute__((format(printf, 2, 3))) void session_lose(ncclsvc_session *s, const char *format,
							...);
/* What session_check leaves to it: the session is, or seems to be, lost, or is no longer this
 * process's. Locked. */
ncclsvc_result session_over(ncclsvc_session *s);

/* ---- comm.c ------------------------------------------------------------------------------ */

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
	uint8_t flags; /* of its tasks: SVC_TASK_NO_WINDOW */
	uint64_t seq;  /* of the next task in this epoch */
	/* Not OK: the epoch is over and why. */
	ncclsvc_result broken;
	int32_t broken_rank, broken_pid;
	bool broken_told;
	char label[NCCLSVC_NAME_BYTES];
};

ncclsvc_comm *comm_by_handle(const ncclsvc_session *s, uint32_t handle); /* locked */
ncclsvc_comm *comm_by_key(const ncclsvc_session *s, uint32_t key);	 /* locked */
void comm_unlink(ncclsvc_session *s, const ncclsvc_comm *comm);		 /* locked */
bool join_reply_valid(const struct svc_join_reply *reply);
/* A new epoch begins. Locked. */
void comm_apply(ncclsvc_session *s, ncclsvc_comm *comm, const struct svc_join_reply *reply);
/* OK, or STALE_EPOCH with a sentence. Locked. */
ncclsvc_result comm_check(const ncclsvc_comm *comm);
void comm_event(ncclsvc_session *s, const struct svc_event_comm *event); /* locked */
/* A reply to JOIN or SPLIT came too late for its caller. Locked. */
void comm_orphan(ncclsvc_session *s, const struct svc_join_reply *reply);
/* Another id, made of this one: the same for all who make it with the same key. */
void id_derive(const ncclsvc_unique_id *from, uint64_t key, ncclsvc_unique_id *to);
const char *comm_label(const ncclsvc_session *s, uint32_t key); /* locked */
void comms_break(ncclsvc_session *s); /* all: the daemon is lost; locked */
/* join.c: those that the present daemon does not know yet, but for splits. Locked; yields. */
ncclsvc_result comms_rejoin(ncclsvc_session *s, uint64_t deadline);
/* Joins the next epoch, unless the present one is whole. Not locked. */
ncclsvc_result comm_renew(ncclsvc_comm *comm, int timeout_ms);
void comms_free(ncclsvc_session *s);

/* ncclsvc_comm_split in two steps: between them the parent may be left, which ends the split. */
struct splitting {
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	struct call call;
	uint64_t deadline;
};
/* On OK, split_finish must follow, and split stay where it is. */
ncclsvc_result split_begin(ncclsvc_comm *parent, int colour, int key, int timeout_ms,
			   struct splitting *split);
ncclsvc_result split_finish(struct splitting *split, ncclsvc_comm **newcomm);

/* ---- memory.c: registered regions ---------------------------------------------------------- */

struct region {
	char *base;
	size_t bytes;
	int fd;	     /* kept to register it with the next daemon */
	uint32_t id; /* 0: not registered */
	bool busy;   /* a call about it is under way */
};

struct regions {
	struct region *sorted; /* by base */
	size_t n, room;
};

/* The region that holds ptr, or NULL. Locked. */
struct region *region_find(const struct regions *r, const void *ptr);
ncclsvc_result region_insert(struct regions *r, const struct region *region); /* locked */
void region_remove(struct regions *r, const void *base);		      /* locked */
/* Gives it back to the daemon and to the system. Locked; yields. */
ncclsvc_result region_free(ncclsvc_session *s, struct region *region);
/* Asks the daemon to register. Locked; yields. */
ncclsvc_result region_register(ncclsvc_session *s, int fd, uint64_t bytes, uint64_t deadline,
			       uint32_t *id);
void regions_unregister(struct regions *r);				/* the daemon is gone */
ncclsvc_result regions_register(ncclsvc_session *s, uint64_t deadline); /* all; locked; yields */
void regions_free(struct regions *r);
/* Makes a shared mapping; *fd is the caller's, -1 if fd is NULL. */
ncclsvc_result memory_map(size_t bytes, void **ptr, int *fd);

/* ---- staging.c: shared memory for plain pointers -------------------------------------------- */

struct chunk {
	struct chunk *next;
	char *base;
	size_t bytes;
	unsigned order; /* bytes is 1 << order */
	uint32_t region;
	uint32_t generation;
};

#define STAGING_ORDERS 48

struct staging {
	struct chunk *idle[STAGING_ORDERS];
	size_t idle_bytes;
};

ncclsvc_result staging_get(ncclsvc_session *s, size_t bytes,
			   struct chunk **out);		   /* locked; yields */
void staging_put(ncclsvc_session *s, struct chunk *chunk); /* locked */
void staging_free(ncclsvc_session *s);			   /* idle chunks; locked */
void chunk_free(struct chunk *chunk);

/* ---- place.c, submit.c ---------------------------------------------------------------------- */

/* An operation on its way into a record. */
struct op {
	struct svc_record record;
	ncclsvc_comm *comm;
	const char *src;
	char *dst;
	uint64_t src_bytes, dst_bytes;
	ncclsvc_task *task;
	struct chunk *chunk; /* staging, if any buffer is plain */
	bool src_staged, dst_staged;
	bool quiet;
	size_t src_at, dst_at, chunk_bytes;
	bool copied;  /* the source, even from session memory */
	bool entered; /* it is a task now */
	/* On GPUs: */
	struct CUstream_st *stream;
	bool detached;	    /* the stream does not wait for it */
	uint64_t planned;   /* 0: not; else it grows with the order of groups */
	uint16_t places[2]; /* of its regions, from 1; 0: none */
};

/* Refuses bad arguments and overlaps, and fills the extents. */
ncclsvc_result op_check(struct op *op);
/* Finds the buffers in session memory, or plans their staging. Locked. */
ncclsvc_result op_place(const ncclsvc_session *s, struct op *op);
/* Submits all or nothing. Locked; yields. */
ncclsvc_result ops_submit(ncclsvc_session *s, struct op *ops, unsigned n);

/* ---- thread.c: what a session knows of single threads ---------------------------------------- */

/* Its thread's own, and needs no lock; but destroying a timeline looks at all threads'. */
struct thread_state {
	struct thread_state *next;
	uint64_t thread;
	ncclsvc_timeline *timeline;
	uint64_t timeline_value;
	struct CUstream_st *stream;
	unsigned stream_flags;
	bool grouping;
	struct op *ops;
	unsigned nops, room;
	ncclsvc_result refused; /* the group's first refusal, and why */
	char refusal[LOST_TEXT];
};

struct thread_state *thread_find(ncclsvc_session *s); /* NULL: nothing known; locked */
/* The same without the lock; NULL also if this thread used another session in between. */
struct thread_state *thread_own(const ncclsvc_session *s);
struct thread_state *thread_make(ncclsvc_session *s); /* NULL: no memory; locked */
/* Forgets this thread if nothing is known of it any more, and there are many. Locked. */
void thread_tidy(ncclsvc_session *s, struct thread_state *gone);
void threads_free(ncclsvc_session *s);
/* OK, or a refusal: the thread has a group open or a timeline set, and what follows submits tasks
 * that it waits for itself. Not locked. */
ncclsvc_result thread_plain(ncclsvc_session *s);
/* group.c: keeps an operation of the thread's open group, or the first refusal in it. */
ncclsvc_result group_add(struct thread_state *t, const struct op *op);
/* Room for the group's next operation, not counted yet; NULL: none, and why. */
struct op *group_room(struct thread_state *t, ncclsvc_result *why);
void group_refuse(struct thread_state *t, ncclsvc_result why);

/* What a session tells its plans. */
struct plan_hooks {
	void (*comm_left)(ncclsvc_session *s, const ncclsvc_comm *comm); /* locked */
	void (*closing)(ncclsvc_session *s); /* nothing runs on GPUs any more */
};

/* timeline.c: never lowers the counter. */
void timeline_raise(_Atomic uint64_t *counter, uint64_t value);

struct ncclsvc_timeline {
	ncclsvc_session *session;
	uint32_t index;			      /* 1..SVC_TIMELINES-1 */
	uint32_t pending;		      /* tasks */
	const struct stream_hooks *of_stream; /* NULL: it is the user's */
	uint64_t last;			      /* of a stream: value of the newest task */
};

/* What is told of the tasks on a stream's timeline. Locked. */
struct stream_hooks {
	/* The daemon says that a detached task went well: tasks_spoil may still disagree. */
	void (*arrived)(ncclsvc_session *s);
	void (*ended)(ncclsvc_session *s, uint64_t task);
};

/* The daemon is lost. Its workers outlive it for as long as their kernels write in the tasks'
 * memory, and let the streams go then; not waited for longer than they could take. Locked. */
void timelines_await_workers(const ncclsvc_session *s);
/* Lets every stream go on: raises its timelines' `done`. Locked. */
void timelines_release(const ncclsvc_session *s);

/* ---- GPUs: gpu.h has what only their files share -------------------------------------------- */

/* OK if the session can have GPU communicators: there is a ring and a driver. Not locked. */
ncclsvc_result gpu_usable(ncclsvc_session *s);
/* The daemon's number for this process's device. Not locked. */
ncclsvc_result device_match(ncclsvc_session *s, int device, int32_t *number);
/* After a reattach: finds the communicators' devices again. Locked; yields. */
ncclsvc_result devices_rematch(ncclsvc_session *s);
/* The stream that the thread has set. Locked. */
ncclsvc_result stream_choose(struct op *op, const struct thread_state *t);
/* Finds streams and buffers of the operations that are on GPUs. Not settled, though OK: it yielded,
 * and everything is to be checked again. *since is 0 at first. Locked; yields. */
ncclsvc_result gpu_prepare(ncclsvc_session *s, struct op *ops, unsigned n, uint64_t *since,
			   bool *settled);
/* The n newest tasks are the operations: puts them on their streams. Locked. */
ncclsvc_result gpu_submitted(ncclsvc_session *s, const struct op *ops, unsigned n);
/* OK, or a refusal of device memory on a communicator of the host. Locked. */
ncclsvc_result host_check(const ncclsvc_session *s, const struct op *op, const char *buffer);
void device_unpin(ncclsvc_session *s, uint64_t task); /* it has ended; locked */
/* Lets the daemon let go of device memory that has been freed meanwhile. Not locked. */
void session_sweep(ncclsvc_session *s);
void gpu_reattached(ncclsvc_session *s); /* before the link changes; locked */
/* May wait for the GPU. Not locked, by the only thread that reattaches. */
void gpu_drop_retired(ncclsvc_session *s);
/* Waits until nothing of the session's runs on GPUs, or will. */
void gpu_quiesce(ncclsvc_session *s);
void gpu_close(ncclsvc_session *s);

/* ---- session.c ------------------------------------------------------------------------------ */

struct ncclsvc_session {
	uint64_t id; /* in this process: never reused */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a reply came, a task ended, or the socket's reader stopped */
	struct link_options options;
	struct link *link;
	uint32_t generation; /* of the link */
	bool lost, reading, reattaching;
	bool unfinished; /* connected again, but not all is as it was before the loss */
	char lost_text[LOST_TEXT];
	_Alignas(8) unsigned char message[SVC_LIST_MESSAGE_MAX]; /* that is being received */
	uint64_t looked_ns; /* when a test last looked at the socket */
	struct spin spin;   /* of waits for tasks */

	uint32_t serial;
	struct call *calls;
	struct tasks tasks;
	ncclsvc_comm *comms;
	uint32_t comm_keys;
	struct ncclsvc_plan *plans;
	const struct plan_hooks *plan_hooks; /* NULL: there never was a plan */
	uint64_t planned_groups;	     /* ever, of all plans' iterations */
	struct regions regions;
	struct staging staging;
	ncclsvc_timeline *timelines[SVC_TIMELINES];
	struct thread_state *threads;
	unsigned nthreads;
	struct gpu *gpu; /* NULL until a GPU is used */

	int epoll, kick; /* -1 until get_fd or a blocking dispatch */
	ncclsvc_callback *callback;
	void *callback_arg;
};

/* Sets the error and returns DAEMON_LOST if it is lost. Locked. */
static inline ncclsvc_result session_check(ncclsvc_session *s)
{
	const struct svc_ring *ring = s->link->ring;
	bool over = s->lost || s->link->foreign ||
		    (ring && atomic_load_explicit(&ring->ended, memory_order_relaxed));
	return over ? session_over(s) : NCCLSVC_OK;
}
/* OK at once if the session is not lost, and nothing is left to do from when it was. rejoin: its
 * communicators, too. Not locked. */
ncclsvc_result session_reattach(ncclsvc_session *s, int timeout_ms, bool rejoin);
/* mps_join without a session: asks the daemon that ncclsvc_open would take. */
void session_join_mps(int timeout_ms);
void session_lock(ncclsvc_session *s);
void session_unlock(ncclsvc_session *s);
/* dispatch.c: tells the event loop that something is there. Locked. */
void dispatch_kick(ncclsvc_session *s);
/* dispatch.c: the event loop's fd stays while the link changes. Locked. */
ncclsvc_result dispatch_watch(ncclsvc_session *s);
void dispatch_unwatch(ncclsvc_session *s);
void dispatch_close(ncclsvc_session *s);

#endif
