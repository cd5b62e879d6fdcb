/* SPDX-License-Identifier: Apache-2.0 */
#include "measured_work.h"

#include <string.h>

#define POISON 0xa5

/* Inputs repeat after this many elements, so that large buffers are quick to fill and compare. A
 * prime, so that data displaced by a block, a chunk or a page is detected. */
#define PERIOD 65521

static inline uint64_t mix(uint64_t x)
{
	x ^= x >> 32;
	x *= UINT64_C(0xd6e8feb86659fd93);
	x ^= x >> 32;
	x *= UINT64_C(0xd6e8feb86659fd93);
	return x ^ (x >> 32);
}

/* Uniformly one of 0..n-1. */
static inline uint32_t below(uint32_t random, uint32_t n)
{
	return (uint32_t)(((uint64_t)random * n) >> 32);
}

static inline uint32_t of_rank(uint64_t h, uint32_t rank)
{
	return (uint32_t)(((h ^ (rank + 1)) * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

/* Integers up to this are exact in the type, including sums over all ranks. */
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
	case NCCLSVC_FLOAT8E4M3:
		return 16;
	case NCCLSVC_FLOAT8E5M2:
		return 8;
	}
	return 1u << 20;
}

static bool is_signed(unsigned type)
{
	return type != NCCLSVC_UINT8 && type != NCCLSVC_UINT32 && type != NCCLSVC_UINT64;
}

/* One rank's input to a reduction at one index; h is the index's hash. */
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
		/* At most five ranks contribute a 2; the others only change the sign. */
		uint32_t twos = below(common, (n < 5 ? n : 5) + 1);
		uint32_t place = rank + below(common * 2654435761u, n);
		int32_t v = (place < n ? place : place - n) < twos ? 2 : 1;
		return minus && (own & 1) ? -v : v;
	}
	case NCCLSVC_AVG: {
		/* One rank is above the average by one, and another below it. */
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

/* Exact for |v| up to exact_limit and for powers of two. */
static uint8_t to_float8(int64_t v, uint32_t bits, uint32_t bias)
{
	if (v == 0)
		return 0;
	uint32_t m = (uint32_t)(v < 0 ? -v : v), sign = v < 0 ? 0x80 : 0;
	uint32_t exponent = 31 - (uint32_t)__builtin_clz(m);
	uint32_t fraction = exponent < bits ? m << (bits - exponent) : m >> (exponent - bits);
	return (uint8_t)(sign | (exponent + bias) << bits | (fraction & ((1u << bits) - 1)));
}

static uint8_t to_float8e4m3(int64_t v)
{
	return to_float8(v, 3, 7);
}

static uint8_t to_float8e5m2(int64_t v)
{
	return to_float8(v, 2, 15);
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
	case NCCLSVC_FLOAT8E4M3:                                                                   \
		STORE_AS(uint8_t, to_float8e4m3, each);                                            \
	case NCCLSVC_FLOAT8E5M2:                                                                   \
		STORE_AS(uint8_t, to_float8e5m2, each);                                            \
	case NCCLSVC_FLOAT32:                                                                      \
		STORE_AS(float, , each);                                                           \
	case NCCLSVC_FLOAT64:                                                                      \
		STORE_AS(double, , each);                                                          \
	}

/* Source of elements: one rank's input, or the reduction of all. */
enum { REDUCED = -1 };

static void make_exact(const struct work *w, uint64_t seed, int from, uint64_t first, uint64_t n,
		       void *out)
{
	uint32_t limit = exact_limit(w->type);
	bool minus = is_signed(w->type);
	if (from == REDUCED)
		STORE(w->type, reduced(w, limit, minus, mix(seed + first + i)))
	else
		STORE(w->type, operand(w, limit, minus, mix(seed + first + i), (uint32_t)from))
}

/* Elements for a copy: the same bits for all types of the same size. */
static void make_bits(unsigned type, uint64_t seed, int from, uint64_t first, uint64_t n, void *out)
{
	uint64_t base = mix(seed + (uint64_t)from) + first;
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

/* Elements first..first+n of a source; n is at most PERIOD. */
static void make(const struct work *w, uint64_t seed, int from, uint64_t first, uint64_t n,
		 void *out)
{
	size_t size = work_type_size(w->type);
	for (uint64_t done = 0, part; done < n; done += part) {
		uint64_t at = (first + done) % PERIOD;
		part = n - done < PERIOD - at ? n - done : PERIOD - at;
		char *to = (char *)out + done * size;
		if (work_reduces(w->op))
			make_exact(w, seed, from, at, part, to);
		else
			make_bits(w->type, seed, from, at, part, to);
	}
}

/* Part of what a rank should receive: n consecutive elements from one source. */
struct run {
	int from;
	uint64_t first, n;
};

/* The run that starts at element `at` of the rank's receive buffer. */
static struct run expected_run(const struct work *w, uint32_t rank, uint64_t at)
{
	uint64_t mine = w->count * rank;
	switch (w->op) {
	case NCCLSVC_ALL_REDUCE:
	case NCCLSVC_REDUCE:
		return (struct run){REDUCED, 0, w->count};
	case NCCLSVC_REDUCE_SCATTER:
		return (struct run){REDUCED, mine, w->count};
	case NCCLSVC_BROADCAST:
		return (struct run){w->root, 0, w->count};
	case NCCLSVC_SCATTER:
		return (struct run){w->root, mine, w->count};
	case NCCLSVC_ALL_TO_ALL:
		return (struct run){(int)(at / w->count), mine, w->count};
	case PERF_SENDRECV:
		return (struct run){(int)((rank + w->nranks - 1) % w->nranks), 0, w->count};
	}
	return (struct run){(int)(at / w->count), 0, w->count};
}

void data_fill(const struct work *w, uint64_t seed, uint32_t rank, void *send)
{
	size_t size = work_type_size(w->type);
	uint64_t n = work_sides(w, rank).send, done = n < PERIOD ? n : PERIOD;
	make(w, seed, (int)rank, 0, done, send);
	for (uint64_t part; done < n; done += part) {
		part = done < n - done ? done : n - done;
		memcpy((char *)send + done * size, send, part * size);
	}
}

void data_poison(void *buffer, uint64_t bytes)
{
	memset(buffer, POISON, bytes + DATA_GUARD);
}

static uint64_t differing(const uint8_t *a, const uint8_t *b, uint64_t n, size_t size)
{
	uint64_t differ = 0;
	if (memcmp(a, b, n * size) == 0)
		return 0;
	for (uint64_t i = 0; i < n; i++)
		differ += memcmp(a + i * size, b + i * size, size) != 0;
	return differ;
}

uint64_t data_wrong(const struct work *w, uint64_t seed, uint32_t rank, const void *recv)
{
	static uint8_t expected[PERIOD * sizeof(uint64_t)];
	size_t size = work_type_size(w->type);
	uint64_t total = work_sides(w, rank).recv, wrong = 0;
	struct run run;
	for (uint64_t at = 0; at < total; at += run.n) {
		run = expected_run(w, rank, at);
		make(w, seed, run.from, run.first, run.n < PERIOD ? run.n : PERIOD, expected);
		for (uint64_t done = 0; done < run.n; done += PERIOD) {
			uint64_t n = run.n - done < PERIOD ? run.n - done : PERIOD;
			wrong += differing((const uint8_t *)recv + (at + done) * size, expected, n,
					   size);
		}
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
