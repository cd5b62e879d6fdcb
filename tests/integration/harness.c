/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "harness_parts.h"

static void out_of_time(int signal)
{
	static const char text[] = "the test's time limit has passed\n";
	(void)signal;
	ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);
	(void)n;
	_exit(1); /* the parent-death signal ends daemons and clients */
}

void time_limit(unsigned seconds)
{
	struct sigaction action = {.sa_handler = out_of_time};
	sigaction(SIGALRM, &action, NULL);
	alarm(seconds);
}

int harness_setup(void **state)
{
	(void)state;
	time_limit(60);
	return 0;
}

int harness_teardown(void **state)
{
	(void)state;
	clients_cleanup();
	daemons_cleanup();
	alarm(0);
	return 0;
}

void check_failed(const char *file, int line, const char *format, ...)
{
	char text[1024];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	const struct client *self = client_self();
	if (self) {
		fprintf(stderr, "%s:%d: rank %d (pid %d): %s\n", file, line, self->rank, self->pid,
			text);
		_exit(1);
	}
	print_error("%s:%d: %s\n", file, line, text);
	daemons_print_logs();
	_fail(file, line);
	abort();
}

bool sanitized(void)
{
	const char *value = getenv("NCCLSVC_TEST_SANITIZED");
	return value && *value;
}

void skip_because(const char *format, ...)
{
	char text[256];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	print_message("skipped: %s\n", text);
	skip();
	abort();
}

uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

bool in_time(uint64_t since, uint64_t until)
{
	return until < since + UINT64_C(15000000000);
}

void sleep_ms(unsigned ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
	while (nanosleep(&t, &t) < 0)
		;
}

ncclsvc_session *session_with_ring(const struct daemon *d, uint32_t entries)
{
	ncclsvc_options options = {.size = sizeof(options),
				   .socket = d->socket,
				   .timeout_ms = WAIT_MS,
				   .ring_entries = entries};
	ncclsvc_session *session;
	CHECK_OK(ncclsvc_open(&options, &session));
	return session;
}

ncclsvc_session *session_open(const struct daemon *d)
{
	return session_with_ring(d, 0);
}

ncclsvc_comm *comm_join(struct client *c, ncclsvc_session *session)
{
	ncclsvc_comm *comm;
	CHECK_OK(ncclsvc_comm_join(session, &c->id, c->nranks, c->rank, WAIT_MS, &comm));
	CHECK_EQ(ncclsvc_comm_rank(comm), c->rank);
	CHECK_EQ(ncclsvc_comm_size(comm), c->nranks);
	return comm;
}

void *shared(ncclsvc_session *session, size_t bytes)
{
	void *p;
	CHECK_OK(ncclsvc_mem_alloc(session, bytes, &p));
	return p;
}

void wait_for(ncclsvc_session *session, ncclsvc_task task, ncclsvc_result expected)
{
	CHECK_RESULT(ncclsvc_wait(session, task, WAIT_MS), expected);
}

ncclsvc_status status_of(ncclsvc_session *session, ncclsvc_task task)
{
	ncclsvc_status status;
	memset(&status, 0, sizeof(status));
	CHECK_OK(ncclsvc_task_status(session, task, &status));
	return status;
}

void check_usable(ncclsvc_session *session, ncclsvc_comm *comm)
{
	int n = ncclsvc_comm_size(comm);
	int32_t *value = shared(session, sizeof(*value));
	ncclsvc_task task;
	*value = ncclsvc_comm_rank(comm) + 1;
	CHECK_OK(ncclsvc_all_reduce(value, value, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, &task));
	wait_for(session, task, NCCLSVC_OK);
	CHECK_EQ(*value, n * (n + 1) / 2);
	CHECK_OK(ncclsvc_mem_free(session, value));
}

ncclsvc_task_info tasks_reach(ncclsvc_session *session, ncclsvc_state state, size_t n)
{
	ncclsvc_task_info first = {0};
	size_t found = 0;
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; now_ns() < end; sleep_ms(2)) {
		ncclsvc_task_info *list;
		size_t tasks;
		CHECK_OK(ncclsvc_list_tasks(session, &list, &tasks));
		found = 0;
		for (size_t i = tasks; i-- > 0;)
			if (list[i].state == state) {
				first = list[i];
				found++;
			}
		ncclsvc_list_free(list);
		if (found == n)
			return first;
	}
	check_failed(__FILE__, __LINE__, "%zu tasks are %s, not %zu", found,
		     ncclsvc_state_name(state), n);
}

void members_reach(ncclsvc_session *session, ncclsvc_member_state state, size_t n)
{
	size_t found = 0;
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; now_ns() < end; sleep_ms(2)) {
		ncclsvc_member_info *list;
		size_t members;
		CHECK_OK(ncclsvc_list_members(session, &list, &members));
		found = 0;
		for (size_t i = 0; i < members; i++)
			found += list[i].state == state;
		ncclsvc_list_free(list);
		if (found == n)
			return;
	}
	check_failed(__FILE__, __LINE__, "%zu members are in state %d, not %zu", found, state, n);
}
