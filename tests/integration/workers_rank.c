/* SPDX-License-Identifier: Apache-2.0 */
#include "workers_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cuda/mps.h"
#include "tests/gpu/gpu_context.h"

#define BUFFER_BYTES ((size_t)8 << 20)

struct rank {
	struct client *c;
	struct page *page;
	ncclsvc_session *session;
	ncclsvc_comm *comms[RANK_GROUP_COMMS];
	CUstream stream, other;
	CUdeviceptr gate, buffer, at; /* at: of the last task */
	size_t words;		      /* of the last task */
	uint64_t gates;
	ncclsvc_task task;
	bool detached, over;
};

static ncclsvc_comm **place(struct rank *r, int64_t i)
{
	CHECK(i >= 0 && i < RANK_GROUP_COMMS);
	return &r->comms[i];
}

static ncclsvc_result join(struct rank *r, const int64_t *a)
{
	ncclsvc_unique_id id = r->c->id;
	id.bytes[0] ^= (uint8_t)a[0];
	ncclsvc_comm **comm = place(r, a[5]);
	CHECK(!*comm);
	return ncclsvc_comm_join_device(r->session, &id, (int)a[1], (int)a[2], (int)a[3], (int)a[4],
					comm);
}

static ncclsvc_result leave(struct rank *r, const int64_t *a)
{
	ncclsvc_result result = ncclsvc_comm_leave(*place(r, a[0]));
	if (!result)
		*place(r, a[0]) = NULL;
	return result;
}

/* Each place uses its own part of the buffer, because their tasks may run at the same time. */
static void fill(struct rank *r, int64_t i, int64_t words, int64_t value)
{
	r->words = (size_t)words;
	r->at = r->buffer + (CUdeviceptr)i * (BUFFER_BYTES / RANK_GROUP_COMMS);
	CHECK(r->words * sizeof(uint32_t) <= BUFFER_BYTES / RANK_GROUP_COMMS);
	CHECK_CU(cu.cuMemsetD32Async(r->at, (uint32_t)value, r->words, r->stream));
}

static ncclsvc_result sum(struct rank *r, const int64_t *a)
{
	ncclsvc_comm *comm = *place(r, a[0]);
	fill(r, a[0], a[1], a[2]);
	CHECK_OK(ncclsvc_comm_set_timeout(comm, a[3] ? (int)a[3] : NCCLSVC_NO_TIMEOUT));
	return ncclsvc_all_reduce(at(r->at), at(r->at), r->words, NCCLSVC_UINT32, NCCLSVC_SUM, comm,
				  &r->task);
}

static ncclsvc_result gather(struct rank *r, const int64_t *a)
{
	fill(r, a[0], a[1], a[2]);
	return ncclsvc_all_gather(at(r->at), at(r->at + BUFFER_BYTES / RANK_GROUP_COMMS / 2),
				  r->words, NCCLSVC_UINT32, *place(r, a[0]), &r->task);
}

static ncclsvc_result streak(struct rank *r, const int64_t *a)
{
	ncclsvc_result result = NCCLSVC_OK;
	int n = ncclsvc_comm_size(*place(r, a[0]));
	for (int64_t i = 0; i < a[1] && !result; i++) {
		uint32_t word;
		const int64_t args[6] = {a[0], 64, a[2] + i};
		result = sum(r, args);
		if (!result)
			result = ncclsvc_wait(r->session, r->task, WAIT_MS);
		if (result)
			break;
		CHECK(gpu_stream_ends(r->stream, WAIT_MS));
		gpu_get(&word, r->at, sizeof(word));
		CHECK_EQ(word, n * (a[2] + i));
	}
	return result;
}

static ncclsvc_result flood(struct rank *r, const int64_t *a)
{
	ncclsvc_result result = NCCLSVC_OK;
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, NCCLSVC_STREAM_DETACHED));
	CHECK_OK(ncclsvc_comm_set_timeout(*place(r, a[0]), NCCLSVC_NO_TIMEOUT));
	fill(r, a[0], 1, 1);
	for (int64_t i = 0; i < a[1] && !result; i++)
		result = ncclsvc_all_reduce(at(r->at), at(r->at), 1, NCCLSVC_UINT32, NCCLSVC_MAX,
					    *place(r, a[0]), &r->task);
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, 0));
	return result;
}

static uint32_t draw(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(*state >> 33);
}

/* Offsets in one communicator's share of the buffer, in bytes. */
enum { MIX_OUT = 0, MIX_IN = 64, MIX_SUM = 128, MIX_STEP = 256 };
enum { MIX_REDUCES = 1, MIX_EXCHANGES = 2 };

/* A sum, a ring of Sends and Recvs, or both, on one communicator. */
static ncclsvc_result mix_submit(struct rank *r, int k, uint32_t kind)
{
	CUdeviceptr p = r->buffer + (CUdeviceptr)(k * MIX_STEP);
	ncclsvc_comm *comm = r->comms[k];
	int n = ncclsvc_comm_size(comm), me = ncclsvc_comm_rank(comm);
	ncclsvc_result result = NCCLSVC_OK;
	if (kind & MIX_REDUCES)
		result = ncclsvc_all_reduce(at(p + MIX_SUM), at(p + MIX_SUM), 8, NCCLSVC_UINT32,
					    NCCLSVC_SUM, comm, &r->task);
	if (kind & MIX_EXCHANGES && !result)
		result = ncclsvc_send(at(p + MIX_OUT), 8, NCCLSVC_UINT32, (me + 1) % n, comm,
				      &r->task);
	if (kind & MIX_EXCHANGES && !result)
		result = ncclsvc_recv(at(p + MIX_IN), 8, NCCLSVC_UINT32, (me + n - 1) % n, comm,
				      &r->task);
	return result;
}

static void mix_check(struct rank *r, int k, uint32_t kind, uint32_t base)
{
	uint32_t words[MIX_STEP / 4], sum = 0;
	int n = ncclsvc_comm_size(r->comms[k]), me = ncclsvc_comm_rank(r->comms[k]);
	gpu_get(words, r->buffer + (CUdeviceptr)(k * MIX_STEP), sizeof(words));
	for (int i = 0; i < n; i++)
		sum += base + (uint32_t)i;
	if (kind & MIX_REDUCES)
		CHECK_EQ(words[MIX_SUM / 4 + 7], sum);
	if (kind & MIX_EXCHANGES)
		CHECK_EQ(words[MIX_IN / 4 + 7], base + (uint32_t)((me + n - 1) % n));
}

/* Submits random work on three communicators, the same on all ranks, as one task group or as a
 * group each. Checks the results every few rounds, and does not wait in between. */
static ncclsvc_result mix(struct rank *r, const int64_t *a)
{
	ncclsvc_result result = NCCLSVC_OK;
	uint64_t random = (uint64_t)a[1];
	for (int64_t i = 0; i < a[0] && !result; i++) {
		uint32_t kinds = draw(&random) % 63 + 1, base = draw(&random) % 1000;
		bool one_group = draw(&random) % 2, look = draw(&random) % 8 == 0;
		CHECK_CU(cu.cuMemsetD32Async(r->buffer, base + (uint32_t)r->c->rank,
					     3 * MIX_STEP / 4, r->stream));
		if (one_group)
			CHECK_OK(ncclsvc_group_begin(r->session));
		for (int k = 0; k < 3 && !result; k++) {
			if (!one_group)
				CHECK_OK(ncclsvc_group_begin(r->session));
			result = mix_submit(r, k, kinds >> 2 * k & 3);
			if (!one_group)
				result = ncclsvc_group_end(r->session);
		}
		if (one_group)
			result = ncclsvc_group_end(r->session);
		if (result || !look)
			continue;
		CHECK(gpu_stream_ends(r->stream, WAIT_MS));
		for (int k = 0; k < 3; k++)
			mix_check(r, k, kinds >> 2 * k & 3, base);
	}
	return result ? result : ncclsvc_wait_all(r->session, WAIT_MS);
}

static ncclsvc_result wait_for_it(struct rank *r, const int64_t *a)
{
	ncclsvc_result result = ncclsvc_wait(r->session, r->task, (int)a[0]);
	char text[sizeof(r->page->text)];
	snprintf(text, sizeof(text), "%s", ncclsvc_last_error());
	if (ncclsvc_task_status(r->session, r->task, &r->page->status))
		memset(&r->page->status, 0, sizeof(r->page->status));
	snprintf(r->page->text, sizeof(r->page->text), "%s", text);
	return result;
}

static uint64_t value(struct rank *r)
{
	uint32_t first;
	gpu_get(&first, r->at, sizeof(first));
	gpu_check(r->at, first, r->words, "the buffer");
	return first;
}

static ncclsvc_result alloc(struct rank *r, const int64_t *a)
{
	void *p;
	ncclsvc_result result =
		ncclsvc_mem_alloc_device(r->session, r->page->gpu, (size_t)a[0], &p);
	if (!result)
		r->buffer = (uintptr_t)p;
	return result;
}

static uint64_t obey(struct rank *r, enum order order)
{
	const int64_t *a = r->page->args;
	switch (order) {
	case ORDER_JOIN:
		return (uint64_t)join(r, a);
	case ORDER_REJOIN:
		return (uint64_t)ncclsvc_comm_rejoin(*place(r, a[0]), (int)a[1]);
	case ORDER_LEAVE:
		return (uint64_t)leave(r, a);
	case ORDER_SPLIT:
		return (uint64_t)ncclsvc_comm_split(*place(r, a[0]), (int)a[1], (int)a[2],
						    (int)a[3], place(r, a[4]));
	case ORDER_SUM:
		return (uint64_t)sum(r, a);
	case ORDER_SEND:
		fill(r, a[0], a[1], a[2]);
		return (uint64_t)ncclsvc_send(at(r->at), r->words, NCCLSVC_UINT32, (int)a[3],
					      *place(r, a[0]), &r->task);
	case ORDER_RECV:
		fill(r, a[0], a[1], 0);
		return (uint64_t)ncclsvc_recv(at(r->at), r->words, NCCLSVC_UINT32, (int)a[2],
					      *place(r, a[0]), &r->task);
	case ORDER_GATHER:
		return (uint64_t)gather(r, a);
	case ORDER_WAIT:
		return (uint64_t)wait_for_it(r, a);
	case ORDER_SYNC:
		return (uint64_t)(gpu_stream_ends(r->stream, WAIT_MS) ? NCCLSVC_OK
								      : NCCLSVC_TIMEOUT);
	case ORDER_SLEEP:
		CHECK_CU(cu.cuStreamSynchronize(r->stream));
		return NCCLSVC_OK;
	case ORDER_VALUE:
		return value(r);
	case ORDER_BLOCK:
		CHECK_CU(cu.cuStreamWaitValue64(r->stream, r->gate, ++r->gates,
						CU_STREAM_WAIT_VALUE_GEQ));
		return NCCLSVC_OK;
	case ORDER_UNBLOCK:
		CHECK_CU(cu.cuStreamWriteValue64(r->other, r->gate, r->gates,
						 CU_STREAM_WRITE_VALUE_DEFAULT));
		return NCCLSVC_OK;
	case ORDER_DETACHED:
		return (uint64_t)ncclsvc_stream_set(r->session, r->stream,
						    a[0] ? NCCLSVC_STREAM_DETACHED : 0);
	case ORDER_ERROR:
		return (uint64_t)ncclsvc_comm_error(*place(r, a[0]));
	case ORDER_STREAK:
		return (uint64_t)streak(r, a);
	case ORDER_FLOOD:
		return (uint64_t)flood(r, a);
	case ORDER_MIX:
		return (uint64_t)mix(r, a);
	case ORDER_ALLOC:
		return (uint64_t)alloc(r, a);
	case ORDER_NEW:
		CHECK_CU(cu.cuMemAlloc(&r->buffer, BUFFER_BYTES));
		return NCCLSVC_OK;
	case ORDER_REATTACH:
		return (uint64_t)ncclsvc_reattach(r->session, WAIT_MS);
	case ORDER_CLOSE:
		ncclsvc_close(r->session);
		r->over = true;
		return NCCLSVC_OK;
	}
	check_failed(__FILE__, __LINE__, "there is no order %d", order);
}

void rank_main(struct client *c)
{
	struct rank r = {.c = c, .page = (struct page *)c->arg + c->rank};
	if (r.page->early) {
		mps_leave(); /* in case a session of the test has set MPS here */
		gpu_use(r.page->gpu);
	}
	r.session = session_open(c->daemon);
	gpu_use(r.page->gpu);
	r.stream = gpu_stream();
	r.other = gpu_stream();
	CHECK_CU(cu.cuMemAlloc(&r.buffer, BUFFER_BYTES));
	CHECK_CU(cu.cuMemAlloc(&r.gate, sizeof(uint64_t)));
	CHECK_CU(cu.cuMemsetD32Async(r.gate, 0, 2, r.stream));
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
	say(c, NCCLSVC_OK);
	while (!r.over) {
		enum order order = (enum order)hear_within(c, 60000);
		uint64_t answer = obey(&r, order);
		r.page->told_ns = now_ns();
		if (order != ORDER_WAIT)
			snprintf(r.page->text, sizeof(r.page->text), "%s", ncclsvc_last_error());
		say(c, answer);
	}
}

void unused_main(struct client *c)
{
	gpu_use(c->rank);
	say(c, gpu_unused_memory());
}
