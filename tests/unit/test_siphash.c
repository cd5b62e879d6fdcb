/* SPDX-License-Identifier: Apache-2.0
 * SipHash-2-4, by the vectors of its authors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/siphash.h"

static void test_vectors(void **state)
{
	static const struct {
		size_t size;
		uint64_t value;
	} vectors[] = {{0, 0x726fdb47dd0e0e31}, {8, 0x93f5f5799a932462}, {15, 0xa129ca6149be45e5}};
	uint8_t key[SIPHASH_KEY_BYTES], data[16];
	(void)state;
	for (uint8_t i = 0; i < 16; i++)
		key[i] = data[i] = i;
	for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++)
		assert_int_equal(siphash(key, data, vectors[i].size), vectors[i].value);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
