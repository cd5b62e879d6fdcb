/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_ranks.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#define LIMIT_SECONDS 240

static char dir[64];

static int each_file(const char *start, bool remove)
{
	int n = 0;
	DIR *d = opendir(dir);
	for (struct dirent *e; d && (e = readdir(d));) {
		if (e->d_name[0] == '.' || strncmp(e->d_name, start, strlen(start)) != 0)
			continue;
		n++;
		if (remove)
			unlinkat(dirfd(d), e->d_name, 0);
	}
	if (d)
		closedir(d);
	return n;
}

int files_named(const char *start)
{
	return each_file(start, false);
}

void ranks_run(int n, ranks_part *part, int killed)
{
	strcpy(dir, access("/dev/shm", W_OK) ? "/tmp/fake-XXXXXX" : "/dev/shm/fake-XXXXXX");
	assert_non_null(mkdtemp(dir));
	setenv("NCCLSVC_FAKE_DIR", dir, 1);
	struct ranks *ranks = mmap(NULL, sizeof(*ranks), PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(ranks, MAP_FAILED);
	for (int i = 0; i < n; i++)
		assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ranks->socks[i]), 0);
	fflush(NULL);
	for (int i = 0; i < n; i++) {
		int pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			alarm(LIMIT_SECONDS);
			signal(SIGSEGV, SIG_DFL); /* cmocka's handler would continue the tests in
						     this child */
			ranks->pids[i] = getpid();
			part(ranks, i);
			exit(0);
		}
		ranks->pids[i] = pid;
	}
	int failed = 0;
	for (int left = n; left > 0; left--) {
		int status, i = 0, pid = wait(&status);
		while (i < n && ranks->pids[i] != pid)
			i++;
		assert_true(i < n);
		bool good = i == killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
					: WIFEXITED(status) && WEXITSTATUS(status) == 0;
		if (!good && !failed++) {
			fprintf(stderr, "process %d: status %#x\n", i, (unsigned)status);
			for (int j = 0; j < n; j++) /* the remaining ones */
				kill(ranks->pids[j], SIGKILL);
		}
	}
	for (int i = 0; i < n; i++) {
		close(ranks->socks[i][0]);
		close(ranks->socks[i][1]);
	}
	munmap(ranks, sizeof(*ranks));
	each_file("", true);
	rmdir(dir);
	assert_int_equal(failed, 0);
}

void snooze(int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
	nanosleep(&t, NULL);
}

void ranks_barrier(struct ranks *ranks, int n)
{
	int ticket = atomic_fetch_add(&ranks->arrived[n], 1);
	int until = (ticket / n + 1) * n;
	while (atomic_load(&ranks->arrived[n]) < until)
		snooze(1);
}

void ranks_wait(struct ranks *ranks, uint64_t step)
{
	while (atomic_load(&ranks->step) < step)
		snooze(1);
}

static void fault_path(const char *name, char path[128])
{
	snprintf(path, 128, "%s/fault.%s", dir, name);
}

void fault_on(const char *name, int pid)
{
	char path[128];
	fault_path(name, path);
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && dprintf(fd, "%d", pid) > 0);
	close(fd);
}

void fault_off(const char *name)
{
	char path[128];
	fault_path(name, path);
	OK(unlink(path));
}

CUcontext gpu_open(int device)
{
	CUcontext context;
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, device));
	OK(cuCtxSetCurrent(context));
	return context;
}

CUdeviceptr gpu_alloc(size_t bytes)
{
	CUdeviceptr p;
	OK(cuMemAlloc(&p, bytes));
	return p;
}

bool soon(bool (*test)(void *arg), void *arg)
{
	for (int i = 0; i < 4000; i++) {
		if (test(arg))
			return true;
		snooze(5);
	}
	return false;
}

ncclComm_t comm_open(struct ranks *ranks, int rank, int n)
{
	ncclComm_t comm = NULL;
	ncclConfig_t config = {.size = NCCL_CONFIG_NEEDED_BYTES,
			       .magic = NCCL_MAGIC,
			       .version = NCCL_VERSION_NEEDED};
	gpu_open(rank);
	ranks_barrier(ranks, n);
	if (rank == 0)
		OK(ncclGetUniqueId(&ranks->id));
	ranks_barrier(ranks, n);
	if (ncclCommInitRankConfig(&comm, n, ranks->id, rank, &config)) {
		fprintf(stderr, "%s\n", ncclGetLastError(NULL));
		_exit(1);
	}
	CHECK_EQ(files_named("fake-nccl"), 0);
	return comm;
}

CUstream stream_open(void)
{
	CUstream s;
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	return s;
}
