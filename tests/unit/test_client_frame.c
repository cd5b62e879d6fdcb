/* SPDX-License-Identifier: Apache-2.0
 * Messages of a daemon, even a malicious one: their sentences are safe to print. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/frame.h"

static void errors_are_printable(void **state)
{
	char text[SVC_TEXT_BYTES];
	struct svc_error e = {.text = "no\nroom \033]0;x\a \xe2\x80\xae"};
	(void)state;
	frame_error_text(&e, NCCLSVC_LIMIT, text);
	assert_string_equal(text, "no room ?]0;x? ???");
	memset(e.text, 'x', sizeof(e.text)); /* without a terminating NUL */
	frame_error_text(&e, NCCLSVC_LIMIT, text);
	assert_int_equal(strlen(text), SVC_TEXT_BYTES - 1);
}

static void byes_are_printable(void **state)
{
	char text[SVC_TEXT_BYTES];
	struct svc_event_bye bye = {.reason = NCCLSVC_LIMIT, .text = "\033[2Jbye\xe2\x80\x8b\r"};
	(void)state;
	assert_int_equal(frame_bye(&bye, text), NCCLSVC_LIMIT);
	assert_string_equal(text, "?[2Jbye??? ");
	bye.text[0] = '\0';
	frame_bye(&bye, text);
	assert_string_equal(text, ncclsvc_result_meaning(NCCLSVC_LIMIT));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(errors_are_printable),
		cmocka_unit_test(byes_are_printable),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
