/* SPDX-License-Identifier: Apache-2.0
 * MPS without configuration: trainers use the workers' MPS automatically, those that do not are
 * named, and when its control daemon dies, all are notified and continue with the next one. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/gpu_context.h"
#include "workers.h"

static ncclsvc_daemon_info daemon_info(const struct rank_group *c)
{
	ncclsvc_daemon_info info;
	ncclsvc_session *s = session_open(&c->d);
	CHECK_OK(ncclsvc_daemon(s, &info));
	ncclsvc_close(s);
	return info;
}

static unsigned mps_of(const struct rank_group *c, int rank)
{
	ncclsvc_session_info *list;
	size_t n;
	unsigned mps = NCCLSVC_MPS_UNKNOWN;
	ncclsvc_session *s = session_open(&c->d);
	CHECK_OK(ncclsvc_list_sessions(s, &list, &n));
	for (size_t i = 0; i < n; i++)
		if (list[i].pid == c->ranks[rank].pid)
			mps = list[i].mps;
	ncclsvc_list_free(list);
	ncclsvc_close(s);
	return mps;
}

static void status_says(const struct rank_group *c, const char *format, int number)
{
	char out[4096], part[128];
	char *const argv[] = {(char *)program("NCCLSVC_CTL"), "--socket", (char *)c->d.socket,
			      "status", NULL};
	CHECK_EQ(run_program(argv, out, sizeof(out)), 0);
	snprintf(part, sizeof(part), format, number);
	if (!strstr(out, part))
		check_failed(__FILE__, __LINE__, "status does not say \"%s\": %s", part, out);
}

static void trainers_use_it(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, NULL);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(device_of(&c, i).mps, NCCLSVC_MPS_ACTIVE);
		CHECK_EQ(mps_of(&c, i), NCCLSVC_MPS_ACTIVE);
	}
	CHECK_EQ(daemon_info(&c).mps, NCCLSVC_MPS_OWN);
	CHECK(!daemon_says(&c.d, "take turns there"));
	status_says(&c, "started once; 0 workers lost with it; trainers: %d with it\n", 2);
	ranks_stop(&c);
}

/* The trainer has initialized CUDA before it could learn of MPS. */
static void trainers_without_mps_are_named(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_prepare(&c, 2);
	ranks_start_daemon(&c, NULL);
	c.pages[1].early = true;
	ranks_create(&c, 2);
	ranks_join(&c, 1, 3, 0);
	ranks_try(&c, 3, 0);
	CHECK_EQ(mps_of(&c, 0), NCCLSVC_MPS_ACTIVE);
	CHECK_EQ(mps_of(&c, 1), NCCLSVC_MPS_NONE);
	CHECK(daemon_says(&c.d, "uses gpu1 without MPS, and the worker through it"));
	status_says(&c, "trainers: 1 with it, 1 without (pid %d)\n", c.ranks[1].pid);
	ranks_stop(&c);
}

static void off_is_off(void **state)
{
	struct rank_group c;
	(void)state;
	ranks_start(&c, 2, "--mps", "off", NULL);
	CHECK_EQ(device_of(&c, 0).mps, NCCLSVC_MPS_NONE);
	CHECK_EQ(mps_of(&c, 0), NCCLSVC_MPS_NONE);
	CHECK(!daemon_says(&c.d, "take turns there"));
	status_says(&c, "none: mps = off; trainers: %d with it, 2 without (pid ", 0);
	ranks_stop(&c);
}

/* A trainer's context ends with the control daemon: CUDA and the library both report it. */
static void forsaken(struct client *client)
{
	ncclsvc_comm *comm;
	CUdeviceptr p;
	CUresult error = CUDA_SUCCESS;
	ncclsvc_session *s = session_open(client->daemon);
	gpu_use(0);
	CUstream stream = gpu_stream();
	CHECK_OK(ncclsvc_comm_join_device(s, &client->id, 1, 0, 0, WAIT_MS, &comm));
	CHECK_CU(cu.cuMemAlloc(&p, 4096));
	CHECK_OK(ncclsvc_stream_set(s, stream, 0));
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), 1, NCCLSVC_FLOAT32, NCCLSVC_SUM, comm, NULL));
	CHECK(gpu_stream_ends(stream, WAIT_MS));
	say(client, 1);
	CHECK_EQ(hear(client), 2); /* the control daemon was killed */
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; !error && now_ns() < end; sleep_ms(1))
		error = cu.cuCtxSynchronize();
	CHECK_EQ(error, CUDA_ERROR_MPS_RPC_FAILURE);
	CHECK_RESULT(ncclsvc_comm_rejoin(comm, WAIT_MS), NCCLSVC_OK);
	ncclsvc_result r =
		ncclsvc_all_reduce(at(p), at(p), 1, NCCLSVC_FLOAT32, NCCLSVC_SUM, comm, NULL);
	CHECK_EQ(r, NCCLSVC_SYSTEM);
	CHECK(strstr(ncclsvc_last_error(), "CUDA_ERROR_MPS_RPC_FAILURE"));
	say(client, 3);
	ncclsvc_close(s);
}

static void its_control_daemon_dies(void **state)
{
	struct rank_group c;
	struct client trainer;
	(void)state;
	ranks_start(&c, 2, NULL);
	clients_start(&trainer, 1, &c.d, forsaken, NULL);
	CHECK_EQ(hear(&trainer), 1);
	const ncclsvc_daemon_info before = daemon_info(&c);
	const int workers[] = {device_of(&c, 0).pid, device_of(&c, 1).pid};
	CHECK(before.mps_pid > 0);
	CHECK_EQ(kill(before.mps_pid, SIGKILL), 0);
	CHECK(daemon_logged(&c.d, "lose their CUDA contexts"));
	CHECK(daemon_logged(&c.d, "its MPS control daemon has ended"));
	/* Idle workers end too; the others continue with the next one. */
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(worker_replaced(&c, i, workers[i]).mps, NCCLSVC_MPS_ACTIVE);
		ranks_kill(&c, i);
	}
	const ncclsvc_daemon_info after = daemon_info(&c);
	CHECK(after.mps_pid > 0 && after.mps_pid != before.mps_pid);
	CHECK_EQ(after.mps_starts, 2);
	CHECK_EQ(after.mps_losses, 2);
	say(&trainer, 2);
	CHECK_EQ(hear(&trainer), 3);
	clients_end(&trainer, 1);
	for (int i = 0; i < 2; i++)
		ranks_replace(&c, i);
	ranks_join(&c, 2, 3, 0);
	ranks_try(&c, 3, 0);
	CHECK_EQ(mps_of(&c, 0), NCCLSVC_MPS_ACTIVE);
	status_says(&c, "started 2 times; 2 workers lost with it; trainers: %d with it\n", 2);
	ranks_stop(&c);
}

/* The stand-in for the control daemon is found in PATH. */
static void provide_mps(void)
{
	char path[1024];
	snprintf(path, sizeof(path), "%s:/usr/bin:/bin", program("NCCLSVC_FAKE_MPS"));
	setenv("PATH", path, 1);
	unsetenv("NCCLSVCD_MPS");
	unsetenv("CUDA_MPS_PIPE_DIRECTORY");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RANKS_TEST(trainers_use_it),
		RANKS_TEST(trainers_without_mps_are_named),
		RANKS_TEST(off_is_off),
		RANKS_TEST(its_control_daemon_dies),
	};
	provide_mps();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
