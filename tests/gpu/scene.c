/* SPDX-License-Identifier: Apache-2.0 */
#include "scene.h"

#include <string.h>
#include <sys/mman.h>

#define NOTHING_MS 350 /* how long scene_quiet watches */

struct peer_control *scene_control(struct scene *s, int rank)
{
	return peer_control_of(s->controls, (uint32_t)rank);
}

void scene_submitted(struct scene *s, int rank, uint64_t n)
{
	atomic_store_explicit(&scene_control(s, rank)->submitted, n, memory_order_release);
}

void scene_open(struct scene *s)
{
	peer_join(s->m, &s->id, true);
	s->controls = peer_controls_map(peer_staging_fd(&s->m[0], -1));
}

void scene_close(struct scene *s)
{
	munmap(s->controls, 2 * PEER_CONTROL_BYTES);
}

bool scene_over(struct scene *s)
{
	return peer_aborted(s->controls, 0);
}

void scene_quiet(struct scene *s)
{
	for (uint64_t until = now_ns() + NOTHING_MS * UINT64_C(1000000); now_ns() < until;
	     sleep_ms(10))
		CHECK(!scene_over(s));
}

ncclsvc_status scene_reported(struct scene *s, int rank)
{
	struct raw_reply reply;
	do {
		CHECK(raw_next(&s->m[rank].raw, &reply));
	} while (reply.header.opcode != SVC_EVENT_COMM);
	CHECK_EQ(reply.event.comm, s->m[rank].joined.comm);
	CHECK_EQ(reply.event.epoch, s->m[rank].joined.epoch);
	CHECK_EQ(reply.event.status.result, reply.event.reason);
	return reply.event.status;
}

ncclsvc_status scene_ends(struct scene *s, ncclsvc_result result)
{
	peer_wait_aborted(s->controls);
	const ncclsvc_status st = scene_reported(s, 0), other = scene_reported(s, 1);
	CHECK_EQ(st.result, result);
	CHECK(!memcmp(&st, &other, sizeof(st)));
	scene_close(s);
	return st;
}

void scene_member(struct scene *s, int rank)
{
	raw_open(&s->m[rank].raw, s->c->daemon);
	s->m[rank].staging = peer_memory(&s->m[rank].raw, rank, PEER_STAGING);
}
