/* SPDX-License-Identifier: Apache-2.0
 * What `ncclsvc-ctl why` says about GPU tasks and communicators. */
#include <string.h>

#include "why_scene.h"

/* A world with one GPU per rank. */
static void gpu_world(int n, uint64_t submitted)
{
	world(n, submitted);
	for (int i = 0; i < n; i++) {
		scene.members[i].device = i;
		scene.devices[i] = (ncclsvc_device_info){
			.device = i, .state = NCCLSVC_DEVICE_READY, .pid = 500 + i};
	}
	scene.s.ndevices = (size_t)n;
}

/* Launched everywhere, but one rank's stream has not reached it. */
static void test_gpu_stream(void **state)
{
	(void)state;
	gpu_world(3, 3);
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_WAITING_INPUT, 6);
	task(WORLD, 2, 2, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	const struct why_finding *f = only(WHY_INPUT);
	assert_string_equal(
		f->text,
		"Communicator world (id 1, 3 ranks) has waited 6.0 s at AllReduce #2 (float32, "
		"1048576 elements): it was launched, and waits on the GPUs for the stream of rank "
		"1 "
		"(pid 111, trainer-1) on device 1: the work that was put there before it has not "
		"ended. Look at what this process runs on its GPU.");
	assert_int_equal(f->nculprits, 1);
	blames(f, 0, WORLD, 1, PID(1), "joined");
	assert_int_equal(f->nwaiting, 3);
	assert_int_equal(f->nalso, 0);
}

/* The rank with the late stream waits longest: there is still only one finding. */
static void test_gpu_stream_first(void **state)
{
	(void)state;
	gpu_world(2, 3);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_WAITING_INPUT, 7);
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	blames(only(WHY_INPUT), 0, WORLD, 1, PID(1), "joined");
	assert_int_equal(scene.report.findings[0].nalso, 0);
}

/* A daemon that does not report whose stream is late. */
static void test_gpu_launched(void **state)
{
	(void)state;
	gpu_world(2, 3);
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	const struct why_finding *f = only(WHY_RUNNING);
	says(f, "the workers of the GPUs have launched it for ranks 0 and 1. NCCL runs it, or it "
		"waits there for a rank's stream");
	assert_int_equal(f->nculprits, 0);
}

static void test_gpu_worker_lost(void **state)
{
	(void)state;
	gpu_world(2, 3);
	scene.devices[1].state = NCCLSVC_DEVICE_LOST;
	scene.devices[1].age_ns = 2 * SEC;
	strcpy(scene.devices[1].text, "the worker was ended by signal 9");
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	says(only(WHY_WORKER), "it was launched, and the worker of device 1, where rank 1 (pid "
			       "111, trainer-1) is, is "
			       "lost, and another is to be started; it has been so for 2.0 s (the "
			       "worker was ended by "
			       "signal 9). `ncclsvc-ctl devices`");
}

/* All ranks have joined, and wait for a worker. */
static void test_gpu_joining(void **state)
{
	(void)state;
	gpu_world(2, 0);
	scene.comms[0].state = NCCLSVC_COMM_FORMING;
	scene.members[0].state = scene.members[1].state = NCCLSVC_MEMBER_JOINING;
	scene.members[0].waiting_ns = 3 * SEC;
	scene.devices[0].state = NCCLSVC_DEVICE_STARTING;
	scene.devices[0].age_ns = 3 * SEC;
	says(only(WHY_WORKER), "all ranks have joined, and the worker of device 0, where rank 0 "
			       "(pid 110, trainer-0) is, has been starting for 3.0 s");
	tear_down(NULL);
	scene.devices[0].state = NCCLSVC_DEVICE_READY;
	says(only(WHY_JOINING), "all ranks have joined, and NCCL connects their GPUs");
}

static void test_gpu_broken(void **state)
{
	(void)state;
	gpu_world(2, 4);
	scene.comms[0].state = NCCLSVC_COMM_BROKEN;
	scene.members[0].state = NCCLSVC_MEMBER_JOINING;
	scene.members[0].waiting_ns = 3 * SEC;
	scene.members[1].state = NCCLSVC_MEMBER_BROKEN;
	scene.devices[1].state = NCCLSVC_DEVICE_FAILED;
	const struct why_finding *f = only(WHY_WORKER);
	says(f, "the worker of device 1, where rank 1 (pid 111, trainer-1) is, cannot be used");
	says(f, "Alive, and yet to rejoin: rank 1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_gpu_stream),	    TEST(test_gpu_stream_first), TEST(test_gpu_launched),
		TEST(test_gpu_worker_lost), TEST(test_gpu_joining),	 TEST(test_gpu_broken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
