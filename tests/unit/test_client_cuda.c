/* SPDX-License-Identifier: Apache-2.0
 * Tasks on streams: their order, and what ends a wait. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client_cuda.h"

static void a_task_runs_in_its_streams_order(void **state)
{
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = join_gpu(s, 0);
	CUstream stream = new_stream();
	CUdeviceptr p = new_memory(4096);
	assert_int_equal(ncclsvc_stream_set(s, stream, 0), NCCLSVC_OK);
	gate_shut(stream);
	ncclsvc_task task = reduce(comm, p, 16);
	struct svc_record r = record(1);
	assert_int_equal(r.flags, SVC_TASK_TIMELINE);
	assert_int_equal(r.value, 1);
	assert_false(stream_idle(stream));
	assert_int_equal(atomic_load(&timeline(r.timeline)->ready), 0);
	gate_open();
	wait_ready(r.timeline, 1);
	assert_false(stream_idle(stream));
	assert_int_equal(ncclsvc_test(s, task), NCCLSVC_IN_PROGRESS);
	work(1);
	stream_ends(stream);
	assert_int_equal(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_OK);
	/* The next value of the same timeline. */
	reduce(comm, p, 16);
	assert_int_equal(record(2).timeline, r.timeline);
	assert_int_equal(record(2).value, 2);
	work(2);
	stream_ends(stream);
	ncclsvc_close(s);
	GOOD(cu.cuMemFree(p));
	GOOD(cu.cuStreamDestroy(stream));
}

static void a_group_is_ready_as_a_whole(void **state)
{
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *a = join_gpu(s, 0), *b = join_gpu(s, 0);
	CUstream stream = new_stream();
	CUdeviceptr p = new_memory(4096);
	assert_int_equal(ncclsvc_stream_set(s, stream, 0), NCCLSVC_OK);
	assert_int_equal(ncclsvc_group_begin(s), NCCLSVC_OK);
	ncclsvc_comm *comms[] = {a, b, a};
	for (int i = 0; i < 3; i++) {
		void *buffer = (void *)(uintptr_t)(p + 1024 * (unsigned)i);
		assert_int_equal(ncclsvc_all_reduce(buffer, buffer, 16, NCCLSVC_FLOAT32,
						    NCCLSVC_SUM, comms[i], NULL),
				 NCCLSVC_OK);
	}
	assert_int_equal(ncclsvc_group_end(s), NCCLSVC_OK);
	struct svc_record first = record(1), other = record(2), last = record(3);
	assert_int_equal(first.flags, SVC_TASK_TIMELINE | SVC_TASK_MORE);
	assert_int_equal(last.flags, SVC_TASK_TIMELINE);
	assert_int_equal(first.timeline, last.timeline);
	assert_int_not_equal(first.timeline, other.timeline);
	assert_int_equal(first.value, 1);
	assert_int_equal(last.value, 2);
	wait_ready(last.timeline, 2);
	wait_ready(other.timeline, 1); /* before the first one is done: the group may need both */
	atomic_store(&timeline(last.timeline)->done, 1);
	atomic_store(&timeline(other.timeline)->done, 1);
	assert_false(stream_idle(stream));
	atomic_store(&timeline(last.timeline)->done, 2);
	stream_ends(stream);
	ncclsvc_close(s);
	GOOD(cu.cuMemFree(p));
	GOOD(cu.cuStreamDestroy(stream));
}

static void detached_tasks_are_waited_for_by_name(void **state)
{
	void *host;
	ncclsvc_task on_host;
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = join_gpu(s, 0), *hosts = world(s);
	CUstream stream = new_stream(), other = new_stream();
	CUdeviceptr p = new_memory(4096);
	assert_int_equal(ncclsvc_stream_set(s, stream, 2), NCCLSVC_INVALID_ARGUMENT);
	assert_int_equal(ncclsvc_stream_set(s, stream, NCCLSVC_STREAM_DETACHED), NCCLSVC_OK);
	ncclsvc_task first = reduce(comm, p, 16), second = reduce(comm, p, 16);
	wait_ready(record(2).timeline, 2);
	stream_ends(stream);
	assert_int_equal(ncclsvc_stream_wait(s, other, second), NCCLSVC_OK);
	work(1);
	assert_false(stream_idle(other));
	work(2);
	stream_ends(other);
	/* An ended task needs no wait, and neither does task 0. */
	assert_int_equal(ncclsvc_stream_wait(s, other, first), NCCLSVC_OK);
	assert_int_equal(ncclsvc_stream_wait(s, other, 0), NCCLSVC_OK);
	stream_ends(other);
	assert_int_equal(ncclsvc_stream_wait(s, other, 99), NCCLSVC_NOT_FOUND);
	assert_int_equal(ncclsvc_mem_alloc(s, 64, &host), NCCLSVC_OK);
	assert_int_equal(
		ncclsvc_all_reduce(host, host, 4, NCCLSVC_INT32, NCCLSVC_SUM, hosts, &on_host),
		NCCLSVC_OK);
	assert_int_equal(record(3).flags, 0);
	assert_int_equal(ncclsvc_stream_wait(s, other, on_host), NCCLSVC_INVALID_ARGUMENT);
	says("host communicator");
	ncclsvc_close(s);
	GOOD(cu.cuMemFree(p));
	GOOD(cu.cuStreamDestroy(stream));
	GOOD(cu.cuStreamDestroy(other));
}

static void a_captured_stream_refuses(void **state)
{
	CUgraph graph;
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = join_gpu(s, 0);
	CUstream stream = new_stream(), other = new_stream();
	CUdeviceptr p = new_memory(4096);
	void *buffer = (void *)(uintptr_t)p;
	assert_int_equal(ncclsvc_stream_set(s, stream, NCCLSVC_STREAM_DETACHED), NCCLSVC_OK);
	ncclsvc_task task = reduce(comm, p, 16);
	unsigned known = peer.ncuda;
	assert_int_equal(ncclsvc_stream_set(s, other, NCCLSVC_STREAM_DETACHED), NCCLSVC_OK);
	GOOD(cu.cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
	assert_int_equal(
		ncclsvc_all_reduce(buffer, buffer, 16, NCCLSVC_FLOAT32, NCCLSVC_SUM, comm, NULL),
		NCCLSVC_UNSUPPORTED);
	says("detached");
	assert_int_equal(ncclsvc_stream_set(s, other, 0), NCCLSVC_OK);
	assert_int_equal(ncclsvc_stream_wait(s, other, task), NCCLSVC_UNSUPPORTED);
	says("captured");
	GOOD(cu.cuStreamEndCapture(other, &graph));
	GOOD(cu.cuGraphDestroy(graph));
	reduce(comm, p, 16);
	assert_int_equal(record(2).value, 1); /* the other stream's first value */
	assert_int_equal(peer.ncuda, known);
	work(1);
	work(2);
	stream_ends(other);
	ncclsvc_close(s);
	GOOD(cu.cuMemFree(p));
	GOOD(cu.cuStreamDestroy(stream));
	GOOD(cu.cuStreamDestroy(other));
}

struct submission {
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	CUstream stream;
	CUdeviceptr p;
	CUcontext context; /* left current in the thread */
};

static void *submit(void *arg)
{
	struct submission *sub = arg;
	void *buffer = (void *)(uintptr_t)sub->p;
	ncclsvc_result r = ncclsvc_stream_set(sub->session, sub->stream, 0);
	if (!r)
		r = ncclsvc_all_reduce(buffer, buffer, 16, NCCLSVC_FLOAT32, NCCLSVC_SUM, sub->comm,
				       NULL);
	cu.cuCtxGetCurrent(&sub->context);
	return (void *)(intptr_t)r;
}

/* Default streams, and threads without a context, use the communicator's GPU. */
static void default_streams_and_bare_threads(void **state)
{
	pthread_t thread;
	void *r;
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = join_gpu(s, 0);
	struct submission sub = {s, comm, NULL, new_memory(4096), (CUcontext)1};
	assert_int_equal(pthread_create(&thread, NULL, submit, &sub), 0);
	pthread_join(thread, &r);
	assert_int_equal((intptr_t)r, NCCLSVC_OK);
	assert_null(sub.context);
	reduce(comm, sub.p, 16);
	assert_int_equal(record(2).timeline, record(1).timeline); /* the same stream */
	work(1);
	assert_false(stream_idle(NULL));
	work(2);
	stream_ends(NULL);
	sub.stream = new_stream();
	assert_int_equal(pthread_create(&thread, NULL, submit, &sub), 0);
	pthread_join(thread, &r);
	assert_int_equal((intptr_t)r, NCCLSVC_OK);
	work(3);
	stream_ends(sub.stream);
	ncclsvc_close(s);
	GOOD(cu.cuMemFree(sub.p));
	GOOD(cu.cuStreamDestroy(sub.stream));
}

static void timelines_are_used_again_once_idle(void **state)
{
	enum { STREAMS = SVC_TIMELINES };
	static CUstream streams[STREAMS];
	ncclsvc_timeline *own;
	bool seen[SVC_TIMELINES] = {false};
	ncclsvc_result r;
	(void)state;
	ncclsvc_session *s = NULL;
	ncclsvc_options o = {.size = sizeof(o), .socket = peer.path, .ring_entries = 256};
	assert_int_equal(ncclsvc_open(&o, &s), NCCLSVC_OK);
	assert_int_equal(ncclsvc_timeline_create(s, &own), NCCLSVC_OK);
	ncclsvc_comm *comm = join_gpu(s, 0);
	CUdeviceptr p = new_memory(4096);
	void *buffer = (void *)(uintptr_t)p;
	for (int i = 0; i < STREAMS; i++)
		streams[i] = new_stream();
	for (int i = 0; i < STREAMS - 2; i++) {
		assert_int_equal(ncclsvc_stream_set(s, streams[i], 0), NCCLSVC_OK);
		reduce(comm, p, 16);
		reduce(comm, p, 16);
		uint32_t t = record(2 * (uint64_t)i + 1).timeline;
		assert_false(seen[t]);
		seen[t] = true;
	}
	assert_int_equal(ncclsvc_timeline_create(s, &own), NCCLSVC_LIMIT);
	assert_int_equal(ncclsvc_stream_set(s, streams[STREAMS - 2], 0), NCCLSVC_OK);
	r = ncclsvc_all_reduce(buffer, buffer, 16, NCCLSVC_FLOAT32, NCCLSVC_SUM, comm, NULL);
	assert_int_equal(r, NCCLSVC_LIMIT);
	says("all 63 timelines");
	/* The second stream's tasks are over. */
	work(3);
	work(4);
	reduce(comm, p, 16);
	uint64_t n = 2 * (STREAMS - 2) + 1;
	assert_int_equal(record(n).timeline, record(3).timeline);
	assert_int_equal(record(n).value, 3);
	/* A task that ended before its stream reached it keeps its timeline. */
	assert_int_equal(ncclsvc_stream_set(s, streams[STREAMS - 1], 0), NCCLSVC_OK);
	wait_ready(record(n).timeline, 3);
	atomic_store(&timeline(record(1).timeline)->done, 2);
	peer_end_task(&peer, 1, NCCLSVC_OK);
	peer_end_task(&peer, 2, NCCLSVC_OK);
	wait_ready(record(1).timeline, 2);
	atomic_store(&timeline(record(1).timeline)->ready, 1);
	r = ncclsvc_all_reduce(buffer, buffer, 16, NCCLSVC_FLOAT32, NCCLSVC_SUM, comm, NULL);
	assert_int_equal(r, NCCLSVC_LIMIT);
	ncclsvc_close(s);
	for (int i = 0; i < STREAMS; i++) {
		stream_ends(streams[i]);
		GOOD(cu.cuStreamDestroy(streams[i]));
	}
	GOOD(cu.cuMemFree(p));
}

static void a_lost_daemon_frees_the_streams(void **state)
{
	(void)state;
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = join_gpu(s, 0);
	CUstream stream = new_stream();
	CUdeviceptr p = new_memory(4096);
	assert_int_equal(ncclsvc_stream_set(s, stream, 0), NCCLSVC_OK);
	gate_shut(stream);
	ncclsvc_task task = reduce(comm, p, 16);
	for (unsigned round = 1; round <= 3; round++) {
		peer_hang_up(&peer);
		assert_int_equal(ncclsvc_wait(s, task, WAIT_MS), NCCLSVC_DAEMON_LOST);
		assert_int_equal(ncclsvc_comm_rejoin(comm, WAIT_MS), NCCLSVC_DAEMON_LOST);
		if (round >
		    1) /* the first time, its work is still pending when everything is new */
			stream_ends(stream);
		peer.devices[0].device = DAEMON_DEVICE(0) + 10 * (int)round;
		if (gpus > 1) {
			peer.devices[gpus < 4 ? gpus - 1 : 3].device =
				DAEMON_DEVICE(0) + 10 * (int)round;
			peer.devices[0].device = 99;
		}
		if (ncclsvc_reattach(s, WAIT_MS))
			fail_msg("%s", ncclsvc_last_error());
		assert_int_equal(peer.join_device, DAEMON_DEVICE(0) + 10 * (int)round);
		assert_int_equal(ncclsvc_stream_wait(s, stream, task), NCCLSVC_OK);
		task = reduce(comm, p, 16);
		assert_int_equal(peer.ncuda, round + 1);
		if (round == 1)
			gate_open();
		wait_ready(record(1).timeline, 1);
		assert_false(stream_idle(stream));
	}
	work(1);
	stream_ends(stream);
	ncclsvc_close(s);
	GOOD(cu.cuMemFree(p));
	GOOD(cu.cuStreamDestroy(stream));
}

static void closing_leaves_nothing(void **state)
{
	(void)state;
	CUstream stream = new_stream();
	CUdeviceptr p = new_memory(4096);
	unsigned before = 0;
	for (int i = 0; i < 3; i++) {
		ncclsvc_session *s = session(false);
		ncclsvc_comm *comm = join_gpu(s, 0);
		assert_int_equal(ncclsvc_stream_set(s, stream, 0), NCCLSVC_OK);
		reduce(comm, p, 16); /* which never runs */
		ncclsvc_close(s);
		stream_ends(stream);
		if (!i)
			before = open_fds();
	}
	assert_int_equal(open_fds(), before);
	GOOD(cu.cuMemFree(p));
	GOOD(cu.cuStreamDestroy(stream));
}

static void without_batches(void **state)
{
	(void)state;
	if (!fake)
		skip();
	ncclsvc_session *s = session(false);
	ncclsvc_comm *comm = join_gpu(s, 0);
	CUstream stream = new_stream();
	CUdeviceptr p = new_memory(4096);
	assert_int_equal(ncclsvc_stream_set(s, stream, 0), NCCLSVC_OK);
	gpus_fault("batch-fail", true);
	reduce(comm, p, 16);
	gpus_fault("batch-fail", false);
	wait_ready(record(1).timeline, 1);
	assert_false(stream_idle(stream));
	work(1);
	stream_ends(stream);
	ncclsvc_close(s);
	GOOD(cu.cuMemFree(p));
	GOOD(cu.cuStreamDestroy(stream));
}

static void joins_are_refused_by_name(void **state)
{
	ncclsvc_unique_id id = {{1}};
	ncclsvc_comm *comm = NULL;
	ncclsvc_timeline *own;
	ncclsvc_device_info *list;
	size_t n;
	(void)state;
	ncclsvc_session *s = session(true);
	assert_int_equal(ncclsvc_comm_join_device(s, &id, 2, 0, 0, WAIT_MS, &comm),
			 NCCLSVC_UNSUPPORTED);
	says("ring");
	ncclsvc_close(s);
	s = session(false);
	assert_int_equal(ncclsvc_comm_join_device(s, &id, 2, 0, gpus, WAIT_MS, &comm),
			 NCCLSVC_INVALID_ARGUMENT);
	says("this process sees");
	assert_int_equal(ncclsvc_comm_join_device(s, &id, 2, 0, -2, WAIT_MS, &comm),
			 NCCLSVC_INVALID_ARGUMENT);
	assert_int_equal(ncclsvc_list_devices(s, &list, &n), NCCLSVC_OK);
	assert_int_equal(n, peer.ndevices);
	assert_int_equal(list[n - 1].device, DAEMON_DEVICE(0));
	ncclsvc_list_free(list);
	unsigned mine = peer.ndevices - 1;
	peer.devices[mine].state = NCCLSVC_DEVICE_FAILED;
	snprintf(peer.devices[mine].text, sizeof(peer.devices[mine].text), "no libnccl here");
	assert_int_equal(ncclsvc_comm_join_device(s, &id, 2, 0, 0, WAIT_MS, &comm),
			 NCCLSVC_UNSUPPORTED);
	says("no libnccl here");
	peer.ndevices = mine;
	assert_int_equal(ncclsvc_comm_join_device(s, &id, 2, 0, 0, WAIT_MS, &comm),
			 NCCLSVC_UNSUPPORTED);
	says("no worker for GPU 0 (GPU-");
	peer.ndevices = mine + 1;
	peer.devices[mine].state = NCCLSVC_DEVICE_READY;
	comm = join_gpu(s, 0);
	assert_int_equal(ncclsvc_timeline_create(s, &own), NCCLSVC_OK);
	assert_int_equal(ncclsvc_timeline_set(s, own, 1), NCCLSVC_OK);
	assert_int_equal(ncclsvc_barrier(comm, NULL), NCCLSVC_UNSUPPORTED);
	says("ordered by their stream");
	assert_int_equal(ncclsvc_timeline_set(s, NULL, 0), NCCLSVC_OK);
	barrier(comm);
	assert_int_equal(record(1).src_region, 0);
	ncclsvc_close(s);
}

/* Runs in a separate process, because the driver is opened only once: with a library that is not a
 * driver. */
static void no_driver(void **state)
{
	ncclsvc_unique_id id = {{1}};
	ncclsvc_comm *comm = NULL;
	void *memory;
	const char *why = getenv("NCCLSVC_TEST_DRIVER");
	(void)state;
	ncclsvc_session *s = session(false);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(ncclsvc_comm_join_device(s, &id, 2, 0, 0, WAIT_MS, &comm),
				 NCCLSVC_UNSUPPORTED);
		says(why);
		assert_int_equal(ncclsvc_mem_alloc_device(s, 0, 64, &memory), NCCLSVC_UNSUPPORTED);
		says(why);
	}
	comm = world(s);
	assert_int_equal(
		ncclsvc_comm_join_device(s, &id, 2, 0, NCCLSVC_DEVICE_HOST, WAIT_MS, &comm),
		NCCLSVC_OK);
	assert_int_equal(ncclsvc_mem_alloc(s, 64, &memory), NCCLSVC_OK);
	static const ncclsvc_type narrow[] = {NCCLSVC_FLOAT8E4M3, NCCLSVC_FLOAT8E5M2};
	for (int i = 0; i < 2; i++) {
		assert_int_equal(
			ncclsvc_all_reduce(memory, memory, 4, narrow[i], NCCLSVC_SUM, comm, NULL),
			NCCLSVC_UNSUPPORTED);
		says("only on GPUs");
		assert_int_equal(ncclsvc_broadcast(memory, memory, 4, narrow[i], 0, comm, NULL),
				 NCCLSVC_OK);
	}
	ncclsvc_close(s);
}

static void again_without_a_driver(const char *name, const char *value, const char *why)
{
	int status = -1;
	pid_t pid = fork();
	if (!pid) {
		setenv(name, value, 1);
		setenv("NCCLSVC_TEST_DRIVER", why, 1);
		execl("/proc/self/exe", "test", (char *)NULL);
		_exit(127);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void drivers_that_do_not_serve(void **state)
{
	char dir[] = "/tmp/ncclsvc-driver-XXXXXX", path[64];
	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/libcuda.so.1", dir);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fprintf(f, "no library\n");
	fclose(f);
	again_without_a_driver("LD_LIBRARY_PATH", dir, "libcuda.so.1 cannot be opened");
	unlink(path);
	rmdir(dir);
	if (fake)
		again_without_a_driver("NCCLSVC_FAKE_FAULTS", "driver-old", "11.4, but 12.0");
}

int main(void)
{
	const struct CMUnitTest none[] = {TEST(no_driver)};
	const struct CMUnitTest tests[] = {
		GPU_TEST(a_task_runs_in_its_streams_order),
		GPU_TEST(a_group_is_ready_as_a_whole),
		GPU_TEST(detached_tasks_are_waited_for_by_name),
		GPU_TEST(a_captured_stream_refuses),
		GPU_TEST(default_streams_and_bare_threads),
		GPU_TEST(timelines_are_used_again_once_idle),
		GPU_TEST(a_lost_daemon_frees_the_streams),
		GPU_TEST(closing_leaves_nothing),
		GPU_TEST(without_batches),
		GPU_TEST(joins_are_refused_by_name),
		GPU_TEST(drivers_that_do_not_serve),
	};
	if (getenv("NCCLSVC_TEST_DRIVER"))
		return cmocka_run_group_tests(none, NULL, NULL);
	gpus_open();
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	gpus_close();
	return failed;
}
