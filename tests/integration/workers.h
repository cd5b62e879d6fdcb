/* SPDX-License-Identifier: Apache-2.0
 * A daemon with stand-in GPUs, and ranks that execute the test's orders one after the other, so
 * that a test reads as a sequence of submissions, kills and checks. */
#ifndef TESTS_WORKERS_H
#define TESTS_WORKERS_H

#include "harness.h"

#define RANK_GROUP_MAX	 8
#define RANK_GROUP_GPUS	 4
#define RANK_GROUP_COMMS 4 /* per rank */

/* The orders for a rank. Each is answered with an ncclsvc_result, unless noted. */
enum order {
	ORDER_JOIN = 1, /* args: communicator, nranks, rank, device, timeout in ms, place */
	ORDER_REJOIN,	/* place, timeout in ms */
	ORDER_LEAVE,	/* place */
	ORDER_SPLIT,	/* place, colour, key, timeout in ms, place of the new one */
	ORDER_SUM,    /* place, words, value, deadline in ms (0: none): sums value over the ranks */
	ORDER_SEND,   /* place, words, value, peer */
	ORDER_RECV,   /* place, words, peer */
	ORDER_GATHER, /* place, words, value: mismatches a sum */
	ORDER_WAIT,   /* timeout in ms: for the last task */
	ORDER_SYNC,   /* OK, or TIMEOUT: the stream's work is over */
	ORDER_SLEEP,  /* the same by cuStreamSynchronize, without a call of the library */
	ORDER_VALUE,  /* answered with the buffer's words, which are all equal */
	ORDER_BLOCK,  /* the stream stops until ORDER_UNBLOCK */
	ORDER_UNBLOCK,
	ORDER_DETACHED, /* 1: submit tasks detached from now on; 0: do not */
	ORDER_ERROR,	/* place: ncclsvc_comm_error */
	ORDER_STREAK,	/* place, tasks, value: sums that many times, and checks the last */
	ORDER_FLOOD,	/* place, tasks: submits as many AllReduces, detached, without waiting */
	ORDER_MIX,	/* rounds, seed: task groups on places 0 to 2, checked */
	ORDER_ALLOC,	/* bytes: ncclsvc_mem_alloc_device, used from then on */
	ORDER_NEW,	/* a new buffer, in memory of the rank's own */
	ORDER_REATTACH,
	ORDER_CLOSE, /* closes the session, then the process ends */
};

/* Shared by a rank and the test. */
struct page {
	int gpu;
	bool early; /* initialize CUDA before the session is opened */
	int64_t args[6];
	ncclsvc_status status; /* of the last task that was waited for */
	uint64_t told_ns;      /* when the last order was done */
	char text[512];	       /* its error */
};

struct rank_group {
	struct daemon d;
	char fake[64];
	struct client ranks[RANK_GROUP_MAX];
	int n, gpus;
	struct page *pages; /* [RANK_GROUP_MAX] */
	/* Resources in use before any rank joined. */
	struct {
		unsigned long long unused[RANK_GROUP_GPUS];
		int worker_fds[RANK_GROUP_GPUS], files;
	} base;
};

int ranks_teardown(void **state);
#define RANKS_TEST(function)                                                                       \
	cmocka_unit_test_setup_teardown(function, harness_setup, ranks_teardown)

/* Creates a directory for the stand-ins, with that many GPUs; faults may be set before the daemon
 * starts. */
void ranks_prepare(struct rank_group *c, int gpus);
/* Starts the daemon with --device cuda and further options (NULL ends them). */
void ranks_start_daemon(struct rank_group *c, ...) __attribute__((sentinel));
/* Creates n ranks without communicators; rank i has GPU i modulo the number of GPUs. */
void ranks_create(struct rank_group *c, int n);
/* All of the above for n GPUs and n ranks; every rank is in communicator 1 at place 0, which is
 * tested. */
void ranks_start(struct rank_group *c, int n, ...) __attribute__((sentinel));
/* Starts another process in place of a killed one. */
void ranks_replace(struct rank_group *c, int rank);
/* Ends the remaining ranks, checks that they left nothing behind, and ends the daemon. */
void ranks_stop(struct rank_group *c);

/* Gives an order to rank i; args as documented for the order. */
void ranks_tell(struct rank_group *c, int i, enum order order, const int64_t args[6]);
uint64_t ranks_reply(struct rank_group *c, int i);
#define ranks_begin(c, i, order, ...) ranks_tell(c, i, order, (const int64_t[6]){__VA_ARGS__})
#define ranks_ask(c, i, order, ...)                                                                \
	(ranks_begin(c, i, order, __VA_ARGS__), (ncclsvc_result)(int64_t)ranks_reply(c, i))
#define ranks_must(c, i, order, result, ...)                                                       \
	ranks_expect(c, i, ranks_ask(c, i, order, __VA_ARGS__), result, __FILE__, __LINE__)
#define ranks_ended(c, i, result)                                                                  \
	ranks_expect(c, i, (ncclsvc_result)(int64_t)ranks_reply(c, i), result, __FILE__, __LINE__)
void ranks_expect(const struct rank_group *c, int i, ncclsvc_result is, ncclsvc_result due,
		  const char *file, int line);

/* The ranks of the mask join communicator `id` in that order, each with its own GPU. */
void ranks_join(struct rank_group *c, int id, unsigned mask, int place);
void ranks_rejoin(struct rank_group *c, unsigned mask, int place);
/* The ranks of the mask sum at that place, and check the result. */
void ranks_try(struct rank_group *c, unsigned mask, int place);

/* Kills the rank, and returns the time at which it was gone. */
uint64_t ranks_kill(struct rank_group *c, int rank);
/* Checks that rank i's last order was done soon enough after `since`. */
#define ranks_in_time(c, i, since) ranks_check_time(c, i, since, __FILE__, __LINE__)
void ranks_check_time(const struct rank_group *c, int i, uint64_t since, const char *file,
		      int line);

/* ---- Faults and GPUs ---- */

void fault_on(const struct rank_group *c, const char *name, int pid);
void fault_off(const struct rank_group *c, const char *name);

ncclsvc_device_info device_of(const struct rank_group *c, int device);
/* Waits until the GPU has one NCCL communicator: an aborted one may still be ending. */
void only_comm_stays(const struct rank_group *c, int device);
/* Waits until the device is in that state, and returns its info. */
ncclsvc_device_info device_reaches(const struct rank_group *c, int device,
				   ncclsvc_device_state state);
/* Kills the worker; returns the time at which it was gone. */
uint64_t worker_kill(const struct rank_group *c, int device);
void worker_pause(int pid);
void worker_continue(int pid);
/* Waits until a worker other than pid is ready. */
ncclsvc_device_info worker_replaced(const struct rank_group *c, int device, int pid);
/* Whether the text is in the daemon's log now. */
bool daemon_says(const struct daemon *d, const char *text);
/* Waits until the daemon lists n tasks in that state. */
void tasks_come(const struct rank_group *c, ncclsvc_state state, size_t n);
/* Waits until that many kernels hang due to the fault kernel-hang. They keep hanging when it is
 * turned off. */
void kernels_hang(const struct rank_group *c, int n);
/* Waits until the daemon has n sessions. */
void sessions_reach(const struct rank_group *c, size_t n);
/* Waits until a task of that rank's process is in that state. */
void tasks_reach_some(const struct rank_group *c, int rank, ncclsvc_state state);

#endif
