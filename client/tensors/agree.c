/* SPDX-License-Identifier: Apache-2.0
 * What the members of a list operation must have in common beside the tag, in 64 bits: 4 say what
 * it is, 60 stand for types and shapes. */
#include <stdio.h>

#include "base/error.h"
#include "proto/names.h"
#include "request.h"
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
		return "no list of tensors";
	return what < sizeof(names) / sizeof(names[0]) && names[what] ? names[what]
								      : "what this library does "
									"not know";
}

/* The sentence of a member that has refused. */
static ncclsvc_result explain_refusal(struct ncclsvc_request *r, const ncclsvc_status *st)
{
	char text[SVC_DESCRIPTION_BYTES], why[LOST_TEXT];
	struct error told;
	error_keep(&told);
	refusal_read(r->lists, st, text);
	if (!text[0])
		return error_again(&told);
	return error_set_status(st, "%s; it says: %s", svc_status_reason(st, why, sizeof(why)),
				text);
}

static bool differ_in_tensors(uint64_t a, uint64_t b)
{
	const uint64_t what = a >> DIGEST_BITS;
	return what == b >> DIGEST_BITS && what != AGREED_PLANNED && what != AGREED_AHEAD;
}

static ncclsvc_result explain_tensors(struct ncclsvc_request *r, const ncclsvc_status *st)
{
	char text[LOST_TEXT];
	const uint64_t own = agreement((enum agreed)(st->value_a >> DIGEST_BITS),
				       digest_tensors(r->list.tensors, r->list.n));
	if (lists_compare(r->lists, &r->list, own, st, text, sizeof(text)))
		return error_set_status(st, "%s", text);
	return error_set_status(
		st,
		"types or shapes of the tensors differ: ranks %d (pid %d) and %d (pid %d), each "
		"with %s",
		st->rank_a, st->pid_a, st->rank_b, st->pid_b, what_is(st->value_a));
}

ncclsvc_result agreement_explain(struct ncclsvc_request *r, ncclsvc_task task,
				 ncclsvc_result result)
{
	ncclsvc_status st;
	if (ncclsvc_task_status(r->lists->session, task, &st))
		return result;
	if (st.field == NCCLSVC_FIELD_REFUSAL && st.result)
		return explain_refusal(r, &st);
	if (result != NCCLSVC_MISMATCH || st.field != NCCLSVC_FIELD_AGREEMENT)
		return result;
	if (differ_in_tensors(st.value_a, st.value_b))
		return explain_tensors(r, &st);
	if (st.value_a >> DIGEST_BITS != st.value_b >> DIGEST_BITS)
		return error_set_status(
			&st, "mode differs: rank %d (pid %d) has %s, rank %d (pid %d) has %s",
			st.rank_a, st.pid_a, what_is(st.value_a), st.rank_b, st.pid_b,
			what_is(st.value_b));
	return error_set_status(&st, "ranks %d (pid %d) and %d (pid %d) are at different %s",
				st.rank_a, st.pid_a, st.rank_b, st.pid_b,
				st.value_a >> DIGEST_BITS == AGREED_PLANNED
					? "planned lists with their shapes ahead"
					: "lists with their shapes ahead");
}
