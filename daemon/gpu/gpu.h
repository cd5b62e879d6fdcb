/* SPDX-License-Identifier: Apache-2.0
 *
 * The supervisor's side of the GPUs: their workers (gpu.c), NCCL communicators
 * (nccl_comm.h), or what does without (staged.c). No CUDA here: workers are asked by message.
 */
#ifndef DAEMON_GPU_H
#define DAEMON_GPU_H

#include <uv.h>

#include "abi/worker_queue.h"
#include "ncclsvc_types.h"
#include "svc_limits.h"
#include "worker_protocol.h"

struct client;
struct coord;
struct communicator;
struct gpu;
struct gpus;

#define GPUS_MAX 16

/* What the layers above do. owner is that of struct gpus. */
struct gpu_callbacks {
	/* A new worker is ready: it knows nothing of what the last one had. */
	void (*worker_ready)(void *owner, struct gpu *g);
	/* The worker is gone, and with it all that it had. */
	void (*worker_lost)(void *owner, struct gpu *g);
	/* Somebody may have waited for what an NCCL communicator took. */
	void (*has_room)(void *owner);
	/* What m has acquired is there; or why not. */
	void (*made)(struct communicator *m, int result, const char *why);
	/* m's is broken, because of this rank: ends the epoch that runs. False: none does. */
	bool (*broken)(struct communicator *m, int result, int32_t rank);
	/* Workers are about to be asked to break off what runs of m's. */
	void (*aborts)(const struct communicator *m);
	/* Nothing of m's runs on GPUs any more; or it waits for input that must not hold it up. */
	void (*dead)(const struct communicator *m);
	void (*release)(const struct communicator *m);
	/* Everybody has left m, and gives its NCCL communicator back by then. 0: no. */
	uint64_t (*left_until)(const struct communicator *m);
};

/* The GPUs of this node. */
struct gpus {
	struct loop *loop;
	const struct config *config;
	const char *path; /* of the daemon's socket: what belongs to this daemon alone is beside it
			   */
	struct executor *executor;
	struct coord *coord;
	const struct gpu_callbacks *callbacks;
	void *owner; /* the callbacks' argument */
	struct gpu *gpu[GPUS_MAX];
	uint32_t ngpus;
	struct gpu_mps *mps; /* NULL: there are no GPUs */
	struct nccl_comm *nccl_comms;
	bool slots[WORKER_COMM_SLOTS]; /* in use */
	uint64_t creations;	       /* so far */
	struct staging *staging;       /* that device memory goes through; NULL: NCCL carries it */
};

/* answer is NULL if the worker is gone. fd is the caller's to close after the call: -1 if none. */
typedef void gpu_done(struct gpu *g, void *arg, const struct worker_message *answer, int fd);

struct gpu_call {
	struct gpu_call *prev, *next;
	gpu_done *done;
	void *arg;
	uint64_t key, asked_ns, within_ns;
	bool aborts;  /* what may take until the worker's end */
	bool beside;  /* the worker answers others meanwhile: no sign of life is to be expected */
	bool patient; /* the queue says when: that it is not answered says nothing of the worker */
};

/* A message that the socket did not take at once. */
struct gpu_message {
	struct gpu_message *prev, *next;
	struct worker_message message;
};

struct gpu {
	struct gpus *gpus;
	int32_t index;
	uint32_t number; /* as the probe counts */
	uint32_t reach;	 /* bits, by number: GPUs whose memory it can access */
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
	uint64_t heard_ns;		/* the last answer, but to aborts */
	uint64_t ticked_ns, resumed_ns; /* the last look at it, and the last that came too late */
	struct gpu_message *out;
};

/* Can one GPU access the other's memory? */
static inline bool gpu_reaches(const struct gpus *s, int32_t from, int32_t to)
{
	const uint32_t number = s->gpu[to]->number;
	return number < 32 && s->gpu[from]->reach >> number & 1;
}

/* Looks for GPUs and starts their workers; waits for that, up to a deadline. Returns 0, or -1 with
 * a message logged: GPUs were asked for and there is none. */
int gpu_start(struct gpus *s);
/* Ends the workers; the loop must run until server_closed says so. */
void gpu_stop(struct gpus *s);
void gpu_free(struct gpus *s);

/* gpu.c: starts its worker, or tries again later. */
void gpu_start_worker(struct gpu *g);
/* start.c: starts this program again as argv[0]. Returns the socket to it, or -1; then `closed`
 * may still come. */
int gpu_spawn(struct gpus *s, uv_process_t *process, char **argv, int queue_fd, int bell,
	      uv_exit_cb exited, uv_close_cb closed);
/* NULL: no such device, or none that can be used. */
struct gpu *gpu_find(struct gpus *s, int32_t device);
/* Sends a request. fd (or -1) stays the caller's. done comes exactly once. False: the worker's
 * socket does not take the fd now, and nothing was asked. */
bool gpu_ask(struct gpu *g, const struct worker_message *m, int fd, gpu_done *done, void *arg,
	     uint64_t within_ns);
/* The same without an answer. */
void gpu_tell(struct gpu *g, const struct worker_message *m);
/* Requests with this arg must be answered within that time from now, or by their own deadline if
 * that is sooner. */
void gpu_shorten_deadline(struct gpu *g, const void *arg, uint64_t within_ns);
/* Kills a worker that does not do what it should. Its end is handled as any worker's. */
void gpu_kill(struct gpu *g, const char *why);
/* How long a worker may take for an answer. */
uint64_t gpu_patience_ns(const struct gpus *s);

/* staged.c: transport = mpi. */
struct staging {
	int fd;
	char *base;
	uint64_t pinned, bytes; /* pinned: the first of them */
};

/* The GPUs are known. no_nccl: why it cannot be used; empty: it can. Returns 0, or -1 with a
 * message logged. */
int staging_choose(struct gpus *s, const char *no_nccl);
void staging_free(struct gpus *s);
void staging_worker_ready(struct gpu *g);
void staging_worker_lost(struct gpu *g);

#endif
