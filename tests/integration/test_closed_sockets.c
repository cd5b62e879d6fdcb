/* SPDX-License-Identifier: Apache-2.0
 * Clients that are gone by the time the daemon reads their messages: its replies find a closed
 * socket while it is handling those and others. */
#include <signal.h>

#include "bystanders.h"
#include "harness_raw.h"

#define ROUNDS 5
#define PAIRS  50

struct scene {
	struct daemon d;
	struct bystanders b;
};

static void begin(struct scene *s)
{
	daemon_start(&s->d, NULL);
	bystanders_start(&s->b, &s->d);
}

static void end(struct scene *s)
{
	bystanders_end(&s->b);
	daemon_stop(&s->d);
}

/* Stops the daemon, so that it reads messages only after their senders have closed their sockets.
 */
static void stop(const struct scene *s)
{
	process_stop(s->d.pid);
}

static void go_on(const struct scene *s)
{
	CHECK_EQ(kill(s->d.pid, SIGCONT), 0);
}

static uint32_t ask(struct raw *r, const ncclsvc_unique_id *id, int rank, uint64_t timeout_ns)
{
	struct svc_join j = raw_join_request(id, 2, rank);
	j.timeout_ns = timeout_ns;
	return raw_send(r, SVC_JOIN, &j, sizeof(j), NULL, 0);
}

static void leave(struct raw *r, uint32_t comm)
{
	const struct svc_leave l = {comm, 0};
	raw_send(r, SVC_LEAVE, &l, sizeof(l), NULL, 0);
}

/* Opens two sessions with a communicator, the first of both. */
static void make_pair(struct scene *s, struct raw r[2], ncclsvc_unique_id *id)
{
	struct raw_reply reply;
	uint32_t request_ids[2];
	CHECK_OK(ncclsvc_unique_id_create(id));
	for (int i = 0; i < 2; i++) {
		raw_open(&r[i], &s->d);
		request_ids[i] = ask(&r[i], id, i, 0);
	}
	for (int i = 0; i < 2; i++)
		raw_reply_to(&r[i], request_ids[i], &reply);
}

static void while_it_joins(void **state)
{
	struct scene s;
	(void)state;
	begin(&s);
	for (int i = 0; i < ROUNDS; i++) {
		ncclsvc_unique_id id;
		struct raw r;
		CHECK_OK(ncclsvc_unique_id_create(&id));
		raw_open(&r, &s.d);
		stop(&s);
		ask(&r, &id, 0, 0);
		leave(&r, 1);
		raw_close(&r);
		go_on(&s);
	}
	end(&s);
}

static void while_it_splits(void **state)
{
	struct scene s;
	(void)state;
	begin(&s);
	for (int i = 0; i < ROUNDS; i++) {
		const struct svc_split split = {.comm = 1};
		ncclsvc_unique_id id;
		struct raw r[2];
		make_pair(&s, r, &id);
		stop(&s);
		raw_send(&r[0], SVC_SPLIT, &split, sizeof(split), NULL, 0);
		leave(&r[0], 1);
		raw_close(&r[0]);
		go_on(&s);
		raw_close(&r[1]);
	}
	end(&s);
}

/* A process that is gone gets no rank: otherwise, the others would have an epoch with a dead
 * member. */
static void when_it_rejoins(void **state)
{
	struct scene s;
	(void)state;
	begin(&s);
	for (int i = 0; i < ROUNDS; i++) {
		struct raw_reply reply;
		ncclsvc_unique_id id;
		struct raw r[2];
		make_pair(&s, r, &id);
		const struct svc_leave l = {1, 0};
		raw_call(&r[1], SVC_LEAVE, &l, sizeof(l), NULL, 0, &reply);
		stop(&s);
		ask(&r[0], &id, 0, 0);
		raw_close(&r[0]);
		go_on(&s);
		struct raw after;
		raw_open(&after, &s.d); /* once it is served, all sent before has been read */
		raw_close(&after);
		raw_reply_to(&r[1], ask(&r[1], &id, 1, 100000000), &reply);
		CHECK_EQ(reply.header.result, NCCLSVC_TIMEOUT);
		raw_close(&r[1]);
	}
	end(&s);
}

/* The end of each session is reported to the next one, which is gone too. */
static void all_at_once(void **state)
{
	struct scene s;
	struct raw r[PAIRS + 1];
	(void)state;
	begin(&s);
	for (int i = 0; i <= PAIRS; i++)
		raw_open(&r[i], &s.d);
	for (int i = 0; i < PAIRS; i++) {
		struct raw_reply reply;
		ncclsvc_unique_id id;
		CHECK_OK(ncclsvc_unique_id_create(&id));
		uint32_t one = ask(&r[i], &id, 0, 0), other = ask(&r[i + 1], &id, 1, 0);
		raw_reply_to(&r[i], one, &reply);
		raw_reply_to(&r[i + 1], other, &reply);
	}
	stop(&s);
	for (int i = 0; i <= PAIRS; i++)
		raw_close(&r[i]);
	go_on(&s);
	end(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(while_it_joins),
		TEST(while_it_splits),
		TEST(when_it_rejoins),
		TEST(all_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
