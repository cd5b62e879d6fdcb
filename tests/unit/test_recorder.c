/* SPDX-License-Identifier: Apache-2.0
 * The flight recorder: what a ring returns while it is written, and which recordings stay. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/config.h"
#include "proto/json/operation_json.h"
#include "recorder/recorder.h"

static const char label[NCCLSVC_LABEL_BYTES] = "a label of 23 letters..";

/* ---- A ring ---- */

static struct recorded numbered(uint64_t n)
{
	return (struct recorded){
		.join = (uint32_t)n,
		.op = NCCLSVC_SEND,
		.type = (uint8_t)(n % 17),
		.result = (int8_t) - (n % 22),
		.state = NCCLSVC_FAILED,
		.seq = n,
		.count = n * 3,
		.submitted_ns = n * 5,
		.matched_ns = n * 7,
		.started_ns = n * 11,
		.done_ns = n * 13,
		.graph = (uint32_t)n * 17,
		.collective = (uint32_t)n * 19,
		.peer = (int32_t)(n % 65536) - 1,
		.kernel = n % 3 ? 0 : (uint32_t)n,
		.label = n % 5 ? NULL : label,
	};
}

static void check(const struct recorded *x, const char *read_label, uint64_t n)
{
	struct recorded want = numbered(n);
	assert_string_equal(read_label, want.label ? label : "");
	want.label = NULL;
	assert_memory_equal(x, &want, sizeof(want));
}

static void a_ring_returns_its_last_entries(void **state)
{
	struct recorder_ring *r = recorder_ring_create();
	struct recorded x;
	char read_label[NCCLSVC_LABEL_BYTES];
	uint64_t first, end;
	(void)state;
	recorder_range(r, &first, &end);
	assert_int_equal(end, 0);
	assert_false(recorder_read(r, 0, &x, read_label));
	for (uint64_t n = 0; n < 3 * RECORDER_ENTRIES + 5; n++) {
		const struct recorded put = numbered(n);
		recorder_put(r, &put);
		recorder_range(r, &first, &end);
		assert_int_equal(end, n + 1);
		assert_int_equal(end - first,
				 n + 1 < RECORDER_ENTRIES ? n + 1 : RECORDER_ENTRIES - 1);
	}
	assert_true(RECORDER_ENTRIES - 1 >= 2000);
	for (uint64_t n = first; n < end; n++) {
		memset(&x, 0, sizeof(x));
		assert_true(recorder_read(r, n, &x, read_label));
		check(&x, read_label, n);
	}
	assert_false(recorder_read(r, first - 1, &x, read_label));
	assert_false(recorder_read(r, end, &x, read_label));
	recorder_ring_free(r);
}

/* A record that was refused can have any count. */
static void a_count_that_no_memory_has(void **state)
{
	struct recorder_ring *r = recorder_ring_create();
	struct recorded x;
	char read_label[NCCLSVC_LABEL_BYTES];
	(void)state;
	recorder_put(r, &(struct recorded){.count = UINT64_MAX, .peer = 65535});
	recorder_put(r, &(struct recorded){.count = UINT64_C(1) << 46, .peer = -1});
	assert_true(recorder_read(r, 0, &x, read_label));
	assert_true(x.count == RECORDED_COUNT_MAX);
	assert_int_equal(x.peer, 65535);
	assert_true(recorder_read(r, 1, &x, read_label));
	assert_true(x.count == UINT64_C(1) << 46);
	assert_int_equal(x.peer, -1);
	recorder_ring_free(r);
}

#define WRITTEN 400000

static void *writes(void *arg)
{
	for (uint64_t n = 0; n < WRITTEN; n++) {
		const struct recorded x = numbered(n);
		recorder_put(arg, &x);
	}
	return NULL;
}

/* No entry is a mixture of two. */
static void a_reader_beside_the_writer(void **state)
{
	struct recorder_ring *r = recorder_ring_create();
	struct recorded x;
	char read_label[NCCLSVC_LABEL_BYTES];
	uint64_t first, end = 0;
	pthread_t thread;
	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, writes, r), 0);
	while (end < WRITTEN) {
		recorder_range(r, &first, &end);
		for (uint64_t n = first; n < end; n += 7) {
			memset(&x, 0, sizeof(x));
			if (recorder_read(r, n, &x, read_label))
				check(&x, read_label, n);
		}
	}
	pthread_join(thread, NULL);
	recorder_ring_free(r);
}

/* ---- Recordings ---- */

static void closed(void *arg)
{
	(void)arg;
}

struct world {
	struct config config;
	struct accounts accounts;
	struct recorder recorder;
};

static void setup(struct world *w)
{
	memset(w, 0, sizeof(*w));
	w->config.sessions_max = w->config.user_sessions_max = 1000;
	accounts_init(&w->accounts, &w->config, closed, NULL);
}

static void teardown(struct world *w)
{
	recorder_free(&w->recorder);
	assert_int_equal(w->accounts.held[SHARE_RECORDINGS], 0);
	accounts_fini(&w->accounts);
}

static struct recording *begin(struct world *w, uint32_t uid, uint32_t session)
{
	uint32_t join;
	struct recording *rec =
		recorder_join(&w->recorder, session, 7, uid,
			      account_get(&w->accounts, &(struct tenant){.uid = uid}),
			      &(struct recorded_join){.comm = 1, .epoch = 1}, &join);
	assert_non_null(rec);
	recorder_put(rec->tasks, &(struct recorded){.join = join, .seq = session});
	return rec;
}

static void a_users_oldest_recording_goes_first(void **state)
{
	struct world w;
	(void)state;
	setup(&w);
	begin(&w, 1, 1); /* lives */
	begin(&w, 2, 2);
	recorder_ended(&w.recorder, 2);
	for (uint32_t i = 0; i < SVC_USER_RECORDINGS + 3; i++) {
		begin(&w, 1, 10 + i);
		recorder_ended(&w.recorder, 10 + i);
	}
	assert_non_null(recorder_find(&w.recorder, 1));
	assert_non_null(recorder_find(&w.recorder, 2));
	assert_null(recorder_find(&w.recorder, 12));
	assert_non_null(recorder_find(&w.recorder, 13));
	assert_int_equal(
		account_get(&w.accounts, &(struct tenant){.uid = 1})->held[SHARE_RECORDINGS],
		SVC_USER_RECORDINGS);
	assert_int_equal(w.recorder.n, SVC_USER_RECORDINGS + 2);
	teardown(&w);
}

/* If the ending recording's user has none, the user with the most loses one. */
static void all_users_recordings_are_bounded(void **state)
{
	struct world w;
	uint32_t session = 1;
	const uint32_t users = SVC_RECORDINGS_MAX / SVC_USER_RECORDINGS;
	(void)state;
	setup(&w);
	for (uint32_t uid = 1; uid <= users; uid++)
		for (uint32_t i = 0; i < SVC_USER_RECORDINGS; i++, session++) {
			begin(&w, uid, session);
			recorder_ended(&w.recorder, session);
		}
	assert_int_equal(w.recorder.n, SVC_RECORDINGS_MAX);
	begin(&w, 99, session);
	recorder_ended(&w.recorder, session);
	assert_int_equal(w.recorder.n, SVC_RECORDINGS_MAX);
	assert_non_null(recorder_find(&w.recorder, session));
	assert_null(recorder_find(&w.recorder, 1));
	teardown(&w);
}

static void what_is_read_stays(void **state)
{
	struct world w;
	(void)state;
	setup(&w);
	struct recording *rec = begin(&w, 1, 1);
	recording_read_begin(rec);
	recorder_ended(&w.recorder, 1);
	for (uint32_t i = 0; i < SVC_USER_RECORDINGS; i++) {
		begin(&w, 1, 10 + i);
		recorder_ended(&w.recorder, 10 + i);
	}
	assert_null(recorder_find(&w.recorder, 1));
	assert_int_equal(atomic_load(&rec->tasks->written), 1);
	recorder_read_end(&w.recorder, rec);
	teardown(&w);
}

static void one_without_operations_is_not_kept(void **state)
{
	struct world w;
	uint32_t join;
	(void)state;
	setup(&w);
	recorder_join(&w.recorder, 1, 7, 1, account_get(&w.accounts, &(struct tenant){.uid = 1}),
		      &(struct recorded_join){.comm = 1}, &join);
	recorder_ended(&w.recorder, 1);
	assert_int_equal(w.recorder.n, 0);
	teardown(&w);
}

static void joins_have_numbers_that_stay(void **state)
{
	struct world w;
	struct recording *rec = NULL;
	uint32_t join;
	(void)state;
	setup(&w);
	for (uint32_t i = 0; i < RECORDER_JOINS + 10; i++) {
		rec = recorder_join(
			&w.recorder, 1, 7, 1, account_get(&w.accounts, &(struct tenant){.uid = 1}),
			&(struct recorded_join){.comm = i, .epoch = 3, .rank = 2}, &join);
		assert_int_equal(join, i);
		assert_int_equal(recording_join(rec, join)->comm, i);
	}
	assert_null(recording_join(rec, 9));
	assert_int_equal(recording_join(rec, 10)->comm, 10);
	assert_null(recording_join(rec, RECORDER_JOINS + 10));
	assert_true(recording_find_join(rec, 100, 3, 2, &join));
	assert_int_equal(join, 100);
	assert_false(recording_find_join(rec, 9, 3, 2, &join));
	assert_false(recording_find_join(rec, 100, 4, 2, &join));
	teardown(&w);
}

/* ---- JSON ---- */

static void labels_cannot_break_json(void **state)
{
	char text[SVC_OPERATION_JSON];
	ncclsvc_operation_info i = {.op = NCCLSVC_ALL_REDUCE,
				    .comm_label = "a\"b\\c\n\xff\xc3\xa9",
				    .result = NCCLSVC_TIMEOUT};
	(void)state;
	memset(i.label, 1, sizeof(i.label));
	svc_operation_json(&i, text);
	assert_non_null(strstr(text, "\"comm_label\":\"a\\\"b\\\\c\\u000a?\xc3\xa9\","));
	assert_non_null(strstr(text, "\"plan_label\":\"\\u0001\\u0001"));
	assert_non_null(strstr(text, "\"result\":\"TIMEOUT\""));
	assert_string_equal(text + strlen(text) - 2, "\"}");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_ring_returns_its_last_entries),
		cmocka_unit_test(a_count_that_no_memory_has),
		cmocka_unit_test(a_reader_beside_the_writer),
		cmocka_unit_test(a_users_oldest_recording_goes_first),
		cmocka_unit_test(all_users_recordings_are_bounded),
		cmocka_unit_test(what_is_read_stays),
		cmocka_unit_test(one_without_operations_is_not_kept),
		cmocka_unit_test(joins_have_numbers_that_stay),
		cmocka_unit_test(labels_cannot_break_json),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
