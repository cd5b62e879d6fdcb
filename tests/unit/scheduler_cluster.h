/* SPDX-License-Identifier: Apache-2.0
 * For tests of schedulers on several nodes: three of them run in this process, and the test
 * replaces MPI between them. It keeps the order of messages from one node to another, and can hold
 * them back. Rank k of the one communicator is trainer k (scheduler_gpus.h), on its node's GPU or
 * in host memory. */
#ifndef TESTS_SCHEDULER_CLUSTER_H
#define TESTS_SCHEDULER_CLUSTER_H

#include "sched/internode/internode_comm.h"
#include "scheduler_gpus.h"

#define NODES	 3
#define RANKS	 4
#define MANY_MAX 2500

extern struct scheduler *schedulers[NODES];
extern uint32_t nranks, node_of[RANKS];

/* ---- Messages ---- */

/* Holds back the messages from one node to another, or delivers all of them. */
void hold(int from, int to, bool held);
/* Starts with the next message of that kind. */
void hold_from(int from, int to, enum internode_kind kind);
/* How many messages of that kind all nodes have sent. */
unsigned sent_of(enum internode_kind kind);
void await_sent(enum internode_kind kind, unsigned n);

/* Waits until all nodes have received what is not held back, and have settled. */
void quiet_nodes(void);

/* ---- Nodes ---- */

/* Creates a communicator of n ranks on these nodes: TRANSPORT_INTERNODE or TRANSPORT_NCCL. */
int nodes_begin(enum transport_kind transport, uint32_t n, const uint32_t *nodes);
int nodes_end(void **state);
/* Sends the command to one node's scheduler. */
void command_node(uint32_t node, struct command c);

/* ---- Members ---- */

struct svc_record task_of(uint32_t rank, uint8_t op, int32_t peer);
/* Submits a task, and returns its number. */
uint64_t sum(uint32_t rank);
uint64_t send_to(uint32_t rank, int32_t peer);
uint64_t recv_from(uint32_t rank, int32_t peer);
/* Submits n <= MANY_MAX tasks as one group; returns the first one's number. */
uint64_t many(uint32_t rank, uint8_t op, int32_t peer, unsigned n);
/* Waits until the scheduler has taken the member's first n tasks. */
void await_taken(uint32_t rank, uint64_t n);
/* Waits until the tasks are over. GPUs finish launches immediately. */
void await_over(uint32_t rank, uint64_t n);
void goes_well(uint32_t rank, uint64_t n);
/* The status that the member gets for an ended task. */
ncclsvc_status status_of_task(uint32_t rank, uint64_t n);
/* Checks that collectives and pairs still succeed. */
void usable(void);

#define CLUSTER_TEST(test, setup)                                                                  \
	{                                                                                          \
		.name = #test "/" #setup, .test_func = test, .setup_func = setup,                  \
		.teardown_func = nodes_end                                                         \
	}

#endif
