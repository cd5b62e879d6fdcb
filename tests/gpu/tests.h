/* SPDX-License-Identifier: Apache-2.0
 * The GPU tests, and their settings. Each test runs in a separate process, whose group is killed
 * when its time is up. */
#ifndef TESTS_GPU_TESTS_H
#define TESTS_GPU_TESTS_H

#include "gpu_context.h"

#define RANKS_MAX 16

/* The settings of this run. */
struct setup {
	int gpus;    /* to use */
	bool quick;  /* run only a part of each long test */
	bool fake;   /* the stand-ins of tests/fake: times are meaningless */
	bool mps;    /* through an MPS server */
	int nodes;   /* number of daemons for the ranks; 0 and 1: one */
	bool staged; /* transport = mpi */
	int per_gpu; /* ranks on each GPU; 0: one */
	int repeat;  /* rounds of tests that kill; 0: the test's default */
	uint64_t seed;
};
extern struct setup setup;

enum test_flags {
	TEST_QUICK = 1,	      /* also runs with --quick */
	TEST_REAL = 2,	      /* cannot run on the stand-ins */
	TEST_WITHOUT_MPS = 4, /* would end the MPS server for all tests */
	TEST_NCCL = 16,	      /* without kernels: all operations go to NCCL */
	TEST_ONE_NODE = 8,    /* not for several nodes, or starts its own */
};

struct gpu_test {
	const char *name;
	void (*run)(void);
	unsigned gpus;	  /* minimum number */
	unsigned seconds; /* time limit */
	unsigned flags;
};

/* Tables, each ended by a test without a name. */
extern const struct gpu_test values_tests[], random_tests[], order_tests[], memory_tests[],
	direct_tests[], copies_tests[], memory_freed_tests[], refused_tests[], failure_tests[],
	member_tests[], killed_daemon_tests[], nccl_tests[], nccl_life_tests[], nccl_part_tests[],
	nccl_failure_tests[], nccl_redop_tests[], nccl_newer_tests[], list_tests[],
	list_together_tests[], list_world_tests[], plan_tests[], range_tests[], creation_tests[],
	node_tests[], node_failure_tests[], node_restart_tests[], staged_tests[],
	staged_again_tests[], staged_failure_tests[], checkpoint_tests[], mps_tests[], peer_tests[],
	reach_tests[], peer_watch_tests[], kernel_tests[], kernel_wait_tests[],
	kernel_failure_tests[], kernel_leave_tests[], kernel_stream_tests[], kernel_random_tests[],
	kernel_message_tests[], kernel_circle_tests[], kernel_message_failure_tests[],
	kernel_group_tests[], kernel_nccl_tests[], peer_message_tests[], graph_tests[],
	graph_failure_tests[], graph_beside_tests[], graph_differ_tests[], graph_nccl_tests[],
	nccl_graph_tests[], graph_eager_tests[], nccl_group_tests[], recorder_tests[],
	share_tests[], memory_most_tests[], memory_late_tests[], memory_leak_tests[], idle_tests[],
	shared_gpu_tests[], premulsum_tests[], restart_tests[], peer_resume_tests[],
	suspend_tests[], peer_sleep_tests[];

/* ---- For tests, and the processes that they fork ---- */

/* Sets what the process is doing, to be shown if the test hangs. */
__attribute__((format(printf, 1, 2))) void stage(const char *format, ...);
/* Prints a line below the test's result. */
__attribute__((format(printf, 1, 2))) void report(const char *format, ...);
/* Ends the test as skipped, with the reason. */
__attribute__((noreturn, format(printf, 1, 2))) void skip_test(const char *format, ...);
/* How often the stand-ins have recorded the event since the test began. */
int fake_notes(const char *event);
/* A limit in ms; on the stand-ins it only guards against hanging. */
unsigned limit_ms(unsigned ms);

/* The next pseudo-random number; any state is valid. */
uint32_t draw(uint64_t *state);

#endif
