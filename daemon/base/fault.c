/* SPDX-License-Identifier: Apache-2.0 */
#include "fault.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <search.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proto/fdio.h"
#include "timings.h"

struct watched {
	uintptr_t base;
	size_t bytes; /* 0: free, or to be freed when its failure has been taken */
	atomic_bool failed;
	bool listed; /* in the list of failed mappings */
	uint32_t owner, next;
};

/* The handler takes the lock, so no thread may touch a client's memory, or take a SIGBUS, while it
 * holds the lock. */
static struct {
	pthread_mutex_t lock;
	struct watched *table; /* [1..room] */
	void *by_address;      /* watched mappings: a tree of tsearch(3) */
	uint32_t room, fresh, first_free;
	uint32_t first_failed; /* the first whose failure has not been taken */
	int sink; /* replacement pages for failed ones, shared by all of them, since their contents
		     are never trusted */
	size_t sink_bytes;
	int holes; /* a userfaultfd; -1: not available */
	void (*notify)(void *arg);
	void *arg;
	struct sigaction former;
} faults = {.lock = PTHREAD_MUTEX_INITIALIZER, .sink = -1, .holes = -1};

_Atomic uint32_t fault_count;

static sigset_t lock(void)
{
	sigset_t bus, old;
	sigemptyset(&bus);
	sigaddset(&bus, SIGBUS);
	pthread_sigmask(SIG_BLOCK, &bus, &old);
	pthread_mutex_lock(&faults.lock);
	return old;
}

static void unlock(sigset_t old)
{
	pthread_mutex_unlock(&faults.lock);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* Mappings do not overlap; an address range inside one compares equal to it. */
static int compare(const void *pa, const void *pb)
{
	const struct watched *a = pa, *b = pb;
	if (a->base + a->bytes <= b->base)
		return -1;
	return a->base >= b->base + b->bytes;
}

static struct watched *find(uintptr_t address)
{
	const struct watched byte = {.base = address, .bytes = 1};
	struct watched **found = tfind(&byte, &faults.by_address, compare);
	return found ? *found : NULL;
}

/* Maps the sink's pages over those around the address. Only whole pieces are replaced, counted from
 * the mapping's start, so a mapping never splits into more than fault_mappings. */
static bool replace_pages(const struct watched *w, uintptr_t address)
{
	const size_t piece = faults.sink_bytes;
	const uintptr_t from = w->base + (address - w->base) / piece * piece;
	const size_t left = w->base + w->bytes - from;
	return mmap((void *)from, left < piece ? left : piece, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_FIXED, faults.sink, 0) != MAP_FAILED;
}

static void list_failed(struct watched *w)
{
	w->listed = true;
	w->next = faults.first_failed;
	faults.first_failed = (uint32_t)(w - faults.table);
}

/* False: the address is not in a client's memory. */
static bool survive(uintptr_t address)
{
	const struct timespec nap = {0, NAP_NS};
	pthread_mutex_lock(&faults.lock);
	struct watched *w = find(address);
	const bool first = w && !atomic_exchange(&w->failed, true);
	const bool good = w && replace_pages(w, address);
	if (first)
		list_failed(w);
	pthread_mutex_unlock(&faults.lock);
	if (first) {
		atomic_fetch_add(&fault_count, 1);
		faults.notify(faults.arg);
	}
	if (w && !good) /* The system is out of memory: the fault is raised again. */
		nanosleep(&nap, NULL);
	return w;
}

/* Calls only functions that a signal handler may call, and takes a lock that this thread does not
 * hold. */
static void on_sigbus(int signum, siginfo_t *info, void *context)
{
	const int error = errno;
	const bool sent = info->si_code <= 0; /* with kill(2) */
	(void)context;
	if (sent || !survive((uintptr_t)info->si_addr)) {
		sigaction(signum, &faults.former, NULL); /* and then the fault is raised again */
		if (sent)
			raise(signum);
	}
	errno = error;
}

/* Makes accesses to missing pages raise SIGBUS. */
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

static int make_sink(size_t bytes)
{
	faults.sink_bytes = bytes;
	faults.sink = svc_memfd_create("ncclsvc-sink", bytes, true);
	if (faults.sink < 0)
		return faults.sink;
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, faults.sink, 0);
	if (p == MAP_FAILED)
		return -errno;
	const int error = svc_populate(p, bytes);
	munmap(p, bytes);
	return error;
}

int fault_start(uint32_t room, size_t sink_bytes, void (*notify)(void *arg), void *arg)
{
	struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
	faults.table = calloc((size_t)room + 1, sizeof(*faults.table));
	int error = faults.table ? make_sink(sink_bytes) : -ENOMEM;
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

static void keep(void *watched)
{
	(void)watched;
}

void fault_stop(void)
{
	if (faults.notify)
		sigaction(SIGBUS, &faults.former, NULL);
	if (faults.sink >= 0)
		close(faults.sink);
	if (faults.holes >= 0)
		close(faults.holes);
	tdestroy(faults.by_address, keep);
	free(faults.table);
	faults.table = NULL;
	faults.by_address = NULL;
	faults.notify = NULL;
	faults.sink = faults.holes = -1;
	faults.room = faults.fresh = faults.first_free = faults.first_failed = 0;
}

uint32_t fault_mappings(size_t bytes)
{
	return (uint32_t)((bytes + faults.sink_bytes - 1) / faults.sink_bytes);
}

static uint32_t take_number(void)
{
	const uint32_t number = faults.first_free;
	if (number)
		faults.first_free = faults.table[number].next;
	else if (faults.fresh < faults.room)
		return ++faults.fresh;
	return number;
}

static void free_number(struct watched *w)
{
	w->next = faults.first_free;
	faults.first_free = (uint32_t)(w - faults.table);
}

static size_t whole_pages(size_t bytes)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	return (bytes + page - 1) / page * page;
}

uint32_t fault_watch(void *base, size_t bytes, bool filled, uint32_t owner)
{
	const size_t length = whole_pages(bytes);
	struct uffdio_register holes = {.range = {(uintptr_t)base, length},
					.mode = UFFDIO_REGISTER_MODE_MISSING};
	const sigset_t old = lock();
	uint32_t number = take_number();
	struct watched *w = &faults.table[number];
	if (number) {
		w->base = (uintptr_t)base;
		w->bytes = length;
		w->owner = owner;
		w->failed = false;
		if (!tsearch(w, &faults.by_address, compare)) {
			w->bytes = 0;
			free_number(w);
			number = 0;
		}
	}
	unlock(old);
	if (number && filled && faults.holes >= 0)
		ioctl(faults.holes, UFFDIO_REGISTER, &holes);
	return number;
}

void fault_unwatch(uint32_t number)
{
	struct watched *w = &faults.table[number];
	if (!number)
		return;
	const sigset_t old = lock();
	tdelete(w, &faults.by_address, compare);
	w->bytes = 0;
	const bool failed = w->failed;
	if (!w->listed)
		free_number(w);
	unlock(old);
	if (failed)
		atomic_fetch_sub(&fault_count, 1);
}

bool fault_failed(uint32_t number)
{
	return number && atomic_load(&faults.table[number].failed);
}

static uint32_t take_failed(uint32_t *owner)
{
	uint32_t number;
	while ((number = faults.first_failed)) {
		struct watched *w = &faults.table[number];
		faults.first_failed = w->next;
		w->listed = false;
		*owner = w->owner;
		if (w->bytes)
			break;
		free_number(w); /* It is no longer watched. */
	}
	return number;
}

uint32_t fault_next(uint32_t *owner)
{
	const sigset_t old = lock();
	const uint32_t number = take_failed(owner);
	unlock(old);
	return number;
}
