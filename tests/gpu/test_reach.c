/* SPDX-License-Identifier: Apache-2.0
 * Processes of which CUDA shows each only its own GPU. They have the device nodes of all, so they
 * can map each other's memory, and kernels are used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dropin_calls.h"
#include "runner.h"

static void check_listed(const struct daemon *d)
{
	ncclsvc_session *session = session_open(d);
	ncclsvc_comm_info *list;
	size_t n, found = 0;
	CHECK_OK(ncclsvc_list_comms(session, &list, &n));
	for (size_t i = 0; i < n; i++) {
		if (list[i].state != NCCLSVC_COMM_READY)
			continue;
		CHECK(list[i].peer_bytes > 0);
		CHECK(list[i].peer_source != NCCLSVC_PEER_OUT_OF_REACH);
		found++;
	}
	CHECK(found > 0);
	ncclsvc_list_free(list);
	ncclsvc_close(session);
}

static void pod(struct client *c)
{
	char own[16];
	ncclComm_t comm, part;
	stage("joining");
	snprintf(own, sizeof(own), "%d", c->rank);
	CHECK_EQ(setenv("CUDA_VISIBLE_DEVICES", own, 1), 0); /* before CUDA is used */
	dropin_open(c->daemon);
	gpu_use(0);
	CHECK_NC(nc.ncclCommInitRank(&comm, c->nranks, dropin_id(c), c->rank));
	dropin_check_usable(comm);
	check_listed(c->daemon);
	stage("splitting");
	CHECK_NC(nc.ncclCommSplit(comm, 0, c->rank, &part, NULL));
	dropin_check_usable(part);
	check_listed(c->daemon);
	dropin_check_usable(comm);
	CHECK_NC(nc.ncclCommDestroy(part));
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void test_hidden(void)
{
	ranks_run(setup.gpus, pod, NULL);
}

const struct gpu_test reach_tests[] = {
	{"reach/hidden", test_hidden, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
