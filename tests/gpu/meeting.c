/* SPDX-License-Identifier: Apache-2.0 */
#include "meeting.h"

ncclsvc_comm *meeting_join(struct client *c, ncclsvc_session *session)
{
	ncclsvc_comm *host;
	ncclsvc_unique_id id = c->id;
	id.bytes[2] ^= 1;
	CHECK_OK(ncclsvc_comm_join(session, &id, c->nranks, c->rank, WAIT_MS, &host));
	return host;
}

void meeting_open(struct meeting *m, struct client *c)
{
	rank_open(&m->r, c);
	m->host = meeting_join(c, m->r.session);
}

void meeting_close(struct meeting *m)
{
	CHECK_OK(ncclsvc_comm_leave(m->host));
	rank_close(&m->r);
}

void meeting_reach(struct meeting *m)
{
	ncclsvc_task task;
	CHECK_OK(ncclsvc_barrier(m->host, &task));
	rank_wait(&m->r, task);
}

void meeting_wait(struct meeting *m)
{
	rank_sync(&m->r);
	meeting_reach(m);
}

void meeting_sum(struct meeting *m, CUdeviceptr p)
{
	const uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	const uint32_t n = (uint32_t)m->r.n;
	uint64_t before, after;
	meeting_wait(m);
	do {
		before = kernels_staged(&m->r);
		gpu_fill(p, (uint32_t)m->r.rank + 1, PART_WORDS);
		kernels_sum(&m->r, p, PART_WORDS);
		rank_sync(&m->r);
		gpu_check(p, n * (n + 1) / 2, PART_WORDS, "the sum");
		meeting_wait(m);
		after = kernels_staged(&m->r);
		CHECK(now_ns() < end);
	} while (after != before);
}

void meeting_pass(struct meeting *m, CUdeviceptr from, CUdeviceptr to)
{
	struct rank *r = &m->r;
	const int next = (r->rank + 1) % r->n, previous = (r->rank + r->n - 1) % r->n;
	gpu_fill(from, (uint32_t)r->rank + 7, PART_WORDS);
	CHECK_OK(ncclsvc_group_begin(r->session));
	kernels_send(r, from, PART_WORDS, next, NULL);
	kernels_recv(r, to, PART_WORDS, previous, NULL);
	CHECK_OK(ncclsvc_group_end(r->session));
	rank_sync(r);
	gpu_check(to, (uint32_t)previous + 7, PART_WORDS, "the message");
}

void meeting_use(struct meeting *m, CUdeviceptr p, size_t bytes)
{
	meeting_sum(m, p + bytes - PART);
	meeting_pass(m, p, p + bytes / 2 / PART * PART);
	meeting_wait(m);
}
