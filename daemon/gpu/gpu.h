/* SPDX-License-Identifier: Apache-2.0
 *
 * The supervisor's side of the GPUs: their workers (gpu.c), physical NCCL communicators
 * (physical.c) or what does without (staged.c), and trainers' memory
 * there (memory/gpu.c). No CUDA here: workers are asked by message.
 */
#ifndef DAEMON_GPU_H
#define DAEMON_GPU_H

#include <uv.h>

#include "ncclsvc_types.h"
#include "svc_limits.h"
#include "worker/protocol.h"
#include "worker/queue.h"

struct client;
struct cluster;
struct communicator;
struct gpu;
struct server;

#define GPUS_MAX 16

/* answer is NULL if the worker is gone. fd is the caller's to close after the call: -1 if none. */
typedef void gpu_done(struct gpu *g, void *arg, const struct worker_message *answer, int fd);

struct gpu_call {
	struct gpu_call *prev, *next;
	gpu_done *done;
	void *arg;
	uint64_t key, asked_ns, within_ns;
	bool in_order; /* answered after all in order that was asked before it */
	bool patient;  /* the queue says when: that it is not answered says nothing of the worker */
};

/* A message that the socket did not take at once. */
struct gpu_message {
	struct gpu_message *prev, *next;
	struct worker_message message;
	int fd; /* ours */
};

struct gpu {
	struct server *server;
	int32_t index;
	ncclsvc_device_info info;
	uint64_t since_ns;
	uint64_t backoff_ms;
	uint64_t done_before;	    /* when its worker was ready */
	uint32_t generation;	    /* of its worker */
	struct worker_queue *queue; /* for good: a new worker goes on where the last one ended */
	int queue_fd, bell;
	int sock; /* -1: no worker */
	uv_process_t process;
	bool alive;	    /* the process; its handle is open */
	bool served;	    /* this worker has been ready */
	bool gone;	    /* it ends, and everybody has been told */
	uint64_t killed_ns; /* 0: it was not */
	bool of_use;	    /* so the next one is started at once */
	uv_poll_t *poll;
	uv_timer_t timer;
	struct gpu_call *calls;
	uint64_t last_key;
	uint64_t heard_ns;		/* the last answer that came in order */
	uint64_t ticked_ns, resumed_ns; /* the last look at it, and the last that came too late */
	struct gpu_message *out;
};

/* Looks for GPUs and starts their workers; waits for that, up to a deadline. Returns 0, or -1 with
 * a message logged: GPUs were asked for and there is none. */
int gpu_start(struct server *s);
/* Ends the workers; the loop must run until server_closed says so. */
void gpu_stop(struct server *s);
void gpu_free(struct server *s);

/* gpu.c: starts its worker, or tries again later. */
void gpu_start_worker(struct gpu *g);
/* start.c: starts this program again as argv[0]. Returns the socket to it, or -1; then `closed`
 * may still come. */
int gpu_spawn(struct server *s, uv_process_t *process, char **argv, int queue_fd, int bell,
	      uv_exit_cb exited, uv_close_cb closed);
/* NULL: no such device, or none that can be used. */
struct gpu *gpu_find(struct server *s, int32_t device);
/* Sends a request. fd (or -1) stays the caller's. done comes exactly once. */
void gpu_ask(struct gpu *g, const struct worker_message *m, int fd, gpu_done *done, void *arg,
	     uint64_t within_ns);
/* The same without an answer. */
void gpu_tell(struct gpu *g, const struct worker_message *m);
/* What was asked with this arg is to be answered within that time from now, if not before. */
void gpu_hurry(struct gpu *g, const void *arg, uint64_t within_ns);
/* It does not do what it should: its end is noticed as any other. */
void gpu_kill(struct gpu *g, const char *why);
/* How long a worker may take for an answer. */
uint64_t gpu_patience_ns(const struct server *s);

struct physical_rank {
	uint32_t rank;
	int32_t device;
};

/* physical.c: physical communicators. Of one across nodes, what is here. */
struct physical {
	struct physical *prev, *next;
	struct server *server;
	struct communicator *user; /* NULL: in the pool, or on its way there */
	uint32_t lane, nranks;
	uint32_t n;	  /* ranks on this node */
	uint64_t serial;  /* its parts on other nodes have the same; 0: there are none */
	bool told;	  /* the registrar knows that it is broken */
	int32_t lost;	  /* rank because of which; -1: none */
	uint32_t waiting; /* answers still to come */
	uint64_t number;  /* of its making; 0: it is not asked for yet */
	bool ready, bad, aborting;
	bool released; /* while aborting: nothing waits for input any more */
	bool hopeless; /* a rank is lost */
	uint64_t idle_ns, abort_ns;
	int32_t result; /* and text: why it could not be made */
	char text[SVC_TEXT_BYTES];
	uint8_t id[NCCLSVC_ID_BYTES];
	struct physical_rank locals[]; /* [n]: those here, in their order */
};

/* Gives m->physical, now or by comm_physical_ready. */
void physical_acquire(struct server *s, struct communicator *m);
/* Has it the GPUs of m's members on this node, and is it good? p may be NULL. */
bool physical_fits(const struct physical *p, const struct communicator *m);
/* A new one for m, with a lane but nothing behind it; NULL: there is no room. */
struct physical *physical_make(struct server *s, struct communicator *m, uint64_t serial);
/* NCCL makes it, by p->id; comm_physical_ready follows. */
void physical_init(struct physical *p);
/* It is not to be, while it is made. */
void physical_doom(struct physical *p, int result, const char *why);
/* Says with each GPU how many it has. */
void physical_recount(struct server *s);
/* Its worker makes a communicator that is not to be, for another's part of it has failed: it may
 * have to be killed. */
bool physical_stuck(const struct gpu *g);
/* Nobody uses it: it goes in good order. */
void physical_destroy(struct physical *p);
/* Everybody has left one that fits, and it will be free in a moment: until when to wait for it.
 * 0: do not wait. */
uint64_t physical_due(const struct server *s, const struct communicator *m);
/* The epoch is over and nothing runs. m->physical is NULL afterwards. */
void physical_release(struct communicator *m);
/* The epoch ended, and what still runs may never end by itself: break it off. */
void physical_abort(struct physical *p, const char *why);
void physical_gpu_lost(struct server *s, const struct gpu *g);
void physical_lane_failed(struct server *s, struct gpu *g, uint32_t lane, const char *text);
/* Destroys what was idle too long, and hurries aborts on; returns the next deadline. */
uint64_t physical_expire(struct server *s, uint64_t now);
void physical_free_all(struct server *s);

/* staged.c: transport = mpi. */
struct staging {
	int fd;
	char *base;
	uint64_t pinned, bytes; /* pinned: the first of them */
};

/* The GPUs are known. no_nccl: why it cannot be used; empty: it can. Returns 0, or -1 with a
 * message logged. */
int staging_choose(struct server *s, const char *no_nccl);
void staging_free(struct server *s);
void staging_worker_ready(struct gpu *g);
void staging_worker_lost(struct gpu *g);

/* Another communicator takes it over: reductions that members have made go. */
void gpu_redops_clear(const struct physical *p);

#endif
