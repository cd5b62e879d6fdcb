/* SPDX-License-Identifier: Apache-2.0
 * Names, sizes and sentences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proto/names.h"
#include "proto/operation.h"

static void every_value_has_its_name(void **state)
{
	(void)state;
#define NAMED(function, value, name) assert_string_equal(function(value), name);
#define RESULT(v, n, name, meaning)                                                                \
	NAMED(svc_result_name, v, name) NAMED(svc_result_meaning, v, meaning)
#define OP(v, n, name) NAMED(svc_op_name, v, name) assert_true(svc_op_known(v));
#define TYPE(v, n, name, size)                                                                     \
	NAMED(svc_type_name, v, name) assert_int_equal(svc_type_size(v), size);
#define REDOP(v, n, name) NAMED(svc_redop_name, v, name) assert_true(svc_redop_known(v));
#define STATE(v, n, name) NAMED(svc_state_name, v, name)
#define FIELD(v, n, name) NAMED(svc_field_name, v, name)
	NCCLSVC_RESULTS(RESULT)
	NCCLSVC_OPS(OP)
	NCCLSVC_TYPES(TYPE)
	NCCLSVC_REDOPS(REDOP)
	NCCLSVC_STATES(STATE)
	NCCLSVC_FIELDS(FIELD)
}

static void unknown_values_are_a_question_mark(void **state)
{
	(void)state;
	static const unsigned values[] = {99, 255, 0x80000000u, UINT32_MAX - 100};
	for (size_t i = 0; i < 4; i++) {
		assert_string_equal(svc_result_name((int)values[i]), "?");
		assert_string_equal(svc_op_name(values[i]), "?");
		assert_string_equal(svc_type_name(values[i]), "?");
		assert_string_equal(svc_redop_name(values[i]), "?");
		assert_string_equal(svc_state_name(values[i]), "?");
		assert_string_equal(svc_field_name(values[i]), "?");
		assert_int_equal(svc_type_size(values[i]), 0);
		assert_false(svc_op_known(values[i]) || svc_redop_known(values[i]));
		assert_false(svc_op_reduces(values[i]) || svc_op_has_root(values[i]) ||
			     svc_op_is_p2p(values[i]));
		assert_true(strlen(svc_result_meaning((int)values[i])) > 0);
	}
}

static const char *sentence(const ncclsvc_status *st)
{
	static char buf[512];
	assert_ptr_equal(svc_status_sentence(st, buf, sizeof(buf)), buf);
	return buf;
}

static void sentences_name_ranks_pids_and_values(void **state)
{
	(void)state;
	ncclsvc_status st = {.result = NCCLSVC_MISMATCH,
			     .field = NCCLSVC_FIELD_TYPE,
			     .rank_a = 1,
			     .rank_b = 3,
			     .pid_a = 4711,
			     .pid_b = 4713,
			     .value_a = NCCLSVC_FLOAT32,
			     .value_b = NCCLSVC_BFLOAT16};
	const char *s = sentence(&st);
	assert_non_null(strstr(s, "MISMATCH"));
	assert_non_null(strstr(s, "type"));
	assert_non_null(strstr(s, "rank 1 (pid 4711) has float32"));
	assert_non_null(strstr(s, "rank 3 (pid 4713) has bfloat16"));

	st = (ncclsvc_status){.result = NCCLSVC_PEER_GONE, .rank_a = 2, .pid_a = 99};
	assert_non_null(strstr(sentence(&st), "rank 2 (pid 99) has ended"));
	st.value_b = (uint64_t)0x0a4d0001 << 16 | 5000;
	assert_non_null(strstr(sentence(&st), "(pid 99) of node 10.77.0.1 (port 5000) has ended"));
	st.field = NCCLSVC_FIELD_NODE;
	assert_non_null(strstr(sentence(&st),
			       "the daemon of node 10.77.0.1 (port 5000) is gone or cut off, "
			       "and with it rank 2 (pid 99)"));
	st.field = NCCLSVC_FIELD_NONE;
	st.rank_a = -1;
	assert_null(strstr(sentence(&st), "rank -1"));

	st = (ncclsvc_status){.result = NCCLSVC_TIMEOUT,
			      .rank_a = 0,
			      .pid_a = 5,
			      .rank_b = 1,
			      .pid_b = 6,
			      .missing_count = 10,
			      .missing = {1, 2, 3, 4, 5, 6, 7, 8}};
	s = sentence(&st);
	assert_non_null(strstr(s, "1 (pid 6), 2, 3, 4, 5, 6, 7, 8 and 2 more"));
	assert_non_null(strstr(s, "rank 0"));
	assert_null(strstr(s, "pid 5"));
	st.missing_count = 1;
	assert_non_null(strstr(sentence(&st), "rank 1 "));
	st.missing_count = UINT32_MAX;
	assert_true(strlen(sentence(&st)) > 0);
	st.missing_count = 0;
	st.field = NCCLSVC_FIELD_GROUP;
	s = sentence(&st);
	assert_non_null(strstr(s, "all ranks have submitted it"));
	assert_non_null(strstr(s, "task group"));
	assert_non_null(strstr(s, "rank 0 (pid 5)"));
}

static void sentences_say_what_differs_between_lists(void **state)
{
	ncclsvc_status st = {.result = NCCLSVC_MISMATCH,
			     .field = NCCLSVC_FIELD_AGREEMENT,
			     .rank_a = 0,
			     .pid_a = 5,
			     .rank_b = 1,
			     .pid_b = 7,
			     .value_a = UINT64_C(0x1000000000000abc),
			     .value_b = UINT64_C(0x1000000000000def)};
	(void)state;
	assert_string_equal(sentence(&st),
			    "MISMATCH: types or shapes of the tensors differ: rank 0 "
			    "(pid 5) and rank 1 (pid 7), each with a list of static "
			    "shapes");
	st.value_b = UINT64_C(0x4000000000000abc);
	assert_string_equal(sentence(&st), "MISMATCH: mode differs: rank 0 (pid 5) has a list of "
					   "static shapes, rank 1 (pid 7) has an AllReduce of "
					   "tensors");
	st.value_b = 0;
	assert_non_null(strstr(sentence(&st),
			       "rank 1 (pid 7) has an operation that is not a list of tensors"));
	st.value_a = 7;
	assert_non_null(strstr(sentence(&st), "agreement differs: rank 0 (pid 5) has 0x7"));
}

static void sentences_say_what_a_list_was_refused_for(void **state)
{
	(void)state;
	ncclsvc_status st = {.result = NCCLSVC_NO_MEMORY,
			     .field = NCCLSVC_FIELD_REFUSAL,
			     .rank_a = 1,
			     .pid_a = 7,
			     .rank_b = -1,
			     .value_a = NCCLSVC_REFUSAL_ALLOCATE};
	assert_string_equal(sentence(&st), "NO_MEMORY: rank 1 (pid 7) refused the list: its "
					   "allocate callback failed: out of memory");
	st.value_a = NCCLSVC_REFUSAL_NONE;
	assert_string_equal(sentence(&st),
			    "NO_MEMORY: rank 1 (pid 7) refused the list: out of memory");
	st.result = NCCLSVC_INVALID_ARGUMENT;
	st.value_a = NCCLSVC_REFUSAL_SIGNAL;
	assert_string_equal(sentence(&st), "INVALID_ARGUMENT: rank 1 (pid 7) refused the list: its "
					   "input_signal is false");
	st.result = NCCLSVC_MISMATCH;
	st.value_a = NCCLSVC_REFUSAL_SHAPES;
	assert_string_equal(sentence(&st), "MISMATCH: rank 1 (pid 7) refused the list: it does not "
					   "allow the sender's types or shapes");
	/* From a newer library. */
	st.result = NCCLSVC_SYSTEM;
	st.value_a = UINT64_MAX;
	assert_string_equal(sentence(&st),
			    "SYSTEM: rank 1 (pid 7) refused the list: a system call failed");
}

static void sentences_fit_any_buffer(void **state)
{
	(void)state;
#define EACH(v, n, name, meaning) v,
	static const int results[] = {NCCLSVC_RESULTS(EACH) 12345};
	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++)
		for (size_t size = 0; size < 80; size++) {
			char buf[81];
			memset(buf, 'x', sizeof(buf));
			ncclsvc_status st = {.result = results[i], .missing_count = 3};
			svc_status_sentence(&st, buf, size);
			assert_int_equal(buf[size], 'x');
			if (size)
				assert_non_null(memchr(buf, '\0', size));
		}
}

static void labels_are_short_printable_texts(void **state)
{
	char text[SVC_QUOTED_BYTES];
	static const struct {
		char label[NCCLSVC_LABEL_BYTES];
		bool ok;
	} labels[] = {
		{"", true},
		{" ", true},
		{"grad of layer 3, ~\"!", true},
		{"12345678901234567890123", true},
		{{"123456789012345678901234"}, false},
		{"a\tb", false},
		{"a\nb", false},
		{"\x7f", false},
		{"\xc3\xa4", false},
		{"\x9b[2J", false},
		{{'a', '\0', 'b'}, false},
		{{[23] = 'a'}, false},
	};
	(void)state;
	for (size_t i = 0; i < sizeof(labels) / sizeof(labels[0]); i++)
		assert_int_equal(svc_label_ok(labels[i].label, sizeof(labels[i].label)),
				 labels[i].ok);
	assert_string_equal(svc_label_quote("", text), "");
	assert_string_equal(svc_label_quote("a b", text), " \"a b\"");
	assert_string_equal(svc_label_quote("12345678901234567890123", text),
			    " \"12345678901234567890123\"");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_value_has_its_name),
		cmocka_unit_test(unknown_values_are_a_question_mark),
		cmocka_unit_test(sentences_name_ranks_pids_and_values),
		cmocka_unit_test(sentences_say_what_differs_between_lists),
		cmocka_unit_test(sentences_say_what_a_list_was_refused_for),
		cmocka_unit_test(sentences_fit_any_buffer),
		cmocka_unit_test(labels_are_short_printable_texts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
