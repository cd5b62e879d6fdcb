/* SPDX-License-Identifier: Apache-2.0
 * What `ncclsvc-ctl why` says about GPU tasks and communicators. */
#include <string.h>

#include "base/ids.h"
#include "why_scene.h"

#define WORKER(device) (190 + (device)) /* the number of its worker's process */

/* A world with a GPU for each. */
static void gpu_world(int n, uint64_t submitted)
{
	world(n, submitted);
	for (int i = 0; i < n; i++) {
		scene.members[i].device = i;
		scene.devices[i] = (ncclsvc_device_info){
			.device = i, .state = NCCLSVC_DEVICE_READY, .pid = PID(WORKER(i))};
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
		"All ranks have called AllReduce #2 (float32, 1048576 elements) of communicator "
		"world (id 1, 3 ranks), but it has waited 6.0 s on the GPUs for the stream of rank "
		"1 (pid 111, trainer-1) on device 1, where earlier work has not ended. Pid 111 is "
		"sleeping. Next: `gdb -p 111 -batch -ex 'thread apply all bt'`.");
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
	says(f, "and for 6.0 s it has been on the GPUs of ranks 0 and 1. NCCL is moving 4.0 MiB, "
		"or earlier work of a rank's stream has not ended. Next: `nvidia-smi`.");
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
	const struct why_finding *f = only(WHY_WORKER);
	says(f, "but the worker of device 1 (pid 301), which serves rank 1 (pid 111, trainer-1), "
		"was lost 2.0 s ago (the worker was ended by signal 9); ncclsvcd is starting "
		"another. Next: `ncclsvc-ctl devices`.");
	assert_int_equal(f->nculprits, 0);
	assert_int_equal(f->device, 1);
}

/* The worker is another node's, whose GPU has a number that no GPU has here. */
static void test_gpu_worker_lost_elsewhere(void **state)
{
	(void)state;
	static struct snapshot_answer answers[] = {{.asked = true}, {.asked = true}};
	gpu_world(2, 3);
	nodes(2);
	scene.s.answers = answers;
	scene.members[1].elsewhere = 2;
	scene.members[1].device = 5;
	scene.devices[1].device = ids_device(1, 5);
	scene.devices[1].state = NCCLSVC_DEVICE_LOST;
	scene.devices[1].age_ns = 2 * SEC;
	task(WORLD, 0, 0, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	task(WORLD, 1, 1, NCCLSVC_ALL_REDUCE, 2, NCCLSVC_LAUNCHED, 6);
	says(only(WHY_WORKER), "but the worker of device 5 (pid 301), which serves rank 1");
	scene.s.answers = NULL;
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
	says(only(WHY_WORKER), "All ranks of communicator world (id 1, 2 ranks) have joined, and "
			       "have waited 3.0 s to begin: the worker of device 0 (pid 300), "
			       "which serves rank 0 (pid 110, trainer-0), has been starting for "
			       "3.0 s.");
	tear_down(NULL);
	scene.devices[0].state = NCCLSVC_DEVICE_READY;
	says(only(WHY_JOINING), "NCCL is connecting their GPUs");
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
	says(f, "the worker of device 1 (pid 301), which serves rank 1 (pid 111, trainer-1), "
		"cannot be used");
	says(f, "Rank 1 (pid 111, trainer-1) has not rejoined yet.");
	assert_int_equal(f->nculprits, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_gpu_stream),
		TEST(test_gpu_stream_first),
		TEST(test_gpu_launched),
		TEST(test_gpu_worker_lost),
		TEST(test_gpu_worker_lost_elsewhere),
		TEST(test_gpu_joining),
		TEST(test_gpu_broken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
