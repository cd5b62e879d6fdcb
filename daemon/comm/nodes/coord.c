/* SPDX-License-Identifier: Apache-2.0
 * Connects this node's coord/ with its communicators. */
#include "base/clock.h"
#include "base/config.h"
#include "base/loop.h"
#include "comm/comms.h"
#include "comm/remote.h"
#include "node_reports.h"

static void op_send(void *arg, uint32_t node, enum control_kind kind, const void *body, size_t size)
{
	remote_send(arg, node, kind, body, size);
}

static bool op_gone(void *arg, uint32_t node)
{
	const struct comms *s = arg;
	return s->cluster && node < s->cluster->n && s->cluster->nodes[node].gone;
}

static uint32_t op_rendezvous(void *arg, const uint8_t *id)
{
	const struct comms *s = arg;
	return s->cluster ? cluster_rendezvous(s->cluster, id) : s->coord.me;
}

static const char *op_host(void *arg, uint32_t node)
{
	const struct comms *s = arg;
	return !s->cluster	      ? "this one"
	       : node < s->cluster->n ? s->cluster->nodes[node].shown
				      : "unknown";
}

static uint64_t op_now(void *arg)
{
	(void)arg;
	return clock_now();
}

static void op_deadline(void *arg, uint64_t at_ns)
{
	struct comms *s = arg;
	loop_deadline(s->loop, at_ns);
}

static int op_random_id(void *arg, uint8_t id[NCCLSVC_ID_BYTES])
{
	const struct comms *s = arg;
	return cluster_new_id(s->cluster, id);
}

/* Random, so that no other rendezvous has it; 1 if there is none. */
static uint64_t first_name(const struct cluster *c)
{
	return (c ? c->nodes[c->me].info.incarnation : 1) << EPOCH_NUMBER_BITS;
}

static void op_make_nccl_id(void *arg, const uint8_t *id, uint32_t epoch, int32_t device)
{
	nodes_make_id(arg, id, epoch, device);
}

static void op_run_job(void *arg, struct loop_job *job, uint64_t steps)
{
	struct comms *s = arg;
	loop_run_job(s->loop, job, steps);
}

static uint64_t op_new_uid(void *arg)
{
	struct comms *s = arg;
	return ++s->last_comm;
}

static const struct comm_callbacks callbacks = {
	.own_message = remote_handle,
	.begun = remote_deliver,
	.not_in_table = comm_not_in_table,
};

void remote_start(struct comms *s)
{
	static const struct coord_ops ops = {
		.send = op_send,
		.rendezvous = op_rendezvous,
		.gone = op_gone,
		.host = op_host,
		.now_ns = op_now,
		.deadline = op_deadline,
		.random_id = op_random_id,
		.make_nccl_id = op_make_nccl_id,
		.run_job = op_run_job,
		.new_uid = op_new_uid,
	};
	s->callbacks = &callbacks;
	coord_init(&s->coord, &ops, s, s->cluster ? s->cluster->me : 0, cluster_room(s->cluster));
	s->coord.names = first_name(s->cluster);
	s->coord.together = cluster_is_together(s->cluster);
	s->coord.keep_ns = (uint64_t)s->config->comm_idle_seconds * 1000000000;
	s->coord.release_ns = (uint64_t)s->config->idle_release * 1000000000;
	remote_open(s);
}
