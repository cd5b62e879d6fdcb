/* SPDX-License-Identifier: Apache-2.0
 * The layout of the world: known figures, the rules for every rank of many worlds, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ncclsvc_world.h"

struct expected {
	int id, index, first, step, size;
};

static const struct {
	int rank, local_rank;
	ncclsvc_world_sizes sizes;
	struct expected data, horizontal, pipeline;
} rows[] = {
	{1, 1, {4, 4, 2, 2, 1}, {1, 0, 1, 2, 2}, {0, 1, 0, 1, 2}, {1, 0, 1, 1, 1}},
	{1, 1, {4, 4, 2, 1, 2}, {0, 1, 0, 1, 2}, {1, 0, 1, 1, 1}, {1, 0, 1, 2, 2}},
	{58, 2, {64, 4, 16, 4, 1}, {2, 14, 2, 4, 16}, {14, 2, 56, 1, 4}, {58, 0, 58, 1, 1}},
	{58, 2, {64, 4, 16, 1, 4}, {3, 10, 48, 1, 16}, {58, 0, 58, 1, 1}, {10, 3, 10, 16, 4}},
	{58, 2, {64, 4, 1, 16, 4}, {58, 0, 58, 1, 1}, {3, 10, 48, 1, 16}, {10, 3, 10, 16, 4}},
	{17, 1, {24, 4, 2, 3, 4}, {8, 1, 14, 3, 2}, {5, 2, 15, 1, 3}, {5, 2, 5, 6, 4}},
	{23, 3, {24, 4, 2, 3, 4}, {11, 1, 20, 3, 2}, {7, 2, 21, 1, 3}, {5, 3, 5, 6, 4}},
};

static void is(const ncclsvc_group *g, const struct expected *e)
{
	assert_int_equal(g->id, e->id);
	assert_int_equal(g->index, e->index);
	assert_int_equal(g->size, e->size);
	for (int i = 0; i < e->size; i++)
		assert_int_equal(ncclsvc_group_rank(g, i), e->first + i * e->step);
	assert_int_equal(ncclsvc_group_rank(g, e->size), -1);
	assert_int_equal(ncclsvc_group_rank(g, -1), -1);
}

static void known_layouts(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		ncclsvc_layout l;
		assert_int_equal(ncclsvc_layout_of(&rows[i].sizes, rows[i].rank, &l), NCCLSVC_OK);
		assert_int_equal(l.rank, rows[i].rank);
		assert_int_equal(l.size, rows[i].sizes.world);
		assert_int_equal(l.local_rank, rows[i].local_rank);
		assert_int_equal(l.local_size, 4);
		is(&l.groups[NCCLSVC_GROUP_DATA], &rows[i].data);
		is(&l.groups[NCCLSVC_GROUP_HORIZONTAL], &rows[i].horizontal);
		is(&l.groups[NCCLSVC_GROUP_PIPELINE], &rows[i].pipeline);
	}
}

/* ---- Every rank of many worlds, checked against the definitions ---- */

struct place {
	int x, y, z, node, local;
};

static struct place place_of(const ncclsvc_world_sizes *s, int r)
{
	return (struct place){r % s->horizontal, r / s->horizontal % s->data,
			      r / (s->horizontal * s->data), r / s->local, r % s->local};
}

static bool together(unsigned type, const struct place *a, const struct place *b)
{
	bool data = a->x == b->x && a->z == b->z;
	switch (type) {
	case NCCLSVC_GROUP_GLOBAL:
		return true;
	case NCCLSVC_GROUP_DATA:
		return data;
	case NCCLSVC_GROUP_NODE_LOCAL:
		return data && a->node == b->node;
	case NCCLSVC_GROUP_CROSS_NODE:
		return data && a->local == b->local;
	case NCCLSVC_GROUP_HORIZONTAL:
		return a->y == b->y && a->z == b->z;
	default:
		return a->x == b->x && a->y == b->y;
	}
}

static void check_group(const ncclsvc_world_sizes *s, unsigned type, int rank,
			const ncclsvc_group *g)
{
	struct place mine = place_of(s, rank);
	int n = 0, id = 0;
	for (int r = 0; r < s->world; r++) {
		struct place theirs = place_of(s, r);
		if (!together(type, &mine, &theirs))
			continue;
		if (r == rank)
			assert_int_equal(g->index, n);
		assert_int_equal(ncclsvc_group_rank(g, n), r);
		n++;
	}
	assert_int_equal(g->size, n);
	/* Its id is the number of groups that begin before it. */
	for (int r = 0; r < g->first; r++) {
		struct place theirs = place_of(s, r), earlier;
		bool first = true;
		for (int q = 0; q < r && first; q++) {
			earlier = place_of(s, q);
			first = !together(type, &earlier, &theirs);
		}
		id += first;
	}
	assert_int_equal(g->id, id);
}

static void groups_follow_their_definitions(void **state)
{
	static const int triples[][3] = {{1, 1, 1}, {2, 3, 2}, {4, 1, 3}, {3, 4, 1},
					 {2, 2, 2}, {1, 5, 2}, {6, 2, 1}, {5, 1, 1}};
	(void)state;
	for (size_t i = 0; i < sizeof(triples) / sizeof(triples[0]); i++) {
		const int *t = triples[i], world = t[0] * t[1] * t[2];
		/* Includes local sizes that do not divide the world. */
		for (int local = 1; local <= world; local++) {
			ncclsvc_world_sizes s = {world, local, t[0], t[1], t[2]};
			for (int rank = 0; rank < world; rank++) {
				ncclsvc_layout l;
				assert_int_equal(ncclsvc_layout_of(&s, rank, &l), NCCLSVC_OK);
				for (unsigned type = 0; type < NCCLSVC_GROUP_TYPES; type++)
					check_group(&s, type, rank, &l.groups[type]);
				assert_int_equal(l.node * local + l.local_rank, rank);
				assert_true(l.local_rank < l.local_size);
				assert_int_equal(l.nodes, (world + local - 1) / local);
			}
		}
	}
}

static void the_last_node_may_be_smaller(void **state)
{
	ncclsvc_layout l;
	(void)state;
	const ncclsvc_world_sizes s = {10, 4, 5, 2, 1};
	assert_int_equal(ncclsvc_layout_of(&s, 9, &l), NCCLSVC_OK);
	assert_int_equal(l.node, 2);
	assert_int_equal(l.nodes, 3);
	assert_int_equal(l.local_rank, 1);
	assert_int_equal(l.local_size, 2);
	/* Data [1,3,5,7,9]; local ranks 1,3,1,3,1. */
	is(&l.groups[NCCLSVC_GROUP_NODE_LOCAL], &(struct expected){5, 0, 9, 2, 1});
	is(&l.groups[NCCLSVC_GROUP_CROSS_NODE], &(struct expected){1, 2, 1, 4, 3});
}

static void large_worlds_do_not_overflow(void **state)
{
	ncclsvc_layout l;
	(void)state;
	const ncclsvc_world_sizes all_data = {65536, 65536, 65536, 1, 1};
	assert_int_equal(ncclsvc_layout_of(&all_data, 65535, &l), NCCLSVC_OK);
	assert_int_equal(l.groups[NCCLSVC_GROUP_NODE_LOCAL].size, 65536);
	assert_int_equal(l.groups[NCCLSVC_GROUP_CROSS_NODE].size, 1);
	const ncclsvc_world_sizes odd = {65536, 65535, 256, 256, 1};
	assert_int_equal(ncclsvc_layout_of(&odd, 65535, &l), NCCLSVC_OK);
	assert_int_equal(l.groups[NCCLSVC_GROUP_CROSS_NODE].size, 1);
	assert_int_equal(l.groups[NCCLSVC_GROUP_CROSS_NODE].id, 65535);
	assert_int_equal(l.groups[NCCLSVC_GROUP_NODE_LOCAL].size, 1);
	const ncclsvc_world_sizes small_nodes = {65536, 8, 16384, 4, 1};
	assert_int_equal(ncclsvc_layout_of(&small_nodes, 65535, &l), NCCLSVC_OK);
	assert_int_equal(l.groups[NCCLSVC_GROUP_NODE_LOCAL].size, 2);
	assert_int_equal(l.groups[NCCLSVC_GROUP_NODE_LOCAL].id, 32767);
	assert_int_equal(l.groups[NCCLSVC_GROUP_CROSS_NODE].size, 8192);
}

/* ---- Refusals ---- */

static void bad_parameters_are_named_in_order(void **state)
{
	static const struct {
		int rank;
		ncclsvc_world_sizes s;
		const char *why;
	} bad[] = {
		{-1, {0, 0, 0, 0, 0}, "rank is -1"},
		{0, {0, 0, 0, 0, 0}, "world is 0"},
		{0, {-4, 0, 0, 0, 0}, "world is -4"},
		{0, {65537, 1, 1, 1, 1}, "world is 65537"},
		{64, {64, 0, 0, 0, 0}, "rank is 64"},
		{0, {64, 0, 0, 0, 0}, "local size is 0"},
		{0, {64, 65, 0, 0, 0}, "local size is 65"},
		{0, {64, 4, 65, 1, 1}, "data is 65: use 1 to 64"},
		{0, {64, 4, 0, 65, 1}, "data is 0"},
		{0, {64, 4, 1, 65, 1}, "horizontal is 65: use 1 to 64"},
		{0, {64, 4, 1, -1, 1}, "horizontal is -1"},
		{0, {64, 4, 16, 5, 1}, "horizontal is 5, which does not divide"},
		{0, {64, 4, 7, 5, 1}, "horizontal is 5, which does not divide"},
		{0, {64, 4, 7, 4, 1}, "data is 7, which does not divide"},
		{0, {64, 4, 8, 4, 1}, "8 x 4 x 1"},
		{0, {64, 4, 1, 4, 4}, "1 x 4 x 4"},
		{0, {64, 4, 8, 8, 0}, "8 x 8 x 0"},
		{0, {64, 4, 64, 64, INT32_MAX}, "64 x 64 x 2147483647"},
		{0, {64, 4, 8, 8, INT32_MIN}, "pipeline"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		ncclsvc_layout l = {.rank = 77};
		assert_int_equal(ncclsvc_layout_of(&bad[i].s, bad[i].rank, &l),
				 NCCLSVC_INVALID_ARGUMENT);
		if (!strstr(ncclsvc_last_error(), bad[i].why))
			fail_msg("\"%s\" is not in: %s", bad[i].why, ncclsvc_last_error());
		assert_int_equal(l.rank, 77);
	}
	ncclsvc_layout l;
	const ncclsvc_world_sizes s = {1, 1, 1, 1, 1};
	assert_int_equal(ncclsvc_layout_of(NULL, 0, &l), NCCLSVC_INVALID_ARGUMENT);
	assert_int_equal(ncclsvc_layout_of(&s, 0, NULL), NCCLSVC_INVALID_ARGUMENT);
	assert_int_equal(ncclsvc_layout_of(&s, 0, &l), NCCLSVC_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_layouts),
		cmocka_unit_test(groups_follow_their_definitions),
		cmocka_unit_test(the_last_node_may_be_smaller),
		cmocka_unit_test(large_worlds_do_not_overflow),
		cmocka_unit_test(bad_parameters_are_named_in_order),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
