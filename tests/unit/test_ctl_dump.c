/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-ctl dump: the table, JSON, and PyTorch's files, from lists that a daemon sends and
 * from others. tests/torch/test_flight_recorder.py checks that PyTorch can read the files. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "views/view.h"

#define S UINT64_C(1000000000)

static const ncclsvc_operation_info operations[] = {
	{.comm = 5,
	 .seq = 3,
	 .collective = 3,
	 .count = 100,
	 .bytes = 400,
	 .submitted_ns = 20 * S,
	 .matched_ns = 21 * S,
	 .started_ns = 21 * S,
	 .done_ns = 22 * S + 500000000,
	 .op = NCCLSVC_ALL_REDUCE,
	 .type = NCCLSVC_FLOAT32,
	 .state = NCCLSVC_DONE,
	 .transport = NCCLSVC_OPERATION_NCCL,
	 .peer = -1,
	 .pid = 100,
	 .session = 1,
	 .epoch = 1,
	 .nranks = 2,
	 .uid = 7,
	 .ended = 1,
	 .comm_label = "world"},
	/* Listed twice. */
	{.comm = 5,
	 .seq = 4,
	 .count = 8,
	 .submitted_ns = 23 * S,
	 .result = NCCLSVC_IN_PROGRESS,
	 .op = NCCLSVC_SEND,
	 .state = NCCLSVC_WAITING_PEERS,
	 .peer = 1,
	 .pid = 100,
	 .session = 1,
	 .epoch = 1,
	 .nranks = 2,
	 .comm_label = "world"},
	{.comm = 5,
	 .seq = 4,
	 .count = 8,
	 .submitted_ns = 23 * S,
	 .done_ns = 24 * S,
	 .result = NCCLSVC_TIMEOUT,
	 .op = NCCLSVC_SEND,
	 .state = NCCLSVC_FAILED,
	 .peer = 1,
	 .pid = 100,
	 .session = 1,
	 .epoch = 1,
	 .nranks = 2,
	 .comm_label = "world",
	 .label = "a label"},
	{.comm = 2,
	 .collective = 1,
	 .submitted_ns = 29 * S,
	 .result = NCCLSVC_IN_PROGRESS,
	 .op = NCCLSVC_BARRIER,
	 .type = UINT8_MAX,
	 .state = NCCLSVC_QUEUED,
	 .transport = NCCLSVC_OPERATION_KERNEL,
	 .rank = 1,
	 .peer = -1,
	 .pid = 101,
	 .session = 2,
	 .epoch = 3,
	 .nranks = 2,
	 .graph = 6,
	 .kernel = 9},
};

static struct snapshot snapshot(void)
{
	return (struct snapshot){.operations = (ncclsvc_operation_info *)operations,
				 .noperations = sizeof(operations) / sizeof(operations[0])};
}

static struct ctl_args command(bool json)
{
	return (struct ctl_args){.command = CTL_DUMP, .json = json, .rank = -1, .pid = -1};
}

static char *shown(struct snapshot s, struct ctl_args args)
{
	struct text out = TEXT_INIT(-1);
	struct view v = {
		.args = &args, .s = &s, .out = &out, .time = "now", .monotonic_ns = 30 * S};
	view_dump(&v);
	return text_steal(&out);
}

static void a_table(void **state)
{
	char *s = shown(snapshot(), command(false));
	(void)state;
	assert_non_null(
		strstr(s, "5 \"world\"      1             3  AllReduce       float32    100"));
	assert_non_null(strstr(s, "     10.0 s   +1.0 s   +1.0 s  +2.5 s  nccl       OK\n"));
	assert_non_null(strstr(s, "Send \"a label\""));
	assert_non_null(strstr(s, "TIMEOUT\n"));
	assert_non_null(strstr(s, "0 of graph 6  Barrier"));
	assert_non_null(strstr(s, "direct     queued\n"));
	assert_null(strstr(s, "waiting-peers"));
	free(s);
	s = shown((struct snapshot){0}, command(false));
	assert_string_equal(s, "No operations.\n");
	free(s);
}

static void filters(void **state)
{
	struct ctl_args args = command(false);
	(void)state;
	args.comm = "world";
	char *s = shown(snapshot(), args);
	assert_null(strstr(s, "Barrier"));
	assert_non_null(strstr(s, "AllReduce"));
	free(s);
	args.comm = "2";
	s = shown(snapshot(), args);
	assert_non_null(strstr(s, "Barrier"));
	assert_null(strstr(s, "AllReduce"));
	free(s);
	args.rank = 0;
	s = shown(snapshot(), args);
	assert_string_equal(s, "No operation matches.\n");
	free(s);
}

static json_int_t num(const json_t *o, const char *key)
{
	const json_t *value = json_object_get(o, key);
	assert_true(json_is_integer(value));
	return json_integer_value(value);
}

static void as_json(void **state)
{
	json_error_t error;
	char *s = shown(snapshot(), command(true));
	json_t *root = json_loads(s, JSON_REJECT_DUPLICATES, &error);
	(void)state;
	if (!root)
		fail_msg("%s: at %d in %s", error.text, error.position, s);
	free(s);
	const json_t *list = json_object_get(root, "operations");
	assert_int_equal(num(root, "total"), 3);
	assert_int_equal(num(root, "monotonic_ns"), 30 * S);
	assert_int_equal(json_array_size(list), 3);
	const json_t *x = json_array_get(list, 1);
	assert_string_equal(json_string_value(json_object_get(x, "op")), "AllReduce");
	assert_string_equal(json_string_value(json_object_get(x, "comm_label")), "world");
	assert_string_equal(json_string_value(json_object_get(x, "transport")), "nccl");
	assert_string_equal(json_string_value(json_object_get(x, "result")), "OK");
	assert_true(json_is_true(json_object_get(x, "session_ended")));
	assert_true(json_is_null(json_object_get(x, "peer")));
	assert_int_equal(num(x, "matched_ns"), 21 * S);
	x = json_array_get(list, 0);
	assert_true(json_is_null(json_object_get(x, "type")));
	assert_true(json_is_null(json_object_get(x, "started_ns")));
	assert_int_equal(num(x, "graph"), 6);
	json_decref(root);
}

/* ---- PyTorch's files ---- */

static char directory[64];

static int make_directory(void **state)
{
	(void)state;
	strcpy(directory, "/tmp/ncclsvc-dump-XXXXXX");
	return mkdtemp(directory) ? 0 : -1;
}

/* Returns how many files there were. */
static int empty_directory(void)
{
	int n = 0;
	DIR *d = opendir(directory);
	assert_non_null(d);
	for (const struct dirent *e; (e = readdir(d));) {
		if (e->d_name[0] == '.')
			continue;
		assert_int_equal(unlinkat(dirfd(d), e->d_name, 0), 0);
		n++;
	}
	closedir(d);
	return n;
}

static int remove_directory(void **state)
{
	(void)state;
	empty_directory();
	return rmdir(directory);
}

static bool write_files(struct snapshot *s, const char *comm)
{
	struct ctl_args args = command(false);
	struct text out = TEXT_INIT(-1);
	struct view v = {.args = &args, .s = s, .out = &out, .time = "now"};
	args.comm = comm;
	args.pytorch = directory;
	snapshot_order(s);
	const bool good = view_dump_pytorch(&v);
	text_free(&out);
	return good;
}

static void a_file_for_each_rank(void **state)
{
	ncclsvc_member_info members[] = {{.comm = 5, .rank = 0, .session = 1, .epoch = 1},
					 {.comm = 5, .rank = 1, .session = 2, .epoch = 1}};
	struct snapshot s = snapshot();
	(void)state;
	assert_true(write_files(&s, "5"));
	assert_int_equal(empty_directory(), 1);
	s.members = members;
	s.nmembers = 2;
	assert_true(write_files(&s, "5"));
	assert_int_equal(empty_directory(), 2);
	assert_true(write_files(&s, "none"));
	assert_int_equal(empty_directory(), 0);
}

static void any_bytes(void *to, size_t size)
{
	static const uint32_t words[] = {0, 0, 0, 1, 1, 2, 3, 9, 10, 11, UINT32_MAX, INT32_MAX};
	for (size_t at = 0; at + sizeof(uint32_t) <= size; at += sizeof(uint32_t)) {
		const uint32_t word = rand() % 8 ? words[(size_t)rand() % 12] : (uint32_t)rand();
		memcpy((char *)to + at, &word, sizeof(word));
	}
}

static void any_records(void **state)
{
	static ncclsvc_operation_info list[60];
	static ncclsvc_member_info members[20];
	(void)state;
	srand(35);
	for (int round = 0; round < 40; round++) {
		any_bytes(list, sizeof(list));
		any_bytes(members, sizeof(members));
		for (size_t i = 0; i < 60; i++) /* as the library does */
			list[i].comm_label[sizeof(list[i].comm_label) - 1] =
				list[i].label[sizeof(list[i].label) - 1] = '\0';
		struct snapshot s = {.operations = list,
				     .noperations = (size_t)rand() % 61,
				     .members = members,
				     .nmembers = (size_t)rand() % 21};
		assert_true(write_files(&s, NULL));
		free(shown(s, command(false)));
		free(shown(s, command(true)));
		empty_directory();
	}
}

/* Five times the operations may take five times as long, not 25 times. */
static double seconds_of(ncclsvc_operation_info *list, size_t n)
{
	struct timespec a, b;
	struct snapshot s = {.operations = list, .noperations = n};
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
	assert_true(write_files(&s, NULL));
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
	assert_int_equal(empty_directory(), 8);
	return (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
}

#define MANY 40000

/* Operations of 50 communicators, with messages between all ranks. */
static void many_operations(void **state)
{
	ncclsvc_operation_info *list = calloc(MANY, sizeof(*list));
	(void)state;
	assert_non_null(list);
	for (uint32_t i = 0; i < MANY; i++) {
		const bool p2p = i / 8 % 2;
		list[i] = (ncclsvc_operation_info){
			.comm = 1 + i / 16 % 50,
			.seq = i,
			.collective = i / 800,
			.submitted_ns = i + 1,
			.op = p2p ? NCCLSVC_SEND : NCCLSVC_ALL_REDUCE,
			.rank = (int32_t)(i % 8),
			.peer = (int32_t)((i + 1 + i / 800 % 6) % 8),
			.session = 1 + i % 8,
			.epoch = 1,
			.nranks = 8,
		};
	}
	const double small = seconds_of(list, MANY / 5), all = seconds_of(list, MANY);
	print_message("%d operations: %.0f ms\n", MANY, all * 1e3);
	assert_true(all < 15 * small + 0.1);
	free(list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_table),     cmocka_unit_test(filters),
		cmocka_unit_test(as_json),     cmocka_unit_test(a_file_for_each_rank),
		cmocka_unit_test(any_records), cmocka_unit_test(many_operations),
	};
	return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
