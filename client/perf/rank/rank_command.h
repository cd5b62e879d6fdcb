/* SPDX-License-Identifier: Apache-2.0
 * The commands of ncclsvc-perf to a rank, and the replies, over a SOCK_SEQPACKET socket per rank.
 * Ranks of the service and of the baselines use the same ones; between commands they sleep in recv.
 */
#ifndef PERF_RANK_COMMAND_H
#define PERF_RANK_COMMAND_H

#include "measured_work.h"

#define COMMAND_TEXT_BYTES 256

enum command_kind {
	COMMAND_JOIN = 1, /* join communicator `id`, and run a first operation */
	COMMAND_BUFFERS,  /* allocate and touch both buffers: bytes */
	COMMAND_TIME,	  /* warm up, wait for the others, run iters times */
	COMMAND_CHECK,	  /* fresh inputs, one run, compare */
	COMMAND_QUIT,
	/* Commands for the service's ranks: */
	COMMAND_JOIN_AND_PLAN, /* the first work.nranks ranks join another communicator and commit a
				  plan */
	/* Commands for ranks on GPUs: */
	COMMAND_TASKS, /* number of their operations that the daemon handled */
	COMMAND_PLACE, /* what the daemon reports about the rank's GPU and communicator */
	/* A command for the process that queues tasks (queue.h): */
	COMMAND_FIGURES, /* how long listing took */
};

/* When a rank waits for submitted operations. */
enum sync {
	SYNC_EACH = 0, /* for each operation */
	SYNC_STREAM,   /* at the end; on a GPU each operation orders the stream */
	SYNC_LAST,     /* at the end; on a GPU only the last orders the stream */
};

struct command {
	uint32_t kind;	     /* enum command_kind */
	uint8_t fill;	     /* TIME: create inputs first */
	uint8_t sync;	     /* enum sync */
	uint8_t latency;     /* TIME: measure each operation, with SYNC_EACH */
	uint8_t kernels_off; /* JOIN_AND_PLAN: communicators without kernels */
	uint64_t bytes;
	uint64_t iters, warmup;
	uint64_t seed;
	uint32_t kernels; /* TIME: how many kernels run on another stream meanwhile, and their
			     length */
	uint32_t spins;
	uint32_t every_us; /* TIME: period of the operations' starts; 0: no pause */
	uint32_t graph;	   /* TIME, CHECK: operations per CUDA graph; 0: no graphs */
	uint32_t before;   /* TIME: 1: a short kernel precedes each operation */
	uint32_t reserved;
	struct work work;
	uint8_t id[NCCLSVC_ID_BYTES];
};

struct reply {
	int32_t result; /* ncclsvc_result, or 0 */
	uint32_t reserved;
	uint64_t elapsed_ns; /* time of all iterations, without pauses */
	uint64_t cpu_ns;     /* TIME: CPU time of the thread until it had submitted everything */
	uint64_t median_ns;  /* TIME with latency: median of one operation */
	uint64_t p99_ns;     /* the 99th percentile */
	uint64_t commit_ns;  /* JOIN_AND_PLAN: time to commit the plan */
	uint64_t worst_ns;   /* FIGURES: longest time of one list */
	uint64_t listed;     /* FIGURES: tasks in the last list */
	uint64_t tasks;	     /* TASKS: total that the daemon has seen from this process */
	uint64_t transport;  /* TASKS: their ncclsvc_transport */
	uint64_t mps;	     /* PLACE: ncclsvc_mps of this process */
	uint64_t peer_bytes; /* PLACE, JOIN_AND_PLAN: the direct transport's largest operations */
	uint64_t wrong;
	int64_t gpu_bytes;	       /* JOIN: GPU memory used */
	char text[COMMAND_TEXT_BYTES]; /* the reason of a failure; PLACE: the GPU's model */
};

/* The first message from a baseline's rank. */
struct hello {
	uint32_t magic;
	uint32_t command_size; /* both programs must come from the same build */
	int32_t rank, nranks;
	int32_t pid;
	uint32_t reserved;
	char library[COMMAND_TEXT_BYTES];
	uint8_t id[NCCLSVC_ID_BYTES]; /* from rank 0 of NCCL: id of the communicator to create */
};

#define HELLO_MAGIC UINT32_C(0x66726570)

uint64_t perf_now_ns(void);
/* CPU time of this thread. */
uint64_t perf_cpu_ns(void);

/* Submissions at regular intervals. */
struct pace {
	uint64_t every_ns; /* 0: no pauses */
	uint64_t next_ns, paused_ns;
};

struct pace pace_start(uint64_t every_us);
/* Sleeps until the next submission is due. After a late one, the next are not hurried. */
void pace_wait(struct pace *p);

/* Receives one command. False: ncclsvc-perf is gone. */
bool command_receive(int fd, struct command *command);
/* Sends one message. False: the other side is gone. */
bool message_send(int fd, const void *message, size_t size);

/* Connects a baseline's rank to ncclsvc-perf. -1 with errno on failure. */
int command_connect(const char *path);
/* Introduces the rank: fills in magic, command_size and pid. */
bool hello_send(int fd, struct hello *hello);

#endif
