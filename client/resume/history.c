/* SPDX-License-Identifier: Apache-2.0 */
#include "history.h"

#include <stdlib.h>

bool history_add(struct history *h, const struct history_line *line)
{
	struct history_line *last = h->n ? &h->lines[h->n - 1] : NULL;
	if (last && line->kind == HISTORY_PENDING && last->kind == line->kind &&
	    last->order == line->order && last->peer == line->peer && last->to == line->from) {
		last->to = line->to;
		return true;
	}
	if (h->n == h->room) {
		const size_t room = h->room ? 2 * h->room : 16;
		struct history_line *grown = realloc(h->lines, room * sizeof(*grown));
		if (!grown)
			return false;
		h->lines = grown;
		h->room = room;
	}
	h->lines[h->n++] = *line;
	return true;
}

struct seen {
	uint64_t submitted;
	bool pending, damaged;
};

/* Finds an operation in rank r's history. */
static struct seen look(const struct histories *all, uint32_t r, unsigned order, int32_t peer,
			uint64_t number)
{
	struct seen seen = {0};
	const struct history_line *l = all->lines + r * all->room;
	for (size_t i = 0; i < all->room; i++, l++) {
		if (l->order != order || l->peer != peer)
			continue;
		if (l->kind == HISTORY_SUBMITTED && l->to)
			seen.submitted = l->to;
		seen.pending |= l->kind == HISTORY_PENDING && number >= l->from && number < l->to;
		seen.damaged |= l->kind == HISTORY_DAMAGED && number == l->from;
	}
	return seen;
}

static bool is_message(unsigned order)
{
	return order >= HISTORY_SENDS && order <= HISTORY_PLANNED_RECVS;
}

static unsigned opposite(unsigned order)
{
	const bool sends = order == HISTORY_SENDS || order == HISTORY_PLANNED_SENDS;
	return sends ? order + 1 : order - 1;
}

static bool is_here(const struct histories *all, uint32_t rank, uint32_t other)
{
	return !all->nodes || all->nodes[rank] == all->nodes[other];
}

static bool has_ended(const struct seen *seen, uint64_t number)
{
	return number < seen->submitted && !seen->pending && !seen->damaged;
}

enum history_verdict history_judge(const struct histories *all, uint32_t rank, unsigned order,
				   int32_t peer, uint64_t number, bool sends_only)
{
	bool damaged = false, elsewhere = false;
	for (uint32_t r = 0; r < all->nranks; r++) {
		const bool message = is_message(order);
		if (message && r != (uint32_t)peer)
			continue;
		const struct seen seen = look(all, r, message ? opposite(order) : order,
					      message ? (int32_t)rank : -1, number);
		const bool ended = has_ended(&seen, number);
		if (ended && (sends_only || is_here(all, rank, r)))
			return HISTORY_DONE;
		damaged |= seen.damaged;
		elsewhere |= ended;
	}
	if (elsewhere)
		return HISTORY_MISSED;
	return damaged ? HISTORY_LOST : HISTORY_REPEAT;
}

/* 1 + the last operation that rank r has seen end. */
static uint64_t ended(const struct histories *all, uint32_t r, unsigned order, int32_t peer)
{
	const struct history_line *lines = all->lines + r * all->room;
	uint64_t n = look(all, r, order, peer, 0).submitted;
	for (uint64_t before = 0; n && n != before;) {
		before = n;
		for (size_t i = all->room; i-- > 0;) { /* most of them ascend */
			const struct history_line *l = &lines[i];
			if (l->kind == HISTORY_PENDING && l->order == order && l->peer == peer &&
			    l->from < n && n <= l->to)
				n = l->from;
		}
	}
	return n;
}

bool history_fits(const struct histories *all, uint32_t rank)
{
	uint64_t least = UINT64_MAX, most = 0;
	for (uint32_t r = 0; r < all->nranks; r++) {
		const uint64_t submitted = look(all, r, HISTORY_COLLECTIVES, -1, 0).submitted;
		const uint64_t n = ended(all, r, HISTORY_COLLECTIVES, -1);
		least = submitted < least ? submitted : least;
		most = n > most ? n : most;
	}
	if (most > least)
		return false;
	for (uint32_t r = 0; r < all->nranks; r++)
		for (unsigned order = HISTORY_SENDS; is_message(order); order++)
			if (ended(all, r, opposite(order), (int32_t)rank) >
			    look(all, rank, order, (int32_t)r, 0).submitted)
				return false;
	return true;
}
