/* SPDX-License-Identifier: Apache-2.0
 * Floating-point reductions: close to the float64 reference, and the same bits on every rank and in
 * every run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "proto/names.h"
#include "proto/operation.h"
#include "reference.h"

#define COUNT 50021
#define RANKS 4

static const ncclsvc_type types[] = {NCCLSVC_FLOAT16, NCCLSVC_BFLOAT16, NCCLSVC_FLOAT32,
				     NCCLSVC_FLOAT64};
static const ncclsvc_redop redops[] = {NCCLSVC_SUM, NCCLSVC_PROD, NCCLSVC_MAX, NCCLSVC_MIN,
				       NCCLSVC_AVG};

static uint64_t hash(const void *data, size_t n, uint64_t h)
{
	const unsigned char *p = data;
	for (size_t i = 0; i < n; i++)
		h = (h ^ p[i]) * UINT64_C(1099511628211);
	return h;
}

/* The reference's inputs are rounded to the type, so that only the reduction's own rounding is
 * left. */
static void check_close(const void *buf, size_t i, int nranks, ncclsvc_type type,
			ncclsvc_redop redop)
{
	double v = 0, sum = 0;
	for (int k = 0; k < nranks; k++) {
		uint64_t cell;
		element_store(&cell, 0, type, reference_fraction(k, i));
		double x = element_load(&cell, 0, type);
		sum += fabs(x);
		if (k == 0)
			v = x;
		else if (redop == NCCLSVC_PROD)
			v *= x;
		else if (redop == NCCLSVC_MAX)
			v = fmax(v, x);
		else if (redop == NCCLSVC_MIN)
			v = fmin(v, x);
		else
			v += x;
	}
	if (redop == NCCLSVC_AVG)
		v /= nranks;
	double slack = redop == NCCLSVC_MAX || redop == NCCLSVC_MIN
			       ? 0
			       : (nranks + 1) * type_epsilon(type) * (sum + fabs(v));
	/* Halves are rounded once from float32: at most half a unit, plus float32's own error. */
	if (redop == NCCLSVC_SUM && svc_type_size(type) == 2)
		slack = type_epsilon(type) * fabs(v) * 1.001 + nranks * 0x1p-24 * sum + 0x1p-25;
	double got = element_load(buf, i, type);
	if (!(fabs(got - v) <= slack))
		check_failed(__FILE__, __LINE__, "%s %s: element %zu is %.17g, not %.17g",
			     svc_type_name(type), svc_redop_name(redop), i, got, v);
}

static void reduce_fractions(struct client *me)
{
	uint64_t h = UINT64_C(14695981039346656037);
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	size_t bytes = (size_t)COUNT * 8;
	char *send = shared(s, bytes), *recv = shared(s, bytes), *part = shared(s, bytes);
	for (size_t t = 0; t < 4; t++)
		for (size_t k = 0; k < 5; k++) {
			ncclsvc_task all, some;
			size_t size = svc_type_size(types[t]), n = COUNT / RANKS;
			for (size_t i = 0; i < COUNT; i++)
				element_store(send, i, types[t], reference_fraction(me->rank, i));
			CHECK_OK(ncclsvc_all_reduce(send, recv, COUNT, types[t], redops[k], comm,
						    &all));
			CHECK_OK(ncclsvc_reduce_scatter(send, part, n, types[t], redops[k], comm,
							&some));
			wait_for(s, all, NCCLSVC_OK);
			wait_for(s, some, NCCLSVC_OK);
			for (size_t i = 0; i < COUNT; i++)
				check_close(recv, i, RANKS, types[t], redops[k]);
			/* The bits do not depend on which thread reduces a part, or on how the data
			 * is split. */
			CHECK(memcmp(part, recv + (size_t)me->rank * n * size, n * size) == 0);
			h = hash(recv, COUNT * size, h);
		}
	say(me, h);
	ncclsvc_close(s);
}

static uint64_t one_run(const struct daemon *d)
{
	struct client clients[RANKS];
	clients_start(clients, RANKS, d, reduce_fractions, NULL);
	uint64_t h = hear(&clients[0]);
	for (int i = 1; i < RANKS; i++)
		if (hear(&clients[i]) != h)
			check_failed(__FILE__, __LINE__, "rank %d has other bits than rank 0", i);
	clients_end(clients, RANKS);
	return h;
}

static void bits_are_the_same_on_all_ranks_and_in_all_runs(void **state)
{
	struct daemon d;
	(void)state;
	time_limit(300);
	daemon_start(&d, "--host-threads", "1", NULL);
	uint64_t h = one_run(&d);
	CHECK(one_run(&d) == h);
	daemon_stop(&d);
	daemon_start(&d, "--host-threads", "4", NULL);
	CHECK(one_run(&d) == h);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(bits_are_the_same_on_all_ranks_and_in_all_runs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
