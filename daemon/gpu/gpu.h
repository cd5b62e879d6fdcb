/* SPDX-License-Identifier: Apache-2.0
 *
 * The supervisor's side of the GPUs: their workers (gpu.c), and NCCL communicators (nccl_comm.h) or
 * staging (staged.c). It never calls CUDA, but sends messages to workers.
 */
#ifndef DAEMON_GPU_H
#define DAEMON_GPU_H

#include <uv.h>

#include "proto/abi/worker_queue.h"
#include "proto/ncclsvc_types.h"
#include "proto/svc_limits.h"
#include "proto/worker_protocol.h"

struct session;
struct coord;
struct communicator;
struct gpu;
struct gpus;

#define GPUS_MAX SVC_RING_WORKERS

/* Callbacks to the layers above. owner is that of struct gpus. */
struct gpu_callbacks {
	/* A new worker is ready: it has no state of its predecessor. */
	void (*worker_ready)(void *owner, struct gpu *g);
	/* The worker is gone, with all its state. */
	void (*worker_lost)(void *owner, struct gpu *g);
	/* May the worker end? It is neither busy nor in use by NCCL communicators. */
	bool (*may_rest)(void *owner, const struct gpu *g);
	/* A resource that an NCCL communicator held is free; others may have waited for it. */
	void (*has_room)(void *owner);
	/* m has its NCCL communicator, or why not. */
	void (*made)(struct communicator *m, int result, const char *why);
	/* m's is broken because of this rank: ends the running epoch. False: none runs. */
	bool (*broken)(struct communicator *m, int result, int32_t rank);
	/* Workers are about to be asked to abort m's operations. */
	void (*aborts)(const struct communicator *m);
	/* Nothing of m runs on GPUs any more; or it waits for input that must not delay it. */
	void (*dead)(const struct communicator *m);
	void (*release)(const struct communicator *m);
	/* m's has been unused for idle_release. */
	void (*unused)(struct communicator *m);
	/* When m's NCCL communicator will be given back, because all its members have left; 0:
	 * never. */
	uint64_t (*left_until)(const struct communicator *m);
};

/* The GPUs of this node. */
struct gpus {
	struct loop *loop;
	const struct config *config;
	const char *path; /* of the daemon's socket; this daemon's private files are beside it */
	struct scheduler *scheduler;
	struct coord *coord;
	const struct gpu_callbacks *callbacks;
	void *owner; /* argument of the callbacks */
	struct gpu *gpu[GPUS_MAX];
	uint32_t ngpus;
	struct gpu_mps *mps; /* NULL: there are no GPUs */
	struct nccl_comm *nccl_comms;
	bool slots[WORKER_COMM_SLOTS]; /* in use */
	uint64_t creations;	       /* number of creations so far */
	struct staging *staging;       /* for staging device memory; NULL: NCCL carries it */
};

/* answer is NULL if the worker is gone. */
typedef void gpu_done(struct gpu *g, void *arg, const struct worker_message *answer);

struct gpu_call {
	struct gpu_call *prev, *next;
	gpu_done *done;
	void *arg;
	uint64_t key, asked_ns, within_ns;
	bool aborts;  /* may take until the worker's end */
	bool beside;  /* the worker answers other requests meanwhile, so no heartbeat is expected */
	bool patient; /* its turn comes in the queue, so a late answer does not mean that the worker
			 hangs */
};

/* A message that the socket did not accept at once. */
struct gpu_message {
	struct gpu_message *prev, *next;
	struct worker_message message;
};

struct gpu {
	struct gpus *gpus;
	int32_t index;
	uint32_t number; /* as numbered by the probe */
	uint32_t reach;	 /* bitmap by number: GPUs whose memory it can access */
	ncclsvc_device_info info;
	uint64_t since_ns;
	uint64_t backoff_ms;
	uint64_t done_before;	    /* when its worker became ready */
	uint32_t generation;	    /* of its worker */
	struct worker_queue *queue; /* persistent: a new worker continues it */
	int queue_fd, bell;
	int sock; /* -1: no worker */
	uv_process_t process;
	bool alive;	    /* the process lives; its handle is open */
	bool served;	    /* this worker has been ready */
	bool gone;	    /* it ends, and all users were notified */
	bool rested;	    /* it was told to end, because it was idle */
	bool resting;	    /* there is no worker until one is needed; the state stays READY */
	uint64_t used_ns;   /* when it was last seen in use */
	uint64_t killed_ns; /* 0: it was not */
	bool of_use;	    /* so its successor starts at once */
	uv_poll_t *poll;
	uv_timer_t timer;
	struct gpu_call *calls;
	uint64_t last_key;
	uint64_t heard_ns; /* the last answer, except to aborts */
	uint64_t ticked_ns,
		resumed_ns; /* the last check of it, and the last check that came too late */
	struct gpu_message *out;
};

/* Can one GPU access the other's memory? */
static inline bool gpu_reaches(const struct gpus *s, int32_t from, int32_t to)
{
	const uint32_t number = s->gpu[to]->number;
	return number < 32 && s->gpu[from]->reach >> number & 1;
}

/* Does its worker run, and answer? */
static inline bool gpu_serves(const struct gpu *g)
{
	return g->info.state == NCCLSVC_DEVICE_READY && !g->resting;
}

/* Finds GPUs and starts their workers; waits for them, up to a deadline. Returns 0, or -1 after
 * logging that GPUs were requested and none was found. */
int gpu_start(struct gpus *s);
/* Ends the workers; the loop must run until server_closed is true. */
void gpu_stop(struct gpus *s);
void gpu_free(struct gpus *s);

/* gpu.c: starts its worker, or schedules another attempt. */
void gpu_start_worker(struct gpu *g);
/* The worker is needed: starts it if it rests, and lets it run for another worker_idle seconds. */
void gpu_need(struct gpu *g);
/* Ends workers that nobody has needed for worker_idle; returns the next deadline. */
uint64_t gpu_expire(struct gpus *s, uint64_t now);
/* start.c: starts this program again as argv[0]. Returns the socket to it, or -1; even then,
 * `closed` may be called. */
int gpu_spawn(struct gpus *s, uv_process_t *process, char **argv, int queue_fd, int bell,
	      uv_exit_cb exited, uv_close_cb closed);
/* NULL: no such device, or it is unusable. */
struct gpu *gpu_find(struct gpus *s, int32_t device);
/* Sends a request. fd (or -1) stays the caller's. done is called exactly once. False: the worker's
 * socket does not accept the fd now, and nothing was sent. */
bool gpu_ask(struct gpu *g, const struct worker_message *m, int fd, gpu_done *done, void *arg,
	     uint64_t within_ns);
/* The same for requests without an answer. */
void gpu_tell(struct gpu *g, const struct worker_message *m);
/* Shortens the deadline of requests with this arg to that time from now. */
void gpu_shorten_deadline(struct gpu *g, const void *arg, uint64_t within_ns);
/* Kills a misbehaving worker. Its end is handled like any other. */
void gpu_kill(struct gpu *g, const char *why);
/* How long a worker may take to answer. */
uint64_t gpu_patience_ns(const struct gpus *s);

/* staged.c: transport = mpi. */
struct staging {
	int fd;
	char *base;
	uint64_t pinned, bytes; /* pinned: how many of the bytes are pinned, from the first */
};

/* Call when the GPUs are known. no_nccl: why NCCL cannot be used; empty: it can. Returns 0, or -1
 * with a message logged. */
int staging_choose(struct gpus *s, const char *no_nccl);
void staging_free(struct gpus *s);
void staging_worker_ready(struct gpu *g);
void staging_worker_lost(struct gpu *g);

#endif
