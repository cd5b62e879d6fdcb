/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMM_DESCRIBE_H
#define COMM_DESCRIBE_H

#include "comm/communicator.h"
#include "proto/wire.h"

struct control_description;
void comm_describe(struct session *c, uint32_t request_id, const struct svc_describe *request);
/* A member has said that; the oldest of DESCRIPTIONS_KEPT gives way. */
void description_keep(struct communicator *m, const struct control_description *d);

#endif
