/* SPDX-License-Identifier: Apache-2.0
 * Situations for tests of `ncclsvc-ctl why`, built piece by piece, and what it should say about
 * them. */
#ifndef TESTS_WHY_SCENE_H
#define TESTS_WHY_SCENE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "why/why.h"

#define SEC	 UINT64_C(1000000000)
#define WORLD	 1
#define OTHER	 2
#define SESSION	 10 /* session of rank 0; pids are 100 larger */
#define PID(i)	 (SESSION + 100 + (i))
#define LIST_MAX 320

/* A situation: processes 0, 1, ..., with one session each. */
extern struct scene {
	struct snapshot s;
	ncclsvc_session_info sessions[LIST_MAX];
	ncclsvc_comm_info comms[LIST_MAX];
	ncclsvc_member_info members[LIST_MAX];
	ncclsvc_task_info tasks[LIST_MAX];
	ncclsvc_device_info devices[4];
	ncclsvc_node_info nodes[4];
	ncclsvc_plan_info plans[4];
	ncclsvc_plan_task_info plan_tasks[8];
	struct process process[LIST_MAX];
	struct why_report report;
} scene;

/* An empty situation before each test. */
int set_up(void **state);
int tear_down(void **state);
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

/* ---- Building a situation ---- */

/* Numbers 0 to n - 1, each with a session. */
void processes(int n);
/* A ready communicator that all have joined. */
ncclsvc_comm_info *comm(uint64_t id, uint32_t nranks, const char *label);
ncclsvc_member_info *member(uint64_t id, int rank, int process, uint64_t submitted);
/* The world of n processes, each of which has submitted this many tasks. */
void world(int n, uint64_t submitted);
ncclsvc_task_info *task(uint64_t id, int rank, int process, unsigned op, uint64_t seq,
			unsigned task_state, double seconds);
void waits(ncclsvc_task_info *t, int32_t rank);
/* A collective that waits for one rank. */
void waiting(uint64_t id, int rank, int process, uint64_t seq, double seconds, int32_t for_rank);
/* Nodes 0 (this one) to n - 1, all of which respond; their hosts are host-0, ... */
void nodes(uint32_t n);
/* The rank is on that node. */
void sits_on(uint64_t id, int rank, uint32_t node);
/* The task asks that node. */
void asks(ncclsvc_task_info *t, uint32_t node);
/* What the process of that number is doing. */
struct process *is(int process, enum process_state process_state);
/* A Send or Recv that waits for its peer. */
void p2p(uint64_t id, int rank, int process, unsigned op, uint64_t seq, int32_t peer);

/* ---- Checking what is reported ---- */

/* Of the situation, for why_input. */
const struct process *look(int32_t pid, bool closely, void *arg);
const struct why_report *analyse(void);
/* Analyses the situation, and checks that there is one finding, with that cause. */
const struct why_finding *only(enum why_cause cause);
void says(const struct why_finding *f, const char *what);
void never_says(const struct why_finding *f, const char *what);
/* Culprit i is this one. */
void blames(const struct why_finding *f, size_t i, uint64_t id, int32_t rank, int32_t pid,
	    const char *member_state);

#endif
