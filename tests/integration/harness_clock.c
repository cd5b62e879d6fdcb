/* SPDX-License-Identifier: Apache-2.0
 * Timing on a shared machine: a process sleeps briefly, in a loop, and notes when it was woken much
 * too late. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "harness_parts.h"

#define PAUSES	 4096
#define LOOK_MS	 2
#define PAUSE_NS UINT64_C(20000000) /* shorter delays are normal */

struct watch {
	atomic_ullong seen; /* pauses before this time have been noted */
	atomic_uint n;
	struct {
		uint64_t from, to;
	} pauses[PAUSES];
};
static struct watch *watch;
static pid_t watched; /* the process it belongs to */

static __attribute__((noreturn)) void look(struct watch *w)
{
	for (uint64_t from = now_ns(), to;; from = to) {
		sleep_ms(LOOK_MS);
		to = now_ns();
		unsigned n = atomic_load(&w->n);
		if (to - from >= PAUSE_NS && n < PAUSES) {
			w->pauses[n].from = from;
			w->pauses[n].to = to;
			atomic_store(&w->n, n + 1);
		}
		atomic_store(&w->seen, to);
	}
}

void clock_watch(void)
{
	pid_t parent = getpid();
	if (watched == parent)
		return;
	watch = mmap(NULL, sizeof(*watch), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	CHECK(watch != MAP_FAILED);
	watched = parent;
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	/* A reader of the test's output must not wait for this process. */
	for (int fd = 0; fd < 256; fd++)
		close(fd);
	look(watch);
}

static uint64_t paused_ns(uint64_t since, uint64_t until)
{
	uint64_t sum = 0;
	for (unsigned i = 0, n = atomic_load(&watch->n); i < n; i++) {
		uint64_t from = watch->pauses[i].from, to = watch->pauses[i].to;
		from = from > since ? from : since;
		to = to < until ? to : until;
		sum += to > from ? to - from : 0;
	}
	return sum;
}

bool in_time(uint64_t since, uint64_t until, uint64_t limit_ns)
{
	uint64_t took = until > since ? until - since : 0;
	if (took < limit_ns)
		return true;
	CHECK(watched == getpid());
	/* The watching process may be woken after this one. */
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; atomic_load(&watch->seen) < until;
	     sleep_ms(1))
		CHECK(now_ns() < end && "somebody looks at the clock");
	uint64_t paused = paused_ns(since, until);
	print_message("%.1f ms, %.1f of which the machine let nobody run\n", (double)took / 1e6,
		      (double)paused / 1e6);
	return took - paused < limit_ns;
}
