/* SPDX-License-Identifier: Apache-2.0 */
#include "consequences.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/line.h"
#include "base/log.h"
#include "base/timings.h"
#include "channel/cluster.h"
#include "comm.h"
#include "comms.h"
#include "proto/names.h"
#include "report.h"

#define TOGETHER 16 /* of the latest failures are looked at */

#define ID_FOLLOWED "d2c1b0a9f8e74d6c8b5a49382716f5e4" /* as in scripts/systemd/ncclsvc.catalog */

int32_t consequences_node(const struct communicator *m, const struct member *member)
{
	const struct cluster *c = m->comms->cluster;
	if (!c || c->n < 2)
		return -1;
	if (comm_alive(member))
		return (int32_t)c->me;
	/* Of one that has left, only the epoch still knows. */
	if (member->node < 0 && m->begun && m->begun->epoch == m->epoch)
		return (int32_t)m->begun->members[member - m->members].node;
	return member->node < 0 ? (int32_t)c->me : member->node;
}

static struct failure *recent_failure(const struct communicator *m)
{
	if (!m->failure || clock_now() - m->failure_ns >= FAILURE_FOLLOWS_NS)
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
	const int32_t node = consequences_node(m, member);
	const uint64_t now = clock_now();
	for (uint64_t n = all->last, seen = 0; n && seen < TOGETHER; n--, seen++) {
		struct failure *f = failures_find(all, n);
		if (f && f->info.kind == NCCLSVC_FAILURE_EPOCH && f->info.pid == member->pid &&
		    f->info.node == node && f->info.uid == m->account->tenant.uid && f->noted_ns &&
		    now - f->noted_ns < FAILURE_TOGETHER_NS)
			return f;
	}
	return NULL;
}

struct failure *consequences_root(const struct communicator *m, const ncclsvc_status *st)
{
	if (st->rank_a < 0 || is_own_cause(st))
		return NULL;
	struct failure *root = m->members[st->rank_a].ending.follows ? recent_failure(m) : NULL;
	return root ? root : ended_together(m, st->rank_a);
}

const ncclsvc_status *consequences_first(const struct communicator *m, const struct failure *root)
{
	const bool same = root && root->info.comm == m->uid && root->info.epoch == m->epoch;
	return same && root->status.result ? &root->status : NULL;
}

const ncclsvc_status *consequences_pending(const struct communicator *m, const ncclsvc_status *why)
{
	const struct failure *f = failures_find(&m->comms->failures, m->failure);
	const ncclsvc_status *first = consequences_first(m, f);
	return first && f->info.kind == NCCLSVC_FAILURE_EPOCH ? first : why;
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
	line_add(l, n == 1 ? "rank" : "ranks");
	for (uint32_t i = 0; i < shown;) {
		uint32_t end = i;
		while (end + 1 < shown && ranks[end + 1] == ranks[end] + 1)
			end++;
		line_add(l, end > i ? "%s%d-%d" : "%s%d", i ? ", " : " ", ranks[i], ranks[end]);
		i = end + 1;
	}
	if (n > shown)
		line_add(l, " and %u more", n - shown);
}

static void log_followed(struct failure *f)
{
	const ncclsvc_failure_info *i = &f->info;
	struct log_event e = {.id = ID_FOLLOWED};
	struct line l = {.at = 0};
	line_add(&l, "communicator %s (user %u): after failure %llu", i->label, i->uid,
		 (unsigned long long)i->failure);
	if (i->ended) {
		line_add(&l, ", ");
		add_ranks(&l, i->ended_ranks, i->ended);
		line_add(&l, " ended, too");
	}
	if (i->comms)
		line_add(&l, "%s it also ended the epochs of %u other communicator%s",
			 i->ended ? ";" : ",", i->comms, i->comms == 1 ? "" : "s");
	log_field(&e, "NCCLSVC_FAILURE=%llu", (unsigned long long)i->failure);
	log_field(&e, "NCCLSVC_CAUSE=%llu", (unsigned long long)i->failure);
	log_field(&e, "NCCLSVC_ENDED_UNKNOWN=%u", i->ended);
	log_field(&e, "NCCLSVC_COMMS=%u", i->comms);
	log_event(LOG_LEVEL_INFO, &e, l.text);
}

static uint64_t succeeded(const struct session *c)
{
	return atomic_load_explicit(&c->counts.completed, memory_order_relaxed) -
	       atomic_load_explicit(&c->counts.failed, memory_order_relaxed);
}

/* Operations that were on their way succeed for a moment. */
static void settle(struct comms *s)
{
	for (struct session *c = s->sessions->all; c; c = c->next) {
		if (!c->failure || c->failure_settled)
			continue;
		c->failure_done = succeeded(c);
		c->failure_settled = true;
	}
}

/* By now its parent has reaped the process. */
static void look_again(struct comms *s, struct failure *f)
{
	char ending[SVC_ENDING_BYTES];
	ncclsvc_failure_info *i = &f->info;
	const struct ending e = ending_by_pidfd(f->pidfd);
	close(f->pidfd);
	f->pidfd = -1;
	if (ending_is_vague(&e))
		return;
	i->ending = e.how;
	i->ending_code = e.code;
	const size_t n = strlen(i->text);
	const char *words = svc_ending_text(e.how, e.code, ending);
	snprintf(i->text + n, sizeof(i->text) - n, "; pid %d %s", i->pid, words);
	failures_changed(&s->failures, f);
	if (f->logged)
		log_info("communicator %s (user %u): failure %llu: rank %d (pid %d) %s", i->label,
			 i->uid, (unsigned long long)i->failure, i->rank, i->pid, words);
}

uint64_t consequences_log(struct comms *s, uint64_t now)
{
	if (!s->gathered_ns || now < s->gathered_ns)
		return s->gathered_ns;
	s->gathered_ns = 0;
	settle(s);
	for (struct failure *f = s->failures.all; f; f = f->hh.next) {
		if (f->pidfd >= 0)
			look_again(s, f);
		const bool new =
			f->logged_ended != f->info.ended || f->logged_comms != f->info.comms;
		if (f->logged && new)
			log_followed(f);
		f->logged_ended = f->info.ended;
		f->logged_comms = f->info.comms;
	}
	return 0;
}

static void log_later(struct comms *s)
{
	if (s->gathered_ns)
		return;
	s->gathered_ns = clock_now() + FAILURE_GATHER_NS;
	loop_deadline(s->loop, s->gathered_ns);
}

void consequences_tell(struct communicator *m, const struct failure *f, uint32_t rank)
{
	struct session *c = m->members[rank].session;
	if (!c)
		return;
	c->failure = f->info.failure;
	c->failure_ns = clock_now();
	c->failure_settled = false;
	log_later(m->comms);
}

void consequences_begin(struct communicator *m, const struct failure *f)
{
	m->failure = f->info.failure;
	m->failure_ns = clock_now();
	for (uint32_t k = 0; k < m->nranks; k++)
		consequences_tell(m, f, k);
}

/* Of the failure's own communicator, the rank is named. */
void consequences_add(struct communicator *m, struct failure *root, int32_t rank)
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
	log_later(s);
}

static bool follows_failure(const struct session *c)
{
	return c->failure && clock_now() - c->failure_ns < FAILURE_FOLLOWS_NS &&
	       (!c->failure_settled || succeeded(c) == c->failure_done);
}

void report_ending(struct communicator *m, const struct session *c, int32_t rank,
		   struct ending ending)
{
	ending.follows = follows_failure(c);
	m->members[rank].ending = ending;
	if (ending.follows && !m->failure) {
		m->failure = c->failure;
		m->failure_ns = c->failure_ns;
	}
}

void report_ended(struct communicator *m, const struct session *c)
{
	struct failure *f = failures_find(&m->comms->failures, m->failure);
	if (f && f->logged && f->pidfd < 0 && f->info.kind == NCCLSVC_FAILURE_EPOCH &&
	    f->info.pid == c->pid && c->process.fd >= 0 && ending_is_vague(&c->ending))
		f->pidfd = fcntl(c->process.fd, F_DUPFD_CLOEXEC, 0);
}

void report_ended_later(struct communicator *m, int32_t rank)
{
	struct failure *root = recent_failure(m);
	if (root)
		consequences_add(m, root, rank);
}
