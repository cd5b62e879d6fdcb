/* SPDX-License-Identifier: Apache-2.0
 * What a process of this machine is doing, as /proc and its cgroup show it. */
#ifndef CTL_PROCESS_H
#define CTL_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

enum process_state {
	PROCESS_UNSEEN, /* /proc does not show it here */
	PROCESS_GONE,	/* it has ended; its parent may not have reaped it yet */
	PROCESS_RUNNING,
	PROCESS_SLEEPING,
	PROCESS_BLOCKED,    /* uninterruptible: state D */
	PROCESS_STOPPED,    /* by a signal */
	PROCESS_TRACED,	    /* stopped by a debugger */
	PROCESS_FROZEN,	    /* by its cgroup */
	PROCESS_LEADERLESS, /* the main thread has ended, others have not */
};

struct process {
	int32_t pid;
	enum process_state state;
	int32_t tracer;	  /* pid of the debugger; 0: none */
	int32_t thread;	  /* of a leaderless process: one that lives */
	uint32_t threads; /* of a leaderless process: how many live */
	int cpu;	  /* percent of one CPU; -1: not measured */
	bool python, examined;
	char tracer_name[32];
	char wchan[64];	  /* the kernel's function it waits in; empty: unknown */
	char cgroup[256]; /* of a frozen process: the directory that was frozen */
	uint64_t read_ns, cpu_ns;
};

struct processes {
	const char *proc;	/* NULL: /proc */
	const char *cgroups[2]; /* where cgroup v2 is mounted; NULL: the usual directories */
	struct process *slots;
	unsigned used;
};

/* The state, read at the first call for this pid and kept. Never NULL. */
const struct process *process_look(struct processes *all, int32_t pid);
/* The other fields, too. CPU use is measured over the 20 ms after process_look, so the first call
 * may block for up to 20 ms. */
const struct process *process_examine(struct processes *all, int32_t pid);
/* As /proc of its own machine has it: the letter of its state ('\0': unknown), and its tracer. */
struct process process_reported(int32_t pid, char letter, int32_t tracer);
void processes_free(struct processes *all);

/* It will not run before somebody lets it: stopped, held by a debugger, or frozen. */
bool process_is_halted(const struct process *p);
/* "running", ... */
const char *process_state_name(enum process_state state);

#endif
