/* SPDX-License-Identifier: Apache-2.0
 * What other nodes say about junctions, and what their members' leaving means for them. */
#include <stdlib.h>
#include <string.h>

#include "junction.h"
#include "order.h"

/* Others want to, or will, end it, and this node has not spoken: so it does. */
static void doom(struct engine *e, struct junction *j, const ncclsvc_status *why)
{
	ncclsvc_status st = *why;
	if (j->comm->span->over)
		return;
	junction_name_missing(j->comm, j, &st);
	junction_say_failed(e, j, &st);
}

/* A rank without which it can't be; -1: none. */
static int32_t who_is_gone(const struct comm *c, const struct junction_key *key)
{
	const struct span *s = c->span;
	for (uint32_t k = 0; key->a < 0 && c->gone && k < c->nranks; k++)
		if (c->members[k].gone)
			return (int32_t)k;
	for (int i = 0; key->a >= 0 && i < 2; i++) {
		int32_t rank = i ? key->b : key->a;
		if (s->node_of[rank] == s->me && c->members[rank].gone)
			return rank;
	}
	return -1;
}

static bool key_valid(const struct span *s, uint32_t place, const struct junction_key *key)
{
	const int32_t n = (int32_t)s->comm->nranks;
	if (key->a == -1 && key->b == -1)
		return true;
	if (key->a < 0 || key->a >= n || key->b < 0 || key->b >= n)
		return false;
	uint32_t a = s->node_of[key->a], b = s->node_of[key->b];
	return (a == place && b == s->me) || (a == s->me && b == place);
}

/* Has this already come to its end here? Then its word is of no use. */
static bool is_past(const struct comm *c, const struct junction_key *key)
{
	return key->a < 0 && key->seq < c->collectives;
}

/* Inspection learns that all members of that node have posted the collective. */
static void show_posted(const struct junction *j, uint32_t place)
{
	const struct comm *c = j->comm;
	const struct span *s = c->span;
	for (uint32_t i = 0; j->key.a < 0 && i < s->counts[place]; i++) {
		struct member_progress *progress =
			c->members[s->ranks[s->first[place] + i]].progress;
		atomic_store_explicit(&progress->collectives, j->key.seq + 1, memory_order_relaxed);
	}
}

static void hear_ready(struct engine *e, struct junction *j, uint32_t part, const char *body,
		       size_t bytes)
{
	struct verdict *v = &j->verdicts[part];
	memcpy(&v->record, body, sizeof(v->record));
	v->bytes = bytes - sizeof(v->record);
	if (v->bytes) {
		v->payload = malloc(v->bytes);
		if (!v->payload) {
			span_give_up(e, j->comm, NCCLSVC_NO_MEMORY, UINT32_MAX);
			return;
		}
		memcpy(v->payload, body + sizeof(v->record), v->bytes);
	}
	int32_t gone = j->verdicts[j->mine].said ? -1 : who_is_gone(j->comm, &j->key);
	bool pair = j->key.a >= 0;
	v->said = SAID_READY;
	j->heard++;
	show_posted(j, part);
	if (gone >= 0) {
		ncclsvc_status st = order_gone_status(j->comm, gone);
		junction_say_failed(e, j, &st);
	} else if (j->heard == j->nparts) {
		if (pair && j->resolved) /* this side failed, and nobody waits */
			junction_free(e, j->comm->span, j);
		else
			junction_conclude(e, j);
	} else if (pair && j->comm->plan) {
		junction_check_kind(e, j);
	}
}

/* Ranks that nobody has, from who ought to know better. */
static bool note_valid(const struct comm *c, const struct failed_note *failed)
{
	const struct mismatch *m = &failed->posted;
	bool valid = failed->status.rank_a < (int32_t)c->nranks && m->nkinds <= MISMATCH_KINDS;
	for (uint32_t i = 0; valid && i < m->nkinds; i++)
		valid = m->kinds[i].rank >= 0 && m->kinds[i].rank < (int32_t)c->nranks &&
			m->kinds[i].count <= c->nranks && svc_op_known(m->kinds[i].record.op);
	return valid;
}

static void hear_failed(struct engine *e, struct junction *j, uint32_t part,
			const struct failed_note *failed)
{
	const ncclsvc_status *st = &failed->status;
	struct verdict *mine = &j->verdicts[j->mine];
	bool resolved = j->resolved;
	if (!junction_keep_failed(j, part, failed)) {
		span_give_up(e, j->comm, NCCLSVC_NO_MEMORY, UINT32_MAX);
		return;
	}
	if (!note_valid(j->comm, failed)) {
		span_give_up(e, j->comm, NCCLSVC_PROTOCOL, junction_place_of(j, part));
		return;
	}
	if (j->key.a >= 0 && (!mine->said || resolved)) {
		/* Kept for who posts it; or both sides have failed, and are over. */
		j->verdicts[part].said = SAID_FAILED;
		j->heard++;
		j->resolved = true;
		if (resolved)
			junction_free(e, j->comm->span, j);
		return;
	}
	j->verdicts[part].said = SAID_FAILED;
	j->heard++;
	if (!mine->said)
		doom(e, j, st); /* and that may conclude it */
	else if (j->heard == j->nparts)
		junction_conclude(e, j);
}

void junction_hear(struct engine *e, struct span *s, uint32_t place, const struct span_header *h,
		   const char *body)
{
	struct comm *c = s->comm;
	struct junction_key key = h->key;
	ncclsvc_status st;
	struct failed_note failed;
	size_t least = h->kind == SPAN_READY	? sizeof(struct svc_record)
		       : h->kind == SPAN_FAILED ? sizeof(failed)
						: sizeof(st);
	if (h->bytes < least || !key_valid(s, place, &key)) {
		span_give_up(e, c, NCCLSVC_PROTOCOL, place);
		return;
	}
	if (h->kind == SPAN_FAILED)
		memcpy(&failed, body, sizeof(failed));
	else if (h->kind == SPAN_ASK)
		memcpy(&st, body, sizeof(st));
	if (h->kind != SPAN_READY)
		stuck_break(e, s, body);
	struct junction *j = junction_find(s, &key);
	/* Who asks has spoken before: what is not known (any more) is over. */
	if (!j && (h->kind == SPAN_ASK || is_past(c, &key)))
		return;
	if (!j)
		j = junction_get(s, &key);
	if (!j) {
		span_give_up(e, c, NCCLSVC_LIMIT, place);
		return;
	}
	uint32_t part = junction_part_of(j, place);
	if (h->kind == SPAN_ASK) {
		if (!j->verdicts[j->mine].said)
			doom(e, j, &st);
	} else if (j->verdicts[part].said || part == j->mine) {
		span_give_up(e, c, NCCLSVC_PROTOCOL, place);
		return;
	} else if (h->kind == SPAN_READY) {
		hear_ready(e, j, part, body, h->bytes);
	} else {
		hear_failed(e, j, part, &failed);
	}
	j = key.a >= 0 && junction_plan(&key) ? junction_find(s, &key) : NULL;
	if (j)
		junction_forget_left(e, j);
}

/* ---- A member leaves ---- */

void junction_member_left(struct engine *e, struct comm *c, int32_t rank, const ncclsvc_status *st)
{
	struct span *s = c->span;
	struct junction *j, *next;
	bool here = s->node_of[rank] == s->me;
	/* Those that others wait in, and in which this node has not spoken. */
	HASH_ITER (hh, s->junctions, j, next) {
		bool concerned = j->key.a < 0 || (here && (j->key.a == rank || j->key.b == rank));
		if (concerned && !j->verdicts[j->mine].said) {
			junction_say_failed(e, j, st);
		} else if (j->withheld && j->status.rank_a == rank) {
			ncclsvc_status end = j->status;
			j->withheld = false;
			if (j->heard == j->nparts) {
				junction_conclude(e, j);
				continue;
			}
			junction_end_tasks(e, j, &end);
			junction_free(e, s, j);
		}
	}
}
