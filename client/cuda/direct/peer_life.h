/* SPDX-License-Identifier: Apache-2.0
 * The life of a member's kernels (peer.h): from JOIN to LEAVE, also across restarts of the daemon.
 */
#ifndef CLIENT_CUDA_PEER_LIFE_H
#define CLIENT_CUDA_PEER_LIFE_H

#include "peer.h"

/* ---- peer.c: from JOIN to LEAVE. Called without the lock; all but peer_close yield. ---- */

/* Before JOIN or SPLIT: creates the member's kernels with their staging memory, unless the
 * communicator runs without. */
void peer_new(ncclsvc_session *s, ncclsvc_comm *comm, int32_t number, int nranks);
/* After JOIN or SPLIT was refused. */
void peer_discard(ncclsvc_session *s, ncclsvc_comm *comm);
/* Before the communicator is joined again: gets new staging memory. */
void peer_renew(ncclsvc_session *s, ncclsvc_comm *comm, int32_t number);
/* The region that JOIN and SPLIT name. */
static inline uint32_t peer_region(const struct peer *p)
{
	return p ? p->own_region : 0;
}
static inline uint16_t peer_out_of_reach(const struct peer *p)
{
	return p ? p->out_of_reach : 0;
}
/* After JOIN or SPLIT: maps the other members' memory, or drops what the epoch does not use. */
ncclsvc_result peer_open(ncclsvc_session *s, ncclsvc_comm *comm);
/* Before the JOIN that continues the epoch: hands the memory that the kernels share to the next
 * daemon. Locked; yields. */
ncclsvc_result peer_resume(ncclsvc_session *s, ncclsvc_comm *comm);
/* After it: says again what the member shares. comm->peer can be NULL. Locked; yields. */
ncclsvc_result peer_resumed(ncclsvc_session *s, ncclsvc_comm *comm);
/* Writes the heartbeat while there is no daemon, so that waiting kernels do not give up. Locked. */
void peer_beat(const struct peer *p);
/* The end of the communicator's epoch for this member, with or without kernels: those that still
 * run are aborted, and pending tasks end as cancelled. */
void peer_close(ncclsvc_session *s, ncclsvc_comm *comm);
/* The same for all communicators when the session closes. */
void peers_close(ncclsvc_session *s);
void peer_modules_unload(struct gpu *g);

/* ---- own_staging.c ---- */

/* Makes the member's staging memory, clears it, and hands it to the daemon. Not locked; yields. */
bool peer_staging_make(ncclsvc_session *s, struct peer *p, int32_t number, bool copy_engines);
/* Registers the staging memory with the current daemon if that daemon does not have it yet: a
 * restart may come between the making and the JOIN. Locked; yields. */
ncclsvc_result peer_staging_current(ncclsvc_session *s, const ncclsvc_comm *comm);
/* Hands it to the next daemon, under the number that a JOIN under way names. Locked; yields. */
ncclsvc_result peer_staging_again(ncclsvc_session *s, struct peer *p, int32_t number);

/* ---- sleep.c. Locked. The kernels are open, and the caller holds a reference to their capture.
 * The first three yield. ---- */

/* Waits until all members have called it, then frees the member's memory. No kernel of the member
 * may be running. TIMEOUT: call it again. Returns OK at once if the member is already asleep. */
ncclsvc_result peer_fall_asleep(ncclsvc_session *s, ncclsvc_comm *comm, struct peer *p,
				uint64_t deadline);
/* Reverses peer_fall_asleep, which must have succeeded: waits for all members, then maps the memory
 * again. */
ncclsvc_result peer_wake_up(ncclsvc_session *s, ncclsvc_comm *comm, struct peer *p,
			    uint64_t deadline);
/* Whether p still belongs to the communicator's running epoch. Returns an error if not. */
ncclsvc_result peer_check_current(ncclsvc_session *s, const ncclsvc_comm *comm,
				  const struct peer *p);
/* Before a member leaves: others stop waiting for its steps. */
void peer_sleep_leave(const struct peer *p);
/* Before a sleeping member leaves: its graphs may still be launched. Maps private memory at the
 * staging addresses, so that their kernels do not fault before they see that the epoch is over. */
void peer_sleep_end(struct peer *p);

#endif
