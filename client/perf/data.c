/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"

#include <string.h>

#define POISON 0xa5
#define CHUNK  2048 /* elements made and compared at a time */

static inline uint64_t mix(uint64_t x)
{
	x ^= x >> 32;
	x *= UINT64_C(0xd6e8feb86659fd93);
	x ^= x >> 32;
	x *= UINT64_C(0xd6e8feb86659fd93);
	return x ^ (x >> 32);
}

/* Evenly one of 0..n-1. */
static inline uint32_t below(uint32_t random, uint32_t n)
{
	return (uint32_t)(((uint64_t)random * n) >> 32);
}

static inline uint32_t of_rank(uint64_t h, uint32_t rank)
{
	return (uint32_t)(((h ^ (rank + 1)) * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

/* Up to this, every integer is exact in the type, sums of all ranks included. */
static uint32_t exact_limit(unsigned type)
{
	switch (type) {
	case NCCLSVC_INT8:
		return 127;
	case NCCLSVC_UINT8:
		return 255;
	case NCCLSVC_BFLOAT16:
		return 256;
	case NCCLSVC_FLOAT16:
		return 2047;
	}
	return 1u << 20;
}

static bool is_signed(unsigned type)
{
	return type != NCCLSVC_UINT8 && type != NCCLSVC_UINT32 && type != NCCLSVC_UINT64;
}

/* What a rank gives to a reduction at one index; h is the index's hash. */
static inline int32_t operand(const struct work *w, uint32_t limit, bool minus, uint64_t h,
			      uint32_t rank)
{
	uint32_t n = w->nranks, own = of_rank(h, rank), common = (uint32_t)h;
	switch (w->redop) {
	case NCCLSVC_SUM: {
		uint32_t span = limit / n;
		return (int32_t)below(own, span + 1) - (minus ? (int32_t)(span / 2) : 0);
	}
	case NCCLSVC_PROD: {
		/* At most five ranks have a 2; the others only change the sign. */
		uint32_t twos = below(common, (n < 5 ? n : 5) + 1);
		uint32_t place = rank + below(common * 2654435761u, n);
		int32_t v = (place < n ? place : place - n) < twos ? 2 : 1;
		return minus && (own & 1) ? -v : v;
	}
	case NCCLSVC_AVG: {
		/* One rank is above the average by one, another below by as much. */
		int32_t v = 1 + (int32_t)below(common, limit / n);
		if (n > 1) {
			uint32_t up = below(common * 2654435761u, n);
			uint32_t down = up + 1 + below(common * 2246822519u, n - 1);
			v += (rank == up) - (rank == (down < n ? down : down - n));
		}
		return v;
	}
	}
	return (int32_t)below(own, limit + 1) - (minus ? (int32_t)(limit / 2) : 0);
}

static inline int64_t reduced(const struct work *w, uint32_t limit, bool minus, uint64_t h)
{
	int64_t result = operand(w, limit, minus, h, 0);
	for (uint32_t rank = 1; rank < w->nranks; rank++) {
		int64_t v = operand(w, limit, minus, h, rank);
		switch (w->redop) {
		case NCCLSVC_PROD:
			result *= v;
			break;
		case NCCLSVC_MAX:
			result = v > result ? v : result;
			break;
		case NCCLSVC_MIN:
			result = v < result ? v : result;
			break;
		default:
			result += v;
		}
	}
	return w->redop == NCCLSVC_AVG ? result / w->nranks : result;
}

/* Exact for |v| <= 2047. */
static uint16_t to_float16(int64_t v)
{
	if (v == 0)
		return 0;
	uint16_t sign = v < 0 ? 0x8000 : 0;
	uint32_t m = (uint32_t)(v < 0 ? -v : v);
	uint32_t exponent = 31 - (uint32_t)__builtin_clz(m);
	return (uint16_t)(sign | (exponent + 15) << 10 | ((m << (10 - exponent)) & 0x3ff));
}

/* Exact for |v| <= 256. */
static uint16_t to_bfloat16(int64_t v)
{
	float f = (float)v;
	uint32_t bits;
	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

/* Stores `each(i)` for i in 0..n as elements of the type. */
#define STORE_AS(ctype, convert, each)                                                             \
	for (uint64_t i = 0; i < n; i++)                                                           \
		((ctype *)out)[i] = (ctype)convert(each);                                          \
	break

#define STORE(type, each)                                                                          \
	switch (type) {                                                                            \
	case NCCLSVC_INT8:                                                                         \
	case NCCLSVC_UINT8:                                                                        \
		STORE_AS(uint8_t, , each);                                                         \
	case NCCLSVC_INT32:                                                                        \
	case NCCLSVC_UINT32:                                                                       \
		STORE_AS(uint32_t, , each);                                                        \
	case NCCLSVC_INT64:                                                                        \
	case NCCLSVC_UINT64:                                                                       \
		STORE_AS(uint64_t, , each);                                                        \
	case NCCLSVC_FLOAT16:                                                                      \
		STORE_AS(uint16_t, to_float16, each);                                              \
	case NCCLSVC_BFLOAT16:                                                                     \
		STORE_AS(uint16_t, to_bfloat16, each);                                             \
	case NCCLSVC_FLOAT32:                                                                      \
		STORE_AS(float, , each);                                                           \
	case NCCLSVC_FLOAT64:                                                                      \
		STORE_AS(double, , each);                                                          \
	}

static void make_operands(const struct work *w, uint64_t seed, uint32_t rank, uint64_t first,
			  uint64_t n, void *out)
{
	uint32_t limit = exact_limit(w->type);
	bool minus = is_signed(w->type);
	STORE(w->type, operand(w, limit, minus, mix(seed + first + i), rank))
}

static void make_reduced(const struct work *w, uint64_t seed, uint64_t first, uint64_t n, void *out)
{
	uint32_t limit = exact_limit(w->type);
	bool minus = is_signed(w->type);
	STORE(w->type, reduced(w, limit, minus, mix(seed + first + i)))
}

/* Elements of a copy: the same bits for any type of the same size. */
static void make_bits(unsigned type, uint64_t seed, uint32_t rank, uint64_t first, uint64_t n,
		      void *out)
{
	uint64_t base = mix(seed + rank) + first;
	switch (work_type_size(type)) {
	case 1:
		STORE_AS(uint8_t, mix, base + i);
	case 2:
		STORE_AS(uint16_t, mix, base + i);
	case 4:
		STORE_AS(uint32_t, mix, base + i);
	case 8:
		STORE_AS(uint64_t, mix, base + i);
	}
}

/* Elements first..first+n of what the rank must have received. A run stays in one rank's block, so
 * n may come back smaller. */
static uint64_t make_expected(const struct work *w, uint64_t seed, uint32_t rank, uint64_t first,
			      uint64_t n, void *out)
{
	uint64_t mine = w->count * rank, block = first / w->count, at = first % w->count;
	uint32_t from = (uint32_t)block;
	switch (w->op) {
	case NCCLSVC_ALL_REDUCE:
	case NCCLSVC_REDUCE:
		make_reduced(w, seed, first, n, out);
		return n;
	case NCCLSVC_REDUCE_SCATTER:
		make_reduced(w, seed, mine + first, n, out);
		return n;
	case NCCLSVC_BROADCAST:
		make_bits(w->type, seed, (uint32_t)w->root, first, n, out);
		return n;
	case NCCLSVC_SCATTER:
		make_bits(w->type, seed, (uint32_t)w->root, mine + first, n, out);
		return n;
	case PERF_SENDRECV:
		make_bits(w->type, seed, (rank + w->nranks - 1) % w->nranks, first, n, out);
		return n;
	}
	n = n < w->count - at ? n : w->count - at;
	make_bits(w->type, seed, from, w->op == NCCLSVC_ALL_TO_ALL ? mine + at : at, n, out);
	return n;
}

void data_fill(const struct work *w, uint64_t seed, uint32_t rank, void *send)
{
	uint64_t n = work_sides(w, rank).send;
	if (n == 0)
		return;
	if (work_reduces(w->op))
		make_operands(w, seed, rank, 0, n, send);
	else
		make_bits(w->type, seed, rank, 0, n, send);
}

void data_poison(void *buffer, uint64_t bytes)
{
	memset(buffer, POISON, bytes + DATA_GUARD);
}

uint64_t data_wrong(const struct work *w, uint64_t seed, uint32_t rank, const void *recv)
{
	_Alignas(64) uint8_t expected[CHUNK * sizeof(uint64_t)];
	size_t size = work_type_size(w->type);
	uint64_t total = work_sides(w, rank).recv, wrong = 0;
	for (uint64_t first = 0, n; first < total; first += n) {
		n = total - first < CHUNK ? total - first : CHUNK;
		n = make_expected(w, seed, rank, first, n, expected);
		const uint8_t *got = (const uint8_t *)recv + first * size;
		if (memcmp(got, expected, n * size) == 0)
			continue;
		for (uint64_t i = 0; i < n; i++)
			wrong += memcmp(got + i * size, expected + i * size, size) != 0;
	}
	return wrong;
}

uint64_t data_guard_wrong(const void *buffer, uint64_t bytes)
{
	const uint8_t *guard = (const uint8_t *)buffer + bytes;
	uint64_t wrong = 0;
	for (size_t i = 0; i < DATA_GUARD; i++)
		wrong += guard[i] != POISON;
	return wrong;
}
