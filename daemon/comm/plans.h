/* SPDX-License-Identifier: Apache-2.0
 * Plans on their way through the supervisor: plan.c. */
#ifndef COMM_PLANS_H
#define COMM_PLANS_H

#include "communicator.h"

void plan_commit(struct client *c, uint32_t serial, const struct svc_plan_commit *r, int fd);
void plan_terminate(struct comms *s, struct client *c, uint32_t serial,
		    const struct svc_plan_drop *r);
void plan_dropped(struct comms *s, uint32_t asker, uint32_t serial);
void plan_gone(struct comms *s, struct plan *p);
void plan_free_all(struct comms *s);

#endif
