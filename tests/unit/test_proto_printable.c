/* SPDX-License-Identifier: Apache-2.0
 * Making other processes' texts printable. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/printable.h"

static const char *printable(const char *text)
{
	static char buf[64];
	memset(buf, 'x', sizeof(buf));
	strcpy(buf, text);
	return svc_make_printable(buf, sizeof(buf));
}

static void letters_stay(void **state)
{
	static const char *const texts[] = {
		"",
		"trainer 7, ~\"!%s",
		"caf\xc3\xa9",
		"\xe2\x82\xac 5",
		"\xd0\x96\xd0\xb5\xd0\xbd\xd1\x8f",
		"\xe8\xae\xad\xe7\xbb\x83",
		"\xf0\x9f\x90\x8c",
	};
	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		assert_string_equal(printable(texts[i]), texts[i]);
}

static void what_could_deceive_does_not(void **state)
{
	(void)state;
	assert_string_equal(printable("a\nb\tc\rd"), "a b c d");
	assert_string_equal(printable("\033[2J\x07\x7f|"), "?[2J??|");
	/* In this order: U+009B, 202E, 200B, 2028, 2066, FEFF, 00AD, 00A0, E0041, E000. */
	assert_string_equal(printable("(\xc2\x9b)(\xe2\x80\xae)(\xe2\x80\x8b)(\xe2\x80\xa8)"),
			    "(?\?)(??\?)(??\?)(??\?)");
	assert_string_equal(printable("(\xe2\x81\xa6)(\xef\xbb\xbf)(\xc2\xad)(\xc2\xa0)"),
			    "(??\?)(??\?)(?\?)(?\?)");
	assert_string_equal(printable("(\xf3\xa0\x81\x81)(\xee\x80\x80)"), "(???\?)(??\?)");
}

static void broken_characters_are_a_question_mark_for_each_byte(void **state)
{
	(void)state;
	assert_string_equal(printable("\xc0\xaf|\xed\xa0\x80|\xf4\x90\x80\x80|"), "??|???|????|");
	assert_string_equal(printable("\xe2\x82"), "??");
	assert_string_equal(printable("\x80\xff\xc3 |"), "??? |");
}

/* For any input, the result ends, is printable, and stays the same when it is processed again. */
static void any_bytes_become_a_text(void **state)
{
	(void)state;
	srand(33);
	for (int i = 0; i < 100000; i++) {
		char text[33], again[33];
		const size_t size = (size_t)(rand() % 32);
		text[size] = 'x';
		for (size_t k = 0; k < size; k++)
			text[k] = (char)(rand() % 4 ? 0x80 + rand() % 0x80 : rand());
		svc_make_printable(text, size);
		assert_int_equal(text[size], 'x');
		if (!size)
			continue;
		const size_t n = strnlen(text, size);
		assert_true(n < size);
		for (size_t k = n; k < size; k++)
			assert_int_equal(text[k], 0);
		for (size_t k = 0, length; k < n; k += length) {
			length = svc_printable_length(text + k, n - k);
			assert_true(length > 0);
		}
		memcpy(again, text, size);
		assert_memory_equal(svc_make_printable(again, size), text, size);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(letters_stay),
		cmocka_unit_test(what_could_deceive_does_not),
		cmocka_unit_test(broken_characters_are_a_question_mark_for_each_byte),
		cmocka_unit_test(any_bytes_become_a_text),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
