/* SPDX-License-Identifier: Apache-2.0
 * Members that are asleep: they use no GPU memory of their communicator until they wake up. */
#ifndef COMM_PEER_SLEEP_H
#define COMM_PEER_SLEEP_H

#include "comm/communicator.h"
#include "proto/wire_memory.h"

/* Whether the member can run kernels: it has staging memory, or is asleep and will have it again.
 */
static inline bool peer_has_kernels(const struct member *member)
{
	return member->staging_fd >= 0 || member->asleep;
}
/* Whether the JOIN, if it continues an epoch, is of a member that is asleep: it brings control
 * blocks, but no staging memory. */
static inline bool peer_joins_asleep(const struct session *c, const struct svc_join *j)
{
	return !j->staging && c->next_controls >= 0;
}

/* comm_peer.c: the member falls asleep, and the daemon lets go of its staging memory. */
void peer_staging_sleep(struct communicator *m, uint32_t rank);
/* comm_peer.c: the member wakes up with this region. False: an error was sent. */
bool peer_staging_wake(struct communicator *m, uint32_t rank, uint32_t request_id, uint32_t region);
/* Handles SLEEP. */
void comm_sleep(struct session *c, uint32_t request_id, const struct svc_sleep *r);

#endif
