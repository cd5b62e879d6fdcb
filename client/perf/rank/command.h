/* SPDX-License-Identifier: Apache-2.0
 *
 * What the coordinator says to a rank and what the rank answers, over a SOCK_SEQPACKET socket of
 * its own. Ranks of the service and of the baseline speak the same; between jobs they sleep in
 * recv. */
#ifndef PERF_JOB_H
#define PERF_JOB_H

#include "work.h"

#define JOB_MAGIC      UINT32_C(0x66726570)
#define JOB_TEXT_BYTES 256

enum job_kind {
	JOB_BUFFERS = 1, /* allocate and touch both buffers: bytes */
	JOB_TIME,	 /* warm up, meet the others, run iters times */
	JOB_CHECK,	 /* fresh inputs, one run, compare */
	JOB_QUIT,
	JOB_JOIN, /* the first work.nranks ranks join communicator `id`, and commit a plan on it */
	/* On GPUs: */
	JOB_INIT, /* join communicator `id`, and a first AllReduce */
	/* Of the helpers of queue.h: */
	JOB_QUEUE, /* join communicators made of `id`, and queue tasks */
	JOB_DRAIN, /* leave them */
};

/* When a rank waits for what it has submitted. */
enum sync {
	SYNC_EACH = 0, /* for each operation */
	SYNC_STREAM,   /* at the end; on a GPU each operation orders the stream */
	SYNC_LAST,     /* at the end; on a GPU only the last orders the stream */
};

struct job {
	uint32_t kind; /* enum job_kind */
	uint8_t fill;  /* TIME: make inputs first */
	uint8_t sync;  /* enum sync */
	uint16_t reserved;
	uint64_t bytes;
	uint64_t iters, warmup;
	uint64_t seed;
	uint32_t kernels; /* TIME: how many run on another stream meanwhile, and how long each is */
	uint32_t spins;
	uint32_t every_us; /* TIME: from the begin of an operation to the next one's; 0: no pause */
	struct work work;
	uint8_t id[NCCLSVC_ID_BYTES];
};

struct job_reply {
	int32_t result; /* ncclsvc_result, or 0 */
	uint32_t reserved;
	uint64_t elapsed_ns; /* of all iterations, without the pauses between them */
	uint64_t cpu_ns;     /* TIME: of the thread, until it had submitted all */
	uint64_t commit_ns;  /* JOIN: to commit the plan */
	uint64_t worst_ns;   /* DRAIN: of one list */
	uint64_t listed;     /* DRAIN: tasks in the last list */
	uint64_t wrong;
	int64_t gpu_bytes;	   /* INIT: how much less is free of the GPU's memory */
	char text[JOB_TEXT_BYTES]; /* why it failed */
};

/* A baseline rank's first message. */
struct job_hello {
	uint32_t magic;
	uint32_t job_size; /* both programs must be of one build */
	int32_t rank, nranks;
	int32_t pid;
	uint32_t reserved;
	char library[JOB_TEXT_BYTES];
	uint8_t id[NCCLSVC_ID_BYTES]; /* rank 0 of NCCL: of the communicator to come */
};

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

/* Receives one job. False: the coordinator is gone. */
bool job_receive(int fd, struct job *job);
/* Sends one message. False: the coordinator is gone. */
bool job_send(int fd, const void *message, size_t size);

#endif
