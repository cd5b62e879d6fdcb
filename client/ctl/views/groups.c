/* SPDX-License-Identifier: Apache-2.0
 * The layout of a world, computed without a daemon. */
#include <ncclsvc_world.h>

#include "base/table.h"
#include "view.h"

#define FEW 4 /* ranks that are listed individually */

static const struct {
	const char *key;
	ncclsvc_group_type type;
} shown[] = {
	{"data", NCCLSVC_GROUP_DATA},
	{"horizontal", NCCLSVC_GROUP_HORIZONTAL},
	{"pipeline", NCCLSVC_GROUP_PIPELINE},
	{"node_local", NCCLSVC_GROUP_NODE_LOCAL},
	{"cross_node", NCCLSVC_GROUP_CROSS_NODE},
};
#define SHOWN (sizeof(shown) / sizeof(shown[0]))

/* Fills in omitted sizes as ncclsvc_world_init does. */
static ncclsvc_world_sizes sizes_of(const struct ctl_args *args)
{
	ncclsvc_world_sizes s = args->sizes;
	if (s.local < 0)
		s.local = s.world;
	if (s.horizontal < 0)
		s.horizontal = 1;
	if (s.pipeline < 0)
		s.pipeline = 1;
	if (s.data < 0) {
		int64_t others = (int64_t)s.horizontal * s.pipeline;
		s.data = others > 0 && others <= s.world ? (int)(s.world / others) : 1;
	}
	return s;
}

/* "1/0 [1,3]", "14/2 [56-59]", "2/14 [2,6..62]" */
static void add_group(struct text *t, const ncclsvc_group *g)
{
	text_printf(t, "%d/%d [", g->id, g->index);
	int last = ncclsvc_group_rank(g, g->size - 1);
	if (g->size > 2 && g->step == 1)
		text_printf(t, "%d-%d", g->first, last);
	else if (g->size > FEW)
		text_printf(t, "%d,%d..%d", g->first, ncclsvc_group_rank(g, 1), last);
	else
		for (int i = 0; i < g->size; i++)
			text_printf(t, "%s%d", i ? "," : "", ncclsvc_group_rank(g, i));
	text_char(t, ']');
}

static void add_row(struct table *table, const ncclsvc_layout *l)
{
	table_i64(table, l->rank);
	table_i64(table, l->node);
	table_i64(table, l->local_rank);
	for (size_t i = 0; i < SHOWN; i++) {
		add_group(table_cell(table), &l->groups[shown[i].type]);
		table_end(table, TABLE_PLAIN);
	}
}

static void put_rank(struct json *j, const ncclsvc_layout *l)
{
	put_object(j, NULL);
	put_i64(j, "rank", l->rank);
	for (size_t i = 0; i < SHOWN; i++) {
		const ncclsvc_group *g = &l->groups[shown[i].type];
		put_object(j, shown[i].key);
		put_i64(j, "id", g->id);
		put_i64(j, "index", g->index);
		put_array(j, "ranks");
		for (int k = 0; k < g->size; k++)
			put_i64(j, NULL, ncclsvc_group_rank(g, k));
		put_array_end(j);
		put_object_end(j);
	}
	put_object_end(j);
	text_flush(j->out, false);
}

bool view_groups(const struct view *v)
{
	static const struct table_column columns[] = {
		{"RANK", true},	       {"NODE", true},	      {"LOCAL", true},
		{"DATA", false},       {"HORIZONTAL", false}, {"PIPELINE", false},
		{"NODE-LOCAL", false}, {"CROSS-NODE", false},
	};
	const ncclsvc_world_sizes sizes = sizes_of(v->args);
	const bool one = v->args->rank >= 0;
	const int first = one ? (int)v->args->rank : 0;
	ncclsvc_layout l;
	if (ncclsvc_layout_of(&sizes, first, &l))
		return false;
	struct json j = {.out = v->out};
	struct table *table =
		v->args->json ? NULL : table_new(columns, sizeof(columns) / sizeof(columns[0]));
	if (!table && !one)
		put_array(&j, NULL);
	for (int rank = first; rank < (one ? first + 1 : l.size); rank++) {
		if (ncclsvc_layout_of(&sizes, rank, &l))
			break;
		if (table)
			add_row(table, &l);
		else
			put_rank(&j, &l);
	}
	if (table) {
		table_print(table, v->out, v->colour);
		table_free(table);
		return true;
	}
	if (!one)
		put_array_end(&j);
	text_char(v->out, '\n');
	return true;
}
