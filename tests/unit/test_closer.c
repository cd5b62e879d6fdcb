/* SPDX-License-Identifier: Apache-2.0
 * Closing and unmapping in a user's thread. A connection whose close waits for unsent data
 * stands for everything that a user can make slow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/closer.h"
#include "base/timings.h"

#define LARGE ((size_t)9 << 20) /* in pieces */
#define NAME  "ncclsvc-test-closer"

struct user {
	struct closer *closer;
	sem_t closed;
};

static void on_closed(void *arg)
{
	struct user *u = arg;
	sem_post(&u->closed);
}

static void open_user(struct user *u)
{
	assert_int_equal(sem_init(&u->closed, 0, 0), 0);
	u->closer = closer_create(on_closed, u);
	assert_non_null(u->closer);
}

/* Closing pair[0] blocks until pair[1] is read. */
static void make_slow(int pair[2])
{
	static const char data[1 << 16];
	const struct linger linger = {1, 600};
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(address);
	const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pair[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(server, (struct sockaddr *)&address, size), 0);
	assert_int_equal(listen(server, 1), 0);
	assert_int_equal(getsockname(server, (struct sockaddr *)&address, &size), 0);
	assert_int_equal(connect(pair[0], (struct sockaddr *)&address, size), 0);
	pair[1] = accept(server, NULL, NULL);
	assert_true(pair[1] >= 0);
	assert_int_equal(setsockopt(pair[0], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
	while (send(pair[0], data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	close(server);
}

static void let_go(int fd)
{
	static char data[1 << 16];
	while (read(fd, data, sizeof(data)) > 0)
		;
	close(fd);
}

static void *map(size_t bytes)
{
	const int fd = memfd_create(NAME, MFD_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	close(fd);
	return p;
}

/* Is one of map's mappings there? Once it is gone, a new thread may use its address. */
static bool mapped(const void *p)
{
	char line[512];
	bool found = false;
	FILE *maps = fopen("/proc/self/maps", "re");
	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps)) {
		char *end;
		const uintptr_t from = strtoull(line, &end, 16), to = strtoull(end + 1, NULL, 16);
		found |= from <= (uintptr_t)p && (uintptr_t)p < to && strstr(line, NAME);
	}
	fclose(maps);
	return found;
}

static void wait_for_all(struct user *u, struct closer_amount sum[CLOSER_KINDS])
{
	struct closer_amount closed[CLOSER_KINDS];
	memset(sum, 0, sizeof(closed));
	while (closer_busy(u->closer)) {
		sem_wait(&u->closed);
		closer_closed(u->closer, closed);
		for (int i = 0; i < CLOSER_KINDS; i++) {
			sum[i].n += closed[i].n;
			sum[i].bytes += closed[i].bytes;
		}
	}
}

static void all_is_counted_when_it_is_done(void **state)
{
	struct user u;
	struct closer_amount closed[CLOSER_KINDS];
	int fds[2];
	(void)state;
	open_user(&u);
	assert_false(closer_busy(u.closer));
	assert_int_equal(pipe(fds), 0);
	void *region = map(LARGE), *ring = map(4096);
	closer_add(u.closer, fds, 2);
	closer_unmap(u.closer, CLOSER_REGION, region, LARGE, 3);
	closer_unmap(u.closer, CLOSER_RING, ring, 4096, 0);
	wait_for_all(&u, closed);
	assert_false(mapped(region));
	assert_false(mapped((char *)region + LARGE - 4096));
	assert_false(mapped(ring));
	assert_int_equal(closed[CLOSER_FD].n, 2);
	assert_int_equal(closed[CLOSER_REGION].n, 3);
	assert_int_equal(closed[CLOSER_REGION].bytes, LARGE);
	assert_int_equal(closed[CLOSER_RING].bytes, 4096);
	closer_closed(u.closer, closed);
	assert_int_equal(closed[CLOSER_REGION].n, 0);
	closer_destroy(u.closer, UINT64_MAX);
}

static void one_users_slow_close_delays_no_other(void **state)
{
	struct user slow, other;
	struct closer_amount closed[CLOSER_KINDS];
	int pair[2];
	(void)state;
	open_user(&slow);
	open_user(&other);
	make_slow(pair);
	void *behind = map(4096), *others = map(4096);
	closer_add(slow.closer, &pair[0], 1);
	closer_unmap(slow.closer, CLOSER_REGION, behind, 4096, 1);
	closer_unmap(other.closer, CLOSER_REGION, others, 4096, 1);
	sem_wait(&other.closed);
	assert_false(mapped(others));
	assert_true(mapped(behind)); /* later requests wait, and count */
	assert_true(closer_busy(slow.closer));
	closer_closed(slow.closer, closed);
	assert_int_equal(closed[CLOSER_REGION].n, 0);
	let_go(pair[1]);
	wait_for_all(&slow, closed);
	assert_int_equal(closed[CLOSER_FD].n, 1);
	assert_int_equal(closed[CLOSER_REGION].n, 1);
	assert_false(mapped(behind));
	closer_destroy(slow.closer, UINT64_MAX);
	closer_destroy(other.closer, UINT64_MAX);
}

/* After the notification of its end, the closer can be destroyed without waiting. */
static void an_idle_thread_ends_and_says_so(void **state)
{
	struct user u;
	struct closer_amount closed[CLOSER_KINDS];
	(void)state;
	open_user(&u);
	for (int again = 0; again < 2; again++) { /* the second thread is joined like the first */
		closer_unmap(u.closer, CLOSER_RING, map(4096), 4096, 0);
		wait_for_all(&u, closed);
		while (closer_running(u.closer))
			sem_wait(&u.closed);
	}
	closer_destroy(u.closer, 0);
}

static void the_end_waits_for_what_is_quick_alone(void **state)
{
	struct user quick, slow;
	int pair[2], pipes[2];
	char byte;
	(void)state;
	open_user(&quick);
	open_user(&slow);
	assert_int_equal(pipe(pipes), 0);
	make_slow(pair);
	closer_add(slow.closer, &pair[0], 1);
	closer_add(slow.closer, &pipes[1], 1);
	void *region = map(LARGE);
	closer_unmap(quick.closer, CLOSER_REGION, region, LARGE, 3);
	closer_destroy(quick.closer, UINT64_MAX);
	assert_false(mapped((char *)region + LARGE - 4096));
	closer_destroy(slow.closer, clock_now() + CLOSER_IDLE_NS);
	let_go(pair[1]);
	assert_int_equal(read(pipes[0], &byte, 1), 0); /* the thread continues by itself */
	close(pipes[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_is_counted_when_it_is_done),
		cmocka_unit_test(one_users_slow_close_delays_no_other),
		cmocka_unit_test(an_idle_thread_ends_and_says_so),
		cmocka_unit_test(the_end_waits_for_what_is_quick_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
