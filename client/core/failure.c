/* SPDX-License-Identifier: Apache-2.0
 * Failed tasks, kept longer than their slots: until they are reported and pushed out by newer ones.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "comm_handle.h"
#include "failure.h"
#include "proto/names.h"
#include "session_handle.h"

static struct failure *failure_at(const struct tasks *t, uint64_t i)
{
	return &t->failures[i % FAILURES_KEPT];
}

static uint64_t first_kept(const struct tasks *t)
{
	return t->nfailures > FAILURES_KEPT ? t->nfailures - FAILURES_KEPT : 0;
}

void failure_keep(ncclsvc_session *s, const struct slot *slot, const char *text)
{
	struct tasks *t = &s->tasks;
	ncclsvc_comm *comm = comm_by_key(s, slot->comm_key);
	if (comm && comm->epoch == slot->epoch)
		comm->spoilt = true;
	/* Out of memory: the slot still has the failure while it lives. */
	if (!t->failures && !(t->failures = calloc(FAILURES_KEPT, sizeof(*t->failures))))
		return;
	struct failure *f = failure_at(t, t->nfailures++);
	*f = (struct failure){
		.handled = slot->quiet,
		.op = slot->op,
		.comm_key = slot->comm_key,
		.seq = slot->seq,
		.status = slot->status,
	};
	snprintf(f->comm, sizeof(f->comm), "%s", comm_label(s, slot->comm_key));
	if (slot->plan_slot)
		s->plan_callbacks->label(s, slot, f->label);
	snprintf(f->text, sizeof(f->text), "%s", text);
}

struct failure *failure_find(const struct tasks *t, uint64_t task)
{
	for (uint64_t i = t->nfailures; i-- > first_kept(t);)
		if (failure_at(t, i)->status.number == task)
			return failure_at(t, i);
	return NULL;
}

bool failure_reported(const ncclsvc_session *s, uint32_t comm_key, uint32_t epoch,
		      ncclsvc_result result)
{
	const struct tasks *t = &s->tasks;
	for (uint64_t i = first_kept(t); i < t->nfailures; i++) {
		const struct failure *f = failure_at(t, i);
		if (f->reported && f->comm_key == comm_key && f->status.epoch == epoch &&
		    f->status.result == (int)result)
			return true;
	}
	return false;
}

static ncclsvc_result tell(ncclsvc_session *s, struct failure *f)
{
	char sentence[SVC_TEXT_BYTES], label[SVC_QUOTED_BYTES];
	ncclsvc_comm *comm = comm_by_key(s, f->comm_key);
	f->handled = f->reported = true;
	if (comm && comm->epoch == f->status.epoch && (int)comm->broken == f->status.result)
		comm->end_reported = true;
	svc_status_reason(&f->status, sentence, sizeof(sentence));
	return error_set_status(&f->status, "%s%s #%llu on communicator %s: %s%s%s",
				svc_op_name(f->op), svc_label_quote(f->label, label),
				(unsigned long long)f->seq, f->comm, sentence,
				f->text[0] ? ": " : "", f->text);
}

void task_status_of(ncclsvc_session *s, uint64_t task, ncclsvc_status *status)
{
	const struct slot *slot = task_slot(&s->tasks, task);
	if (slot->number == task) {
		*status = slot->status;
		return;
	}
	const struct failure *f = failure_find(&s->tasks, task);
	*status = f ? f->status : (ncclsvc_status){.number = task, .rank_a = -1, .rank_b = -1};
}

ncclsvc_result task_report(ncclsvc_session *s, uint64_t task)
{
	ncclsvc_status status;
	char sentence[SVC_TEXT_BYTES];
	if (task_went_well(&s->tasks, task))
		return NCCLSVC_OK;
	task_status_of(s, task, &status);
	if (status.result == NCCLSVC_OK)
		return NCCLSVC_OK;
	struct failure *f = failure_find(&s->tasks, task);
	if (f)
		return tell(s, f);
	return error_set_status(&status, "task %llu: %s", (unsigned long long)task,
				svc_status_reason(&status, sentence, sizeof(sentence)));
}

ncclsvc_result failures_report(ncclsvc_session *s, uint32_t comm_key, uint64_t last)
{
	const struct tasks *t = &s->tasks;
	struct failure *first = NULL;
	for (uint64_t i = first_kept(t); i < t->nfailures; i++) {
		struct failure *f = failure_at(t, i);
		if (f->handled || f->status.number > last || (comm_key && f->comm_key != comm_key))
			continue;
		if (!first || f->status.number < first->status.number)
			first = f;
		f->handled = !comm_key;
	}
	return first ? tell(s, first) : NCCLSVC_OK;
}

void failures_forgive(ncclsvc_session *s, uint32_t comm_key)
{
	const struct tasks *t = &s->tasks;
	for (uint64_t i = first_kept(t); i < t->nfailures; i++)
		if (failure_at(t, i)->comm_key == comm_key)
			failure_at(t, i)->handled = true;
}
