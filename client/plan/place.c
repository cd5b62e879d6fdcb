/* SPDX-License-Identifier: Apache-2.0
 * The places of one iteration: free, taken, or reserved by a list of tensors. */
#include <stdio.h>

#include "base/error.h"
#include "plan.h"

#define TASKS_SHOWN 4 /* of a group's tasks, in a sentence */

/* The first index in `alike` that is not before this kind. */
static uint32_t lower_bound(const ncclsvc_plan *p, const struct svc_plan_task *kind)
{
	uint32_t low = 0, high = p->ntasks;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (plan_compare_kinds(&p->tasks[p->alike[middle]], kind) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool is_kind(const ncclsvc_plan *p, uint32_t i, const struct svc_plan_task *kind)
{
	return i < p->ntasks && !plan_compare_kinds(&p->tasks[p->alike[i]], kind);
}

/* Writes "2 tasks: Send to rank 1 (submitted), Recv from rank 0". */
static void group_text(const ncclsvc_plan *p, uint32_t group, char *text, size_t size)
{
	char kind[PLACE_TEXT];
	const uint32_t n = p->first[group + 1] - p->first[group];
	size_t used = (size_t)snprintf(text, size, "%u task%s", n, n == 1 ? "" : "s");
	for (uint32_t i = 0; i < n && i < TASKS_SHOWN && used < size; i++) {
		const uint32_t place = p->first[group] + i;
		used += (size_t)snprintf(text + used, size - used, "%s%s%s", i ? ", " : ": ",
					 kind_text(&p->tasks[place], kind),
					 p->numbers[place] == PLACE_FREE ? "" : " (submitted)");
	}
	if (n > TASKS_SHOWN && used < size)
		snprintf(text + used, size - used, " and %u more", n - TASKS_SHOWN);
}

/* Takes the group's first free place of the kind. Locked. */
static ncclsvc_result take_in_group(ncclsvc_plan *p, const struct svc_plan_task *kind,
				    uint32_t group, uint32_t *place)
{
	char text[TASKS_SHOWN * PLACE_TEXT], kind_is[PLACE_TEXT];
	if (group >= p->ngroups)
		return error_argument("there is no group %u: the plan has %u, counting from 0",
				      group, p->ngroups);
	for (uint32_t i = p->first[group]; i < p->first[group + 1]; i++)
		if (!plan_compare_kinds(&p->tasks[i], kind) && p->numbers[i] == PLACE_FREE) {
			*place = i;
			p->numbers[i] = PLACE_TAKEN;
			return NCCLSVC_OK;
		}
	group_text(p, group, text, sizeof(text));
	return error_argument("%s has no free slot in group %u of this iteration, which has %s",
			      kind_text(kind, kind_is), group, text);
}

ncclsvc_result plan_take_place(ncclsvc_plan *p, const struct svc_plan_task *kind, uint32_t group,
			       uint32_t *place)
{
	char text[PLACE_TEXT];
	uint32_t begin = lower_bound(p, kind);
	if (!is_kind(p, begin, kind))
		return error_argument("%s is not in the plan", kind_text(kind, text));
	if (group != NCCLSVC_PLAN_FIRST)
		return take_in_group(p, kind, group, place);
	uint32_t i = begin + p->full[begin];
	while (is_kind(p, i, kind) && p->numbers[p->alike[i]] != PLACE_FREE)
		i++;
	p->full[begin] = i - begin;
	if (!is_kind(p, i, kind))
		return error_argument("%s: all %u planned tasks have been submitted in this "
				      "iteration: call ncclsvc_plan_reset to begin the next",
				      kind_text(kind, text), i - begin);
	*place = p->alike[i];
	p->numbers[*place] = PLACE_TAKEN;
	return NCCLSVC_OK;
}

void plan_give_back(ncclsvc_plan *p, uint32_t place)
{
	uint32_t begin = lower_bound(p, &p->tasks[place]), i = begin;
	while (p->alike[i] != place)
		i++;
	if (p->full[begin] > i - begin)
		p->full[begin] = i - begin;
	p->numbers[place] = PLACE_FREE;
}

void plan_claim_unlink(struct plan_claim *c)
{
	struct plan_claim **at = &c->plan->claims;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	c->plan = NULL;
}

void plan_claims_forget(ncclsvc_plan *p)
{
	while (p->claims)
		plan_claim_unlink(p->claims);
}

bool plan_has_claims(const ncclsvc_plan *p)
{
	const struct plan_claim *c = p->claims;
	while (c && c->iteration != p->base)
		c = c->next;
	return c;
}

ncclsvc_result plan_claims_precede(const ncclsvc_plan *p, uint32_t place, const void *stream)
{
	char text[PLACE_TEXT];
	for (const struct plan_claim *c = p->claims; c; c = c->next)
		if (c->iteration == p->base && c->stream == stream &&
		    p->tasks[c->place].group < p->tasks[place].group)
			return error_set(NCCLSVC_BUSY,
					 "the %s still waits for its shapes and will run on this "
					 "stream, which follows the order of the plan's groups: "
					 "wait for its request first",
					 place_text(p, c->place, text));
	return NCCLSVC_OK;
}
