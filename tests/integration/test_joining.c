/* SPDX-License-Identifier: Apache-2.0
 * Joins and splits in two steps, cancelled in between. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define RANKS 2

struct scene {
	struct daemon d;
	ncclsvc_session *sessions[RANKS];
	ncclsvc_joining *joining[RANKS];
	ncclsvc_comm *comm[RANKS];
	ncclsvc_unique_id id;
};

static void begin(struct scene *s)
{
	*s = (struct scene){0};
	daemon_start(&s->d, NULL);
	for (int i = 0; i < RANKS; i++)
		s->sessions[i] = session_open(&s->d);
	CHECK_OK(ncclsvc_unique_id_create(&s->id));
}

static void end(struct scene *s)
{
	for (int i = 0; i < RANKS; i++)
		ncclsvc_close(s->sessions[i]);
	daemon_stop(&s->d);
}

static void join_begin(struct scene *s, int rank)
{
	CHECK_OK(ncclsvc_comm_join_begin(s->sessions[rank], &s->id, RANKS, rank,
					 NCCLSVC_DEVICE_HOST, WAIT_MS, &s->joining[rank]));
}

static void join_wait(struct scene *s, int rank)
{
	CHECK_OK(ncclsvc_joining_wait(s->joining[rank], &s->comm[rank]));
	CHECK_EQ(ncclsvc_comm_rank(s->comm[rank]), rank);
	CHECK_EQ(ncclsvc_comm_size(s->comm[rank]), RANKS);
	ncclsvc_joining_free(s->joining[rank]);
}

static void join_all(struct scene *s)
{
	for (int i = 0; i < RANKS; i++)
		join_begin(s, i);
	for (int i = 0; i < RANKS; i++)
		join_wait(s, i);
}

/* Waits until the epoch ends because a member left. */
static void loses_its_peer(struct scene *s, ncclsvc_comm *comm)
{
	ncclsvc_task task;
	for (uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);;) {
		ncclsvc_result r = ncclsvc_barrier(comm, &task);
		if (!r)
			r = ncclsvc_wait(s->sessions[1], task, WAIT_MS);
		if (r == NCCLSVC_PEER_GONE || r == NCCLSVC_STALE_EPOCH)
			return;
		CHECK_OK(r);
		CHECK(now_ns() < end);
	}
}

static void in_two_steps(void **state)
{
	struct scene s;
	(void)state;
	begin(&s);
	join_all(&s);
	for (int i = 0; i < RANKS; i++)
		CHECK_OK(ncclsvc_comm_leave(s.comm[i]));
	end(&s);
}

static void *wait_cancelled(void *arg)
{
	ncclsvc_comm *comm;
	CHECK_RESULT(ncclsvc_joining_wait(arg, &comm), NCCLSVC_CANCELLED);
	return NULL;
}

/* A wait can be cancelled even while its thread reads the socket. */
static void a_wait_is_cancelled(void **state)
{
	struct scene s;
	pthread_t thread;
	(void)state;
	begin(&s);
	join_begin(&s, 0);
	members_reach(s.sessions[1], NCCLSVC_MEMBER_JOINING, 1);
	CHECK_EQ(pthread_create(&thread, NULL, wait_cancelled, s.joining[0]), 0);
	sleep_ms(20);
	uint64_t since = now_ns();
	ncclsvc_joining_cancel(s.joining[0]);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(in_time(since, now_ns()));
	ncclsvc_joining_free(s.joining[0]);
	join_all(&s);
	end(&s);
}

/* A cancelled or dropped JOIN frees its rank. */
static void its_rank_is_free(void **state)
{
	struct scene s;
	ncclsvc_comm *comm;
	(void)state;
	begin(&s);
	for (int i = 0; i < 10; i++) {
		join_begin(&s, 0);
		ncclsvc_joining_cancel(s.joining[0]);
		CHECK_RESULT(ncclsvc_joining_wait(s.joining[0], &comm), NCCLSVC_CANCELLED);
		ncclsvc_joining_free(s.joining[0]);
		join_begin(&s, 0); /* and dropped */
		ncclsvc_joining_free(s.joining[0]);
	}
	join_all(&s);
	end(&s);
}

static void what_was_answered_stays(void **state)
{
	struct scene s;
	(void)state;
	begin(&s);
	for (int i = 0; i < RANKS; i++)
		join_begin(&s, i);
	join_wait(&s, 1);
	CHECK_RESULT(ncclsvc_dispatch(s.sessions[0], WAIT_MS), NCCLSVC_OK);
	ncclsvc_joining_cancel(s.joining[0]);
	join_wait(&s, 0);
	end(&s);
}

/* Freeing a join whose answer has arrived leaves the communicator. */
static void abandoned_joins_are_left(void **state)
{
	struct scene s;
	(void)state;
	begin(&s);
	for (int i = 0; i < RANKS; i++)
		join_begin(&s, i);
	join_wait(&s, 1);
	ncclsvc_joining_free(s.joining[0]);
	loses_its_peer(&s, s.comm[1]);
	end(&s);
}

static void splits(void **state)
{
	struct scene s;
	ncclsvc_joining *part[RANKS];
	ncclsvc_comm *comm[RANKS];
	(void)state;
	begin(&s);
	join_all(&s);
	for (int i = 0; i < RANKS; i++)
		CHECK_OK(ncclsvc_comm_split_begin(s.comm[i], i ? 1 : -1, 0, WAIT_MS, &part[i]));
	for (int i = 0; i < RANKS; i++) {
		CHECK_OK(ncclsvc_joining_wait(part[i], &comm[i]));
		ncclsvc_joining_free(part[i]);
	}
	CHECK(!comm[0]);
	CHECK_EQ(ncclsvc_comm_size(comm[1]), 1);
	/* A cancelled SPLIT: the other ranks get their part, and the cancelling rank leaves it. */
	CHECK_OK(ncclsvc_comm_split_begin(s.comm[0], 0, 0, WAIT_MS, &part[0]));
	ncclsvc_joining_cancel(part[0]);
	CHECK_RESULT(ncclsvc_joining_wait(part[0], &comm[0]), NCCLSVC_CANCELLED);
	ncclsvc_joining_free(part[0]);
	CHECK_OK(ncclsvc_comm_split(s.comm[1], 0, 0, WAIT_MS, &comm[1]));
	CHECK_EQ(ncclsvc_comm_size(comm[1]), RANKS);
	CHECK_OK(ncclsvc_daemon(s.sessions[0], &(ncclsvc_daemon_info){0})); /* reads the answer */
	loses_its_peer(&s, comm[1]);
	/* A SPLIT whose parent was left. */
	CHECK_OK(ncclsvc_comm_split_begin(s.comm[0], 0, 0, WAIT_MS, &part[0]));
	CHECK_OK(ncclsvc_comm_leave(s.comm[0]));
	CHECK(ncclsvc_joining_wait(part[0], &comm[0]));
	ncclsvc_joining_free(part[0]);
	end(&s);
}

static void bad_arguments(void **state)
{
	struct scene s;
	ncclsvc_comm *comm;
	(void)state;
	begin(&s);
	CHECK_RESULT(ncclsvc_comm_join_begin(NULL, &s.id, 2, 0, -1, 0, &s.joining[0]),
		     NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_comm_join_begin(s.sessions[0], &s.id, 2, 0, -1, 0, NULL),
		     NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_comm_join_begin(s.sessions[0], &s.id, 2, 2, -1, 0, &s.joining[0]),
		     NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_comm_split_begin(NULL, 0, 0, 0, &s.joining[0]),
		     NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_joining_wait(NULL, &comm), NCCLSVC_INVALID_ARGUMENT);
	ncclsvc_joining_cancel(NULL);
	ncclsvc_joining_free(NULL);
	ncclsvc_mem_sweep(NULL);
	ncclsvc_mem_sweep(s.sessions[0]);
	CHECK_OK(ncclsvc_comm_join_begin(s.sessions[0], &s.id, 1, 0, -1, WAIT_MS, &s.joining[0]));
	CHECK_RESULT(ncclsvc_joining_wait(s.joining[0], NULL), NCCLSVC_INVALID_ARGUMENT);
	CHECK_OK(ncclsvc_joining_wait(s.joining[0], &comm));
	CHECK_RESULT(ncclsvc_joining_wait(s.joining[0], &comm), NCCLSVC_INVALID_ARGUMENT);
	ncclsvc_joining_free(s.joining[0]);
	end(&s);
}

static uint32_t admitted_by(const struct daemon *d, ncclsvc_admit admit)
{
	const ncclsvc_options options = {
		.size = sizeof(options), .socket = d->socket, .admit = admit};
	ncclsvc_session *s;
	ncclsvc_comm *comm;
	ncclsvc_comm_info *list;
	ncclsvc_unique_id id;
	size_t n;
	CHECK_OK(ncclsvc_open(&options, &s));
	CHECK_OK(ncclsvc_unique_id_create(&id));
	CHECK_OK(ncclsvc_comm_join(s, &id, 1, 0, WAIT_MS, &comm));
	CHECK_OK(ncclsvc_list_comms(s, &list, &n));
	uint32_t admits = UINT32_MAX;
	for (size_t i = 0; i < n; i++)
		if (!memcmp(list[i].id, id.bytes, sizeof(id.bytes)))
			admits = list[i].admit;
	ncclsvc_list_free(list);
	ncclsvc_close(s);
	return admits;
}

/* The option, or else the environment, says whom a communicator admits. */
static void a_session_admits_others(void **state)
{
	struct daemon d;
	ncclsvc_session *s = NULL;
	(void)state;
	daemon_start(&d, NULL);
	unsetenv("NCCLSVC_ADMIT");
	CHECK_EQ(admitted_by(&d, NCCLSVC_ADMIT_DEFAULT), NCCLSVC_ADMIT_TENANT);
	CHECK_EQ(admitted_by(&d, NCCLSVC_ADMIT_USER), NCCLSVC_ADMIT_USER);
	CHECK_EQ(admitted_by(&d, NCCLSVC_ADMIT_ANY), NCCLSVC_ADMIT_ANY);
	setenv("NCCLSVC_ADMIT", "any", 1);
	CHECK_EQ(admitted_by(&d, NCCLSVC_ADMIT_DEFAULT), NCCLSVC_ADMIT_ANY);
	CHECK_EQ(admitted_by(&d, NCCLSVC_ADMIT_TENANT), NCCLSVC_ADMIT_TENANT);
	setenv("NCCLSVC_ADMIT", "all", 1);
	const ncclsvc_options options = {.size = sizeof(options), .socket = d.socket};
	CHECK_RESULT(ncclsvc_open(&options, &s), NCCLSVC_INVALID_ARGUMENT);
	CHECK(strstr(ncclsvc_last_error(), "NCCLSVC_ADMIT"));
	unsetenv("NCCLSVC_ADMIT");
	daemon_stop(&d);
}

/* A join that waits when the daemon goes ends with DAEMON_LOST. */
static void a_daemon_that_goes(void **state)
{
	struct scene s;
	ncclsvc_comm *comm;
	(void)state;
	begin(&s);
	join_begin(&s, 0);
	daemon_kill(&s.d);
	CHECK_RESULT(ncclsvc_joining_wait(s.joining[0], &comm), NCCLSVC_DAEMON_LOST);
	ncclsvc_joining_cancel(s.joining[0]);
	ncclsvc_joining_free(s.joining[0]);
	for (int i = 0; i < RANKS; i++)
		ncclsvc_close(s.sessions[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(in_two_steps),
		TEST(a_wait_is_cancelled),
		TEST(its_rank_is_free),
		TEST(what_was_answered_stays),
		TEST(abandoned_joins_are_left),
		TEST(splits),
		TEST(bad_arguments),
		TEST(a_session_admits_others),
		TEST(a_daemon_that_goes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
