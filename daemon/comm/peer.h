/* SPDX-License-Identifier: Apache-2.0
 * The peer transport's part of a communicator: the memory that its members' kernels share. The
 * daemon holds it, so that it outlives the trainers, and breaks the kernels off when the epoch
 * ends. */
#ifndef COMM_PEER_H
#define COMM_PEER_H

#include "communicator.h"

/* A region for JOIN or SPLIT: is it lent, on that device, and large enough? 0, none, always fits.
 * False: an error was sent. */
bool peer_staging_fits(struct client *c, unsigned opcode, uint32_t serial, int32_t device,
		       uint32_t region);
/* The member holds the region's memory from now on, whatever becomes of the region. Without a
 * descriptor to spare it goes without. */
void peer_staging_take(struct member *member, uint32_t region);
void peer_staging_drop(struct member *member);

/* The epoch begins: if all members have staging memory, makes their pages. */
void peer_begin(struct communicator *m);
/* It is over: kernels that wait break off. */
void peer_end(struct communicator *m);

/* Of JOIN's reply: the most bytes of an operation that runs in the members' kernels; 0: none. */
uint32_t peer_bytes(const struct communicator *m);

/* ---- For the layers above ---- */

/* STAGING. */
void peer_staging_give(struct client *c, uint32_t serial, const struct svc_staging *r);

#endif
