/* SPDX-License-Identifier: Apache-2.0
 * The driver's checkpoint and restore: old memory must never be used again. */
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include "client_cuda.h"

typedef CUresult checkpoint_call(int pid, void *args);

static CUresult checkpoint(const char *name)
{
	uint64_t none[16] = {0}; /* at least as large as any call's arguments */
	static void *library;
	if (!library)
		library = dlopen("libcuda.so.1", RTLD_NOW);
	checkpoint_call *call = (checkpoint_call *)dlsym(library, name);
	if (!call)
		skip();
	return call(getpid(), none);
}

static void restore(void)
{
	GOOD(checkpoint("cuCheckpointProcessRestore"));
	GOOD(checkpoint("cuCheckpointProcessUnlock"));
}

static void leave_and_come_back(void)
{
	GOOD(checkpoint("cuCheckpointProcessLock"));
	GOOD(checkpoint("cuCheckpointProcessCheckpoint"));
	restore();
}

static void restored_memory_is_registered_again(void **state)
{
	ncclsvc_comm *comm;
	CUstream stream;
	CUdeviceptr p;
	(void)state;
	ncclsvc_session *s = open_gpu(&comm, &stream);
	CUdeviceptr a = new_memory(MiB);
	GOOD(cu.cuMemAddressReserve(&p, 2 * MiB, 0, 0, 0));
	map_at(p, 2 * MiB, create(2 * MiB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	reduce(comm, a, 100);
	reduce(comm, p, 100);
	work(1);
	work(2);
	assert_int_equal(ncclsvc_wait_all(s, WAIT_MS), NCCLSVC_OK);
	leave_and_come_back();
	reduce(comm, a, 100);
	reduce(comm, p, 100);
	assert_int_equal(peer.ncuda, 4);
	assert_int_equal(record(3).src_region, peer.cuda_ids[2]);
	assert_int_equal(record(4).src_region, peer.cuda_ids[3]);
	assert_memory_not_equal(peer.cuda[0].handle, peer.cuda[2].handle,
				sizeof(peer.cuda[0].handle));
	peer_sync(s);
	assert_int_equal(peer.ndeleted, 2);
	work(3);
	work(4);
	assert_int_equal(ncclsvc_wait_all(s, WAIT_MS), NCCLSVC_OK);
	/* A pause alone is not taken for a checkpoint. */
	usleep(50000);
	reduce(comm, a, 100);
	assert_int_equal(record(5).src_region, peer.cuda_ids[2]);
	ncclsvc_close(s);
	GOOD(cu.cuMemFree(a));
	GOOD(cu.cuMemUnmap(p, 2 * MiB));
	GOOD(cu.cuMemAddressFree(p, 2 * MiB));
	GOOD(cu.cuStreamDestroy(stream));
}

/* A task that ended before the checkpoint cannot be distinguished from one that ended later. */
static void a_detached_task_that_was_not_waited_for_fails(void **state)
{
	ncclsvc_comm *comm;
	CUstream stream;
	(void)state;
	ncclsvc_session *s = open_gpu(&comm, &stream);
	CUdeviceptr a = new_memory(MiB);
	ncclsvc_task ended = reduce(comm, a, 100), pending = reduce(comm, a, 100);
	leave_and_come_back();
	work(1);
	assert_int_equal(ncclsvc_wait(s, ended, WAIT_MS), NCCLSVC_SYSTEM);
	says("was checkpointed before the end of this task was seen");
	ncclsvc_task after = reduce(comm, a, 100);
	work(2);
	work(3);
	assert_int_equal(ncclsvc_wait(s, pending, WAIT_MS), NCCLSVC_SYSTEM);
	assert_int_equal(ncclsvc_wait(s, after, WAIT_MS), NCCLSVC_OK);
	ncclsvc_close(s);
	GOOD(cu.cuMemFree(a));
	GOOD(cu.cuStreamDestroy(stream));
}

/* The lock waits for the stream, and the stream for the task. */
static void a_task_that_the_stream_waited_for_is_good(void **state)
{
	ncclsvc_comm *comm;
	CUstream stream;
	(void)state;
	ncclsvc_session *s = open_gpu(&comm, &stream);
	assert_int_equal(ncclsvc_stream_set(s, stream, 0), NCCLSVC_OK);
	CUdeviceptr a = new_memory(MiB);
	ncclsvc_task before = reduce(comm, a, 100);
	work(1);
	leave_and_come_back();
	ncclsvc_task after = reduce(comm, a, 100);
	work(2);
	assert_int_equal(ncclsvc_wait(s, before, WAIT_MS), NCCLSVC_OK);
	assert_int_equal(ncclsvc_wait(s, after, WAIT_MS), NCCLSVC_OK);
	ncclsvc_close(s);
	GOOD(cu.cuMemFree(a));
	GOOD(cu.cuStreamDestroy(stream));
}

struct submission {
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	CUstream stream;
	CUdeviceptr at;
	ncclsvc_task task;
};

static void *submit(void *arg)
{
	struct submission *x = arg;
	CUdevice device;
	CUcontext context;
	if (cu.cuDeviceGet(&device, 0) || cu.cuDevicePrimaryCtxRetain(&context, device) ||
	    cu.cuCtxSetCurrent(context) || ncclsvc_stream_set(x->session, x->stream, 0))
		return NULL;
	ncclsvc_all_reduce(pointer(x->at), pointer(x->at), 100, NCCLSVC_FLOAT32, NCCLSVC_SUM,
			   x->comm, &x->task);
	cu.cuDevicePrimaryCtxRelease(device);
	return NULL;
}

static bool published(uint64_t n)
{
	return svc_number_load(&svc_record_slot(peer.ring, peer.entries, n)->number) == n;
}

/* The driver blocks the thread once its record is in the ring, and its stream reports the input as
 * ready when the memory has already been replaced. */
static void a_task_submitted_in_a_checkpoint_fails(void **state)
{
	pthread_t thread;
	struct submission x = {0};
	(void)state;
	ncclsvc_session *s = x.session = open_gpu(&x.comm, &x.stream);
	x.at = new_memory(MiB);
	reduce(x.comm, x.at, 100);
	work(1);
	assert_int_equal(ncclsvc_wait_all(s, WAIT_MS), NCCLSVC_OK);
	GOOD(checkpoint("cuCheckpointProcessLock"));
	GOOD(checkpoint("cuCheckpointProcessCheckpoint"));
	usleep(50000); /* long enough that it also checks before it submits */
	assert_int_equal(pthread_create(&thread, NULL, submit, &x), 0);
	for (int ms = 0; !published(2); ms++, usleep(1000))
		assert_in_range(ms, 0, WAIT_MS);
	restore();
	pthread_join(thread, NULL);
	assert_int_not_equal(x.task, 0);
	assert_int_equal(record(2).src_region, peer.cuda_ids[0]);
	work(2);
	assert_int_equal(ncclsvc_wait(s, x.task, WAIT_MS), NCCLSVC_SYSTEM);
	ncclsvc_task after = reduce(x.comm, x.at, 100);
	assert_int_equal(record(3).src_region, peer.cuda_ids[1]);
	work(3);
	assert_int_equal(ncclsvc_wait(s, after, WAIT_MS), NCCLSVC_OK);
	ncclsvc_close(s);
	GOOD(cu.cuMemFree(x.at));
	GOOD(cu.cuStreamDestroy(x.stream));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		GPU_TEST(restored_memory_is_registered_again),
		GPU_TEST(a_detached_task_that_was_not_waited_for_fails),
		GPU_TEST(a_task_that_the_stream_waited_for_is_good),
		GPU_TEST(a_task_submitted_in_a_checkpoint_fails),
	};
	gpus_open();
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	gpus_close();
	return failed;
}
