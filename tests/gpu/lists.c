/* SPDX-License-Identifier: Apache-2.0 */
#include "lists.h"

#include <string.h>

const int64_t dims[TENSORS] = {1000, 1, 5000};

void desk_open(struct desk *d, struct client *c)
{
	rank_open(&d->r, c);
	CHECK_OK(ncclsvc_tensors_open(d->r.comm, WAIT_MS, &d->lists));
	for (int i = 0; i < TENSORS; i++) {
		CHECK_CU(cu.cuMemAlloc(&d->memory[i], (size_t)dims[i] * 4));
		d->tensors[i] = (ncclsvc_tensor){at(d->memory[i]), NCCLSVC_UINT32, 1, &dims[i]};
	}
	CHECK_CU(cu.cuMemAlloc(&d->copy, (size_t)dims[2] * 4));
	CHECK_CU(cu.cuMemAlloc(&d->scratch, SCRATCH));
}

void desk_close(struct desk *d)
{
	ncclsvc_task task;
	CHECK_OK(ncclsvc_comm_error(d->r.comm));
	CHECK_OK(ncclsvc_barrier(d->r.comm, &task));
	rank_wait(&d->r, task);
	CHECK_OK(ncclsvc_tensors_close(d->lists));
	for (int i = 0; i < TENSORS; i++)
		CHECK_CU(cu.cuMemFree(d->memory[i]));
	CHECK_CU(cu.cuMemFree(d->copy));
	CHECK_CU(cu.cuMemFree(d->scratch));
	rank_close(&d->r);
}

void says(const char *text)
{
	if (!strstr(ncclsvc_last_error(), text))
		check_failed(__FILE__, __LINE__, "\"%s\" is not in: %s", text,
			     ncclsvc_last_error());
}

void desk_fill(struct desk *d, uint32_t value, bool late)
{
	for (int i = 0; i < TENSORS; i++)
		CHECK_CU(cu.cuMemsetD32Async(d->memory[i], 0xdeadbeef, (size_t)dims[i],
					     d->r.stream));
	if (late)
		gpu_delay(d->r.stream, d->scratch, SCRATCH, 50);
	for (int i = 0; i < TENSORS; i++)
		CHECK_CU(cu.cuMemsetD32Async(d->memory[i], value + (uint32_t)i, (size_t)dims[i],
					     d->r.stream));
}

void desk_check(struct desk *d, uint32_t value, const char *what)
{
	CHECK(gpu_stream_ends(d->r.stream, WAIT_MS));
	for (int i = 0; i < TENSORS; i++)
		gpu_check(d->memory[i], value + (uint32_t)i, (size_t)dims[i], what);
}

ncclsvc_message desk_message(const struct desk *d, int peer, ncclsvc_shapes shapes, int64_t tag)
{
	return (ncclsvc_message){.size = sizeof(ncclsvc_message),
				 .input_signal = true,
				 .remote_rank = peer,
				 .tag = tag,
				 .shapes = shapes,
				 .n = TENSORS,
				 .tensors = d->tensors};
}

ncclsvc_result desk_allocate(ncclsvc_tensor *tensors, size_t n, void *arg)
{
	const struct desk *d = arg;
	CHECK_EQ(n, TENSORS);
	for (size_t i = 0; i < n; i++) {
		CHECK_EQ(tensors[i].ndims, 1);
		CHECK_EQ(tensors[i].dims[0], dims[i]);
		tensors[i].data = d->tensors[i].data;
	}
	return NCCLSVC_OK;
}

void desk_hand_on(struct desk *d, ncclsvc_shapes shapes, uint32_t value, bool detached)
{
	struct rank *r = &d->r;
	bool done = false;
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, detached ? NCCLSVC_STREAM_DETACHED : 0));
	desk_fill(d, r->rank ? 0xbad : value, r->rank == 0);
	if (r->rank) {
		ncclsvc_message m = desk_message(d, r->rank - 1, shapes, value);
		m.allocate = shapes == NCCLSVC_SHAPES_AHEAD ? desk_allocate : NULL;
		m.arg = d;
		CHECK_OK(ncclsvc_tensors_recv(d->lists, &m, WAIT_MS, &done));
		CHECK(done);
		desk_check(d, value + (uint32_t)r->rank - 1, "what was received");
		desk_fill(d, value + (uint32_t)r->rank, true);
	}
	if (r->rank < r->n - 1) {
		ncclsvc_message m = desk_message(d, r->rank + 1, shapes, value);
		CHECK_OK(ncclsvc_tensors_send(d->lists, &m, WAIT_MS, &done));
		CHECK(done);
	}
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, 0));
}
