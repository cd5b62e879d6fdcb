/* SPDX-License-Identifier: Apache-2.0
 * The world, and information for a trainer about it before it joins. */
#include "base/config.h"
#include "base/log.h"
#include "channel/cluster.h"
#include "comm.h"
#include "comms.h"

/* Layouts require full nodes, except for the last. 0: they are not full, and an error was sent. */
static int32_t local_ranks(struct comms *s, struct session *c, uint32_t request_id)
{
	const struct cluster *k = s->cluster;
	if (!cluster_is_together(k))
		return s->config->ranks;
	const uint32_t full = k->nodes[0].info.ranks;
	for (uint32_t i = 1; i < k->n; i++) {
		uint32_t ranks = k->nodes[i].info.ranks;
		if (ranks == full || (i == k->n - 1 && ranks < full))
			continue;
		session_error(
			c, SVC_WORLD, request_id, NCCLSVC_UNSUPPORTED,
			"node 0 has %u ranks, node %u has %u: all nodes need the same number, "
			"but the last may have fewer (--ranks)",
			full, i, ranks);
		return 0;
	}
	return (int32_t)full;
}

void world_tell(struct comms *s, struct session *c, uint32_t request_id)
{
	const int32_t local = local_ranks(s, c, request_id);
	if (!local)
		return;
	const struct svc_world_reply r = {
		.ranks = (int32_t)s->world->nranks,
		.local_ranks = local,
		.node = (int32_t)s->coord.me,
		.nodes = cluster_is_together(s->cluster) ? (int32_t)s->cluster->n : 1,
		.data = s->config->world_data,
		.horizontal = s->config->world_horizontal,
		.pipeline = s->config->world_pipeline,
	};
	session_reply(c, SVC_WORLD, request_id, &r, sizeof(r), NULL, 0);
}

int comm_create_world(struct comms *s)
{
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t ranks = (uint32_t)s->config->ranks;
	if (cluster_new_id(s->cluster, id))
		return -1;
	if (cluster_is_together(s->cluster)) { /* node 0's id; node by node */
		memcpy(id, s->cluster->nodes[0].info.world, sizeof(id));
		ranks = 0;
		for (uint32_t i = 0; i < s->cluster->n; i++) {
			if (i == s->cluster->me)
				s->world_first = ranks;
			ranks += s->cluster->nodes[i].info.ranks;
		}
	}
	if (ranks > SVC_HOST_RANKS_MAX) {
		log_error("all nodes together have %u host ranks; the limit is %d: start them with "
			  "fewer (--ranks)",
			  ranks, SVC_HOST_RANKS_MAX);
		errno = EINVAL;
		return -1;
	}
	struct account *own = account_get(s->accounts, &(struct tenant){.uid = geteuid()});
	char text[SVC_TEXT_BYTES] = "out of memory";
	int result;
	s->world = own ? comm_create(s, id, ranks, own, &result, text) : NULL;
	if (!s->world) {
		log_error("cannot create the world communicator: %s", text);
		errno = ENOMEM;
		return -1;
	}
	s->world->world = true;
	snprintf(s->world->label, sizeof(s->world->label), "world");
	return 0;
}
