/* SPDX-License-Identifier: Apache-2.0
 * Plans of single members: creation, validation and freeing. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "node_operation.h"
#include "plan.h"
#include "proto/names.h"

struct plan *plan_create(uint32_t nranks)
{
	struct plan *p = calloc(1, sizeof(*p) + nranks * sizeof(p->members[0]));
	if (p)
		p->nranks = nranks;
	return p;
}

void plan_unset(struct plan *p, uint32_t rank)
{
	struct plan_member *m = &p->members[rank];
	free(m->tasks);
	free(m->first);
	free(m->slots);
	free(m->missing);
	free((void *)m->stamps);
	*m = (struct plan_member){0};
}

void plan_free(struct plan *p)
{
	for (uint32_t k = 0; p && k < p->nranks; k++)
		plan_unset(p, k);
	free(p);
}

/* ---- One member's plan ---- */

__attribute__((format(printf, 3, 4))) static int refuse(char *text, int result, const char *format,
							...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(text, PLAN_TEXT, format, args);
	va_end(args);
	return result;
}

static int check_task(const struct plan *p, uint32_t rank, const struct plan_member *m, uint32_t i,
		      char *text)
{
	const struct svc_plan_task *t = &m->tasks[i];
	const char *wrong = NULL;
	if (t->group >= m->ngroups)
		wrong = "belongs to a group that does not exist";
	else if (i && t->group < t[-1].group)
		wrong = "follows a task of a later group";
	else if (!svc_op_is_p2p(t->op))
		wrong = "is neither Send nor Recv";
	else if ((uint32_t)t->peer >= p->nranks)
		wrong = "has a peer that is not a rank of the communicator";
	else if (t->reserved2)
		wrong = "has a reserved field that is not zero";
	else if (t->done > m->continues)
		wrong = "has run already, although the plan is new";
	else if (t->agreement >= SVC_AGREEMENT_REFUSES)
		wrong = "is a list that refuses";
	else if (t->agreement && (uint32_t)t->peer == rank)
		wrong = "is a list to or from its own rank";
	else if (t->tag && !t->agreement)
		wrong = "has a tag, but is not a list of tensors";
	else if (t->count == SVC_PLAN_ANY ? t->type != 0 : !svc_type_size(t->type))
		wrong = "has an unknown element type";
	else if (!svc_label_ok(t->label, sizeof(t->label)))
		wrong = "has a label that is not terminated, or not printable ASCII";
	return wrong ? refuse(text, NCCLSVC_INVALID_ARGUMENT, "rank %u's plan: task %u %s", rank, i,
			      wrong)
		     : 0;
}

/* calloc of zero bytes may return NULL. */
static void *array(size_t n, size_t size)
{
	return calloc(n ? n : 1, size);
}

int plan_set(struct plan *p, uint32_t rank, uint32_t ngroups, uint32_t ntasks,
	     struct svc_plan_task *tasks, bool continues, char text[PLAN_TEXT])
{
	struct plan_member *m = &p->members[rank];
	m->continues = continues;
	m->ngroups = ngroups;
	m->ntasks = ntasks;
	m->tasks = tasks;
	for (uint32_t i = 0; i < ntasks; i++) {
		int error = check_task(p, rank, m, i, text);
		if (error)
			return error;
	}
	m->first = array((size_t)ngroups + 1, sizeof(*m->first));
	m->slots = array(ntasks, sizeof(*m->slots));
	m->missing = array(ngroups, sizeof(*m->missing));
	m->stamps = array(ntasks, sizeof(*m->stamps));
	if (!m->first || !m->slots || !m->missing || !m->stamps)
		return refuse(text, NCCLSVC_NO_MEMORY, "no memory for a plan of %u tasks", ntasks);
	for (uint32_t i = 0; i < ntasks; i++)
		m->missing[tasks[i].group]++;
	for (uint32_t g = 0; g < ngroups; g++) {
		if (m->missing[g] > SVC_GROUP_TASKS)
			return refuse(text, NCCLSVC_LIMIT,
				      "rank %u's plan: group %u has %u tasks; the limit is %d",
				      rank, g, m->missing[g], SVC_GROUP_TASKS);
		m->first[g + 1] = m->first[g] + m->missing[g];
	}
	m->iteration = 1;
	return 0;
}
