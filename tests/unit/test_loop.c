/* SPDX-License-Identifier: Apache-2.0
 * The supervisor's loop: deadlines do not keep descriptors from being served. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/loop.h"

#define MS    UINT64_C(1000000)
#define BYTES 5 /* each is served in a separate turn */
#define NEVER 1000

struct scene {
	uv_loop_t uv;
	struct loop loop;
	uv_poll_t poll;
	int fds[2];
	unsigned expired, served;
	uint64_t takes_ns, last_ns;
	uint64_t (*next)(struct scene *s, uint64_t began);
};

static void work(uint64_t ns)
{
	for (const uint64_t until = clock_now() + ns; clock_now() < until;)
		continue;
}

static void finish(struct scene *s)
{
	loop_close(&s->loop);
	uv_close((uv_handle_t *)&s->poll, NULL);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
	struct scene *s = poll->data;
	char byte;
	(void)events;
	assert_int_equal(status, 0);
	assert_int_equal(read(s->fds[0], &byte, 1), 1);
	if (++s->served == BYTES)
		finish(s);
}

static uint64_t expire(void *arg, uint64_t now)
{
	struct scene *s = arg;
	work(s->takes_ns);
	s->last_ns = now;
	assert_true(++s->expired < NEVER); /* the descriptor was never served */
	return s->next(s, now);
}

static void run(struct scene *s, uint64_t first_ns)
{
	assert_int_equal(uv_loop_init(&s->uv), 0);
	loop_open(&s->loop, &s->uv, expire, s);
	assert_int_equal(pipe(s->fds), 0);
	uv_poll_init(&s->uv, &s->poll, s->fds[0]);
	s->poll.data = s;
	uv_poll_start(&s->poll, UV_READABLE, on_readable);
	loop_deadline(&s->loop, first_ns);
}

static void end(struct scene *s)
{
	assert_int_equal(uv_run(&s->uv, UV_RUN_DEFAULT), 0);
	assert_int_equal(uv_loop_close(&s->uv), 0);
	close(s->fds[0]);
	close(s->fds[1]);
}

static uint64_t in_the_past(struct scene *s, uint64_t began)
{
	(void)s;
	return began;
}

/* If a check takes longer than its interval, the next one is timed from its start. */
static uint64_t passed_meanwhile(struct scene *s, uint64_t began)
{
	return began + s->takes_ns / 2;
}

/* The same holds if the deadline is set before the work ends, as for a new epoch's pages. */
static uint64_t set_inside(struct scene *s, uint64_t began)
{
	loop_deadline(&s->loop, began);
	work(s->takes_ns);
	return began;
}

static void an_overdue_deadline_lets_descriptors_be_served(void **state)
{
	uint64_t (*const nexts[])(struct scene *, uint64_t) = {in_the_past, passed_meanwhile,
							       set_inside};
	(void)state;
	for (unsigned i = 0; i < sizeof(nexts) / sizeof(nexts[0]); i++) {
		struct scene s = {.next = nexts[i], .takes_ns = 4 * MS};
		run(&s, clock_now());
		assert_int_equal(write(s.fds[1], "12345", BYTES), BYTES);
		end(&s);
		assert_true(s.expired <= BYTES + 1); /* one in a turn */
	}
}

static uint64_t stops(struct scene *s, uint64_t began)
{
	(void)began;
	finish(s);
	return 0;
}

static void a_deadline_never_comes_early(void **state)
{
	struct scene s = {.next = stops};
	(void)state;
	const uint64_t at_ns = clock_now() + 7 * MS + 1;
	run(&s, at_ns);
	work(3 * MS); /* libuv's cached time is old */
	end(&s);
	assert_int_equal(s.expired, 1);
	assert_true(s.last_ns >= at_ns);
}

static void the_earliest_counts(void **state)
{
	struct scene s = {.next = stops};
	(void)state;
	const uint64_t at_ns = clock_now() + 5 * MS;
	run(&s, at_ns + 3600000 * MS);
	loop_deadline(&s.loop, at_ns);
	loop_deadline(&s.loop, at_ns + 3600000 * MS);
	end(&s);
	assert_int_equal(s.expired, 1);
	assert_true(s.last_ns >= at_ns);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_overdue_deadline_lets_descriptors_be_served),
		cmocka_unit_test(a_deadline_never_comes_early),
		cmocka_unit_test(the_earliest_counts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
