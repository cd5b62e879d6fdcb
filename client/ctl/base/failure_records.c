/* SPDX-License-Identifier: Apache-2.0 */
#include "failure_records.h"

#include <stdlib.h>
#include <string.h>

#include "ids.h"
#include "text.h"

static int order(int64_t a, int64_t b)
{
	return (a > b) - (a < b);
}

/* ---- Records of one failure ---- */

static bool is_at_culprit(const struct failure_record *r)
{
	return r->info->node >= 0 && (uint32_t)r->info->node == r->node;
}

static int by_failure(const ncclsvc_failure_info *a, const ncclsvc_failure_info *b)
{
	/* A rank's end fails a node's tasks or its epoch, whichever comes first. */
	const bool ends = a->result == NCCLSVC_PEER_GONE && b->result == a->result;
	const int differences[] = {
		order(a->pid, b->pid),
		order(a->node, b->node),
		order(a->rank, b->rank),
		order(a->epoch, b->epoch),
		order(a->uid, b->uid),
		order(a->nranks, b->nranks),
		order(a->result, b->result),
		order(ends ? 0 : a->kind, ends ? 0 : b->kind),
		order(ends ? 0 : a->op, ends ? 0 : b->op),
		order(ends ? 0 : (int64_t)a->seq, ends ? 0 : (int64_t)b->seq),
	};
	for (size_t i = 0; i < sizeof(differences) / sizeof(differences[0]); i++)
		if (differences[i])
			return differences[i];
	return strncmp(a->label, b->label, sizeof(a->label));
}

static int by_failure_and_node(const void *pa, const void *pb)
{
	const struct failure_record *a = pa, *b = pb;
	int o = by_failure(a->info, b->info);
	if (!o)
		o = is_at_culprit(b) - is_at_culprit(a);
	if (!o)
		o = order(a->node, b->node);
	return o ? o : (a->info > b->info) - (a->info < b->info);
}

/* a is before b in their order. */
static bool is_same(const struct failure_record *a, const struct failure_record *b)
{
	return a->info->rank >= 0 && a->info->pid > 0 && a->node != b->node &&
	       !by_failure(a->info, b->info);
}

/* ---- Failures ---- */

static int by_time(const void *pa, const void *pb)
{
	const struct failure *a = pa, *b = pb;
	const ncclsvc_failure_info *x = a->records->info, *y = b->records->info;
	if (x->unix_ns != y->unix_ns)
		return x->unix_ns < y->unix_ns ? -1 : 1;
	return (x > y) - (x < y);
}

void failures_gather(const struct snapshot *s, struct failures *f)
{
	const uint32_t self = snapshot_self(s);
	const size_t n = s->nfailures;
	f->records = ctl_calloc(n, sizeof(*f->records));
	f->list = ctl_calloc(n, sizeof(*f->list));
	f->n = 0;
	for (size_t i = 0; i < n; i++) {
		const uint32_t node = ids_node(s->failures[i].failure);
		f->records[i] = (struct failure_record){&s->failures[i], node ? node - 1 : self};
	}
	qsort(f->records, n, sizeof(*f->records), by_failure_and_node);
	for (size_t i = 0; i < n; i++) {
		if (i && is_same(&f->records[i - 1], &f->records[i]))
			f->list[f->n - 1].n++;
		else
			f->list[f->n++] = (struct failure){&f->records[i], 1};
	}
	qsort(f->list, f->n, sizeof(*f->list), by_time);
}

void failures_free(struct failures *f)
{
	free(f->records);
	free(f->list);
}

/* ---- Consequences ---- */

static bool is_named(const struct failure_effects *e, int32_t rank, int32_t pid)
{
	for (uint32_t i = 0; i < e->n; i++)
		if (e->ranks[i] == rank && e->pids[i] == pid)
			return true;
	return false;
}

static void add_ended(struct failure_effects *e, const ncclsvc_failure_info *info)
{
	for (uint32_t i = 0; i < info->ended && i < NCCLSVC_FAILURE_RANKS; i++) {
		const int32_t rank = info->ended_ranks[i], pid = info->ended_pids[i];
		if (e->n == NCCLSVC_FAILURE_RANKS || is_named(e, rank, pid))
			continue;
		e->ranks[e->n] = rank;
		e->pids[e->n++] = pid;
	}
	if (e->ended < info->ended)
		e->ended = info->ended;
}

void failure_effects(const struct failure *f, struct failure_effects *e)
{
	*e = (struct failure_effects){0};
	for (size_t i = 0; i < f->n; i++) {
		const ncclsvc_failure_info *info = f->records[i].info;
		e->pending += info->pending;
		if (e->comms < info->comms)
			e->comms = info->comms;
		add_ended(e, info);
	}
	if (e->ended < e->n)
		e->ended = e->n;
}
