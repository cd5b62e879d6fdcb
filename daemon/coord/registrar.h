/* SPDX-License-Identifier: Apache-2.0
 * The node that knows the NCCL communicators across nodes: registrar.c. */
#ifndef COORD_REGISTRAR_H
#define COORD_REGISTRAR_H

#include "messages.h"

uint32_t registrar_of(const struct cluster *c);
/* Which node gave this number? */
uint32_t registrar_that_made(uint64_t serial);
void registrar_ready(struct cluster *c, uint32_t from, const struct control_nccl_ready *m);
void registrar_id(struct cluster *c, uint32_t from, const struct control_nccl_id *m);
void registrar_free(struct cluster *c, uint32_t from, const struct control_nccl_free *m);
void registrar_node_lost(struct cluster *c, uint32_t node);
/* Lets go what was idle for so long; returns the next deadline, 0 for none. */
uint64_t registrar_expire(struct cluster *c, uint64_t now, uint64_t keep_ns);
void registrar_free_all(struct cluster *c);

#endif
