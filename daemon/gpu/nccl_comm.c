/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL communicators: created by the workers of their GPUs, and kept in a pool while unused, for
 * the next communicator on the same GPUs in the same order. One that may hang is aborted on all
 * GPUs at once and never used again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "account/account.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/timings.h"
#include "coord/coord.h"
#include "nccl_comm.h"
#include "sched/api/scheduler.h"

/* i: index of a local rank. */
static struct gpu *gpu_of(const struct nccl_comm *p, uint32_t i)
{
	return p->gpus->gpu[p->locals[i].device];
}

/* This node's rank on the GPU; -1: none. */
static int32_t rank_on(const struct nccl_comm *p, int32_t device)
{
	for (uint32_t k = 0; k < p->n; k++)
		if (p->locals[k].device == device)
			return (int32_t)p->locals[k].rank;
	return -1;
}

/* Sets each GPU's number of communicators. */
static void recount(struct gpus *s)
{
	for (uint32_t i = 0; i < s->ngpus; i++)
		s->gpu[i]->info.nccl_comms = s->gpu[i]->info.nccl_comms_idle = 0;
	struct nccl_comm *p;
	DL_FOREACH (s->nccl_comms, p)
		for (uint32_t k = 0; k < p->n; k++) {
			gpu_of(p, k)->info.nccl_comms += p->ready;
			gpu_of(p, k)->info.nccl_comms_idle += p->ready && !p->user && !p->aborting;
		}
}

/* ---- Users ---- */

static void attach(struct nccl_comm *p, const struct nccl_comm_want *w)
{
	p->user = w->user;
	p->held = w->held;
	p->account = w->account;
	*p->held = p;
}

void nccl_comm_detach(struct nccl_comm *p)
{
	if (p->held)
		*p->held = NULL;
	p->user = NULL;
	p->held = NULL;
	p->account = NULL;
}

static void forget(struct nccl_comm *p)
{
	struct gpus *s = p->gpus;
	nccl_comm_detach(p);
	s->slots[p->slot] = false;
	DL_DELETE(s->nccl_comms, p);
	free(p->creation);
	free(p);
	recount(s);
}

/* ---- Creation ---- */

/* The parts on other nodes are useless now. */
static void tell_broken(struct nccl_comm *p)
{
	if (!p->nccl_id || p->reported || p->gpus->loop->closing)
		return;
	p->reported = true;
	nccl_comm_give_back(p->gpus, p->owner, p->nccl_id,
			    p->result ? p->result : NCCLSVC_NCCL_ERROR, p->lost);
}

/* Cancels creations that have not begun. */
static void cancel_init(const struct nccl_comm *p)
{
	struct worker_message m = {.kind = WORKER_COMM_CANCEL,
				   .comm = {.slot = p->slot, .number = p->number}};
	scheduler_command(p->gpus->scheduler, &(struct command){.kind = COMMAND_MAKE_NOT,
								.creation_number = p->number});
	for (uint32_t k = 0; k < p->n; k++)
		gpu_tell(gpu_of(p, k), &m);
}

/* A rank will not come, and NCCL may wait for it forever, so its workers get less time. */
static void shorten_deadlines(struct nccl_comm *p)
{
	tell_broken(p);
	if (p->number)
		cancel_init(p);
	for (uint32_t k = 0; k < p->n; k++)
		gpu_shorten_deadline(gpu_of(p, k), p, COMM_INIT_WITHOUT_PEER_NS);
}

static void finish_creation(struct nccl_comm *p)
{
	struct communicator *m = p->user;
	if (p->bad) {
		struct gpus *s = p->gpus;
		char text[SVC_TEXT_BYTES];
		snprintf(text, sizeof(text), "%s", p->text);
		nccl_comm_detach(p);
		int32_t result = p->result;
		nccl_comm_abort(p, NULL);
		if (m)
			s->callbacks->made(m, result, text);
		s->callbacks->has_room(s->owner); /* others may have waited for this to end */
		return;
	}
	p->ready = true;
	p->idle_ns = p->used_ns = clock_now();
	loop_deadline(p->gpus->loop, p->used_ns);
	recount(p->gpus);
	if (m)
		p->gpus->callbacks->made(m, NCCLSVC_OK, NULL);
	else if (p->nccl_id)
		nccl_comm_give_back(p->gpus, p->owner, p->nccl_id, NCCLSVC_OK, -1);
	else
		loop_deadline(p->gpus->loop, p->idle_ns);
}

/* The loss of a worker matters more than the errors of the others that it causes. */
static void note_failure(struct nccl_comm *p, const struct gpu *g,
			 const struct worker_message *answer)
{
	p->bad = true;
	if (p->result == NCCLSVC_WORKER_LOST || (p->result && answer))
		return;
	p->result = answer ? NCCLSVC_NCCL_ERROR : NCCLSVC_WORKER_LOST;
	p->lost = rank_on(p, g->index);
	snprintf(p->text, sizeof(p->text), "gpu%d: %.200s", g->index,
		 answer ? answer->text : "its worker was lost while NCCL made the communicator");
}

static void on_made(struct gpu *g, void *arg, const struct worker_message *answer)
{
	struct nccl_comm *p = arg;
	p->waiting--;
	if (!answer || answer->result)
		note_failure(p, g, answer);
	if (!p->waiting)
		finish_creation(p);
	else if (p->bad)
		shorten_deadlines(p); /* on the other nodes' workers, too */
}

static void on_id(struct gpu *g, void *arg, const struct worker_message *answer)
{
	struct nccl_comm *p = arg;
	p->waiting--;
	if (!answer || answer->result)
		note_failure(p, g, answer);
	if (p->bad) {
		finish_creation(p);
		return;
	}
	memcpy(p->id, answer->comm.id, sizeof(p->id));
	nccl_comm_init(p);
}

/* the scheduler owns it from now on */
static struct creation *take_creation(struct nccl_comm *p)
{
	struct creation *k = p->creation;
	p->creation = NULL;
	k->number = p->number;
	for (uint32_t i = 0; i < p->n; i++)
		k->parts[i].generation = gpu_of(p, i)->generation;
	return k;
}

/* Tells the workers what to create; the scheduler starts the creation when its turn comes. */
void nccl_comm_init(struct nccl_comm *p)
{
	struct gpus *s = p->gpus;
	const uint32_t n = p->n; /* the last answer may come at once, and end p */
	for (uint32_t k = 0; k < n; k++)
		if (gpu_of(p, k)->sock < 0) {
			note_failure(p, gpu_of(p, k), NULL);
			finish_creation(p);
			return;
		}
	p->waiting = n;
	p->number = ++s->creations;
	scheduler_command(s->scheduler,
			  &(struct command){.kind = COMMAND_MAKE, .creation = take_creation(p)});
	for (uint32_t k = 0; k < n; k++) {
		struct worker_message m = {.kind = WORKER_COMM_INIT,
					   .comm = {.slot = p->slot,
						    .nranks = (int32_t)p->nranks,
						    .rank = (int32_t)p->locals[k].rank,
						    .number = p->number}};
		memcpy(m.comm.id, p->id, sizeof(m.comm.id));
		gpu_ask(gpu_of(p, k), &m, -1, on_made, p, gpu_patience_ns(s));
	}
}

/* Reductions created by the last user's members. */
static void clear_redops(const struct nccl_comm *p)
{
	for (uint32_t k = 0; k < p->n; k++)
		gpu_tell(gpu_of(p, k), &(struct worker_message){.kind = WORKER_REDOPS_CLEAR,
								.redop.slot = p->slot});
}

bool nccl_comm_fits(const struct nccl_comm *p, const struct nccl_comm_want *w)
{
	if (!p || !p->ready || p->bad || p->aborting || p->nranks != w->nranks || p->n != w->n)
		return false;
	for (uint32_t k = 0; k < p->n; k++)
		if (p->locals[k].rank != w->locals[k].rank ||
		    p->locals[k].device != w->locals[k].device)
			return false;
	return true;
}

bool nccl_comm_on(const struct gpu *g)
{
	const struct nccl_comm *p;
	DL_FOREACH (g->gpus->nccl_comms, p)
		if (rank_on(p, g->index) >= 0)
			return true;
	return false;
}

bool nccl_comm_stuck(const struct gpu *g)
{
	const struct nccl_comm *p;
	DL_FOREACH (g->gpus->nccl_comms, p)
		if (p->waiting && p->bad && !p->aborting && rank_on(p, g->index) >= 0)
			return true;
	return false;
}

uint64_t nccl_comm_due(const struct gpus *s, const struct nccl_comm_want *w)
{
	const struct nccl_comm *p;
	uint64_t due = 0;
	DL_FOREACH (s->nccl_comms, p) {
		if (!nccl_comm_fits(p, w) || p->user == w->user)
			continue;
		if (!p->user)
			return 0;
		const uint64_t until = s->callbacks->left_until(p->user);
		if (until > clock_now())
			due = earlier(due, until);
	}
	return due;
}

/* Destroys the communicator that has been unused longest; its slot is free at once. */
static bool evict(struct gpus *s)
{
	struct nccl_comm *p, *oldest = NULL;
	DL_FOREACH (s->nccl_comms, p) {
		if (p->user || !p->ready || p->waiting || p->aborting || p->nccl_id)
			continue;
		if (!oldest || p->idle_ns < oldest->idle_ns)
			oldest = p;
	}
	if (oldest)
		nccl_comm_destroy(oldest);
	return oldest;
}

static uint32_t free_slot(const struct gpus *s)
{
	uint32_t slot = 0;
	while (slot < WORKER_COMM_SLOTS && s->slots[slot])
		slot++;
	return slot;
}

/* How many of a user's communicators have one. Those in the pool do not count. */
static uint32_t slots_of(const struct gpus *s, const struct account *a)
{
	const struct nccl_comm *p;
	uint32_t n = 0;
	DL_FOREACH (s->nccl_comms, p)
		n += p->user && p->account == a;
	return n;
}

/* Allocates everything that its creation needs later. NULL: there is no memory. */
static struct nccl_comm *allocate(const struct nccl_comm_want *w)
{
	struct nccl_comm *p = calloc(1, sizeof(*p) + w->n * sizeof(p->locals[0]));
	if (!p)
		return NULL;
	p->creation = calloc(1, sizeof(*p->creation) + w->n * sizeof(p->creation->parts[0]));
	if (p->creation)
		return p;
	free(p);
	return NULL;
}

static void describe_creation(struct nccl_comm *p)
{
	struct creation *k = p->creation;
	k->nccl_id = p->nccl_id;
	k->nnodes = p->nnodes;
	k->leader = p->owner;
	k->comm_slot = p->slot;
	k->nparts = p->n;
	for (uint32_t i = 0; i < p->n; i++)
		k->parts[i].device = (uint32_t)p->locals[i].device;
}

struct nccl_comm *nccl_comm_make(struct gpus *s, const struct nccl_comm_want *w, uint64_t nccl_id,
				 uint32_t owner)
{
	struct nccl_comm *p = NULL;
	int32_t result = NCCLSVC_LIMIT;
	char text[SVC_TEXT_BYTES];
	const uint32_t held = slots_of(s, w->account);
	const uint32_t most = (uint32_t)s->config->user_nccl_comms_max;
	uint32_t slot = free_slot(s);
	if (slot == WORKER_COMM_SLOTS && evict(s))
		slot = free_slot(s);
	snprintf(text, sizeof(text),
		 "%d NCCL communicators are in use, the most that a worker can have",
		 WORKER_COMM_SLOTS);
	if (held >= most)
		snprintf(text, sizeof(text),
			 "user %s has %u NCCL communicators in use, and user_nccl_comms_max is %u",
			 w->account->owner, held, most);
	else if (slot < WORKER_COMM_SLOTS && !(p = allocate(w))) {
		result = NCCLSVC_NO_MEMORY;
		snprintf(text, sizeof(text), "the daemon has no memory for an NCCL communicator");
	}
	if (!p) {
		s->callbacks->made(w->user, result, text);
		return NULL;
	}
	s->slots[slot] = true;
	p->gpus = s;
	p->slot = slot;
	p->nranks = w->nranks;
	p->nnodes = w->nnodes;
	p->n = w->n;
	p->nccl_id = nccl_id;
	p->owner = owner;
	p->lost = -1;
	memcpy(p->locals, w->locals, w->n * sizeof(w->locals[0]));
	describe_creation(p);
	DL_APPEND(s->nccl_comms, p);
	attach(p, w);
	return p;
}

void nccl_comm_take(struct nccl_comm *p, const struct nccl_comm_want *w)
{
	attach(p, w);
	p->used_ns = clock_now();
	clear_redops(p);
	recount(p->gpus);
}

void nccl_comm_acquire(struct gpus *s, const struct nccl_comm_want *w)
{
	struct nccl_comm *p;
	DL_FOREACH (s->nccl_comms, p)
		if (!p->user && nccl_comm_fits(p, w)) {
			nccl_comm_take(p, w);
			return;
		}
	p = nccl_comm_make(s, w, 0, 0);
	if (!p)
		return;
	p->waiting = 1;
	gpu_ask(gpu_of(p, 0), &(struct worker_message){.kind = WORKER_UNIQUE_ID}, -1, on_id, p,
		gpu_patience_ns(s));
}

/* ---- Ends ---- */

static void on_aborted(struct gpu *g, void *arg, const struct worker_message *answer)
{
	struct nccl_comm *p = arg;
	(void)g;
	(void)answer; /* a lost worker counts as success */
	if (--p->waiting)
		return;
	/* It does not touch users' memory any more. */
	if (p->user)
		p->gpus->callbacks->dead(p->user);
	p->aborting = false;
	p->ready = false;
	if (!p->user)
		forget(p);
}

/* A slot cannot end while it waits for a trainer's input, and the trainer may be busy for long. */
static uint64_t release_ns(const struct gpus *s)
{
	return gpu_patience_ns(s) / 2;
}

static void log_abort(const struct nccl_comm *p, const char *why)
{
	char gpus[GPUS_MAX * sizeof("gpu00, ")] = "";
	for (uint32_t i = 0, n = 0; i < p->n && n < sizeof(gpus); i++)
		n += (uint32_t)snprintf(gpus + n, sizeof(gpus) - n, "%sgpu%d", i ? ", " : "",
					p->locals[i].device);
	log_warning("%s: NCCL communicator %u is aborted: %s. The next epoch on these GPUs gets a "
		    "new one",
		    gpus, p->slot, why);
}

void nccl_comm_abort(struct nccl_comm *p, const char *why)
{
	if (p->aborting || p->waiting)
		return; /* being created: the workers' answers come first */
	if (why && !p->gpus->loop->closing)
		log_abort(p, why);
	const uint32_t n = p->n; /* the last answer may come at once, and end p */
	p->bad = p->aborting = true;
	tell_broken(p);
	p->released = false;
	p->abort_ns = clock_now();
	p->waiting = n;
	loop_deadline(p->gpus->loop, p->abort_ns + release_ns(p->gpus));
	if (p->user)
		p->gpus->callbacks->aborts(p->user);
	for (uint32_t k = 0; k < n; k++) {
		struct worker_message m = {.kind = WORKER_COMM_ABORT, .comm = {.slot = p->slot}};
		gpu_ask(gpu_of(p, k), &m, -1, on_aborted, p, gpu_patience_ns(p->gpus));
	}
}

void nccl_comm_give_back(struct gpus *s, uint32_t owner, uint64_t nccl_id, int result, int32_t rank)
{
	struct coord *c = s->coord;
	const struct control_nccl_free m = {
		.nccl_id = nccl_id, .result = result, .rank = rank, .node = -1};
	if (!coord_is_gone(c, owner))
		coord_send(c, owner, CONTROL_NCCL_FREE, &m, sizeof(m));
}

void nccl_comm_release(struct nccl_comm **held)
{
	struct nccl_comm *p = *held;
	if (!p)
		return;
	nccl_comm_detach(p);
	p->idle_ns = clock_now();
	if (p->bad && !p->aborting && !p->waiting) {
		if (p->ready)
			nccl_comm_abort(p, NULL);
		else
			forget(p);
		return;
	}
	recount(p->gpus);
	if (p->nccl_id && !p->aborting && !p->waiting)
		nccl_comm_give_back(p->gpus, p->owner, p->nccl_id, NCCLSVC_OK, -1);
	else if (!p->nccl_id)
		loop_deadline(p->gpus->loop, p->idle_ns);
}

/* Ends the epoch that uses it, and the communicator itself. */
static void break_off(struct nccl_comm *p, int result, int32_t device, const char *why)
{
	const struct gpu_callbacks *callbacks = p->gpus->callbacks;
	const bool across = p->nccl_id;
	struct communicator *m = p->user;
	p->result = result;
	p->lost = rank_on(p, device);
	const bool ran = m && callbacks->broken(m, result, p->lost);
	if (m && !ran)
		nccl_comm_detach(p);
	nccl_comm_abort(p, why); /* may free p */
	if (m && !ran && across) /* the other nodes may have begun */
		callbacks->made(m, result, why);
}

void nccl_comm_fail(struct nccl_comm *p, int result, const char *why)
{
	p->bad = true;
	if (!p->result) {
		p->result = result;
		snprintf(p->text, sizeof(p->text), "%s", why);
	}
	shorten_deadlines(p);
}

void nccl_comm_gpu_lost(struct gpus *s, const struct gpu *g)
{
	struct nccl_comm *p, *tmp;
	DL_FOREACH_SAFE (s->nccl_comms, p, tmp) {
		if (rank_on(p, g->index) < 0 || p->aborting)
			continue;
		if (p->waiting) {
			/* It will not answer by itself. */
			note_failure(p, g, NULL);
			shorten_deadlines(p);
			continue;
		}
		break_off(p, NCCLSVC_WORKER_LOST, g->index, "a worker is lost");
	}
}

void nccl_comm_slot_failed(struct gpus *s, struct gpu *g, uint32_t slot, const char *text)
{
	struct nccl_comm *p;
	DL_FOREACH (s->nccl_comms, p) {
		if (p->slot != slot || p->aborting || p->waiting)
			continue;
		break_off(p, NCCLSVC_NCCL_ERROR, g->index, text);
		return;
	}
}

/* Returns the next deadline. */
static uint64_t release_inputs(struct nccl_comm *p, uint64_t now)
{
	uint64_t at = p->abort_ns + release_ns(p->gpus);
	if (p->released || !p->user)
		return 0;
	if (at > now)
		return at;
	p->released = true;
	p->gpus->callbacks->release(p->user);
	return 0;
}

void nccl_comm_destroy(struct nccl_comm *p)
{
	for (uint32_t k = 0; k < p->n; k++)
		gpu_tell(gpu_of(p, k), &(struct worker_message){.kind = WORKER_COMM_DESTROY,
								.comm.slot = p->slot});
	forget(p);
}

/* The number of completed operations. */
static uint64_t progress_of(const struct nccl_comm *p)
{
	uint64_t sum = 0;
	for (uint32_t k = 0; k < p->n; k++)
		sum += atomic_load_explicit(&gpu_of(p, k)->queue->slots[p->slot].completed,
					    memory_order_relaxed);
	return sum;
}

/* Reports an NCCL communicator that is in use but idle. One that spans nodes is left out, since it
 * would have to end on all nodes. */
static uint64_t expire_used(struct nccl_comm *p, uint64_t now)
{
	const uint64_t idle_ns = (uint64_t)p->gpus->config->idle_release * 1000000000;
	if (!idle_ns || !p->ready || p->aborting || p->nccl_id)
		return 0;
	const uint64_t progress = progress_of(p);
	if (progress != p->progress) {
		p->progress = progress;
		p->used_ns = now;
	}
	if (p->used_ns + idle_ns <= now) {
		p->used_ns = now; /* if it is needed after all */
		p->gpus->callbacks->unused(p->user);
	}
	return now + idle_ns / 4;
}

static uint64_t keep_ns(const struct config *config)
{
	const int idle = config->comm_idle_seconds, release = config->idle_release;
	return (uint64_t)(release && release < idle ? release : idle) * 1000000000;
}

uint64_t nccl_comm_expire(struct gpus *s, uint64_t now)
{
	uint64_t next = 0;
	struct nccl_comm *p, *tmp;
	DL_FOREACH_SAFE (s->nccl_comms, p, tmp) {
		if (p->aborting)
			next = earlier(next, release_inputs(p, now));
		if (p->user)
			next = earlier(next, expire_used(p, now));
		if (p->user || p->waiting || p->aborting || !p->ready || p->nccl_id)
			continue;
		uint64_t end = p->idle_ns + keep_ns(s->config);
		if (end > now) {
			next = earlier(next, end);
			continue;
		}
		nccl_comm_destroy(p);
	}
	return next;
}

void nccl_comm_free_all(struct gpus *s)
{
	while (s->nccl_comms)
		forget(s->nccl_comms);
}
