/* SPDX-License-Identifier: Apache-2.0
 * Compares proto/abi's CUDA and NCCL headers with NVIDIA's own, if those are installed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "abi_list.h"

#define SKIPPED 77

static void values_agree(const struct abi_value *ours, size_t n, const struct abi_value *real,
			 size_t n_real)
{
	if (n_real == 0) {
		print_message("skipped: the headers installed here are of another release\n");
		skip();
	}
	unsigned wrong = 0;
	assert_int_equal(n, n_real);
	for (size_t i = 0; i < n; i++) {
		assert_string_equal(ours[i].name, real[i].name);
		if (ours[i].value == real[i].value)
			continue;
		print_error("%s: %lld here, %lld there\n", ours[i].name, ours[i].value,
			    real[i].value);
		wrong++;
	}
	assert_int_equal(wrong, 0);
}

static void cuda_values(void **state)
{
	(void)state;
	values_agree(ours_cuda, n_ours_cuda, real_cuda, n_real_cuda);
}

static void nccl_values(void **state)
{
	(void)state;
	values_agree(ours_nccl, n_ours_nccl, real_nccl, n_real_nccl);
}

static void nccl_new_values(void **state)
{
	(void)state;
	values_agree(ours_nccl_new, n_ours_nccl_new, real_nccl_new, n_real_nccl_new);
}

/* If a function's newer version adds nothing that is used here, its older name is looked up, so
 * that older drivers work. */
static bool older_will_do(const char *function)
{
	static const char *const names[] = {"cuEventElapsedTime", "cuGraphAddDependencies",
					    "cuGraphRemoveDependencies",
					    "cuStreamUpdateCaptureDependencies"};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(function, names[i]) == 0)
			return true;
	}
	return false;
}

static void cuda_names(void **state)
{
	(void)state;
	if (n_real_symbols == 0)
		skip();
	unsigned wrong = 0;
	assert_int_equal(n_ours_symbols, n_real_symbols);
	for (size_t i = 0; i < n_ours_symbols; i++) {
		const struct abi_symbol *ours = &ours_symbols[i], *real = &real_symbols[i];
		if (strcmp(ours->exported, real->exported) == 0 || older_will_do(ours->function))
			continue;
		print_error("%s: %s here, %s there\n", ours->function, ours->exported,
			    real->exported);
		wrong++;
	}
	assert_int_equal(wrong, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cuda_values),
		cmocka_unit_test(cuda_names),
		cmocka_unit_test(nccl_values),
		cmocka_unit_test(nccl_new_values),
	};
	if (n_real_cuda == 0 && n_real_nccl == 0) {
		puts("neither cuda.h nor nccl.h of NCCL 2.28 is installed");
		return SKIPPED;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
