/* SPDX-License-Identifier: Apache-2.0
 * What all views say of the nodes that were asked. */
#include <stdlib.h>

#include "base/ids.h"
#include "base/units.h"
#include "view.h"

uint32_t view_task_node(const struct snapshot *s, const ncclsvc_task_info *x)
{
	const uint32_t node = ids_node(x->task);
	return node ? node - 1 : snapshot_self(s);
}

uint32_t view_member_node(const struct snapshot *s, const ncclsvc_member_info *m)
{
	return m->elsewhere ? m->elsewhere - 1 : snapshot_self(s);
}

void view_json_comm(const struct snapshot *s, struct json *j, uint64_t comm)
{
	put_u64(j, "comm", ids_number(comm));
	put_u64_or_null(j, "comm_node", s->answers && ids_node(comm), ids_node(comm) - 1);
}

void view_json_node(const struct snapshot *s, struct json *j, uint32_t node)
{
	put_u64_or_null(j, "node", s->answers, node);
}

void view_json_answers(const struct view *v, struct json *j)
{
	const struct snapshot *s = v->s;
	if (!s->answers) {
		put_null(j, "answers");
		return;
	}
	put_array(j, "answers");
	for (size_t i = 0; i < s->nnodes; i++) {
		const struct snapshot_answer *a = &s->answers[i];
		const ncclsvc_node_info *n = &s->nodes[i];
		if (!a->asked)
			continue;
		put_object(j, NULL);
		put_u64(j, "node", n->node);
		put_string(j, "host", n->host, sizeof(n->host));
		put_i64(j, "pid", n->pid);
		put_string(j, "result", ncclsvc_result_name(a->result), SIZE_MAX);
		put_seconds(j, "age_s", a->age_ns);
		if (n->state == NCCLSVC_NODE_ALIVE)
			put_seconds(j, "heard_s", n->heard_ns);
		else
			put_null(j, "heard_s");
		put_object_end(j);
	}
	put_array_end(j);
}

/* The sentence about what the view lacks, or shows instead, if the node does not answer. */
static const char *gap(enum ctl_command command)
{
	switch (command) {
	case CTL_FAILURES:
		return "Failures that no other node recorded are missing.";
	case CTL_LATENESS:
		return "Its ranks are missing.";
	default:
		return "Its ranks are shown as the other nodes know them.";
	}
}

static void tell(const struct view *v, const ncclsvc_node_info *n, const struct snapshot_answer *a)
{
	struct text t = TEXT_INIT(-1);
	text_printf(&t, "Node %u (", n->node);
	text_name(&t, n->host, sizeof(n->host));
	text_printf(&t, ", ncclsvcd's pid %d) ", n->pid);
	if (n->state == NCCLSVC_NODE_LOST || n->state == NCCLSVC_NODE_LEFT) {
		text_add(&t, "has gone ");
		units_age(&t, n->gone_ns);
		text_add(&t, " ago.");
	} else if (a->result == NCCLSVC_TIMEOUT) {
		text_add(&t, "does not answer; it was last heard of ");
		units_age(&t, n->heard_ns);
		text_printf(&t, " ago. %s", gap(v->args->command));
	} else {
		text_printf(&t, "cannot be asked: %s. %s", ncclsvc_result_name(a->result),
			    gap(v->args->command));
	}
	char *s = text_steal(&t);
	view_paragraph(v, 0, s);
	free(s);
}

static bool names(const struct why_report *report, uint32_t node)
{
	for (size_t i = 0; report && i < report->n; i++)
		for (size_t k = 0; k < report->findings[i].nnodes; k++)
			if (report->findings[i].cause == WHY_SILENT &&
			    report->findings[i].nodes[k] == node)
				return true;
	return false;
}

void view_silence(const struct view *v, const struct why_report *report)
{
	const struct snapshot *s = v->s;
	for (size_t i = 0; s->answers && i < s->nnodes; i++)
		if (s->answers[i].asked && s->answers[i].result != NCCLSVC_OK &&
		    !names(report, s->nodes[i].node))
			tell(v, &s->nodes[i], &s->answers[i]);
}
