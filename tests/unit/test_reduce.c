/* SPDX-License-Identifier: Apache-2.0
 * Every variant of every reduction compared with plain scalar arithmetic, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first */
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proto/names.h"
#include "reduce/reduce_variant.h"

#define PLACES	  9 /* maximum number of sources, and of destinations */
#define MAX_BYTES 9728
#define GUARD	  64
#define SPACE	  (GUARD + 64 + MAX_BYTES + GUARD)
#define FILL	  0xa5

static _Alignas(64) unsigned char original[PLACES][MAX_BYTES], expected[MAX_BYTES];
static _Alignas(64) unsigned char source[PLACES][SPACE], target[PLACES][SPACE];

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

/* The reference. A small float has `fraction` bits of fraction and 15 - fraction of exponent. */

static double small_decode(uint16_t bits, int fraction)
{
	int exponent_max = (1 << (15 - fraction)) - 1, bias = exponent_max >> 1;
	int exponent = (bits & 0x7fff) >> fraction, mantissa = bits & ((1 << fraction) - 1);
	double v;

	if (exponent == exponent_max)
		v = mantissa ? NAN : INFINITY;
	else if (exponent == 0)
		v = ldexp(mantissa, 1 - bias - fraction);
	else
		v = ldexp(mantissa + (1 << fraction), exponent - bias - fraction);
	return bits & 0x8000 ? -v : v;
}

static uint16_t small_encode(double v, int fraction)
{
	int exponent_max = (1 << (15 - fraction)) - 1, bias = exponent_max >> 1, exponent;
	uint16_t infinity = (uint16_t)(exponent_max << fraction), sign = signbit(v) ? 0x8000 : 0;

	if (isnan(v))
		return infinity | (uint16_t)(1 << (fraction - 1));
	if (isinf(v))
		return sign | infinity;
	if (v == 0)
		return sign;
	v = fabs(v);
	frexp(v, &exponent);
	if (exponent - 1 < 1 - bias)
		exponent = 2 - bias;
	/* In units in the last place, which continue through subnormals and into infinity. */
	double units = nearbyint(ldexp(v, fraction - (exponent - 1)));
	double bits = units + ldexp(exponent - 2 + bias, fraction);
	return sign | (bits > infinity ? infinity : (uint16_t)bits);
}

static double float_step(ncclsvc_redop op, double a, double b, bool in_double)
{
	switch (op) {
	case NCCLSVC_PROD:
		return in_double ? a * b : (double)((float)a * (float)b);
	case NCCLSVC_MIN:
		return isnan(a) || isnan(b) ? (double)NAN : b < a ? b : a;
	case NCCLSVC_MAX:
		return isnan(a) || isnan(b) ? (double)NAN : b > a ? b : a;
	default:
		return in_double ? a + b : (double)((float)a + (float)b);
	}
}

static double float_load(ncclsvc_type type, const unsigned char *p)
{
	uint16_t bits;
	float f;
	double d;

	switch (type) {
	case NCCLSVC_FLOAT64:
		memcpy(&d, p, sizeof(d));
		return d;
	case NCCLSVC_FLOAT32:
		memcpy(&f, p, sizeof(f));
		return f;
	default:
		memcpy(&bits, p, sizeof(bits));
		return small_decode(bits, type == NCCLSVC_FLOAT16 ? 10 : 7);
	}
}

static void float_store(ncclsvc_type type, unsigned char *p, double v)
{
	if (type == NCCLSVC_FLOAT64) {
		uint64_t bits;
		memcpy(&bits, &v, 8);
		if (isnan(v))
			bits = UINT64_C(0x7ff8000000000000);
		memcpy(p, &bits, 8);
	} else if (type == NCCLSVC_FLOAT32) {
		float f = (float)v;
		uint32_t bits;
		memcpy(&bits, &f, 4);
		if (isnan(v))
			bits = 0x7fc00000;
		memcpy(p, &bits, 4);
	} else {
		uint16_t bits = small_encode(v, type == NCCLSVC_FLOAT16 ? 10 : 7);
		memcpy(p, &bits, 2);
	}
}

static bool is_float(ncclsvc_type type)
{
	return type == NCCLSVC_FLOAT16 || type == NCCLSVC_BFLOAT16 || type == NCCLSVC_FLOAT32 ||
	       type == NCCLSVC_FLOAT64;
}

static bool is_signed(ncclsvc_type type)
{
	return type == NCCLSVC_INT8 || type == NCCLSVC_INT32 || type == NCCLSVC_INT64;
}

/* Wide enough that nothing overflows; min and max compare in it, the others wrap when stored. */
static __int128 integer_load(ncclsvc_type type, const unsigned char *p)
{
	size_t size = svc_type_size(type);
	uint64_t v = 0;

	memcpy(&v, p, size);
	if (!is_signed(type))
		return v;
	unsigned shift = 64 - 8 * (unsigned)size;
	return (int64_t)(v << shift) >> shift;
}

static __int128 integer_step(ncclsvc_redop op, __int128 a, __int128 b)
{
	switch (op) {
	case NCCLSVC_PROD:
		return (__int128)((unsigned __int128)a * (unsigned __int128)b);
	case NCCLSVC_MIN:
		return b < a ? b : a;
	case NCCLSVC_MAX:
		return b > a ? b : a;
	default:
		return a + b;
	}
}

static void reference_element(ncclsvc_type type, ncclsvc_redop op, unsigned nsrc, size_t at)
{
	if (is_float(type)) {
		bool in_double = type == NCCLSVC_FLOAT64;
		double v = float_load(type, original[0] + at);
		for (unsigned s = 1; s < nsrc; s++)
			v = float_step(op, v, float_load(type, original[s] + at), in_double);
		if (op == NCCLSVC_AVG)
			v = in_double ? v / nsrc : (double)((float)v / (float)nsrc);
		float_store(type, expected + at, v);
		return;
	}
	__int128 v = integer_load(type, original[0] + at);
	for (unsigned s = 1; s < nsrc; s++)
		v = integer_step(op, v, integer_load(type, original[s] + at));
	uint64_t wrapped = (uint64_t)v;
	if (op == NCCLSVC_AVG)
		v = is_signed(type) ? (__int128)((int64_t)wrapped / (int64_t)nsrc)
				    : (__int128)(wrapped / nsrc);
	uint64_t bits = (uint64_t)v;
	memcpy(expected + at, &bits, svc_type_size(type));
}

static void reference(ncclsvc_type type, ncclsvc_redop op, unsigned nsrc, size_t bytes)
{
	size_t size = svc_type_size(type);

	if (nsrc == 1) {
		memcpy(expected, original[0], bytes);
		return;
	}
	for (size_t at = 0; at < bytes; at += size)
		reference_element(type, op, nsrc, at);
}

/* Zeros, ones, infinities, NaNs of both kinds and signs, extremes: as the upper bits of a type. */
static const uint16_t special[] = {0x0000, 0x8000, 0x7c00, 0xfc00, 0x7e01, 0xfd55, 0x7f80, 0xff80,
				   0x7fc0, 0xffa1, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0x7f7f,
				   0x3c00, 0xbc00, 0x3f80, 0xbf80, 0xffff, 0x7fff, 0x7ff8, 0x7ff0,
				   0xfff4, 0x0080, 0x007f, 0x3f00, 0x4780};

static void fill_sources(ncclsvc_type type, size_t bytes)
{
	size_t size = svc_type_size(type);

	for (unsigned s = 0; s < PLACES; s++)
		for (size_t at = 0; at < bytes; at += size) {
			uint64_t r = next_random(), kind = r >> 61, v = next_random();
			if (kind == 0)
				v = (uint64_t)special[r % (sizeof(special) / 2)] << 48;
			else if (kind < 4 && is_float(type)) /* numbers of the same magnitude */
				v = (v & 0x80ffffffffffffff) | UINT64_C(0x3f) << 56;
			v >>= 64 - 8 * size;
			memcpy(original[s] + at, &v, size);
		}
}

static void fill(unsigned char *space, size_t at, size_t bytes)
{
	memset(space + at - GUARD, FILL, GUARD + bytes + GUARD);
}

static void check_target(const unsigned char *space, size_t at, size_t bytes, const char *what,
			 const struct reduce_variant *variant)
{
	static unsigned char guard[GUARD];

	memset(guard, FILL, GUARD);
	if (memcmp(space + at - GUARD, guard, GUARD) || memcmp(space + at + bytes, guard, GUARD))
		fail_msg("%s, %s: wrote outside of %zu bytes", variant->name, what, bytes);
	if (memcmp(space + at, expected, bytes) == 0)
		return;
	for (size_t i = 0; i < bytes; i++)
		if (space[at + i] != expected[i])
			fail_msg("%s, %s: byte %zu of %zu is %02x, not %02x", variant->name, what,
				 i, bytes, space[at + i], expected[i]);
}

enum placement { APART, IN_PLACE };
enum alignment { ALIKE, ANYHOW };

/* Runs one call with fresh copies of the originals. `expected` holds the reference. */
static void run(const struct reduce_variant *variant, ncclsvc_type type, ncclsvc_redop op,
		unsigned nsrc, unsigned ndst, size_t bytes, enum placement placement,
		enum alignment alignment, bool streaming)
{
	size_t size = svc_type_size(type), common = next_random() % (64 / size) * size;
	size_t src_at[PLACES], dst_at[PLACES];
	unsigned char *dst_space[PLACES];
	const void *src[PLACES];
	void *dst[PLACES];
	char what[128];

	snprintf(what, sizeof(what), "%s %s of %u into %u%s%s%s", svc_type_name(type),
		 svc_redop_name(op), nsrc, ndst, placement == IN_PLACE ? " in place" : "",
		 alignment == ALIKE ? " aligned alike" : "", streaming ? " streaming" : "");
	for (unsigned s = 0; s < nsrc; s++) {
		src_at[s] = GUARD + next_random() % 64;
		fill(source[s], src_at[s], bytes);
		memcpy(source[s] + src_at[s], original[s], bytes);
		src[s] = source[s] + src_at[s];
	}
	unsigned shift = (unsigned)next_random();
	for (unsigned d = 0; d < ndst; d++) {
		unsigned s = (d + shift) % nsrc;
		if (placement == IN_PLACE && d < nsrc) {
			dst_space[d] = source[s];
			dst_at[d] = src_at[s];
		} else {
			dst_space[d] = target[d];
			dst_at[d] = GUARD + (alignment == ALIKE ? common : next_random() % 64);
			fill(target[d], dst_at[d], bytes);
		}
		dst[d] = dst_space[d] + dst_at[d];
	}
	reduce_block_with(variant, type, op, src, nsrc, dst, ndst, bytes / size, streaming);
	for (unsigned d = 0; d < ndst; d++)
		check_target(dst_space[d], dst_at[d], bytes, what, variant);
	if (placement == APART)
		for (unsigned s = 0; s < nsrc; s++)
			assert_memory_equal(src[s], original[s], bytes);
}

static void test_small(void **state)
{
	static const size_t counts[] = {0, 1, 2, 3, 5, 7, 8, 15, 17, 31, 33, 64, 65, 129, 150};
	const struct reduce_variant *variant;

	(void)state;
	for (int type = 0; type < REDUCE_TYPES; type++)
		for (int op = 0; op < REDUCE_REDOPS; op++)
			for (unsigned nsrc = 1; nsrc <= PLACES; nsrc++) {
				size_t size = svc_type_size(type);
				fill_sources(type, 150 * size);
				reference(type, op, nsrc, 150 * size);
				for (unsigned c = 0; c < sizeof(counts) / sizeof(*counts); c++)
					for (unsigned i = 0; (variant = reduce_variant_at(i)); i++)
						run(variant, type, op, nsrc,
						    1 + (unsigned)(next_random() % PLACES),
						    counts[c] * size, next_random() & 1, ANYHOW,
						    next_random() & 1);
			}
}

static void test_every_shape(void **state)
{
	const struct reduce_variant *variant;

	(void)state;
	for (int type = 0; type < REDUCE_TYPES; type++) {
		size_t bytes = 37 * svc_type_size(type);
		fill_sources(type, bytes);
		for (unsigned nsrc = 1; nsrc <= PLACES; nsrc++) {
			reference(type, NCCLSVC_AVG, nsrc, bytes);
			for (unsigned ndst = 1; ndst <= PLACES; ndst++)
				for (unsigned i = 0; (variant = reduce_variant_at(i)); i++)
					for (int way = 0; way < 4; way++)
						run(variant, type, NCCLSVC_AVG, nsrc, ndst, bytes,
						    way & 1, ANYHOW, way >> 1);
		}
	}
}

/* Long enough for every loop and for streaming. */
static void test_large(void **state)
{
	static const unsigned shapes[][2] = {{2, 1}, {2, 2}, {3, 1}, {1, 2}, {4, 4}};
	const struct reduce_variant *variant;

	(void)state;
	for (int type = 0; type < REDUCE_TYPES; type++) {
		size_t size = svc_type_size(type);
		fill_sources(type, MAX_BYTES);
		for (int k = 0; k < 2 * REDUCE_REDOPS; k++) {
			ncclsvc_redop op = k % REDUCE_REDOPS;
			const unsigned *shape = shapes[(type + op + k / REDUCE_REDOPS) % 5];
			size_t bytes = (MAX_BYTES - next_random() % 4096) / size * size;
			reference(type, op, shape[0], bytes);
			for (unsigned i = 0; (variant = reduce_variant_at(i)); i++)
				for (int way = 0; way < 8; way++)
					run(variant, type, op, shape[0], shape[1], bytes, way & 1,
					    way >> 1 & 1, way >> 2);
		}
	}
}

/* x + -0 is x: every value goes in and comes back out. */
static void test_half_identity(void **state)
{
	static uint16_t value[65536], zero[65536], result[65536];
	const void *src[] = {value, zero};
	void *dst[] = {result};
	const struct reduce_variant *variant;

	(void)state;
	for (unsigned v = 0; v < 65536; v++) {
		value[v] = (uint16_t)v;
		zero[v] = 0x8000;
	}
	for (unsigned i = 0; (variant = reduce_variant_at(i)); i++) {
		reduce_block_with(variant, NCCLSVC_FLOAT16, NCCLSVC_SUM, src, 2, dst, 1, 65536,
				  false);
		for (unsigned v = 0; v < 65536; v++)
			assert_int_equal(result[v], (v & 0x7fff) > 0x7c00 ? 0x7e00 : v);
		reduce_block_with(variant, NCCLSVC_BFLOAT16, NCCLSVC_SUM, src, 2, dst, 1, 65536,
				  false);
		for (unsigned v = 0; v < 65536; v++)
			assert_int_equal(result[v], (v & 0x7fff) > 0x7f80 ? 0x7fc0 : v);
	}
}

/* Rounding at its turning points, with known values instead of the reference. */
static void test_half_rounding(void **state)
{
	static const struct {
		ncclsvc_type type;
		ncclsvc_redop op;
		uint16_t a, b, result;
	} known[] = {
		{NCCLSVC_FLOAT16, NCCLSVC_SUM, 0x7bff, 0x4bff, 0x7bff},	 /* 65504 + 15.99 */
		{NCCLSVC_FLOAT16, NCCLSVC_SUM, 0x7bff, 0x4c00, 0x7c00},	 /* 65504 + 16: infinity */
		{NCCLSVC_FLOAT16, NCCLSVC_SUM, 0x3c00, 0x1000, 0x3c00},	 /* 1 + 2^-11: to even */
		{NCCLSVC_FLOAT16, NCCLSVC_SUM, 0x3c01, 0x1000, 0x3c02},	 /* up to even */
		{NCCLSVC_FLOAT16, NCCLSVC_PROD, 0x0001, 0x3800, 0x0000}, /* half the smallest */
		{NCCLSVC_FLOAT16, NCCLSVC_PROD, 0x0003, 0x3800, 0x0002},
		{NCCLSVC_FLOAT16, NCCLSVC_PROD, 0x07ff, 0x3800, 0x0400}, /* into the normals */
		{NCCLSVC_FLOAT16, NCCLSVC_SUM, 0x7c00, 0xfc00, 0x7e00},	 /* inf - inf */
		{NCCLSVC_FLOAT16, NCCLSVC_MIN, 0xfc00, 0x7e01, 0x7e00},	 /* NaN wins */
		{NCCLSVC_FLOAT16, NCCLSVC_MAX, 0x8000, 0x0000, 0x8000},	 /* equal: the first */
		{NCCLSVC_BFLOAT16, NCCLSVC_SUM, 0x3f80, 0x3b80, 0x3f80}, /* 1 + 2^-8: to even */
		{NCCLSVC_BFLOAT16, NCCLSVC_SUM, 0x3f81, 0x3b80, 0x3f82}, /* up to even */
		{NCCLSVC_BFLOAT16, NCCLSVC_SUM, 0x7f7f, 0x7b00, 0x7f80}, /* into infinity */
		{NCCLSVC_BFLOAT16, NCCLSVC_SUM, 0x7f7f, 0x7aff, 0x7f7f},
		{NCCLSVC_BFLOAT16, NCCLSVC_MAX, 0xffa1, 0x7f80, 0x7fc0},
	};
	const struct reduce_variant *variant;

	(void)state;
	for (unsigned i = 0; (variant = reduce_variant_at(i)); i++)
		for (unsigned k = 0; k < sizeof(known) / sizeof(*known); k++) {
			const void *src[] = {&known[k].a, &known[k].b};
			uint16_t result;
			void *dst[] = {&result};
			reduce_block_with(variant, known[k].type, known[k].op, src, 2, dst, 1, 1,
					  false);
			if (result != known[k].result)
				fail_msg("%s, case %u: %04x, not %04x", variant->name, k, result,
					 known[k].result);
		}
}

/* Halves round once: 2048 + 1 + 1 is 2050, although 2048 + 1 alone rounds to 2048. */
static void test_half_rounds_once(void **state)
{
	const uint16_t big = 0x6800, one = 0x3c00;
	const void *src[] = {&big, &one, &one};
	uint16_t result;
	void *dst[] = {&result};

	(void)state;
	reduce_block(NCCLSVC_FLOAT16, NCCLSVC_SUM, src, 3, dst, 1, 1, false);
	assert_int_equal(result, 0x6801);
}

/* The maximum number of ranks of a communicator, each with the extreme value. */
static void test_average_of_many(void **state)
{
	enum { RANKS = 65536 };
	static const void *src[RANKS];
	const struct reduce_variant *variant;
	unsigned char result[8];
	void *dst[] = {result};

	(void)state;
	for (int type = 0; type < REDUCE_TYPES; type++) {
		if (is_float(type))
			continue;
		for (int high = 0; high < 2; high++) {
			size_t size = svc_type_size(type);
			unsigned char extreme[8];
			memset(extreme, high ? 0xff : 0, 8);
			extreme[size - 1] = !is_signed(type) ? extreme[0] : high ? 0x7f : 0x80;
			for (unsigned s = 0; s < RANKS; s++)
				src[s] = extreme;
			if (size == 8) /* their sums wrap */
				continue;
			for (unsigned i = 0; (variant = reduce_variant_at(i)); i++)
				for (unsigned n = RANKS; n >= RANKS - 1; n--) {
					reduce_block_with(variant, type, NCCLSVC_AVG, src, n, dst,
							  1, 1, false);
					assert_memory_equal(result, extreme, size);
				}
		}
	}
}

static void test_copy(void **state)
{
	static const size_t sizes[] = {0, 1, 63, 64, 4095, 4096, 4097, 9000, MAX_BYTES};
	const struct reduce_variant *variant;

	(void)state;
	fill_sources(NCCLSVC_UINT8, MAX_BYTES);
	memcpy(expected, original[0], MAX_BYTES);
	for (unsigned k = 0; k < sizeof(sizes) / sizeof(*sizes); k++)
		for (unsigned i = 0; (variant = reduce_variant_at(i)); i++)
			for (int round = 0; round < 20; round++) {
				size_t to = GUARD + next_random() % 64, from = next_random() % 64;
				fill(target[0], to, sizes[k]);
				memcpy(source[0] + from, original[0], sizes[k]);
				copy_block_with(variant, target[0] + to, source[0] + from, sizes[k],
						round & 1);
				check_target(target[0], to, sizes[k], "copy", variant);
				copy_block_with(variant, target[0] + to, target[0] + to, sizes[k],
						round & 1);
				check_target(target[0], to, sizes[k], "copy to itself", variant);
			}
}

/* The public functions choose a variant themselves. */
static void test_public(void **state)
{
	(void)state;
	fill_sources(NCCLSVC_FLOAT32, MAX_BYTES);
	reference(NCCLSVC_FLOAT32, NCCLSVC_SUM, 2, MAX_BYTES);
	for (int streaming = 0; streaming < 2; streaming++) {
		const void *src[] = {original[0], original[1]};
		void *dst[] = {target[0], target[1]};
		memset(target, 0, sizeof(target));
		reduce_block(NCCLSVC_FLOAT32, NCCLSVC_SUM, src, 2, dst, 2, MAX_BYTES / 4,
			     streaming);
		assert_memory_equal(target[0], expected, MAX_BYTES);
		assert_memory_equal(target[1], expected, MAX_BYTES);
		copy_block(target[2], original[2], MAX_BYTES, streaming);
		assert_memory_equal(target[2], original[2], MAX_BYTES);
	}
	assert_ptr_equal(reduce_variant_at(0), &reduce_plain);
	assert_null(reduce_variant_at(3));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_small),		cmocka_unit_test(test_every_shape),
		cmocka_unit_test(test_large),		cmocka_unit_test(test_half_identity),
		cmocka_unit_test(test_half_rounding),	cmocka_unit_test(test_half_rounds_once),
		cmocka_unit_test(test_average_of_many), cmocka_unit_test(test_copy),
		cmocka_unit_test(test_public),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
