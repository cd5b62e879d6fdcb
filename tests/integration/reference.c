/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

int reference_input(int rank, size_t i, ncclsvc_type type, ncclsvc_redop redop)
{
	unsigned mix = (unsigned)i * 2654435761u + (unsigned)rank * 40503u;
	bool negative = type != NCCLSVC_UINT8 && type != NCCLSVC_UINT32 && type != NCCLSVC_UINT64 &&
			type != NCCLSVC_BOOL && type != NCCLSVC_UINT16 && type != NCCLSVC_UINT4;
	mix ^= mix >> 13;
	if (redop == NCCLSVC_PROD)
		return 1 + (int)(mix % 2);
	return negative ? (int)(mix % 15) - 7 : (int)(mix % 15);
}

double reference_fraction(int rank, size_t i)
{
	return sin((double)(i % 1000) * 0.37 + rank) + 0.1;
}

bool type_is_float(ncclsvc_type type)
{
	return type >= NCCLSVC_FLOAT16 && type <= NCCLSVC_FLOAT8E5M2;
}

double type_epsilon(ncclsvc_type type)
{
	switch (type) {
	case NCCLSVC_FLOAT16:
		return 0x1p-11;
	case NCCLSVC_BFLOAT16:
		return 0x1p-8;
	case NCCLSVC_FLOAT32:
		return 0x1p-24;
	default:
		return 0x1p-53;
	}
}

/* Rounds to `bits` bits of significand, to nearest even, ignoring the exponent's range. */
static double round_to(double v, int bits)
{
	int exponent;
	double m = frexp(v, &exponent);
	return ldexp(nearbyint(ldexp(m, bits)), exponent - bits);
}

static uint16_t half_of(double v)
{
	int exponent;
	uint16_t sign = signbit(v) ? 0x8000 : 0;
	double m = frexp(round_to(fabs(v), 11), &exponent);
	if (m == 0)
		return sign;
	if (exponent < -13) /* subnormal: units of 2^-24 */
		return sign | (uint16_t)nearbyint(ldexp(fabs(v), 24));
	if (exponent > 16)
		return sign | 0x7c00;
	return sign | (uint16_t)((exponent + 14) << 10) | (uint16_t)(ldexp(m, 11) - 1024);
}

static double half_value(uint16_t h)
{
	int exponent = h >> 10 & 31, m = h & 1023;
	double v = exponent ? ldexp(1024 + m, exponent - 25) : ldexp(m, -24);
	if (exponent == 31)
		v = m ? NAN : INFINITY;
	return h & 0x8000 ? -v : v;
}

static uint16_t bfloat_of(double v)
{
	float f = (float)round_to(v, 8);
	uint32_t bits;
	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

static double bfloat_value(uint16_t b)
{
	uint32_t bits = (uint32_t)b << 16;
	float f;
	memcpy(&f, &bits, sizeof(f));
	return f;
}

#define INTEGERS(X)                                                                                \
	X(NCCLSVC_INT8, int8_t)                                                                    \
	X(NCCLSVC_UINT8, uint8_t)                                                                  \
	X(NCCLSVC_INT32, int32_t)                                                                  \
	X(NCCLSVC_UINT32, uint32_t)                                                                \
	X(NCCLSVC_INT64, int64_t)                                                                  \
	X(NCCLSVC_UINT64, uint64_t)                                                                \
	X(NCCLSVC_BOOL, uint8_t) /* this type and the following ones are only moved */             \
	X(NCCLSVC_INT16, int16_t)                                                                  \
	X(NCCLSVC_UINT16, uint16_t)                                                                \
	X(NCCLSVC_INT4, int8_t) /* bytes */                                                        \
	X(NCCLSVC_UINT4, uint8_t)

void element_store(void *buf, size_t i, ncclsvc_type type, double value)
{
	switch (type) {
#define STORE(name, ctype)                                                                         \
	case name:                                                                                 \
		((ctype *)buf)[i] = (ctype)(int64_t)value;                                         \
		break;
		INTEGERS(STORE)
	case NCCLSVC_FLOAT16:
		((uint16_t *)buf)[i] = half_of(value);
		break;
	case NCCLSVC_BFLOAT16:
		((uint16_t *)buf)[i] = bfloat_of(value);
		break;
	case NCCLSVC_FLOAT32:
		((float *)buf)[i] = (float)value;
		break;
	case NCCLSVC_FLOAT64:
		((double *)buf)[i] = value;
		break;
	case NCCLSVC_FLOAT8E4M3: /* only moved on the host, as bytes */
	case NCCLSVC_FLOAT8E5M2:
		((int8_t *)buf)[i] = (int8_t)(int64_t)value;
		break;
	}
}

double element_load(const void *buf, size_t i, ncclsvc_type type)
{
	switch (type) {
#define LOAD(name, ctype)                                                                          \
	case name:                                                                                 \
		return (double)((const ctype *)buf)[i];
		INTEGERS(LOAD)
	case NCCLSVC_FLOAT16:
		return half_value(((const uint16_t *)buf)[i]);
	case NCCLSVC_BFLOAT16:
		return bfloat_value(((const uint16_t *)buf)[i]);
	case NCCLSVC_FLOAT32:
		return ((const float *)buf)[i];
	case NCCLSVC_FLOAT64:
		return ((const double *)buf)[i];
	case NCCLSVC_FLOAT8E4M3:
	case NCCLSVC_FLOAT8E5M2:
		return ((const int8_t *)buf)[i];
	}
	return NAN;
}

static double wrapped(long long v, ncclsvc_type type)
{
	uint64_t cell = 0;
	if (type_is_float(type))
		return (double)v;
	element_store(&cell, 0, type, (double)v);
	return element_load(&cell, 0, type);
}

double reference_reduced(int nranks, size_t i, ncclsvc_type type, ncclsvc_redop redop, bool *exact)
{
	long long v = reference_input(0, i, type, redop);
	for (int k = 1; k < nranks; k++) {
		long long x = reference_input(k, i, type, redop);
		if (redop == NCCLSVC_PROD)
			v *= x;
		else if (redop == NCCLSVC_MAX)
			v = v > x ? v : x;
		else if (redop == NCCLSVC_MIN)
			v = v < x ? v : x;
		else
			v += x;
	}
	*exact = redop != NCCLSVC_AVG || !type_is_float(type);
	if (redop != NCCLSVC_AVG)
		return wrapped(v, type);
	return *exact ? wrapped(v / nranks, type) : (double)v / nranks;
}
