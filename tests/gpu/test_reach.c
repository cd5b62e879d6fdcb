/* SPDX-License-Identifier: Apache-2.0
 * Processes that see only their own GPU, like one in a pod: if the others' memory can still be
 * mapped, kernels are used; if not, all operations automatically go to NCCL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dropin_calls.h"
#include "runner.h"

struct pods {
	bool without_nodes; /* otherwise only CUDA_VISIBLE_DEVICES hides the other GPUs */
};

/* Call before CUDA is used. */
static void hide_others(const struct client *c, bool without_nodes)
{
	char own[16], others[64] = "";
	snprintf(own, sizeof(own), "%d", c->rank);
	for (int i = 0; i < c->nranks; i++)
		if (i != c->rank)
			snprintf(others + strlen(others), sizeof(others) - strlen(others), " %d",
				 i);
	CHECK_EQ(setenv("CUDA_VISIBLE_DEVICES", own, 1), 0);
	if (without_nodes)
		CHECK_EQ(setenv("NCCLSVC_FAKE_NO_NODE", others, 1), 0);
}

static void check_listed(const struct daemon *d, bool without_nodes)
{
	ncclsvc_session *session = session_open(d);
	ncclsvc_comm_info *list;
	size_t n, found = 0;
	CHECK_OK(ncclsvc_list_comms(session, &list, &n));
	for (size_t i = 0; i < n; i++) {
		if (list[i].state != NCCLSVC_COMM_READY)
			continue;
		CHECK_EQ(!list[i].peer_bytes, without_nodes);
		CHECK_EQ(list[i].peer_source == NCCLSVC_PEER_OUT_OF_REACH, without_nodes);
		found++;
	}
	CHECK(found > 0);
	ncclsvc_list_free(list);
	ncclsvc_close(session);
}

static void pod(struct client *c)
{
	const struct pods *pods = c->arg;
	ncclComm_t comm, part;
	stage("joining");
	hide_others(c, pods->without_nodes);
	dropin_open(c->daemon);
	gpu_use(0);
	CHECK_NC(nc.ncclCommInitRank(&comm, c->nranks, dropin_id(c), c->rank));
	dropin_check_usable(comm);
	check_listed(c->daemon, pods->without_nodes);
	stage("splitting");
	CHECK_NC(nc.ncclCommSplit(comm, 0, c->rank, &part, NULL));
	dropin_check_usable(part);
	check_listed(c->daemon, pods->without_nodes);
	dropin_check_usable(comm);
	CHECK_NC(nc.ncclCommDestroy(part));
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void test_hidden(void)
{
	ranks_run(setup.gpus, pod, &(struct pods){0});
}

static void test_out_of_reach(void)
{
	if (!setup.fake)
		skip_test(
			"on real GPUs, this needs processes without device nodes: test it by hand");
	ranks_run(setup.gpus, pod, &(struct pods){.without_nodes = true});
}

const struct gpu_test reach_tests[] = {
	{"reach/hidden", test_hidden, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"reach/no-device-nodes", test_out_of_reach, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
