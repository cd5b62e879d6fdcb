/* SPDX-License-Identifier: Apache-2.0
 * Ranks of other nodes. What they do, only their own node knows: where to ask, and whether that
 * node is heard of at all. */
#include "internal.h"

#include <stdlib.h>

bool why_node_is_silent(const struct why *w, uint32_t node)
{
	const ncclsvc_node_info *n = snapshot_node(w->s, node);
	return n && node_is_silent(n);
}

enum why_cause why_asks(const struct why *w, const ncclsvc_task_info *t)
{
	for (uint32_t i = 0; i < task_asks_shown(t); i++)
		if (why_node_is_silent(w, t->ask_nodes[i]))
			return WHY_SILENT;
	return t->ask_count ? WHY_ELSEWHERE : WHY_NONE;
}

const ncclsvc_node_info *why_silent_node(const struct why *w, uint64_t comm)
{
	size_t n;
	const ncclsvc_member_info *m = why_members(w, comm, &n);
	for (size_t i = 0; i < n; i++)
		if (m[i].elsewhere && why_node_is_silent(w, m[i].elsewhere - 1))
			return snapshot_node(w->s, m[i].elsewhere - 1);
	return NULL;
}

int32_t *why_ranks_of(const struct why *w, const ncclsvc_task_info *t, uint32_t node, size_t *found)
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
