/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests with the real daemon and real client processes. The daemon is $NCCLSVCD. Every test runs
 * under a time limit, and everything it started dies with it.
 *
 * Checks work in the test (where a failure is cmocka's) and in the client processes it forks
 * (where it ends the process, which the test then reports).
 */
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

#define WAIT_MS	  20000 /* for what has to happen: long enough for valgrind */
#define FINISH_MS 10000 /* for the daemon to give back what a client left */

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

/* The seconds this test may take, from now; 60 unless it says otherwise. */
void time_limit(unsigned seconds);
/* Says why, and skips the test. */
/* Built with a sanitizer, whose memory and threads are not only ours? */
bool sanitized(void);
__attribute__((noreturn, format(printf, 1, 2))) void skip_because(const char *format, ...);

uint64_t now_ns(void); /* CLOCK_MONOTONIC */
void sleep_ms(unsigned ms);
/* Whether what began at `since` and was over at `until` took less than that, not counting the time
 * in which the machine let not even a process run that only looks at the clock. Only the test
 * itself may ask, not its clients. */
bool in_time(uint64_t since, uint64_t until, uint64_t limit_ns);

/* ---- The daemon ---- */

struct usage {
	int fds;    /* open */
	int memfds; /* mapped */
	long rss_kib;
};

struct daemon {
	pid_t pid;
	char dir[64];
	char socket[108];
	char log[96];
	struct usage base; /* when it had started and served one session */
};

/* Starts a daemon in a directory of its own with the given options (NULL ends them), waits until it
 * serves, and notes what it holds. */
void daemon_start(struct daemon *d, ...) __attribute__((sentinel));
/* The same in the directory of one that was stopped or killed, with options that hold as much: it
 * is to end with what the first had noted, as clients may have attached before anyone can look. */
void daemon_restart(struct daemon *d, ...) __attribute__((sentinel));
/* Checks that nothing leaked, ends it by SIGTERM, and checks that it exits with 0 and that no
 * sanitizer said anything. */
void daemon_stop(struct daemon *d);
/* Waits for its exit and checks the code and the log. */
void daemon_wait_exit(struct daemon *d, int code);
/* SIGKILL. */
void daemon_kill(struct daemon *d);
/* What it holds now. */
struct usage daemon_usage(const struct daemon *d);
/* Waits until it holds no more fds and mapped memfds than at the base. */
void daemon_finishes(const struct daemon *d);
/* True once the text stands in its log; waits up to WAIT_MS. */
bool daemon_logged(const struct daemon *d, const char *text);
/* Runs a program to its end, its output and errors in out; returns the exit code. */
int run_program(char *const argv[], char *out, size_t size);
/* Of its first thread, as the system shows it: 'S', 'Z' ...; 0: there is none. */
char process_state(pid_t pid);
/* SIGSTOP, until all of its threads have stopped: some run on when kill has returned. */
void process_stop(pid_t pid);
/* Waits until the system has taken the killed process apart, and says when. */
uint64_t process_gone(pid_t pid);
/* A program's path from the environment; fails if it is not set. */
const char *program(const char *variable);

/* ---- Client processes ---- */

struct client {
	pid_t pid; /* of the process, in the test and in the process itself */
	int rank, nranks;
	const struct daemon *daemon;
	ncclsvc_unique_id id; /* the same for all that were started together */
	void *arg;
	int link; /* to the other side */
};

typedef void client_main(struct client *c);

/* Forks n processes that run main as ranks 0..n-1 and exit with 0. */
void clients_start(struct client *clients, int n, const struct daemon *d, client_main *main,
		   void *arg);
/* Starts one more of them (a restarted rank). */
void client_start(struct client *c, client_main *main);
/* Checks that all exit with 0 in time. Those that were killed are skipped. */
void clients_end(struct client *clients, int n);
void clients_end_within(struct client *clients, int n, unsigned ms);
void client_kill(struct client *c);
/* Runs n of them on a daemon with this option --ranks. When all have said 1, the last one is
 * killed, and perhaps the daemon, which is started again, as the rank is; the others are told 2.
 * All say 1 once more, are told 2, and end. */
void clients_recover(int n, const char *ranks, client_main *main, bool daemon_too);

/* Waits until these, which have been told to ask the daemon something, sleep until it answers, and
 * the daemon has read what they ask. Those that were killed are skipped. */
void clients_ask(struct client *clients, int n);

/* Words between a process and the test. */
void say(struct client *c, uint64_t word);
uint64_t hear(struct client *c);
uint64_t hear_within(struct client *c, int ms);
void hear_all(struct client *clients, int n, uint64_t word);
void say_all(struct client *clients, int n, uint64_t word);

/* ---- Shorthands for both ---- */

ncclsvc_session *session_open(const struct daemon *d);
ncclsvc_session *session_with_ring(const struct daemon *d, uint32_t entries);
ncclsvc_comm *comm_join(struct client *c, ncclsvc_session *session);
void *shared(ncclsvc_session *session, size_t bytes);
void wait_for(ncclsvc_session *session, ncclsvc_task task, ncclsvc_result expected);
ncclsvc_status status_of(ncclsvc_session *session, ncclsvc_task task);
/* Sums rank + 1 over all ranks, and checks it: is the communicator usable? */
void check_usable(ncclsvc_session *session, ncclsvc_comm *comm);
/* Waits until the daemon lists n tasks in that state, and gives the first. */
ncclsvc_task_info tasks_reach(ncclsvc_session *session, ncclsvc_state state, size_t n);
/* Waits until the daemon lists n members in that state. */
void members_reach(ncclsvc_session *session, ncclsvc_member_state state, size_t n);

#endif
