/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations as PyTorch's flight recorder writes them: one file for each rank, a pickle, which
 * `python -m torch.distributed.flight_recorder.fr_trace` reads.
 *
 * The ranks are those of the largest communicator that the options leave, or of the one that they
 * name. Its sessions' other communicators are written with these ranks. A communicator's epoch is a
 * process group, and what its ranks run on the direct transport is another, as both are counted by
 * themselves. Sends and Recvs from one rank to another are a process group of these two: the
 * analysis expects of each operation that all ranks of its group take part.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dump.h"
#include "proto/operation.h"
#include "pytorch_entry.h"

#define VERSION "2.10" /* of PyTorch's format */
#define PREFIX	"nccl_trace_rank_"

#define NO_GROUP SIZE_MAX
#define UNASKED	 INT32_MIN

/* A rank of the communicator whose ranks the files are of. */
struct place {
	bool known;
	uint32_t session; /* the last that held it */
};

struct group {
	uint64_t comm, key;
	uint32_t epoch, nranks;
	bool kernel;
	int32_t from, to; /* of Sends and Recvs; -1: of collectives */
	uint64_t *oldest; /* [nranks]: the oldest collective that the rank still has */
	uint64_t first;	  /* the oldest that all of them have */
	int32_t *ranks;	  /* [nranks]: in the files' numbers */
	char name[64];
	char *ranks_text; /* "[0, 1]" */
	const char *label;
	uint64_t written; /* operations of the file that is being written */
};

struct pytorch {
	const struct view *v;
	struct dump d;
	uint64_t base; /* communicator */
	uint32_t nranks;
	struct place *places; /* [nranks] */
	struct group *groups;
	size_t ngroups, room;
	size_t *group_of; /* [d.n]: an operation's group; NO_GROUP: it is not written */
};

/* ---- The files' ranks ---- */

/* Finds the largest communicator; among equals, the one with the smallest key, on every node. */
static void find_base(struct pytorch *p)
{
	const ncclsvc_operation_info *base = NULL;
	for (size_t i = 0; i < p->d.n; i++) {
		const ncclsvc_operation_info *x = p->d.list[i];
		if (!base || x->nranks > base->nranks ||
		    (x->nranks == base->nranks && x->comm_key < base->comm_key))
			base = x;
	}
	if (base) {
		p->nranks = base->nranks;
		p->base = base->comm;
	}
	p->places = ctl_calloc(p->nranks, sizeof(p->places[0]));
}

static void note_place(struct pytorch *p, uint64_t comm, int32_t rank, uint32_t session)
{
	if (comm != p->base || rank < 0 || (uint32_t)rank >= p->nranks || !session)
		return;
	struct place *place = &p->places[rank];
	place->known = true;
	if (session > place->session)
		place->session = session;
}

/* A rank that has called nothing is one, too: the members' list has it. */
static void find_places(struct pytorch *p)
{
	const struct snapshot *s = p->v->s;
	for (size_t i = 0; i < p->d.n; i++)
		note_place(p, p->d.list[i]->comm, p->d.list[i]->rank, p->d.list[i]->session);
	for (size_t i = 0; i < s->nmembers; i++)
		note_place(p, s->members[i].comm, s->members[i].rank, s->members[i].session);
}

/* A session that held the rank before another one did has that rank, too. -1: none. */
static int32_t rank_of(const struct pytorch *p, uint32_t session)
{
	for (uint32_t k = 0; k < p->nranks; k++)
		if (p->places[k].known && p->places[k].session == session)
			return (int32_t)k;
	for (size_t i = 0; i < p->d.n; i++)
		if (p->d.list[i]->comm == p->base && p->d.list[i]->session == session)
			return p->d.list[i]->rank;
	return -1;
}

/* ---- Process groups ---- */

static bool is_p2p(const ncclsvc_operation_info *x)
{
	return svc_op_is_p2p(x->op);
}

static void ends_of(const ncclsvc_operation_info *x, int32_t *from, int32_t *to)
{
	*from = !is_p2p(x) ? -1 : x->op == NCCLSVC_SEND ? x->rank : x->peer;
	*to = !is_p2p(x) ? -1 : x->op == NCCLSVC_SEND ? x->peer : x->rank;
}

/* Operations come by communicator: it is one of the last. */
static size_t find_group(const struct pytorch *p, const ncclsvc_operation_info *x)
{
	int32_t from, to;
	ends_of(x, &from, &to);
	for (size_t i = p->ngroups; i-- > 0 && p->groups[i].comm == x->comm;) {
		const struct group *g = &p->groups[i];
		if (g->epoch == x->epoch && g->nranks == x->nranks && g->kernel == !!x->kernel &&
		    g->from == from && g->to == to)
			return i;
	}
	return NO_GROUP;
}

/* The rank's place in the group, in the order of the files' ranks. A pair has two places. */
static int32_t place_in(const struct group *g, int32_t rank)
{
	if (g->from < 0 || g->from == g->to)
		return rank;
	const bool first = rank == (g->ranks[g->from] < g->ranks[g->to] ? g->from : g->to);
	return first ? 0 : 1;
}

static void name_group(struct group *g)
{
	int n = snprintf(g->name, sizeof(g->name), "%016" PRIx64 ".%u%s", g->key, g->epoch,
			 g->kernel ? " direct" : "");
	if (g->from >= 0)
		snprintf(g->name + n, sizeof(g->name) - (size_t)n, " %d->%d", g->from, g->to);
}

/* Ranks whose number in the files is not known are left out. */
static void list_ranks(struct group *g)
{
	struct text t = TEXT_INIT(-1);
	const char *comma = "";
	text_char(&t, '[');
	for (uint32_t k = 0; k < g->nranks; k++) {
		if (g->ranks[k] < 0 ||
		    (g->from >= 0 && (int32_t)k != g->from && (int32_t)k != g->to))
			continue;
		text_printf(&t, "%s%d", comma, g->ranks[k]);
		comma = ", ";
	}
	text_char(&t, ']');
	g->ranks_text = text_steal(&t);
}

static void know_rank(struct pytorch *p, struct group *g, int32_t rank, uint32_t session)
{
	if (rank >= 0 && (uint32_t)rank < g->nranks && g->ranks[rank] == UNASKED)
		g->ranks[rank] = g->comm == p->base ? rank : rank_of(p, session);
}

static void know_ranks(struct pytorch *p, struct group *g)
{
	const struct snapshot *s = p->v->s;
	for (uint32_t k = 0; k < g->nranks; k++)
		g->ranks[k] = g->comm == p->base ? (int32_t)k : UNASKED;
	for (size_t i = 0; i < p->d.n && g->comm != p->base; i++)
		if (p->d.list[i]->comm == g->comm && p->d.list[i]->epoch == g->epoch)
			know_rank(p, g, p->d.list[i]->rank, p->d.list[i]->session);
	for (size_t i = 0; i < s->nmembers && g->comm != p->base; i++)
		if (s->members[i].comm == g->comm && s->members[i].epoch == g->epoch)
			know_rank(p, g, s->members[i].rank, s->members[i].session);
}

/* False for operations that have no counterpart in PyTorch's format, or cannot be counted. */
static bool can_be_written(const ncclsvc_operation_info *x)
{
	return x->rank >= 0 && (uint32_t)x->rank < x->nranks && !(x->kernel && x->graph) &&
	       (!is_p2p(x) ||
		(x->peer >= 0 && (uint32_t)x->peer < x->nranks && x->peer != x->rank));
}

static size_t add_group(struct pytorch *p, const ncclsvc_operation_info *x)
{
	p->groups = ctl_grow(p->groups, p->ngroups, &p->room, sizeof(p->groups[0]));
	struct group *g = &p->groups[p->ngroups];
	*g = (struct group){.comm = x->comm,
			    .key = x->comm_key,
			    .epoch = x->epoch,
			    .nranks = x->nranks,
			    .kernel = x->kernel,
			    .label = x->comm_label};
	ends_of(x, &g->from, &g->to);
	g->ranks = ctl_calloc(g->nranks, sizeof(g->ranks[0]));
	g->oldest = ctl_calloc(g->nranks, sizeof(g->oldest[0]));
	memset(g->oldest, 0xff, g->nranks * sizeof(g->oldest[0]));
	if (p->ngroups && g[-1].comm == g->comm && g[-1].epoch == g->epoch &&
	    g[-1].nranks == g->nranks)
		memcpy(g->ranks, g[-1].ranks, g->nranks * sizeof(g->ranks[0]));
	else
		know_ranks(p, g);
	name_group(g);
	list_ranks(g);
	return p->ngroups++;
}

/* A rank whose oldest operations are overwritten begins with a later one than the others. */
static void find_first(struct group *g)
{
	for (uint32_t k = 0; g->from < 0 && k < g->nranks; k++)
		if (g->oldest[k] != UINT64_MAX && g->oldest[k] > g->first)
			g->first = g->oldest[k];
}

static void find_groups(struct pytorch *p)
{
	p->group_of = ctl_calloc(p->d.n, sizeof(p->group_of[0]));
	for (size_t i = 0; i < p->d.n; i++) {
		const ncclsvc_operation_info *x = p->d.list[i];
		p->group_of[i] = can_be_written(x) ? find_group(p, x) : NO_GROUP;
		if (!can_be_written(x))
			continue;
		if (p->group_of[i] == NO_GROUP)
			p->group_of[i] = add_group(p, x);
		uint64_t *oldest = &p->groups[p->group_of[i]].oldest[x->rank];
		if (x->collective < *oldest)
			*oldest = x->collective;
	}
	for (size_t i = 0; i < p->ngroups; i++)
		find_first(&p->groups[i]);
}

/* ---- One file ---- */

static bool has_rank(const struct group *g, int32_t rank)
{
	for (uint32_t k = 0; k < g->nranks; k++)
		if (g->ranks[k] == rank &&
		    (g->from < 0 || (int32_t)k == g->from || (int32_t)k == g->to))
			return true;
	return false;
}

static void put_groups(struct pytorch *p, struct text *t, int32_t rank)
{
	pickle_dict(t);
	for (size_t i = 0; i < p->ngroups; i++) {
		struct group *g = &p->groups[i];
		g->written = 0;
		if (!has_rank(g, rank))
			continue;
		pickle_string(t, g->name);
		pickle_dict(t);
		pytorch_key_string(t, "name", g->name);
		pytorch_key_string(t, "desc", g->label);
		pytorch_key_string(t, "ranks", g->ranks_text);
		pickle_dict_end(t);
	}
	pickle_dict_end(t);
}

/* A later operation of the rank has the same number: this one was refused. */
static bool is_repeated(struct pytorch *p, size_t at, const struct group *g)
{
	const ncclsvc_operation_info *x = p->d.list[at];
	for (size_t i = at + 1; i < p->d.n && p->d.list[i]->comm == x->comm; i++) {
		const ncclsvc_operation_info *y = p->d.list[i];
		if (y->rank == x->rank && y->epoch == x->epoch && !is_p2p(y) &&
		    !y->kernel == !x->kernel)
			return g->from < 0 && y->collective == x->collective;
	}
	return false;
}

static void put_entry(struct text *t, struct group *g, const ncclsvc_operation_info *x,
		      uint64_t record)
{
	pytorch_entry(t, &(struct pytorch_entry){
				 .x = x,
				 .group = g->name,
				 .label = g->label,
				 .record = record,
				 .number = is_p2p(x) ? g->written : x->collective,
				 .rank = is_p2p(x) ? place_in(g, x->rank) : -1,
				 .peer = is_p2p(x) ? place_in(g, x->peer) : -1,
			 });
	g->written++;
}

static void put_entries(struct pytorch *p, struct text *t, int32_t rank)
{
	uint64_t record = 0;
	pickle_list(t);
	for (size_t i = 0; i < p->d.n; i++) {
		const ncclsvc_operation_info *x = p->d.list[i];
		if (p->group_of[i] == NO_GROUP)
			continue;
		struct group *g = &p->groups[p->group_of[i]];
		if (g->ranks[x->rank] != rank)
			continue;
		if (is_p2p(x) ? g->ranks[x->peer] >= 0
			      : x->collective >= g->first && !is_repeated(p, i, g))
			put_entry(t, g, x, record++);
	}
	pickle_list_end(t);
}

static bool complain(const char *path)
{
	fprintf(stderr, "ncclsvc-ctl: cannot write %s: %s\n", path, strerror(errno));
	return false;
}

static bool write_file(struct pytorch *p, int32_t rank)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s/" PREFIX "%d", p->v->args->pytorch, rank);
	const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return complain(path);
	struct text t = TEXT_INIT(fd);
	pickle_begin(&t);
	pickle_dict(&t);
	pytorch_key_string(&t, "version", VERSION);
	pytorch_key_u64(&t, "rank", (uint64_t)rank);
	pickle_string(&t, "pg_config");
	put_groups(p, &t, rank);
	pickle_string(&t, "pg_status");
	pickle_dict(&t);
	pickle_dict_end(&t);
	pickle_string(&t, "entries");
	put_entries(p, &t, rank);
	pickle_dict_end(&t);
	pickle_end(&t);
	text_flush(&t, true);
	errno = t.error;
	text_free(&t);
	close(fd);
	return !errno || complain(path);
}

/* ---- All of them ---- */

static bool write_all(struct pytorch *p)
{
	uint32_t written = 0;
	if (mkdir(p->v->args->pytorch, 0777) && errno != EEXIST)
		return complain(p->v->args->pytorch);
	for (uint32_t k = 0; k < p->nranks; k++) {
		if (!p->places[k].known)
			continue;
		if (!write_file(p, (int32_t)k))
			return false;
		written++;
	}
	text_printf(p->v->out,
		    "Wrote %u of %u ranks of communicator %" PRIu64 " to %s.\n"
		    "Next: python -m torch.distributed.flight_recorder.fr_trace %s%s\n",
		    written, p->nranks, p->base, p->v->args->pytorch,
		    written < p->nranks ? "--allow-incomplete-ranks " : "", p->v->args->pytorch);
	return true;
}

bool view_dump_pytorch(const struct view *v)
{
	struct pytorch p = {.v = v, .d = dump_of(v)};
	bool good = true;
	find_base(&p);
	find_places(&p);
	find_groups(&p);
	if (p.nranks)
		good = write_all(&p);
	else
		text_add(v->out, "No operations: no file was written.\n");
	for (size_t i = 0; i < p.ngroups; i++) {
		free(p.groups[i].ranks);
		free(p.groups[i].oldest);
		free(p.groups[i].ranks_text);
	}
	free(p.groups);
	free(p.group_of);
	free(p.places);
	dump_free(&p.d);
	return good;
}
