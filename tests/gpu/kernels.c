/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

#include <stdlib.h>

/* Tells the test the size of the direct transport's largest operation. */
static void probe_rank(struct client *c)
{
	struct rank r;
	ncclsvc_comm_info *list;
	size_t n;
	uint32_t bytes = 0;
	rank_open(&r, c);
	CHECK_OK(ncclsvc_list_comms(r.session, &list, &n));
	for (size_t i = 0; i < n; i++)
		bytes = bytes > list[i].peer_bytes ? bytes : list[i].peer_bytes;
	ncclsvc_list_free(list);
	say(c, bytes);
	CHECK_EQ(hear(c), 1);
	rank_close(&r);
}

void kernels_daemon_start(struct daemon *d)
{
	struct client ranks[2];
	setenv("NCCLSVCD_PEER_BYTES", "8M", 1); /* less than LARGE, which must go to NCCL */
	gpu_daemon_start(d);
	clients_start(ranks, 2, d, probe_rank, NULL);
	const uint64_t bytes = hear(&ranks[0]);
	CHECK_EQ(hear(&ranks[1]), bytes);
	say_all(ranks, 2, 1);
	ranks_end(ranks, 2);
	if (!bytes)
		skip_test("communicators have no kernels: see ncclsvc-ctl doctor");
	CHECK_EQ(bytes, 8 << 20);
}

void kernels_run(int n, client_main *main, void *arg)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, main, arg);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

void kernels_may_end(struct rank *r, ncclsvc_result result)
{
	r->may_end = result;
}

void kernels_submitted(const struct rank *r, ncclsvc_result result, ncclsvc_task *task)
{
	if (r->may_end && (result == r->may_end || result == NCCLSVC_STALE_EPOCH))
		*task = 0;
	else
		CHECK_OK(result);
}

bool kernels_failed(const struct rank *r, ncclsvc_task task, ncclsvc_status *st)
{
	if (!task)
		return false;
	wait_for(r->session, task, r->may_end);
	*st = status_of(r->session, task);
	return true;
}

ncclsvc_task kernels_sum(struct rank *r, CUdeviceptr p, size_t n)
{
	ncclsvc_task task;
	kernels_submitted(
		r, ncclsvc_all_reduce(at(p), at(p), n, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm, &task),
		&task);
	return task;
}

void kernels_send(struct rank *r, CUdeviceptr p, size_t n, int to, ncclsvc_task *task)
{
	ncclsvc_task none;
	kernels_submitted(r, ncclsvc_send(at(p), n, NCCLSVC_UINT32, to, r->comm, task),
			  task ? task : &none);
}

void kernels_recv(struct rank *r, CUdeviceptr p, size_t n, int from, ncclsvc_task *task)
{
	ncclsvc_task none;
	kernels_submitted(r, ncclsvc_recv(at(p), n, NCCLSVC_UINT32, from, r->comm, task),
			  task ? task : &none);
}

void kernels_over(struct rank *r, ncclsvc_result expected)
{
	ncclsvc_result result = NCCLSVC_OK;
	for (const uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000); !result; sleep_ms(1)) {
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__,
				     "the communicator reports no error within %d ms", WAIT_MS);
		result = ncclsvc_comm_error(r->comm);
	}
	CHECK_RESULT(result, expected);
}

void kernels_rejoin(struct rank *r)
{
	stage("rejoining");
	CHECK_OK(ncclsvc_comm_rejoin(r->comm, WAIT_MS));
	r->may_end = NCCLSVC_OK;
	stage("rejoined");
	rank_check_usable(r);
}

uint64_t kernels_staged(const struct rank *r)
{
	ncclsvc_comm_info *list;
	size_t n;
	uint64_t most = 0;
	CHECK_OK(ncclsvc_list_comms(r->session, &list, &n));
	for (size_t i = 0; i < n; i++)
		most = list[i].staged > most ? list[i].staged : most;
	ncclsvc_list_free(list);
	return most;
}
