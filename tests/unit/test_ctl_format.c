/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/snapshot.h"
#include "base/table.h"
#include "base/units.h"
#include "ncclsvc.h"

static void check(struct text *t, const char *expected)
{
	char *s = text_steal(t);

	assert_string_equal(s, expected);
	free(s);
}

static void test_age(void **state)
{
	static const struct {
		uint64_t ns;
		const char *text;
	} rows[] = {
		{0, "0 us"},
		{999999, "999 us"},
		{1000000, "1 ms"},
		{999999999, "999 ms"},
		{1000000000, "1.0 s"},
		{12345000000, "12.3 s"},
		{59999999999, "59.9 s"},
		{60000000000, "1m00s"},
		{192000000000, "3m12s"},
		{7500000000000, "2h05m"},
		{273600000000000, "3d04h"},
		{UINT64_MAX, "213503d23h"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct text t = TEXT_INIT(-1);

		units_age(&t, rows[i].ns);
		check(&t, rows[i].text);
	}
}

static void test_bytes(void **state)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} rows[] = {
		{0, "0 B"},
		{1023, "1023 B"},
		{1024, "1.0 KiB"},
		{1536, "1.5 KiB"},
		{1048575, "1.0 MiB"},
		{1048576, "1.0 MiB"},
		{UINT64_C(5) << 30, "5.0 GiB"},
		{UINT64_MAX, "16.0 EiB"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct text t = TEXT_INIT(-1);

		units_bytes(&t, rows[i].bytes);
		check(&t, rows[i].text);
	}
}

static void test_ranks(void **state)
{
	static const int32_t ranks[] = {0, 1, 3, 4, 5, 6, 7, 8, 9};
	struct text t = TEXT_INIT(-1);

	(void)state;
	units_waits(&t, ranks, 0, 0);
	check(&t, "-");
	units_waits(&t, ranks, 2, 2);
	check(&t, "0, 1");
	units_waits(&t, ranks + 2, 2, 14);
	check(&t, "3, 4 (+12)");
	units_waits(&t, ranks, 8, 1);
	check(&t, "0");
	units_ranks(&t, ranks, 1, 4);
	check(&t, "rank 0");
	units_ranks(&t, ranks, 3, 4);
	check(&t, "ranks 0, 1 and 3");
	units_ranks(&t, ranks, 9, 128);
	check(&t, "9 of 128 ranks");
}

static void test_numbers(void **state)
{
	struct text t = TEXT_INIT(-1);

	(void)state;
	text_u64(&t, 0);
	text_char(&t, ' ');
	text_u64(&t, UINT64_MAX);
	text_char(&t, ' ');
	text_i64(&t, INT64_MIN);
	text_char(&t, ' ');
	text_printf(&t, "%s-%d", "x", 7);
	check(&t, "0 18446744073709551615 -9223372036854775808 x-7");
}

/* A name comes from another process, and must not reach the terminal unchanged. */
static void test_names(void **state)
{
	struct text t = TEXT_INIT(-1);

	(void)state;
	text_name(&t, "a\033[2Jb\tc\x7f", 48);
	check(&t, "a?[2Jb?c?");
	text_name(&t, "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\x8c", 48);
	check(&t, "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\x8c");
	/* Overlong, surrogate, C1 control, out of range, truncated. */
	text_name(&t, "\xc0\xaf|\xed\xa0\x80|\xc2\x9b|\xf4\x90\x80\x80|\xe2\x82", 48);
	check(&t, "??|???|??|????|??");
	text_name(&t, "not terminated", 3);
	check(&t, "not");
	assert_int_equal(text_width("\xc3\xa9\xe2\x82\xac", 5), 2);
}

static void test_table(void **state)
{
	static const struct table_column columns[] = {
		{"ID", true}, {"NAME", false}, {"N", true}, {"LAST", false}};
	struct table *table = table_new(columns, 4);
	struct text t = TEXT_INIT(-1);

	(void)state;
	table_u64(table, 12345);
	table_add(table, "x");
	table_i64(table, -1);
	table_add(table, "end");
	table_u64(table, 1);
	text_add(table_cell(table), "longer n\xc3\xa9");
	table_end(table, TABLE_BAD);
	table_i64(table, 22);
	table_add(table, "");
	table_print(table, &t, false);
	check(&t, "   ID  NAME        N  LAST\n"
		  "12345  x          -1  end\n"
		  "    1  longer n\xc3\xa9  22  \n");
	table_print(table, &t, true);
	char *s = text_steal(&t);
	assert_non_null(strstr(s, "\033[31mlonger n\xc3\xa9\033[0m  22"));
	free(s);
	table_free(table);
}

static enum ctl_exit parse(struct ctl_args *args, char *text, ...)
{
	char *argv[16] = {"ncclsvc-ctl"};
	static char words[16][32];
	int argc = 1;
	va_list list;

	va_start(list, text);
	for (const char *word; argc < 15 && (word = va_arg(list, const char *)); argc++) {
		snprintf(words[argc], sizeof(words[argc]), "%s", word);
		argv[argc] = words[argc];
	}
	va_end(list);
	return args_parse(argc, argv, args, text, 256);
}

static void test_arguments(void **state)
{
	struct ctl_args a;
	char text[256];

	(void)state;
	assert_int_equal(parse(&a, text, "tasks", "--comm", "world", "--rank", "0", "--state",
			       "waiting-peers", "--stuck", "1.5", "--sort", "age", "--limit", "10",
			       NULL),
			 EXIT_GOOD);
	assert_int_equal(a.command, CTL_TASKS);
	assert_string_equal(a.comm, "world");
	assert_int_equal(a.rank, 0);
	assert_int_equal(a.pid, -1);
	assert_int_equal(a.state, NCCLSVC_WAITING_PEERS);
	assert_int_equal(a.stuck_ns, 1500000000);
	assert_int_equal(a.sort, CTL_SORT_AGE);
	assert_int_equal(a.limit, 10);
	assert_int_equal(a.timeout_ns, 10000000000);

	assert_int_equal(parse(&a, text, "tasks", NULL), EXIT_GOOD);
	assert_int_equal(a.stuck_ns, 0);
	assert_int_equal(parse(&a, text, "tasks", "--stuck", "0", NULL), EXIT_GOOD);
	assert_int_equal(a.stuck_ns, 1);

	assert_int_equal(parse(&a, text, "--json", "--socket", "/x", "why", NULL), EXIT_GOOD);
	assert_int_equal(a.command, CTL_WHY);
	assert_true(a.json);
	assert_string_equal(a.socket, "/x");
	assert_int_equal(a.after_ns, 1000000000);

	assert_int_equal(parse(&a, text, "watch", "why", "-n", "0.5", "--after", "3", NULL),
			 EXIT_GOOD);
	assert_true(a.watch);
	assert_int_equal(a.command, CTL_WHY);
	assert_int_equal(a.interval_ns, 500000000);
	assert_int_equal(parse(&a, text, "failures", NULL), EXIT_GOOD);
	assert_int_equal(a.node, SNAPSHOT_ALL);
	assert_int_equal(parse(&a, text, "failures", "--follow", NULL), EXIT_GOOD);
	assert_int_equal(a.node, SNAPSHOT_LOCAL);
	assert_int_equal(parse(&a, text, "lateness", "--node", "2", NULL), EXIT_GOOD);
	assert_int_equal(a.node, 2);
	assert_int_equal(parse(&a, text, "watch", NULL), EXIT_GOOD);
	assert_int_equal(a.command, CTL_TASKS);

	assert_int_equal(parse(&a, text, "cancel", "session", "7", NULL), EXIT_GOOD);
	assert_int_equal(a.target, CTL_TARGET_SESSION);
	assert_int_equal(a.id, 7);
	assert_int_equal(parse(&a, text, "status", "--help", NULL), EXIT_GOOD);
	assert_int_equal(a.command, CTL_HELP);
	assert_int_equal(parse(&a, text, "--version", NULL), EXIT_GOOD);
	assert_int_equal(a.command, CTL_VERSION);
}

static void test_usage(void **state)
{
	static const struct {
		const char *words[4];
		const char *says;
	} rows[] = {
		{{NULL}, "no command"},
		{{"stat"}, "\"stat\""},
		{{"status", "x"}, "\"x\""},
		{{"status", "--rank", "1"}, "--rank does not apply to status"},
		{{"tasks", "--after", "1"}, "--after"},
		{{"tasks", "-n", "1"}, "--interval"},
		{{"tasks", "--rank", "-1"}, "\"-1\""},
		{{"tasks", "--rank", "99999999999"}, "--rank"},
		{{"tasks", "--state", "stuck"}, "--state"},
		{{"tasks", "--stuck", "nan"}, "--stuck"},
		{{"tasks", "--limit", "0"}, "--limit"},
		{{"tasks", "--limit"}, "--limit needs an argument"},
		{{"tasks", "--bogus"}, "unknown option --bogus"},
		{{"--co", "1", "tasks"}, "ambiguous option --co: --comm, --count"},
		{{"--co=1", "tasks"}, "ambiguous option --co: --comm, --count"},
		{{"status", "--json=1"}, "unknown option --json=1"},
		{{"status", "--timeout", "0"}, "--timeout"},
		{{"status", "--timeout", "1e99"}, "--timeout"},
		{{"cancel", "task"}, "task|comm|session"},
		{{"cancel", "rank", "1"}, "\"rank\""},
		{{"cancel", "session", "4294967296"}, "session id"},
		{{"cancel", "task", "1x"}, "\"1x\""},
		{{"watch", "cancel"}, "\"cancel\""},
		{{"watch", "tasks", "x"}, "\"x\""},
		{{"watch", "-n", "0"}, "--interval"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const char *const *w = rows[i].words;
		struct ctl_args a;
		char text[256] = "";

		assert_int_equal(parse(&a, text, w[0], w[1], w[2], w[3], NULL), EXIT_USAGE);
		if (!strstr(text, rows[i].says))
			fail_msg("\"%s\" does not say %s", text, rows[i].says);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_age),	  cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_ranks),	  cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_names),	  cmocka_unit_test(test_table),
		cmocka_unit_test(test_arguments), cmocka_unit_test(test_usage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
