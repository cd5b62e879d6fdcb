/* SPDX-License-Identifier: Apache-2.0
 * Turns clients' records into tasks. */
#ifndef SCHED_INGEST_H
#define SCHED_INGEST_H

#include "sched/base/state.h"

/* Takes some records of its ring; returns how many. */
uint32_t ingest_ring(struct scheduler *sched, struct sched_session *s);
void ingest_socket(struct scheduler *sched, struct sched_session *s, uint32_t request_id,
		   const struct svc_record *record);
/* Submits the held tasks whose epochs have been continued, in their old order. False: there are
 * more. */
bool ingest_held(struct scheduler *sched, struct sched_session *s);
void ingest_drop_group(struct scheduler *sched, struct sched_session *s);

#endif
