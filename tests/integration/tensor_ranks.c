/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor_ranks.h"

#include <stdlib.h>
#include <string.h>

struct side side_on(struct client *me, ncclsvc_session *s)
{
	struct side x = {.me = me, .s = s, .peer = 1 - me->rank};
	x.comm = comm_join(me, x.s);
	CHECK_OK(ncclsvc_tensors_open(x.comm, WAIT_MS, &x.lists));
	return x;
}

struct side side_open(struct client *me)
{
	return side_on(me, session_open(me->daemon));
}

void side_close(struct side *x)
{
	ncclsvc_task task;
	CHECK_OK(ncclsvc_comm_error(x->comm));
	CHECK_OK(ncclsvc_barrier(x->comm, &task));
	wait_for(x->s, task, NCCLSVC_OK);
	CHECK_OK(ncclsvc_tensors_close(x->lists));
	ncclsvc_close(x->s);
}

void run_ranks(int n, client_main *main)
{
	struct daemon d;
	struct client clients[4];
	daemon_start(&d, NULL);
	clients_start(clients, n, &d, main, NULL);
	clients_end(clients, n);
	daemon_stop(&d);
}

void run_pair(client_main *main)
{
	run_ranks(2, main);
}

ncclsvc_message message(const struct side *x, ncclsvc_shapes shapes, int64_t tag, size_t n,
			const ncclsvc_tensor *tensors)
{
	return (ncclsvc_message){.size = sizeof(ncclsvc_message),
				 .input_signal = true,
				 .remote_rank = x->peer,
				 .tag = tag,
				 .shapes = shapes,
				 .n = n,
				 .tensors = tensors};
}

void says(const char *text)
{
	if (!strstr(ncclsvc_last_error(), text))
		check_failed(__FILE__, __LINE__, "\"%s\" is not in: %s", text,
			     ncclsvc_last_error());
}

static void fill(void *at, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i++)
		((unsigned char *)at)[i] = (unsigned char)(seed * 31 + i * 7 + i / 251);
}

static void check_filled(const void *at, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i++)
		CHECK_EQ(((const unsigned char *)at)[i],
			 (unsigned char)(seed * 31 + i * 7 + i / 251));
}

size_t bytes_of(const ncclsvc_tensor *t)
{
	uint64_t bytes;
	CHECK_OK(ncclsvc_tensor_size(t, NULL, &bytes));
	return bytes;
}

/* ---- The receiver's allocate callback ---- */

ncclsvc_result allocate(ncclsvc_tensor *tensors, size_t n, void *arg)
{
	struct got *g = arg;
	g->calls++;
	if (g->refuse)
		return g->refuse;
	g->n = n;
	for (size_t i = 0; i < n; i++) {
		tensors[i].data = malloc(bytes_of(&tensors[i]) + 1);
		g->tensors[i] = tensors[i];
		CHECK(tensors[i].ndims <= 4);
		for (int k = 0; k < tensors[i].ndims; k++)
			g->dims[i][k] = tensors[i].dims[k];
		g->tensors[i].dims = g->dims[i];
	}
	return NCCLSVC_OK;
}

void got_free(struct got *g)
{
	for (size_t i = 0; i < g->n; i++)
		free(g->tensors[i].data);
	*g = (struct got){0};
}

/* ---- Lists ---- */

static const int64_t dims_a[] = {2, 3}, dims_b[] = {4}, dims_none[] = {5, 0},
		     dims_big[] = {123, 77};

size_t some_list(ncclsvc_tensor *t)
{
	t[0] = (ncclsvc_tensor){.type = NCCLSVC_FLOAT32, .ndims = 2, .dims = dims_a};
	t[1] = (ncclsvc_tensor){.type = NCCLSVC_FLOAT64, .ndims = 0};
	t[2] = (ncclsvc_tensor){.type = NCCLSVC_INT8, .ndims = 1, .dims = dims_b};
	t[3] = (ncclsvc_tensor){.type = NCCLSVC_INT64, .ndims = 2, .dims = dims_none};
	t[4] = (ncclsvc_tensor){.type = NCCLSVC_BFLOAT16, .ndims = 2, .dims = dims_big};
	return 5;
}

void memory_of(ncclsvc_tensor *t, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++) {
		size_t bytes = bytes_of(&t[i]);
		t[i].data = bytes ? malloc(bytes) : NULL;
		if (bytes)
			fill(t[i].data, bytes, seed ? seed + (unsigned)i : 1000);
	}
}

void check_list(ncclsvc_tensor *t, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		check_filled(t[i].data, bytes_of(&t[i]), seed + (unsigned)i);
}

void memory_free(ncclsvc_tensor *t, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(t[i].data);
}

void check_in_step(struct side *x, unsigned seed)
{
	ncclsvc_tensor t[5];
	size_t n = some_list(t);
	bool sender = x->me->rank == 0, done = false;
	memory_of(t, n, sender ? seed : 0);
	ncclsvc_message m = message(x, NCCLSVC_SHAPES_STATIC, 5, n, t);
	CHECK_OK(sender ? ncclsvc_tensors_send(x->lists, &m, WAIT_MS, &done)
			: ncclsvc_tensors_recv(x->lists, &m, WAIT_MS, &done));
	CHECK(done);
	check_list(t, n, seed);
	memory_free(t, n);
}
