/* SPDX-License-Identifier: Apache-2.0
 * Which tenant's memory a CUDA IPC handle names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "memory/memory.h"

static struct handles all;
static struct account accounts[2];
/* Two tenants of one user. */
static const struct session alice = {.uid = 1000, .account = &accounts[0]},
			    bob = {.uid = 1000, .account = &accounts[1]};

static struct mapping of(uint8_t handle, int32_t device)
{
	struct mapping m = {.kind = SVC_REGION_IPC, .device = device};
	memset(m.handle, handle, sizeof(m.handle));
	return m;
}

static void a_handle_is_the_first_users(void **state)
{
	struct mapping first = of(1, 0), again = of(1, 0), his = of(1, 0), elsewhere = of(1, 1);
	(void)state;
	assert_int_equal(handle_bind(&all, &alice, &first), NCCLSVC_OK);
	assert_int_equal(handle_bind(&all, &alice, &again), NCCLSVC_OK);
	assert_int_equal(handle_bind(&all, &bob, &his), NCCLSVC_PERMISSION);
	assert_int_equal(handle_bind(&all, &bob, &elsewhere), NCCLSVC_PERMISSION);
	handle_unbind(&his); /* as its mapping is forgotten */
	handle_unbind(&first);
	assert_int_equal(handle_bind(&all, &bob, &his), NCCLSVC_PERMISSION);
	handle_unbind(&again);
	assert_int_equal(handle_bind(&all, &bob, &his), NCCLSVC_OK);
	handle_unbind(&his);
	assert_null(all.by_name);
}

static void another_name_for_the_same_memory_is_found(void **state)
{
	struct mapping hers = of(1, 0), his = of(2, 0), elsewhere = of(3, 1);
	(void)state;
	assert_int_equal(handle_bind(&all, &alice, &hers), NCCLSVC_OK);
	assert_int_equal(handle_mapped(&all, &alice, &hers, 0x7000), NCCLSVC_OK);
	assert_int_equal(handle_bind(&all, &bob, &his), NCCLSVC_OK);
	assert_int_equal(handle_mapped(&all, &bob, &his, 0x7000), NCCLSVC_PERMISSION);
	handle_unbind(&his);
	/* Each worker has its own addresses. */
	assert_int_equal(handle_bind(&all, &bob, &elsewhere), NCCLSVC_OK);
	assert_int_equal(handle_mapped(&all, &bob, &elsewhere, 0x7000), NCCLSVC_OK);
	handle_unbind(&elsewhere);
	handle_unbind(&hers);
	assert_null(all.by_name);
}

static void an_address_goes_with_the_worker(void **state)
{
	struct mapping hers = of(1, 0), his = of(2, 0);
	(void)state;
	assert_int_equal(handle_bind(&all, &alice, &hers), NCCLSVC_OK);
	assert_int_equal(handle_bind(&all, &bob, &his), NCCLSVC_OK);
	assert_int_equal(handle_mapped(&all, &alice, &hers, 0x7000), NCCLSVC_OK);
	handle_unmapped(&hers);
	assert_int_equal(handle_mapped(&all, &bob, &his, 0x7000), NCCLSVC_OK);
	assert_int_equal(handle_mapped(&all, &alice, &hers, 0x8000), NCCLSVC_OK);
	/* The handle stays hers. */
	struct mapping stolen = of(1, 0);
	assert_int_equal(handle_bind(&all, &bob, &stolen), NCCLSVC_PERMISSION);
	handle_unbind(&hers);
	handle_unbind(&his);
	assert_null(all.by_name);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_handle_is_the_first_users),
		cmocka_unit_test(another_name_for_the_same_memory_is_found),
		cmocka_unit_test(an_address_goes_with_the_worker),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
