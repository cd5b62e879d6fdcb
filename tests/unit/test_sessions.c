/* SPDX-License-Identifier: Apache-2.0
 * Sessions: waiting messages are retried when they are due, and the work that one user's sessions
 * cause is done in turns. These tests count steps instead of measuring time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/loop.h"
#include "base/timings.h"
#include "proto/wire.h"
#include "session/session.h"
#include "session/sessions.h"

enum { FEW = 100, POLLED = 1024 /* libuv's limit at a time */, MANY = POLLED + 76, LONG = 4000 };

struct scene {
	uv_loop_t uv;
	struct loop loop;
	struct config config;
	struct accounts accounts;
	struct sessions sessions;
	struct session *session[MANY];
	int peer[MANY];
	int n; /* sessions */
	unsigned vacated, requests;
	struct session *ended[MANY]; /* whose scheduler has not answered yet */
	unsigned nended;
};

static uint64_t expire(void *arg, uint64_t now)
{
	struct scene *x = arg;
	return session_retry(&x->sessions, now);
}

static void on_request(void *owner, struct session *c, const struct svc_header *h, const void *body,
		       int *fds)
{
	struct scene *x = owner;
	const uint64_t until = clock_now() + USER_TURN_NS;
	(void)c, (void)h, (void)body, (void)fds;
	x->requests++;
	while (clock_now() <= until) /* use up the user's time of a turn */
		;
}

/* Uses up a session's whole turn. */
static bool on_vacate(void *owner, struct session *c, uint64_t until_ns)
{
	struct scene *x = owner;
	(void)c;
	x->vacated++;
	while (clock_now() <= until_ns)
		;
	return true;
}

static void on_end_tasks(void *owner, struct session *c)
{
	struct scene *x = owner;
	x->ended[x->nended++] = c;
}

static void turn(struct scene *x)
{
	uv_run(&x->uv, UV_RUN_ONCE);
	while (x->nended)
		session_scheduler_gone(x->ended[--x->nended]);
}

static bool on_free_memory(void *owner, struct session *c, uint64_t until_ns)
{
	(void)owner, (void)c, (void)until_ns;
	return true;
}

static void on_closed(void *arg)
{
	(void)arg;
}

static const struct session_callbacks callbacks = {on_request, on_vacate, on_end_tasks,
						   on_free_memory};

static void begin(struct scene *x, int n)
{
	const struct ucred cred = {.pid = getpid(), .uid = 1000};
	char text[SVC_TEXT_BYTES];
	memset(x, 0, sizeof(*x));
	x->n = n;
	x->config = (struct config){.sessions_max = x->n, .user_sessions_max = x->n};
	uv_loop_init(&x->uv);
	loop_open(&x->loop, &x->uv, expire, x);
	accounts_init(&x->accounts, &x->config, on_closed, NULL);
	assert_int_equal(sessions_open(&x->sessions, &x->loop, &callbacks, x), 0);
	for (int i = 0; i < x->n; i++) {
		int fds[2];
		assert_int_equal(
			socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
			0);
		struct account *a = account_get(&x->accounts, &(struct tenant){.uid = cred.uid});
		assert_true(account_take(a, SHARE_SESSIONS, 1, text));
		assert_true(account_take(a, SHARE_FDS, 1, text));
		x->session[i] = session_create(&x->sessions, fds[0], a, &cred, false);
		x->peer[i] = fds[1];
		assert_non_null(x->session[i]);
	}
}

static void end(struct scene *x)
{
	struct session *c = x->sessions.all, *next;
	for (; c; c = next) {
		next = c->next;
		session_end(c, 0, NULL);
	}
	while (x->sessions.nsessions)
		turn(x);
	sessions_close(&x->sessions);
	loop_close(&x->loop);
	uv_run(&x->uv, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&x->uv), 0);
	for (int i = 0; i < x->n; i++)
		close(x->peer[i]);
	sessions_free(&x->sessions);
	accounts_fini(&x->accounts);
}

static void reply_long(struct session *c)
{
	static const char body[LONG];
	session_reply(c, SVC_LIST, 1, body, sizeof(body), NULL, 0);
}

static void sessions_are_found_and_counted(void **state)
{
	struct scene *x = *state;
	begin(x, FEW);
	for (int i = 0; i < x->n; i++)
		assert_ptr_equal(sessions_find(&x->sessions, x->session[i]->id), x->session[i]);
	assert_null(sessions_find(&x->sessions, 0));
	/* The one that has been silent longest comes first. */
	assert_ptr_equal(x->sessions.silent, x->session[0]);
	session_opened(x->session[0]);
	assert_ptr_equal(x->sessions.silent, x->session[1]);
	session_end(x->session[1], 0, NULL);
	assert_ptr_equal(x->sessions.silent, x->session[2]);
	assert_int_equal(x->sessions.nopen, 1);
	session_end(x->session[0], 0, NULL);
	assert_int_equal(x->sessions.nopen, 0);
	end(x);
}

/* Calls session_retry as if the first deadline had come. Returns how many messages were tried. */
static unsigned retry_first(struct scene *x)
{
	uint64_t at[MANY];
	unsigned tried = 0;
	for (int i = 0; i < x->n; i++)
		at[i] = x->session[i]->retry.at_ns;
	session_retry(&x->sessions, deadlines_first(&x->sessions.retries)->at_ns);
	for (int i = 0; i < x->n; i++)
		tried += x->session[i]->retry.at_ns != at[i];
	return tried;
}

static void unread_messages_are_retried_less_and_less_often(void **state)
{
	struct scene *x = *state;
	begin(x, FEW);
	for (int i = 0; i < x->n; i++) {
		session_opened(x->session[i]);
		reply_long(x->session[i]);
		reply_long(x->session[i]);
	}
	assert_int_equal(x->sessions.retries.n, x->n);
	unsigned tried = 0, doublings = 0;
	for (uint64_t ns = SEND_AGAIN_NS; ns < SEND_AGAIN_MAX_NS; ns *= 2)
		doublings++;
	while (deadlines_first(&x->sessions.retries) &&
	       x->session[x->n - 1]->retry_after_ns < SEND_AGAIN_MAX_NS)
		tried += retry_first(x);
	/* Each is retried when it is due, and no other with it. */
	assert_in_range(tried, x->n, x->n * (doublings + 1));
	assert_int_equal(retry_first(x), 1);
	end(x);
}

static void reading_lets_waiting_messages_follow(void **state)
{
	struct scene *x = *state;
	char message[2 * LONG];
	begin(x, FEW);
	struct session *c = x->session[0];
	session_opened(c);
	reply_long(c);
	reply_long(c);
	assert_true(read(x->peer[0], message, sizeof(message)) > LONG);
	assert_true(read(x->peer[0], message, sizeof(message)) < 0);
	session_retry(&x->sessions, c->retry.at_ns);
	assert_true(read(x->peer[0], message, sizeof(message)) > LONG);
	assert_int_equal(x->sessions.retries.n, 0);
	assert_int_equal(c->retry_after_ns, 0);
	assert_null(c->out);
	end(x);
}

/* The sessions' peers are gone with answers pending: nothing is left to read. */
static void sessions_of_one_user_end_in_turns(void **state)
{
	struct scene *x = *state;
	begin(x, FEW);
	for (int i = 0; i < x->n; i++) {
		session_opened(x->session[i]);
		reply_long(x->session[i]);
		reply_long(x->session[i]);
		close(x->peer[i]);
		x->peer[i] = -1;
	}
	unsigned before = 0, turns = 0;
	while (x->vacated < FEW) {
		turn(x);
		/* An end that began before the time was used up is completed, both in a turn's I/O
		 * and in its idle handle. */
		assert_in_range(x->vacated - before, 0,
				2 * (1 + USER_TURN_NS / SESSION_END_TURN_NS));
		before = x->vacated;
		turns++;
	}
	assert_in_range(turns, x->n / 6, 100000);
	end(x);
}

static void ask(struct scene *x, int i)
{
	struct {
		struct svc_header header;
		struct svc_daemon_info_request body;
	} m = {.header = {.length = sizeof(m), .opcode = SVC_DAEMON_INFO, .request_id = 1}};
	x->session[i]->version = SVC_PROTOCOL_MAX;
	session_opened(x->session[i]);
	assert_int_equal(write(x->peer[i], &m, sizeof(m)), sizeof(m));
}

static void count(uv_poll_t *poll, int status, int events)
{
	unsigned *n = poll->data;
	(void)status, (void)events;
	(*n)++;
}

/* The loop polls again in the same turn while POLLED descriptors are ready. */
static void sessions_without_time_are_not_polled(void **state)
{
	struct scene *x = *state;
	uv_poll_t other;
	unsigned polls = 0, turns = 0;
	begin(x, MANY);
	const int fd = eventfd(1, EFD_CLOEXEC); /* always ready */
	uv_poll_init(&x->uv, &other, fd);
	other.data = &polls;
	uv_poll_start(&other, UV_READABLE, count);
	for (int i = 0; i < MANY; i++)
		ask(x, i);
	for (unsigned before = 0; x->requests < MANY; before = x->requests, turns++) {
		turn(x);
		assert_in_range(x->requests - before, 0, 1);
	}
	assert_in_range(turns, MANY, MANY + 5);
	assert_in_range(polls, MANY, turns + 1 + MANY / POLLED);
	turn(x);
	assert_int_equal(x->sessions.nparked, 0);
	uv_close((uv_handle_t *)&other, NULL);
	end(x);
	close(fd);
}

int main(void)
{
	struct rlimit files;
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	static struct scene scene;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_prestate(sessions_are_found_and_counted, &scene),
		cmocka_unit_test_prestate(unread_messages_are_retried_less_and_less_often, &scene),
		cmocka_unit_test_prestate(reading_lets_waiting_messages_follow, &scene),
		cmocka_unit_test_prestate(sessions_of_one_user_end_in_turns, &scene),
		cmocka_unit_test_prestate(sessions_without_time_are_not_polled, &scene),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
