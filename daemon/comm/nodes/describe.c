/* SPDX-License-Identifier: Apache-2.0
 * After a failure, members describe their agreement words, so that the others' errors can say what
 * differs. The daemon passes the texts on without reading them. */
#include "describe.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "comm/communicator.h"
#include "comm/remote.h"

#define DESCRIPTIONS_KEPT 32 /* of one communicator, whose ranks are of its user's share */

struct description {
	uint32_t epoch, rank;
	uint64_t about; /* 0: nothing */
	uint8_t text[SVC_DESCRIPTION_BYTES];
};

struct descriptions {
	uint32_t next;
	struct description kept[DESCRIPTIONS_KEPT];
};

static struct description *find(const struct communicator *m, uint32_t rank, uint64_t about)
{
	for (uint32_t i = 0; about && m->descriptions && i < DESCRIPTIONS_KEPT; i++) {
		struct description *d = &m->descriptions->kept[i];
		if (d->about == about && d->rank == rank && d->epoch == m->epoch)
			return d;
	}
	return NULL;
}

void description_keep(struct communicator *m, const struct control_description *d)
{
	if (!m->descriptions)
		m->descriptions = calloc(1, sizeof(*m->descriptions));
	if (!m->descriptions || !d->about) /* without memory, the members do not learn details */
		return;
	struct description *at = find(m, d->rank, d->about);
	if (!at)
		at = &m->descriptions->kept[m->descriptions->next++ % DESCRIPTIONS_KEPT];
	*at = (struct description){.epoch = d->epoch, .rank = d->rank, .about = d->about};
	memcpy(at->text, d->text, sizeof(at->text));
}

static void say(struct communicator *m, int32_t rank, const struct svc_describe *request)
{
	struct control_description d = {
		.epoch = m->epoch, .rank = (uint32_t)rank, .about = request->about};
	memcpy(d.id, m->id, sizeof(d.id));
	memcpy(d.text, request->text, sizeof(d.text));
	description_keep(m, &d);
	if (m->begun)
		remote_describe(m, &d);
}

void comm_describe(struct session *c, uint32_t request_id, const struct svc_describe *request)
{
	int32_t rank = -1;
	struct svc_describe_reply reply = {0};
	struct communicator *m = comm_of_handle(c, request->comm, &rank);
	if (!m || m->epoch != request->epoch) {
		session_error(c, SVC_DESCRIBE, request_id,
			      m ? NCCLSVC_STALE_EPOCH : NCCLSVC_NOT_FOUND,
			      "communicator %u is not in epoch %u", request->comm, request->epoch);
		return;
	}
	if (request->about)
		say(m, rank, request);
	const struct description *d =
		request->peer < 0 ? NULL : find(m, (uint32_t)request->peer, request->peer_about);
	if (d) {
		reply.known = 1;
		memcpy(reply.text, d->text, sizeof(reply.text));
	}
	session_reply(c, SVC_DESCRIBE, request_id, &reply, sizeof(reply), NULL, 0);
}
