/* SPDX-License-Identifier: Apache-2.0
 * A communicator's home: home.c, and home_plan.c for its members' plans. */
#ifndef COORD_HOME_H
#define COORD_HOME_H

#include "messages.h"

uint32_t home_of(const struct cluster *c, const uint8_t *id);
void home_join(struct cluster *c, uint32_t from, const struct control_join *m);
void home_refused(struct cluster *c, const struct control_refuse *m);
void home_unjoin(struct cluster *c, uint32_t from, const struct control_unjoin *m);
void home_broken(struct cluster *c, uint32_t from, const struct control_break *m);
void home_left(struct cluster *c, uint32_t from, const struct control_break *m);
void home_split(struct cluster *c, uint32_t from, const struct control_split *m);
void home_split_late(struct cluster *c, uint32_t from, const struct control_split *m);
void home_node_lost(struct cluster *c, uint32_t node);
void home_plan(struct cluster *c, uint32_t from, const struct control_plan *m);
void home_plan_late(struct cluster *c, const struct control_plan_member *m);
void home_plan_left(struct cluster *c, uint32_t from, const struct control_plan_member *m);
/* Forgets what nobody has held for so long. */
void home_expire(struct cluster *c, uint64_t now, uint64_t keep_ns);
void home_free(struct cluster *c);

#endif
