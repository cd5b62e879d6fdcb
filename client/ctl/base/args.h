/* SPDX-License-Identifier: Apache-2.0
 * The command line. */
#ifndef CTL_ARGS_H
#define CTL_ARGS_H

#include <ncclsvc_world.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The program's exit codes, which are part of its interface. */
enum ctl_exit {
	EXIT_GOOD = 0,
	EXIT_ERROR = 1,
	EXIT_USAGE = 2,
	EXIT_STUCK = 3,
	EXIT_UNREACHABLE = 4,
	EXIT_NOTHING = 5,
	EXIT_FAILED = 6,
	EXIT_LEFT = 7, /* drain: jobs are left */
};

enum ctl_command {
	CTL_NONE,
	CTL_STATUS,
	CTL_SESSIONS,
	CTL_COMMS,
	CTL_TASKS,
	CTL_MEMORY,
	CTL_DEVICES,
	CTL_PLAN,
	CTL_LATENESS,
	CTL_WHY,
	CTL_FAILURES,
	CTL_DOCTOR,
	CTL_GROUPS,
	CTL_DUMP,
	CTL_CANCEL,
	CTL_DRAIN,
	CTL_RESUME,
	CTL_WATCH,
	CTL_VERSION,
	CTL_HELP,
};

enum ctl_target { CTL_TARGET_TASK, CTL_TARGET_COMM, CTL_TARGET_SESSION };
enum ctl_sort { CTL_SORT_COMM, CTL_SORT_AGE };

struct ctl_args {
	enum ctl_command command; /* what to show; CTL_HELP and CTL_VERSION for the options too */
	bool watch;		  /* show it repeatedly */
	const char *socket;	  /* NULL: the library's default */
	bool json;
	bool lines; /* why, for the daemon */
	uint64_t timeout_ns;

	const char *comm;  /* an id or a label; NULL: all */
	const char *job;   /* a job, or a pattern as of a shell; NULL: all */
	int64_t rank, pid; /* -1: all */
	unsigned state;	   /* ncclsvc_state; 0: all */
	uint64_t stuck_ns; /* 0: all */
	uint64_t limit;	   /* 0: none */
	enum ctl_sort sort;
	bool all, members, follow;
	uint64_t since_ns; /* CLOCK_REALTIME; 0: all */
	uint64_t after_ns;
	int32_t node; /* whose lists are wanted, or SNAPSHOT_LOCAL or SNAPSHOT_ALL */

	uint64_t interval_ns;
	uint64_t frames; /* 0: no limit */

	ncclsvc_world_sizes sizes; /* -1: not given */

	const char *pytorch; /* a directory; NULL: none */

	bool wait;	  /* drain, until no job is left */
	uint64_t wait_ns; /* at most; 0: no limit */

	enum ctl_target target;
	uint64_t id;
};

/* EXIT_GOOD, or EXIT_USAGE with a sentence in text. May reorder argv. */
enum ctl_exit args_parse(int argc, char **argv, struct ctl_args *args, char *text, size_t size);
const char *ctl_command_name(enum ctl_command command);
extern const char ctl_help[];

#endif
