/* SPDX-License-Identifier: Apache-2.0
 * What the members of a list operation must agree on besides the tag, in 64 bits: 4 for the kind of
 * operation, 60 for types and shapes. */
#include <stdio.h>

#include "base/error.h"
#include "tensors.h"

#define DIGEST_BITS 60
#define DIGEST_MASK ((UINT64_C(1) << DIGEST_BITS) - 1)

uint64_t agreement(enum agreed what, uint64_t digest)
{
	digest ^= digest >> DIGEST_BITS;
	return (uint64_t)what << DIGEST_BITS | (digest & DIGEST_MASK);
}

static const char *what_is(uint64_t word)
{
	static const char *const names[] = {
		[AGREED_STATIC] = "a list of static shapes",
		[AGREED_SHAPES] = "a list with its shapes ahead",
		[AGREED_AHEAD] = "the data of a list with its shapes ahead",
		[AGREED_ALL_REDUCE] = "an AllReduce of tensors",
		[AGREED_ALL_GATHER] = "an AllGather of tensors",
		[AGREED_REDUCE_SCATTER] = "a ReduceScatter of tensors",
		[AGREED_PLANNED] = "a planned list with its shapes ahead",
	};
	uint64_t what = word >> DIGEST_BITS;
	if (!word)
		return "an operation that is not a list of tensors";
	return what < sizeof(names) / sizeof(names[0]) && names[what]
		       ? names[what]
		       : "an operation that this library does not know";
}

ncclsvc_result agreement_explain(ncclsvc_session *s, ncclsvc_task task, ncclsvc_result result)
{
	ncclsvc_status st;
	if (result != NCCLSVC_MISMATCH || ncclsvc_task_status(s, task, &st) ||
	    st.field != NCCLSVC_FIELD_AGREEMENT)
		return result;
	if (st.value_a >> DIGEST_BITS != st.value_b >> DIGEST_BITS)
		return error_set_status(
			&st, "the modes differ: rank %d (pid %d) has %s, rank %d (pid %d) has %s",
			st.rank_a, st.pid_a, what_is(st.value_a), st.rank_b, st.pid_b,
			what_is(st.value_b));
	if (st.value_a >> DIGEST_BITS == AGREED_PLANNED)
		return error_set_status(&st,
					"ranks %d (pid %d) and %d (pid %d) are at different "
					"planned lists with their shapes ahead",
					st.rank_a, st.pid_a, st.rank_b, st.pid_b);
	return error_set_status(
		&st,
		"types or shapes of the tensors differ: ranks %d (pid %d) and %d (pid %d), each "
		"with %s",
		st.rank_a, st.pid_a, st.rank_b, st.pid_b, what_is(st.value_a));
}
