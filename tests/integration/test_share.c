/* SPDX-License-Identifier: Apache-2.0
 * The scheduler's thread shares only large operations with its helpers. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { OPERATIONS = 200, SMALL = 64 << 10, LARGE = 64 << 20, LARGE_OPERATIONS = 4 };

/* Returns how often the daemon's helper, the first thread that it starts, has gone to sleep. Each
 * operation that wakes the helper adds one. */
static uint64_t helper_sleeps(const struct daemon *d)
{
	char path[64], line[128];
	unsigned long sleeps = 0;
	long helper = 0;
	struct dirent *entry;
	snprintf(path, sizeof(path), "/proc/%d/task", (int)d->pid);
	DIR *tasks = opendir(path);
	CHECK(tasks);
	while ((entry = readdir(tasks))) {
		long tid = strtol(entry->d_name, NULL, 10);
		if (tid > d->pid && (!helper || tid < helper))
			helper = tid;
	}
	closedir(tasks);
	snprintf(path, sizeof(path), "/proc/%d/task/%ld/status", (int)d->pid, helper);
	FILE *status = fopen(path, "r");
	CHECK(status);
	while (fgets(line, sizeof(line), status))
		if (sscanf(line, "voluntary_ctxt_switches: %lu", &sleeps) == 1)
			break;
	fclose(status);
	return sleeps;
}

static void gather(ncclsvc_session *s, ncclsvc_comm *comm, const char *src, char *dst, size_t bytes,
		   int times)
{
	ncclsvc_task task;
	for (int i = 0; i < times; i++) {
		CHECK_OK(ncclsvc_all_gather(src, dst, bytes, NCCLSVC_INT8, comm, &task));
		wait_for(s, task, NCCLSVC_OK);
		sleep_ms(1); /* time for a helper to wake and sleep again */
	}
}

static void small_then_large(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	char *src = shared(s, LARGE / 2), *dst = shared(s, LARGE);
	memset(src, me->rank + 1, LARGE / 2);
	gather(s, comm, src, dst, SMALL / 2, 1); /* touches its pages */
	say(me, 1);
	CHECK_EQ(hear(me), 2);
	gather(s, comm, src, dst, SMALL / 2, OPERATIONS);
	say(me, 3);
	CHECK_EQ(hear(me), 4);
	gather(s, comm, src, dst, LARGE / 2, LARGE_OPERATIONS);
	CHECK_EQ(dst[0], 1);
	CHECK_EQ(dst[LARGE / 2 - 1], 1);
	CHECK_EQ(dst[LARGE / 2], 2);
	CHECK_EQ(dst[LARGE - 1], 2);
	say(me, 5);
	ncclsvc_close(s);
}

/* One thread moves a small operation's 128 KiB faster than it could wake another. */
static void only_large_operations_wake_helpers(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, "--host-threads", "2", NULL);
	clients_start(clients, 2, &d, small_then_large, NULL);
	hear_all(clients, 2, 1);
	uint64_t before = helper_sleeps(&d);
	say_all(clients, 2, 2);
	hear_all(clients, 2, 3);
	uint64_t small = helper_sleeps(&d);
	say_all(clients, 2, 4);
	hear_all(clients, 2, 5);
	uint64_t large = helper_sleeps(&d);
	clients_end(clients, 2);
	daemon_stop(&d);
	print_message("the helper was woken %llu times by %d small operations, %llu by %d large\n",
		      (unsigned long long)(small - before), OPERATIONS,
		      (unsigned long long)(large - small), LARGE_OPERATIONS);
	CHECK(large > small);
	if (sanitized())
		skip_because("with a sanitizer, small operations take long, too");
	CHECK(small - before < OPERATIONS / 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(only_large_operations_wake_helpers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
