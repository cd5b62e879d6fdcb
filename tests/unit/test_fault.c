/* SPDX-License-Identifier: Apache-2.0
 * Memory that fails under the daemon: a truncated file stands for one whose pages are gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "proto/fdio.h"
#include "sched/base/state.h"
#include "sched/queue/complete.h"

#define BYTES ((size_t)1 << 20)
#define ROOM  4
#define SINK  ((size_t)64 << 10)
#define OWNER 7

static _Atomic unsigned notified;

static void notify(void *arg)
{
	(void)arg;
	notified++;
}

/* Not a fixture, because cmocka has its own signal handler while one runs. */
static void start(void)
{
	notified = 0;
	signal(SIGBUS, SIG_DFL);
	assert_int_equal(fault_start(ROOM, SINK, notify, NULL), 0);
}

struct shared {
	int fd;
	char *base;
	uint32_t number;
};

static struct shared make(void)
{
	struct shared s = {.fd = memfd_create("test", MFD_CLOEXEC)};
	assert_true(s.fd >= 0);
	assert_int_equal(ftruncate(s.fd, BYTES), 0);
	s.base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0);
	assert_ptr_not_equal(s.base, MAP_FAILED);
	s.number = fault_watch(s.base, BYTES, false, OWNER);
	return s;
}

static void drop(struct shared *s)
{
	fault_unwatch(s->number);
	munmap(s->base, BYTES);
	close(s->fd);
}

static void a_fault_is_told_and_survived(void **state)
{
	(void)state;
	start();
	struct shared good = make(), bad = make();
	uint32_t owner = 0;
	memset(good.base, 1, BYTES);
	assert_false(fault_any());
	assert_int_equal(ftruncate(bad.fd, 4096), 0);
	bad.base[100] = 1; /* that page is there */
	assert_false(fault_any());
	memset(bad.base, 2, BYTES);
	assert_true(fault_any());
	assert_true(fault_failed(bad.number));
	assert_false(fault_failed(good.number));
	assert_false(fault_failed(0));
	assert_int_equal(notified, 1);
	assert_int_equal(fault_next(&owner), bad.number);
	assert_int_equal(owner, OWNER);
	assert_int_equal(fault_next(&owner), 0);
	assert_int_equal(good.base[BYTES - 1], 1);
	drop(&bad);
	assert_false(fault_any());
	drop(&good);
	fault_stop();
}

static void numbers_are_used_again(void **state)
{
	struct shared s[ROOM];
	(void)state;
	start();
	for (int i = 0; i < ROOM; i++) {
		s[i] = make();
		assert_int_not_equal(s[i].number, 0);
	}
	assert_int_equal(fault_watch(s, sizeof(s), false, OWNER), 0);
	const uint32_t second = s[1].number;
	drop(&s[1]);
	s[1] = make();
	assert_int_equal(s[1].number, second);
	for (int i = 0; i < ROOM; i++)
		drop(&s[i]);
	fault_stop();
}

static unsigned count_mappings(const struct shared *s)
{
	char line[4096];
	unsigned n = 0;
	FILE *f = fopen("/proc/self/maps", "re");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		const uintptr_t at = strtoull(line, NULL, 16);
		n += at >= (uintptr_t)s->base && at < (uintptr_t)s->base + BYTES;
	}
	fclose(f);
	return n;
}

/* A region's mappings are charged to the user's share beforehand, because all users share the
 * system's limit. No order of faults may create more. */
static void no_order_of_faults_makes_more_mappings(void **state)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	(void)state;
	start();
	struct shared s = make();
	unsigned most = 1;
	assert_int_equal(fault_mappings(BYTES), BYTES / SINK);
	assert_int_equal(fault_mappings(BYTES + 1), BYTES / SINK + 1);
	assert_int_equal(fault_mappings(1), 1);
	assert_int_equal(ftruncate(s.fd, 0), 0);
	for (size_t i = 0; i < BYTES / page; i++) { /* 37 is prime to the number of pages */
		s.base[i * 37 % (BYTES / page) * page] = 1;
		const unsigned n = count_mappings(&s);
		most = n > most ? n : most;
	}
	assert_true(most > 1 && most <= fault_mappings(BYTES));
	assert_int_equal(notified, 1);
	drop(&s);
	fault_stop();
}

/* Its number can be reused only after the failure was collected. */
static void a_number_is_reused_only_after_its_failure_was_taken(void **state)
{
	uint32_t owner = 0;
	(void)state;
	start();
	struct shared bad = make();
	const uint32_t number = bad.number;
	assert_int_equal(ftruncate(bad.fd, 0), 0);
	bad.base[0] = 1;
	drop(&bad);
	struct shared next = make();
	assert_int_not_equal(next.number, number);
	assert_int_equal(fault_next(&owner), 0);
	struct shared third = make();
	assert_int_equal(third.number, number);
	assert_false(fault_failed(number));
	drop(&third);
	drop(&next);
	fault_stop();
}

enum { THREADS = 4, TURNS = 50 };

/* ThreadSanitizer treats the handler's mmap as a write to memory that others write to, which it is.
 */
__attribute__((no_sanitize("thread"))) static void *write_all(void *base)
{
	for (size_t at = 0; at < BYTES; at += 512)
		atomic_store_explicit((_Atomic char *)base + at, 1, memory_order_relaxed);
	return NULL;
}

/* Several threads fault in the same memory, while other regions come and go. */
static void threads_fault_at_a_time(void **state)
{
	pthread_t threads[THREADS];
	uint32_t owner = 0;
	(void)state;
	start();
	for (int turn = 0; turn < TURNS; turn++) {
		struct shared bad = make();
		assert_int_equal(ftruncate(bad.fd, 0), 0);
		for (int i = 0; i < THREADS; i++)
			assert_int_equal(pthread_create(&threads[i], NULL, write_all, bad.base), 0);
		struct shared other = make();
		drop(&other);
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
		assert_int_equal(fault_next(&owner), bad.number);
		assert_int_equal(fault_next(&owner), 0);
		drop(&bad);
	}
	assert_int_equal(notified, TURNS);
	assert_false(fault_any());
	fault_stop();
}

/* Faults outside clients' memory are not hidden. */
static void a_fault_elsewhere_ends_the_process(void **state)
{
	int how;
	(void)state;
	start();
	struct shared s = make();
	fault_unwatch(s.number);
	s.number = 0;
	assert_int_equal(ftruncate(s.fd, 0), 0);
	pid_t child = fork();
	if (!child) {
		s.base[0] = 1;
		_exit(0);
	}
	assert_int_equal(waitpid(child, &how, 0), child);
	assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGBUS);
	drop(&s);
	fault_stop();
}

static void what_was_computed_from_it_is_no_result(void **state)
{
	(void)state;
	start();
	struct shared good = make(), bad = make();
	struct region regions[] = {{0}, {.fault = good.number}, {.fault = bad.number}};
	struct sched_session session = {.pid = 77, .regions = regions, .nregions = 3};
	struct task tasks[2] = {
		{.session = &session, .rank = 0, .record = {.src_region = 1}},
		{.session = &session, .rank = 1, .record = {.src_region = 1, .dst_region = 2}}};
	struct task *both[] = {&tasks[0], &tasks[1]};
	ncclsvc_status st;
	assert_int_equal(complete_ran(both, 2, &st)->result, NCCLSVC_OK);
	assert_int_equal(ftruncate(bad.fd, 0), 0);
	bad.base[0] = 1;
	assert_int_equal(complete_ran(both, 1, &st)->result, NCCLSVC_OK);
	const ncclsvc_status *how = complete_ran(both, 2, &st);
	assert_int_equal(how->result, NCCLSVC_PEER_GONE);
	assert_int_equal(how->rank_a, 1);
	assert_int_equal(how->pid_a, 77);
	drop(&bad);
	drop(&good);
	fault_stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_fault_is_told_and_survived),
		cmocka_unit_test(numbers_are_used_again),
		cmocka_unit_test(no_order_of_faults_makes_more_mappings),
		cmocka_unit_test(a_number_is_reused_only_after_its_failure_was_taken),
		cmocka_unit_test(threads_fault_at_a_time),
		cmocka_unit_test(a_fault_elsewhere_ends_the_process),
		cmocka_unit_test(what_was_computed_from_it_is_no_result),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
