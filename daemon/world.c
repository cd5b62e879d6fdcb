/* SPDX-License-Identifier: Apache-2.0
 * What a trainer is told of the world before it joins it. */
#include "server_state.h"

void world_tell(struct client *c, uint32_t serial)
{
	const struct config *config = c->server->config;
	const struct svc_world_reply r = {
		.ranks = config->ranks,
		.local_ranks = config->ranks,
		.node = 0,
		.nodes = 1,
		.data = config->world_data,
		.horizontal = config->world_horizontal,
		.pipeline = config->world_pipeline,
	};
	client_reply(c, SVC_WORLD, serial, &r, sizeof(r), NULL, 0);
}
