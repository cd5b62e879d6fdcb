/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/ids.h"
#include "base/table.h"
#include "base/units.h"
#include "view.h"

#define NOT_KNOWN "?"

static const struct table_column columns[] = {
	{"COMM", true},	   {"LABEL", false},	  {"STATE", false},   {"EPOCH", true},
	{"JOINED", false}, {"TASKS", true},	  {"UID", true},      {"TENANT", false},
	{"JOB", false},	   {"AGE", true},	  {"DEVICES", false}, {"DIRECT", true},
	{"NCCL", false},   {"NOT JOINED", false},
};

/* The first is shown if several nodes were asked. */
static const struct table_column member_columns[] = {
	{"NODE", true},	   {"COMM", true},    {"LABEL", false},	   {"RANK", true},
	{"STATE", false},  {"SESSION", true}, {"PID", true},	   {"NAME", false},
	{"EPOCH", true},   {"DEVICE", false}, {"SUBMITTED", true}, {"COMPLETED", true},
	{"WAITING", true},
};

/* NULL: another node may know. */
static const char *admit_name(unsigned admit)
{
	static const char *const names[] = {NULL, "tenant", "user", "any"};
	return admit < sizeof(names) / sizeof(names[0]) ? names[admit] : NULL;
}

/* NULL: it uses none. */
static const char *nccl_name(unsigned nccl)
{
	static const char *const names[] = {NULL, "held", "on demand", "awaited", "suspended"};
	return nccl < sizeof(names) / sizeof(names[0]) ? names[nccl] : NULL;
}

static enum table_style comm_style(unsigned state)
{
	switch (state) {
	case NCCLSVC_COMM_READY:
		return TABLE_GOOD;
	case NCCLSVC_COMM_FORMING:
		return TABLE_WARN;
	case NCCLSVC_COMM_BROKEN:
		return TABLE_BAD;
	}
	return TABLE_PLAIN;
}

static enum table_style member_style(unsigned state)
{
	switch (state) {
	case NCCLSVC_MEMBER_JOINING:
	case NCCLSVC_MEMBER_BROKEN:
		return TABLE_WARN;
	case NCCLSVC_MEMBER_DEAD:
		return TABLE_BAD;
	}
	return TABLE_PLAIN;
}

static bool wanted(const struct ctl_args *args, const ncclsvc_comm_info *x)
{
	return view_comm_wanted(args, x->comm, x) && view_job_wanted(args, x->job) &&
	       (args->all || args->comm || x->state != NCCLSVC_COMM_IDLE);
}

static bool is_in(unsigned state)
{
	return state == NCCLSVC_MEMBER_JOINED || state == NCCLSVC_MEMBER_JOINING;
}

static bool is_not_missing(const ncclsvc_member_info *m)
{
	return is_in(m->state) || m->state == NCCLSVC_MEMBER_UNKNOWN;
}

/* Writes the ranks that a communicator lacks, naming the first of them. */
static void not_joined(const struct snapshot *s, const ncclsvc_comm_info *x, struct text *out)
{
	size_t n, at = 0;
	const ncclsvc_member_info *m = snapshot_members(s, x->comm, &n);
	int32_t ranks[NCCLSVC_MISSING_SHOWN];
	uint32_t shown = 0, total = x->nranks, unknown = 0;
	if (x->state == NCCLSVC_COMM_READY || x->state == NCCLSVC_COMM_IDLE) {
		text_char(out, '-');
		return;
	}
	for (size_t i = 0; i < n; i++) {
		unknown += m[i].state == NCCLSVC_MEMBER_UNKNOWN;
		total -= total && is_not_missing(&m[i]);
	}
	/* The loop takes at most a few more steps than there are listed members, whatever nranks
	 * the daemon claims. */
	for (int32_t rank = 0; shown < total && shown < NCCLSVC_MISSING_SHOWN; rank++) {
		while (at < n && m[at].rank < rank)
			at++;
		if (at == n || m[at].rank != rank || !is_not_missing(&m[at]))
			ranks[shown++] = rank;
	}
	if (total || !unknown)
		units_waits(out, ranks, shown, total);
	if (unknown && x->ask_node) {
		text_add(out, total ? "; ask " : "ask ");
		units_node(out, s, x->ask_node - 1);
	}
}

/* The transport of its members on GPUs; NULL: none is on a GPU. */
static const char *transport(const struct snapshot *s, const ncclsvc_comm_info *x)
{
	size_t n;
	const ncclsvc_member_info *m = snapshot_members(s, x->comm, &n);
	for (size_t i = 0; i < n; i++)
		if (m[i].device >= 0)
			return view_transport(m[i].transport);
	return NULL;
}

/* Writes "host", or the GPUs in rank order with "?" for a rank that has not joined; adds "mpi" if
 * NCCL does not carry their memory. */
static void devices(const struct snapshot *s, const ncclsvc_comm_info *x, struct text *out)
{
	size_t n;
	const ncclsvc_member_info *m = snapshot_members(s, x->comm, &n);
	const char *carrier = transport(s, x);
	if (!carrier) {
		text_add(out, n ? "host" : "-");
		return;
	}
	for (size_t i = 0; i < n && i < NCCLSVC_MISSING_SHOWN; i++) {
		if (i)
			text_add(out, ", ");
		if (m[i].device < 0)
			text_char(out, '?');
		else
			text_i64(out, m[i].device);
		if (m[i].device >= 0 && m[i].elsewhere)
			text_printf(out, " of node %u", m[i].elsewhere - 1);
	}
	if (n > NCCLSVC_MISSING_SHOWN)
		text_printf(out, " (+%zu)", n - NCCLSVC_MISSING_SHOWN);
	if (strcmp(carrier, "nccl") != 0)
		text_printf(out, " by %s", carrier);
}

/* The epoch's state on this node, or what the members of other nodes report of the communicator. */
static const char *state_word(const ncclsvc_comm_info *x)
{
	const bool waits = x->state == NCCLSVC_COMM_FORMING || x->state == NCCLSVC_COMM_BROKEN;
	if (!x->epoch_state || (x->epoch_state == NCCLSVC_EPOCH_IDLE && waits))
		return comm_state_name(x->state);
	return ncclsvc_epoch_state_name(x->epoch_state);
}

/* Writes the direct transport's size limit, and where it comes from. */
static void kernels(const ncclsvc_comm_info *x, struct text *out)
{
	const char *source = peer_source_name(x->peer_source);
	if (x->peer_bytes)
		units_bytes(out, x->peer_bytes);
	else
		text_char(out, '-');
	if (source)
		text_printf(out, " (%s)", source);
}

static void row(const struct view *v, struct table *t, const ncclsvc_comm_info *x)
{
	units_number(table_cell(t), x->comm);
	table_end(t, TABLE_PLAIN);
	view_label(table_cell(t), x);
	table_end(t, TABLE_PLAIN);
	text_add(table_cell(t), state_word(x));
	table_end(t, comm_style(x->state));
	table_u64(t, x->epoch);
	text_printf(table_cell(t), "%u of %u", x->joined, x->nranks);
	table_end(t, TABLE_PLAIN);
	table_u64(t, x->pending);
	table_u64(t, x->uid);
	view_job_cell(t, x->tenant);
	view_job_cell(t, x->job);
	units_age(table_cell(t), x->age_ns);
	table_end(t, TABLE_PLAIN);
	devices(v->s, x, table_cell(t));
	table_end(t, TABLE_PLAIN);
	kernels(x, table_cell(t));
	table_end(t, TABLE_PLAIN);
	table_add(t, nccl_name(x->nccl) ? nccl_name(x->nccl) : "-");
	not_joined(v->s, x, table_cell(t));
	table_end(t, TABLE_PLAIN);
}

/* Has the member's node told of it? */
static bool is_known(const struct view *v, const ncclsvc_member_info *m)
{
	return snapshot_knows(v->s, m);
}

static void member_row(const struct view *v, struct table *t, const ncclsvc_comm_info *x,
		       const ncclsvc_member_info *m)
{
	const ncclsvc_session_info *session = snapshot_session(v->s, m->session);
	if (v->s->answers)
		table_u64(t, view_member_node(v->s, m));
	units_number(table_cell(t), m->comm);
	table_end(t, TABLE_PLAIN);
	view_label(table_cell(t), x);
	table_end(t, TABLE_PLAIN);
	table_i64(t, m->rank);
	text_add(table_cell(t), member_state_name(m->state));
	table_end(t, member_style(m->state));
	if (m->elsewhere && !is_known(v, m)) {
		text_printf(table_cell(t), "%snode %u",
			    m->state == NCCLSVC_MEMBER_UNKNOWN ? "ask " : "", m->elsewhere - 1);
	} else {
		text_u64(table_cell(t), ids_session_number(v->s, m->session));
		if (m->elsewhere)
			text_printf(table_cell(t), "@%u", m->elsewhere - 1);
	}
	table_end(t, TABLE_PLAIN);
	table_i64(t, m->pid);
	if (session && session->name[0])
		text_name(table_cell(t), session->name, sizeof(session->name));
	else
		text_char(table_cell(t), '-');
	table_end(t, TABLE_PLAIN);
	table_u64(t, m->epoch);
	if (m->device < 0)
		text_add(table_cell(t), "host");
	else
		text_i64(table_cell(t), m->device);
	table_end(t, TABLE_PLAIN);
	if (!is_known(v, m)) {
		table_add(t, NOT_KNOWN);
		table_add(t, NOT_KNOWN);
	} else {
		table_u64(t, m->submitted);
		table_u64(t, m->completed);
	}
	if (m->waiting_ns)
		units_age(table_cell(t), m->waiting_ns);
	else
		text_add(table_cell(t), is_known(v, m) ? "-" : NOT_KNOWN);
	table_end(t, TABLE_PLAIN);
}

/* Writes a count that only the member's own node has. */
static void own_number(const struct view *v, struct json *j, const char *key,
		       const ncclsvc_member_info *m, uint64_t n)
{
	put_u64_or_null(j, key, is_known(v, m) || n, n);
}

static void member_element(const struct view *v, struct json *j, const ncclsvc_member_info *m)
{
	put_object(j, NULL);
	put_i64(j, "rank", m->rank);
	put_string(j, "state", member_state_name(m->state), SIZE_MAX);
	put_u64(j, "session", ids_session_number(v->s, m->session));
	put_i64(j, "pid", m->pid);
	put_u64(j, "epoch", m->epoch);
	put_i64(j, "device", m->device);
	put_u64_or_null(j, "node", m->elsewhere, m->elsewhere - 1);
	own_number(v, j, "submitted", m, m->submitted);
	own_number(v, j, "completed", m, m->completed);
	own_number(v, j, "waiting_ns", m, m->waiting_ns);
	put_object_end(j);
	text_flush(j->out, false);
}

/* Writes the epoch's state and its last changes, the latest first. */
static void put_life(struct json *j, const ncclsvc_comm_info *x)
{
	const uint32_t n = x->epoch_step_count < NCCLSVC_EPOCH_STEPS ? x->epoch_step_count
								     : NCCLSVC_EPOCH_STEPS;
	if (!x->epoch_state) {
		put_null(j, "epoch_state");
		put_null(j, "epoch_state_ns");
		put_null(j, "transitions");
		return;
	}
	put_string(j, "epoch_state", ncclsvc_epoch_state_name(x->epoch_state), SIZE_MAX);
	put_u64(j, "epoch_state_ns", x->epoch_state_ns);
	put_array(j, "transitions");
	for (uint32_t i = 0; i < n; i++) {
		put_object(j, NULL);
		put_string(j, "to", ncclsvc_epoch_state_name(x->epoch_steps[i].state), SIZE_MAX);
		put_string(j, "cause", ncclsvc_epoch_cause_name(x->epoch_steps[i].cause), SIZE_MAX);
		put_u64(j, "age_ns", x->epoch_steps[i].age_ns);
		put_object_end(j);
	}
	put_array_end(j);
}

static void element(const struct view *v, struct json *j, const ncclsvc_comm_info *x)
{
	size_t n;
	const ncclsvc_member_info *m = snapshot_members(v->s, x->comm, &n);
	put_object(j, NULL);
	view_json_comm(v->s, j, x->comm);
	view_json_label(j, "label", x);
	put_string(j, "state", comm_state_name(x->state), SIZE_MAX);
	put_life(j, x);
	put_u64(j, "epoch", x->epoch);
	put_u64(j, "nranks", x->nranks);
	put_u64(j, "joined", x->joined);
	put_u64(j, "pending", x->pending);
	put_u64_or_null(j, "ask_node", x->ask_node, x->ask_node - 1);
	put_u64(j, "uid", x->uid);
	put_string(j, "tenant", x->tenant[0] ? x->tenant : NULL, sizeof(x->tenant));
	put_string(j, "admit", admit_name(x->admit), SIZE_MAX);
	put_string(j, "job", x->job[0] ? x->job : NULL, sizeof(x->job));
	put_u64(j, "age_ns", x->age_ns);
	put_string(j, "memory", transport(v->s, x) ? "cuda" : "host", SIZE_MAX);
	put_string(j, "transport", transport(v->s, x), SIZE_MAX);
	put_u64(j, "peer_bytes", x->peer_bytes);
	put_string(j, "peer_source", peer_source_name(x->peer_source), SIZE_MAX);
	put_u64(j, "staged", x->staged);
	put_string(j, "nccl", nccl_name(x->nccl), SIZE_MAX);
	put_u64(j, "blocks", x->blocks);
	put_bool(j, "copy_engines", x->copy_engines);
	if (x->refused[0]) {
		put_object(j, "refused");
		put_i64(j, "rank", x->refused_rank);
		put_i64(j, "pid", x->refused_pid);
		put_string(j, "text", x->refused, sizeof(x->refused));
		put_object_end(j);
	} else {
		put_null(j, "refused");
	}
	put_array(j, "members");
	for (size_t i = 0; i < n; i++)
		member_element(v, j, &m[i]);
	put_array_end(j);
	put_object_end(j);
	text_flush(j->out, false);
}

static void comms_table(const struct view *v)
{
	const struct snapshot *s = v->s;
	bool members = v->args->members;
	const unsigned skip = s->answers ? 0 : 1;
	struct table *t = members ? table_new(member_columns + skip,
					      sizeof(member_columns) / sizeof(columns[0]) - skip)
				  : table_new(columns, sizeof(columns) / sizeof(columns[0]));
	size_t shown = 0, idle = 0;
	bool elsewhere = false, shared = false;
	for (size_t i = 0; i < s->ncomms; i++) {
		const ncclsvc_comm_info *x = &s->comms[i];
		if (!wanted(v->args, x)) {
			idle += x->state == NCCLSVC_COMM_IDLE;
			continue;
		}
		shown++;
		shared |= x->peer_source == NCCLSVC_PEER_SHARED_GPU;
		size_t n = 0;
		const ncclsvc_member_info *m = members ? snapshot_members(s, x->comm, &n) : NULL;
		for (size_t k = 0; k < n; k++) {
			member_row(v, t, x, &m[k]);
			elsewhere |= !is_known(v, &m[k]);
		}
		if (!members)
			row(v, t, x);
	}
	if (shown)
		table_print(t, v->out, v->colour);
	else
		text_add(v->out, v->args->comm || v->args->job ? "No communicator matches.\n"
							       : "No communicators.\n");
	if (elsewhere)
		text_add(v->out, NOT_KNOWN ": not known here; ask on the member's node.\n");
	if (shared)
		text_printf(v->out,
			    "%s: two ranks use one GPU, so all operations run in kernels. Without "
			    "MPS they take turns on the GPU, and each operation waits some "
			    "milliseconds.\n",
			    peer_source_name(NCCLSVC_PEER_SHARED_GPU));
	if (idle && !v->args->comm)
		text_printf(v->out, "%zu idle, shown with --all.\n", idle);
	view_silence(v, NULL);
	table_free(t);
}

void view_comms(const struct view *v)
{
	const struct snapshot *s = v->s;
	if (!v->args->json) {
		comms_table(v);
		return;
	}
	struct json j = view_json_begin(v);
	put_array(&j, "comms");
	for (size_t i = 0; i < s->ncomms; i++)
		if (wanted(v->args, &s->comms[i]))
			element(v, &j, &s->comms[i]);
	put_array_end(&j);
	view_json_answers(v, &j);
	view_json_end(&j);
}
