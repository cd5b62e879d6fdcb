/* SPDX-License-Identifier: Apache-2.0
 * The slots of one iteration: free, taken, or reserved by a list of tensors. */
#include <stdio.h>

#include "base/error.h"
#include "member_plan.h"

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
	char kind[SLOT_TEXT];
	const uint32_t n = p->first[group + 1] - p->first[group];
	size_t used = (size_t)snprintf(text, size, "%u task%s", n, n == 1 ? "" : "s");
	for (uint32_t i = 0; i < n && i < TASKS_SHOWN && used < size; i++) {
		const uint32_t slot = p->first[group] + i;
		used += (size_t)snprintf(text + used, size - used, "%s%s%s", i ? ", " : ": ",
					 kind_text(&p->tasks[slot], kind),
					 p->numbers[slot] == PLAN_SLOT_FREE ? "" : " (submitted)");
	}
	if (n > TASKS_SHOWN && used < size)
		snprintf(text + used, size - used, " and %u more", n - TASKS_SHOWN);
}

/* Takes the group's first free slot of the kind. Locked. */
static ncclsvc_result take_in_group(ncclsvc_plan *p, const struct svc_plan_task *kind,
				    uint32_t group, uint32_t *slot)
{
	char text[TASKS_SHOWN * SLOT_TEXT], kind_is[SLOT_TEXT];
	if (group >= p->ngroups)
		return error_argument("there is no group %u: the plan has %u, counting from 0",
				      group, p->ngroups);
	for (uint32_t i = p->first[group]; i < p->first[group + 1]; i++)
		if (!plan_compare_kinds(&p->tasks[i], kind) && p->numbers[i] == PLAN_SLOT_FREE) {
			*slot = i;
			p->numbers[i] = PLAN_SLOT_TAKEN;
			return NCCLSVC_OK;
		}
	group_text(p, group, text, sizeof(text));
	return error_argument("%s has no free slot in group %u of this iteration, which has %s",
			      kind_text(kind, kind_is), group, text);
}

ncclsvc_result plan_slot_take(ncclsvc_plan *p, const struct svc_plan_task *kind, uint32_t group,
			      uint32_t *slot)
{
	char text[SLOT_TEXT];
	uint32_t begin = lower_bound(p, kind);
	if (!is_kind(p, begin, kind))
		return error_argument("%s is not in the plan", kind_text(kind, text));
	if (group != NCCLSVC_PLAN_FIRST)
		return take_in_group(p, kind, group, slot);
	uint32_t i = begin + p->full[begin];
	while (is_kind(p, i, kind) && p->numbers[p->alike[i]] != PLAN_SLOT_FREE)
		i++;
	p->full[begin] = i - begin;
	if (!is_kind(p, i, kind))
		return error_argument("%s: all %u planned tasks have been submitted in this "
				      "iteration: call ncclsvc_plan_reset to begin the next",
				      kind_text(kind, text), i - begin);
	*slot = p->alike[i];
	p->numbers[*slot] = PLAN_SLOT_TAKEN;
	return NCCLSVC_OK;
}

void plan_slot_give_back(ncclsvc_plan *p, uint32_t slot)
{
	uint32_t begin = lower_bound(p, &p->tasks[slot]), i = begin;
	while (p->alike[i] != slot)
		i++;
	if (p->full[begin] > i - begin)
		p->full[begin] = i - begin;
	p->numbers[slot] = PLAN_SLOT_FREE;
}

void list_slot_unlink(struct list_slot *c)
{
	struct list_slot **at = &c->plan->list_slots;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	c->plan = NULL;
}

void list_slots_forget(ncclsvc_plan *p)
{
	while (p->list_slots)
		list_slot_unlink(p->list_slots);
}

bool list_slots_held(const ncclsvc_plan *p)
{
	const struct list_slot *c = p->list_slots;
	while (c && c->iteration != p->base)
		c = c->next;
	return c;
}

ncclsvc_result list_slots_precede(const ncclsvc_plan *p, uint32_t slot, const void *stream)
{
	char text[SLOT_TEXT];
	for (const struct list_slot *c = p->list_slots; c; c = c->next)
		if (c->iteration == p->base && c->stream == stream &&
		    p->tasks[c->index].group < p->tasks[slot].group)
			return error_set(NCCLSVC_BUSY,
					 "the %s still waits for its shapes and will run on this "
					 "stream, which follows the order of the plan's groups: "
					 "wait for its request first",
					 slot_text(p, c->index, text));
	return NCCLSVC_OK;
}
