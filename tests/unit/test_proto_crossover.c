/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/crossover.h"

static char dir[] = "/tmp/test_crossover.XXXXXX", path[64];
static struct crossover c;
static char why[CROSSOVER_TEXT];

static int make_dir(void **state)
{
	(void)state;
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/crossover", dir);
	return 0;
}

static int drop_dir(void **state)
{
	(void)state;
	unlink(path);
	return rmdir(dir);
}

static bool reads(const char *text, size_t size)
{
	FILE *f = fopen(path, "we");
	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, size, f), size);
	assert_int_equal(fclose(f), 0);
	c.n = 7;
	why[0] = '\0';
	return crossover_read(&c, path, why);
}

static void is_refused(const char *text, const char *reason)
{
	if (reads(text, strlen(text)))
		fail_msg("'%s' is taken", text);
	if (!strstr(why, reason))
		fail_msg("'%s': %s", text, why);
	assert_int_equal(c.n, 0);
}

static uint32_t bytes_of(const char *gpu, uint32_t ranks, bool mps)
{
	const struct crossover_limit *l = crossover_find(&c, gpu, ranks, mps);
	return l ? l->bytes : UINT32_MAX;
}

static void test_read(void **state)
{
	(void)state;
	const char *text = "# a comment\n"
			   "\n"
			   "2 yes 8388608 NVIDIA H200\n"
			   "2  no   0   NVIDIA H200\n"
			   "8 yes 1073741824 A";
	if (!reads(text, strlen(text)))
		fail_msg("%s", why);
	assert_int_equal(c.n, 3);
	assert_int_equal(bytes_of("NVIDIA H200", 2, true), 8 << 20);
	assert_int_equal(bytes_of("NVIDIA H200", 2, false), 0);
	assert_int_equal(bytes_of("A", 8, true), 1 << 30);
	assert_int_equal(bytes_of("A", 8, false), UINT32_MAX);
	assert_int_equal(bytes_of("A", 7, true), UINT32_MAX);
	assert_int_equal(bytes_of("NVIDIA H2000", 2, true), UINT32_MAX);
	assert_true(reads("", 0));
	assert_int_equal(c.n, 0);
}

static void test_no_file(void **state)
{
	(void)state;
	unlink(path);
	c.n = 7;
	assert_true(crossover_read(&c, path, why));
	assert_int_equal(c.n, 0);
	c.n = 7;
	assert_true(crossover_read(&c, "/dev/null/crossover", why));
	assert_int_equal(c.n, 0);
}

static void test_bad_lines(void **state)
{
	static const char *const lines[] = {
		"2",
		"2 yes",
		"2 yes 8",
		"2 yes 8 ",
		"two yes 8 A",
		"2 maybe 8 A",
		"2 YES 8 A",
		"2 yes -8 A",
		"2 yes 8M A",
		"2 yes 8.5 A",
		"+2 yes 8 A",
		" 2 yes 8 A",
		"1 yes 8 A",
		"9 yes 8 A",
		"0 yes 8 A",
		"4294967298 yes 8 A",
		"2 yes 1073741825 A",
		"2 yes 4294967304 A",
		"2 yes 99999999999999999999999999999999 A",
		"2 yes 8 A ",
		"2 yes 8 A\r",
		"2 yes 8 \x1b[2J",
		"2 yes 8 \xff",
		"2 yes 8 A\tB",
		("2\t"
		 "yes\t8\tA"),
		"2 yes 8 0123456789012345678901234567890123456789012345678",
		"\xff\xfe",
	};
	(void)state;
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		char text[256];
		is_refused(lines[i], "line 1: ");
		/* Unknown lines are not used either. */
		snprintf(text, sizeof(text), "2 yes 8 A\n%s\n3 yes 8 A\n", lines[i]);
		is_refused(text, "line 2: ");
	}
	is_refused("2 yes 8 A\n3 yes 8 A\n2 yes 9 A\n", "line 3: given twice");
}

static void test_bytes_of_any_kind(void **state)
{
	static char text[100000];
	(void)state;
	assert_false(reads("2 yes 8 A\0B\n", 12));
	assert_non_null(strstr(why, "NUL byte"));
	assert_false(reads("\0", 1));
	memset(text, '9', sizeof(text));
	assert_false(reads(text, 1000));
	assert_non_null(strstr(why, "line is too long"));
	assert_false(reads(text, sizeof(text)));
	assert_non_null(strstr(why, "file is too long"));
	memset(text, '\n', sizeof(text));
	assert_true(reads(text, 65536));
	srand(1);
	for (int k = 0; k < 2000; k++) {
		const size_t n = (size_t)rand() % 200;
		for (size_t i = 0; i < n; i++)
			text[i] = "2 yes 8 A\n#\0\xff\t9"[rand() % 16];
		(void)reads(text, n);
		assert_true(c.n <= CROSSOVER_LIMITS);
	}
}

static void test_too_many(void **state)
{
	char text[16384];
	size_t at = 0;
	(void)state;
	for (int i = 0; i <= CROSSOVER_LIMITS; i++) {
		at += (size_t)snprintf(text + at, sizeof(text) - at, "2 no 8 GPU %d\n", i);
		if (i == CROSSOVER_LIMITS - 1)
			assert_true(reads(text, at));
	}
	is_refused(text, "too many");
}

static void test_what_is_no_file(void **state)
{
	(void)state;
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	const char *const paths[] = {path, dir, "/dev/zero"};
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		assert_false(crossover_read(&c, paths[i], why));
		assert_string_equal(why, "it is not a regular file");
	}
	unlink(path);
}

static void test_write(void **state)
{
	struct crossover_limit l = {.ranks = 2, .bytes = 4096, .mps = true, .gpu = "Some GPU"};
	struct stat st;
	char there[96];
	(void)state;
	memset(&c, 0, sizeof(c));
	assert_true(crossover_put(&c, &l));
	l.mps = false;
	l.bytes = 1;
	assert_true(crossover_put(&c, &l));
	l.bytes = 2;
	assert_true(crossover_put(&c, &l)); /* in place of the former */
	assert_int_equal(c.n, 2);
	snprintf(there, sizeof(there), "%s/some/where/crossover", dir);
	assert_int_equal(crossover_write(&c, there), 0);
	assert_int_equal(stat(there, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0644);
	c.n = 0;
	if (!crossover_read(&c, there, why))
		fail_msg("%s", why);
	assert_int_equal(c.n, 2);
	assert_int_equal(bytes_of("Some GPU", 2, true), 4096);
	assert_int_equal(bytes_of("Some GPU", 2, false), 2);
	assert_int_equal(crossover_write(&c, there), 0); /* again */
	assert_int_equal(unlink(there), 0);
	*strrchr(there, '/') = '\0';
	assert_int_equal(rmdir(there), 0); /* no other file is left */
	*strrchr(there, '/') = '\0';
	assert_int_equal(rmdir(there), 0);
	assert_int_equal(crossover_write(&c, "/dev/null/crossover"), ENOTDIR);
	assert_int_equal(crossover_write(&c, dir), EISDIR);

	static const struct crossover_limit bad[] = {
		{.ranks = 1, .gpu = "A"},
		{.ranks = 9, .gpu = "A"},
		{.ranks = 2, .gpu = ""},
		{.ranks = 2, .gpu = "A\nB"},
		{.ranks = 2, .bytes = UINT32_MAX, .gpu = "A"},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(crossover_put(&c, &bad[i]));
}

static void is_at(const char *due)
{
	char text[PATH_MAX] = "";
	assert_int_equal(crossover_default_path(text, sizeof(text)), due != NULL);
	if (due)
		assert_string_equal(text, due);
	assert_false(crossover_default_path(text, 5));
}

static void test_places(void **state)
{
	(void)state;
	const bool root = geteuid() == 0;
	setenv("STATE_DIRECTORY", "/a/b:/c", 1);
	is_at("/a/b/crossover");
	setenv("STATE_DIRECTORY", "", 1);
	setenv("XDG_STATE_HOME", "/state", 1);
	is_at(root ? "/var/lib/ncclsvc/crossover" : "/state/ncclsvc/crossover");
	unsetenv("XDG_STATE_HOME");
	setenv("HOME", "/home", 1);
	is_at(root ? "/var/lib/ncclsvc/crossover" : "/home/.local/state/ncclsvc/crossover");
	unsetenv("HOME");
	is_at(root ? "/var/lib/ncclsvc/crossover" : NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_read),	  cmocka_unit_test(test_no_file),
		cmocka_unit_test(test_bad_lines), cmocka_unit_test(test_bytes_of_any_kind),
		cmocka_unit_test(test_too_many),  cmocka_unit_test(test_what_is_no_file),
		cmocka_unit_test(test_write),	  cmocka_unit_test(test_places),
	};
	return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
