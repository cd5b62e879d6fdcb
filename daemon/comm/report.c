/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/timings.h"
#include "channel/cluster.h"
#include "comm.h"
#include "comms.h"
#include "names.h"

#define USER_BURST (LOG_BURST / 2)

#define FOLLOWS_NS (UINT64_C(60) * 1000000000)

/* Epochs of several communicators that end so close together for one rank end for one reason. */
#define TOGETHER_NS (UINT64_C(2) * 1000000000)
#define TOGETHER    16	 /* of the latest failures are looked at */
#define FOLLOWED_MS 1000 /* what follows from a failure is gathered for the log */

/* MESSAGE_ID of the journal: scripts/systemd/ncclsvc.catalog explains them. */
#define ID_TASK	    "b5f1f2e0c5a24b0c9a6c1d1f6a0e7d41"
#define ID_EPOCH    "0e3a4c9d7f8b4d52a1c2b3d4e5f60712"
#define ID_KERNEL   "6c7d8e9fa0b1423c8d4e5f60718293a4"
#define ID_REQUEST  "93a4b5c6d7e8491fa2b3c4d5e6f70819"
#define ID_FOLLOWED "d2c1b0a9f8e74d6c8b5a49382716f5e4"

/* The user's share of the log. What was left out is said when the next line may be written. */
static bool may_write(struct account *a)
{
	const uint64_t now = clock_now();
	if (now - a->report_ns >= LOG_WINDOW_NS) {
		if (a->reports > USER_BURST)
			log_warning("user %u: %u more failures of communicators were not logged",
				    a->uid, a->reports - USER_BURST);
		a->report_ns = now;
		a->reports = 0;
	}
	return a->reports++ < USER_BURST;
}

struct line {
	char text[1024];
	size_t at;
};

__attribute__((format(printf, 2, 3))) static void add(struct line *l, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int n = vsnprintf(l->text + l->at, sizeof(l->text) - l->at, format, args);
	va_end(args);
	if (n > 0)
		l->at += (size_t)n;
	if (l->at >= sizeof(l->text))
		l->at = sizeof(l->text) - 1;
}

/* ---- The record ---- */

/* The rank that the operator should look at; -1: none in particular. */
static int32_t suspect(const ncclsvc_status *st)
{
	if (st->result == NCCLSVC_TIMEOUT || st->result == NCCLSVC_MISMATCH)
		return st->missing_count ? st->missing[0] : -1;
	return st->rank_a;
}

static int32_t node_of(const struct communicator *m, const struct member *member)
{
	const struct cluster *c = m->comms->cluster;
	if (!c || c->n < 2)
		return -1;
	return comm_alive(member) || member->node < 0 ? (int32_t)c->me : member->node;
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
		.uid = m->account->uid,
		.rank = -1,
		.device = -1,
		.node = -1,
	};
	memcpy(i.label, m->label, sizeof(i.label));
	if (rank < 0 || (uint32_t)rank >= m->nranks)
		return i;
	const struct member *member = &m->members[rank];
	i.rank = rank;
	i.pid = member->pid;
	i.device = member->device;
	i.node = node_of(m, member);
	i.ending = st->ending;
	i.ending_code = st->ending_code;
	if (i.node >= 0)
		memcpy(i.host, m->comms->cluster->nodes[i.node].info.host, sizeof(i.host));
	return i;
}

/* Its members' processes hear of it, by the tasks that failed or by the end of the epoch. */
static void mark_members(struct communicator *m, const struct failure *f)
{
	m->failure = f->info.failure;
	m->failure_ns = clock_now();
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct client *c = m->members[k].client;
		if (c) {
			c->failure = m->failure;
			c->failure_ns = m->failure_ns;
			c->failure_settled = false;
		}
	}
}

/* ---- What follows from a failure ---- */

static struct failure *recent_failure(const struct communicator *m)
{
	if (!m->failure || clock_now() - m->failure_ns >= FOLLOWS_NS)
		return NULL;
	return failures_find(&m->comms->failures, m->failure);
}

/* No process does this because of an error that it was told of. */
static bool is_own_cause(const ncclsvc_status *st)
{
	if (st->field == NCCLSVC_FIELD_NODE || st->result != NCCLSVC_PEER_GONE ||
	    st->ending == NCCLSVC_ENDED_NO_MEMORY)
		return true;
	return st->ending == NCCLSVC_ENDED_KILLED &&
	       (st->ending_code == SIGSEGV || st->ending_code == SIGBUS ||
		st->ending_code == SIGILL || st->ending_code == SIGFPE);
}

/* The end of the same process has just ended another communicator's epoch. */
static struct failure *ended_together(const struct communicator *m, int32_t rank)
{
	const struct failures *all = &m->comms->failures;
	const struct member *member = &m->members[rank];
	const int32_t node = node_of(m, member);
	const uint64_t now = clock_now();
	for (uint64_t n = all->last, seen = 0; n && seen < TOGETHER; n--, seen++) {
		struct failure *f = failures_find(all, n);
		if (f && f->info.kind == NCCLSVC_FAILURE_EPOCH && f->info.pid == member->pid &&
		    f->info.node == node && f->info.uid == m->account->uid && f->noted_ns &&
		    now - f->noted_ns < TOGETHER_NS)
			return f;
	}
	return NULL;
}

/* The failure from which the end of the epoch follows; NULL: it is a cause itself. */
static struct failure *root_of(const struct communicator *m, const ncclsvc_status *st)
{
	if (st->rank_a < 0 || is_own_cause(st))
		return NULL;
	struct failure *root = m->members[st->rank_a].ending.follows ? recent_failure(m) : NULL;
	return root ? root : ended_together(m, st->rank_a);
}

static int by_rank(const void *a, const void *b)
{
	const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
	return (x > y) - (x < y);
}

/* "ranks 0-2, 5 and 9 more" */
static void add_ranks(struct line *l, const int32_t *ended, uint32_t n)
{
	int32_t ranks[NCCLSVC_FAILURE_RANKS];
	const uint32_t shown = n < NCCLSVC_FAILURE_RANKS ? n : NCCLSVC_FAILURE_RANKS;
	memcpy(ranks, ended, shown * sizeof(*ranks));
	qsort(ranks, shown, sizeof(*ranks), by_rank);
	add(l, n == 1 ? "rank" : "ranks");
	for (uint32_t i = 0; i < shown;) {
		uint32_t end = i;
		while (end + 1 < shown && ranks[end + 1] == ranks[end] + 1)
			end++;
		add(l, end > i ? "%s%d-%d" : "%s%d", i ? ", " : " ", ranks[i], ranks[end]);
		i = end + 1;
	}
	if (n > shown)
		add(l, " and %u more", n - shown);
}

static void tell_followed(struct failure *f)
{
	const ncclsvc_failure_info *i = &f->info;
	struct log_event e = {.id = ID_FOLLOWED};
	struct line l = {.at = 0};
	add(&l, "communicator %s (user %u): after failure %llu", i->label, i->uid,
	    (unsigned long long)i->failure);
	if (i->ended) {
		add(&l, ", ");
		add_ranks(&l, i->ended_ranks, i->ended);
		add(&l, " ended, too");
	}
	if (i->comms)
		add(&l, "%s it also ended the epochs of %u other communicator%s",
		    i->ended ? ";" : ",", i->comms, i->comms == 1 ? "" : "s");
	log_field(&e, "NCCLSVC_FAILURE=%llu", (unsigned long long)i->failure);
	log_field(&e, "NCCLSVC_CAUSE=%llu", (unsigned long long)i->failure);
	log_field(&e, "NCCLSVC_ENDED=%u", i->ended);
	log_field(&e, "NCCLSVC_COMMS=%u", i->comms);
	log_event(LOG_LEVEL_INFO, &e, l.text);
}

static uint64_t succeeded(const struct client *c)
{
	return atomic_load_explicit(&c->counts.completed, memory_order_relaxed) -
	       atomic_load_explicit(&c->counts.failed, memory_order_relaxed);
}

/* Operations that were on their way succeed for a moment. */
static void settle(struct comms *s)
{
	for (struct client *c = s->sessions->clients; c; c = c->next) {
		if (!c->failure || c->failure_settled)
			continue;
		c->failure_done = succeeded(c);
		c->failure_settled = true;
	}
}

static void on_followed(uv_timer_t *timer)
{
	struct comms *s = timer->data;
	settle(s);
	for (struct failure *f = s->failures.all; f; f = f->hh.next) {
		const bool new = f->told_ended != f->info.ended || f->told_comms != f->info.comms;
		if (f->logged && new)
			tell_followed(f);
		f->told_ended = f->info.ended;
		f->told_comms = f->info.comms;
	}
}

static void look_later(struct comms *s)
{
	if (!s->loop->closing && !uv_is_active((uv_handle_t *)&s->followed))
		uv_timer_start(&s->followed, on_followed, FOLLOWED_MS, 0);
}

/* Of the failure's own communicator, the rank is named. */
static void follow(struct communicator *m, struct failure *root, int32_t rank)
{
	struct comms *s = m->comms;
	ncclsvc_failure_info *i = &root->info;
	const int32_t pid = m->members[rank].pid;
	if (i->comm != m->uid) {
		i->comms++;
	} else if (rank != i->rank || pid != i->pid) {
		if (i->ended < NCCLSVC_FAILURE_RANKS) {
			i->ended_ranks[i->ended] = rank;
			i->ended_pids[i->ended] = pid;
		}
		i->ended++;
	}
	failures_changed(&s->failures, root);
	look_later(s);
}

static bool follows_failure(const struct client *c)
{
	return c->failure && clock_now() - c->failure_ns < FOLLOWS_NS &&
	       (!c->failure_settled || succeeded(c) == c->failure_done);
}

void report_ending(struct communicator *m, const struct client *c, int32_t rank,
		   struct ending ending)
{
	ending.follows = follows_failure(c);
	m->members[rank].ending = ending;
	if (ending.follows && !m->failure) {
		m->failure = c->failure;
		m->failure_ns = c->failure_ns;
	}
}

void report_ended_later(struct communicator *m, int32_t rank)
{
	struct failure *root = recent_failure(m);
	if (root)
		follow(m, root, rank);
}

/* ---- In words ---- */

/* "; rank 3 is pid 7, on gpu1, on node 2 (host)" */
static void add_place(struct line *l, const ncclsvc_failure_info *i)
{
	if (i->rank < 0)
		return;
	add(l, "; rank %d is pid %d", i->rank, i->pid);
	if (i->device >= 0)
		add(l, ", on gpu%d", i->device);
	if (i->node >= 0)
		add(l, ", on node %d (%s)", i->node, i->host);
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
	if (f && !i->cause) {
		mark_members(m, f);
		look_later(s);
		s->last_failure = *st;
		s->last_failure.done_ns = f->noted_ns;
		s->last_failure_comm = m->uid;
	}
	if (!may_write(m->account))
		return;
	struct log_event e = {.id = message_id(i->kind)};
	add_fields(&e, f ? &f->info : i);
	add(&l, "communicator %s (id %llu, user %u): %s", m->label, (unsigned long long)m->uid,
	    m->account->uid, i->text);
	if (i->kind != NCCLSVC_FAILURE_REQUEST) {
		add_place(&l, i);
		add(&l, "%s", advice(i->result));
	}
	add(&l, "%s", more);
	log_event(LOG_LEVEL_WARNING, &e, l.text);
	if (f)
		f->logged = true;
}

void report_tasks(struct communicator *m, const ncclsvc_status *st, unsigned op, int32_t rank,
		  uint64_t seq)
{
	char sentence[384];
	ncclsvc_failure_info i = info_of(m, NCCLSVC_FAILURE_TASK, st);
	i.op = op;
	i.seq = seq;
	snprintf(i.text, sizeof(i.text), "%s #%llu of rank %d: %s", svc_op_name(op),
		 (unsigned long long)seq, rank,
		 svc_status_sentence(st, sentence, sizeof(sentence)));
	if (st->result != NCCLSVC_CANCELLED)
		report(m, &i, st, "");
	else if (may_write(m->account))
		log_info("communicator %s (id %llu, user %u): %s", m->label,
			 (unsigned long long)m->uid, m->account->uid, i.text);
}

static uint64_t load(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Tasks of the members that are left. */
static uint64_t pending(const struct communicator *m, int32_t gone)
{
	uint64_t n = 0;
	for (uint32_t k = 0; m->progress && k < m->nranks; k++)
		if ((int32_t)k != gone && comm_alive(&m->members[k]))
			n += load(&m->progress[k].submitted) - load(&m->progress[k].completed);
	return n;
}

/* Nobody has lost anything, and nothing is wrong with the rank. */
static bool is_in_good_order(const ncclsvc_status *st, uint64_t waiting)
{
	if (waiting || st->result != NCCLSVC_PEER_GONE || st->field == NCCLSVC_FIELD_NODE)
		return false;
	return st->ending != NCCLSVC_ENDED_KILLED && st->ending != NCCLSVC_ENDED_NO_MEMORY &&
	       st->ending != NCCLSVC_ENDED_DISCONNECTED &&
	       !(st->ending == NCCLSVC_ENDED_EXITED && st->ending_code > 0);
}

void report_epoch(struct communicator *m, const ncclsvc_status *st)
{
	char ending[SVC_ENDING_BYTES], sentence[384];
	const uint64_t waiting = pending(m, st->rank_a);
	struct failure *root = root_of(m, st);
	if (root) {
		follow(m, root, st->rank_a);
		mark_members(m, root);
		return;
	}
	if (is_in_good_order(st, waiting)) {
		if (may_write(m->account))
			log_info("communicator %s (id %llu, user %u): rank %d (pid %d) %s; no task "
				 "was pending",
				 m->label, (unsigned long long)m->uid, m->account->uid, st->rank_a,
				 st->pid_a, svc_ending_text(st->ending, st->ending_code, ending));
		return;
	}
	ncclsvc_failure_info i = info_of(m, NCCLSVC_FAILURE_EPOCH, st);
	const bool told = st->rank_a >= 0 && m->members[st->rank_a].ending.follows;
	i.pending = waiting;
	snprintf(i.text, sizeof(i.text), "%llu pending task%s: %s%s", (unsigned long long)waiting,
		 waiting == 1 ? " fails" : "s fail",
		 svc_status_sentence(st, sentence, sizeof(sentence)),
		 told ? " (after a failure on another communicator)" : "");
	report(m, &i, st, "");
}

void report_kernels(struct communicator *m, const ncclsvc_status *st, const char *what)
{
	char sentence[384];
	ncclsvc_failure_info i = info_of(m, NCCLSVC_FAILURE_KERNEL, st);
	snprintf(i.text, sizeof(i.text), "%s: %s", what,
		 svc_status_sentence(st, sentence, sizeof(sentence)));
	report(m, &i, st,
	       st->result == NCCLSVC_PEER_GONE /* it is in that one's advice */
		       ? ""
		       : *advice(st->result) ? " The epoch is over: all members must join again."
					     : ". The epoch is over: all members must join again.");
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
		      s->cluster && s->cluster->n > 1 ? (int32_t)s->cluster->me : -1);
	s->followed.data = s;
	uv_timer_init(s->loop->uv, &s->followed);
	s->loop->handles++;
}

static void on_timer_closed(uv_handle_t *handle)
{
	struct comms *s = handle->data;
	s->loop->handles--;
}

void report_close(struct comms *s)
{
	on_followed(&s->followed);
	uv_close((uv_handle_t *)&s->followed, on_timer_closed);
}

void report_free(struct comms *s)
{
	failures_close(&s->failures);
}
