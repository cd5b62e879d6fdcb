/* SPDX-License-Identifier: Apache-2.0
 * Tasks of a suspended epoch. Another node's daemon, or the connection to it, is lost; the members
 * are about to continue the epoch (comm/end.c). Until then, the scheduler of each other node holds
 * its members' tasks that have not run. Their clients say which of them are over, and when to
 * submit the rest to the epoch that continues the old one. */
#ifndef SCHED_HELD_H
#define SCHED_HELD_H

#include "base/hash.h"
#include "sched_session.h"

struct held {
	UT_hash_handle hh; /* in sched_session.held; the key is the number */
	struct svc_record record;
};

/* From now on the session's records of that handle are held, too. */
void held_keep(struct sched_session *s, const struct svc_record *record);
/* The held task of that number; NULL: none. */
struct held *held_find(const struct sched_session *s, uint64_t number);
/* Sorts the held tasks by number. */
void held_sort(struct sched_session *s);
void held_free(struct sched_session *s, struct held *h);
void held_free_all(struct sched_session *s);

/* Whether the record must wait for its epoch. */
static inline bool held_waits(const struct sched_session *s, const struct svc_record *r)
{
	return r->comm < s->nhandles && (s->handles[r->comm].suspended || s->handles[r->comm].held);
}

#endif
