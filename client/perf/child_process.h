/* SPDX-License-Identifier: Apache-2.0
 * Child processes, a private directory, and interrupted runs, for all modes. */
#ifndef PERF_CHILD_PROCESS_H
#define PERF_CHILD_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Prints "ncclsvc-perf: ..." and a newline to stderr, after the progress line. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same for the library's last failed call: "what: SENTENCE". Always returns false. */
bool complain_of(const char *what);

/* From now on, SIGINT, SIGTERM and SIGHUP only set a flag. */
void catch_signals(void);
/* The signal that arrived, or 0. Waiting loops check this. */
int caught_signal(void);
void sleep_ms(unsigned ms);

/* fork(); the child has default signals and dies with its parent. Returns as fork does. */
pid_t fork_child(void);
/* fork() and exec in a new process group, with stdin from /dev/null, stdout and stderr to log_fd.
 * argv[0] is searched in PATH. Returns the pid, or -1 with errno. The child dies with its parent.
 */
pid_t spawn(char *const argv[], int log_fd);

/* Waits up to timeout_ms for the child. True: it has ended, with *status. */
bool wait_child(pid_t pid, int timeout_ms, int *status);
/* Ends a child (with group: its process group): SIGTERM, then SIGKILL after grace_ms. Returns its
 * status. */
int stop_child(pid_t pid, bool group, int grace_ms);
/* "exited with status 3", "was killed by signal 9 (Killed)". Returns buf. */
char *describe_status(int status, char *buf, size_t size);

/* A directory for sockets and logs, created at the first call. NULL: failed, and an error was
 * printed. */
const char *private_dir(void);
void remove_private_dir(void);
/* Prints the last lines of a file to stderr, indented. */
void show_tail(const char *path);

/* Finds a program: $variable, then beside this program, then each of `places` (relative to this
 * program's directory or absolute; NULL ends them), then PATH. False: not found, and an error lists
 * where it looked. */
bool find_program(const char *name, const char *variable, const char *const *places, char *path,
		  size_t size);

#endif
