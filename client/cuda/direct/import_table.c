/* SPDX-License-Identifier: Apache-2.0
 * What kernels know of imports: their addresses, and how many shares of each rank are mapped. */
#include "imports.h"

/* Takes it out of the member's list. Locked. */
static struct import *import_take(struct peer *p, uint32_t rank, uint32_t slot)
{
	struct import **at = &p->imports.first;
	while (*at && ((*at)->rank != rank || (*at)->slot != slot))
		at = &(*at)->next;
	struct import *i = *at;
	if (i)
		*at = i->next;
	return i;
}

/* Writes words that kernels read. Locked. */
static bool word_write(const struct peer *p, uint64_t at, const void *word, size_t bytes)
{
	const struct capture *c = p->capture;
	if (cuda_push(c->cuda, c->context))
		return false;
	const int mode = relaxed_begin(c->cuda);
	const bool good = !c->cuda->cuMemcpyHtoDAsync(p->own.base + at, word, bytes, p->asking) &&
			  !c->cuda->cuStreamSynchronize(p->asking);
	relaxed_end(c->cuda, mode);
	cuda_pop(c->cuda, c->context);
	return good;
}

/* Tells the kernels up to which share all of the rank's are mapped. From the first on that cannot
 * be mapped, all go through staging memory. Locked. */
static void shares_count(struct peer *p, uint32_t rank)
{
	uint32_t mapped = p->imports.known[rank];
	if (p->imports.missing[rank] && p->imports.missing[rank] <= mapped)
		mapped = p->imports.missing[rank] - 1;
	for (const struct import *i = p->imports.first; i; i = i->next)
		if (i->rank == rank && !i->kind && i->number <= mapped)
			mapped = i->number - 1;
	if (mapped > p->imports.mapped[rank] &&
	    word_write(p, PEER_MAPPED + rank * sizeof(uint32_t), &mapped, sizeof(mapped)))
		p->imports.mapped[rank] = mapped;
}

bool import_table_knows(const struct job *job)
{
	struct import *i = job->peer->imports.first;
	const uint32_t rank = (uint32_t)job->shared.rank;
	while (i &&
	       (i->rank != rank || i->slot != job->shared.slot || i->number != job->shared.number))
		i = i->next;
	if (i)
		i->told = true;
	return i || job->shared.number <= job->peer->imports.known[rank];
}

void import_table_add(struct job *job)
{
	struct peer *p = job->peer;
	struct import *i = job->import;
	const uint32_t rank = (uint32_t)job->shared.rank, slot = job->shared.slot;
	const uint64_t entry =
		PEER_TABLE + ((uint64_t)rank * PEER_SHARES + slot) * sizeof(uint64_t);
	const bool maps = job->shared.what == SVC_SHARED_MAP;
	if (job->shared.number <= p->imports.known[rank])
		return;
	/* If a rank skips numbers when it repeats its shares, `known` stays behind until its COUNT.
	 */
	p->imports.known[rank] += job->shared.number == p->imports.known[rank] + 1;
	if (maps && (!i || (i->kind && !word_write(p, entry, &i->at, sizeof(i->at))))) {
		if (!p->imports.missing[rank])
			p->imports.missing[rank] = job->shared.number;
	} else if (maps) {
		i->told = true;
		i->next = p->imports.first;
		p->imports.first = i;
		job->import = NULL;
	}
	shares_count(p, rank);
}

void import_table_drop(struct job *job)
{
	const uint32_t rank = (uint32_t)job->shared.rank;
	job->import = import_take(job->peer, rank, job->shared.slot);
	shares_count(job->peer, rank);
}

struct import *import_table_count(const struct job *job)
{
	struct peer *p = job->peer;
	const uint32_t rank = (uint32_t)job->shared.rank;
	struct import *over = NULL, **at = &p->imports.first;
	while (*at) {
		struct import *i = *at;
		if (i->rank != rank || i->told) {
			at = &i->next;
			continue;
		}
		*at = i->next;
		i->next = over;
		over = i;
	}
	if (job->shared.number > p->imports.known[rank])
		p->imports.known[rank] = job->shared.number;
	shares_count(p, rank);
	return over;
}
