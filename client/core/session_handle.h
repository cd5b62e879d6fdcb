/* SPDX-License-Identifier: Apache-2.0
 * The session and its parts. Throughout the library, "locked" means: call with the session's lock
 * held. "Yields" means: the function may drop the lock meanwhile, so re-read what was read before.
 *
 * The files of this folder, bottom up; none calls a file of a later line:
 *
 *   session_handle.c  the lock, waiting for changes  call.c         requests with dropped replies
 *   thread.c          what a thread has set          comm_handle.c  communicator handles
 *   failure.c         failed tasks                   refusal.c      refused operations
 *   task_slot.c       the table of tasks             epoch.c        begin and end of an epoch
 *   loss.c            the loss of the session
 *   session_socket.c  the reader, requests and replies
 *   region_table.c    registered regions             inspect.c      listings
 *   staging.c         memory for plain pointers
 *   wait.c            the progress of tasks
 *   dispatch.c        event loops                    session_timeline.c  the user's timelines */
#ifndef CLIENT_CORE_SESSION_HANDLE_H
#define CLIENT_CORE_SESSION_HANDLE_H

#include <pthread.h>

#include "base/connection.h"
#include "base/error.h"
#include "proto/spin.h"
#include "region_table.h"
#include "staging.h"
#include "task_slot.h"

struct call;
struct history;
struct thread_state;
struct gpu;

/* in_force's answer for a plan that cannot be continued. */
#define PLAN_ODD UINT64_MAX

/* The session's callbacks into the plan layer. */
struct plan_callbacks {
	void (*comm_left)(ncclsvc_session *s, const ncclsvc_comm *comm); /* locked */
	void (*closing)(ncclsvc_session *s); /* nothing runs on GPUs any more */
	/* Copies a planned task's label; leaves it unchanged if the plan has moved on. Locked. */
	void (*label)(const ncclsvc_session *s, const struct slot *slot,
		      char label[NCCLSVC_LABEL_BYTES]);
	/* A restart of the daemon (comm/resume.c). Locked. The daemon is gone: notes which plans
	 * were in force. */
	void (*away)(ncclsvc_session *s);
	/* The plan in force on the communicator: 0: none that matters; PLAN_ODD: one that cannot be
	 * continued; otherwise what all members call it. */
	uint64_t (*in_force)(const ncclsvc_session *s, const ncclsvc_comm *comm);
	/* Whether no iteration of its plan is under way: then it may be dropped and committed
	 * anew. */
	bool (*rests)(const ncclsvc_session *s, const ncclsvc_comm *comm);
	void (*drop)(const ncclsvc_session *s, const ncclsvc_comm *comm);
	/* Whether a pending task's plan continues, by its handle. */
	bool (*continues)(const ncclsvc_session *s, const ncclsvc_comm *comm, uint32_t handle);
	/* Adds the planned operations that have not been submitted. False: out of memory. */
	bool (*history)(const ncclsvc_session *s, const ncclsvc_comm *comm, struct history *h);
	/* Commits the communicator's plan to the next daemon, under its old handle: the request,
	 * then its answer (false: it has not come yet). If they fail, the plan is over. */
	void (*commit_again)(ncclsvc_session *s, ncclsvc_comm *comm, uint64_t deadline);
	bool (*committed_again)(ncclsvc_session *s, ncclsvc_comm *comm, uint64_t deadline);
	/* The session has come back. */
	void (*back)(ncclsvc_session *s);
};

/* Whether the session is waiting for the next daemon (comm/resume.c). */
enum away {
	AWAY_NOT,
	AWAY_GONE,     /* there is no connection */
	AWAY_RESUMING, /* the watcher resumes it, or some of its communicators; no other thread
			  calls the daemon */
};

struct ncclsvc_session {
	uint64_t id; /* unique in this process: never reused */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* signalled when a reply came, a task ended, or the socket's reader
				   stopped */
	struct connection_options options;
	ncclsvc_admit admit; /* to its communicators */
	struct connection *connection;
	uint32_t generation; /* generation of the connection */
	bool lost, reading, reattaching;
	bool unfinished; /* connected again, but not yet fully recovered from the loss */
	/* Surviving the daemon (comm/resume.c): */
	int reattach_ms; /* how long the session waits for a successor; 0: it does not */
	bool survives;	 /* all its communicators can be continued */
	enum away away;
	uint64_t away_until;
	uint32_t resumptions;	/* how often it has come back */
	struct left_comm *left; /* a ring of LEFT_KEPT */
	uint32_t nleft;		/* in total */
	struct carried *carried;
	size_t ncarried;
	bool returned;	   /* the next daemon has the session memory, and nothing else yet */
	int wake;	   /* an eventfd: a communicator was suspended; -1: there is no watcher */
	pthread_t watcher; /* the thread that waits for the daemon's end */
	bool watching, closing;
	char lost_text[LOST_TEXT];
	_Alignas(8) unsigned char message[SVC_LIST_MESSAGE_MAX]; /* the message being received */
	uint64_t looked_ns; /* time of the last check of the socket by a test */
	struct spin spin;   /* for waits for tasks */

	uint32_t list_node; /* 1 + the node whose lists are asked for; 0: the daemon's own */
	uint32_t request_id;
	struct call *calls;
	uint32_t forgotten; /* unanswered requests whose answers are dropped */
	struct tasks tasks;
	ncclsvc_comm *comms;
	uint32_t comm_keys;
	struct ncclsvc_plan *plans;
	const struct plan_callbacks *plan_callbacks;	 /* NULL: the session never had a plan */
	const struct list_callbacks *list_callbacks;	 /* NULL: no task group ever had a list */
	const struct kernel_callbacks *kernel_callbacks; /* NULL: the session never had a kernel */
	uint64_t planned_groups;			 /* total over all plans' iterations */
	struct regions regions;
	struct staging staging;
	ncclsvc_timeline *timelines[SVC_TIMELINES];
	struct thread_state *threads;
	unsigned nthreads;
	struct gpu *gpu; /* NULL until a GPU is used */

	int epoll, kick, timer; /* -1 until get_fd or a blocking dispatch */
	bool ticking;
	ncclsvc_callback *callback;
	void *callback_arg;
};

void session_lock(ncclsvc_session *s);
void session_unlock(ncclsvc_session *s);
/* Waits until another thread changes something. False: the deadline passed. Locked; yields. */
bool session_wait(ncclsvc_session *s, uint64_t deadline);
/* Sleeps for 0.2 ms. Locked; yields. */
void session_nap(ncclsvc_session *s);
/* Makes the event loop's fd readable. Locked. */
void session_kick(ncclsvc_session *s);

/* ---- loss.c ---- */

/* Ends the connection. Locked. */
__attribute__((format(printf, 2, 3))) void session_lose(ncclsvc_session *s, const char *format,
							...);
/* The daemon has ended: the session waits for its successor, if it can, or is lost. Locked. */
__attribute__((format(printf, 2, 3))) void session_lose_daemon(ncclsvc_session *s,
							       const char *format, ...);
/* A communicator is suspended. False: the session cannot continue it. Locked. */
bool session_suspend(ncclsvc_session *s);
bool session_is_watcher(const ncclsvc_session *s); /* the calling thread; locked */
/* Waits until the session has come back from a restart of its daemon, or is lost: the watcher's
 * deadlines bound this. The watcher never waits: DAEMON_LOST if the connection is gone. Locked;
 * yields. */
ncclsvc_result session_back(ncclsvc_session *s);
/* Changes with each connection. */
static inline uint32_t session_connections(const ncclsvc_session *s)
{
	return s->generation + s->resumptions;
}
/* Notes whether the session survives its daemon, also for the daemon's workers. Locked. */
static inline void session_survives(ncclsvc_session *s, bool survives)
{
	s->survives = survives;
	if (s->connection->ring)
		atomic_store(&s->connection->ring->survives, survives);
}
/* Whether this process is a forked child. It loses the session only for itself: what it shares with
 * its parent stays untouched. Locked. */
bool session_is_foreign(ncclsvc_session *s);

/* ---- session_socket.c ---- */

/* The slow part of session_check: the session is or seems lost, or belongs to the process that
 * forked this one. Locked. */
ncclsvc_result session_over(ncclsvc_session *s);
/* If the session is lost, sets the error and returns DAEMON_LOST. Locked. */
static inline ncclsvc_result session_check(ncclsvc_session *s)
{
	const struct svc_ring *ring = s->connection->ring;
	bool over = s->lost || s->connection->foreign ||
		    (ring && atomic_load_explicit(&ring->ended, memory_order_relaxed));
	return over ? session_over(s) : NCCLSVC_OK;
}

#endif
