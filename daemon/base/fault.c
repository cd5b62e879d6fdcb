/* SPDX-License-Identifier: Apache-2.0 */
#include "fault.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fdio.h"

/* Pages that take the place of those that failed, this much at a time. They are shared by all that
 * failed: nobody believes what is in them. */
#define SINK_BYTES ((size_t)256 << 10)

struct watched {
	_Atomic uintptr_t base; /* 0: free */
	_Atomic size_t bytes;
	atomic_bool failed;
	uint32_t next_free;
};

static struct {
	struct watched *table; /* [1..room] */
	uint32_t room, first_free;
	_Atomic uint32_t fresh; /* entries beyond it were never used */
	int sink;
	int holes; /* a userfaultfd; -1: the system has none for us */
	void (*notify)(void *arg);
	void *arg;
	struct sigaction former;
} faults = {.sink = -1, .holes = -1};

_Atomic uint32_t fault_count;

static struct watched *find(uintptr_t address)
{
	const uint32_t used = atomic_load(&faults.fresh);
	for (uint32_t i = 1; i <= used; i++) {
		struct watched *w = &faults.table[i];
		const uintptr_t base = atomic_load(&w->base);
		if (base && address >= base && address - base < atomic_load(&w->bytes))
			return w;
	}
	return NULL;
}

/* Puts the sink's pages over those around the address. */
static bool replace_pages(const struct watched *w, uintptr_t address)
{
	const uintptr_t base = atomic_load(&w->base), end = base + atomic_load(&w->bytes);
	const uintptr_t from = base + (address - base) / SINK_BYTES * SINK_BYTES;
	const size_t bytes = end - from < SINK_BYTES ? end - from : SINK_BYTES;
	return mmap((void *)from, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		    faults.sink, 0) != MAP_FAILED;
}

/* Calls only what a signal's handler may call. */
static void on_sigbus(int signum, siginfo_t *info, void *context)
{
	const int error = errno;
	struct watched *w = find((uintptr_t)info->si_addr);
	(void)context;
	if (w && !atomic_exchange(&w->failed, true)) {
		atomic_fetch_add(&fault_count, 1);
		faults.notify(faults.arg);
	}
	if (!w || !replace_pages(w, (uintptr_t)info->si_addr))
		sigaction(signum, &faults.former, NULL); /* and the same again */
	errno = error;
}

/* Missing pages are a SIGBUS for whoever touches them. */
static int refuse_holes(void)
{
	struct uffdio_api api = {.api = UFFD_API,
				 .features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_SHMEM};
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	if (fd < 0 || !ioctl(fd, UFFDIO_API, &api))
		return fd;
	close(fd);
	return -1;
}

int fault_start(uint32_t room, void (*notify)(void *arg), void *arg)
{
	struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
	faults.table = calloc((size_t)room + 1, sizeof(*faults.table));
	faults.sink = svc_memfd_create("ncclsvc-sink", SINK_BYTES, true);
	void *sink = faults.sink < 0 ? MAP_FAILED
				     : mmap(NULL, SINK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
					    faults.sink, 0);
	int error = !faults.table || sink == MAP_FAILED ? -ENOMEM : svc_populate(sink, SINK_BYTES);
	if (sink != MAP_FAILED)
		munmap(sink, SINK_BYTES);
	faults.room = room;
	faults.holes = refuse_holes();
	faults.arg = arg;
	if (!error && sigaction(SIGBUS, &action, &faults.former))
		error = -errno;
	if (!error)
		faults.notify = notify;
	else
		fault_stop();
	return error;
}

void fault_stop(void)
{
	if (faults.notify)
		sigaction(SIGBUS, &faults.former, NULL);
	if (faults.sink >= 0)
		close(faults.sink);
	if (faults.holes >= 0)
		close(faults.holes);
	free(faults.table);
	faults.table = NULL;
	faults.notify = NULL;
	faults.sink = faults.holes = -1;
	faults.room = faults.first_free = 0;
	faults.fresh = 0;
}

uint32_t fault_watch(void *base, size_t bytes, bool filled)
{
	uint32_t number = faults.first_free;
	if (number)
		faults.first_free = faults.table[number].next_free;
	else if (faults.fresh < faults.room)
		number = ++faults.fresh;
	else
		return 0;
	struct watched *w = &faults.table[number];
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct uffdio_register r = {.range = {(uintptr_t)base, (bytes + page - 1) / page * page},
				    .mode = UFFDIO_REGISTER_MODE_MISSING};
	if (filled && faults.holes >= 0)
		ioctl(faults.holes, UFFDIO_REGISTER, &r);
	atomic_store(&w->failed, false);
	atomic_store(&w->bytes, bytes);
	atomic_store(&w->base, (uintptr_t)base);
	return number;
}

void fault_unwatch(uint32_t number)
{
	if (!number)
		return;
	struct watched *w = &faults.table[number];
	atomic_store(&w->base, 0);
	if (atomic_load(&w->failed))
		atomic_fetch_sub(&fault_count, 1);
	w->next_free = faults.first_free;
	faults.first_free = number;
}

bool fault_at(const void *address)
{
	const struct watched *w = find((uintptr_t)address);
	return w && atomic_load(&w->failed);
}
