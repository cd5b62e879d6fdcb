/* SPDX-License-Identifier: Apache-2.0
 * SPLIT: all members name a colour and a key; members with the same colour get a communicator,
 * whose members then gather as usual. Each attempt ends for all nodes with one message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator.h"

struct split_order {
	int32_t colour, key;
	uint32_t rank, node;
};

void split_forget(struct coordinator *r)
{
	free(r->asked);
	r->asked = NULL;
	r->splitting = 0;
}

/* The attempt has ended without a split. */
static void fail_split(struct coord *c, struct coordinator *r, int result, const char *text)
{
	const struct control_result m =
		coordinator_result(r->id, r->epoch, SVC_SPLIT, r->split_seq++, result, text);
	r->failed = result;
	coordinator_tell(c, r, &m);
	split_forget(r);
}

void split_fail(struct coord *c, struct coordinator *r, int result, const char *text)
{
	if (r->asked)
		fail_split(c, r, result, text);
}

/* Sorts by colour, then in the order of the new ranks: by key, then by old rank. */
static int by_colour_key_rank(const void *pa, const void *pb)
{
	const struct split_order *a = pa, *b = pb;
	if (a->colour != b->colour)
		return a->colour < b->colour ? -1 : 1;
	if (a->key != b->key)
		return a->key < b->key ? -1 : 1;
	return a->rank < b->rank ? -1 : 1;
}

/* Returns 0, or -1 if no random numbers are available for an id. */
static int fill_subcomms(struct coord *c, struct split_order *order, uint32_t n,
			 struct control_result *m)
{
	qsort(order, n, sizeof(*order), by_colour_key_rank);
	for (uint32_t lo = 0, hi; lo < n; lo = hi) {
		uint8_t id[NCCLSVC_ID_BYTES];
		for (hi = lo + 1; hi < n && order[hi].colour == order[lo].colour; hi++)
			;
		if (c->ops->random_id(c->arg, id))
			return -1;
		for (uint32_t i = lo; i < hi; i++) {
			struct control_subcomm_of *p = &m->subcomms[order[i].rank];
			p->rank = order[i].rank;
			p->node = order[i].node;
			memcpy(p->subcomm.id, id, sizeof(id));
			p->subcomm.nranks = order[i].colour < 0 ? 0 : hi - lo;
			p->subcomm.rank = i - lo;
		}
	}
	return 0;
}

/* All have asked: determines the subcommunicators. */
static void finish(struct coord *c, struct coordinator *r)
{
	const uint32_t n = r->nranks;
	struct control_result *m = calloc(1, sizeof(*m) + n * sizeof(m->subcomms[0]));
	struct split_order *order = calloc(n, sizeof(*order));
	for (uint32_t k = 0; order && k < n; k++)
		order[k] = (struct split_order){r->asked[k].colour, r->asked[k].key, k,
						r->asked[k].node};
	if (m && order && !fill_subcomms(c, order, n, m)) {
		memcpy(m->id, r->id, sizeof(m->id));
		m->epoch = r->epoch;
		m->asked = SVC_SPLIT;
		m->seq = r->split_seq++;
		m->count = n;
		coordinator_tell(c, r, m);
		split_forget(r);
	} else {
		split_fail(c, r, NCCLSVC_NO_MEMORY, "the daemon has no memory for a split");
	}
	free(order);
	free(m);
}

void split_take(struct coord *c, uint32_t from, const struct control_split *m)
{
	struct coordinator *r = coordinator_for(c, from, &m->of);
	if (!r) {
		coordinator_refuse(c, from, &m->of, SVC_SPLIT, m->seq);
		return;
	}
	if (m->seq < r->split_seq) {
		coordinator_late(c, r, from, SVC_SPLIT, m->seq);
		return;
	}
	if (m->seq > r->split_seq) { /* nodes know more than this one, which has just begun */
		split_forget(r);
		r->split_seq = m->seq;
	}
	if (r->nleft) {
		fail_split(c, r, NCCLSVC_STALE_EPOCH, STALE_TEXT);
		return;
	}
	if (!r->asked)
		r->asked = calloc(r->nranks, sizeof(*r->asked));
	if (!r->asked) {
		fail_split(c, r, NCCLSVC_NO_MEMORY, "the daemon has no memory for a split");
		return;
	}
	if (r->asked[m->rank].here)
		return; /* its node checks */
	r->asked[m->rank] = (struct asked_split){true, from, m->request_id, m->colour, m->key};
	if (++r->splitting == r->nranks)
		finish(c, r);
}

void split_withdrawn(struct coord *c, struct coordinator *r, const struct control_withdraw *m)
{
	struct rank_names missing = {0};
	char text[SVC_TEXT_BYTES];
	if (!r->asked || !r->asked[m->rank].here || r->asked[m->rank].request_id != m->request_id)
		return;
	for (uint32_t k = 0; k < r->nranks; k++)
		if (!r->asked[k].here)
			rank_names_add(&missing, k);
	snprintf(text, sizeof(text),
		 "of communicator %s, these ranks had not asked for the split by the deadline: %s",
		 r->label, rank_names_text(&missing));
	split_fail(c, r, NCCLSVC_TIMEOUT, text);
}
