/* SPDX-License-Identifier: Apache-2.0
 * A session survives a restart of its daemon. When the connection ends, its watcher, a thread of
 * its own, connects to the next daemon, registers the memory under the same numbers, and joins the
 * communicators again under the same handles. All members of a communicator then compare what each
 * has submitted and seen end (compare.h): what one member has seen succeed is done for all, since
 * the daemon completes no operation before it has moved all of its data. What nobody has seen end
 * is submitted again. Meanwhile all calls wait.
 *
 * An in-place operation that a killed daemon has left half done fails. A communicator ends if one
 * of its members does not come back, or if one of its operations has failed.
 *
 * On GPUs, kernels need no daemon, and run on meanwhile; so there is nothing to compare. The next
 * daemon gets the memory that they share. The previous daemon's workers finish operations on
 * NCCL before they exit. The timelines show what has run, and keep the streams waiting for the rest
 * (carry.c). */
#include "resume.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "base/frame.h"
#include "base/session_memory.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/dispatch.h"
#include "core/session_handle.h"
#include "core/session_socket.h"
#include "cuda/capture/captured_group.h"
#include "cuda/direct/peer_life.h"
#include "cuda/session_gpu.h"
#include "join_request.h"
#include "proto/operation.h"
#include "resend.h"
#include "resume/carry.h"
#include "submit.h"

#define ATTEMPT_MS  2000 /* to connect, before the watcher checks whether the session is closed */
#define NAP_MS	    20
#define JOINED_MS   1000 /* of await_joined */
#define BEAT_MS	    1000
#define STACK_BYTES (256 << 10)
#define REATTACH_MS 10000 /* unless the program or the environment says otherwise */
#define LEFT_KEPT   16

/* ---- The new connection ---- */

static void say(ncclsvc_session *s, struct svc_resume what)
{
	call_forget(s, SVC_RESUME, &what);
}

/* The new daemon has the session memory, and the processes of the previous one have exited. */
static ncclsvc_result install(ncclsvc_session *s, struct connection *new)
{
	staging_free(s);
	dispatch_unwatch(s);
	ring_restart(new); /* a last write of the previous daemon may have come late */
	connection_unref(s->connection);
	s->connection = new;
	s->resumptions++;
	s->forgotten = 0;
	s->away = AWAY_RESUMING;
	s->returned = true;
	for (ncclsvc_comm *c = s->comms; c; c = c->next)
		c->suspended = c->held = false;
	carried_look(s);
	if (s->closing) /* resume_close has shut down only the old socket */
		shutdown(new->sock, SHUT_RDWR);
	return dispatch_watch(s);
}

static ncclsvc_result region_again(ncclsvc_session *s, uint32_t region, int fd, uint64_t bytes)
{
	uint32_t id = 0;
	say(s, (struct svc_resume){.kind = SVC_RESUME_REGION, .number = region});
	ncclsvc_result r = region_register(s, fd, bytes, deadline_in(REQUEST_MS), &id);
	if (!r && id != region)
		r = error_set(NCCLSVC_UNSUPPORTED,
			      "the new daemon cannot continue sessions: install a newer ncclsvcd");
	return r;
}

/* The communicator of an unanswered JOIN or SPLIT, if the next daemon does not have its staging
 * memory yet. */
static const ncclsvc_comm *joining_comm(const ncclsvc_session *s, const struct call *c)
{
	const ncclsvc_comm *comm = c->opcode != SVC_JOIN && c->opcode != SVC_SPLIT ? NULL
				   : c->arg					   ? c->arg
					    : comm_by_key(s, c->comm_key);
	const struct peer *p = comm ? comm->peer : NULL;
	return p && p->own_region && p->own_connections != session_connections(s) ? comm : NULL;
}

static ncclsvc_result joinings_again(ncclsvc_session *s)
{
	ncclsvc_result r = NCCLSVC_OK;
	for (const struct call *c = s->calls; !r && c;) {
		const ncclsvc_comm *comm = joining_comm(s, c);
		if (comm)
			r = peer_staging_again(s, comm->peer, comm->daemon_device);
		c = comm ? s->calls : c->next; /* it may have changed */
	}
	return r;
}

/* Nothing is added or removed while the session is away. */
static ncclsvc_result memory_again(ncclsvc_session *s)
{
	ncclsvc_result r = NCCLSVC_OK;
	for (size_t i = 0; !r && i < s->regions.n; i++) {
		const struct region region = s->regions.sorted[i];
		if (region.id)
			r = region_again(s, region.id, region.fd, region.bytes);
	}
	for (size_t i = 0; !r && i < s->ncarried; i++) {
		const struct slot *slot = carried_slot(s, &s->carried[i]);
		if (slot && slot->chunk)
			r = chunk_renew(s, slot->chunk, region_again);
	}
	if (!r && s->gpu)
		r = devices_rematch(s);
	if (!r && s->gpu)
		r = device_regions_again(s);
	return r ? r : joinings_again(s);
}

/* ---- Joining again ---- */

static void resumed(ncclsvc_session *s, struct call *call)
{
	struct svc_join_reply reply;
	ncclsvc_comm *comm = comm_by_key(s, call->comm_key);
	memcpy(&reply, call->body, sizeof(reply));
	const bool continues = comm && reply.lineage == (comm->lineage | SVC_LINEAGE_RESUMED);
	if (!comm || !join_reply_valid(&reply) || reply.comm != comm->handle ||
	    reply.nranks != comm->nranks || reply.rank != comm->rank ||
	    (!continues && comm->device < 0)) {
		join_answer_bad(s, call);
		return;
	}
	comm->uid = reply.comm_uid;
	comm->epoch = reply.epoch;
	comm->first_here = (int32_t)reply.first_here;
	if (continues && (comm->device < 0 || !comm->peer == !reply.peer_bytes))
		return;
	if (!comm->held)
		comm_leave_behind(s, comm, NCCLSVC_UNSUPPORTED);
	call->result = NCCLSVC_UNSUPPORTED;
	snprintf(call->text, sizeof(call->text), "the new daemon runs it %s kernels",
		 comm->peer ? "without" : "with");
}

static bool is_rejoining(const ncclsvc_session *s, const ncclsvc_comm *comm)
{
	for (const struct call *c = s->calls; c; c = c->next)
		if (c->comm_key == comm->key)
			return true;
	return false;
}

/* Why the communicator cannot be continued; NULL: it can. */
static const char *obstacle(const ncclsvc_session *s, const ncclsvc_comm *comm, uint64_t *done)
{
	if (!comm->handle || comm->broken || !comm->lineage || comm->leaving ||
	    is_rejoining(s, comm))
		return "";
	return comm->device < 0 ? NULL : carried_nccl(s, comm, done);
}

static struct svc_join left_request(const ncclsvc_comm *comm)
{
	struct svc_join request = rejoin_request(comm, 0);
	request.device = SVC_DEVICE_HOST;
	request.staging = 0;
	return request;
}

static void say_left(ncclsvc_session *s, const struct svc_join *request, uint32_t lineage)
{
	say(s, (struct svc_resume){.kind = SVC_RESUME_LEFT, .lineage = lineage});
	call_forget(s, SVC_JOIN, request);
}

/* Fails the exchange with the thread's last error. */
static void fail(struct exchange *x)
{
	struct error why;
	char text[SVC_TEXT_BYTES];
	error_keep(&why);
	snprintf(text, sizeof(text), "%.*s", (int)sizeof(text) - 1, why.text);
	exchange_fail(x, why.status.result, text);
}

static void join_again(ncclsvc_session *s, struct exchange *x)
{
	const uint64_t now = now_ns(), deadline = x->deadline;
	ncclsvc_comm *comm = x->comm;
	if (comm->peer && peer_resume(s, comm)) {
		fail(x);
		return;
	}
	if (comm->leaving) { /* meanwhile */
		exchange_fail(x, NCCLSVC_CANCELLED, "the communicator was left");
		return;
	}
	const struct svc_join request = rejoin_request(comm, deadline > now ? deadline - now : 1);
	x->call = (struct call){.on_reply = resumed, .comm_key = comm->key};
	say(s, (struct svc_resume){.kind = SVC_RESUME_COMM,
				   .number = comm->handle,
				   .lineage = comm->lineage,
				   .done = x->done});
	x->begun = !call_begin(s, &x->call, SVC_JOIN, &request, -1, deadline + JOIN_GRACE_NS);
}

/* Kernels that wait give up without heartbeats. */
static void beat(const ncclsvc_session *s)
{
	for (const ncclsvc_comm *c = s->comms; c; c = c->next)
		if (c->peer)
			peer_beat(c->peer);
}

/* Locked; yields. */
static void finish_join(ncclsvc_session *s, struct exchange *x)
{
	x->begun = false;
	const ncclsvc_result r = call_finish(s, &x->call, x->deadline + JOIN_GRACE_NS);
	if (!r || s->away == AWAY_GONE || s->lost)
		return;
	if (r == NCCLSVC_AGAIN && now_ns() < x->deadline) { /* another node has no daemon yet */
		x->again_ns = deadline_in(NAP_MS);
		return;
	}
	char why[SVC_TEXT_BYTES];
	snprintf(why, sizeof(why), "%.*s", (int)sizeof(why) - 1,
		 x->call.text[0] ? x->call.text : "the daemon does not answer");
	if (!x->comm->held)
		x->comm->handle = 0; /* the daemon has refused it */
	exchange_fail(x, r == NCCLSVC_TIMEOUT || r == NCCLSVC_AGAIN ? NCCLSVC_PEER_GONE : r, why);
}

/* ---- Communicators that the program has left, and others may still want to continue ---- */

struct left_comm {
	struct svc_join request;
	uint32_t lineage;
};

void resume_left(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	if (!s->watching || !comm->lineage || comm->nranks == 1)
		return;
	if (!s->left && !(s->left = calloc(LEFT_KEPT, sizeof(*s->left))))
		return;
	s->left[s->nleft++ % LEFT_KEPT] =
		(struct left_comm){.request = left_request(comm), .lineage = comm->lineage};
}

void resume_leave(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	if (s->away == AWAY_RESUMING && comm->handle && comm->lineage) {
		const struct svc_join request = left_request(comm);
		calls_give_up(s, comm->key); /* ends the watcher's JOIN */
		say_left(s, &request, comm->lineage);
	}
	session_back(s);
}

/* Tells the daemon. After a restart the list starts anew: no member can continue these
 * communicators then. */
static void say_all_left(ncclsvc_session *s)
{
	const uint32_t first = s->nleft > LEFT_KEPT ? s->nleft - LEFT_KEPT : 0;
	for (uint32_t i = first; i < s->nleft; i++)
		say_left(s, &s->left[i % LEFT_KEPT].request, s->left[i % LEFT_KEPT].lineage);
	for (const ncclsvc_comm *c = s->comms; c; c = c->next) {
		const struct svc_join request = left_request(c);
		if (c->leaving && c->lineage && c->nranks > 1)
			say_left(s, &request, c->lineage);
	}
}

/* ---- Coming back ---- */

/* All that the session continues. */
struct continued {
	struct exchange *x;
	size_t n;
};

/* For every communicator, since more may be suspended meanwhile. False: out of memory. */
static bool make_room(const ncclsvc_session *s, struct continued *all)
{
	size_t room = 1;
	for (const ncclsvc_comm *c = s->comms; c; c = c->next)
		room++;
	all->x = calloc(room, sizeof(*all->x));
	return all->x;
}

static bool choose_comms(const ncclsvc_session *s, struct continued *all)
{
	if (!make_room(s, all))
		return false;
	for (ncclsvc_comm *c = s->comms; c; c = c->next)
		if (!obstacle(s, c, &all->x[all->n].done))
			all->x[all->n++].comm = c;
	return true;
}

/* Handles of communicators that are not continued mean nothing to the next daemon. */
static void drop_others(ncclsvc_session *s, const struct exchange *x, size_t n)
{
	for (ncclsvc_comm *c = s->comms; c; c = c->next) {
		bool chosen = false;
		for (size_t i = 0; i < n; i++)
			chosen |= x[i].comm == c;
		if (chosen)
			continue;
		if (c->device >= 0 && c->handle && c->lineage && !c->leaving) {
			const struct svc_join request = left_request(c);
			uint64_t done;
			const char *why = obstacle(s, c, &done);
			say_left(s, &request, c->lineage);
			snprintf(c->why, sizeof(c->why), "%s", why ? why : "");
		}
		c->handle = 0;
		comm_leave_behind(s, c, NCCLSVC_DAEMON_LOST);
	}
}

static ncclsvc_result lost_again(const ncclsvc_session *s)
{
	return error_set(NCCLSVC_DAEMON_LOST, "%s", s->lost_text);
}

/* Sends the next daemon the reductions that tasks of the communicator need. Locked; yields. */
static ncclsvc_result redops_again(ncclsvc_session *s, ncclsvc_comm *comm)
{
	ncclsvc_result r = NCCLSVC_OK;
	for (size_t i = 0; !r && i < s->ncarried; i++) {
		const struct carried *c = &s->carried[i];
		const struct slot *slot = c->redop ? carried_slot(s, c) : NULL;
		const struct made_redop *at = slot ? comm_redop(comm, c->redop) : NULL;
		if (slot && slot->comm_key == comm->key && !(at && at->number))
			r = redop_send(comm, c->redop);
	}
	return r;
}

/* On a GPU. Locked; yields. */
static ncclsvc_result go_on(ncclsvc_session *s, ncclsvc_comm *comm)
{
	redops_forget(comm);
	ncclsvc_result r = gpu_comm_resumed(s, comm);
	return r ? r : redops_again(s, comm);
}

/* The communicator is not continued. */
static void leave_behind(ncclsvc_session *s, ncclsvc_comm *comm, ncclsvc_result result)
{
	const ncclsvc_status end = comm->end;
	const bool held = comm->held;
	if (held)
		exchange_drop_held(s, comm);
	comm->held = false;
	comm_leave_behind(s, comm, result);
	if (held)
		comm->end = end;
}

/* The members have compared what they have done. On GPUs there is nothing to compare. */
static void settle(ncclsvc_session *s, struct exchange *x)
{
	if (x->comm->device < 0)
		exchange_settle(s, x);
	else if (go_on(s, x->comm) && s->away == AWAY_RESUMING)
		fail(x);
	x->phase = EXCHANGE_PLAN;
	x->deadline = exchange_deadline(s);
	if (!x->result && s->away == AWAY_RESUMING && s->plan_callbacks)
		s->plan_callbacks->commit_again(s, x->comm, x->deadline);
}

static void finish_plan(ncclsvc_session *s, struct exchange *x)
{
	if (s->plan_callbacks && !s->plan_callbacks->committed_again(s, x->comm, x->deadline))
		return;
	x->phase = EXCHANGE_OVER;
}

/* Locked; yields. */
static void step(ncclsvc_session *s, struct exchange *x)
{
	if (x->again_ns && now_ns() >= x->again_ns) {
		x->again_ns = 0;
		join_again(s, x);
	}
	if (x->phase == EXCHANGE_JOIN && x->begun &&
	    (x->call.done || now_ns() >= x->deadline + JOIN_GRACE_NS))
		finish_join(s, x);
	if (s->away != AWAY_RESUMING || s->lost)
		return;
	if (x->phase == EXCHANGE_JOIN && !x->result && !x->begun && !x->again_ns) {
		if (x->comm->device < 0)
			exchange_begin(s, x);
		else
			x->phase = EXCHANGE_COMPARED;
	}
	if (x->phase == EXCHANGE_SUMMARIES || x->phase == EXCHANGE_LINES)
		exchange_step(s, x);
	if (x->phase == EXCHANGE_COMPARED && !x->result)
		settle(s, x);
	if (x->phase == EXCHANGE_PLAN && !x->result)
		finish_plan(s, x);
	if (x->phase == EXCHANGE_SUSPENDED && now_ns() >= x->deadline + JOIN_GRACE_NS)
		exchange_fail(x, NCCLSVC_PEER_GONE,
			      "the daemon did not report that the epoch is suspended");
	if (x->result && x->phase != EXCHANGE_OVER) {
		if (x->phase ==
		    EXCHANGE_JOIN) { /* otherwise the other members' JOINs wait for it */
			const struct svc_join left = left_request(x->comm);
			say_left(s, &left, x->comm->lineage);
		}
		x->phase = EXCHANGE_OVER;
		leave_behind(s, x->comm, x->result);
	}
}

static struct exchange *continued_of(struct continued *all, ncclsvc_comm *comm)
{
	for (size_t i = 0; i < all->n; i++)
		if (all->x[i].comm == comm)
			return &all->x[i];
	all->x[all->n] = (struct exchange){.comm = comm};
	return &all->x[all->n++];
}

static bool any_suspended(const ncclsvc_session *s)
{
	const ncclsvc_comm *c = s->comms;
	while (c && !c->suspended)
		c = c->next;
	return c;
}

static bool any_half_joined(const ncclsvc_session *s)
{
	const ncclsvc_comm *c = s->comms;
	while (c && (!c->peer || c->peer_bytes || is_rejoining(s, c)))
		c = c->next;
	return c;
}

/* Other threads that have just got the answer to a JOIN or SPLIT drop the staging memory that the
 * daemon does not use. Until then their communicators cannot be continued. Locked; yields. */
static void await_joined(ncclsvc_session *s)
{
	const uint64_t until = deadline_in(JOINED_MS);
	while (any_half_joined(s) && now_ns() < until && !s->closing)
		session_wait(s, deadline_in(1));
}

/* Begins with those that were suspended meanwhile, too. Locked; yields. */
static void add_suspended(ncclsvc_session *s, struct continued *all)
{
	if (any_suspended(s))
		await_joined(s);
	for (ncclsvc_comm *c = s->comms; c; c = c->next) {
		if (!c->suspended)
			continue;
		struct exchange *x = continued_of(all, c);
		if (x->phase == EXCHANGE_PLAN)
			finish_plan(s, x);
		exchange_reset(s, x);
		c->suspended = false;
		c->held = !s->returned;
		if (c->held)
			carry_held(s, c);
		const char *why = obstacle(s, c, &x->done);
		x->deadline = deadline_in(s->reattach_ms);
		if (why)
			exchange_fail(x, NCCLSVC_PEER_GONE, why);
		else
			join_again(s, x);
	}
}

static bool all_over(const struct continued *all)
{
	for (size_t i = 0; i < all->n; i++)
		if (all->x[i].phase != EXCHANGE_OVER)
			return false;
	return true;
}

static int next_look_ms(const struct continued *all)
{
	for (size_t i = 0; i < all->n; i++)
		if (all->x[i].again_ns)
			return NAP_MS;
	return BEAT_MS;
}

/* Continues all communicators, each on its own. False: the daemon has ended. Locked; yields. */
static bool continue_all(ncclsvc_session *s, struct continued *all)
{
	for (;;) {
		add_suspended(s, all);
		for (size_t i = 0; i < all->n; i++)
			step(s, &all->x[i]);
		if (s->away != AWAY_RESUMING || s->lost)
			return false;
		if (any_suspended(s))
			continue;
		if (all_over(all))
			return true;
		beat(s);
		socket_step(s, deadline_in(next_look_ms(all)));
	}
}

static bool resend_in_epoch(ncclsvc_session *s, uint32_t before)
{
	return s->returned ? resend(s, before, RESEND_IN_EPOCH) : resend_held(s, before);
}

/* The other threads' requests and tasks follow. Locked; yields. */
static ncclsvc_result resume_comms(ncclsvc_session *s, struct continued *all, uint32_t before)
{
	if (!continue_all(s, all) || !resend_in_epoch(s, before))
		return lost_again(s);
	if (s->returned)
		carried_submit(s);
	carried_release(s);
	for (size_t i = 0; i < all->n; i++)
		if (!all->x[i].result)
			captured_groups_go_on(all->x[i].comm->capture);
	return !s->returned || resend(s, before, RESEND_LAST) ? NCCLSVC_OK : lost_again(s);
}

static void continued_free(ncclsvc_session *s, struct continued *all)
{
	for (size_t i = 0; i < all->n; i++) {
		if (all->x[i].phase == EXCHANGE_PLAN) /* the daemon has ended */
			finish_plan(s, &all->x[i]);
		all->x[i].comm->held = false;
		exchange_reset(s, &all->x[i]);
	}
	free(all->x);
}

static ncclsvc_result resume(ncclsvc_session *s)
{
	struct continued all = {0};
	const uint32_t before = s->request_id + 1;
	say(s, (struct svc_resume){.kind = SVC_RESUME_SESSION});
	ncclsvc_result r = memory_again(s);
	if (r)
		return r;
	await_joined(s);
	if (!choose_comms(s, &all))
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	say_all_left(s);
	drop_others(s, all.x, all.n);
	for (size_t i = 0; i < all.n; i++) {
		all.x[i].deadline = deadline_in(s->reattach_ms);
		join_again(s, &all.x[i]);
	}
	const bool sent = resend(s, before, RESEND_FIRST);
	pthread_cond_broadcast(&s->changed);
	r = sent ? resume_comms(s, &all, before) : lost_again(s);
	continued_free(s, &all);
	return r;
}

/* ---- Communicators that were suspended ---- */

/* The session's daemon still runs. */
static ncclsvc_result continue_suspended(ncclsvc_session *s)
{
	struct continued all = {0};
	const uint32_t before = s->request_id + 1;
	ncclsvc_result r = make_room(s, &all) ? carry_begin(s) : NCCLSVC_NO_MEMORY;
	if (r)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	if (s->plan_callbacks)
		s->plan_callbacks->away(s);
	r = resume_comms(s, &all, before);
	continued_free(s, &all);
	/* Members on the node whose daemon has ended may wait for this one in epochs that it had
	 * left. */
	if (!r)
		say_all_left(s);
	return r;
}

/* Locked; yields. */
static ncclsvc_result connect_again(ncclsvc_session *s)
{
	struct connection *new = NULL;
	struct connection_options options = s->options;
	const uint64_t slice = deadline_in(ATTEMPT_MS);
	const uint64_t deadline = slice < s->away_until ? slice : s->away_until;
	options.entries = s->tasks.entries;
	options.entries_required = true;
	options.retry = false;
	ncclsvc_result r = carry(s);
	if (r)
		return r;
	struct connection *previous = connection_ref(s->connection);
	options.previous = previous;
	session_unlock(s);
	r = connection_open(&options, deadline, &new);
	if (r)
		poll(NULL, 0, NAP_MS);
	session_lock(s);
	const bool same = s->connection == previous && s->away == AWAY_GONE && !s->lost;
	connection_unref(previous);
	if (r || same)
		return r ? r : install(s, new);
	connection_unref(new);
	return error_set(NCCLSVC_DAEMON_LOST, "%s", s->lost_text);
}

static bool is_temporary(ncclsvc_result r)
{
	return r == NCCLSVC_DAEMON_LOST || r == NCCLSVC_DRAINING || r == NCCLSVC_TIMEOUT ||
	       r == NCCLSVC_AGAIN;
}

static void come_back(ncclsvc_session *s)
{
	struct error why = {0};
	char how[LOST_TEXT];
	ncclsvc_result r = NCCLSVC_DAEMON_LOST;
	snprintf(how, sizeof(how), "%s", s->lost_text);
	if (s->away == AWAY_GONE)
		dispatch_unwatch(s);
	while (!s->closing && s->away) {
		beat(s);
		if (s->away == AWAY_GONE)
			r = connect_again(s);
		if (s->closing)
			break;
		if (s->away == AWAY_RESUMING)
			r = s->returned ? resume(s) : continue_suspended(s);
		s->returned &= r != NCCLSVC_OK;
		if (!r && s->away == AWAY_RESUMING && any_suspended(s))
			continue;
		if (!r && s->away == AWAY_RESUMING) {
			s->away = AWAY_NOT;
			s->nleft = 0;
			if (s->plan_callbacks)
				s->plan_callbacks->back(s);
			session_kick(s);
			pthread_cond_broadcast(&s->changed);
			gpu_back(s);
			return;
		}
		error_keep(&why);
		if (s->away == AWAY_RESUMING || (r && !is_temporary(r)) ||
		    now_ns() >= s->away_until)
			break;
	}
	if (s->away && !s->closing)
		session_lose(s, "%.120s; the session was not continued: %.180s", how, why.text);
}

/* Waits until the daemon has closed the connection, or has suspended a communicator. Another thread
 * may read its message. Locked; yields. */
static void watch(ncclsvc_session *s)
{
	struct connection *c = connection_ref(s->connection);
	struct pollfd p[] = {{.fd = c->sock, .events = POLLIN}, {.fd = s->wake, .events = POLLIN}};
	uint64_t count;
	session_unlock(s);
	poll(p, 2, -1);
	session_lock(s);
	const ssize_t n = read(s->wake, &count, sizeof(count));
	(void)n; /* nothing, if the socket has woken this thread */
	if (c == s->connection && !s->closing) {
		socket_pump(s);
		if (s->reading && !s->lost && !s->away)
			session_wait(s, deadline_in(NAP_MS));
	}
	connection_unref(c);
}

static void *watcher(void *arg)
{
	ncclsvc_session *s = arg;
	session_lock(s);
	while (!s->closing) {
		if (s->lost || !s->connection)
			session_wait(s, NO_DEADLINE);
		else if (s->away)
			come_back(s);
		else
			watch(s);
	}
	if (s->away) /* the calls of other threads end, too */
		session_lose(s, "the session is being closed");
	session_unlock(s);
	return NULL;
}

bool reattach_ms_of(int option, int *ms)
{
	const char *text = option ? NULL : getenv("NCCLSVC_REATTACH_MS");
	char *end = NULL;
	const long from_text = text ? strtol(text, &end, 10) : REATTACH_MS;
	*ms = option ? option : (int)from_text;
	return option <= REATTACH_MS_MAX &&
	       (!text || (!*end && from_text >= 0 && from_text <= REATTACH_MS_MAX));
}

static bool start_watcher(ncclsvc_session *s)
{
	sigset_t all, old;
	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	const bool started = !pthread_create(&s->watcher, &attributes, watcher, s);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attributes);
	return started;
}

void resume_open(ncclsvc_session *s)
{
	if (s->reattach_ms <= 0 || !s->connection->ring)
		return;
	session_lock(s);
	s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->watching = s->wake >= 0 && start_watcher(s);
	session_survives(s, s->watching);
	if (s->watching)
		say(s, (struct svc_resume){.kind = SVC_RESUME_SESSION});
	session_unlock(s);
}

void resume_reattached(ncclsvc_session *s)
{
	if (s->plan_callbacks)
		s->plan_callbacks->back(s);
	if (!s->watching)
		return;
	session_survives(s, true);
	say(s, (struct svc_resume){.kind = SVC_RESUME_SESSION});
	pthread_cond_broadcast(&s->changed);
}

void resume_close(ncclsvc_session *s)
{
	if (!s->watching)
		return;
	session_lock(s);
	s->closing = true;
	shutdown(s->connection->sock, SHUT_RDWR);
	pthread_cond_broadcast(&s->changed);
	session_unlock(s);
	pthread_join(s->watcher, NULL);
	s->watching = false;
	close(s->wake);
	free(s->carried);
	free(s->left);
}
