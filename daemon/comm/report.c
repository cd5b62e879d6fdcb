/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/timings.h"
#include "channel/cluster.h"
#include "comm.h"
#include "comms.h"
#include "names.h"

#define USER_BURST (LOG_BURST / 2)

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
	char text[512];
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

/* "; rank 3 is pid 7, on gpu1, on node 2 (host)" */
static void add_place(struct line *l, const struct communicator *m, int32_t rank)
{
	const struct cluster *c = m->comms->cluster;
	if (rank < 0 || (uint32_t)rank >= m->nranks)
		return;
	const struct member *member = &m->members[rank];
	add(l, "; rank %d is pid %d", rank, member->pid);
	if (member->device >= 0)
		add(l, ", on gpu%d", member->device);
	if (c && c->n > 1) {
		const uint32_t node =
			comm_alive(member) || member->node < 0 ? c->me : (uint32_t)member->node;
		add(l, ", on node %u (%s)", node, c->nodes[node].info.host);
	}
}

/* The rank that the operator should look at; -1: none in particular. */
static int32_t suspect(const ncclsvc_status *st)
{
	if (st->result == NCCLSVC_TIMEOUT || st->result == NCCLSVC_MISMATCH)
		return st->missing_count ? st->missing[0] : -1;
	return st->rank_a;
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

static void begin(struct line *l, const struct communicator *m)
{
	add(l, "communicator %s (id %llu, user %u): ", m->label, (unsigned long long)m->uid,
	    m->account->uid);
}

static void add_status(struct line *l, const struct communicator *m, const ncclsvc_status *st)
{
	char sentence[384];
	add(l, "%s", svc_status_sentence(st, sentence, sizeof(sentence)));
	add_place(l, m, suspect(st));
	add(l, "%s", advice(st->result));
}

void report_tasks(struct communicator *m, const ncclsvc_status *st, unsigned op, int32_t rank,
		  uint64_t seq)
{
	struct line l = {.at = 0};
	if (!may_write(m->account))
		return;
	begin(&l, m);
	add(&l, "%s #%llu of rank %d: ", svc_op_name(op), (unsigned long long)seq, rank);
	add_status(&l, m, st);
	if (st->result == NCCLSVC_CANCELLED)
		log_info("%s", l.text);
	else
		log_warning("%s", l.text);
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

void report_epoch(struct communicator *m, const ncclsvc_status *st)
{
	struct line l = {.at = 0};
	const uint64_t waiting = pending(m, st->rank_a);
	if (!may_write(m->account))
		return;
	begin(&l, m);
	if (st->result == NCCLSVC_PEER_GONE && st->field != NCCLSVC_FIELD_NODE && !waiting) {
		add(&l, "rank %d (pid %d) has ended or aborted, and no task was pending",
		    st->rank_a, st->pid_a);
		log_info("%s", l.text);
		return;
	}
	add(&l, "%llu pending tasks fail: ", (unsigned long long)waiting);
	add_status(&l, m, st);
	log_warning("%s", l.text);
}

void report_kernels(struct communicator *m, const ncclsvc_status *st, const char *sentence)
{
	struct line l = {.at = 0};
	if (!may_write(m->account))
		return;
	begin(&l, m);
	add(&l, "%s: ", sentence);
	add_status(&l, m, st);
	if (st->result != NCCLSVC_PEER_GONE) /* it is in that one's advice */
		add(&l, "%s The epoch is over: all members must join again.",
		    *advice(st->result) ? "" : ".");
	log_warning("%s", l.text);
}

void report_request(struct communicator *m, const char *request, int result, const char *text)
{
	if (may_write(m->account))
		log_warning("communicator %s (id %llu, user %u): %s: %s: %s", m->label,
			    (unsigned long long)m->uid, m->account->uid, request,
			    svc_result_name(result), text);
}
