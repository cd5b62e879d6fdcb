/* SPDX-License-Identifier: Apache-2.0
 * Creates and forgets communicators. */
#include "comm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "comms.h"
#include "gpu/nccl_comm.h"
#include "remote.h"
#include "requests.h"

static void set_label(struct communicator *m)
{
	snprintf(m->label, sizeof(m->label), "%02x%02x%02x%02x", m->id[0], m->id[1], m->id[2],
		 m->id[3]);
}

void comm_name(struct communicator *m, const struct session *c,
	       const char label[NCCLSVC_NAME_BYTES])
{
	const bool first = !m->occupied;
	if (first)
		memcpy(m->job, c->job[0] ? c->job : c->cgroup, sizeof(m->job));
	if (m->world || !label[0] || (m->named && !first))
		return;
	m->named = true;
	memcpy(m->label, label, sizeof(m->label));
}

/* The communicator that has been idle longest gives its slot to a new one. A communicator that was
 * just created is not in the list. of: the owner; NULL: any. False: there is none. */
static bool evict(struct comms *s, const struct account *of)
{
	struct communicator *m = s->idle;
	while (m && of && m->account != of)
		m = m->next_idle;
	if (m)
		comm_forget(s, m);
	return m;
}

/* A user over the limit frees one of the user's own idle communicators. Only a full daemon takes
 * another user's. */
static bool take_place(struct comms *s, struct account *a, char *text)
{
	if (account_take(a, SHARE_COMMS, 1, text))
		return true;
	if (evict(s, a) && account_take(a, SHARE_COMMS, 1, text))
		return true;
	return account_all_taken(a, SHARE_COMMS) && evict(s, NULL) &&
	       account_take(a, SHARE_COMMS, 1, text);
}

static struct communicator *allocate(struct comms *s, const struct account *a, uint32_t nranks)
{
	while (s->free_slot < SVC_COMMS_MAX && s->comm_by_slot[s->free_slot])
		s->free_slot++;
	if (s->free_slot == SVC_COMMS_MAX ||
	    deadlines_reserve(&s->joins, (uint32_t)s->accounts->held[SHARE_RANKS]))
		return NULL;
	struct communicator *m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	m->slot = s->free_slot;
	const uint64_t start = sizeof(*m->start) + nranks * sizeof(m->start->members[0]);
	const uint64_t bytes = nranks * sizeof(*m->members) + 2 * start;
	if (account_memory_left(a, bytes)) {
		m->members = calloc(nranks, sizeof(*m->members));
		m->starts[0] = calloc(1, start);
		m->starts[1] = calloc(1, start);
	}
	if (m->members && m->starts[0] && m->starts[1])
		return m;
	free(m->members);
	free(m->starts[0]);
	free(m->starts[1]);
	free(m);
	return NULL;
}

struct communicator *comm_create(struct comms *s, const uint8_t *id, uint32_t nranks,
				 struct account *a, int *result, char text[SVC_TEXT_BYTES])
{
	*result = NCCLSVC_LIMIT;
	if (!account_take(a, SHARE_RANKS, nranks, text))
		return NULL;
	if (!take_place(s, a, text)) {
		account_give(a, SHARE_RANKS, nranks);
		return NULL;
	}
	struct communicator *m = allocate(s, a, nranks);
	if (!m) {
		account_give(a, SHARE_RANKS, nranks);
		account_give(a, SHARE_COMMS, 1);
		*result = NCCLSVC_NO_MEMORY;
		snprintf(text, SVC_TEXT_BYTES, "the daemon has no memory for a communicator");
		return NULL;
	}
	for (uint32_t k = 0; k < nranks; k++) {
		m->members[k].device = SVC_DEVICE_HOST;
		m->members[k].node = -1;
		m->members[k].staging_fd = m->members[k].controls_fd = -1;
	}
	m->comms = s;
	m->account = a;
	m->admit = NCCLSVC_ADMIT_TENANT;
	m->uid = ++s->last_comm;
	memcpy(m->id, id, sizeof(m->id));
	m->nranks = nranks;
	m->since_ns = m->idle_ns = clock_now();
	epoch_begin(&m->life, m->since_ns);
	set_label(m);
	s->comm_by_slot[m->slot] = m;
	s->ncomms++;
	HASH_ADD(hh, s->comms, id, sizeof(m->id), m);
	comm_deadline(m, comm_idle_end(m));
	return m;
}

void comm_forget(struct comms *s, struct communicator *m)
{
	comm_event(m, NCCLSVC_CAUSE_FORGOTTEN);
	nccl_comm_release(&m->nccl_comm);
	plan_forget(m);
	HASH_DEL(s->comms, m);
	if (m->prev_idle)
		DL_DELETE2(s->idle, m, prev_idle, next_idle);
	deadlines_remove(&s->deadlines, &m->deadline);
	s->comm_by_slot[m->slot] = NULL;
	if (m->slot < s->free_slot)
		s->free_slot = m->slot;
	s->ncomms--;
	account_give(m->account, SHARE_RANKS, m->nranks);
	account_give(m->account, SHARE_COMMS, 1);
	account_put(m->account);
	free(m->members);
	free(m->split);
	free(m->progress);
	free(m->lateness);
	free(m->pending);
	free(m->descriptions);
	free(m->starts[0]);
	free(m->starts[1]);
	remote_forget_unexpected(m);
	free(m);
}

void comm_hand_over(struct communicator *m, struct account *a)
{
	struct account *before = m->account;
	m->account = a;
	if (m->nccl_comm) /* its last epoch may not be over yet */
		m->nccl_comm->account = a;
	account_add(a, SHARE_RANKS, m->nranks);
	account_add(a, SHARE_COMMS, 1);
	account_give(before, SHARE_RANKS, m->nranks);
	account_give(before, SHARE_COMMS, 1);
	account_put(before);
}

int comms_open(struct comms *s)
{
	s->comm_by_slot = calloc(SVC_COMMS_MAX, sizeof(struct communicator *));
	return s->comm_by_slot ? deadlines_reserve(&s->deadlines, SVC_COMMS_MAX) : -ENOMEM;
}

void comm_free_all(struct comms *s)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp)
		comm_forget(s, m);
	deadlines_fini(&s->deadlines);
	deadlines_fini(&s->joins);
	deadlines_fini(&s->looks);
	deadlines_fini(&s->unshares);
	free(s->comm_by_slot);
}
