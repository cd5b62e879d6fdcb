/* SPDX-License-Identifier: Apache-2.0
 * Everything that an NCCL communicator needs is allocated before its creation begins: without
 * memory, the request fails and leaves nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "account/account.h"
#include "base/config.h"
#include "gpu/gpu.h"
#include "gpu/nccl_comm.h"

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);

static unsigned failing; /* number of the allocation that fails; 0: none any more */

void *__wrap_calloc(size_t n, size_t size)
{
	if (failing && --failing == 0)
		return NULL;
	return __real_calloc(n, size);
}

static int result;
static char why[SVC_TEXT_BYTES];

static void made(struct communicator *m, int r, const char *text)
{
	(void)m;
	result = r;
	snprintf(why, sizeof(why), "%s", text);
}

static void make_without(unsigned allocation)
{
	const struct gpu_callbacks callbacks = {.made = made};
	const struct config config = {.user_nccl_comms_max = 1};
	struct gpus gpus = {.callbacks = &callbacks, .config = &config};
	struct account account = {0};
	struct nccl_comm *held = NULL;
	const struct nccl_comm_want want = {
		.held = &held, .account = &account, .nranks = 1, .nnodes = 1, .n = 1};
	result = NCCLSVC_OK;
	failing = allocation;
	assert_null(nccl_comm_make(&gpus, &want, 0, 0));
	assert_int_equal(failing, 0);
	assert_int_equal(result, NCCLSVC_NO_MEMORY);
	assert_non_null(strstr(why, "memory"));
	assert_false(gpus.slots[0]);
	assert_null(gpus.nccl_comms);
	assert_null(held);
}

static void without_memory_for_the_communicator(void **state)
{
	(void)state;
	make_without(1);
}

static void without_memory_for_its_creation(void **state)
{
	(void)state;
	make_without(2);
}

static void a_users_limit_is_named(void **state)
{
	const struct gpu_callbacks callbacks = {.made = made};
	const struct config config = {.user_nccl_comms_max = 0};
	struct gpus gpus = {.callbacks = &callbacks, .config = &config};
	struct account account = {.owner = "7 (job_1)"};
	const struct nccl_comm_want want = {.account = &account, .nranks = 1, .nnodes = 1, .n = 1};
	(void)state;
	assert_null(nccl_comm_make(&gpus, &want, 0, 0));
	assert_int_equal(result, NCCLSVC_LIMIT);
	assert_string_equal(
		why,
		"user 7 (job_1) has 0 NCCL communicators in use, and user_nccl_comms_max is 0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_memory_for_the_communicator),
		cmocka_unit_test(without_memory_for_its_creation),
		cmocka_unit_test(a_users_limit_is_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
