/* SPDX-License-Identifier: Apache-2.0
 * Replaces daemon/session: sessions of trainers, their requests, and their view of communicators
 * after the answers. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/timings.h"
#include "comm/comm.h"
#include "comm/remote.h"
#include "comm/requests.h"
#include "proto/names.h"
#include "simulation.h"

#define USER	       1000
/* After a deadline, the answer may wait for another node twice: for a SPLIT and for its parts. */
#define ANSWER_LATE_NS (2 * NODE_ANSWER_NS + S)

static int32_t last_pid;

struct wanted wanted[IDS_MAX];
uint32_t nwanted;

void trainers_begin(void)
{
	last_pid = 100;
}

static struct trainer *of(struct session *c)
{
	return (struct trainer *)((char *)c - offsetof(struct trainer, session));
}

static struct comms *comms_of(const struct trainer *t)
{
	return &nodes[t->node].comms;
}

/* ---- Requests ---- */

static struct request *find(const struct trainer *t, uint32_t request_id)
{
	struct request *r;
	DL_SEARCH_SCALAR(t->requests, r, request_id, request_id);
	return r;
}

static struct request *ask(struct trainer *t, enum asking kind, const struct belief *of_what,
			   uint32_t handle, uint64_t timeout)
{
	remote_handle_own(comms_of(t)); /* as in request_handle; the epoch may begin */
	struct request *r = calloc(1, sizeof(*r));
	if (!r)
		abort();
	r->kind = kind;
	r->request_id = ++t->last_request_id;
	r->handle = handle;
	r->nranks = of_what->nranks;
	r->rank = of_what->rank;
	r->epoch = of_what->epoch;
	r->cuda = of_what->cuda;
	memcpy(r->id, of_what->id, sizeof(r->id));
	r->since = clock_now();
	r->deadline = timeout ? r->since + timeout : 0;
	DL_APPEND(t->requests, r);
	return r;
}

struct request *trainer_request(const struct trainer *t, enum asking kind, const uint8_t *id,
				uint32_t rank)
{
	struct request *r;
	DL_FOREACH (t->requests, r)
		if (r->kind == kind && r->rank == rank && !memcmp(r->id, id, sizeof(r->id)))
			return r;
	return NULL;
}

struct trainer *holder_of(const uint8_t *id, uint32_t rank, struct belief **b)
{
	*b = NULL;
	for (uint32_t n = 0; n < nnodes; n++)
		for (uint32_t k = 0; nodes[n].alive && k < TRAINERS_MAX; k++) {
			struct trainer *t = nodes[n].trainers[k];
			for (uint32_t h = 0; t && h < HANDLES_MAX; h++)
				if (t->beliefs[h].held && t->beliefs[h].rank == rank &&
				    !memcmp(t->beliefs[h].id, id, NCCLSVC_ID_BYTES)) {
					*b = &t->beliefs[h];
					return t;
				}
			if (t && trainer_request(t, ASK_JOIN, id, rank))
				return t;
		}
	return NULL;
}

struct trainer *trainer_of_pid(int32_t pid)
{
	for (uint32_t n = 0; n < nnodes; n++)
		for (uint32_t k = 0; nodes[n].alive && k < TRAINERS_MAX; k++)
			if (nodes[n].trainers[k] && nodes[n].trainers[k]->session.pid == pid)
				return nodes[n].trainers[k];
	return NULL;
}

bool trainer_is_in(const struct trainer *t, const uint8_t *id, uint32_t epoch, uint32_t rank)
{
	for (uint32_t h = 0; h < HANDLES_MAX; h++) {
		const struct belief *b = &t->beliefs[h];
		if (b->held && !b->broken && b->epoch == epoch && b->rank == rank &&
		    !memcmp(b->id, id, sizeof(b->id)))
			return true;
	}
	return false;
}

/* ---- Answers: replaces daemon/session/session.c ---- */

static const char *asking_name(enum asking a)
{
	static const char *const names[] = {
		[ASK_JOIN] = "JOIN",   [ASK_SPLIT] = "SPLIT", [ASK_PLAN] = "PLAN_COMMIT",
		[ASK_LEAVE] = "LEAVE", [ASK_DROP] = "DROP",   [ASK_CANCEL] = "JOIN_CANCEL",
	};
	return names[a];
}

static struct request *take(struct trainer *t, uint32_t request_id, unsigned opcode)
{
	static const unsigned opcodes[] = {
		[ASK_JOIN] = SVC_JOIN,	 [ASK_SPLIT] = SVC_SPLIT,    [ASK_PLAN] = SVC_PLAN_COMMIT,
		[ASK_LEAVE] = SVC_LEAVE, [ASK_DROP] = SVC_PLAN_DROP, [ASK_CANCEL] = SVC_JOIN_CANCEL,
	};
	struct request *r = find(t, request_id);
	if (!r) {
		fail("pid %d: a reply to request %u, which is not pending", t->session.pid,
		     request_id);
		return NULL;
	}
	if (opcodes[r->kind] != opcode)
		fail("pid %d: the reply to %s has opcode %u", t->session.pid, asking_name(r->kind),
		     opcode);
	if (r->deadline && clock_now() > r->deadline + ANSWER_LATE_NS)
		fail("pid %d: %s is answered %.3f s after its deadline", t->session.pid,
		     asking_name(r->kind), (double)(clock_now() - r->deadline) / (double)S);
	DL_DELETE(t->requests, r);
	return r;
}

static void hold(struct trainer *t, uint32_t handle, bool cuda, const struct svc_join_reply *j)
{
	if (handle >= HANDLES_MAX) {
		fail("pid %d: handle %u", t->session.pid, handle);
		return;
	}
	/* An older handle of the same rank is useless: another process has held the rank since. */
	for (uint32_t h = 0; h < HANDLES_MAX; h++)
		if (t->beliefs[h].rank == (uint32_t)j->rank &&
		    !memcmp(t->beliefs[h].id, j->id, sizeof(j->id)))
			t->beliefs[h].held = false;
	struct belief *b = &t->beliefs[handle];
	*b = (struct belief){.held = true,
			     .cuda = cuda,
			     .nranks = (uint32_t)j->nranks,
			     .rank = (uint32_t)j->rank,
			     .epoch = j->epoch};
	memcpy(b->id, j->id, sizeof(b->id));
}

static void on_reply(struct trainer *t, const struct request *r, const void *body)
{
	const struct svc_join_reply *j = body;
	const struct svc_plan_reply *p = body;
	switch (r->kind) {
	case ASK_JOIN:
		hold(t, j->comm, r->cuda, j);
		check_joined(t, r, j);
		break;
	case ASK_SPLIT:
		if (j->comm)
			hold(t, j->comm, r->cuda, j);
		check_part(t, r, j);
		break;
	case ASK_PLAN:
		if (r->handle < HANDLES_MAX && t->beliefs[r->handle].held)
			t->beliefs[r->handle].plan = p->plan;
		break;
	default:
		break;
	}
}

void session_watch_process(struct session *c)
{
	c->process = (struct process){.watched = true, .pid = c->pid, .fd = -1};
}

void session_reply(struct session *c, unsigned opcode, uint32_t request_id, const void *body,
		   size_t size, const int *fds, unsigned nfds)
{
	struct trainer *t = of(c);
	(void)size;
	(void)fds;
	(void)nfds;
	struct request *r = take(t, request_id, opcode);
	if (!r)
		return;
	trace((int)t->node, "pid %d: %s of %02x%02x as rank %u is done", c->pid,
	      asking_name(r->kind), r->id[0], r->id[1], r->rank);
	on_reply(t, r, body);
	free(r);
}

void session_error(struct session *c, unsigned opcode, uint32_t request_id, int result,
		   const char *format, ...)
{
	struct trainer *t = of(c);
	char text[SVC_TEXT_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	struct request *r = take(t, request_id, opcode);
	if (!r)
		return;
	trace((int)t->node, "pid %d: %s of %02x%02x as rank %u fails: %s: %s", c->pid,
	      asking_name(r->kind), r->id[0], r->id[1], r->rank, svc_result_name(result), text);
	check_error(t, r, result, text);
	free(r);
}

bool session_wait(struct session *c)
{
	(void)c;
	return false;
}

void session_comm_event(struct session *c, const struct svc_event_comm *event)
{
	struct trainer *t = of(c);
	struct belief *b = event->comm < HANDLES_MAX ? &t->beliefs[event->comm] : NULL;
	if (!b || !b->held || b->epoch != event->epoch) {
		fail("pid %d is notified of the end of epoch %u of handle %u, but it is not in it",
		     c->pid, event->epoch, event->comm);
		return;
	}
	trace((int)t->node, "pid %d: epoch %u of %02x%02x is over: %s, rank %d, node %d", c->pid,
	      event->epoch, b->id[0], b->id[1], svc_result_name(event->reason), event->rank,
	      event->status.field == NCCLSVC_FIELD_NODE ? (int)event->status.value_a : -1);
	b->broken = true;
	b->plan = 0;
	check_event(t, b, event);
}

struct session *sessions_find(struct sessions *s, uint32_t id)
{
	struct node_state *n =
		(struct node_state *)((char *)s - offsetof(struct node_state, sessions));
	for (uint32_t k = 0; k < TRAINERS_MAX; k++)
		if (n->trainers[k] && n->trainers[k]->session.id == id)
			return &n->trainers[k]->session;
	return NULL;
}

/* ---- Actions ---- */

void trainer_join(struct trainer *t, const uint8_t *id, uint32_t nranks, uint32_t rank, bool cuda,
		  uint64_t timeout)
{
	struct belief b = {.nranks = nranks, .rank = rank, .cuda = cuda};
	struct svc_join j = {.nranks = (int32_t)nranks,
			     .rank = (int32_t)rank,
			     .device = cuda ? (int32_t)(t->place % GPUS_HERE) : SVC_DEVICE_HOST,
			     .flags = t->fail_fast ? SVC_JOIN_FAIL_FAST : 0,
			     .timeout_ns = timeout};
	memcpy(b.id, id, sizeof(b.id));
	memcpy(j.id, id, sizeof(j.id));
	trace((int)t->node, "pid %d asks: JOIN %02x%02x as rank %u of %u, timeout %.1f s",
	      t->session.pid, id[0], id[1], rank, nranks, (double)timeout / (double)S);
	const uint32_t request_id = ask(t, ASK_JOIN, &b, 0, timeout)->request_id;
	comm_join(comms_of(t), &t->session, request_id, &j);
}

void trainer_cancel(struct trainer *t, const struct request *r)
{
	struct belief b = {.rank = r->rank};
	memcpy(b.id, r->id, sizeof(b.id));
	trace((int)t->node, "pid %d asks: JOIN_CANCEL", t->session.pid);
	const uint32_t join = r->request_id;
	/* The cancel also drops a broken membership. */
	for (uint32_t h = 0; h < HANDLES_MAX; h++)
		if (t->beliefs[h].held && t->beliefs[h].rank == b.rank &&
		    !memcmp(t->beliefs[h].id, b.id, sizeof(b.id)))
			t->beliefs[h].held = false;
	const uint32_t request_id = ask(t, ASK_CANCEL, &b, 0, 0)->request_id;
	comm_join_cancel(&t->session, request_id, join);
}

void trainer_leave(struct trainer *t, uint32_t handle)
{
	struct belief *b = &t->beliefs[handle];
	trace((int)t->node, "pid %d asks: LEAVE %02x%02x, rank %u", t->session.pid, b->id[0],
	      b->id[1], b->rank);
	const uint32_t request_id = ask(t, ASK_LEAVE, b, handle, 0)->request_id;
	if (!b->held)
		return;
	b->held = false;
	comm_leave(&t->session, request_id, handle);
}

void trainer_split(struct trainer *t, uint32_t handle, int32_t colour, int32_t key,
		   uint64_t timeout)
{
	const struct svc_split s = {
		.comm = handle, .colour = colour, .key = key, .timeout_ns = timeout};
	const struct belief *b = &t->beliefs[handle];
	trace((int)t->node, "pid %d asks: SPLIT of %02x%02x, rank %u, colour %d, timeout %.1f s",
	      t->session.pid, b->id[0], b->id[1], b->rank, colour, (double)timeout / (double)S);
	struct request *r = ask(t, ASK_SPLIT, b, handle, timeout);
	r->colour = colour;
	r->key = key;
	comm_split(&t->session, r->request_id, &s);
}

/* Plans a ring; a wrong plan has a Send that no rank receives. */
static int plan_file(const struct belief *b, bool wrong, uint32_t *ntasks)
{
	struct svc_plan_task tasks[2] = {0};
	const uint32_t n = b->nranks;
	tasks[0].op = NCCLSVC_SEND;
	tasks[0].peer = (int32_t)((b->rank + 1) % n);
	tasks[1].op = NCCLSVC_RECV;
	tasks[1].peer = (int32_t)((b->rank + n - 1) % n);
	tasks[0].count = tasks[1].count = SVC_PLAN_ANY;
	*ntasks = wrong ? 1 : 2;
	const int fd = memfd_create("plan", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || write(fd, tasks, sizeof(tasks)) != sizeof(tasks) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		abort();
	return fd;
}

void trainer_commit(struct trainer *t, uint32_t handle, bool wrong, uint64_t timeout)
{
	const struct belief *b = &t->beliefs[handle];
	struct svc_plan_commit commit = {
		.comm = handle, .epoch = b->epoch, .groups = 1, .timeout_ns = timeout};
	const int fd = plan_file(b, wrong, &commit.tasks);
	trace((int)t->node, "pid %d asks: PLAN_COMMIT on %02x%02x, rank %u, %s, timeout %.1f s",
	      t->session.pid, b->id[0], b->id[1], b->rank, wrong ? "wrong" : "right",
	      (double)timeout / (double)S);
	const uint32_t request_id = ask(t, ASK_PLAN, b, handle, timeout)->request_id;
	plan_commit(&t->session, request_id, &commit, fd);
	close(fd);
}

void trainer_drop(struct trainer *t, uint32_t handle)
{
	struct belief *b = &t->beliefs[handle];
	const struct svc_plan_drop drop = {.comm = handle, .plan = b->plan};
	trace((int)t->node, "pid %d asks: PLAN_DROP on %02x%02x", t->session.pid, b->id[0],
	      b->id[1]);
	const uint32_t request_id = ask(t, ASK_DROP, b, handle, 0)->request_id;
	b->plan = 0;
	plan_terminate(comms_of(t), &t->session, request_id, &drop);
}

/* ---- Beginning and end ---- */

struct trainer *trainer_start(uint32_t node, uint32_t place)
{
	struct trainer *t = calloc(1, sizeof(*t));
	struct node_state *n = &nodes[node];
	if (!t)
		abort();
	t->node = node;
	t->place = place;
	t->session.id = ++n->sessions.last_session;
	t->session.slot = place;
	t->session.pid = ++last_pid;
	t->session.uid = USER;
	t->session.version = SVC_PROTOCOL_MAX;
	t->session.state = SESSION_OPEN;
	t->session.account = account_get(&n->accounts, &(struct tenant){.uid = USER});
	account_add(t->session.account, SHARE_SESSIONS, 1);
	n->trainers[place] = t;
	trace((int)node, "pid %d begins (session %u)", t->session.pid, t->session.id);
	return t;
}

static void release(struct trainer *t)
{
	struct request *r, *next;
	DL_FOREACH_SAFE (t->requests, r, next)
		free(r);
	free(t->session.memberships);
	free(t);
}

void trainer_die(struct trainer *t)
{
	struct node_state *n = &nodes[t->node];
	struct account *a = t->session.account;
	trace((int)t->node, "pid %d DIES", t->session.pid);
	n->trainers[t->place] = NULL;
	remote_handle_own(&n->comms);
	comm_session_gone(&n->comms, &t->session, UINT64_MAX);
	account_give(a, SHARE_SESSIONS, 1);
	account_put(a);
	release(t);
}

void trainers_end(void)
{
	for (uint32_t n = 0; n < nnodes; n++)
		for (uint32_t k = 0; k < TRAINERS_MAX; k++)
			if (nodes[n].trainers[k])
				release(nodes[n].trainers[k]);
}
