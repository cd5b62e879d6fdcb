/* SPDX-License-Identifier: Apache-2.0
 * Collectives over lists of tensors in host memory: every type, aliases, partitions, refusals that
 * all ranks share, and the groups of a world. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "reference.h"
#include "tensor_ranks.h"

#define LIST_MAX 8

enum { READY = 1, GO };

/* ---- Lists of scattered tensors in plain memory ---- */

struct lot {
	size_t n;
	ncclsvc_type type;
	int64_t dims[LIST_MAX];
	ncclsvc_tensor tensors[LIST_MAX];
};

static void lot_make(struct lot *l, ncclsvc_type type, const int64_t *counts, size_t n)
{
	*l = (struct lot){.n = n, .type = type};
	for (size_t i = 0; i < n; i++) {
		size_t bytes = (size_t)counts[i] * ncclsvc_type_size(type);
		l->dims[i] = counts[i];
		l->tensors[i] = (ncclsvc_tensor){malloc(bytes + 1), type, 1, &l->dims[i]};
		memset(l->tensors[i].data, 0x5f, bytes + 1);
	}
}

static void lot_free(struct lot *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->tensors[i].data);
}

/* Fills the tensors as if they were one vector. */
static void lot_fill(struct lot *l, int rank, ncclsvc_redop redop)
{
	size_t at = 0;
	for (size_t i = 0; i < l->n; i++)
		for (int64_t k = 0; k < l->dims[i]; k++, at++)
			element_store(l->tensors[i].data, (size_t)k, l->type,
				      reference_input(rank, at, l->type, redop));
}

/* Checks that tensor t holds that rank's input; rank -1: the reduction over all ranks. */
static void lot_check(const struct lot *l, size_t t, int rank, int nranks, ncclsvc_redop redop)
{
	size_t at = 0;
	bool exact = true;
	for (size_t i = 0; i < t; i++)
		at += (size_t)l->dims[i];
	for (int64_t k = 0; k < l->dims[t]; k++, at++) {
		double want = rank >= 0 ? reference_input(rank, at, l->type, redop)
					: reference_reduced(nranks, at, l->type, redop, &exact);
		double is = element_load(l->tensors[t].data, (size_t)k, l->type);
		if (exact ? is != want : is < want - 0.1 || is > want + 0.1)
			check_failed(__FILE__, __LINE__, "%s, tensor %zu, element %lld: %g, not %g",
				     ncclsvc_type_name(l->type), t, (long long)k, is, want);
	}
	CHECK_EQ(((char *)l->tensors[t].data)[(size_t)l->dims[t] * ncclsvc_type_size(l->type)],
		 0x5f);
}

/* No tensor extends across a border of 1, 2 or 3 ranks: 480; 320 and 640. */
static const int64_t counts[] = {6, 85, 229, 0, 160, 160, 310};
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

static void owners_of(int nranks, int *owners)
{
	uint64_t sizes[COUNTS];
	for (size_t i = 0; i < COUNTS; i++)
		sizes[i] = (uint64_t)counts[i];
	CHECK_OK(ncclsvc_partition_tensors(sizes, COUNTS, nranks, NULL, owners));
}

static void gather(struct side *x, ncclsvc_type type, bool alias)
{
	struct lot in, out;
	int owners[COUNTS], n = x->me->nranks;
	owners_of(n, owners);
	lot_make(&in, type, counts, COUNTS);
	lot_make(&out, type, counts, COUNTS);
	lot_fill(&in, x->me->rank, NCCLSVC_SUM);
	ncclsvc_tensor inputs[COUNTS];
	memcpy(inputs, in.tensors, sizeof(inputs));
	for (size_t i = 0; !alias && i < COUNTS; i++)
		if (owners[i] != x->me->rank)
			inputs[i].data = NULL; /* it is not read */
	struct lot *result = alias ? &in : &out;
	CHECK_OK(ncclsvc_tensors_all_gather(x->lists, inputs, alias ? NULL : out.tensors, COUNTS,
					    WAIT_MS, NULL));
	for (size_t i = 0; i < COUNTS; i++)
		lot_check(result, i, owners[i], n, NCCLSVC_SUM);
	lot_free(&in);
	lot_free(&out);
}

static void scatter(struct side *x, ncclsvc_type type, ncclsvc_redop redop, bool alias)
{
	struct lot in, out;
	int owners[COUNTS], n = x->me->nranks;
	owners_of(n, owners);
	lot_make(&in, type, counts, COUNTS);
	lot_make(&out, type, counts, COUNTS);
	lot_fill(&in, x->me->rank, redop);
	struct lot *result = alias ? &in : &out;
	CHECK_OK(ncclsvc_tensors_reduce_scatter(x->lists, in.tensors, result->tensors, COUNTS,
						redop, WAIT_MS, NULL));
	for (size_t i = 0; i < COUNTS; i++)
		lot_check(result, i, owners[i] == x->me->rank ? -1 : x->me->rank, n, redop);
	for (size_t i = 0; !alias && i < COUNTS; i++)
		lot_check(&in, i, x->me->rank, n, redop);
	lot_free(&in);
	lot_free(&out);
}

static void every_type(struct client *me)
{
	struct side x = side_open(me);
	for (unsigned type = NCCLSVC_INT8; type <= NCCLSVC_BFLOAT16; type++) {
		for (int alias = 0; alias < 2; alias++) {
			gather(&x, (ncclsvc_type)type, alias);
			scatter(&x, (ncclsvc_type)type, NCCLSVC_SUM, alias);
			scatter(&x, (ncclsvc_type)type, NCCLSVC_MAX, alias);
		}
		scatter(&x, (ncclsvc_type)type, NCCLSVC_AVG, false);
	}
	side_close(&x);
}

static void gather_and_scatter_by_owner(void **state)
{
	(void)state;
	run_ranks(1, every_type);
	run_ranks(2, every_type);
	run_ranks(3, every_type);
}

/* ---- Views that match the ranks' shares ---- */

/* Creates views of the tensors, in the tensors' own memory. Returns how many. */
static size_t fit(const struct lot *l, int nranks, ncclsvc_view *views, ncclsvc_tensor *list)
{
	uint64_t sizes[LIST_MAX];
	size_t n = 0;
	for (size_t i = 0; i < l->n; i++)
		sizes[i] = (uint64_t)l->dims[i];
	CHECK_OK(ncclsvc_partition_fit(sizes, l->n, nranks, NULL, views, &n));
	for (size_t k = 0; k < n; k++) {
		char *data = l->tensors[views[k].tensor].data;
		data += views[k].first * ncclsvc_type_size(l->type);
		list[k] = (ncclsvc_tensor){data, l->type, 1, &views[k].count};
	}
	return n;
}

/* After an AllGather, each element has its owner's value. After a ReduceScatter, a rank's own
 * elements are the sum; the others still hold its input. */
static void check_views(const struct lot *l, const ncclsvc_view *views, size_t n,
			const struct client *me, bool reduced)
{
	size_t at = 0;
	bool exact = true;
	for (size_t k = 0; k < n; k++) {
		const bool sum = reduced && views[k].owner == me->rank;
		const int from = reduced ? me->rank : views[k].owner;
		const void *data = l->tensors[views[k].tensor].data;
		for (int64_t e = 0; e < views[k].count; e++, at++) {
			double want = sum ? reference_reduced(me->nranks, at, l->type, NCCLSVC_SUM,
							      &exact)
					  : reference_input(from, at, l->type, NCCLSVC_SUM);
			CHECK(element_load(data, views[k].first + (size_t)e, l->type) == want);
		}
	}
}

static void fitted(struct client *me)
{
	static const int64_t across[] = {6, 85, 512, 0, 91, 256};
	struct side x = side_open(me);
	ncclsvc_view views[LIST_MAX];
	ncclsvc_tensor list[LIST_MAX];
	struct lot l;
	lot_make(&l, NCCLSVC_INT64, across, 6);
	CHECK_RESULT(ncclsvc_tensors_all_gather(x.lists, l.tensors, NULL, 6, WAIT_MS, NULL),
		     NCCLSVC_INVALID_ARGUMENT);
	says("ncclsvc_partition_fit");
	const size_t n = fit(&l, me->nranks, views, list);
	lot_fill(&l, me->rank, NCCLSVC_SUM);
	CHECK_OK(ncclsvc_tensors_all_gather(x.lists, list, NULL, n, WAIT_MS, NULL));
	check_views(&l, views, n, me, false);
	lot_fill(&l, me->rank, NCCLSVC_SUM);
	CHECK_OK(
		ncclsvc_tensors_reduce_scatter(x.lists, list, NULL, n, NCCLSVC_SUM, WAIT_MS, NULL));
	check_views(&l, views, n, me, true);
	lot_free(&l);
	side_close(&x);
}

static void views_make_a_list_fit(void **state)
{
	(void)state;
	run_ranks(2, fitted);
	run_ranks(3, fitted);
}

/* ---- AllReduce ---- */

#define RANGE 700

static const int64_t range_sizes[] = {20, 7, 100};

/* Elements 10 to 30, 200 to 207 and 600 to 700 of a buffer; the operation touches no others. */
static bool within(size_t i)
{
	return (i >= 10 && i < 30) || (i >= 200 && i < 207) || i >= 600;
}

static void range_of(ncclsvc_tensor *t, char *buffer, ncclsvc_type type)
{
	static const size_t starts[] = {10, 200, 600};
	for (size_t i = 0; i < 3; i++)
		t[i] = (ncclsvc_tensor){buffer + starts[i] * ncclsvc_type_size(type), type, 1,
					&range_sizes[i]};
}

static void reduce_range(struct side *x, ncclsvc_type type, bool in_place, bool plain)
{
	const size_t size = ncclsvc_type_size(type);
	char *in = plain ? malloc(RANGE * size) : shared(x->s, RANGE * size);
	char *out = plain ? malloc(RANGE * size) : shared(x->s, RANGE * size);
	ncclsvc_tensor a[3], b[3];
	bool exact;
	range_of(a, in, type);
	range_of(b, out, type);
	memset(out, 0x42, RANGE * size);
	for (size_t i = 0; i < RANGE; i++)
		element_store(in, i, type, reference_input(x->me->rank, i, type, NCCLSVC_SUM));
	CHECK_OK(ncclsvc_tensors_all_reduce(x->lists, a, in_place ? NULL : b, 3, NCCLSVC_SUM,
					    WAIT_MS, NULL));
	for (size_t i = 0; i < RANGE; i++) {
		double sum = reference_reduced(x->me->nranks, i, type, NCCLSVC_SUM, &exact);
		double own = reference_input(x->me->rank, i, type, NCCLSVC_SUM);
		CHECK(element_load(in, i, type) == (in_place && within(i) ? sum : own));
		if (!in_place && within(i))
			CHECK(element_load(out, i, type) == sum);
		for (size_t k = 0; !within(i) && k < size; k++)
			CHECK_EQ(out[i * size + k], 0x42);
	}
	if (plain) {
		free(in);
		free(out);
	} else {
		CHECK_OK(ncclsvc_mem_free(x->s, in));
		CHECK_OK(ncclsvc_mem_free(x->s, out));
	}
}

static void every_range(struct client *me)
{
	struct side x = side_open(me);
	for (unsigned type = NCCLSVC_INT8; type <= NCCLSVC_BFLOAT16; type++)
		for (int variant = 0; variant < 4; variant++)
			reduce_range(&x, (ncclsvc_type)type, variant & 1, variant & 2);
	/* A list of one tensor, and an empty list. */
	int32_t v = 1;
	ncclsvc_tensor t = {&v, NCCLSVC_INT32, 0, NULL};
	CHECK_OK(ncclsvc_tensors_all_reduce(x.lists, &t, NULL, 1, NCCLSVC_SUM, WAIT_MS, NULL));
	CHECK_EQ(v, me->nranks);
	const int64_t zero = 0;
	t = (ncclsvc_tensor){NULL, NCCLSVC_INT32, 1, &zero};
	CHECK_OK(ncclsvc_tensors_all_reduce(x.lists, &t, NULL, 1, NCCLSVC_SUM, WAIT_MS, NULL));
	side_close(&x);
}

static void all_reduce_leaves_the_gaps_alone(void **state)
{
	(void)state;
	run_ranks(2, every_range);
	run_ranks(3, every_range);
}

/* Reduces n tensors of ten int32 at those places. Each element starts as i + rank + 1. */
static void reduce_tens(struct side *x, void *const *places, size_t n)
{
	static const int64_t ten = 10;
	ncclsvc_tensor t[8];
	const int ranks = x->me->nranks;
	CHECK(n <= 8);
	for (size_t i = 0; i < n; i++) {
		t[i] = (ncclsvc_tensor){places[i], NCCLSVC_INT32, 1, &ten};
		for (int k = 0; k < ten; k++)
			((int32_t *)places[i])[k] = (int)i + x->me->rank + 1;
	}
	CHECK_OK(ncclsvc_tensors_all_reduce(x->lists, t, NULL, n, NCCLSVC_SUM, WAIT_MS, NULL));
	for (size_t i = 0; i < n; i++)
		for (int k = 0; k < ten; k++)
			CHECK_EQ(((int32_t *)places[i])[k],
				 ranks * (int)i + ranks * (ranks + 1) / 2);
}

static void apart(struct client *me)
{
	struct side x = side_open(me);
	const size_t page = 4096;
	void *places[4];
	/* Heap blocks, with the allocator's headers in between. */
	for (int i = 0; i < 3; i++) {
		places[i] = malloc(40);
		CHECK(places[i]);
	}
	reduce_tens(&x, places, 3);
	/* Not in address order. */
	reduce_tens(&x, (void *[]){places[2], places[0], places[1]}, 3);
	for (int i = 0; i < 3; i++)
		free(places[i]);
	/* An unmapped hole between two mappings. */
	char *pages =
		mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED);
	CHECK_EQ(munmap(pages + page, page), 0);
	reduce_tens(&x, (void *[]){pages + page - 40, pages + 2 * page}, 2);
	CHECK_EQ(munmap(pages, page), 0);
	CHECK_EQ(munmap(pages + 2 * page, page), 0);
	/* Two pieces of the session's memory, and one heap block. */
	places[0] = shared(x.s, page);
	places[1] = malloc(40);
	places[2] = shared(x.s, page);
	CHECK(places[1]);
	reduce_tens(&x, places, 3);
	free(places[1]);
	side_close(&x);
}

static void all_reduce_takes_tensors_from_anywhere(void **state)
{
	(void)state;
	run_ranks(2, apart);
}

static void in_a_row(struct client *me)
{
	struct side x = side_open(me);
	char *memory = shared(x.s, 4096);
	reduce_tens(&x, (void *[]){memory, memory + 40, memory + 80}, 3);
	CHECK_EQ(ncclsvc_tensors_copied(x.lists), 0);
	/* The layout may differ between ranks. */
	reduce_tens(&x, (void *[]){memory, memory + (me->rank ? 400 : 40)}, 2);
	CHECK_EQ(ncclsvc_tensors_copied(x.lists), me->rank ? 160 : 0);
	/* One tensor over the whole buffer includes the gaps. */
	const int64_t all = 1024;
	ncclsvc_tensor t = {memory, NCCLSVC_INT32, 1, &all};
	memset(memory, 0, 4096);
	((int32_t *)memory)[500] = me->rank + 1;
	CHECK_OK(ncclsvc_tensors_all_reduce(x.lists, &t, NULL, 1, NCCLSVC_SUM, WAIT_MS, NULL));
	CHECK_EQ(((int32_t *)memory)[500], me->nranks * (me->nranks + 1) / 2);
	side_close(&x);
}

static void all_reduce_copies_only_what_is_not_in_a_row(void **state)
{
	(void)state;
	run_ranks(2, in_a_row);
}

/* ---- Refusals ---- */

static void check_all_in_step(struct side *x)
{
	gather(x, NCCLSVC_INT32, false);
}

static void refused_alike(struct client *me)
{
	static const int64_t across[] = {6, 85, 512, 91, 256};
	struct side x = side_open(me);
	struct lot l;
	lot_make(&l, NCCLSVC_FLOAT32, across, 5);
	lot_fill(&l, me->rank, NCCLSVC_SUM);
	/* An error on every rank in turn. */
	for (int i = 0; i < 3; i++) {
		CHECK_RESULT(i == 1 ? ncclsvc_tensors_reduce_scatter(x.lists, l.tensors, NULL, 5,
								     NCCLSVC_SUM, WAIT_MS, NULL)
				    : ncclsvc_tensors_all_gather(x.lists, l.tensors, NULL, 5,
								 WAIT_MS, NULL),
			     NCCLSVC_INVALID_ARGUMENT);
		says("tensor 2 has elements 91 to 603");
		says("480");
	}
	for (size_t i = 0; i < 5; i++)
		lot_check(&l, i, me->rank, 2, NCCLSVC_SUM);
	CHECK_EQ(ncclsvc_tensors_copied(x.lists), 0);
	check_all_in_step(&x);
	lot_free(&l);
	side_close(&x);
}

static void a_tensor_across_a_border_is_refused_by_all(void **state)
{
	(void)state;
	run_ranks(2, refused_alike);
}

/* Rank 1's list is invalid; the other ranks are notified. */
static ncclsvc_result bad_call(struct side *x, int what, struct lot *l, ncclsvc_tensor *t)
{
	const bool bad = x->me->rank == 1;
	ncclsvc_tensor out[COUNTS];
	memcpy(out, t, sizeof(out));
	switch (what) {
	case 0: /* two types */
		t[1].type = bad ? NCCLSVC_UINT32 : t[1].type;
		break;
	case 1: /* no memory */
		t[0].data = t[1].data = t[2].data = t[4].data = bad ? NULL : t[4].data;
		if (!bad)
			memcpy(t, l->tensors, sizeof(out));
		break;
	case 2: /* an unknown type */
		t[0].type = bad ? (ncclsvc_type)99 : t[0].type;
		break;
	case 3: /* outputs of another size */
		out[2].dims = bad ? &l->dims[1] : &l->dims[2];
		break;
	case 4: /* an unknown reduction */
		return ncclsvc_tensors_reduce_scatter(x->lists, t, out, COUNTS,
						      bad ? (ncclsvc_redop)9 : NCCLSVC_SUM, WAIT_MS,
						      NULL);
	case 5: /* no tensors */
		return ncclsvc_tensors_all_gather(x->lists, t, out, bad ? 0 : COUNTS, WAIT_MS,
						  NULL);
	case 6: /* outputs that overlap inputs */
		out[5].data = bad ? (char *)t[5].data + 4 : t[5].data;
		return ncclsvc_tensors_reduce_scatter(x->lists, t, out, COUNTS, NCCLSVC_SUM,
						      WAIT_MS, NULL);
	}
	return ncclsvc_tensors_all_gather(x->lists, t, out, COUNTS, WAIT_MS, NULL);
}

static void refused_by_one(struct client *me)
{
	static const char *const why[] = {"tensor 1 has type uint32",
					  "this rank owns",
					  "type 99",
					  "output 2 has",
					  "reduction 9",
					  "at least one tensor",
					  "output 5 overlaps"};
	struct side x = side_open(me);
	for (int what = 0; what < (int)(sizeof(why) / sizeof(why[0])); what++) {
		struct lot l;
		ncclsvc_tensor t[COUNTS];
		lot_make(&l, NCCLSVC_INT32, counts, COUNTS);
		lot_fill(&l, me->rank, NCCLSVC_SUM);
		memcpy(t, l.tensors, sizeof(t));
		CHECK_RESULT(bad_call(&x, what, &l, t), NCCLSVC_INVALID_ARGUMENT);
		says(me->rank == 1 ? why[what] : "rank 1 (pid ");
		for (size_t i = 0; i < COUNTS; i++)
			lot_check(&l, i, me->rank, me->nranks, NCCLSVC_SUM);
		lot_free(&l);
		check_all_in_step(&x);
	}
	/* AllReduce of tensors where they lie. */
	int32_t v[64] = {0};
	const int64_t four = 4, five = 5;
	for (int what = 0; what < 2; what++) {
		ncclsvc_tensor t[2] = {{v, NCCLSVC_INT32, 1, &four},
				       {v + 8, NCCLSVC_INT32, 1, &four}};
		ncclsvc_tensor out[2] = {{v + 32, NCCLSVC_INT32, 1, &four},
					 {v + 40, NCCLSVC_INT32, 1, &four}};
		static const char *const rules[] = {"output 1 overlaps", "output 1 has 5"};
		if (me->rank == 1 && what == 0)
			out[1].data = v + 9;
		else if (me->rank == 1)
			out[1].dims = &five;
		CHECK_RESULT(
			ncclsvc_tensors_all_reduce(x.lists, t, out, 2, NCCLSVC_SUM, WAIT_MS, NULL),
			NCCLSVC_INVALID_ARGUMENT);
		says(me->rank == 1 ? rules[what] : "rank 1 (pid ");
		check_all_in_step(&x);
	}
	side_close(&x);
}

static void one_ranks_refusal_reaches_all(void **state)
{
	(void)state;
	run_ranks(3, refused_by_one);
}

static void disagreeing(struct client *me)
{
	struct side x = side_open(me);
	struct lot l;
	const bool odd = me->rank == 1;
	int64_t other[COUNTS];
	memcpy(other, counts, sizeof(other));
	other[1]--; /* the total is unchanged: */
	other[2]++;
	lot_make(&l, NCCLSVC_FLOAT32, odd ? other : counts, COUNTS);
	CHECK_RESULT(ncclsvc_tensors_all_gather(x.lists, l.tensors, NULL, COUNTS, WAIT_MS, NULL),
		     NCCLSVC_MISMATCH);
	says("dimension 0 of tensor 1 differs: rank ");
	says(me->nranks > 2 ? ", all others have " : ", rank 1 (pid ");
	lot_free(&l);
	check_all_in_step(&x);
	lot_make(&l, NCCLSVC_FLOAT32, counts, COUNTS);
	CHECK_RESULT(
		odd ? ncclsvc_tensors_all_gather(x.lists, l.tensors, NULL, COUNTS, WAIT_MS, NULL)
		    : ncclsvc_tensors_reduce_scatter(x.lists, l.tensors, NULL, COUNTS, NCCLSVC_SUM,
						     WAIT_MS, NULL),
		NCCLSVC_MISMATCH);
	says("operation differs");
	check_all_in_step(&x);
	CHECK_RESULT(ncclsvc_tensors_reduce_scatter(x.lists, l.tensors, NULL, COUNTS,
						    odd ? NCCLSVC_MAX : NCCLSVC_SUM, WAIT_MS, NULL),
		     NCCLSVC_MISMATCH);
	says("reduction differs");
	check_all_in_step(&x);
	/* A plain AllGather of equal size does not match a list's. */
	uint64_t sizes[COUNTS];
	for (size_t i = 0; i < COUNTS; i++)
		sizes[i] = (uint64_t)counts[i];
	ncclsvc_partition p;
	CHECK_OK(ncclsvc_partition_tensors(sizes, COUNTS, me->nranks, &p, NULL));
	if (odd) {
		ncclsvc_task task;
		float *to = shared(x.s, p.padded * 4);
		CHECK_OK(ncclsvc_all_gather(to + p.per_rank, to, p.per_rank, NCCLSVC_FLOAT32,
					    x.comm, &task));
		wait_for(x.s, task, NCCLSVC_MISMATCH);
	} else {
		CHECK_RESULT(
			ncclsvc_tensors_all_gather(x.lists, l.tensors, NULL, COUNTS, WAIT_MS, NULL),
			NCCLSVC_MISMATCH);
		says("not a list of tensors");
	}
	lot_free(&l);
	check_all_in_step(&x);
	side_close(&x);
}

static void lists_that_differ_move_nothing(void **state)
{
	(void)state;
	run_ranks(2, disagreeing);
	run_ranks(3, disagreeing);
}

/* ---- Non-blocking calls, and absent peers ---- */

static void under_way(struct client *me)
{
	struct side x = side_open(me);
	enum { N = 6 };
	struct lot lots[N];
	ncclsvc_request *r[N];
	int owners[COUNTS];
	owners_of(me->nranks, owners);
	for (int i = 0; i < N; i++) {
		lot_make(&lots[i], NCCLSVC_INT64, counts, COUNTS);
		lot_fill(&lots[i], me->rank, NCCLSVC_SUM);
		CHECK_OK(i % 2 ? ncclsvc_tensors_all_gather(x.lists, lots[i].tensors, NULL, COUNTS,
							    0, &r[i])
			       : ncclsvc_tensors_reduce_scatter(x.lists, lots[i].tensors, NULL,
								COUNTS, NCCLSVC_SUM, 0, &r[i]));
	}
	for (int i = N - 1; i >= 0; i--) {
		CHECK_OK(ncclsvc_request_wait(r[i], WAIT_MS));
		CHECK_OK(ncclsvc_request_free(r[i]));
		for (size_t k = 0; k < COUNTS; k++)
			lot_check(&lots[i], k,
				  i % 2			  ? owners[k]
				  : owners[k] == me->rank ? -1
							  : me->rank,
				  me->nranks, NCCLSVC_SUM);
		lot_free(&lots[i]);
	}
	/* Rank 0 comes too late. */
	struct lot l;
	lot_make(&l, NCCLSVC_INT64, counts, COUNTS);
	if (me->rank == 0)
		CHECK_EQ(hear(me), GO);
	CHECK_RESULT(ncclsvc_tensors_all_gather(x.lists, l.tensors, NULL, COUNTS,
						me->rank ? 30 : WAIT_MS, NULL),
		     NCCLSVC_TIMEOUT);
	if (me->rank)
		say(me, READY);
	lot_free(&l);
	check_all_in_step(&x);
	side_close(&x);
}

static void many_at_once_and_one_too_late(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, under_way, NULL);
	CHECK_EQ(hear(&clients[1]), READY);
	say(&clients[0], GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

/* ---- The groups of a world ---- */

static void in_groups(struct client *me)
{
	ncclsvc_world *w;
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_world_options o = {.size = sizeof(o),
				   .rank = me->rank,
				   .device = NCCLSVC_DEVICE_HOST,
				   .data = 4,
				   .local = 2};
	ncclsvc_tensors *lists;
	CHECK_OK(ncclsvc_world_init(s, &o, WAIT_MS, &w));
	CHECK_RESULT(ncclsvc_tensors_open_group(w, (ncclsvc_group_type)6, WAIT_MS, &lists),
		     NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_tensors_open_group(NULL, NCCLSVC_GROUP_DATA, WAIT_MS, &lists),
		     NCCLSVC_INVALID_ARGUMENT);
	for (unsigned type = 0; type < NCCLSVC_GROUP_TYPES; type++) {
		const ncclsvc_group *g = &ncclsvc_world_layout(w)->groups[type];
		int32_t v[4] = {1 << me->rank, 0, 0, 1 << me->rank}, sum = 0;
		const int64_t one = 1;
		const ncclsvc_tensor t[2] = {{v, NCCLSVC_INT32, 1, &one},
					     {v + 3, NCCLSVC_INT32, 1, &one}};
		CHECK_OK(ncclsvc_tensors_open_group(w, (ncclsvc_group_type)type, WAIT_MS, &lists));
		CHECK_OK(ncclsvc_tensors_all_reduce(lists, t, NULL, 2, NCCLSVC_SUM, WAIT_MS, NULL));
		for (int i = 0; i < g->size; i++)
			sum |= 1 << ncclsvc_group_rank(g, i);
		CHECK_EQ(v[0], sum);
		CHECK_EQ(v[3], sum);
		CHECK_OK(ncclsvc_tensors_close(lists));
	}
	/* Two groups of one communicator have one ncclsvc_tensors. */
	CHECK(ncclsvc_world_comm(w, NCCLSVC_GROUP_HORIZONTAL) ==
	      ncclsvc_world_comm(w, NCCLSVC_GROUP_PIPELINE));
	ncclsvc_tensors *again;
	CHECK_OK(ncclsvc_tensors_open_group(w, NCCLSVC_GROUP_HORIZONTAL, WAIT_MS, &lists));
	CHECK_RESULT(ncclsvc_tensors_open_group(w, NCCLSVC_GROUP_PIPELINE, WAIT_MS, &again),
		     NCCLSVC_RANK_TAKEN);
	CHECK(strstr(ncclsvc_last_error(), "this rank already has lists"));
	CHECK_OK(ncclsvc_tensors_close(lists));
	check_usable(s, ncclsvc_world_host_comm(w)); /* no rank leaves before all have finished */
	ncclsvc_world_free(w);
	ncclsvc_close(s);
}

static void every_group_of_a_world(void **state)
{
	struct daemon d;
	struct client clients[4];
	(void)state;
	daemon_start(&d, "--ranks", "4", NULL);
	clients_start(clients, 4, &d, in_groups, NULL);
	clients_end(clients, 4);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(gather_and_scatter_by_owner),
		TEST(views_make_a_list_fit),
		TEST(all_reduce_leaves_the_gaps_alone),
		TEST(all_reduce_takes_tensors_from_anywhere),
		TEST(all_reduce_copies_only_what_is_not_in_a_row),
		TEST(a_tensor_across_a_border_is_refused_by_all),
		TEST(one_ranks_refusal_reaches_all),
		TEST(lists_that_differ_move_nothing),
		TEST(many_at_once_and_one_too_late),
		TEST(every_group_of_a_world),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
