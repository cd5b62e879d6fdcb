/* SPDX-License-Identifier: Apache-2.0
 * Ranks of other nodes. What they do, only their own node knows: where to ask, and whether that
 * node is heard of at all. */
#include "base/units.h"
#include "internal.h"

#include <stdlib.h>

static bool is_silent(const struct why *w, uint32_t node)
{
	const ncclsvc_node_info *n = snapshot_node(w->s, node);
	return n && node_is_silent(n);
}

enum why_cause why_asks(const struct why *w, const ncclsvc_task_info *t)
{
	for (uint32_t i = 0; i < task_asks_shown(t); i++)
		if (is_silent(w, t->ask_nodes[i]))
			return WHY_SILENT;
	return t->ask_count ? WHY_ELSEWHERE : WHY_NONE;
}

const ncclsvc_node_info *why_silent_node(const struct why *w, uint64_t comm)
{
	size_t n;
	const ncclsvc_member_info *m = why_members(w, comm, &n);
	for (size_t i = 0; i < n; i++)
		if (m[i].elsewhere && is_silent(w, m[i].elsewhere - 1))
			return snapshot_node(w->s, m[i].elsewhere - 1);
	return NULL;
}

void why_name_node(struct why_finding *f, uint32_t node)
{
	for (size_t i = 0; i < f->nnodes; i++)
		if (f->nodes[i] == node)
			return;
	f->nodes = ctl_grow(f->nodes, f->nnodes, &f->nodes_room, sizeof(*f->nodes));
	f->nodes[f->nnodes++] = node;
}

void why_name_nodes(struct why_finding *f, const ncclsvc_task_info *t)
{
	for (uint32_t i = 0; i < task_asks_shown(t); i++)
		why_name_node(f, t->ask_nodes[i]);
}

/* The peer, or all ranks of that node: the caller frees them. */
static int32_t *ranks_of(const struct why *w, const ncclsvc_task_info *t, uint32_t node,
			 size_t *found)
{
	size_t n;
	const ncclsvc_member_info *m = why_members(w, t->comm, &n);
	int32_t *ranks = ctl_calloc(n + 1, sizeof(*ranks));
	*found = 0;
	if (op_is_p2p(t->op)) {
		ranks[(*found)++] = t->peer;
		return ranks;
	}
	for (size_t i = 0; i < n; i++)
		if (m[i].elsewhere == node + 1)
			ranks[(*found)++] = m[i].rank;
	return ranks;
}

void why_tell_silent(const ncclsvc_node_info *n, struct text *out)
{
	text_printf(out, "node %u (", n->node);
	if (n->host[0]) {
		text_name(out, n->host, sizeof(n->host));
		text_add(out, ", ");
	}
	text_printf(out, "ncclsvcd's pid %d) has not been heard of for ", n->pid);
	units_age(out, n->heard_ns);
	text_add(out, ": it is the first suspect");
}

static void tell_node(const struct why *w, const ncclsvc_task_info *t, uint32_t node,
		      struct text *out)
{
	size_t n;
	int32_t *ranks = ranks_of(w, t, node, &n);
	if (is_silent(w, node)) {
		why_tell_silent(snapshot_node(w->s, node), out);
		text_add(out, ", and what its ");
		units_ranks(out, ranks, n, t->nranks);
		text_add(out, n == 1 ? " does is not known here" : " do is not known here");
	} else {
		text_add(out, "of ");
		units_ranks(out, ranks, n, t->nranks);
		text_add(out, " on ");
		units_node(out, w->s, node);
		text_add(out, n == 1 ? " it is not known here whether it has: ask on "
				     : " it is not known here whether they have: ask on ");
		units_node(out, w->s, node);
	}
	free(ranks);
}

void why_tell_nodes(const struct why *w, const ncclsvc_task_info *t, struct text *out)
{
	uint32_t told = 0;
	for (int silent = 1; silent >= 0; silent--) {
		for (uint32_t i = 0; i < task_asks_shown(t) && told < WHY_TOLD; i++) {
			if (is_silent(w, t->ask_nodes[i]) != silent)
				continue;
			text_add(out, told++ ? "; " : "");
			tell_node(w, t, t->ask_nodes[i], out);
		}
	}
	if (t->ask_count > told)
		text_printf(out, "; and %u more node%s to ask", t->ask_count - told,
			    t->ask_count - told == 1 ? "" : "s");
}
