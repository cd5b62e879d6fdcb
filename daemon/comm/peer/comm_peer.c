/* SPDX-License-Identifier: Apache-2.0 */
#include "comm_peer.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "account/account.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/loop.h"
#include "comm/comm.h"
#include "comm/comms.h"
#include "gpu/gpu.h"
#include "memory/memory.h"
#include "proto/fdio.h"
#include "shared_gpu.h"
#include "sleep.h"

_Static_assert(sizeof(struct peer_control) <= PEER_CONTROL_BYTES,
	       "a control block for each member");

/* ---- Staging memory ---- */

/* A member that states a wrong size harms only the kernels of its own communicator, which the other
 * members then cannot map. */
static const struct mapping *staging_region(const struct session *c, uint32_t region)
{
	const struct mapping *r = region < c->nmappings ? &c->mappings[region] : NULL;
	if (!r || !r->used || r->leaving || (r->pending && !r->absent))
		return NULL;
	return r->kind == SVC_REGION_VMM ? r : NULL;
}

static uint64_t staging_region_bytes(const struct session *c, uint32_t region)
{
	const struct mapping *r = staging_region(c, region);
	return r ? r->bytes : 0;
}

bool peer_staging_fits(struct session *c, unsigned opcode, uint32_t request_id, int32_t device,
		       uint32_t region)
{
	if (!region)
		return true;
	const struct mapping *r = device != SVC_DEVICE_HOST ? staging_region(c, region) : NULL;
	if (r && r->device == device && r->bytes >= PEER_STAGING)
		return true;
	session_error(
		c, opcode, request_id, NCCLSVC_INVALID_ARGUMENT,
		"staging: region %u is not memory of cuMemCreate on device %d, of at least %llu "
		"bytes",
		region, device, (unsigned long long)PEER_STAGING);
	return false;
}

/* The region may be deleted while the member holds the memory, so the member is charged for it. */
static bool take_shares(struct account *a, uint64_t bytes, char text[SVC_TEXT_BYTES])
{
	if (!account_take(a, SHARE_FDS, 1, text))
		return false;
	if (account_take(a, SHARE_REGION_BYTES, bytes, text))
		return true;
	account_give(a, SHARE_FDS, 1);
	return false;
}

static void give_shares(struct account *a, uint64_t bytes)
{
	account_give(a, SHARE_FDS, 1);
	account_give(a, SHARE_REGION_BYTES, bytes);
}

static void drop_fd(struct account *a, int *fd)
{
	if (*fd < 0)
		return;
	account_close(a, fd, 1);
	account_give(a, SHARE_FDS, 1);
	*fd = -1;
}

void peer_staging_drop(struct member *member)
{
	if (member->session)
		drop_fd(member->session->account, &member->controls_fd);
	if (member->staging_fd < 0)
		return;
	give_shares(member->session->account, member->staging_bytes);
	account_close(member->session->account, &member->staging_fd, 1);
	member->staging_fd = -1;
}

void peer_staging_take(struct member *member, uint32_t region, uint8_t blocks)
{
	char text[SVC_TEXT_BYTES];
	struct session *c = member->session;
	const struct mapping *r = staging_region(c, region);
	peer_staging_drop(member);
	if (!r)
		return;
	if (!take_shares(c->account, r->bytes, text)) {
		log_info("session %u (%s, pid %d): its staging memory is not used: %s", c->id,
			 c->name, c->pid, text);
		return;
	}
	member->blocks = blocks;
	member->staging_bytes = r->bytes;
	member->staging_fd = fcntl(r->fd, F_DUPFD_CLOEXEC, 0);
	if (member->staging_fd < 0)
		give_shares(c->account, r->bytes);
}

/* ---- Control blocks of an epoch that is continued ---- */

void peer_controls_note(struct session *c, uint32_t request_id, int fd)
{
	char text[SVC_TEXT_BYTES];
	peer_controls_forget(c);
	if (!account_take(c->account, SHARE_FDS, 1, text)) {
		session_error(c, SVC_CONTROLS, request_id, NCCLSVC_LIMIT, "%s", text);
		return;
	}
	c->next_controls = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (c->next_controls >= 0) {
		session_reply(c, SVC_CONTROLS, request_id, NULL, 0, NULL, 0);
		return;
	}
	account_give(c->account, SHARE_FDS, 1);
	session_error(c, SVC_CONTROLS, request_id, NCCLSVC_NO_MEMORY,
		      "the daemon has run out of file descriptors");
}

void peer_controls_forget(struct session *c)
{
	drop_fd(c->account, &c->next_controls);
}

bool peer_controls_fit(const struct communicator *m, const struct session *c)
{
	char text[SVC_TEXT_BYTES];
	struct stat own, other;
	const uint64_t bytes = (uint64_t)m->nranks * PEER_CONTROL_BYTES;
	if (c->next_controls < 0) /* it had not mapped any yet */
		return true;
	if (m->nranks > PEER_RANKS || !svc_memfd_trusted(c->next_controls, bytes, text) ||
	    fstat(c->next_controls, &own))
		return false;
	for (uint32_t k = 0; k < m->nranks; k++) {
		const int fd = m->members[k].controls_fd;
		if (fd >= 0 &&
		    (fstat(fd, &other) || own.st_dev != other.st_dev || own.st_ino != other.st_ino))
			return false;
	}
	return true;
}

void peer_controls_take(struct member *member)
{
	drop_fd(member->session->account, &member->controls_fd);
	member->controls_fd = member->session->next_controls;
	member->session->next_controls = -1;
}

/* ---- Control blocks ---- */

static bool all_have_staging(const struct communicator *m)
{
	if (!m->cuda || m->nranks > PEER_RANKS)
		return false;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (!comm_alive(&m->members[k]) || !peer_has_kernels(&m->members[k]))
			return false;
	return true;
}

bool peer_all_reach(const struct communicator *m, int32_t *from, int32_t *to)
{
	for (uint32_t a = 0; a < m->nranks; a++)
		for (uint32_t b = 0; b < m->nranks; b++) {
			*from = m->members[a].device;
			*to = m->members[b].device;
			if (*from != *to && !gpu_reaches(m->comms->gpus, *from, *to))
				return false;
		}
	return true;
}

static bool all_reach(const struct communicator *m)
{
	int32_t from, to;
	if (peer_all_reach(m, &from, &to))
		return true;
	log_debug("communicator %s: its members' staging memory is not used: gpu%d cannot access "
		  "gpu%d's memory",
		  m->label, from, to);
	return false;
}

/* Returns a GPU of another member whose memory the rank's process cannot map, or -1. */
static int32_t out_of_reach(const struct communicator *m, uint32_t rank)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (m->members[k].device != m->members[rank].device &&
		    m->members[rank].session->out_of_reach >> m->members[k].device & 1)
			return m->members[k].device;
	return -1;
}

/* If one member cannot map another's memory, all members do without kernels. */
bool peer_all_can_map(struct communicator *m)
{
	for (uint32_t k = 0; k < m->nranks && !m->out_of_reach; k++) {
		const int32_t gpu = out_of_reach(m, k);
		m->out_of_reach = gpu >= 0;
		if (m->out_of_reach)
			log_info("communicator %s: all its operations run on NCCL in the workers: "
				 "the process of rank %u (pid %d) cannot map the memory of gpu%d; "
				 "it may lack that GPU's device node",
				 m->label, k, m->members[k].pid, gpu);
	}
	return !m->out_of_reach;
}

bool peer_is_possible(const struct communicator *m)
{
	if (!m->comms->config->peer_bytes || !all_have_staging(m) || !all_reach(m))
		return false;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (out_of_reach(m, k) >= 0)
			return false;
	return true;
}

/* The control blocks that members have brought, all the same ones; -1: nobody has brought any. */
static int controls_brought(const struct communicator *m)
{
	int fd = -1;
	for (uint32_t k = 0; fd < 0 && k < m->nranks; k++)
		fd = m->members[k].controls_fd;
	return fd;
}

static bool controls_open(struct peer_epoch *p, const struct communicator *m)
{
	const int before = controls_brought(m);
	p->bytes = (size_t)m->nranks * PEER_CONTROL_BYTES;
	p->fd = before >= 0 ? fcntl(before, F_DUPFD_CLOEXEC, 0)
			    : svc_memfd_create("ncclsvc-peer", p->bytes, true);
	if (p->fd < 0)
		return false;
	p->base = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
	if (p->base != MAP_FAILED)
		return true;
	close(p->fd);
	return false;
}

/* From now on the memory is charged to the communicator and stays until the epoch ends, even if the
 * member leaves, since the others' kernels use it. */
static void staging_keep(struct communicator *m, uint32_t k)
{
	struct member *member = &m->members[k];
	m->peer->staging[k] = (struct peer_staging){member->staging_fd, member->staging_bytes};
	if (member->staging_fd < 0) /* it is asleep */
		return;
	give_shares(member->session->account, member->staging_bytes);
	account_add(m->account, SHARE_FDS, 1);
	account_add(m->account, SHARE_REGION_BYTES, member->staging_bytes);
	member->staging_fd = -1;
}

static void staging_let_go(struct communicator *m, uint32_t k)
{
	struct peer_staging *staging = &m->peer->staging[k];
	if (staging->fd < 0) /* the member is asleep */
		return;
	give_shares(m->account, staging->bytes);
	account_close(m->account, &staging->fd, 1);
	staging->fd = -1;
}

void peer_staging_sleep(struct communicator *m, uint32_t rank)
{
	staging_let_go(m, rank);
}

bool peer_staging_wake(struct communicator *m, uint32_t rank, uint32_t request_id, uint32_t region)
{
	struct member *member = &m->members[rank];
	struct session *c = member->session;
	if (!region || staging_region_bytes(c, region) != m->peer->staging[rank].bytes) {
		session_error(c, SVC_SLEEP, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "staging: region %u is not a cuMemCreate allocation of %llu bytes",
			      region, (unsigned long long)m->peer->staging[rank].bytes);
		return false;
	}
	if (!peer_staging_fits(c, SVC_SLEEP, request_id, member->device, region))
		return false;
	peer_staging_take(member, region, member->blocks);
	if (member->staging_fd < 0) {
		session_error(c, SVC_SLEEP, request_id, NCCLSVC_LIMIT,
			      "the daemon cannot keep the staging memory: the user's limit of file "
			      "descriptors or registered memory is reached");
		return false;
	}
	staging_let_go(m, rank); /* if the session handed it over after a restart of the daemon */
	staging_keep(m, rank);
	return true;
}

/* False: the epoch does without kernels. */
static bool controls_begin(struct communicator *m)
{
	char text[SVC_TEXT_BYTES];
	m->out_of_reach = false;
	if (!m->comms->config->peer_bytes || m->remote || !all_have_staging(m) || !all_reach(m) ||
	    !peer_all_can_map(m))
		return false;
	if (!account_take(m->account, SHARE_FDS, 1, text)) {
		log_info("communicator %s: its members' staging memory is not used: %s", m->label,
			 text);
		return false;
	}
	m->peer = calloc(1, sizeof(*m->peer));
	if (m->peer && !deadlines_add(&m->comms->looks, &m->peer->look, clock_now())) {
		if (controls_open(m->peer, m))
			return true;
		deadlines_remove(&m->comms->looks, &m->peer->look);
	}
	log_info("communicator %s: its members' staging memory is not used: the daemon has no "
		 "memory for their control blocks",
		 m->label);
	account_give(m->account, SHARE_FDS, 1);
	free(m->peer);
	m->peer = NULL;
	return false;
}

/* Members that were asleep when the daemon restarted have joined without staging memory: takes its
 * size from their control blocks. */
static void sleepers_restore(struct communicator *m)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (m->members[k].asleep)
			m->members[k].staging_bytes =
				peer_control_of(m->peer->base, k)->staging_bytes;
}

/* The smallest number that a member wants, or else the most that a kernel can have. */
static uint8_t fewest_blocks(const struct communicator *m)
{
	uint8_t fewest = PEER_BLOCKS;
	for (uint32_t k = 0; k < m->nranks; k++) {
		const uint8_t blocks = m->members[k].blocks;
		fewest = blocks && blocks < fewest ? blocks : fewest;
	}
	return fewest;
}

static bool all_have_copy_slots(const struct communicator *m)
{
	bool all = m->nranks > 1;
	for (uint32_t k = 0; all && k < m->nranks; k++)
		all = m->members[k].staging_bytes >= PEER_STAGING + 2 * PEER_COPY_SLOT;
	return all;
}

void peer_begin(struct communicator *m)
{
	if (!controls_begin(m)) {
		for (uint32_t k = 0; k < m->nranks; k++)
			if (comm_takes_part(&m->members[k]))
				peer_staging_drop(&m->members[k]);
		return;
	}
	struct shared_gpu shared;
	const bool kernels_only = comm_needs_kernels(m, &shared);
	if (controls_brought(m) >= 0) {
		m->peer->heartbeat = atomic_load(&peer_control_of(m->peer->base, 0)->heartbeat);
		shares_begin_again(&m->peer->shares, m->nranks);
	}
	sleepers_restore(m);
	m->peer->blocks = fewest_blocks(m);
	m->peer->copy_engines = all_have_copy_slots(m) && !comm_shared_gpu(m, &shared);
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct peer_control *control = peer_control_of(m->peer->base, k);
		m->peer->members[k].session = m->members[k].session->id;
		control->pid = m->members[k].pid;
		control->device = m->members[k].device;
		control->kernels_only = kernels_only;
		control->staging_bytes = m->members[k].staging_bytes;
		control->blocks = m->peer->blocks;
		control->copy_engines = m->peer->copy_engines;
		atomic_store(&control->shares, 0);
		staging_keep(m, k);
		drop_fd(m->members[k].session->account, &m->members[k].controls_fd);
	}
	const struct peer_limit limit = peer_limit_of(m);
	comm_shared_gpu_log(m);
	m->peer->operation_bytes = limit.bytes;
	m->peer->limit_source = limit.source;
	m->peer->comm = m;
	m->peer->active_ns = clock_now();
	loop_deadline(m->comms->loop, m->peer->look.at_ns);
}

void peer_end(struct communicator *m)
{
	struct peer_epoch *p = m->peer;
	if (!p)
		return;
	/* Its kernels go on until the members continue it with the next daemon. */
	const bool survives = m->lineage && m->comms->loop->closing;
	deadlines_remove(&m->comms->looks, &p->look);
	shares_end(m);
	for (uint32_t k = 0; k < m->nranks; k++) {
		if (!survives)
			atomic_store_explicit(&peer_control_of(p->base, k)->abort, 1,
					      memory_order_release);
		staging_let_go(m, k);
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

uint32_t peer_blocks(const struct communicator *m)
{
	return m->peer ? m->peer->blocks : 0;
}

bool peer_uses_copy_engines(const struct communicator *m)
{
	return m->peer && m->peer->copy_engines;
}

uint64_t peer_staged(const struct communicator *m)
{
	uint64_t most = 0;
	for (uint32_t k = 0; m->peer && k < m->nranks; k++) {
		const uint64_t n = atomic_load_explicit(&peer_control_of(m->peer->base, k)->staged,
							memory_order_relaxed);
		most = n > most ? n : most;
	}
	return most;
}

ncclsvc_peer_source peer_source(const struct communicator *m)
{
	if (m->out_of_reach)
		return NCCLSVC_PEER_OUT_OF_REACH;
	return peer_bytes(m) ? m->peer->limit_source : NCCLSVC_PEER_UNKNOWN;
}

void peer_staging_give(struct session *c, uint32_t request_id, const struct svc_staging *r)
{
	int32_t rank;
	const struct communicator *m = comm_of_handle(c, r->comm, &rank);
	if (!m) {
		session_error(c, SVC_STAGING, request_id, NCCLSVC_NOT_FOUND,
			      "there is no communicator %u in this session", r->comm);
	} else if (r->rank < -1 || (r->rank >= 0 && (uint32_t)r->rank >= m->nranks)) {
		session_error(c, SVC_STAGING, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "communicator %s has no rank %d", m->label, r->rank);
	} else if (!m->peer) {
		session_error(c, SVC_STAGING, request_id, NCCLSVC_STALE_EPOCH,
			      "communicator %s has no epoch whose members all have staging memory",
			      m->label);
	} else if (r->rank >= 0 && m->peer->staging[r->rank].fd < 0) {
		session_error(c, SVC_STAGING, request_id, NCCLSVC_BUSY,
			      "communicator %s: rank %d is suspended and has no staging memory",
			      m->label, r->rank);
	} else {
		const int fd = r->rank < 0 ? m->peer->fd : m->peer->staging[r->rank].fd;
		session_reply(c, SVC_STAGING, request_id, NULL, 0, &fd, 1);
	}
}
