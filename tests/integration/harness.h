/* SPDX-License-Identifier: Apache-2.0
 * Tests with the real daemon and real client processes. The daemon is $NCCLSVCD. Every test has a
 * time limit, and the processes it started are killed when it ends. A check that fails in the test
 * itself fails it in cmocka; one that fails in a client ends that process, which the test then
 * reports. */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#ifdef NDEBUG
#error "tests need their assertions: build without NDEBUG"
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#include "ncclsvc.h"

#define WAIT_MS	  25000 /* limit for whatever must happen; enough for valgrind */
#define FINISH_MS 10000 /* limit for the daemon to release what a client held */

/* ---- Checks ---- */

__attribute__((noreturn, format(printf, 3, 4))) void check_failed(const char *file, int line,
								  const char *format, ...);

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			check_failed(__FILE__, __LINE__, "%s", #condition);                        \
	} while (0)

#define CHECK_EQ(a, b)                                                                             \
	do {                                                                                       \
		long long a_ = (long long)(a), b_ = (long long)(b);                                \
		if (a_ != b_)                                                                      \
			check_failed(__FILE__, __LINE__, "%s is %lld, not %s (%lld)", #a, a_, #b,  \
				     b_);                                                          \
	} while (0)

#define CHECK_RESULT(call, expected)                                                               \
	do {                                                                                       \
		ncclsvc_result r_ = (call), e_ = (expected);                                       \
		if (r_ != e_)                                                                      \
			check_failed(__FILE__, __LINE__, "%s gives %s, not %s: %s", #call,         \
				     ncclsvc_result_name(r_), ncclsvc_result_name(e_),             \
				     ncclsvc_last_error());                                        \
	} while (0)

#define CHECK_OK(call) CHECK_RESULT(call, NCCLSVC_OK)

/* ---- Tests ---- */

int harness_setup(void **state);
int harness_teardown(void **state);
#define TEST(function) cmocka_unit_test_setup_teardown(function, harness_setup, harness_teardown)

/* Sets the seconds that this test may take from now on; the default is 60. */
void time_limit(unsigned seconds);
/* Whether the programs are built with a sanitizer, which adds memory and threads of its own. */
bool sanitized(void);
/* Prints the reason, and skips the test. */
__attribute__((noreturn, format(printf, 1, 2))) void skip_because(const char *format, ...);

uint64_t now_ns(void); /* CLOCK_MONOTONIC */
void sleep_ms(unsigned ms);
/* Whether what happened at `until` waited for no deadline that is longer than a few seconds. A busy
 * machine may stop a thread for ten seconds. */
bool in_time(uint64_t since, uint64_t until);

/* ---- The daemon ---- */

struct usage {
	int fds;    /* number of open fds */
	int memfds; /* number of mapped memfds */
	long rss_kib;
};

struct daemon {
	pid_t pid;
	char dir[64];
	char socket[108];
	char log[96];
	struct usage base; /* usage after the daemon's first session */
};

/* Starts a daemon in a new directory with the given options (NULL ends them), waits until it
 * serves, and notes its usage. */
void daemon_start(struct daemon *d, ...) __attribute__((sentinel));
/* Starts a daemon in the directory of a killed one. The options must need as many resources as
 * before: usage at the end is compared with the first daemon's, because clients may attach before
 * the new daemon's can be measured. */
void daemon_restart(struct daemon *d, ...) __attribute__((sentinel));
/* Checks that nothing leaked, ends it by SIGTERM, and checks that it exits with 0 and no sanitizer
 * reported anything. */
void daemon_stop(struct daemon *d);
/* Waits for its exit, and checks the exit code and the log. */
void daemon_wait_exit(struct daemon *d, int code);
/* Ends it by SIGTERM; daemon_restart may follow. */
void daemon_terminate(struct daemon *d);
/* Kills the daemon by SIGKILL, and checks its log. */
void daemon_kill(struct daemon *d);
struct usage daemon_usage(const struct daemon *d);
/* Waits until its open fds and mapped memfds are back at the base. */
void daemon_finishes(const struct daemon *d);
/* True once the text is in its log; waits up to WAIT_MS. */
bool daemon_logged(const struct daemon *d, const char *text);
/* Runs a program to its end, with its stdout and stderr in `out`; returns the exit code. */
int run_program(char *const argv[], char *out, size_t size);
/* The state of a thread, or of a process's main thread, as in /proc: 'S', 'Z' ...; 0: none. */
char process_state(pid_t pid);
/* Sends SIGSTOP, and waits until all its threads have stopped: some may still run when kill
 * returns. */
void process_stop(pid_t pid);
/* Waits until the killed process is a zombie or gone, and returns the time. */
uint64_t process_gone(pid_t pid);
/* The path of a program from the environment; fails if the variable is not set. */
const char *program(const char *variable);

/* ---- Client processes ---- */

struct client {
	pid_t pid; /* set in the test and in the process itself; 0: ended */
	int rank, nranks;
	const struct daemon *daemon;
	ncclsvc_unique_id id; /* the same for all that are started together */
	void *arg;
	int link; /* socket between the test and the process */
};

typedef void client_main(struct client *c);

/* Forks n processes that run `main` as ranks 0..n-1 and must exit with 0. */
void clients_start(struct client *clients, int n, const struct daemon *d, client_main *main,
		   void *arg);
/* Starts one more of them, such as a restarted rank. */
void client_start(struct client *c, client_main *main);
/* Checks that all exit with 0 in time. Killed ones are skipped. */
void clients_end(struct client *clients, int n);
void clients_end_within(struct client *clients, int n, unsigned ms);
void client_kill(struct client *c);
/* Runs n clients on a daemon with this --ranks option. When all have said 1, kills the last one,
 * optionally also the daemon, starts them again, and says 2 to the other clients. All say 1 once
 * more, are told 2, and end. */
void clients_recover(int n, const char *ranks, client_main *main, bool daemon_too);

/* For clients that are about to send a request and wait for its answer: waits until the daemon has
 * read the requests of all. Killed ones are skipped. */
void clients_ask(struct client *clients, int n);

/* Words exchanged between a process and the test. */
void say(struct client *c, uint64_t word);
uint64_t hear(struct client *c);
uint64_t hear_within(struct client *c, int ms);
void hear_all(struct client *clients, int n, uint64_t word);
void say_all(struct client *clients, int n, uint64_t word);

/* ---- Shorthands for the test and its clients ---- */

ncclsvc_session *session_open(const struct daemon *d);
ncclsvc_session *session_with_ring(const struct daemon *d, uint32_t entries);
ncclsvc_comm *comm_join(struct client *c, ncclsvc_session *session);
void *shared(ncclsvc_session *session, size_t bytes);
void wait_for(ncclsvc_session *session, ncclsvc_task task, ncclsvc_result expected);
ncclsvc_status status_of(ncclsvc_session *session, ncclsvc_task task);
/* Checks that the communicator is usable: sums rank + 1 over all ranks. */
void check_usable(ncclsvc_session *session, ncclsvc_comm *comm);
/* Waits until the daemon lists n tasks in that state, and returns the first. */
ncclsvc_task_info tasks_reach(ncclsvc_session *session, ncclsvc_state state, size_t n);
/* Waits until the daemon lists n members in that state. */
void members_reach(ncclsvc_session *session, ncclsvc_member_state state, size_t n);

#endif
