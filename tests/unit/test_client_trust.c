/* SPDX-License-Identifier: Apache-2.0
 * Which users the library trusts at the other end of its socket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/trust.h"

#define NO_USER	 ((uid_t)-1)
#define ME	 ((uid_t)1000)
#define SERVICE	 ((uid_t)990)
#define STRANGER ((uid_t)1001)

static void own_user_root_and_the_service_are_trusted(void **state)
{
	(void)state;
	assert_true(trust_allows(ME, ME, SERVICE));
	assert_true(trust_allows(0, ME, SERVICE));
	assert_true(trust_allows(SERVICE, ME, SERVICE));
	assert_true(trust_allows(0, 0, NO_USER));
	assert_true(trust_allows(ME, ME, NO_USER));
}

static void nobody_else_is(void **state)
{
	(void)state;
	assert_false(trust_allows(STRANGER, ME, SERVICE));
	assert_false(trust_allows(STRANGER, ME, NO_USER));
	assert_false(trust_allows(STRANGER, 0, SERVICE)); /* root does not trust every user */
	assert_false(trust_allows(NO_USER, ME, NO_USER));
	assert_false(trust_allows(NO_USER, NO_USER, NO_USER));
}

static void an_unmapped_user_is_trusted_only_by_name(void **state)
{
	(void)state;
	assert_false(trust_allows(TRUST_UNMAPPED_UID, ME, SERVICE));
	assert_false(trust_allows(TRUST_UNMAPPED_UID, TRUST_UNMAPPED_UID, SERVICE));
	assert_true(trust_allows(TRUST_UNMAPPED_UID, ME, TRUST_UNMAPPED_UID));
}

static void the_service_is_a_name_or_a_number(void **state)
{
	(void)state;
	assert_int_equal(trust_service("root"), 0);
	assert_int_equal(trust_service("0"), 0);
	assert_int_equal(trust_service("1234"), 1234);
	assert_int_equal(trust_service("4294967294"), 4294967294u);
	static const char *const none[] = {
		"4294967295", /* (uid_t)-1 */
		"4294967296", /* would be root's if truncated to 32 bits */
		"99999999999999999999999999",
		"-1",
		"0x0",
		" 0",
		"0 ",
		"",
		"no such user",
	};
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		assert_int_equal(trust_service(none[i]), NO_USER);
}

static void a_socket_of_this_process_is_trusted(void **state)
{
	int pair[2];
	(void)state;
	if (geteuid() == TRUST_UNMAPPED_UID)
		skip();
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	assert_int_equal(trust_check(pair[0], "/socket"), NCCLSVC_OK);
	close(pair[0]);
	close(pair[1]);
}

static void a_bad_socket_is_an_error(void **state)
{
	(void)state;
	assert_int_equal(trust_check(-1, "/socket"), NCCLSVC_SYSTEM);
	assert_non_null(strstr(ncclsvc_last_error(), "/socket"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(own_user_root_and_the_service_are_trusted),
		cmocka_unit_test(nobody_else_is),
		cmocka_unit_test(an_unmapped_user_is_trusted_only_by_name),
		cmocka_unit_test(the_service_is_a_name_or_a_number),
		cmocka_unit_test(a_socket_of_this_process_is_trusted),
		cmocka_unit_test(a_bad_socket_is_an_error),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
