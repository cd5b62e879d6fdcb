/* SPDX-License-Identifier: Apache-2.0 */
#include "peer.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "account/account.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/loop.h"
#include "comm.h"
#include "comms.h"
#include "fdio.h"
#include "gpu/gpu.h"
#include "gpu/mps_service.h"
#include "memory/memory.h"

_Static_assert(sizeof(struct peer_page) <= PEER_PAGE, "a page for each member");

/* ---- Staging memory ---- */

static const struct mapping *lent_region(const struct client *c, uint32_t region)
{
	const struct mapping *r = region < c->nmappings ? &c->mappings[region] : NULL;
	return r && r->used && !r->pending && !r->leaving && r->kind == SVC_REGION_LENT ? r : NULL;
}

bool peer_staging_fits(struct client *c, unsigned opcode, uint32_t serial, int32_t device,
		       uint32_t region)
{
	if (!region)
		return true;
	const struct mapping *r = device != SVC_DEVICE_HOST ? lent_region(c, region) : NULL;
	if (r && r->device == device && r->bytes >= PEER_STAGING)
		return true;
	client_error(c, opcode, serial, NCCLSVC_INVALID_ARGUMENT,
		     "staging: region %u is no lent memory of device %d with %llu bytes or more",
		     region, device, (unsigned long long)PEER_STAGING);
	return false;
}

void peer_staging_drop(struct member *member)
{
	if (member->staging_fd < 0)
		return;
	account_give(member->client->account, SHARE_FDS, 1);
	account_give(member->client->account, SHARE_REGION_BYTES, member->staging_bytes);
	account_close(member->client->account, &member->staging_fd, 1);
	member->staging_fd = -1;
}

/* The memory counts for the member beside the region, which may go while the member holds it. */
static bool take_shares(const struct client *c, uint64_t bytes, char text[SVC_TEXT_BYTES])
{
	if (!account_take(c->account, SHARE_FDS, 1, text))
		return false;
	if (account_take(c->account, SHARE_REGION_BYTES, bytes, text))
		return true;
	account_give(c->account, SHARE_FDS, 1);
	return false;
}

void peer_staging_take(struct member *member, uint32_t region)
{
	char text[SVC_TEXT_BYTES];
	struct client *c = member->client;
	const struct mapping *r = lent_region(c, region);
	peer_staging_drop(member);
	if (!r)
		return;
	if (!take_shares(c, r->bytes, text)) {
		log_info("session %u (%s, pid %d): its staging memory is not used: %s", c->id,
			 c->name, c->pid, text);
		return;
	}
	member->staging_bytes = r->bytes;
	member->staging_fd = fcntl(r->fd, F_DUPFD_CLOEXEC, 0);
	if (member->staging_fd < 0) {
		account_give(c->account, SHARE_FDS, 1);
		account_give(c->account, SHARE_REGION_BYTES, r->bytes);
	}
}

/* ---- Pages ---- */

static bool all_have_staging(const struct communicator *m)
{
	if (!m->cuda || m->remote || m->nranks > PEER_RANKS)
		return false;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (!comm_takes_part(&m->members[k]) || m->members[k].staging_fd < 0)
			return false;
	return true;
}

static bool all_reach(const struct communicator *m)
{
	for (uint32_t a = 0; a < m->nranks; a++)
		for (uint32_t b = 0; b < m->nranks; b++) {
			const int32_t from = m->members[a].device, to = m->members[b].device;
			if (a == b || gpu_reaches(m->comms->gpus, from, to))
				continue;
			log_debug("communicator %s: its members' staging memory is not used: gpu%d "
				  "cannot access gpu%d's memory",
				  m->label, from, to);
			return false;
		}
	return true;
}

/* The most bytes that the staging memory of all members has room for. */
static uint32_t most_bytes(const struct communicator *m)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (m->members[k].staging_bytes < PEER_STAGING + PEER_BULK)
			return PEER_LINES_MOST;
	return UINT32_MAX;
}

/* From there on NCCL is faster where workers and trainers share their GPUs through MPS. */
#define WITH_MPS_BYTES	  (UINT32_C(8) << 20)
/* Without, a worker's kernel takes turns with what the trainer computes, and costs it much more
 * than one of the trainer's own, even if that takes twice as long as NCCL's. */
#define WITHOUT_MPS_BYTES (UINT32_C(64) << 20)

static uint32_t bytes_set(const struct communicator *m)
{
	const int64_t set = m->comms->config->peer_bytes;
	if (set >= 0)
		return set < UINT32_MAX ? (uint32_t)set : UINT32_MAX;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (gpu_mps_of(m->comms->gpus, m->members[k].client) != NCCLSVC_MPS_ACTIVE)
			return WITHOUT_MPS_BYTES;
	return WITH_MPS_BYTES;
}

static bool pages_make(struct peer_pages *p, uint32_t nranks)
{
	p->bytes = (size_t)nranks * PEER_PAGE;
	p->fd = svc_memfd_create("ncclsvc-peer", p->bytes, true);
	if (p->fd < 0)
		return false;
	p->base = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
	if (p->base != MAP_FAILED)
		return true;
	close(p->fd);
	return false;
}

void peer_begin(struct communicator *m)
{
	char text[SVC_TEXT_BYTES];
	if (!m->comms->config->peer_bytes || !all_have_staging(m) || !all_reach(m))
		return;
	if (!account_take(m->account, SHARE_FDS, 1, text)) {
		log_info("communicator %s: its members' staging memory is not used: %s", m->label,
			 text);
		return;
	}
	m->peer = calloc(1, sizeof(*m->peer));
	if (m->peer && pages_make(m->peer, m->nranks)) {
		for (uint32_t k = 0; k < m->nranks; k++)
			m->peer->members[k].session = m->members[k].client->id;
		const uint32_t most = most_bytes(m), set = bytes_set(m);
		m->peer->operation_bytes = set < most ? set : most;
		m->peer->active_ns = clock_now();
		loop_deadline(m->comms->loop, m->peer->active_ns);
		return;
	}
	log_info("communicator %s: its members' staging memory is not used: the daemon has no "
		 "memory "
		 "for their pages",
		 m->label);
	account_give(m->account, SHARE_FDS, 1);
	free(m->peer);
	m->peer = NULL;
}

void peer_end(struct communicator *m)
{
	struct peer_pages *p = m->peer;
	if (!p)
		return;
	for (uint32_t k = 0; k < m->nranks; k++) {
		__atomic_store_n(&peer_page_of(p->base, k)->abort, 1, __ATOMIC_RELEASE);
	}
	munmap(p->base, p->bytes);
	close(p->fd);
	account_give(m->account, SHARE_FDS, 1);
	free(p);
	m->peer = NULL;
}

uint32_t peer_bytes(const struct communicator *m)
{
	return m->peer ? m->peer->operation_bytes : 0;
}

void peer_staging_give(struct client *c, uint32_t serial, const struct svc_staging *r)
{
	int32_t rank;
	const struct communicator *m = comm_of_handle(c, r->comm, &rank);
	if (!m) {
		client_error(c, SVC_STAGING, serial, NCCLSVC_NOT_FOUND,
			     "there is no communicator %u in this session", r->comm);
	} else if (r->rank < -1 || (r->rank >= 0 && (uint32_t)r->rank >= m->nranks)) {
		client_error(c, SVC_STAGING, serial, NCCLSVC_INVALID_ARGUMENT,
			     "communicator %s has no rank %d", m->label, r->rank);
	} else if (!m->peer) {
		client_error(c, SVC_STAGING, serial, NCCLSVC_STALE_EPOCH,
			     "communicator %s has no epoch whose members all have staging memory",
			     m->label);
	} else if (r->rank >= 0 && m->members[r->rank].staging_fd < 0) {
		client_error(c, SVC_STAGING, serial, NCCLSVC_PEER_GONE,
			     "rank %d of communicator %s has left", r->rank, m->label);
	} else {
		const int fd = r->rank < 0 ? m->peer->fd : m->members[r->rank].staging_fd;
		client_reply(c, SVC_STAGING, serial, NULL, 0, &fd, 1);
	}
}
