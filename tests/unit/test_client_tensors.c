/* SPDX-License-Identifier: Apache-2.0
 * Sizes, layouts and partitions of tensor lists; announced shapes, and false announcements. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/comm_handle.h"
#include "tensors/tensors.h"

static void why(const char *text)
{
	if (!strstr(ncclsvc_last_error(), text))
		fail_msg("\"%s\" is not in: %s", text, ncclsvc_last_error());
}

#define REFUSED(call, text)                                                                        \
	do {                                                                                       \
		assert_int_equal(call, NCCLSVC_INVALID_ARGUMENT);                                  \
		why(text);                                                                         \
	} while (0)

/* ---- Sizes ---- */

static ncclsvc_tensor tensor(ncclsvc_type type, int ndims, const int64_t *dims)
{
	return (ncclsvc_tensor){NULL, type, ndims, dims};
}

static void sizes_of_tensors(void **state)
{
	(void)state;
	uint64_t count, bytes;
	ncclsvc_tensor t = tensor(NCCLSVC_FLOAT64, 0, NULL);
	assert_int_equal(ncclsvc_tensor_size(&t, &count, &bytes), NCCLSVC_OK);
	assert_int_equal(count, 1);
	assert_int_equal(bytes, 8);
	t = tensor(NCCLSVC_BFLOAT16, 2, (int64_t[]){3, 5});
	assert_int_equal(ncclsvc_tensor_size(&t, &count, &bytes), NCCLSVC_OK);
	assert_int_equal(count, 15);
	assert_int_equal(bytes, 30);
	/* Zero times a large number is zero. */
	t = tensor(NCCLSVC_INT8, 3, (int64_t[]){INT64_MAX, INT64_MAX, 0});
	assert_int_equal(ncclsvc_tensor_size(&t, &count, &bytes), NCCLSVC_OK);
	assert_int_equal(bytes, 0);
	/* More than 2 GiB. */
	t = tensor(NCCLSVC_FLOAT32, 2, (int64_t[]){1 << 20, 1 << 14});
	assert_int_equal(ncclsvc_tensor_size(&t, NULL, &bytes), NCCLSVC_OK);
	assert_int_equal(bytes, UINT64_C(1) << 36);
	t = tensor(NCCLSVC_FLOAT32, 2, (int64_t[]){INT64_MAX, 4});
	REFUSED(ncclsvc_tensor_size(&t, NULL, NULL), "overflow");
	t = tensor(NCCLSVC_FLOAT32, 1, (int64_t[]){INT64_MAX});
	REFUSED(ncclsvc_tensor_size(&t, NULL, NULL), "overflow");
	t = tensor(NCCLSVC_FLOAT32, 2, (int64_t[]){4, -2});
	REFUSED(ncclsvc_tensor_size(&t, NULL, NULL), "dimension 1 is -2");
	t = tensor((ncclsvc_type)99, 0, NULL);
	REFUSED(ncclsvc_tensor_size(&t, NULL, NULL), "type 99");
	t = tensor(NCCLSVC_INT8, 33, (int64_t[33]){0});
	REFUSED(ncclsvc_tensor_size(&t, NULL, NULL), "33 dimensions");
	t = tensor(NCCLSVC_INT8, -1, NULL);
	REFUSED(ncclsvc_tensor_size(&t, NULL, NULL), "-1 dimensions");
	t = tensor(NCCLSVC_INT8, 1, NULL);
	REFUSED(ncclsvc_tensor_size(&t, NULL, NULL), "1 dimensions");
	REFUSED(ncclsvc_tensor_size(NULL, NULL, NULL), "NULL");
}

static void two_elements_to_a_byte(void **state)
{
	static const uint64_t odd = UINT64_C(0x7fffffffffffffff);
	(void)state;
	for (unsigned type = NCCLSVC_INT4; type <= NCCLSVC_UINT4; type++) {
		uint64_t count, bytes;
		for (int64_t n = 0; n < 6; n++) {
			ncclsvc_tensor t = tensor((ncclsvc_type)type, 1, &n);
			assert_int_equal(ncclsvc_tensor_size(&t, &count, &bytes), NCCLSVC_OK);
			assert_int_equal(count, n);
			assert_int_equal(bytes, (n + 1) / 2);
		}
		ncclsvc_tensor t = tensor((ncclsvc_type)type, 0, NULL);
		assert_int_equal(ncclsvc_tensor_size(&t, NULL, &bytes), NCCLSVC_OK);
		assert_int_equal(bytes, 1);
		t = tensor((ncclsvc_type)type, 2, (int64_t[]){3, 3});
		assert_int_equal(ncclsvc_tensor_size(&t, NULL, &bytes), NCCLSVC_OK);
		assert_int_equal(bytes, 5);
		t = tensor((ncclsvc_type)type, 1, (const int64_t *)&odd);
		assert_int_equal(ncclsvc_tensor_size(&t, NULL, &bytes), NCCLSVC_OK);
		assert_int_equal(bytes, odd / 2 + 1);
	}
}

static void aggregated_buffers(void **state)
{
	static const uint64_t sizes[] = {24, 512, 4, 0, 100}, at[] = {0, 256, 768, 1024, 1024};
	uint64_t offsets[5], total;
	(void)state;
	assert_int_equal(ncclsvc_aggregate(sizes, 5, offsets, &total), NCCLSVC_OK);
	assert_int_equal(total, 1124);
	assert_memory_equal(offsets, at, sizeof(at));
	assert_int_equal(ncclsvc_aggregate(sizes, 5, NULL, &total), NCCLSVC_OK);
	assert_int_equal(ncclsvc_aggregate(NULL, 0, NULL, &total), NCCLSVC_OK);
	assert_int_equal(total, 0);
	assert_int_equal(ncclsvc_aggregate((uint64_t[]){256, 1}, 2, offsets, &total), NCCLSVC_OK);
	assert_int_equal(offsets[1], 256);
	/* Beyond the range of int, up to the end of 64 bits. */
	const uint64_t large = UINT64_C(3) << 30;
	assert_int_equal(ncclsvc_aggregate((uint64_t[]){large + 1, large}, 2, offsets, &total),
			 NCCLSVC_OK);
	assert_int_equal(offsets[1], large + 256);
	assert_int_equal(total, 2 * large + 256);
	REFUSED(ncclsvc_aggregate((uint64_t[]){UINT64_MAX, 0}, 2, offsets, &total), "tensor 1");
	REFUSED(ncclsvc_aggregate((uint64_t[]){UINT64_MAX - 255, 300}, 2, NULL, &total),
		"tensor 1");
	REFUSED(ncclsvc_aggregate(sizes, 5, NULL, NULL), "NULL");
}

/* ---- Partitions ---- */

static void partitions(void **state)
{
	static const struct {
		uint64_t total;
		int size;
		uint64_t padded, per_rank;
	} rows[] = {
		{950, 2, 960, 480},   {950, 4, 1024, 256}, {64, 2, 128, 64},
		{1024, 2, 1088, 544}, {256, 8, 512, 64},   {1, 8, 256, 32},
	};
	ncclsvc_partition p;
	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(ncclsvc_partition_of(rows[i].total, rows[i].size, &p), NCCLSVC_OK);
		assert_int_equal(p.total, rows[i].total);
		assert_int_equal(p.padded, rows[i].padded);
		assert_int_equal(p.per_rank, rows[i].per_rank);
	}
	REFUSED(ncclsvc_partition_of(1, 0, &p), "size is 0");
	REFUSED(ncclsvc_partition_of(1, -3, &p), "size is -3");
	REFUSED(ncclsvc_partition_of(UINT64_MAX, 2, &p), "overflow");
	REFUSED(ncclsvc_partition_of(1, 2, NULL), "NULL");
}

static void owners_of_tensors(void **state)
{
	static const uint64_t refused[] = {6, 85, 512, 91, 256};
	ncclsvc_partition p = {0};
	int owners[6];
	(void)state;
	/* 91 to 603 extends across 480. */
	REFUSED(ncclsvc_partition_tensors(refused, 5, 2, &p, owners), "tensor 2");
	why("91");
	why("603");
	why("480");
	assert_int_equal(p.total, 0);
	/* In another order none does: 6 + 85 + 256 + 91 = 438, and 512 begins at the border. */
	const uint64_t good[] = {6, 85, 256, 133, 0, 470};
	assert_int_equal(ncclsvc_partition_tensors(good, 6, 2, &p, owners), NCCLSVC_OK);
	assert_int_equal(p.padded, 960);
	assert_memory_equal(owners, ((int[]){0, 0, 0, 0, 1, 1}), sizeof(owners));
	assert_int_equal(ncclsvc_partition_tensors(refused, 5, 1, &p, owners), NCCLSVC_OK);
	assert_int_equal(ncclsvc_partition_tensors(NULL, 0, 3, &p, NULL), NCCLSVC_OK);
	assert_int_equal(p.per_rank, 32);
	REFUSED(ncclsvc_partition_tensors((uint64_t[]){UINT64_MAX, 1}, 2, 2, &p, owners),
		"tensor 1");
	REFUSED(ncclsvc_partition_tensors((uint64_t[]){1}, 1, 0, &p, owners), "size is 0");
}

/* Checks that the views cover every tensor in order, each within its owner's range and as long as
 * possible. */
static void check_fit(const uint64_t *counts, size_t n, int size, size_t views_want)
{
	ncclsvc_view views[16];
	uint64_t sizes[16], seen[8] = {0};
	int owners[16];
	ncclsvc_partition p, of_views;
	size_t k = 0;
	assert_int_equal(ncclsvc_partition_fit(counts, n, size, &p, views, &k), NCCLSVC_OK);
	assert_int_equal(k, views_want);
	for (size_t i = 0; i < k; i++) {
		assert_int_equal(views[i].first, seen[views[i].tensor]);
		seen[views[i].tensor] += sizes[i] = (uint64_t)views[i].count;
	}
	for (size_t i = 0; i < n; i++)
		assert_int_equal(seen[i], counts[i]);
	assert_int_equal(ncclsvc_partition_tensors(sizes, k, size, &of_views, owners), NCCLSVC_OK);
	assert_memory_equal(&of_views, &p, sizeof(p));
	for (size_t i = 0; i < k; i++)
		assert_int_equal(views[i].owner, owners[i]);
}

static void views_that_fit(void **state)
{
	const uint64_t refused[] = {6, 85, 512, 91, 256}, border[] = {480, 0, 470};
	ncclsvc_view views[6];
	size_t n = 0;
	(void)state;
	assert_int_equal(ncclsvc_partition_fit(refused, 5, 2, NULL, views, &n), NCCLSVC_OK);
	assert_int_equal(n, 6);
	assert_int_equal(views[2].count, 480 - 91);
	assert_int_equal(views[2].owner, 0);
	assert_int_equal(views[3].tensor, 2);
	assert_int_equal(views[3].first, 480 - 91);
	assert_int_equal(views[3].owner, 1);
	check_fit(refused, 5, 2, 6);
	check_fit(refused, 5, 1, 5);
	check_fit(border, 3, 2, 3); /* fits as it is */
	check_fit((uint64_t[]){950}, 1, 4, 4);
	check_fit((uint64_t[]){0, 64, 0}, 3, 2, 3);
	check_fit((uint64_t[]){1}, 1, 8, 1);
	check_fit(NULL, 0, 3, 0);
	REFUSED(ncclsvc_partition_fit(refused, 5, 0, NULL, views, &n), "size is 0");
	REFUSED(ncclsvc_partition_fit(NULL, 1, 2, NULL, views, &n), "NULL");
	REFUSED(ncclsvc_partition_fit(refused, 5, 2, NULL, NULL, &n), "NULL");
	REFUSED(ncclsvc_partition_fit((uint64_t[]){UINT64_MAX, 1}, 2, 2, NULL, views, &n),
		"tensor 1");
	REFUSED(ncclsvc_partition_fit((uint64_t[]){UINT64_C(1) << 63}, 1, 2, NULL, views, &n),
		"dimension");
}

/* ---- Lists ---- */

static struct list taken(const ncclsvc_tensor *tensors, size_t n)
{
	struct list l;
	assert_int_equal(list_take(&l, tensors, n, false), NCCLSVC_OK);
	return l;
}

static void lists_that_lie_like_a_buffer(void **state)
{
	static _Alignas(256) char memory[1024];
	const int64_t dims[] = {256, 10};
	(void)state;
	ncclsvc_tensor t[] = {
		{memory, NCCLSVC_INT8, 1, &dims[0]},
		{NULL, NCCLSVC_INT8, 1, (int64_t[]){0}},
		{memory + 256, NCCLSVC_INT8, 1, &dims[1]},
	};
	struct list l = taken(t, 3);
	assert_ptr_equal(list_as_it_lies(&l, false), memory);
	l.tensors[2].data = memory + 257;
	assert_null(list_as_it_lies(&l, true));
	l.tensors[2].data = memory + 512;
	assert_null(list_as_it_lies(&l, true));
	list_free(&l);
	/* With a gap. */
	t[0].dims = &dims[1];
	l = taken(t, 3);
	assert_null(list_as_it_lies(&l, false));
	assert_ptr_equal(list_as_it_lies(&l, true), memory);
	list_free(&l);
	l = taken(t + 1, 1);
	assert_null(list_as_it_lies(&l, true));
	list_free(&l);
	/* In reverse order. */
	l = taken((ncclsvc_tensor[]){t[2], t[0]}, 2);
	assert_null(list_as_it_lies(&l, true));
	list_free(&l);
}

/* ---- Buffers ---- */

static void gaps_between_parts_are_zero(void **state)
{
	struct ncclsvc_comm comm = {.device = NCCLSVC_DEVICE_HOST};
	ncclsvc_tensors lists = {.comm = &comm, .host = &comm};
	char memory[1024], from[1024];
	struct stage_buffer buffer = {.at = memory, .bytes = sizeof(memory)};
	struct piece pieces[] = {{from, 100, 50}, {from, 256, 4}};
	(void)state;
	memset(memory, 0x66, sizeof(memory));
	memset(from, 0x11, sizeof(from));
	assert_int_equal(copy_in(&lists, &buffer, pieces, 2, 32, 512, 9), NCCLSVC_OK);
	for (size_t i = 0; i < sizeof(memory); i++) {
		bool copied = (i >= 100 && i < 150) || (i >= 256 && i < 260);
		assert_int_equal(memory[i], copied ? 0x11 : i < 32 || i >= 512 ? 0x66 : 0);
	}
	assert_int_equal(lists.copied, 54);
	/* The same layout again, whose gaps are clean; another layout's are not. */
	memory[200] = 1;
	assert_int_equal(copy_in(&lists, &buffer, pieces, 2, 32, 512, 9), NCCLSVC_OK);
	assert_int_equal(memory[200], 1);
	assert_int_equal(copy_in(&lists, &buffer, pieces, 1, 32, 512, 10), NCCLSVC_OK);
	assert_int_equal(memory[200], 0);
	assert_int_equal(memory[256], 0);
	/* An empty list. */
	assert_int_equal(copy_in(&lists, &buffer, NULL, 0, 0, 1024, 0), NCCLSVC_OK);
	assert_int_equal(memory[1023], 0);
}

/* ---- Announcements ---- */

static void announcements_come_across(void **state)
{
	const ncclsvc_tensor t[] = {
		{NULL, NCCLSVC_FLOAT32, 2, (int64_t[]){2, 3}},
		{NULL, NCCLSVC_INT64, 0, NULL},
		{NULL, NCCLSVC_BFLOAT16, 1, (int64_t[]){4}},
	};
	size_t nwords, length;
	struct list l = taken(t, 3), back;
	(void)state;
	uint64_t *words = announce_write(&l, &nwords);
	/* Cumulative counts of dimensions, and the dimensions. */
	assert_memory_equal(words + 4, ((uint64_t[]){2, 2, 3}), 24);
	assert_memory_equal(words + 10, ((uint64_t[]){2, 3, 4}), 24);
	assert_int_equal(nwords, 13);
	assert_int_equal(announce_length(words, 3, &length), NCCLSVC_OK);
	assert_int_equal(length, nwords);
	assert_int_equal(announce_read(words, nwords, &back), NCCLSVC_OK);
	assert_int_equal(back.total, l.total);
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(back.tensors[i].type, t[i].type);
		assert_int_equal(back.tensors[i].ndims, t[i].ndims);
		assert_int_equal(back.bytes[i], l.bytes[i]);
	}
	assert_int_equal(digest_tensors(back.tensors, 3), digest_tensors(l.tensors, 3));
	list_free(&back);
	free(words);
	list_free(&l);
	assert_int_equal(list_take(&l, NULL, 0, false), NCCLSVC_OK);
	words = announce_write(&l, &nwords);
	assert_int_equal(announce_read(words, nwords, &back), NCCLSVC_OK);
	assert_int_equal(back.n, 0);
	list_free(&back);
	free(words);
	list_free(&l);
}

static void lies_are_found(void **state)
{
	const ncclsvc_tensor t[] = {
		{NULL, NCCLSVC_FLOAT32, 2, (int64_t[]){2, 3}},
		{NULL, NCCLSVC_INT64, 1, (int64_t[]){7}},
	};
	static const uint64_t values[] = {0,	      1,	 2,	     3,
					  33,	      255,	 256,	     4096,
					  UINT32_MAX, INT64_MAX, UINT64_MAX, UINT64_C(1) << 63};
	size_t nwords, length;
	unsigned refused = 0;
	struct list l = taken(t, 2), back;
	(void)state;
	uint64_t *words = announce_write(&l, &nwords);
	for (size_t i = 0; i < nwords; i++) {
		for (size_t k = 0; k < sizeof(values) / sizeof(values[0]); k++) {
			uint64_t *lie = malloc(ANNOUNCE_FIRST * sizeof(*lie));
			memcpy(lie, words, ANNOUNCE_FIRST * sizeof(*lie));
			lie[i] = values[k];
			bool same = lie[i] == words[i];
			ncclsvc_result r = announce_length(lie, 2, &length);
			if (!r && length > ANNOUNCE_FIRST) { /* a second message, of garbage, would
								follow */
				lie = realloc(lie, length * sizeof(*lie));
				memset(lie + ANNOUNCE_FIRST, 0x55,
				       (length - ANNOUNCE_FIRST) * sizeof(*lie));
			}
			if (!r)
				r = announce_read(lie, length, &back);
			if (!r) /* a different type of the same size is not detectable by itself */
				list_free(&back);
			else
				refused++;
			if (same)
				assert_int_equal(r, NCCLSVC_OK);
			if (i < 4 && !same)
				assert_true(r);
			free(lie);
		}
	}
	assert_true(refused > nwords * 6);
	assert_int_equal(announce_length(words, 3, &length), NCCLSVC_MISMATCH);
	why("sender has 2, the receiver 3");
	free(words);
	list_free(&l);
}

static void what_is_allowed(void **state)
{
	const ncclsvc_tensor t = {NULL, NCCLSVC_FLOAT32, 2, (int64_t[]){2, 3}};
	const struct {
		ncclsvc_tensor allowed;
		const char *why; /* NULL: it is */
	} rows[] = {
		{{NULL, NCCLSVC_FLOAT32, 2, (int64_t[]){2, 3}}, NULL},
		{{NULL, NCCLSVC_FLOAT32, 2, (int64_t[]){-1, 3}}, NULL},
		{{NULL, NCCLSVC_FLOAT32, -1, NULL}, NULL},
		{{NULL, NCCLSVC_INT32, -1, NULL}, "type of tensor 0"},
		{{NULL, NCCLSVC_FLOAT32, 1, (int64_t[]){6}}, "number of dimensions of tensor 0"},
		{{NULL, NCCLSVC_FLOAT32, 2, (int64_t[]){-1, 4}},
		 "sender has 3, the receiver allows 4"},
	};
	struct list l = taken(&t, 1), allowed;
	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(list_take(&allowed, &rows[i].allowed, 1, true), NCCLSVC_OK);
		assert_int_equal(announce_allowed(&l, &allowed),
				 rows[i].why ? NCCLSVC_MISMATCH : NCCLSVC_OK);
		if (rows[i].why)
			why(rows[i].why);
		list_free(&allowed);
	}
	list_free(&l);
	const ncclsvc_tensor bad = {NULL, NCCLSVC_FLOAT32, 1, (int64_t[]){-2}};
	REFUSED(list_take(&l, &bad, 1, true), "tensor 0: dimension 0 is -2");
	REFUSED(list_take(&l, &bad, 1, false), "tensor 0: a tensor's dimension 0 is -2");
	REFUSED(list_take(&l, NULL, 1, false), "NULL");
	REFUSED(list_take(&l, &bad, NCCLSVC_TENSORS_MAX + 1, false), "65537");
}

static void agreement_words(void **state)
{
	const uint64_t word = agreement(AGREED_STATIC, 99);
	(void)state;
	assert_int_equal(word, agreement(AGREED_STATIC, 99));
	assert_int_not_equal(word, agreement(AGREED_SHAPES, 99));
	assert_int_not_equal(word, agreement(AGREED_STATIC, 98));
	for (int what = AGREED_STATIC; what <= AGREED_REDUCE_SCATTER; what++) {
		uint64_t most = agreement((enum agreed)what, UINT64_MAX);
		assert_true(most && most != UINT64_MAX);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_of_tensors),
		cmocka_unit_test(two_elements_to_a_byte),
		cmocka_unit_test(aggregated_buffers),
		cmocka_unit_test(partitions),
		cmocka_unit_test(views_that_fit),
		cmocka_unit_test(owners_of_tensors),
		cmocka_unit_test(lists_that_lie_like_a_buffer),
		cmocka_unit_test(gaps_between_parts_are_zero),
		cmocka_unit_test(announcements_come_across),
		cmocka_unit_test(lies_are_found),
		cmocka_unit_test(what_is_allowed),
		cmocka_unit_test(agreement_words),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
