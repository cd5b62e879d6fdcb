/* SPDX-License-Identifier: Apache-2.0
 * In words: communicators that lack members. */
#include "base/units.h"
#include "internal.h"

static void sentence(const int32_t *ranks, size_t n, uint32_t nranks, const char *one,
		     const char *many, struct text *out)
{
	if (!n)
		return;
	size_t begin = out->len;
	units_ranks(out, ranks, n, nranks);
	if (out->at[begin] == 'r')
		out->at[begin] = 'R';
	text_add(out, n == 1 ? one : many);
}

static void tell_who(const struct why *w, uint64_t comm, const int32_t *ranks, size_t n,
		     struct text *out)
{
	for (size_t i = 0; i < n && i < WHY_TOLD; i++) {
		if (i)
			text_add(out, ", ");
		why_add_rank(w, comm, ranks[i], out);
	}
	if (n > WHY_TOLD)
		text_printf(out, " and %zu more", n - WHY_TOLD);
}

/* DEAD are also members whose process closed its session, or had its JOIN cancelled. */
static bool all_alive(const struct why *w, uint64_t comm, const struct why_census *c)
{
	for (size_t i = 0; i < c->ndead; i++) {
		const ncclsvc_member_info *m = why_member(w, comm, c->dead[i]);
		char process = why_process(w, m);
		if (!process || process == 'Z' || process == 'X')
			return false;
	}
	return true;
}

/* Everybody is there: what is missing is the daemon's. */
static void tell_complete(const struct why *w, const struct why_group *g,
			  const ncclsvc_member_info *bad, struct text *out)
{
	text_add(out, "Communicator ");
	why_add_comm(w, g->comm->comm, g->comm->nranks, out);
	text_add(out, g->age_known ? " has waited " : " waits");
	if (g->age_known)
		units_age(out, g->age_ns);
	text_add(out, " for its beginning: all ranks have joined, and ");
	if (bad)
		why_tell_device(w, bad, out);
	else if (g->comm->epoch_state == NCCLSVC_EPOCH_DRAINING)
		text_add(out, "the daemon has yet to end what ran before (draining).");
	else if (why_on_gpus(w, g->comm->comm))
		text_add(out, "NCCL connects their GPUs. That takes up to seconds at the first "
			      "time; if longer, see the daemon's log.");
	else
		text_add(out, "the daemon has yet to end what ran before.");
}

/* "Rank 1 (pid 7) was refused: ranks 0 (pid 6) and 1 (pid 7) ... have both taken device 0. " */
static void tell_refused(const ncclsvc_comm_info *c, struct text *out)
{
	if (!c->refused[0])
		return;
	text_printf(out, "Rank %d (pid %d) was refused: ", c->refused_rank, c->refused_pid);
	text_name(out, c->refused, sizeof(c->refused));
	text_add(out, ". ");
}

/* The node that knows who has joined. */
static void tell_node_to_ask(const struct why *w, const struct why_group *g,
			     const ncclsvc_node_info *rendezvous, struct text *out)
{
	if (rendezvous && node_is_silent(rendezvous)) {
		why_tell_silent(rendezvous, out);
		text_add(out, ". " WHY_SILENT_ADVICE);
		return;
	}
	text_add(out, "ask on ");
	units_node(out, w->s, g->comm->ask_node - 1);
	text_add(out, " with `ncclsvc-ctl why`.");
}

static void tell_unknown(const struct why *w, const struct why_group *g, const struct why_census *c,
			 const ncclsvc_node_info *rendezvous, struct text *out)
{
	text_add(out, "of ");
	units_ranks(out, c->unknown, c->nunknown, g->comm->nranks);
	text_add(out, c->nunknown == 1 ? " it is not known here whether it has: "
				       : " it is not known here whether they have: ");
	tell_node_to_ask(w, g, rendezvous, out);
}

void why_tell_joining(const struct why *w, const struct why_group *g, const struct why_census *c,
		      struct text *out)
{
	uint32_t nranks = g->comm->nranks;
	uint64_t id = g->comm->comm;
	bool broken = c->ndead || c->nbroken || g->comm->state == NCCLSVC_COMM_BROKEN;
	const ncclsvc_member_info *bad = why_bad_device(w, id);
	if (c->njoined == nranks) {
		tell_complete(w, g, bad, out);
		return;
	}
	const ncclsvc_node_info *rendezvous =
		g->comm->ask_node ? snapshot_node(w->s, g->comm->ask_node - 1) : NULL;
	text_add(out, "Communicator ");
	why_add_comm(w, id, nranks, out);
	if (g->age_known) {
		text_add(out, broken ? " has been broken for " : " has waited ");
		units_age(out, g->age_ns);
	} else {
		text_add(out, broken ? " is broken" : " waits");
	}
	if (!broken) {
		text_add(out, " for its ranks: ");
		units_ranks(out, c->joined, c->njoined, nranks);
		text_add(out, c->njoined == 1 ? " has joined; " : " have joined; ");
		if (c->nunknown) {
			tell_refused(g->comm, out);
			tell_unknown(w, g, c, rendezvous, out);
			return;
		}
		units_ranks(out, c->absent, c->nabsent, nranks);
		text_add(out, c->nabsent == 1 ? " has not. " : " have not. ");
		tell_refused(g->comm, out);
		text_add(out, "Start what is missing, or look why it does not come to its join.");
		return;
	}
	text_add(out, ": ");
	if (c->ndead) {
		tell_who(w, id, c->dead, c->ndead, out);
		text_add(out, all_alive(w, id, c) ? " ended its session. " : " died. ");
	} else if (bad) {
		why_tell_device(w, bad, out);
		text_char(out, ' ');
	} else {
		text_add(out, why_on_gpus(w, id) ? "a member left it, or a GPU's worker was lost. "
						 : "a member left it. ");
	}
	tell_refused(g->comm, out);
	sentence(c->joined, c->njoined, nranks, " has rejoined and waits. ",
		 " have rejoined and wait. ", out);
	if (c->nbroken) {
		text_add(out, "Alive, and yet to rejoin: ");
		tell_who(w, id, c->broken, c->nbroken, out);
		text_add(out, ". ");
	}
	sentence(c->absent, c->nabsent, nranks, " left or never came, and must join. ",
		 " left or never came, and must join. ", out);
	if (g->comm->ask_node) {
		text_add(out, "Who has joined again on other nodes is not known here: ");
		tell_node_to_ask(w, g, rendezvous, out);
		return;
	}
	sentence(c->dead, c->ndead, nranks, " must join again.", " must join again.", out);
	while (out->len && out->at[out->len - 1] == ' ')
		out->len--;
}
