/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon with GPUs of the stand-ins, and ranks that do what the test tells them, one command
 * after the other, so that a test reads as a story: who submits, who is killed, what the others
 * then see. */
#ifndef TESTS_WORKERS_H
#define TESTS_WORKERS_H

#include "harness.h"

#define CREW_MAX   8
#define CREW_GPUS  4
#define CREW_COMMS 4 /* of one rank */

/* What a rank can be told. Each is answered with an ncclsvc_result, or as said. */
enum order {
	ORDER_JOIN = 1, /* args: communicator, nranks, rank, device, timeout in ms, its place */
	ORDER_REJOIN,	/* place, timeout in ms */
	ORDER_LEAVE,	/* place */
	ORDER_SPLIT,	/* place, colour, key, timeout in ms, place of the new one */
	ORDER_SUM,    /* place, words, value, deadline in ms (0: none): sums value over the ranks */
	ORDER_SEND,   /* place, words, value, peer */
	ORDER_RECV,   /* place, words, peer */
	ORDER_GATHER, /* place, words, value: mismatches a sum */
	ORDER_WAIT,   /* timeout in ms: for the last task */
	ORDER_SYNC,   /* OK, or TIMEOUT: the stream's work is over */
	ORDER_SLEEP,  /* the same asleep in the driver, where no call of the library is made */
	ORDER_VALUE,  /* answered with the buffer's words, which are all alike */
	ORDER_BLOCK,  /* the stream stops until ORDER_UNBLOCK */
	ORDER_UNBLOCK,
	ORDER_DETACHED, /* 1: tasks are submitted detached from now on; 0: not */
	ORDER_ERROR,	/* place: ncclsvc_comm_error */
	ORDER_STREAK,	/* place, tasks, value: sums that many times, and checks the last */
	ORDER_FLOOD,	/* place, tasks: sums, detached, as many as the ring takes, and no wait */
	ORDER_MIX,	/* rounds, seed: task groups on places 0 to 2, checked */
	ORDER_LEND,	/* bytes: borrows memory, which is used from then on */
	ORDER_NEW,	/* a new buffer, with memory of its own */
	ORDER_REATTACH,
	ORDER_CLOSE, /* the session, and then the process ends */
};

/* What a rank and the test share. */
struct page {
	int gpu;
	bool early; /* initializes CUDA before it opens its session */
	int64_t args[6];
	ncclsvc_status status; /* of the last task that was waited for */
	uint64_t told_ns;      /* when the last order was over */
	char text[512];	       /* its error */
};

struct crew {
	struct daemon d;
	char fake[64];
	struct client ranks[CREW_MAX];
	int n, gpus;
	struct page *pages; /* [CREW_MAX] */
	/* What was there when nobody had joined. */
	struct {
		unsigned long long unused[CREW_GPUS];
		int worker_fds[CREW_GPUS], files;
	} base;
};

int crew_teardown(void **state);
#define CREW_TEST(function) cmocka_unit_test_setup_teardown(function, harness_setup, crew_teardown)

/* A directory for the stand-ins, with so many GPUs; faults may be set before the daemon starts. */
void crew_prepare(struct crew *c, int gpus);
/* The daemon, with --device cuda and further options (NULL ends them). */
void crew_daemon(struct crew *c, ...) __attribute__((sentinel));
/* n ranks that do not belong to anything yet; rank i has GPU i, modulo the number of GPUs. */
void crew_ranks(struct crew *c, int n);
/* All of it, every rank in communicator 1 at place 0, which is tried out. */
void crew_start(struct crew *c, int n, ...) __attribute__((sentinel));
/* One more process in the place of one that was killed. */
void crew_replace(struct crew *c, int rank);
/* Ends the ranks that are left; checks that nothing of them is left anywhere; ends the daemon. */
void crew_stop(struct crew *c);

/* Orders to rank i: args are as the order has them. */
void crew_tell(struct crew *c, int i, enum order order, const int64_t args[6]);
uint64_t crew_hear(struct crew *c, int i);
#define crew_begin(c, i, order, ...) crew_tell(c, i, order, (const int64_t[6]){__VA_ARGS__})
#define crew_ask(c, i, order, ...)                                                                 \
	(crew_begin(c, i, order, __VA_ARGS__), (ncclsvc_result)(int64_t)crew_hear(c, i))
#define crew_must(c, i, order, result, ...)                                                        \
	crew_expect(c, i, crew_ask(c, i, order, __VA_ARGS__), result, __FILE__, __LINE__)
#define crew_ended(c, i, result)                                                                   \
	crew_expect(c, i, (ncclsvc_result)(int64_t)crew_hear(c, i), result, __FILE__, __LINE__)
void crew_expect(const struct crew *c, int i, ncclsvc_result is, ncclsvc_result due,
		 const char *file, int line);

/* The ranks of the mask join communicator `id` in that order, each with its own GPU. */
void crew_join(struct crew *c, int id, unsigned mask, int place);
void crew_rejoin(struct crew *c, unsigned mask, int place);
/* They sum there, and have the right result. */
void crew_try(struct crew *c, unsigned mask, int place);

/* Kills it and returns when it was gone. */
uint64_t crew_kill(struct crew *c, int rank);
/* Rank i's last order was over in due time after that. */
#define crew_in_time(c, i, since) crew_check_time(c, i, since, __FILE__, __LINE__)
void crew_check_time(const struct crew *c, int i, uint64_t since, const char *file, int line);

/* ---- Faults and GPUs ---- */

void fault_on(const struct crew *c, const char *name, int pid);
void fault_off(const struct crew *c, const char *name);

ncclsvc_device_info device_of(const struct crew *c, int device);
/* Waits until it is in that state, and says the same of it. */
ncclsvc_device_info device_reaches(const struct crew *c, int device, ncclsvc_device_state state);
/* Kills the worker; returns when it was gone. */
uint64_t worker_kill(const struct crew *c, int device);
void worker_pause(int pid);
void worker_continue(int pid);
/* Waits until another worker than pid is ready. */
ncclsvc_device_info worker_replaced(const struct crew *c, int device, int pid);
/* Whether the text stands in the daemon's log by now. */
bool daemon_says(const struct daemon *d, const char *text);
/* Until the daemon lists n tasks in that state. */
void tasks_come(const struct crew *c, ncclsvc_state state, size_t n);
/* Until so many kernels of the fault kernel-hang hang, and on even if that is turned off. */
void kernels_hang(const struct crew *c, int n);
/* Until the daemon has n sessions. */
void sessions_reach(const struct crew *c, size_t n);
/* Until a task of that rank's process is in that state. */
void tasks_reach_some(const struct crew *c, int rank, ncclsvc_state state);

#endif
