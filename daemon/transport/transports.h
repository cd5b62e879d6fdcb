/* SPDX-License-Identifier: Apache-2.0
 * All transports. */
#ifndef TRANSPORT_TRANSPORTS_H
#define TRANSPORT_TRANSPORTS_H

#include "sched/api/transport.h"

/* For struct scheduler_config. */
extern const struct transport *const transports[TRANSPORTS];

#endif
