/* SPDX-License-Identifier: Apache-2.0
 * Which ranks form which groups. Every group is an arithmetic progression of world ranks. */
#include "base/error.h"
#include "core/session_handle.h"
#include "world.h"

#define WORLD_MAX SVC_RANKS_MAX

static ncclsvc_result check_divisors(const ncclsvc_world_sizes *s)
{
	if (s->data < 1 || s->data > s->world)
		return error_argument("data is %d: use 1 to %d, the world's size", s->data,
				      s->world);
	if (s->horizontal < 1 || s->horizontal > s->world)
		return error_argument("horizontal is %d: use 1 to %d, the world's size",
				      s->horizontal, s->world);
	if (s->world % s->horizontal)
		return error_argument(
			"horizontal is %d, which does not divide the world's %d ranks",
			s->horizontal, s->world);
	if (s->world % s->data)
		return error_argument("data is %d, which does not divide the world's %d ranks",
				      s->data, s->world);
	int64_t plane = (int64_t)s->data * s->horizontal, product;
	if (__builtin_mul_overflow(plane, (int64_t)s->pipeline, &product) || product != s->world)
		return error_argument(
			"data x horizontal x pipeline is %d x %d x %d, but the world has %d ranks",
			s->data, s->horizontal, s->pipeline, s->world);
	return NCCLSVC_OK;
}

static ncclsvc_result check(const ncclsvc_world_sizes *s, int rank)
{
	if (rank < 0)
		return error_argument("rank is %d: ranks start at 0", rank);
	if (s->world < 1 || s->world > WORLD_MAX)
		return error_argument("world is %d: use 1 to %d ranks", s->world, WORLD_MAX);
	if (rank >= s->world)
		return error_argument("rank is %d: the world's %d ranks are 0 to %d", rank,
				      s->world, s->world - 1);
	if (s->local < 1 || s->local > s->world)
		return error_argument("local size is %d: use 1 to %d, the world's size", s->local,
				      s->world);
	return check_divisors(s);
}

static int divisor_of_both(int a, int b)
{
	while (b) {
		int rest = a % b;
		a = b;
		b = rest;
	}
	return a;
}

/* How many ranks below `end` come first in their node-local group: those that are first in their
 * data group, and those whose predecessor in it is on an earlier node. */
static int first_on_node_below(const ncclsvc_world_sizes *s, int end)
{
	const int64_t h = s->horizontal, plane = h * s->data;
	int64_t block = 0, node = 0, covered = 0, total = 0;
	for (int64_t at; (at = block < node ? block : node) < end;) {
		int64_t from = at > covered ? at : covered, to = at + h < end ? at + h : end;
		if (to > from) {
			total += to - from;
			covered = to;
		}
		block += block == at ? plane : 0;
		node += node == at ? s->local : 0;
	}
	return (int)total;
}

static ncclsvc_group node_local(const ncclsvc_world_sizes *s, const ncclsvc_layout *l)
{
	const ncclsvc_group *data = &l->groups[NCCLSVC_GROUP_DATA];
	int node = l->node * s->local; /* first rank of the node */
	int before = node > data->first ? (node - data->first + data->step - 1) / data->step : 0;
	int last = (node + l->local_size - 1 - data->first) / data->step;
	if (last >= data->size)
		last = data->size - 1;
	int first = data->first + before * data->step;
	return (ncclsvc_group){
		.id = first_on_node_below(s, first),
		.index = data->index - before,
		.size = last - before + 1,
		.first = first,
		.step = data->step,
	};
}

static ncclsvc_group cross_node(const ncclsvc_world_sizes *s, const ncclsvc_layout *l)
{
	const ncclsvc_group *data = &l->groups[NCCLSVC_GROUP_DATA];
	/* The distance from one member of the data group to the next with the same local rank. */
	int stride = s->local / divisor_of_both(s->local, s->horizontal);
	int column = data->index % stride;
	int firsts = (stride < s->data ? stride : s->data) * s->horizontal; /* groups per z */
	int z = l->groups[NCCLSVC_GROUP_PIPELINE].index;
	return (ncclsvc_group){
		.id = z * firsts + column * s->horizontal + l->rank % s->horizontal,
		.index = data->index / stride,
		.size = (data->size - column + stride - 1) / stride,
		.first = data->first + column * data->step,
		.step = stride > data->size ? data->step : stride * data->step,
	};
}

ncclsvc_result ncclsvc_layout_of(const ncclsvc_world_sizes *s, int rank, ncclsvc_layout *layout)
{
	if (!s || !layout)
		return error_argument("ncclsvc_layout_of: sizes or layout is NULL");
	ncclsvc_result r = check(s, rank);
	if (r)
		return r;
	const int h = s->horizontal, d = s->data, plane = h * d;
	const int x = rank % h, y = rank / h % d, z = rank / plane;
	const int node = rank / s->local, rest = s->world - node * s->local;
	ncclsvc_layout l = {
		.rank = rank,
		.size = s->world,
		.local_rank = rank % s->local,
		.local_size = rest < s->local ? rest : s->local,
		.node = node,
		.nodes = (s->world + s->local - 1) / s->local,
	};
	l.groups[NCCLSVC_GROUP_GLOBAL] = (ncclsvc_group){0, rank, s->world, 0, 1};
	l.groups[NCCLSVC_GROUP_DATA] = (ncclsvc_group){x + z * h, y, d, x + z * plane, h};
	l.groups[NCCLSVC_GROUP_HORIZONTAL] = (ncclsvc_group){y + z * d, x, h, y * h + z * plane, 1};
	l.groups[NCCLSVC_GROUP_PIPELINE] =
		(ncclsvc_group){x + y * h, z, s->pipeline, x + y * h, plane};
	l.groups[NCCLSVC_GROUP_NODE_LOCAL] = node_local(s, &l);
	l.groups[NCCLSVC_GROUP_CROSS_NODE] = cross_node(s, &l);
	*layout = l;
	return NCCLSVC_OK;
}

int ncclsvc_group_rank(const ncclsvc_group *group, int index)
{
	if (!group || index < 0 || index >= group->size)
		return -1;
	return group->first + index * group->step;
}

const char *ncclsvc_group_type_name(unsigned type)
{
	static const char *const names[] = {
		[NCCLSVC_GROUP_GLOBAL] = "global",
		[NCCLSVC_GROUP_DATA] = "data",
		[NCCLSVC_GROUP_NODE_LOCAL] = "node_local",
		[NCCLSVC_GROUP_CROSS_NODE] = "cross_node",
		[NCCLSVC_GROUP_HORIZONTAL] = "horizontal",
		[NCCLSVC_GROUP_PIPELINE] = "pipeline",
	};
	return type < NCCLSVC_GROUP_TYPES ? names[type] : "?";
}
