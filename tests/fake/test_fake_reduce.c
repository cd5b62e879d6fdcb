/* SPDX-License-Identifier: Apache-2.0
 * Tests of the libnccl stand-in: all types and reductions, compared with float64. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fake_ranks.h"
#include "proto/ncclsvc_types.h"

#define N 3 /* ranks */

static void *host(CUdeviceptr p)
{
	return (void *)(uintptr_t)p;
}

/* ---- Numbers, converted independently of the stand-in -------------------------------------- */

struct layout {
	int exponent, mantissa;
};

static struct layout layout_of(int type)
{
	switch (type) {
	case NCCLSVC_FLOAT16:
		return (struct layout){5, 10};
	case NCCLSVC_BFLOAT16:
		return (struct layout){8, 7};
	case NCCLSVC_FLOAT8E4M3:
		return (struct layout){4, 3};
	}
	return (struct layout){5, 2};
}

static size_t width(int type)
{
	static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
	return widths[type];
}

/* Decodes normal numbers and zero only. */
static double small_value(uint32_t x, int type)
{
	struct layout l = layout_of(type);
	uint32_t e = x >> l.mantissa & ((1u << l.exponent) - 1), m = x & ((1u << l.mantissa) - 1);
	double v = e == 0 && m == 0 ? 0
				    : (1 + m / (double)(1u << l.mantissa)) *
					      pow(2, (int)e - (1 << (l.exponent - 1)) + 1);
	return x >> (l.exponent + l.mantissa) & 1 ? -v : v;
}

/* Tries all encodings once per value, and remembers the result; there are only seven values. */
static uint32_t encoding(int type, double v)
{
	static uint32_t known[NCCLSVC_FLOAT8E5M2 + 1][7]; /* for -3 to 3; 0: unknown */
	uint32_t *best = &known[type][(int)v + 3];
	struct layout l = layout_of(type);
	for (uint32_t x = 0; !*best && x < 1u << (1 + l.exponent + l.mantissa); x++) {
		if (small_value(x, type) == v)
			*best = x;
	}
	return *best;
}

static void store(void *p, size_t i, int type, double v)
{
	switch (type) {
	case NCCLSVC_INT8:
		((int8_t *)p)[i] = (int8_t)v;
		return;
	case NCCLSVC_UINT8:
		((uint8_t *)p)[i] = (uint8_t)v;
		return;
	case NCCLSVC_INT32:
		((int32_t *)p)[i] = (int32_t)v;
		return;
	case NCCLSVC_UINT32:
		((uint32_t *)p)[i] = (uint32_t)v;
		return;
	case NCCLSVC_INT64:
		((int64_t *)p)[i] = (int64_t)v;
		return;
	case NCCLSVC_UINT64:
		((uint64_t *)p)[i] = (uint64_t)v;
		return;
	case NCCLSVC_FLOAT32:
		((float *)p)[i] = (float)v;
		return;
	case NCCLSVC_FLOAT64:
		((double *)p)[i] = v;
		return;
	}
	uint32_t best = encoding(type, v);
	if (width(type) == 1)
		((uint8_t *)p)[i] = (uint8_t)best;
	else
		((uint16_t *)p)[i] = (uint16_t)best;
}

static double load(const void *p, size_t i, int type)
{
	switch (type) {
	case NCCLSVC_INT8:
		return ((const int8_t *)p)[i];
	case NCCLSVC_UINT8:
		return ((const uint8_t *)p)[i];
	case NCCLSVC_INT32:
		return ((const int32_t *)p)[i];
	case NCCLSVC_UINT32:
		return ((const uint32_t *)p)[i];
	case NCCLSVC_INT64:
		return (double)((const int64_t *)p)[i];
	case NCCLSVC_UINT64:
		return (double)((const uint64_t *)p)[i];
	case NCCLSVC_FLOAT32:
		return ((const float *)p)[i];
	case NCCLSVC_FLOAT64:
		return ((const double *)p)[i];
	}
	return small_value(width(type) == 1 ? ((const uint8_t *)p)[i] : ((const uint16_t *)p)[i],
			   type);
}

/* Small values: all types represent every result exactly, except quotients. */
static double input(int rank, size_t i, int type)
{
	int v = 1 + (int)((i + 2 * (size_t)rank) % 3);
	bool is_signed = type != NCCLSVC_UINT8 && type != NCCLSVC_UINT32 && type != NCCLSVC_UINT64;
	return is_signed && i % 5 == 0 ? -v : v;
}

static double reference(size_t i, int type, int redop)
{
	double v = input(0, i, type);
	for (int r = 1; r < N; r++) {
		double x = input(r, i, type);
		v = redop == NCCLSVC_PROD  ? v * x
		    : redop == NCCLSVC_MAX ? fmax(v, x)
		    : redop == NCCLSVC_MIN ? fmin(v, x)
					   : v + x;
	}
	return redop == NCCLSVC_AVG ? v / N : v;
}

static bool near(double v, double want, int type)
{
	if (type <= NCCLSVC_UINT64)
		return v == trunc(want);
	int mantissa = type == NCCLSVC_FLOAT64	 ? 52
		       : type == NCCLSVC_FLOAT32 ? 23
						 : layout_of(type).mantissa;
	/* Tolerance: half a unit in the last place. */
	return fabs(v - want) <= fabs(want) * pow(2, -mantissa - 1);
}

static void reductions(struct ranks *ranks, int rank)
{
	enum { COUNT = 131 };
	ncclComm_t comm = comm_open(ranks, rank, N);
	CUstream s = stream_open();
	CUdeviceptr src = gpu_alloc(COUNT * 8), dst = gpu_alloc(COUNT * 8);
	for (int type = 0; type <= NCCLSVC_FLOAT8E5M2; type++) {
		for (int redop = 0; redop <= NCCLSVC_AVG; redop++) {
			bool in_place = (type + redop) % 2;
			CUdeviceptr out = in_place ? src : dst;
			for (size_t i = 0; i < COUNT; i++)
				store(host(src), i, type, input(rank, i, type));
			OK(ncclAllReduce(host(src), host(out), COUNT, type, redop, comm, s));
			OK(cuStreamSynchronize(s));
			for (size_t i = 0; i < COUNT; i++) {
				double v = load(host(out), i, type);
				double want = reference(i, type, redop);
				if (!near(v, want, type)) {
					fprintf(stderr, "type %d redop %d [%zu]: %g not %g\n", type,
						redop, i, v, want);
					_exit(1);
				}
			}
		}
	}
	OK(ncclCommDestroy(comm));
}

static void reductions_test(void **state)
{
	(void)state;
	ranks_run(N, reductions, -1);
}

int main(void)
{
	setenv("NCCLSVC_FAKE_GPUS", "4", 1);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reductions_test),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
