/* SPDX-License-Identifier: Apache-2.0 */
#include "operations.h"

#include <math.h>
#include <string.h>

#include "proto/names.h"
#include "proto/operation.h"
#include "reference.h"

#define GUARD_BYTE 0x5a

static size_t send_elements(const struct call *c)
{
	bool root = c->rank == c->root;
	switch (c->op) {
	case NCCLSVC_REDUCE_SCATTER:
	case NCCLSVC_ALL_TO_ALL:
		return c->count * (size_t)c->nranks;
	case NCCLSVC_SCATTER:
		return root ? c->count * (size_t)c->nranks : 0;
	case NCCLSVC_BROADCAST:
		return root ? c->count : 0;
	case NCCLSVC_BARRIER:
		return 0;
	default:
		return c->count;
	}
}

static size_t recv_elements(const struct call *c)
{
	bool root = c->rank == c->root;
	switch (c->op) {
	case NCCLSVC_ALL_GATHER:
	case NCCLSVC_ALL_TO_ALL:
		return c->count * (size_t)c->nranks;
	case NCCLSVC_GATHER:
		return root ? c->count * (size_t)c->nranks : 0;
	case NCCLSVC_REDUCE:
		return root ? c->count : 0;
	case NCCLSVC_BARRIER:
		return 0;
	default:
		return c->count;
	}
}

/* The expected value of element i in this rank's result. */
static double expected(const struct call *c, size_t i, bool *exact)
{
	size_t block = c->count ? i / c->count : 0, at = c->count ? i % c->count : 0;
	*exact = true;
	switch (c->op) {
	case NCCLSVC_ALL_REDUCE:
	case NCCLSVC_REDUCE:
		return reference_reduced(c->nranks, i, c->type, c->redop, exact);
	case NCCLSVC_REDUCE_SCATTER:
		return reference_reduced(c->nranks, (size_t)c->rank * c->count + i, c->type,
					 c->redop, exact);
	case NCCLSVC_ALL_GATHER:
	case NCCLSVC_GATHER:
		return reference_input((int)block, at, c->type, c->redop);
	case NCCLSVC_BROADCAST:
		return reference_input(c->root, i, c->type, c->redop);
	case NCCLSVC_ALL_TO_ALL:
		return reference_input((int)block, (size_t)c->rank * c->count + at, c->type,
				       c->redop);
	case NCCLSVC_SCATTER:
		return reference_input(c->root, (size_t)c->rank * c->count + i, c->type, c->redop);
	default:
		return 0;
	}
}

/* The addresses of source and destination in place, as in NCCL. */
static void place(const struct call *c, char **send, char **recv)
{
	size_t own = (size_t)c->rank * c->count * c->size;
	*send = c->send;
	*recv = c->recv;
	if (!c->in_place)
		return;
	switch (c->op) {
	case NCCLSVC_ALL_GATHER:
		*send = c->recv + own;
		break;
	case NCCLSVC_GATHER:
		if (c->rank == c->root)
			*send = c->recv + own;
		break;
	case NCCLSVC_REDUCE_SCATTER:
		*recv = c->send + own;
		break;
	case NCCLSVC_SCATTER:
		if (c->rank == c->root)
			*recv = c->send + own;
		break;
	default:
		*send = c->recv;
	}
}

static ncclsvc_result submit(const struct call *c, const void *s, void *r, ncclsvc_task *task)
{
	switch (c->op) {
	case NCCLSVC_ALL_REDUCE:
		return ncclsvc_all_reduce(s, r, c->count, c->type, c->redop, c->comm, task);
	case NCCLSVC_ALL_GATHER:
		return ncclsvc_all_gather(s, r, c->count, c->type, c->comm, task);
	case NCCLSVC_REDUCE_SCATTER:
		return ncclsvc_reduce_scatter(s, r, c->count, c->type, c->redop, c->comm, task);
	case NCCLSVC_BROADCAST:
		return ncclsvc_broadcast(c->rank == c->root ? s : NULL, r, c->count, c->type,
					 c->root, c->comm, task);
	case NCCLSVC_REDUCE:
		return ncclsvc_reduce(s, c->rank == c->root ? r : NULL, c->count, c->type, c->redop,
				      c->root, c->comm, task);
	case NCCLSVC_ALL_TO_ALL:
		return ncclsvc_all_to_all(s, r, c->count, c->type, c->comm, task);
	case NCCLSVC_GATHER:
		return ncclsvc_gather(s, c->rank == c->root ? r : NULL, c->count, c->type, c->root,
				      c->comm, task);
	case NCCLSVC_SCATTER:
		return ncclsvc_scatter(c->rank == c->root ? s : NULL, r, c->count, c->type, c->root,
				       c->comm, task);
	default:
		return ncclsvc_barrier(c->comm, task);
	}
}

static void check_element(const struct call *c, const char *recv, size_t i)
{
	bool exact;
	double want = expected(c, i, &exact), got = element_load(recv, i, c->type);
	double slack = exact ? 0 : 2 * type_epsilon(c->type) * (fabs(want) + type_epsilon(c->type));
	if (!(fabs(got - want) <= slack))
		check_failed(__FILE__, __LINE__,
			     "%s %s %s of %zu, %d ranks, root %d%s: element %zu is %g, not %g",
			     svc_op_name(c->op), svc_type_name(c->type), svc_redop_name(c->redop),
			     c->count, c->nranks, c->root, c->in_place ? ", in place" : "", i, got,
			     want);
}

void run_call(const struct call *c)
{
	char *send, *recv;
	ncclsvc_task task;
	size_t in = send_elements(c), out = recv_elements(c);
	place(c, &send, &recv);
	/* In place, the source may be longer than the result: in Reduce, on ranks other than the
	 * root. */
	size_t used = (send == recv && in > out ? in : out) * c->size;
	if (recv == c->recv)
		memset(recv, GUARD_BYTE, used + GUARD);
	for (size_t i = 0; i < in; i++)
		element_store(send, i, c->type, reference_input(c->rank, i, c->type, c->redop));
	ncclsvc_result result = submit(c, send, recv, &task);
	if (result)
		check_failed(__FILE__, __LINE__, "%s %s of %zu%s: %s", svc_op_name(c->op),
			     svc_type_name(c->type), c->count, c->in_place ? ", in place" : "",
			     ncclsvc_last_error());
	wait_for(c->session, task, NCCLSVC_OK);
	for (size_t i = 0; i < out; i++)
		check_element(c, recv, i);
	if (recv == c->recv)
		for (size_t i = 0; i < GUARD; i++)
			CHECK_EQ((unsigned char)recv[used + i], GUARD_BYTE);
	/* The operation must not change the source. */
	if (!c->in_place)
		for (size_t i = 0; i < in; i++)
			CHECK(element_load(send, i, c->type) ==
			      reference_input(c->rank, i, c->type, c->redop));
}

static void every_redop(struct call *c)
{
	int last = svc_op_reduces(c->op) ? NCCLSVC_AVG : NCCLSVC_SUM;
	for (int redop = NCCLSVC_SUM; redop <= last; redop++) {
		c->redop = (ncclsvc_redop)redop;
		c->root = (redop + (int)c->type) % c->nranks;
		run_call(c);
	}
}

void every_type(struct call *c)
{
	const int last = svc_op_reduces(c->op) ? NCCLSVC_BFLOAT16 : NCCLSVC_UINT4;
	for (int type = NCCLSVC_INT8; type <= last; type++) {
		c->type = (ncclsvc_type)type;
		c->size = svc_type_size(c->type);
		every_redop(c);
	}
}
