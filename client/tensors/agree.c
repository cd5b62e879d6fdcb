/* SPDX-License-Identifier: Apache-2.0
 * What the members of a list operation must agree on besides the tag, in 64 bits: 4 for the kind of
 * operation, 60 for types and shapes. */
#include "base/error.h"
#include "list_request.h"
#include "tensors.h"

#define DIGEST_MASK ((UINT64_C(1) << AGREED_DIGEST_BITS) - 1)

uint64_t agreement(enum agreed what, uint64_t digest)
{
	digest ^= digest >> AGREED_DIGEST_BITS;
	return (uint64_t)what << AGREED_DIGEST_BITS | (digest & DIGEST_MASK);
}

/* The sentence of a member that has refused. */
static ncclsvc_result explain_refusal(struct ncclsvc_request *r, const ncclsvc_status *st)
{
	char text[SVC_DESCRIPTION_BYTES];
	struct error kept;
	error_keep(&kept);
	refusal_read(r->lists, st, text);
	if (!text[0])
		return error_again(&kept);
	return error_set_status(st, "%s; it says: %s", kept.text, text);
}

static ncclsvc_result explain_tensors(struct ncclsvc_request *r, const ncclsvc_status *st)
{
	char text[LOST_TEXT];
	struct error kept;
	const uint64_t own =
		agreement(agreed_of(st->value_a), digest_tensors(r->list.tensors, r->list.n));
	error_keep(&kept);
	return lists_compare(r->lists, &r->list, own, st, text, sizeof(text))
		       ? error_set_status(st, "%s", text)
		       : error_again(&kept);
}

ncclsvc_result agreement_explain(struct ncclsvc_request *r, ncclsvc_task task,
				 ncclsvc_result result)
{
	ncclsvc_status st;
	if (ncclsvc_task_status(r->lists->session, task, &st) || !st.result)
		return result;
	if (st.field == NCCLSVC_FIELD_REFUSAL)
		return explain_refusal(r, &st);
	if (st.field == NCCLSVC_FIELD_AGREEMENT && agreed_of(st.value_a) == agreed_of(st.value_b))
		return explain_tensors(r, &st);
	return result;
}
