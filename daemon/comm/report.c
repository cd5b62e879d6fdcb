/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/line.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/timings.h"
#include "channel/cluster.h"
#include "comm.h"
#include "comms.h"
#include "consequences.h"
#include "peer/comm_peer.h"
#include "proto/names.h"
#include "proto/operation.h"
#include "proto/printable.h"

#define USER_BURST (LOG_BURST / 2)

/* MESSAGE_ID of the journal: scripts/systemd/ncclsvc.catalog explains them. */
#define ID_TASK	   "b5f1f2e0c5a24b0c9a6c1d1f6a0e7d41"
#define ID_EPOCH   "0e3a4c9d7f8b4d52a1c2b3d4e5f60712"
#define ID_KERNEL  "6c7d8e9fa0b1423c8d4e5f60718293a4"
#define ID_REQUEST "93a4b5c6d7e8491fa2b3c4d5e6f70819"

/* The user's share of the log. What was left out is said when the next line may be written. */
static bool may_write(struct account *a)
{
	const uint64_t now = clock_now();
	if (now - a->report_ns >= LOG_WINDOW_NS) {
		if (a->reports > USER_BURST)
			log_warning("user %s: %u more failures of communicators were not logged",
				    a->owner, a->reports - USER_BURST);
		a->report_ns = now;
		a->reports = 0;
	}
	return a->reports++ < USER_BURST;
}

void report_refused_tenant(const struct communicator *m, const struct session *c)
{
	if (may_write(c->account))
		log_warning("communicator %s (id %llu, user %s): a JOIN of pid %d of user %s was "
			    "refused",
			    m->label, (unsigned long long)m->uid, m->account->owner, c->pid,
			    c->account->owner);
}

/* ---- The record ---- */

/* The rank that the operator should look at; -1: none in particular. */
static int32_t suspect(const ncclsvc_status *st)
{
	if (st->result == NCCLSVC_TIMEOUT || st->result == NCCLSVC_MISMATCH)
		return st->missing_count ? st->missing[0] : -1;
	return st->rank_a;
}

/* All but its text. */
static ncclsvc_failure_info info_of(const struct communicator *m, uint32_t kind,
				    const ncclsvc_status *st)
{
	const int32_t rank = suspect(st);
	ncclsvc_failure_info i = {
		.kind = kind,
		.result = st->result,
		.field = st->field,
		.comm = m->uid,
		.epoch = m->epoch,
		.nranks = m->nranks,
		.uid = m->account->tenant.uid,
		.rank = -1,
		.device = -1,
		.node = -1,
	};
	memcpy(i.label, m->label, sizeof(i.label));
	memcpy(i.job, m->job, sizeof(i.job));
	memcpy(i.tenant, m->account->name, sizeof(i.tenant));
	if (rank < 0 || (uint32_t)rank >= m->nranks)
		return i;
	const struct member *member = &m->members[rank];
	i.rank = rank;
	i.pid = member->pid;
	i.device = member->device;
	i.node = consequences_node(m, member);
	i.ending = st->ending;
	i.ending_code = st->ending_code;
	if (i.node >= 0)
		memcpy(i.host, m->comms->cluster->nodes[i.node].info.host, sizeof(i.host));
	return i;
}

/* ---- In words ---- */

/* "; rank 3 is pid 7, on gpu1, on node 2 (host)" */
static void add_place(struct line *l, const ncclsvc_failure_info *i)
{
	if (i->rank < 0)
		return;
	line_add(l, "; rank %d is pid %d", i->rank, i->pid);
	if (i->device >= 0)
		line_add(l, ", on gpu%d", i->device);
	if (i->node >= 0)
		line_add(l, ", on node %d (%s)", i->node, i->host);
}

static const char *advice(int result)
{
	switch (result) {
	case NCCLSVC_MISMATCH:
		return ". The ranks' programs must call the same operation with the same "
		       "arguments.";
	case NCCLSVC_TIMEOUT:
		return ". `ncclsvc-ctl why` shows what is late.";
	case NCCLSVC_PEER_GONE:
		return ". Start that rank again: it must join, and the others rejoin.";
	case NCCLSVC_WORKER_LOST:
	case NCCLSVC_NCCL_ERROR:
		return ". `ncclsvc-ctl devices` shows the GPUs' workers.";
	}
	return "";
}

static const char *message_id(uint32_t kind)
{
	switch (kind) {
	case NCCLSVC_FAILURE_TASK:
		return ID_TASK;
	case NCCLSVC_FAILURE_EPOCH:
		return ID_EPOCH;
	case NCCLSVC_FAILURE_KERNEL:
		return ID_KERNEL;
	default:
		return ID_REQUEST;
	}
}

static void add_fields(struct log_event *e, const ncclsvc_failure_info *i)
{
	log_field(e, "NCCLSVC_FAILURE=%llu", (unsigned long long)i->failure);
	log_field(e, "NCCLSVC_RESULT=%s", svc_result_name(i->result));
	log_field(e, "NCCLSVC_COMM=%s", i->label);
	log_field(e, "NCCLSVC_UID=%u", i->uid);
	if (i->job[0])
		log_field(e, "NCCLSVC_JOB=%s", i->job);
	if (i->cause)
		log_field(e, "NCCLSVC_CAUSE=%llu", (unsigned long long)i->cause);
	if (i->rank >= 0) {
		log_field(e, "NCCLSVC_RANK=%d", i->rank);
		log_field(e, "NCCLSVC_PID=%d", i->pid);
	}
	if (i->node >= 0)
		log_field(e, "NCCLSVC_NODE=%d", i->node);
	if (i->device >= 0)
		log_field(e, "NCCLSVC_GPU=%d", i->device);
	if (i->op) {
		log_field(e, "NCCLSVC_OP=%s", svc_op_name(i->op));
		log_field(e, "NCCLSVC_SEQ=%llu", (unsigned long long)i->seq);
	}
	if (i->ending)
		log_field(e, "NCCLSVC_ENDING=%s", svc_ending_name(i->ending));
}

/* Keeps the failure, whose text is complete but for the place and the advice, and logs it. */
static void report(struct communicator *m, ncclsvc_failure_info *i, const ncclsvc_status *st,
		   const char *more)
{
	struct comms *s = m->comms;
	struct line l = {.at = 0};
	struct failure *f = failures_add(&s->failures, i);
	if (f && !i->cause && i->kind == NCCLSVC_FAILURE_REQUEST) {
		/* A refused JOIN is reported to its caller alone; further failures before the
		 * epoch begins are its consequences. */
		if (!epoch_held(&m->life))
			m->failure = f->info.failure;
		else if (i->rank >= 0)
			consequences_tell(m, f, (uint32_t)i->rank);
	} else if (f && !i->cause) {
		f->status = *st;
		consequences_begin(m, f);
		s->last_failure = *st;
		s->last_failure.done_ns = f->noted_ns;
		s->last_failure_comm = m->uid;
	}
	if (!may_write(m->account))
		return;
	struct log_event e = {.id = message_id(i->kind)};
	add_fields(&e, f ? &f->info : i);
	line_add(&l, "communicator %s (id %llu, user %s): ", m->label, (unsigned long long)m->uid,
		 m->account->owner);
	if (f)
		line_add(&l, "failure %llu: ", (unsigned long long)f->info.failure);
	line_add(&l, "%s", i->text);
	if (i->kind != NCCLSVC_FAILURE_REQUEST) {
		add_place(&l, i);
		line_add(&l, "%s", advice(i->result));
	}
	line_add(&l, "%s", more);
	log_event(LOG_LEVEL_WARNING, &e, l.text);
	if (f)
		f->logged = true;
}

void report_tasks(struct communicator *m, const ncclsvc_status *st, unsigned op, int32_t rank,
		  uint64_t seq)
{
	char sentence[384];
	if (st->result == NCCLSVC_PEER_GONE && !epoch_runs(&m->life))
		return; /* the record of the epoch's end says so */
	ncclsvc_failure_info i = info_of(m, NCCLSVC_FAILURE_TASK, st);
	i.op = op;
	i.seq = seq;
	snprintf(i.text, sizeof(i.text), "%s #%llu of rank %d: %s", svc_op_name(op),
		 (unsigned long long)seq, rank,
		 svc_status_sentence(st, sentence, sizeof(sentence)));
	if (st->result != NCCLSVC_CANCELLED)
		report(m, &i, st, "");
	else if (may_write(m->account))
		log_info("communicator %s (id %llu, user %s): %s", m->label,
			 (unsigned long long)m->uid, m->account->owner, i.text);
}

static uint64_t load(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Tasks, and operations on the direct transport, of the members that are left. */
static uint64_t pending(const struct communicator *m, int32_t gone)
{
	struct peer_range range;
	uint64_t n = 0;
	for (uint32_t k = 0; m->progress && k < m->nranks; k++) {
		if ((int32_t)k == gone || !comm_alive(&m->members[k]))
			continue;
		n += load(&m->progress[k].submitted) - load(&m->progress[k].completed);
		if (peer_operations(m, k, &range))
			n += range.n;
	}
	return n;
}

/* No data is lost, and the rank is not at fault. */
static bool is_in_good_order(const ncclsvc_status *st, uint64_t waiting)
{
	if (waiting || st->result != NCCLSVC_PEER_GONE || st->field == NCCLSVC_FIELD_NODE)
		return false;
	return st->ending != NCCLSVC_ENDED_KILLED && st->ending != NCCLSVC_ENDED_NO_MEMORY &&
	       st->ending != NCCLSVC_ENDED_DISCONNECTED &&
	       !(st->ending == NCCLSVC_ENDED_EXITED && st->ending_code > 0);
}

static void log_clean_end(struct communicator *m, const ncclsvc_status *st)
{
	char ending[SVC_ENDING_BYTES];
	if (may_write(m->account))
		log_info("communicator %s (id %llu, user %s): rank %d (pid %d) %s; no task was "
			 "pending",
			 m->label, (unsigned long long)m->uid, m->account->owner, st->rank_a,
			 st->pid_a, svc_ending_text(st->ending, st->ending_code, ending));
}

void report_epoch(struct communicator *m, ncclsvc_status *st, const ncclsvc_status *first)
{
	char sentence[384];
	const uint64_t waiting = pending(m, st->rank_a);
	struct failure *root = consequences_root(m, st);
	if (root) {
		consequences_add(m, root, st->rank_a);
		consequences_begin(m, root);
		first = consequences_first(m, root);
	} else if (!first && is_in_good_order(st, waiting)) {
		log_clean_end(m, st);
		m->ended_in_order = *st;
		return;
	}
	if (first && first->result == NCCLSVC_PEER_GONE)
		*st = *first;
	else if (st->rank_a >= 0 && st->result == NCCLSVC_PEER_GONE)
		st->follows = m->members[st->rank_a].ending.follows;
	if (root)
		return;
	const ncclsvc_status *cause = first ? first : st;
	ncclsvc_failure_info i = info_of(m, NCCLSVC_FAILURE_EPOCH, cause);
	i.pending = waiting;
	snprintf(i.text, sizeof(i.text), "%llu pending task%s: %s", (unsigned long long)waiting,
		 waiting == 1 ? " fails" : "s fail",
		 svc_status_sentence(cause, sentence, sizeof(sentence)));
	report(m, &i, cause, "");
}

void report_too_late(struct session *c, uint32_t handle, uint32_t epoch, unsigned op)
{
	int32_t rank = -1;
	char sentence[384];
	struct communicator *m = comm_of_handle(c, handle, &rank);
	if (!m || m->epoch != epoch || !m->ended_in_order.result)
		return;
	const ncclsvc_status st = m->ended_in_order;
	m->ended_in_order.result = NCCLSVC_OK;
	ncclsvc_failure_info i = info_of(m, NCCLSVC_FAILURE_EPOCH, &st);
	i.op = op;
	snprintf(i.text, sizeof(i.text), "%s of rank %d fails: %s", svc_op_name(op), rank,
		 svc_status_sentence(&st, sentence, sizeof(sentence)));
	report(m, &i, &st, "");
}

void report_kernels(struct communicator *m, const ncclsvc_status *st, const char *sentence)
{
	char reason[384];
	ncclsvc_failure_info i = info_of(m, NCCLSVC_FAILURE_KERNEL, st);
	snprintf(i.text, sizeof(i.text), "%s: %s", sentence,
		 svc_status_sentence(st, reason, sizeof(reason)));
	report(m, &i, st,
	       st->result == NCCLSVC_PEER_GONE /* it is in that one's advice */
		       ? ""
		       : *advice(st->result) ? " The epoch is over: all members must join again."
					     : ". The epoch is over: all members must join again.");
}

void report_refused(struct communicator *m, const struct refused_operation *o)
{
	if (m->epoch != o->epoch || !epoch_runs(&m->life) || !comm_takes_part(&m->members[o->rank]))
		return;
	struct refusal *r = &m->refused_task;
	*r = (struct refusal){.rank = o->rank, .pid = m->members[o->rank].pid};
	m->refused_seq = o->seq;
	snprintf(r->text, sizeof(r->text), "%s #%llu: %s: %.200s", svc_op_name(o->op),
		 (unsigned long long)o->seq, svc_result_name(o->result), o->text);
	const ncclsvc_status st = {
		.result = o->result, .rank_a = o->rank, .pid_a = r->pid, .rank_b = -1};
	ncclsvc_failure_info i = info_of(m, NCCLSVC_FAILURE_REQUEST, &st);
	i.op = o->op;
	i.seq = o->seq;
	snprintf(i.text, sizeof(i.text), "rank %d (pid %d) was refused: %s", o->rank, r->pid,
		 r->text);
	report(m, &i, &st, "");
}

void report_refusal(struct session *c, uint32_t request_id, const struct svc_refused *request)
{
	int32_t rank = -1;
	char text[SVC_TEXT_BYTES];
	struct communicator *m = comm_of_handle(c, request->comm, &rank);
	if (!m || m->epoch != request->epoch) {
		session_error(c, SVC_REFUSED, request_id,
			      m ? NCCLSVC_STALE_EPOCH : NCCLSVC_NOT_FOUND,
			      "communicator %u is not in epoch %u", request->comm, request->epoch);
		return;
	}
	if (!svc_op_known(request->op) || request->result >= 0 ||
	    !svc_result_known(request->result)) {
		session_error(c, SVC_REFUSED, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "operation %u cannot have been refused with result %d", request->op,
			      request->result);
		return;
	}
	memcpy(text, request->text, sizeof(text));
	if (request->result == NCCLSVC_PEER_GONE)
		report_too_late(c, request->comm, request->epoch, request->op);
	else if (reported_first(&m->refusals, clock_now(), request->result))
		report_refused(m, &(struct refused_operation){
					  .epoch = request->epoch,
					  .op = request->op,
					  .rank = rank,
					  .result = request->result,
					  .seq = request->seq,
					  .text = svc_make_printable(text, sizeof(text))});
	session_reply(c, SVC_REFUSED, request_id, NULL, 0, NULL, 0);
}

void report_request(struct communicator *m, const char *request, int result, const char *text)
{
	const ncclsvc_status st = {.result = result, .rank_a = -1, .rank_b = -1};
	ncclsvc_failure_info i = info_of(m, NCCLSVC_FAILURE_REQUEST, &st);
	i.cause = m->failure;
	snprintf(i.text, sizeof(i.text), "%s: %s: %s", request, svc_result_name(result), text);
	report(m, &i, &st, "");
}

/* ---- Beginning and end ---- */

void report_open(struct comms *s)
{
	const char *state = paths_env(environ, "STATE_DIRECTORY");
	char directory[PATH_MAX] = "";
	if (state)
		snprintf(directory, sizeof(directory), "%.*s", (int)strcspn(state, ":"), state);
	const bool kept = *directory && strcmp(directory, "/dev/null") != 0;
	failures_open(&s->failures, s->loop, kept ? directory : NULL,
		      cluster_is_together(s->cluster) && s->cluster->n > 1 ? (int32_t)s->cluster->me
									   : -1);
}

void report_close(struct comms *s)
{
	if (s->gathered_ns)
		consequences_log(s, s->gathered_ns);
	failures_close(&s->failures);
}
