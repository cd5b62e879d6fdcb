/* SPDX-License-Identifier: Apache-2.0
 * What the members of a list operation must have in common, in 64 bits: 4 say what it is, 20 stand
 * for the tag, 40 for types and shapes. */
#include <stdio.h>

#include "base/error.h"
#include "tensors.h"

#define TAG_BITS    20
#define DIGEST_BITS 40
#define MASK(bits)  ((UINT64_C(1) << (bits)) - 1)

uint64_t agreement(enum agreed what, int64_t tag, uint64_t digest)
{
	uint64_t t = (uint64_t)tag;
	t ^= t >> TAG_BITS ^ t >> 2 * TAG_BITS ^ t >> 3 * TAG_BITS;
	digest ^= digest >> DIGEST_BITS;
	return (uint64_t)what << (TAG_BITS + DIGEST_BITS) | (t & MASK(TAG_BITS)) << DIGEST_BITS |
	       (digest & MASK(DIGEST_BITS));
}

static const char *what_is(uint64_t word)
{
	static const char *const names[] = {
		[AGREED_STATIC] = "a list of static shapes",
		[AGREED_SHAPES] = "a list with its shapes ahead",
		[AGREED_AHEAD] = "a list with its shapes ahead",
		[AGREED_ALL_REDUCE] = "an AllReduce of tensors",
		[AGREED_ALL_GATHER] = "an AllGather of tensors",
		[AGREED_REDUCE_SCATTER] = "a ReduceScatter of tensors",
	};
	uint64_t what = word >> (TAG_BITS + DIGEST_BITS);
	if (!word)
		return "no list of tensors";
	return what < sizeof(names) / sizeof(names[0]) && names[what] ? names[what]
								      : "what this library does "
									"not know";
}

ncclsvc_result agreement_explain(ncclsvc_session *s, ncclsvc_task task, ncclsvc_result result)
{
	ncclsvc_status st;
	if (result != NCCLSVC_MISMATCH || ncclsvc_task_status(s, task, &st) ||
	    st.field != NCCLSVC_FIELD_AGREEMENT)
		return result;
	const uint64_t differ = st.value_a ^ st.value_b;
	if (differ >> (TAG_BITS + DIGEST_BITS))
		return error_set(
			result,
			"MISMATCH: mode differs: rank %d (pid %d) has %s, rank %d (pid %d) "
			"has %s",
			st.rank_a, st.pid_a, what_is(st.value_a), st.rank_b, st.pid_b,
			what_is(st.value_b));
	return error_set(result, "MISMATCH: %s: ranks %d (pid %d) and %d (pid %d), each with %s",
			 differ >> DIGEST_BITS ? "tag differs"
					       : "types or shapes of the tensors differ",
			 st.rank_a, st.pid_a, st.rank_b, st.pid_b, what_is(st.value_a));
}
