/* SPDX-License-Identifier: Apache-2.0
 * Reductions, in the order of the ranks. Small floating-point types are summed as float and rounded
 * once, to the nearest, ties to even. */
#include <math.h>
#include <string.h>

#include "nccl_fake.h"

/* ---- Small floating-point types ------------------------------------------------------------ */

struct format {
	int bits, exponent, mantissa;
	bool finite; /* no infinities: the all-ones exponent is ordinary, and NaN only with an
			all-ones mantissa */
};

static const struct format f16 = {16, 5, 10, false};
static const struct format bf16 = {16, 8, 7, false};
static const struct format e4m3 = {8, 4, 3, true};
static const struct format e5m2 = {8, 5, 2, false};

static float decode(uint32_t x, const struct format *f)
{
	int bias = (1 << (f->exponent - 1)) - 1;
	uint32_t top = (1u << f->exponent) - 1;
	uint32_t m = x & ((1u << f->mantissa) - 1), e = x >> f->mantissa & top;
	bool negative = x >> (f->bits - 1) & 1;
	float value;
	if (e == top && !f->finite)
		value = m ? NAN : INFINITY;
	else if (e == top && m == (1u << f->mantissa) - 1)
		value = NAN;
	else if (e == 0)
		value = ldexpf((float)m, 1 - bias - f->mantissa);
	else
		value = ldexpf((float)(m | 1u << f->mantissa), (int)e - bias - f->mantissa);
	return negative ? -value : value;
}

static uint32_t encode(float value, const struct format *f)
{
	int bias = (1 << (f->exponent - 1)) - 1;
	uint32_t top = (1u << f->exponent) - 1, ones = (1u << f->mantissa) - 1;
	uint32_t sign = signbit(value) ? 1u << (f->bits - 1) : 0;
	uint32_t nan = top << f->mantissa | (f->finite ? ones : 1u << (f->mantissa - 1));
	/* 8-bit types saturate, as NCCL's conversions do. */
	uint32_t max = f->finite ? nan - 1 : (top << f->mantissa) - 1;
	uint32_t over = f->bits == 8 ? max : top << f->mantissa;
	if (isnan(value))
		return sign | nan;
	value = fabsf(value);
	if (isinf(value))
		return sign | over;
	int e;
	frexpf(value, &e);
	e = e - 1 < 1 - bias ? 1 - bias : e - 1;
	/* In units of the last place; the addition below carries into the exponent. */
	uint32_t m = (uint32_t)rintf(ldexpf(value, f->mantissa - e));
	uint32_t x = m < (1u << f->mantissa) ? m : ((uint32_t)(e + bias - 1) << f->mantissa) + m;
	return sign | (x > max ? over : x);
}

static float fold(float a, float b, int redop)
{
	switch (redop) {
	case NCCLSVC_PROD:
		return a * b;
	case NCCLSVC_MAX:
		return fmaxf(a, b);
	case NCCLSVC_MIN:
		return fminf(a, b);
	}
	return a + b;
}

static uint32_t load_small(const char *p, size_t i, int bits)
{
	uint16_t x;
	if (bits == 8)
		return (unsigned char)p[i];
	memcpy(&x, p + 2 * i, 2);
	return x;
}

static void reduce_small(char *to, char *const *from, int ranks, size_t n, int redop,
			 const struct format *f)
{
	for (size_t i = 0; i < n; i++) {
		float sum = decode(load_small(from[0], i, f->bits), f);
		for (int r = 1; r < ranks; r++)
			sum = fold(sum, decode(load_small(from[r], i, f->bits), f), redop);
		if (redop == NCCLSVC_AVG)
			sum /= (float)ranks;
		uint16_t x = (uint16_t)encode(sum, f);
		if (f->bits == 8)
			to[i] = (char)x;
		else
			memcpy(to + 2 * i, &x, 2);
	}
}

/* ---- Other types --------------------------------------------------------------------------- */

/* Integer sums and products wrap, computed in the unsigned type U of at least 32 bits. */
#define REDUCE(name, T, U)                                                                         \
	static void reduce_##name(char *to, char *const *from, int ranks, size_t n, int redop)     \
	{                                                                                          \
		for (size_t i = 0; i < n; i++) {                                                   \
			T a, b;                                                                    \
			memcpy(&a, from[0] + i * sizeof(T), sizeof(T));                            \
			for (int r = 1; r < ranks; r++) {                                          \
				memcpy(&b, from[r] + i * sizeof(T), sizeof(T));                    \
				if (redop == NCCLSVC_PROD)                                         \
					a = (T)((U)a * (U)b);                                      \
				else if (redop == NCCLSVC_MAX)                                     \
					a = a > b ? a : b;                                         \
				else if (redop == NCCLSVC_MIN)                                     \
					a = a < b ? a : b;                                         \
				else                                                               \
					a = (T)((U)a + (U)b);                                      \
			}                                                                          \
			if (redop == NCCLSVC_AVG)                                                  \
				a = (T)(a / (T)ranks);                                             \
			memcpy(to + i * sizeof(T), &a, sizeof(T));                                 \
		}                                                                                  \
	}

REDUCE(int8, int8_t, uint32_t)
REDUCE(uint8, uint8_t, uint32_t)
REDUCE(int32, int32_t, uint32_t)
REDUCE(uint32, uint32_t, uint32_t)
REDUCE(int64, int64_t, uint64_t)
REDUCE(uint64, uint64_t, uint64_t)
REDUCE(float32, float, float)
REDUCE(float64, double, double)

void nccl_reduce(char *to, char *const *from, int ranks, size_t n, int type, int redop)
{
	switch (type) {
	case NCCLSVC_INT8:
		reduce_int8(to, from, ranks, n, redop);
		break;
	case NCCLSVC_UINT8:
		reduce_uint8(to, from, ranks, n, redop);
		break;
	case NCCLSVC_INT32:
		reduce_int32(to, from, ranks, n, redop);
		break;
	case NCCLSVC_UINT32:
		reduce_uint32(to, from, ranks, n, redop);
		break;
	case NCCLSVC_INT64:
		reduce_int64(to, from, ranks, n, redop);
		break;
	case NCCLSVC_UINT64:
		reduce_uint64(to, from, ranks, n, redop);
		break;
	case NCCLSVC_FLOAT32:
		reduce_float32(to, from, ranks, n, redop);
		break;
	case NCCLSVC_FLOAT64:
		reduce_float64(to, from, ranks, n, redop);
		break;
	case NCCLSVC_FLOAT16:
		reduce_small(to, from, ranks, n, redop, &f16);
		break;
	case NCCLSVC_BFLOAT16:
		reduce_small(to, from, ranks, n, redop, &bf16);
		break;
	case NCCLSVC_FLOAT8E4M3:
		reduce_small(to, from, ranks, n, redop, &e4m3);
		break;
	case NCCLSVC_FLOAT8E5M2:
		reduce_small(to, from, ranks, n, redop, &e5m2);
		break;
	}
}

/* ---- Scaling ------------------------------------------------------------------------------- */

static void scale_small(char *at, size_t n, const char *scalar, const struct format *f)
{
	float by = decode(load_small(scalar, 0, f->bits), f);
	for (size_t i = 0; i < n; i++) {
		uint16_t x = (uint16_t)encode(decode(load_small(at, i, f->bits), f) * by, f);
		if (f->bits == 8)
			at[i] = (char)x;
		else
			memcpy(at + 2 * i, &x, 2);
	}
}

#define SCALE(T, U)                                                                                \
	for (size_t i = 0; i < n; i++) {                                                           \
		T a, by;                                                                           \
		memcpy(&a, at + i * sizeof(T), sizeof(T));                                         \
		memcpy(&by, scalar, sizeof(T));                                                    \
		a = (T)((U)a * (U)by);                                                             \
		memcpy(at + i * sizeof(T), &a, sizeof(T));                                         \
	}

void nccl_scale(char *at, size_t n, int type, const char *scalar)
{
	switch (type) {
	case NCCLSVC_INT8:
	case NCCLSVC_UINT8:
		SCALE(uint8_t, uint32_t)
		break;
	case NCCLSVC_INT32:
	case NCCLSVC_UINT32:
		SCALE(uint32_t, uint32_t)
		break;
	case NCCLSVC_INT64:
	case NCCLSVC_UINT64:
		SCALE(uint64_t, uint64_t)
		break;
	case NCCLSVC_FLOAT32:
		SCALE(float, float)
		break;
	case NCCLSVC_FLOAT64:
		SCALE(double, double)
		break;
	case NCCLSVC_FLOAT16:
		scale_small(at, n, scalar, &f16);
		break;
	case NCCLSVC_BFLOAT16:
		scale_small(at, n, scalar, &bf16);
		break;
	case NCCLSVC_FLOAT8E4M3:
		scale_small(at, n, scalar, &e4m3);
		break;
	case NCCLSVC_FLOAT8E5M2:
		scale_small(at, n, scalar, &e5m2);
		break;
	}
}
