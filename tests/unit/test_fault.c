/* SPDX-License-Identifier: Apache-2.0
 * Memory that fails under the daemon: a file that is cut stands for one whose pages are gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "fdio.h"
#include "sched/complete.h"
#include "sched/state.h"

#define BYTES ((size_t)1 << 20)
#define ROOM  4

static _Atomic unsigned notified;

static void notify(void *arg)
{
	(void)arg;
	notified++;
}

/* Not as a fixture: cmocka has a handler of its own while one is set up. */
static void start(void)
{
	notified = 0;
	signal(SIGBUS, SIG_DFL);
	assert_int_equal(fault_start(ROOM, notify, NULL), 0);
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
	s.number = fault_watch(s.base, BYTES, false);
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
	memset(good.base, 1, BYTES);
	assert_false(fault_any());
	assert_int_equal(ftruncate(bad.fd, 4096), 0);
	bad.base[100] = 1; /* that page is there */
	assert_false(fault_any());
	memset(bad.base, 2, BYTES);
	assert_true(fault_any());
	assert_true(fault_at(bad.base + BYTES - 1));
	assert_true(fault_at(bad.base));
	assert_false(fault_at(bad.base + BYTES));
	assert_false(fault_at(good.base));
	assert_int_equal(notified, 1);
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
	assert_int_equal(fault_watch(s, sizeof(s), false), 0);
	const uint32_t second = s[1].number;
	drop(&s[1]);
	s[1] = make();
	assert_int_equal(s[1].number, second);
	for (int i = 0; i < ROOM; i++)
		drop(&s[i]);
	fault_stop();
}

/* Nothing is hidden of a fault in memory that is not a client's. */
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
	struct session session = {.pid = 77};
	struct task tasks[2] = {
		{.session = &session, .rank = 0, .src = good.base, .dst = good.base},
		{.session = &session, .rank = 1, .src = bad.base, .dst = bad.base}};
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
		cmocka_unit_test(a_fault_elsewhere_ends_the_process),
		cmocka_unit_test(what_was_computed_from_it_is_no_result),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
