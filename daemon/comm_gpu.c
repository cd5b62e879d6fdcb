/* SPDX-License-Identifier: Apache-2.0
 * Communicators of GPUs: what an epoch of theirs needs before it can begin. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/cluster.h"
#include "comm.h"
#include "gpu.h"

static bool physical_fits(const struct communicator *m)
{
	const struct physical *p = m->physical;
	if (!p || !p->ready || p->bad)
		return false;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (p->devices[k] != m->seats[k].device)
			return false;
	return true;
}

/* True: every worker is there and knows its member's timelines, and NCCL has a communicator. Else
 * whatever is missing has been asked for, and the answer comes back here. */
bool comm_gpus_ready(struct server *s, struct communicator *m)
{
	bool known = true;
	if (m->acquiring)
		return false;
	if (s->staging)
		return staging_ready(s, m);
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct gpu *g = s->gpus[m->seats[k].device];
		if (g->info.state != NCCLSVC_DEVICE_READY)
			return false;
		known = gpu_session_known(g, m->seats[k].client) && known;
	}
	if (!known || physical_fits(m))
		return known;
	uint64_t due = physical_due(s, m);
	if (due) {
		server_deadline(s, due);
		return false;
	}
	physical_release(m);
	m->acquiring = true;
	physical_acquire(s, m);
	if (!physical_fits(m))
		return false;
	m->acquiring = false;
	return true;
}

void comm_fail_joins(struct server *s, struct communicator *m, int result, const char *why)
{
	uint32_t *sessions = calloc(m->nranks, sizeof(*sessions)); /* that held a seat */
	if (!sessions)
		abort();
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct seat *seat = &m->seats[k];
		struct client *c = seat->client;
		uint32_t serial = seat->serial;
		if (seat->state != NCCLSVC_MEMBER_JOINING)
			continue;
		m->joining--;
		seat->state = NCCLSVC_MEMBER_BROKEN;
		seat->deadline_ns = 0;
		sessions[k] = seat->fresh ? c->id : 0;
		if (seat->fresh)
			comm_vacate(m, seat, NCCLSVC_MEMBER_ABSENT);
		client_error(c, m->reply_opcode, serial, result, "%s", why);
	}
	if (s->cluster && m->start) { /* its home, and other nodes, believe that it has begun */
		m->epoch = m->start->epoch;
		for (uint32_t k = 0; k < m->nranks; k++)
			if (m->start->members[k].node != s->cluster->me)
				m->seats[k].node = (int32_t)m->start->members[k].node;
		free(m->start);
		m->start = NULL;
		remote_break(m, result, -1, -1);
		for (uint32_t k = 0; k < m->nranks; k++)
			m->seats[k].node = -1;
		for (uint32_t k = 0; k < m->nranks; k++)
			if (sessions[k])
				remote_unjoin(m, k, sessions[k], false);
	}
	free(sessions);
	comm_check_idle(s, m);
}

void comm_physical_ready(struct communicator *m, int result, const char *why)
{
	struct server *s = m->account->server;
	m->acquiring = false;
	if (result)
		comm_fail_joins(s, m, result, why);
	else
		comm_try_start(s, m);
}

void comm_gpu_ready(struct server *s)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp)
		if (m->cuda)
			comm_try_start(s, m);
}

void comm_session_known(struct client *c)
{
	for (uint32_t i = 1; i < c->nmemberships; i++)
		if (c->memberships[i].comm && c->memberships[i].comm->cuda)
			comm_try_start(c->server, c->memberships[i].comm);
}

/* Members are all of the host or all of GPUs, each of its own. */
bool comm_device_fits(struct client *c, struct communicator *m, uint32_t serial,
		      const struct svc_join *j, int32_t rank)
{
	if (!m->occupied && !m->running)
		m->cuda = j->device != SVC_DEVICE_HOST;
	if (m->cuda != (j->device != SVC_DEVICE_HOST)) {
		client_error(c, SVC_JOIN, serial, NCCLSVC_MISMATCH,
			     "rank %d (pid %d) joins with %s, the members of communicator %s did "
			     "with %s",
			     rank, c->pid, m->cuda ? "host memory" : "a GPU", m->label,
			     m->cuda ? "GPUs" : "host memory");
		return false;
	}
	for (uint32_t k = 0; m->cuda && k < m->nranks; k++) {
		if ((int32_t)k == rank || !comm_alive(&m->seats[k]) ||
		    m->seats[k].device != j->device)
			continue;
		client_error(c, SVC_JOIN, serial, NCCLSVC_INVALID_ARGUMENT,
			     "ranks %u (pid %d) and %d (pid %d) of communicator %s have both taken "
			     "device %d",
			     k, m->seats[k].pid, rank, c->pid, m->label, j->device);
		return false;
	}
	return true;
}
