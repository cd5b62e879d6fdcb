/* SPDX-License-Identifier: Apache-2.0
 *
 * The tests of GPUs, and what they are run with. Each runs in a process of its own, whose group is
 * killed when its time is up. */
#ifndef TESTS_GPU_TESTS_H
#define TESTS_GPU_TESTS_H

#include "gpu.h"

#define RANKS_MAX 16

/* How the tests run, this time. */
struct setup {
	int gpus;    /* to use */
	bool quick;  /* a part of each test that has many */
	bool fake;   /* the stand-ins of tests/fake: times mean nothing */
	bool mps;    /* through an MPS server */
	int nodes;   /* daemons that ranks are on; 0 and 1: one */
	bool staged; /* transport = mpi */
	int repeat;  /* rounds of tests that kill; 0: the test's own choice */
	uint64_t seed;
};
extern struct setup setup;

enum test_flags {
	TEST_QUICK = 1,	      /* runs with --quick, too */
	TEST_REAL = 2,	      /* cannot run on the stand-ins */
	TEST_WITHOUT_MPS = 4, /* would end the MPS server for everybody */
	TEST_NCCL = 16,	      /* of what NCCL moves, whatever its size */
	TEST_ONE_NODE = 8,    /* what several nodes do not do, or what starts its own */
};

struct gpu_test {
	const char *name;
	void (*run)(void);
	unsigned gpus;	  /* it needs at least */
	unsigned seconds; /* it may take */
	unsigned flags;
};

/* Tables that end with a test without name. */
extern const struct gpu_test values_tests[], random_tests[], order_tests[], memory_tests[],
	memory_freed_tests[], refused_tests[], failure_tests[], member_tests[], lost_tests[],
	nccl_tests[], nccl_life_tests[], nccl_part_tests[], nccl_gone_tests[], nccl_redop_tests[],
	nccl_newer_tests[], list_tests[], list_together_tests[], list_world_tests[], plan_tests[],
	range_tests[], creation_tests[], node_tests[], node_gone_tests[], staged_tests[],
	staged_again_tests[], staged_gone_tests[], checkpoint_tests[], mps_tests[], peer_tests[],
	reach_tests[], peer_watch_tests[], kernel_tests[], kernel_wait_tests[], kernel_gone_tests[],
	kernel_leave_tests[], kernel_stream_tests[], kernel_random_tests[], kernel_message_tests[],
	kernel_circle_tests[], kernel_message_gone_tests[], kernel_group_tests[],
	kernel_nccl_tests[], peer_message_tests[], graph_tests[], graph_gone_tests[],
	graph_beside_tests[], graph_differ_tests[], graph_nccl_tests[], nccl_graph_tests[],
	graph_eager_tests[], nccl_group_tests[], recorder_tests[];

/* ---- For tests, and the processes that they fork ---- */

/* What the process is at: shown if the test hangs. */
__attribute__((format(printf, 1, 2))) void stage(const char *format, ...);
/* A line below the test's result. */
__attribute__((format(printf, 1, 2))) void report(const char *format, ...);
/* Ends the test: it was not run, because. */
__attribute__((noreturn, format(printf, 1, 2))) void skip_test(const char *format, ...);
/* How often the stand-ins have noted it since the test began. */
int fake_notes(const char *event);
/* A limit in ms, but on the stand-ins, where it is only a guard against hanging. */
unsigned limit_ms(unsigned ms);

/* The next pseudo-random number, from a state of any value. */
uint32_t draw(uint64_t *state);

#endif
