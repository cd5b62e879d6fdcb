/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults on demand. A file $NCCLSVC_FAKE_DIR/fault.<name> turns a fault on for the process whose
 * pid it contains, or for all processes if it contains 0. An empty file has no effect.
 * NCCLSVC_FAKE_FAULTS also turns faults on, as a list "name[:n[:word]],...": the fault is on from
 * its n-th check in a process on, only in processes whose command line contains the word. The list
 * is read once, because streams' threads check it, too, and the program may change its environment
 * meanwhile.
 *
 *   ipc-open     cuIpcOpenMemHandle fails
 *   memory       cuMemAlloc, cuMemCreate and imports are out of memory
 *   sticky       the next call makes its context fail permanently with an illegal address
 *   contained    the same with the rarely seen error 226
 *   batch-fail   cuStreamBatchMemOp is not supported
 *   driver-old   cuDriverGetVersion reports 11.4
 *   mps-unknown  the driver cannot report whether MPS is used
 *   wedge        the next call blocks forever
 *   nccl-old     ncclGetVersion reports 2.15
 *   init-fail    ncclCommInitRankConfig fails
 *   async-error  NCCL operations hang and ncclCommGetAsyncError reports an error
 *   call-slow    every call of an NCCL operation takes 300 ms
 *   launch-fail  cuLaunchKernel fails
 *   kernel-hang  while on, neither NCCL operations nor ncclCommAbort end; each launch that begins
 *                makes a file hangs-<pid>-<n>
 *
 * Regardless of faults, misuse that the real libraries would tolerate silently makes a file
 * misused-<pid>-<n> and aborts the process.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

#define FAULTS 14

static const char *const names[FAULTS] = {
	"ipc-open",  "memory",	  "sticky",	 "batch-fail",	"driver-old",
	"wedge",     "nccl-old",  "init-fail",	 "async-error", "kernel-hang",
	"call-slow", "contained", "mps-unknown", "launch-fail",
};
static atomic_uint asked[FAULTS];
static const char *list;

static bool file_says(const char *name)
{
	char path[FAKE_PATH_MAX], text[32] = "";
	snprintf(path, sizeof(path), "%s/fault.%s", fake_dir(), name);
	if (access(path, F_OK))
		return false;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t got = read(fd, text, sizeof(text) - 1);
	close(fd);
	return got > 0 && (atoi(text) == 0 || atoi(text) == getpid());
}

static bool command_line_has(const char *word)
{
	char line[4096];
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t got = read(fd, line, sizeof(line));
	close(fd);
	return got > 0 && memmem(line, (size_t)got, word, strlen(word));
}

static void list_read(void)
{
	const char *text = getenv("NCCLSVC_FAKE_FAULTS");
	list = text && *text ? strdup(text) : NULL;
}

static bool environment_says(const char *name)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, list_read);
	size_t length = strlen(name);
	for (const char *p = list; p; p = strchr(p, ',')) {
		p += *p == ',';
		if (strncmp(p, name, length) != 0 || !strchr(":,", p[length]))
			continue;
		unsigned from = 1;
		char word[64] = "";
		if (p[length] == ':')
			sscanf(p + length, ":%u:%63[^,]", &from, word);
		if (word[0] && !command_line_has(word))
			continue;
		for (unsigned i = 0; i < FAULTS && names[i]; i++) {
			if (strcmp(names[i], name) == 0)
				return atomic_fetch_add(&asked[i], 1) + 1 >= from;
		}
	}
	return false;
}

bool fake_fault(const char *name)
{
	return fake_dir() && (environment_says(name) || file_says(name));
}

void fake_note(const char *event)
{
	static atomic_uint n;
	char path[FAKE_PATH_MAX];
	snprintf(path, sizeof(path), "%s/%s-%d-%u", fake_dir(), event, getpid(),
		 atomic_fetch_add(&n, 1));
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0)
		close(fd);
}

void fake_die(const char *why)
{
	fprintf(stderr, "the stand-in: %s\n", why);
	fake_note("misused");
	abort();
}

void fake_pause(unsigned *round)
{
	unsigned n = (*round)++;
	if (n < 50) {
		sched_yield();
		return;
	}
	/* Waits of this many rounds are for a deadline or another process, and many threads share
	 * the CPUs. */
	struct timespec t = {.tv_nsec = n < 200 ? 10000 : n < 1000 ? 50000 : 500000};
	nanosleep(&t, NULL);
}
