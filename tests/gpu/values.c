/* SPDX-License-Identifier: Apache-2.0 */
#include "values.h"

#include <math.h>

#include "tests/integration/reference.h"

bool op_reduces(ncclsvc_op op)
{
	return op == NCCLSVC_ALL_REDUCE || op == NCCLSVC_REDUCE || op == NCCLSVC_REDUCE_SCATTER;
}

size_t call_sends(const struct call *c)
{
	size_t all = c->count * (size_t)c->n;
	bool root = c->rank == c->root;
	switch (c->op) {
	case NCCLSVC_REDUCE_SCATTER:
	case NCCLSVC_ALL_TO_ALL:
		return all;
	case NCCLSVC_SCATTER:
		return root ? all : 0;
	case NCCLSVC_BROADCAST:
		return root ? c->count : 0;
	default:
		return c->count;
	}
}

size_t call_receives(const struct call *c)
{
	size_t all = c->count * (size_t)c->n;
	bool root = c->rank == c->root;
	switch (c->op) {
	case NCCLSVC_ALL_GATHER:
	case NCCLSVC_ALL_TO_ALL:
		return all;
	case NCCLSVC_GATHER:
		return root ? all : 0;
	case NCCLSVC_REDUCE:
		return root ? c->count : 0;
	default:
		return c->count;
	}
}

size_t call_shift(const struct call *c)
{
	bool root = c->rank == c->root;
	bool blocks = c->op == NCCLSVC_ALL_GATHER || c->op == NCCLSVC_REDUCE_SCATTER ||
		      ((c->op == NCCLSVC_GATHER || c->op == NCCLSVC_SCATTER) && root);
	return blocks ? (size_t)c->rank * c->count : 0;
}

/* ---- Values ---- */

static bool is_fp8(ncclsvc_type type)
{
	return type == NCCLSVC_FLOAT8E4M3 || type == NCCLSVC_FLOAT8E5M2;
}

/* Inputs are -2..2: e5m2 represents integers up to 8, the maximum sum of four ranks. */
static double fp8_input(int rank, size_t i, ncclsvc_redop redop)
{
	int v = reference_input(rank, i, NCCLSVC_INT32, redop);
	return redop == NCCLSVC_PROD ? v : v % 3;
}

double value_input(const struct call *c, int rank, size_t i)
{
	if (is_fp8(c->type))
		return fp8_input(rank, i, c->redop);
	return reference_input(rank, i, c->type, c->redop);
}

static double fp8_reduced(const struct call *c, size_t i)
{
	double v = fp8_input(0, i, c->redop);
	for (int k = 1; k < c->n; k++) {
		double x = fp8_input(k, i, c->redop);
		if (c->redop == NCCLSVC_PROD)
			v *= x;
		else if (c->redop == NCCLSVC_MAX)
			v = fmax(v, x);
		else if (c->redop == NCCLSVC_MIN)
			v = fmin(v, x);
		else
			v += x;
	}
	return c->redop == NCCLSVC_AVG ? v / c->n : v;
}

static double reduced(const struct call *c, size_t i, bool *exact)
{
	if (!is_fp8(c->type))
		return reference_reduced(c->n, i, c->type, c->redop, exact);
	*exact = c->redop != NCCLSVC_AVG;
	return fp8_reduced(c, i);
}

double value_expected(const struct call *c, size_t i, bool *exact)
{
	size_t block = c->count ? i / c->count : 0, at = c->count ? i % c->count : 0;
	size_t own = (size_t)c->rank * c->count;
	*exact = true;
	switch (c->op) {
	case NCCLSVC_ALL_REDUCE:
	case NCCLSVC_REDUCE:
		return reduced(c, i, exact);
	case NCCLSVC_REDUCE_SCATTER:
		return reduced(c, own + i, exact);
	case NCCLSVC_ALL_GATHER:
	case NCCLSVC_GATHER:
		return value_input(c, (int)block, at);
	case NCCLSVC_BROADCAST:
		return value_input(c, c->root, i);
	case NCCLSVC_ALL_TO_ALL:
		return value_input(c, (int)block, own + at);
	case NCCLSVC_SCATTER:
		return value_input(c, c->root, own + i);
	default:
		return 0;
	}
}

/* Encodes a sign bit, 7 - bits of exponent, and bits of fraction. The value is zero, or a normal
 * number in the type. */
static uint8_t fp8_of(double v, int bits)
{
	int exponent, bias = (1 << (6 - bits)) - 1;
	uint8_t sign = signbit(v) ? 0x80 : 0;
	double m = frexp(fabs(v), &exponent);
	if (m == 0)
		return sign;
	return (uint8_t)(sign | (exponent - 1 + bias) << bits | (int)ldexp(2 * m - 1, bits));
}

static double fp8_value(uint8_t x, int bits)
{
	int bias = (1 << (6 - bits)) - 1, e = x >> bits & ((1 << (7 - bits)) - 1);
	int m = x & ((1 << bits) - 1);
	double v = e ? ldexp(m + (1 << bits), e - bias - bits) : ldexp(m, 1 - bias - bits);
	return x & 0x80 ? -v : v;
}

static int fp8_bits(ncclsvc_type type)
{
	return type == NCCLSVC_FLOAT8E4M3 ? 3 : 2;
}

void value_store(void *buf, size_t i, ncclsvc_type type, double value)
{
	if (is_fp8(type))
		((uint8_t *)buf)[i] = fp8_of(value, fp8_bits(type));
	else
		element_store(buf, i, type, value);
}

double value_load(const void *buf, size_t i, ncclsvc_type type)
{
	if (is_fp8(type))
		return fp8_value(((const uint8_t *)buf)[i], fp8_bits(type));
	return element_load(buf, i, type);
}

bool value_close(const struct call *c, double is, double want, bool exact)
{
	double epsilon = is_fp8(c->type) ? ldexp(1, -fp8_bits(c->type) - 1) : type_epsilon(c->type);
	if (exact)
		return is == want;
	/* Each rank's input is divided, and each sum rounded. */
	return fabs(is - want) <= 2 * c->n * epsilon * fmax(1, fabs(want));
}

/* ---- The call ---- */

ncclsvc_result call_submit(const struct call *c, ncclsvc_comm *comm, CUdeviceptr send,
			   CUdeviceptr recv, ncclsvc_task *task)
{
	const void *s = at(send);
	void *r = at(recv);
	switch (c->op) {
	case NCCLSVC_ALL_REDUCE:
		return ncclsvc_all_reduce(s, r, c->count, c->type, c->redop, comm, task);
	case NCCLSVC_ALL_GATHER:
		return ncclsvc_all_gather(s, r, c->count, c->type, comm, task);
	case NCCLSVC_REDUCE_SCATTER:
		return ncclsvc_reduce_scatter(s, r, c->count, c->type, c->redop, comm, task);
	case NCCLSVC_BROADCAST:
		return ncclsvc_broadcast(s, r, c->count, c->type, c->root, comm, task);
	case NCCLSVC_REDUCE:
		return ncclsvc_reduce(s, r, c->count, c->type, c->redop, c->root, comm, task);
	case NCCLSVC_ALL_TO_ALL:
		return ncclsvc_all_to_all(s, r, c->count, c->type, comm, task);
	case NCCLSVC_GATHER:
		return ncclsvc_gather(s, r, c->count, c->type, c->root, comm, task);
	case NCCLSVC_SCATTER:
		return ncclsvc_scatter(s, r, c->count, c->type, c->root, comm, task);
	default:
		return NCCLSVC_INVALID_ARGUMENT;
	}
}
