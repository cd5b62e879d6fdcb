/* SPDX-License-Identifier: Apache-2.0
 * The statuses that clients get for their tasks. */
#include "status.h"

#include "proto/task.h"

const ncclsvc_status status_ok = {.rank_a = -1, .rank_b = -1};

ncclsvc_status status_of(int result)
{
	return (ncclsvc_status){.result = result, .rank_a = -1, .rank_b = -1};
}

void status_name_ranks(const struct comm *c, ncclsvc_status *st, int32_t a, int32_t b)
{
	st->rank_a = a;
	st->pid_a = a >= 0 ? c->members[a].pid : 0;
	st->rank_b = b;
	st->pid_b = b >= 0 ? c->members[b].pid : 0;
}

ncclsvc_status status_gone(const struct comm *c, int32_t rank)
{
	ncclsvc_status st = status_of(NCCLSVC_PEER_GONE);
	status_name_ranks(c, &st, rank, -1);
	st.value_b = c->members[rank].address;
	st.ending = NCCLSVC_ENDED_LEFT; /* after any other ending, the epoch does not go on */
	return st;
}

ncclsvc_status status_refused(const struct task *t)
{
	const uint64_t word = t->record.agreement;
	ncclsvc_status st = status_of((ncclsvc_result)svc_refusal_result(word));
	st.field = NCCLSVC_FIELD_REFUSAL;
	st.value_a = svc_refusal_reason(word);
	st.value_b = word;
	status_name_ranks(t->comm, &st, t->rank, -1);
	return st;
}
