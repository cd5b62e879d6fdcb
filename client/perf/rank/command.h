/* SPDX-License-Identifier: Apache-2.0
 *
 * What ncclsvc-perf tells a rank and what the rank answers, over a SOCK_SEQPACKET socket of its
 * own. Ranks of the service and of the baselines speak the same; between commands they sleep in
 * recv. */
#ifndef PERF_COMMAND_H
#define PERF_COMMAND_H

#include "work.h"

#define COMMAND_TEXT_BYTES 256

enum command_kind {
	COMMAND_JOIN = 1, /* join communicator `id`, and do a first operation */
	COMMAND_BUFFERS,  /* allocate and touch both buffers: bytes */
	COMMAND_TIME,	  /* warm up, wait for the others, run iters times */
	COMMAND_CHECK,	  /* fresh inputs, one run, compare */
	COMMAND_QUIT,
	/* Commands for the service's ranks: */
	COMMAND_JOIN_AND_PLAN, /* the first work.nranks ranks join others, and commit a plan */
	/* Commands for those on GPUs: */
	COMMAND_TASKS, /* what the daemon has had to do with their operations */
	COMMAND_PLACE, /* what the daemon says of the rank's GPU and communicator */
	/* A command for the process that queues tasks (queue.h): */
	COMMAND_FIGURES, /* how long listing took */
};

/* When a rank waits for what it has submitted. */
enum sync {
	SYNC_EACH = 0, /* for each operation */
	SYNC_STREAM,   /* at the end; on a GPU each operation orders the stream */
	SYNC_LAST,     /* at the end; on a GPU only the last orders the stream */
};

struct command {
	uint32_t kind;	     /* enum command_kind */
	uint8_t fill;	     /* TIME: make inputs first */
	uint8_t sync;	     /* enum sync */
	uint8_t latency;     /* TIME: the time of each operation, with SYNC_EACH */
	uint8_t kernels_off; /* JOIN_AND_PLAN: communicators without kernels */
	uint64_t bytes;
	uint64_t iters, warmup;
	uint64_t seed;
	uint32_t kernels; /* TIME: how many run on another stream meanwhile, and how long each is */
	uint32_t spins;
	uint32_t every_us; /* TIME: from the begin of an operation to the next one's; 0: no pause */
	uint32_t graph;	   /* TIME, CHECK: so many are in a CUDA graph; 0: they are in none */
	uint32_t before;   /* TIME: 1: a short kernel is before each */
	uint32_t reserved;
	struct work work;
	uint8_t id[NCCLSVC_ID_BYTES];
};

struct reply {
	int32_t result; /* ncclsvc_result, or 0 */
	uint32_t reserved;
	uint64_t elapsed_ns; /* of all iterations, without the pauses between them */
	uint64_t cpu_ns;     /* TIME: of the thread, until it had submitted all */
	uint64_t median_ns;  /* TIME with latency: of one operation */
	uint64_t p99_ns;     /* the time that 99 % of them do not exceed */
	uint64_t commit_ns;  /* JOIN_AND_PLAN: to commit the plan */
	uint64_t worst_ns;   /* FIGURES: of one list */
	uint64_t listed;     /* FIGURES: tasks in the last list */
	uint64_t tasks;	     /* TASKS: that the daemon has seen of this process in all */
	uint64_t transport;  /* TASKS: ncclsvc_transport, of these */
	uint64_t mps;	     /* PLACE: ncclsvc_mps, of this process */
	uint64_t peer_bytes; /* PLACE, JOIN_AND_PLAN: of the largest operations in kernels */
	uint64_t wrong;
	int64_t gpu_bytes;	       /* JOIN: how much less is free of the GPU's memory */
	char text[COMMAND_TEXT_BYTES]; /* why it failed; PLACE: the GPU's model */
};

/* The first message of a baseline's rank. */
struct hello {
	uint32_t magic;
	uint32_t command_size; /* both programs must be of one build */
	int32_t rank, nranks;
	int32_t pid;
	uint32_t reserved;
	char library[COMMAND_TEXT_BYTES];
	uint8_t id[NCCLSVC_ID_BYTES]; /* rank 0 of NCCL: of the communicator to come */
};

#define HELLO_MAGIC UINT32_C(0x66726570)

uint64_t perf_now_ns(void);
/* CPU time of this thread. */
uint64_t perf_cpu_ns(void);

/* Submissions at regular times. */
struct pace {
	uint64_t every_ns; /* 0: one behind the other */
	uint64_t next_ns, paused_ns;
};

struct pace pace_start(uint64_t every_us);
/* Sleeps until the next submission is due. One that is late does not hasten those after it. */
void pace_wait(struct pace *p);

/* Receives one command. False: ncclsvc-perf is gone. */
bool command_receive(int fd, struct command *command);
/* Sends one message. False: the other side is gone. */
bool message_send(int fd, const void *message, size_t size);

/* Connects a baseline's rank to ncclsvc-perf. -1: it can't, with errno. */
int command_connect(const char *path);
/* Says who it is: fills magic, command_size and pid. */
bool hello_send(int fd, struct hello *hello);

#endif
