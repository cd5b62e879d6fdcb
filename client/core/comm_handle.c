/* SPDX-License-Identifier: Apache-2.0
 * Communicator handles. */
#include <stdlib.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "call.h"
#include "comm_handle.h"
#include "session_handle.h"

void id_derive(const ncclsvc_unique_id *from, uint64_t key, ncclsvc_unique_id *to)
{
	uint64_t words[NCCLSVC_ID_BYTES / sizeof(uint64_t)];
	const size_t last = sizeof(words) / sizeof(words[0]) - 1;
	memcpy(words, from->bytes, sizeof(words));
	/* Deriving twice with one key must not restore the first id. */
	words[last] = (words[last] ^ key) * UINT64_C(0x9e3779b97f4a7c15);
	words[last] ^= words[last] >> 32;
	words[0] ^= words[last]; /* people see its first bytes */
	memcpy(to->bytes, words, sizeof(words));
}

ncclsvc_comm *comm_by_key(const ncclsvc_session *s, uint32_t key)
{
	ncclsvc_comm *c = s->comms;
	while (c && c->key != key)
		c = c->next;
	return c;
}

const char *comm_label(const ncclsvc_session *s, uint32_t key)
{
	const ncclsvc_comm *c = comm_by_key(s, key);
	return c ? c->label : "(left)";
}

ncclsvc_comm *comm_by_handle(const ncclsvc_session *s, uint32_t handle)
{
	ncclsvc_comm *c = s->comms;
	while (c && c->handle != handle)
		c = c->next;
	return handle ? c : NULL;
}

void comm_unlink(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	ncclsvc_comm **at = &s->comms;
	while (*at && *at != comm)
		at = &(*at)->next;
	if (*at)
		*at = comm->next;
}

bool join_reply_valid(const struct svc_join_reply *r)
{
	return r->comm && r->nranks > 0 && r->nranks <= SVC_RANKS_MAX && r->rank >= 0 &&
	       r->rank < r->nranks;
}

void comm_free(ncclsvc_comm *comm)
{
	if (comm) {
		free(comm->messages);
		free(comm->damaged);
		free(comm->redops);
	}
	free(comm);
}

void comms_free(ncclsvc_session *s)
{
	while (s->comms) {
		ncclsvc_comm *c = s->comms;
		s->comms = c->next;
		comm_free(c);
	}
}

int ncclsvc_comm_rank(const ncclsvc_comm *comm)
{
	return comm ? comm->rank : -1;
}

int ncclsvc_comm_size(const ncclsvc_comm *comm)
{
	return comm ? comm->nranks : -1;
}

uint32_t ncclsvc_comm_epoch(const ncclsvc_comm *comm)
{
	if (!comm)
		return 0;
	session_lock(comm->session);
	uint32_t epoch = comm->epoch;
	session_unlock(comm->session);
	return epoch;
}

void ncclsvc_comm_get_id(const ncclsvc_comm *comm, ncclsvc_unique_id *id)
{
	if (comm && id)
		*id = comm->id;
}

void ncclsvc_comm_abort(ncclsvc_comm *comm)
{
	if (!comm)
		return;
	ncclsvc_session *s = comm->session;
	session_lock(s);
	if (comm->peer && s->kernel_callbacks)
		s->kernel_callbacks->break_off(comm->peer);
	if (comm->handle)
		call_forget(s, SVC_ABORT,
			    &(struct svc_abort){.comm = comm->handle, .epoch = comm->epoch});
	session_unlock(s);
}

ncclsvc_result ncclsvc_comm_set_timeout(ncclsvc_comm *comm, int timeout_ms)
{
	if (!comm)
		return error_argument("ncclsvc_comm_set_timeout: the communicator is NULL");
	session_lock(comm->session);
	atomic_store_explicit(&comm->timeout_ns, timeout_on_wire(timeout_ms), memory_order_relaxed);
	session_unlock(comm->session);
	return NCCLSVC_OK;
}
