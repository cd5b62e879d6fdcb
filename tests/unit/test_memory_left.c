/* SPDX-License-Identifier: Apache-2.0
 * How much memory the system would still give, queried beside a thread that allocates the last of
 * it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "account/account.h"
#include "base/config.h"
#include "base/memory_left.h"
#include "base/nofail.h"

#define MIB   (UINT64_C(1) << 20)
#define SPARE (32 * MIB)

static atomic_bool begun, over;

/* Returns the number of refusals. */
static void *allocate(void *arg)
{
	uintptr_t refused = 0;
	(void)arg;
	while (!begun)
		usleep(100);
	while (!over) {
		void *p = mmap(NULL, SPARE / 2, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			refused++;
		else
			munmap(p, SPARE / 2);
	}
	return (void *)refused;
}

/* Also false if it cannot be done. */
static bool leave(uint64_t bytes)
{
	FILE *f = fopen("/proc/self/statm", "r");
	unsigned long pages = 0;
	if (!f || fscanf(f, "%lu", &pages) != 1)
		return false;
	fclose(f);
	struct rlimit r = {.rlim_cur = pages * (uint64_t)sysconf(_SC_PAGESIZE) + bytes,
			   .rlim_max = RLIM_INFINITY};
	return setrlimit(RLIMIT_AS, &r) == 0;
}

/* The exit code of a process with SPARE bytes of address space left; 0 is success. */
static int with_little_left(void)
{
	pthread_t thread;
	void *refused;
	if (pthread_create(&thread, NULL, allocate, NULL) || !leave(SPARE))
		return 1;
	begun = true;
	for (int i = 0; i < 20000; i++) {
		if (memory_left(64 * SPARE) || memory_left(UINT64_MAX))
			return 2;
		/* The thread may or may not have half of it. */
		memory_left(SPARE - MIB);
		if (!memory_left(SPARE / 2 - MIB))
			return 3;
	}
	over = true;
	pthread_join(thread, &refused);
	return refused ? 4 : 0;
}

/* In a process of its own. */
static void succeeds(int (*check)(void))
{
	int status;
	pid_t pid = fork();
	if (!pid)
		_exit(check());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void asking_takes_nothing(void **state)
{
	(void)state;
	succeeds(with_little_left);
}

static void without_limits_it_is_enough(void **state)
{
	(void)state;
	assert_true(memory_left(SPARE));
}

static struct account *user(struct accounts *all, uint32_t uid)
{
	return account_get(all, &(struct tenant){.uid = uid});
}

static void notify(void *context)
{
	(void)context;
}

/* Leaves less memory free than the light users' reserve, then checks who may still allocate.
 * Returns the process's exit code; 0 is success. */
static int check_reserve(void)
{
	struct config config = {.sessions_max = 16};
	struct accounts accounts;
	accounts_init(&accounts, &config, notify, NULL);
	struct account *light = user(&accounts, 1), *heavy = user(&accounts, 2);
	if (!light || !heavy || !nofail_reserve_fill() || !leave(16 * MIB))
		return 1;
	/* Recordings of ended sessions do not count against a user. */
	account_add(light, SHARE_RECORDINGS, 100);
	account_add(light, SHARE_QUEUE_BYTES, 2 * MIB);
	account_add(heavy, SHARE_QUEUE_BYTES, 3 * MIB);
	if (!account_memory_left(light, 0))
		return 2;
	if (account_memory_left(heavy, 0))
		return 3;
	/* The heavy user's memory is free again, but the allocator keeps it. */
	account_give(heavy, SHARE_QUEUE_BYTES, 3 * MIB);
	if (account_memory_left(light, 0))
		return 4;
	account_give(light, SHARE_QUEUE_BYTES, 2 * MIB - 1000);
	if (!account_memory_left(light, 0))
		return 5;
	return 0;
}

static void only_light_users_may_use_the_reserve(void **state)
{
	(void)state;
	succeeds(check_reserve);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(asking_takes_nothing),
		cmocka_unit_test(without_limits_it_is_enough),
		cmocka_unit_test(only_light_users_may_use_the_reserve),
	};
	return cmocka_run_group_tests_name("memory_left", tests, NULL, NULL);
}
