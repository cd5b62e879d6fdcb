/* SPDX-License-Identifier: Apache-2.0
 * Tasks on this host's memory, run by threads of the scheduler. */
#ifndef TRANSPORT_HOST_H
#define TRANSPORT_HOST_H

#include "sched/api/transport.h"

extern const struct transport host_transport;

#endif
