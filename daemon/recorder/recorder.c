/* SPDX-License-Identifier: Apache-2.0 */
#include "recorder.h"

#include <stdlib.h>
#include <utlist.h>

/* ---- All recordings ---- */

uint32_t recorder_index(const struct recorder *r, uint64_t session)
{
	uint32_t from = 0, to = r->n;
	while (from < to) {
		const uint32_t middle = from + (to - from) / 2;
		if (r->all[middle]->session < session)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

struct recording *recorder_find(const struct recorder *r, uint32_t session)
{
	const uint32_t i = recorder_index(r, session);
	return i < r->n && r->all[i]->session == session ? r->all[i] : NULL;
}

static void destroy(struct recording *rec)
{
	recorder_ring_free(rec->tasks);
	recorder_ring_free(rec->kernels);
	free(rec->joins);
	free(rec);
}

static void take_out(struct recorder *r, const struct recording *rec)
{
	const uint32_t i = recorder_index(r, rec->session);
	memmove(&r->all[i], &r->all[i + 1], (--r->n - i) * sizeof(*r->all));
}

static bool put_in(struct recorder *r, struct recording *rec)
{
	if (r->n == r->room) {
		const uint32_t room = r->room ? 2 * r->room : 16;
		struct recording **all = realloc(r->all, room * sizeof(*all));
		if (!all)
			return false;
		r->all = all;
		r->room = room;
	}
	const uint32_t i = recorder_index(r, rec->session);
	memmove(&r->all[i + 1], &r->all[i], (r->n++ - i) * sizeof(*r->all));
	r->all[i] = rec;
	return true;
}

static struct recording *create(struct recorder *r, uint32_t session, struct account *account)
{
	struct recording *rec = account_memory_left(account, sizeof(struct recorder_ring))
					? calloc(1, sizeof(*rec))
					: NULL;
	if (!rec)
		return NULL;
	rec->session = session;
	rec->account = account;
	rec->tasks = recorder_ring_create();
	if (rec->tasks && put_in(r, rec))
		return rec;
	destroy(rec);
	return NULL;
}

/* ---- Those of ended sessions ---- */

#define MEMORY_KEPT (UINT64_C(64) << 20) /* for sessions to come */

/* An ended one goes, as soon as nobody reads it. */
static void drop(struct recorder *r, struct recording *rec)
{
	struct account *a = rec->account;
	DL_DELETE(r->ended, rec);
	take_out(r, rec);
	account_give(a, SHARE_RECORDINGS, 1);
	account_put(a);
	rec->dropped = true;
	if (!rec->readers)
		destroy(rec);
}

/* The oldest of the user's; NULL: of the user who has the most. */
static struct recording *oldest(const struct recorder *r, const struct account *a)
{
	struct recording *rec = r->ended, *most = rec;
	for (; rec; rec = rec->next) {
		if (rec->account == a)
			return rec;
		if (rec->account->held[SHARE_RECORDINGS] > most->account->held[SHARE_RECORDINGS])
			most = rec;
	}
	return a ? NULL : most;
}

/* Takes a share for one more, for which older ones go. Where memory is scarce, sessions need it
 * more than the past. */
static bool take_share(struct recorder *r, struct account *a)
{
	char text[SVC_TEXT_BYTES];
	if (!account_memory_left(a, MEMORY_KEPT))
		return false;
	while (!account_take(a, SHARE_RECORDINGS, 1, text)) {
		struct recording *rec = oldest(r, a);
		if (!rec)
			rec = oldest(r, NULL);
		if (!rec)
			return false;
		drop(r, rec);
	}
	return true;
}

static bool is_empty(const struct recording *rec)
{
	return !rec->kernels && !atomic_load(&rec->tasks->written);
}

void recorder_ended(struct recorder *r, uint32_t session)
{
	struct recording *rec = recorder_find(r, session);
	if (!rec || rec->ended)
		return;
	if (!is_empty(rec) && take_share(r, rec->account)) {
		rec->ended = true;
		DL_APPEND(r->ended, rec);
		return;
	}
	take_out(r, rec);
	rec->dropped = true;
	if (!rec->readers)
		destroy(rec);
}

void recorder_free(struct recorder *r)
{
	while (r->ended)
		drop(r, r->ended);
	while (r->n)
		destroy(r->all[--r->n]);
	free(r->all);
}

void recording_read_begin(struct recording *rec)
{
	rec->readers++;
}

void recorder_read_end(struct recorder *r, struct recording *rec)
{
	(void)r;
	if (!--rec->readers && rec->dropped)
		destroy(rec);
}

/* ---- One recording ---- */

/* Numbers keep their places as the array grows. */
static bool reserve_join(struct recording *rec)
{
	if (rec->njoins < rec->joins_room || rec->joins_room == RECORDER_JOINS)
		return true;
	const uint32_t room = rec->joins_room ? 2 * rec->joins_room : 4;
	struct recorded_join *joins = realloc(rec->joins, room * sizeof(*joins));
	if (!joins)
		return false;
	rec->joins = joins;
	rec->joins_room = room;
	return true;
}

struct recording *recorder_join(struct recorder *r, uint32_t session, int32_t pid, uint32_t uid,
				struct account *account, const struct recorded_join *as,
				uint32_t *join)
{
	struct recording *rec = recorder_find(r, session);
	if (!rec)
		rec = create(r, session, account);
	if (!rec || !reserve_join(rec))
		return NULL;
	rec->pid = pid;
	rec->uid = uid;
	*join = rec->njoins++;
	rec->joins[*join % rec->joins_room] = *as;
	return rec;
}

const struct recorded_join *recording_join(const struct recording *rec, uint32_t number)
{
	const uint32_t behind = rec->njoins - number;
	return behind && behind <= rec->joins_room && number < rec->njoins
		       ? &rec->joins[number % rec->joins_room]
		       : NULL;
}

bool recording_find_join(const struct recording *rec, uint64_t comm, uint32_t epoch, int32_t rank,
			 uint32_t *number)
{
	const struct recorded_join *j;
	for (uint32_t n = rec->njoins; n && (j = recording_join(rec, n - 1)); n--) {
		if (j->comm != comm || j->epoch != epoch || j->rank != rank)
			continue;
		*number = n - 1;
		return true;
	}
	return false;
}

void recording_add_kernel(struct recording *rec, const struct recorded *x)
{
	if (!rec->kernels)
		rec->kernels = recorder_ring_create();
	if (rec->kernels)
		recorder_put(rec->kernels, x);
}
