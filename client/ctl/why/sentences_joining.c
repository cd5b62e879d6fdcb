/* SPDX-License-Identifier: Apache-2.0
 * The words of communicators that lack members. */
#include "base/units.h"
#include "sentences.h"

/* "Ranks 0 and 1 have rejoined and wait." */
static void sentence(const int32_t *ranks, size_t n, uint32_t nranks, const char *one,
		     const char *many, struct text *out)
{
	if (!n)
		return;
	text_char(out, ' ');
	const size_t begin = out->len;
	units_ranks(out, ranks, n, nranks);
	if (out->at[begin] == 'r')
		out->at[begin] = 'R';
	text_add(out, n == 1 ? one : many);
}

/* DEAD are also members whose process closed its session, or had its JOIN cancelled. */
static bool all_alive(const struct why *w, uint64_t comm, const struct why_census *c)
{
	for (size_t i = 0; i < c->ndead; i++) {
		const struct process *p = why_process(w, why_member(w, comm, c->dead[i]));
		if (p->state == PROCESS_UNSEEN || p->state == PROCESS_GONE)
			return false;
	}
	return true;
}

/* Everybody is there: what is missing is the daemon's. */
static void tell_complete(const struct why *w, const struct why_group *g,
			  const ncclsvc_member_info *bad, struct text *out)
{
	text_add(out, "All ranks of ");
	why_add_comm(w, g->comm->comm, g->comm->nranks, out);
	text_add(out, " have joined, and ");
	if (g->age_known) {
		text_add(out, "have waited ");
		units_age(out, g->age_ns);
		text_add(out, " to begin: ");
	} else {
		text_add(out, "wait to begin: ");
	}
	if (bad)
		why_add_device(w, bad, out);
	else if (g->comm->epoch_state == NCCLSVC_EPOCH_DRAINING || !why_on_gpus(w, g->comm->comm))
		text_add(out, "ncclsvcd is still ending what ran before");
	else
		text_add(out, "NCCL is connecting their GPUs, which takes seconds the first time");
	text_char(out, '.');
}

/* The node that knows who has joined. */
static void tell_rendezvous(const struct why *w, const struct why_group *g, const char *who,
			    struct text *out)
{
	const uint32_t node = g->comm->ask_node - 1;
	text_printf(out, " This node cannot see %s: ", who);
	if (why_node_is_silent(w, node)) {
		why_add_silence(snapshot_node(w->s, node), out);
	} else {
		units_node(out, w->s, node);
		text_add(out, " gathers them");
	}
	text_char(out, '.');
}

static void tell_forming(const struct why *w, const struct why_group *g, const struct why_census *c,
			 struct text *out)
{
	const uint32_t nranks = g->comm->nranks;
	text_add(out, " for its ranks: ");
	if (c->njoined) {
		units_ranks(out, c->joined, c->njoined, nranks);
		text_add(out, c->njoined == 1 ? " has joined" : " have joined");
	} else {
		text_add(out, "none has joined");
	}
	if (c->nunknown) {
		struct text who = TEXT_INIT(-1);
		text_char(out, '.');
		why_tell_refused(g->comm, out);
		units_ranks(&who, c->unknown, c->nunknown, nranks);
		text_char(&who, '\0');
		tell_rendezvous(w, g, who.at, out);
		text_free(&who);
		return;
	}
	text_add(out, "; ");
	units_ranks(out, c->absent, c->nabsent, nranks);
	text_add(out, c->nabsent == 1 ? " has not." : " have not.");
	why_tell_refused(g->comm, out);
}

static void tell_broken(const struct why *w, const struct why_group *g, const struct why_census *c,
			const ncclsvc_member_info *bad, struct text *out)
{
	const uint32_t nranks = g->comm->nranks;
	const uint64_t id = g->comm->comm;
	text_add(out, ": ");
	if (c->ndead) {
		why_add_ranks(w, id, c->dead, c->ndead, out);
		text_add(out, all_alive(w, id, c) ? " ended its session" : " died");
	} else if (bad) {
		why_add_device(w, bad, out);
	} else {
		text_add(out, why_on_gpus(w, id) ? "a member left it, or a GPU's worker was lost"
						 : "a member left it");
	}
	text_char(out, '.');
	why_tell_refused(g->comm, out);
	sentence(c->joined, c->njoined, nranks, " has rejoined and waits.",
		 " have rejoined and wait.", out);
	if (c->nbroken) {
		const size_t begin = out->len + 1;
		text_char(out, ' ');
		why_add_ranks(w, id, c->broken, c->nbroken, out);
		out->at[begin] = 'R';
		text_add(out,
			 c->nbroken == 1 ? " has not rejoined yet." : " have not rejoined yet.");
	}
	sentence(c->absent, c->nabsent, nranks, " has not joined.", " have not joined.", out);
	if (g->comm->ask_node)
		tell_rendezvous(w, g, "who has rejoined on other nodes", out);
}

void why_tell_joining(const struct why *w, const struct why_group *g, const struct why_census *c,
		      struct text *out)
{
	const ncclsvc_comm_info *comm = g->comm;
	const bool broken = c->ndead || c->nbroken || comm->state == NCCLSVC_COMM_BROKEN;
	const ncclsvc_member_info *bad = why_bad_device(w, comm->comm, false);
	if (c->njoined == comm->nranks) {
		tell_complete(w, g, bad, out);
		return;
	}
	const size_t begin = out->len;
	why_add_comm(w, comm->comm, comm->nranks, out);
	out->at[begin] = 'C';
	if (g->age_known) {
		text_add(out, broken ? " has been broken for " : " has waited ");
		units_age(out, g->age_ns);
	} else {
		text_add(out, broken ? " is broken" : " waits");
	}
	if (broken)
		tell_broken(w, g, c, bad, out);
	else
		tell_forming(w, g, c, out);
}
