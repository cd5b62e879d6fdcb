/* SPDX-License-Identifier: Apache-2.0
 *
 * Physical NCCL communicators: made by the workers of their GPUs, and kept in a pool when nobody
 * needs them, for the next communicator on the same GPUs in the same order. One that may hang is
 * broken off on every GPU at once and never used again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "comm.h"
#include "gpu.h"
#include "log.h"

#define LEAVING_NS	     UINT64_C(100000000) /* for the engine to be through with who has left */
#define INIT_WITHOUT_PEER_NS UINT64_C(5000000000) /* for NCCL to notice by itself */

static struct gpu *gpu_of(const struct physical *p, uint32_t rank)
{
	return p->server->gpus[p->devices[rank]];
}

static void count(struct server *s)
{
	for (uint32_t i = 0; i < s->ngpus; i++)
		s->gpus[i]->info.nccl_comms = s->gpus[i]->info.nccl_comms_idle = 0;
	struct physical *p;
	DL_FOREACH (s->physicals, p)
		for (uint32_t k = 0; k < p->n; k++) {
			gpu_of(p, k)->info.nccl_comms += p->ready;
			gpu_of(p, k)->info.nccl_comms_idle += p->ready && !p->user && !p->aborting;
		}
}

static void forget(struct physical *p)
{
	struct server *s = p->server;
	s->lanes[p->lane] = false;
	DL_DELETE(s->physicals, p);
	free(p);
	count(s);
}

/* ---- Making ---- */

static void settle(struct physical *p)
{
	struct communicator *m = p->user;
	if (p->bad) {
		char text[SVC_TEXT_BYTES];
		snprintf(text, sizeof(text), "%s", p->text);
		if (m)
			m->physical = NULL;
		p->user = NULL;
		int32_t result = p->result;
		physical_abort(p, NULL);
		if (m)
			comm_physical_ready(m, result, text);
		return;
	}
	p->ready = true;
	p->idle_ns = server_now();
	count(p->server);
	if (m)
		comm_physical_ready(m, NCCLSVC_OK, NULL);
	else
		server_deadline(p->server, p->idle_ns);
}

/* That a worker is lost is more than what the others then say. */
static void note_failure(struct physical *p, const struct gpu *g,
			 const struct worker_message *answer)
{
	p->bad = true;
	if (p->result == NCCLSVC_WORKER_LOST || (p->result && answer))
		return;
	p->result = answer ? NCCLSVC_NCCL_ERROR : NCCLSVC_WORKER_LOST;
	snprintf(p->text, sizeof(p->text), "gpu%d: %.200s", g->index,
		 answer ? answer->text : "its worker was lost while NCCL made the communicator");
}

/* Lets a communicator of workers register a window, if no other does, nor one is being made. */
static void give_turn(struct server *s)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp) {
		if (s->window_turn || s->making || s->closing)
			return;
		if (!m->window_epoch)
			continue;
		s->window_turn = true;
		server_command(s, &(struct command){.kind = COMMAND_WINDOW_TURN,
						    .window = {m->slot, m->window_epoch}});
		m->window_epoch = 0;
	}
}

static void on_made(struct gpu *g, void *arg, const struct worker_message *answer, int fd)
{
	struct physical *p = arg;
	struct server *s = p->server;
	(void)fd;
	p->waiting--;
	if (!answer || answer->result)
		note_failure(p, g, answer);
	if (p->waiting)
		return;
	s->making--;
	settle(p);
	give_turn(s);
}

static void make(struct physical *p)
{
	const uint32_t n = p->n; /* the last answer may come at once, and end p */
	p->waiting = n;
	p->server->making++;
	for (uint32_t k = 0; k < n; k++) {
		struct worker_message m = {
			.kind = WORKER_COMM_INIT,
			.comm = {.lane = p->lane, .nranks = (int32_t)n, .rank = (int32_t)k}};
		memcpy(m.comm.id, p->id, sizeof(m.comm.id));
		gpu_ask(gpu_of(p, k), &m, -1, on_made, p, gpu_patience_ns(p->server));
	}
}

void physical_window_wanted(struct server *s, uint32_t comm, uint32_t epoch)
{
	struct communicator *m = s->comm_by_slot[comm];
	if (m)
		m->window_epoch = epoch;
	give_turn(s);
}

static struct physical *find_deferred(const struct server *s)
{
	struct physical *p = s->physicals;
	while (p && !p->deferred)
		p = p->next;
	return p;
}

void physical_window_over(struct server *s)
{
	struct physical *p;
	s->window_turn = false;
	while ((p = find_deferred(s))) { /* one that ends may end others */
		p->deferred = false;
		p->waiting--;
		if (p->bad)
			settle(p);
		else
			make(p);
	}
	give_turn(s);
}

static void on_id(struct gpu *g, void *arg, const struct worker_message *answer, int fd)
{
	struct physical *p = arg;
	(void)fd;
	p->waiting--;
	if (!answer || answer->result)
		note_failure(p, g, answer);
	if (p->bad) {
		settle(p);
		return;
	}
	memcpy(p->id, answer->comm.id, sizeof(p->id));
	p->deferred = p->server->window_turn;
	if (p->deferred)
		p->waiting = 1;
	else
		make(p);
}

static bool fits(const struct physical *p, const struct communicator *m)
{
	if (!p->ready || p->bad || p->aborting || p->n != m->nranks)
		return false;
	for (uint32_t k = 0; k < p->n; k++)
		if (p->devices[k] != m->seats[k].device)
			return false;
	return true;
}

uint64_t physical_due(const struct server *s, const struct communicator *m)
{
	const struct physical *p;
	uint64_t due = 0;
	DL_FOREACH (s->physicals, p) {
		const struct communicator *user = p->user;
		if (!fits(p, m) || user == m)
			continue;
		if (!user)
			return 0;
		if (user->state == NCCLSVC_COMM_IDLE && user->idle_ns + LEAVING_NS > server_now())
			due = earlier(due, user->idle_ns + LEAVING_NS);
	}
	return due;
}

void physical_acquire(struct server *s, struct communicator *m)
{
	struct physical *p;
	DL_FOREACH (s->physicals, p)
		if (!p->user && fits(p, m)) {
			p->user = m;
			m->physical = p;
			gpu_redops_clear(p);
			count(s);
			return;
		}
	uint32_t lane = 0;
	while (lane < WORKER_LANES && s->lanes[lane])
		lane++;
	p = lane < WORKER_LANES ? calloc(1, sizeof(*p) + m->nranks * sizeof(p->devices[0])) : NULL;
	if (!p) {
		comm_physical_ready(m, NCCLSVC_LIMIT,
				    "the daemon has its limit of NCCL communicators");
		return;
	}
	s->lanes[lane] = true;
	p->server = s;
	p->user = m;
	p->lane = lane;
	p->n = m->nranks;
	for (uint32_t k = 0; k < p->n; k++)
		p->devices[k] = m->seats[k].device;
	DL_APPEND(s->physicals, p);
	m->physical = p;
	p->waiting = 1;
	gpu_ask(gpu_of(p, 0), &(struct worker_message){.kind = WORKER_UNIQUE_ID}, -1, on_id, p,
		gpu_patience_ns(s));
}

/* ---- Ending ---- */

static void on_aborted(struct gpu *g, void *arg, const struct worker_message *answer, int fd)
{
	struct physical *p = arg;
	(void)g;
	(void)answer; /* a worker that is gone is as good */
	(void)fd;
	if (--p->waiting)
		return;
	/* Nothing of it touches anybody's memory any more. */
	if (p->user && p->user->running)
		server_command(p->server, &(struct command){.kind = COMMAND_EPOCH_DEAD,
							    .epoch_end = {.comm = p->user->slot}});
	p->aborting = false;
	p->ready = false;
	if (!p->user)
		forget(p);
}

/* A lane cannot end while it waits for a trainer's input, and that may be busy for long. */
static uint64_t release_ns(const struct server *s)
{
	return gpu_patience_ns(s) / 2;
}

void physical_abort(struct physical *p, const char *why)
{
	if (p->aborting || p->waiting)
		return; /* while it is made: the makers' answers come first */
	if (why && !p->server->closing)
		log_warning("NCCL communicator %u is broken off: %s", p->lane, why);
	const uint32_t n = p->n; /* the last answer may come at once, and end p */
	p->bad = p->aborting = true;
	p->released = false;
	p->abort_ns = server_now();
	p->waiting = n;
	server_deadline(p->server, p->abort_ns + release_ns(p->server));
	for (uint32_t k = 0; k < n; k++) {
		struct worker_message m = {.kind = WORKER_COMM_ABORT,
					   .comm = {.lane = p->lane, .hopeless = p->hopeless}};
		gpu_ask(gpu_of(p, k), &m, -1, on_aborted, p, gpu_patience_ns(p->server));
	}
}

void physical_release(struct communicator *m)
{
	struct physical *p = m->physical;
	m->physical = NULL;
	if (!p)
		return;
	p->user = NULL;
	p->idle_ns = server_now();
	if (p->bad && !p->aborting && !p->waiting) {
		if (p->ready)
			physical_abort(p, NULL);
		else
			forget(p);
		return;
	}
	count(p->server);
	server_deadline(p->server, p->idle_ns);
}

static bool uses(const struct physical *p, int32_t device)
{
	for (uint32_t k = 0; k < p->n; k++)
		if (p->devices[k] == device)
			return true;
	return false;
}

static int32_t rank_on(const struct physical *p, int32_t device)
{
	for (uint32_t k = 0; k < p->n; k++)
		if (p->devices[k] == device)
			return (int32_t)k;
	return -1;
}

/* Ends the epoch that it is used in, and the communicator itself. */
static void break_off(struct physical *p, int result, int32_t device, const char *why)
{
	struct communicator *m = p->user;
	if (m && m->running) {
		comm_gpu_lost(m, result, rank_on(p, device));
	} else if (m) {
		m->physical = NULL;
		p->user = NULL;
	}
	p->hopeless = true;
	physical_abort(p, why);
}

void physical_gpu_lost(struct server *s, const struct gpu *g)
{
	struct physical *p, *tmp;
	DL_FOREACH_SAFE (s->physicals, p, tmp) {
		if (!uses(p, g->index) || p->aborting)
			continue;
		if (p->waiting) {
			/* Its own answer will not come, and NCCL may wait for it for ever. */
			note_failure(p, g, NULL);
			for (uint32_t k = 0; k < p->n; k++)
				gpu_hurry(gpu_of(p, k), p, INIT_WITHOUT_PEER_NS);
			continue;
		}
		break_off(p, NCCLSVC_WORKER_LOST, g->index, "a worker is lost");
	}
}

void physical_lane_failed(struct server *s, struct gpu *g, uint32_t lane, const char *text)
{
	struct physical *p;
	DL_FOREACH (s->physicals, p) {
		if (p->lane != lane || p->aborting || p->waiting)
			continue;
		break_off(p, NCCLSVC_NCCL_ERROR, g->index, text);
		return;
	}
}

/* Returns the next deadline. */
static uint64_t release_inputs(struct physical *p, uint64_t now)
{
	uint64_t at = p->abort_ns + release_ns(p->server);
	if (p->released || !p->user || !p->user->running)
		return 0;
	if (at > now)
		return at;
	p->released = true;
	server_command(p->server, &(struct command){.kind = COMMAND_EPOCH_RELEASE,
						    .epoch_end = {.comm = p->user->slot}});
	return 0;
}

uint64_t physical_expire(struct server *s, uint64_t now)
{
	uint64_t next = 0;
	struct physical *p, *tmp;
	DL_FOREACH_SAFE (s->physicals, p, tmp) {
		if (p->aborting)
			next = earlier(next, release_inputs(p, now));
		if (p->user || p->waiting || p->aborting || !p->ready)
			continue;
		uint64_t end = p->idle_ns + (uint64_t)s->config->comm_idle_seconds * 1000000000;
		if (end > now) {
			next = earlier(next, end);
			continue;
		}
		for (uint32_t k = 0; k < p->n; k++)
			gpu_tell(gpu_of(p, k), &(struct worker_message){.kind = WORKER_COMM_DESTROY,
									.comm.lane = p->lane});
		forget(p);
	}
	return next;
}

void physical_free_all(struct server *s)
{
	while (s->physicals)
		forget(s->physicals);
}
