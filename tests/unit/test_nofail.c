/* SPDX-License-Identifier: Apache-2.0
 * A process that has run out of memory, with and without the reserve: admitted work completes, and
 * no more is admitted until there is memory again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "account/account.h"
#include "base/config.h"
#include "base/nofail.h"
#include "sched/api/scheduler.h"
#include "sched/api/transport.h"

#define MIB	(UINT64_C(1) << 20)
#define SPARE	(64 * MIB)
#define WAIT_S	60
#define CANCELS 50000 /* with their events, 18 MB */
#define THREADS 4
#define CHUNKS	2000

/* ---- A process without memory ---- */

static void *ballast; /* a list, each points to the next */

static void use_up(void)
{
	for (size_t bytes = MIB; bytes >= sizeof(void *); bytes /= 2)
		for (void **p; (p = malloc(bytes));) {
			*p = ballast;
			ballast = p;
		}
}

static void give_back(void)
{
	for (void **p; (p = ballast);) {
		ballast = *p;
		free(p);
	}
}

static bool limit_address_space(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	unsigned long pages = 0;
	if (!f || fscanf(f, "%lu", &pages) != 1)
		return false;
	fclose(f);
	const uint64_t bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE) + SPARE;
	return !setrlimit(RLIMIT_AS, &(struct rlimit){bytes, RLIM_INFINITY});
}

/* How a process that runs test ends, as waitpid(2) says; without a core dump. */
static int end_of(int (*test)(bool reserve), bool reserve)
{
	int status;
	const pid_t pid = fork();
	if (!pid) {
		setrlimit(RLIMIT_CORE, &(struct rlimit){0});
		alarm(WAIT_S);
		_exit(test(reserve));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* ---- Commands ---- */

static sem_t in_command, go_on;

/* The scheduler pauses in this command. */
static void stand_still(struct scheduler *sched, const struct command *c)
{
	(void)sched;
	(void)c;
	sem_post(&in_command);
	sem_wait(&go_on);
}

static enum begun start(struct scheduler *sched, const struct match *m)
{
	(void)sched;
	(void)m;
	return BEGUN_DONE;
}

static void notify(void *arg)
{
	(void)arg;
}

static const struct transport plain = {.start = start};
static const struct transport standing = {.start = start, .command = stand_still};
static const struct transport *const transports[TRANSPORTS] = {&standing, &plain, &plain, &plain};

/* The number of cancellations that were answered, in order. */
static uint32_t answers(struct scheduler *scheduler)
{
	struct event event;
	uint32_t n = 0;
	while (n < CANCELS)
		if (!scheduler_next_event(scheduler, &event))
			usleep(100);
		else if (event.kind != EVENT_CANCELLED || event.cancelled.request_id != n++)
			break;
	return n;
}

/* The exit code of the process; 0 is success. */
static int commands_without_memory(bool reserve)
{
	struct config config = {.sessions_max = 16};
	struct accounts accounts;
	const struct scheduler_config c = {.threads = 1,
					   .tasks_max = 16,
					   .user_tasks_max = 16,
					   .sessions_max = 16,
					   .comms_max = 16,
					   .transports = transports};
	struct scheduler *scheduler = scheduler_create(&c, notify, NULL);
	accounts_init(&accounts, &config, notify, NULL);
	struct account *a = account_get(&accounts, &(struct tenant){.uid = 1});
	sem_init(&in_command, 0, 0);
	sem_init(&go_on, 0, 0);
	if (!scheduler || !a || (reserve && !nofail_reserve_fill()))
		return 1;
	scheduler_command(scheduler, &(struct command){.kind = COMMAND_DEVICE_ADD});
	sem_wait(&in_command);
	if (!limit_address_space() || (reserve && !account_memory_left(a, 0)))
		return 2;
	use_up();
	for (uint32_t i = 0; i < CANCELS; i++)
		scheduler_command(scheduler, &(struct command){.kind = COMMAND_CANCEL,
							       .cancel = {.kind = SVC_CANCEL_TASK,
									  .id = i + 1,
									  .request_id = i}});
	if (nofail_reserve_fill() || account_memory_left(a, 0))
		return 3;
	sem_post(&go_on);
	if (answers(scheduler) != CANCELS)
		return 4;
	give_back();
	if (!nofail_reserve_fill() || !account_memory_left(a, 0))
		return 5;
	scheduler_destroy(scheduler);
	account_put(a);
	nofail_reserve_free();
	return 0;
}

static void commands_arrive_also_without_memory(void **state)
{
	(void)state;
	assert_int_equal(end_of(commands_without_memory, true), 0);
}

static void without_the_reserve_the_process_ends(void **state)
{
	(void)state;
	const int status = end_of(commands_without_memory, false);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* ---- Threads ---- */

static pthread_barrier_t begun, used_up;

static void *allocate(void *arg)
{
	static uint32_t *chunks[THREADS][CHUNKS];
	const uint32_t me = *(const uint32_t *)arg;
	free(malloc(1)); /* the allocator's arena for this thread must exist before the limit */
	pthread_barrier_wait(&begun);
	pthread_barrier_wait(&used_up);
	for (uint32_t i = 0; i < CHUNKS; i++) {
		chunks[me][i] = nofail_malloc(64 + i, "a chunk");
		chunks[me][i][0] = me * CHUNKS + i;
		chunks[me][i] = nofail_realloc(chunks[me][i], 2048 + i, "a chunk");
	}
	uintptr_t wrong = 0;
	for (uint32_t i = 0; i < CHUNKS; i++) {
		wrong += chunks[me][i][0] != me * CHUNKS + i;
		free(chunks[me][i]);
	}
	return (void *)wrong;
}

static int threads_without_memory(bool reserve)
{
	pthread_t threads[THREADS];
	uint32_t numbers[THREADS];
	void *wrong, *all_wrong = NULL;
	pthread_barrier_init(&begun, NULL, THREADS + 1);
	pthread_barrier_init(&used_up, NULL, THREADS + 1);
	for (uint32_t i = 0; i < THREADS; i++) {
		numbers[i] = i;
		if (pthread_create(&threads[i], NULL, allocate, &numbers[i]))
			return 1;
	}
	pthread_barrier_wait(&begun);
	if ((reserve && !nofail_reserve_fill()) || !limit_address_space())
		return 2;
	use_up();
	pthread_barrier_wait(&used_up);
	for (uint32_t i = 0; i < THREADS; i++) {
		pthread_join(threads[i], &wrong);
		all_wrong = wrong ? wrong : all_wrong;
	}
	give_back();
	return all_wrong ? 3 : nofail_reserve_fill() ? 0 : 4;
}

static void threads_share_the_reserve(void **state)
{
	(void)state;
	assert_int_equal(end_of(threads_without_memory, true), 0);
}

/* ---- The reserve itself ---- */

/* More than the reserve holds. */
static int want_too_much(bool reserve)
{
	if ((reserve && !nofail_reserve_fill()) || !limit_address_space())
		return 1;
	use_up();
	nofail_malloc(2 * SPARE, "a test");
	return 2;
}

static void a_reserve_that_is_used_up_is_the_end(void **state)
{
	(void)state;
	const int status = end_of(want_too_much, true);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(commands_arrive_also_without_memory),
		cmocka_unit_test(without_the_reserve_the_process_ends),
		cmocka_unit_test(threads_share_the_reserve),
		cmocka_unit_test(a_reserve_that_is_used_up_is_the_end),
	};
	return cmocka_run_group_tests_name("nofail", tests, NULL, NULL);
}
