/* SPDX-License-Identifier: Apache-2.0 */
#include "callbacks.h"

#include "channel/cluster.h"
#include "comm/comm.h"
#include "comm/comm_gpus.h"
#include "comm/nodes/node_reports.h"
#include "comm/peer/share_log.h"
#include "coord/node_numbers.h"
#include "memory/memory.h"
#include "server/relay.h"
#include "server/server_state.h"

/* ---- Sessions ---- */

static void on_request(void *owner, struct session *c, const struct svc_header *h, const void *body,
		       int *fds)
{
	request_handle(owner, c, h, body, fds);
}

static bool on_vacate(void *owner, struct session *c, uint64_t until_ns)
{
	struct server *s = owner;
	relay_forget(s, c);
	server_handle_events(s); /* a failure is known before what follows from it */
	return comm_session_gone(&s->comms, c, until_ns);
}

static void on_end_tasks(void *owner, struct session *c)
{
	struct server *s = owner;
	scheduler_command(s->scheduler,
			  &(struct command){.kind = COMMAND_SESSION_DEL, .session = c->slot});
}

static bool on_free_memory(void *owner, struct session *c, uint64_t until_ns)
{
	struct server *s = owner;
	return memory_free_all(&s->memory, c, until_ns);
}

static const struct session_callbacks session_callbacks = {
	.request = on_request,
	.vacate = on_vacate,
	.end_tasks = on_end_tasks,
	.free_memory = on_free_memory,
};

/* ---- Other nodes ---- */

static void on_message(void *owner, uint32_t from, unsigned kind, const void *body, size_t size)
{
	struct server *s = owner;
	server_handle_events(s); /* a failure is known before what follows from it */
	if (kind == CONTROL_LIST || kind == CONTROL_LISTED)
		relay_handle(s, from, kind, body, size);
	else
		remote_handle(&s->comms, from, kind, body, size);
}

static void on_node_lost(void *owner, uint32_t node, bool returns)
{
	struct server *s = owner;
	relay_node_lost(s, node);
	remote_node_lost(&s->comms, node, returns);
}

static void on_node_ready(void *owner)
{
	struct server *s = owner;
	remote_node_ready(&s->comms);
}

static void on_carry(void *owner, uint32_t node, const void *address, size_t size, uint32_t here,
		     uint32_t there)
{
	struct server *s = owner;
	remote_carry(&s->comms, node, address, size, here, there);
}

static bool on_needs(void *owner, uint32_t node)
{
	struct server *s = owner;
	return remote_needs_node(&s->comms, node);
}

static const struct cluster_callbacks cluster_callbacks = {
	.message = on_message,
	.node_lost = on_node_lost,
	.node_ready = on_node_ready,
	.carry = on_carry,
	.needs = on_needs,
	.visit_nodes = messages_visit_nodes,
};

/* ---- GPUs ---- */

static void on_worker_ready(void *owner, struct gpu *g)
{
	struct server *s = owner;
	gpu_memory_restore(&s->memory, g);
	comm_gpu_ready(&s->comms);
}

static void on_worker_lost(void *owner, struct gpu *g)
{
	struct server *s = owner;
	comm_staged_worker_lost(&s->comms, g);
	gpu_memory_lost(&s->memory, g);
}

static bool on_may_rest(void *owner, const struct gpu *g)
{
	const struct server *s = owner;
	return !s->memory.turns[g->index];
}

static void on_room(void *owner)
{
	struct server *s = owner;
	comm_gpu_ready(&s->comms);
}

static const struct gpu_callbacks gpu_callbacks = {
	.worker_ready = on_worker_ready,
	.worker_lost = on_worker_lost,
	.may_rest = on_may_rest,
	.has_room = on_room,
	.made = comm_nccl_ready,
	.broken = comm_nccl_broken,
	.dead = comm_nccl_dead,
	.release = comm_nccl_release,
	.aborts = comm_nccl_abort,
	.unused = comm_nccl_unused,
	.left_until = comm_left_until,
};

/* ---- Registered memory ---- */

static void on_session_known(void *owner, struct session *c)
{
	(void)owner;
	comm_session_known(c);
}

static bool on_unshare(void *owner, struct session *c, uint32_t region, uint32_t request_id)
{
	struct server *s = owner;
	return shares_drop(&s->comms, c, region, request_id);
}

static void on_region_gone(void *owner, struct mapping *m)
{
	struct server *s = owner;
	shares_region_gone(&s->comms, m);
}

static const struct memory_callbacks memory_callbacks = {
	.session_known = on_session_known,
	.restored = on_session_known,
	.uses_gpus = comm_uses_gpus,
	.unshare = on_unshare,
	.region_gone = on_region_gone,
};

const struct server_callbacks daemon_callbacks = {
	.session = &session_callbacks,
	.cluster = &cluster_callbacks,
	.gpu = &gpu_callbacks,
	.memory = &memory_callbacks,
};
