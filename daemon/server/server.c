/* SPDX-License-Identifier: Apache-2.0
 * Listening, accepting, deadlines, and the scheduler's events. */
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/timings.h"
#include "channel/cluster.h"
#include "comm/comm.h"
#include "comm/comm_gpus.h"
#include "comm/nodes/node_reports.h"
#include "comm/peer/comm_peer.h"
#include "comm/record/dump_file.h"
#include "comm/remote.h"
#include "comm/report.h"
#include "comm/requests.h"
#include "contained.h"
#include "gpu/gpu.h"
#include "gpu/nccl_comm.h"
#include "memory/memory.h"
#include "proto/fdio.h"
#include "relay.h"
#include "sched/api/scheduler.h"
#include "server_state.h"
#include "session/waiting_messages.h"
#include "transport/transports.h"

#define ACCEPTS_PER_TURN 256
/* Memory of connections and requests (account_memory_left), and of small tables. */
#define OTHER_BYTES	 (UINT64_C(96) << 20)

/* ---- Deadlines ---- */

static uint64_t expire_silent(struct server *s, uint64_t now)
{
	const uint64_t limit = (uint64_t)s->config->hello_seconds * 1000000000;
	const uint64_t until = clock_now() + EXPIRE_TURN_NS;
	for (struct session *c; (c = s->sessions.silent);) {
		if (c->since_ns + limit > now)
			return c->since_ns + limit;
		if (clock_now() > until)
			return clock_now() + NAP_NS;
		session_end(c, NCCLSVC_TIMEOUT, "no HELLO came in time");
	}
	return 0;
}

/* A split that was decided before its epoch was suspended is completed, so that all ranks get their
 * answers or none. Epochs that the split begins are then suspended, too. */
static uint64_t end_drain(struct server *s, uint64_t now)
{
	if (!s->drained_ns)
		return 0;
	if (comm_splits_under_way(&s->comms, NULL) && now - s->drained_ns < EPOCH_HANDOVER_NS)
		return now + NAP_NS;
	s->drained_ns = 0;
	if (comm_suspend_all(&s->comms))
		scheduler_command(s->scheduler, &(struct command){.kind = COMMAND_DRAIN});
	else if (s->drained)
		s->drained(s->drained_arg);
	return 0;
}

static uint64_t expire(void *arg, uint64_t now)
{
	struct server *s = arg;
	uint64_t next = earlier(expire_silent(s, now), comm_expire(&s->comms, now));
	next = earlier(next, nccl_comm_expire(&s->gpus, now));
	next = earlier(next, gpu_expire(&s->gpus, now));
	next = earlier(next, session_retry(&s->sessions, now));
	next = earlier(next, turns_retry(&s->memory, now));
	next = earlier(next, relay_expire(s, now));
	next = earlier(next, watcher_expire(&s->watcher, now));
	next = earlier(next, end_drain(s, now));
	return earlier(next, coord_expire(&s->comms.coord));
}

/* ---- Accepting ---- */

/* a: of the user; NULL: not known. Messages waiting in the connection may hold descriptors. */
static void turn_away(struct account *a, int fd, int reason, const char *text)
{
	struct {
		struct svc_header header;
		struct svc_event_bye bye;
	} m = {.header = {.length = sizeof(m), .opcode = SVC_EVENT_BYE}, .bye.reason = reason};
	snprintf(m.bye.text, sizeof(m.bye.text), "%s", text);
	svc_send(fd, &m, sizeof(m), NULL, 0, MSG_DONTWAIT);
	if (!a) {
		close(fd);
		return;
	}
	connection_close(a, fd);
	account_put(a);
}

/* Takes a session's shares. A connection counts for its user even before HELLO. */
static bool take_session(struct account *a, char text[SVC_TEXT_BYTES])
{
	if (!account_take(a, SHARE_SESSIONS, 1, text))
		return false;
	if (account_take(a, SHARE_FDS, 1, text))
		return true;
	account_give(a, SHARE_SESSIONS, 1);
	return false;
}

/* In a flood of connections, many peers hang up before they are accepted. */
static bool has_hung_up(int fd)
{
	char byte;
	return recv(fd, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT) == 0;
}

void server_adopt(struct server *s, int fd, bool admin)
{
	struct ucred cred = {0};
	socklen_t size = sizeof(cred);
	char text[SVC_TEXT_BYTES];
	char cgroup[NCCLSVC_JOB_BYTES];
	struct tenant tenant;
	struct account *a = NULL;
	if (s->loop.closing || has_hung_up(fd)) {
		close(fd);
		return;
	}
	const bool known = !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size);
	if (admin && process_is_contained(cred.pid)) {
		log_debug("pid %d, of user %u, is in a container, or /proc does not show it: it "
			  "may not administer",
			  cred.pid, cred.uid);
		admin = false;
	}
	tenant_of_peer(fd, cred.pid, cred.uid, &tenant, cgroup);
	if (admin)
		tenant = (struct tenant){.uid = ACCOUNT_ADMIN};
	if (known)
		a = account_get(&s->accounts, &tenant);
	if (!a || !account_memory_left(a, 0)) {
		turn_away(a, fd, NCCLSVC_NO_MEMORY, "the daemon has no memory for a session");
		return;
	}
	if (!take_session(a, text)) {
		log_debug("a connection of pid %d was refused: %s", cred.pid, text);
		turn_away(a, fd, NCCLSVC_LIMIT, text);
		return;
	}
	struct session *c = session_create(&s->sessions, fd, a, &cred, admin);
	if (!c) {
		account_give(a, SHARE_SESSIONS, 1);
		account_give(a, SHARE_FDS, 1);
		turn_away(a, fd, NCCLSVC_NO_MEMORY, "the daemon has no memory for a session");
		return;
	}
	memcpy(c->cgroup, cgroup, sizeof(c->cgroup));
	c->refused = s->config->access == CONFIG_ACCESS_OWNER && !admin && c->uid != geteuid();
	loop_deadline(&s->loop, c->since_ns + (uint64_t)s->config->hello_seconds * 1000000000);
	watcher_begin(&s->watcher, c->since_ns);
}

/* Without free fds, a connection would stay in the backlog and keep the loop spinning, so turn it
 * away. */
static void accept_without_fd(struct server *s, int listen_fd)
{
	close(s->spare_fd);
	int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd >= 0)
		turn_away(NULL, fd, NCCLSVC_LIMIT, "the daemon has run out of file descriptors");
	s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	log_error("out of file descriptors: the daemon refuses connections (raise LimitNOFILE)");
}

static void on_listen(uv_poll_t *poll, int status, int events)
{
	struct listener *l = poll->data;
	(void)events;
	if (status < 0) {
		log_error("the listening socket failed: %s. No new session can be opened: restart "
			  "the daemon",
			  uv_strerror(status));
		return;
	}
	for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
		int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0) {
			server_adopt(l->server, fd, l->admin);
		} else if (errno == EMFILE || errno == ENFILE) {
			accept_without_fd(l->server, l->fd);
		} else if (errno != EINTR && errno != ECONNABORTED) {
			return;
		}
	}
}

int server_listen(struct server *s, int fd, bool admin)
{
	struct listener *l = calloc(1, sizeof(*l));
	if (!l) {
		close(fd);
		return -ENOMEM;
	}
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	l->fd = fd;
	l->admin = admin;
	l->server = s;
	l->poll.data = l;
	int error = uv_poll_init(s->loop.uv, &l->poll, fd);
	if (error) {
		close(fd);
		free(l);
		return error;
	}
	s->loop.handles++;
	l->next = s->listeners;
	s->listeners = l;
	return uv_poll_start(&l->poll, UV_READABLE, on_listen);
}

/* ---- The scheduler's events ---- */

static void on_cancelled(struct server *s, const struct event *ev)
{
	struct session *c = sessions_find(&s->sessions, ev->cancelled.asker);
	if (!c)
		return;
	c->cancels--;
	if (ev->cancelled.result == NCCLSVC_NOT_FOUND && !ev->cancelled.count)
		session_error(c, SVC_CANCEL, ev->cancelled.request_id, NCCLSVC_NOT_FOUND,
			      "no such task is pending");
	else if (ev->cancelled.result)
		session_error(c, SVC_CANCEL, ev->cancelled.request_id, ev->cancelled.result,
			      "the task belongs to another user");
	else {
		struct svc_cancel_reply r = {ev->cancelled.count};
		session_reply(c, SVC_CANCEL, ev->cancelled.request_id, &r, sizeof(r), NULL, 0);
	}
}

/* The scheduler counts the operations in the ring. */
static void task_refused(struct communicator *m, const struct event *ev)
{
	report_refused(
		m, &(struct refused_operation){.epoch = ev->refused.epoch,
					       .op = ev->refused.op,
					       .rank = ev->refused.rank,
					       .result = ev->refused.result,
					       .seq = ev->refused.seq +
						      peer_launched(m, (uint32_t)ev->refused.rank),
					       .text = ev->refused.text});
}

static void handle_event(struct server *s, const struct event *ev)
{
	struct session *c = s->sessions.by_slot[ev->session];
	switch (ev->kind) {
	case EVENT_SESSION_GONE:
		recorder_ended(&s->recorder, c->id);
		session_scheduler_gone(c);
		break;
	case EVENT_SESSION_BROKEN:
		session_end(c, ev->broken.result, ev->broken.text);
		break;
	case EVENT_REGION_GONE:
	case EVENT_REGION_BUSY:
		memory_removed(&s->memory, c, ev->region.request_id, ev->region.region,
			       ev->kind == EVENT_REGION_GONE);
		break;
	case EVENT_EPOCH_GONE:
		comm_epoch_gone(&s->comms, ev->epoch.comm);
		break;
	case EVENT_PLAN_GONE:
		plan_gone(&s->comms, ev->plan);
		break;
	case EVENT_PLAN_DROPPED:
		plan_dropped(&s->comms, ev->dropped.asker, ev->dropped.request_id);
		break;
	case EVENT_CANCELLED:
		on_cancelled(s, ev);
		break;
	case EVENT_QUIET:
		comm_suspend_all(&s->comms);
		scheduler_command(s->scheduler, &(struct command){.kind = COMMAND_DRAIN});
		break;
	case EVENT_DRAINED:
		s->drained_ns = clock_now();
		loop_deadline(&s->loop, s->drained_ns); /* other nodes' messages come first */
		break;
	case EVENT_EPOCH_DIRTY:
		comm_epoch_dirty(&s->comms, ev->epoch.comm);
		break;
	case EVENT_TASKS_FAILED:
		if (s->comms.comm_by_slot[ev->tasks.comm]) {
			watcher_failed(&s->watcher, s->comms.comm_by_slot[ev->tasks.comm],
				       ev->tasks.seq, &ev->tasks.status);
			report_tasks(s->comms.comm_by_slot[ev->tasks.comm], &ev->tasks.status,
				     ev->tasks.op, ev->tasks.rank, ev->tasks.seq);
			recorder_dump_for(s->comms.comm_by_slot[ev->tasks.comm], &ev->tasks.status);
		}
		break;
	case EVENT_TASK_REFUSED:
		if (s->comms.comm_by_slot[ev->refused.comm])
			task_refused(s->comms.comm_by_slot[ev->refused.comm], ev);
		break;
	case EVENT_TASK_TOO_LATE:
		report_too_late(c, ev->too_late.handle, ev->too_late.epoch, ev->too_late.op);
		break;
	case EVENT_CAPTURED_GROUP_FAILED:
		comm_captured_group_failed(&s->comms, ev->tasks.comm, &ev->tasks.status);
		break;
	case EVENT_NCCL_WANTED:
		comm_event_nccl_wanted(&s->comms, ev->nccl.comm, ev->nccl.epoch);
		break;
	case EVENT_NCCL_TAKEN:
		comm_event_nccl_taken(&s->comms, ev->nccl.comm, ev->nccl.epoch, ev->nccl.taken);
		break;
	case EVENT_INTERNODE_FAILED:
		comm_internode_failed(&s->comms, ev->internode.comm, ev->internode.epoch,
				      ev->internode.result, ev->internode.node);
		break;
	case EVENT_NODE_CARRIED:
		cluster_carried(s->cluster, ev->carried.node, ev->carried.here, ev->carried.failed);
		break;
	case EVENT_MEMBER_LEFT:
		comm_member_left(&s->comms, ev->left.comm, ev->left.epoch, ev->left.rank);
		break;
	case EVENT_PONG:
		if (s->pong)
			s->pong(s->pong_arg);
		break;
	}
}

void server_handle_events(struct server *s)
{
	const uint64_t until = clock_now() + OWN_TURN_NS;
	struct event ev;
	bool more = !s->in_event; /* an event can end a session, which first handles the others */
	while (more && clock_now() < until && (more = scheduler_next_event(s->scheduler, &ev))) {
		s->in_event = true;
		handle_event(s, &ev);
		s->in_event = false;
	}
	if (more)
		uv_async_send(&s->events); /* for the rest */
}

static void on_events(uv_async_t *async)
{
	server_handle_events(async->data);
}

static void notify(void *arg)
{
	struct server *s = arg;
	uv_async_send(&s->events);
}

static void on_faults(uv_async_t *async)
{
	struct server *s = async->data;
	if (!memory_fail(&s->memory))
		uv_async_send(async); /* for the rest */
}

static void notify_fault(void *arg)
{
	struct server *s = arg;
	uv_async_send(&s->faults);
}

static void on_closed(uv_async_t *async)
{
	struct server *s = async->data;
	accounts_collect(&s->accounts);
	if (!session_wake(&s->sessions))
		uv_async_send(async); /* for the rest */
}

static void notify_closed(void *arg)
{
	struct server *s = arg;
	uv_async_send(&s->closed);
}

/* ---- Start and stop ---- */

static struct scheduler_config scheduler_config_of(const struct config *config,
						   const struct cluster *cluster)
{
	return (struct scheduler_config){
		.threads = (unsigned)config->host_threads,
		.tasks_max = (uint32_t)config->tasks_max,
		.user_tasks_max = (uint32_t)config->user_tasks_max,
		.spin_us = config->spin_us,
		.sessions_max = SVC_SESSIONS_MAX,
		.comms_max = SVC_COMMS_MAX,
		.carrier = cluster ? cluster->carrier : NULL,
		.node = cluster ? cluster->me : 0,
		.nodes = cluster_room(cluster),
		.transports = transports,
	};
}

uint64_t server_bytes(const struct config *config)
{
	const struct scheduler_config ec = scheduler_config_of(config, NULL);
	return scheduler_bytes(&ec) + OTHER_BYTES;
}

struct server *server_create(uv_loop_t *loop, const struct config *config, const char *path,
			     struct cluster *cluster, const struct server_callbacks *callbacks)
{
	struct server *s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	loop_open(&s->loop, loop, expire, s);
	s->config = config;
	s->path = path;
	s->cluster = cluster;
	s->start_ns = clock_now();
	s->watcher.server = s;
	accounts_init(&s->accounts, config, notify_closed, s);
	s->gpus = (struct gpus){.loop = &s->loop,
				.config = config,
				.path = path,
				.coord = &s->comms.coord,
				.callbacks = callbacks->gpu,
				.owner = s};
	s->memory = (struct memory){.loop = &s->loop,
				    .config = config,
				    .sessions = &s->sessions,
				    .gpus = &s->gpus,
				    .callbacks = callbacks->memory,
				    .owner = s};
	s->comms = (struct comms){.loop = &s->loop,
				  .config = config,
				  .accounts = &s->accounts,
				  .sessions = &s->sessions,
				  .gpus = &s->gpus,
				  .memory = &s->memory,
				  .recorder = &s->recorder,
				  .cluster = cluster};
	s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	s->events.data = s->faults.data = s->closed.data = s;
	uv_async_init(loop, &s->events, on_events);
	uv_async_init(loop, &s->faults, on_faults);
	uv_async_init(loop, &s->closed, on_closed);
	s->loop.handles += 3;
	remote_start(&s->comms);
	report_open(&s->comms);
	const struct scheduler_config ec = scheduler_config_of(config, cluster);
	if (!sessions_open(&s->sessions, &s->loop, callbacks->session, s) &&
	    !comms_open(&s->comms) && s->spare_fd >= 0)
		s->scheduler = scheduler_create(&ec, notify, s);
	s->gpus.scheduler = s->memory.scheduler = s->comms.scheduler = s->scheduler;
	if (!s->scheduler || memory_start(&s->memory, s->accounts.regions_max, notify_fault, s) ||
	    comm_create_world(&s->comms) || gpu_start(&s->gpus)) {
		int error = errno ? errno : ENOMEM;
		server_close(s, 0, NULL);
		while (!server_closed(s))
			uv_run(loop, UV_RUN_ONCE);
		server_destroy(s);
		errno = error;
		return NULL;
	}
	peer_limits_read(&s->comms);
	if (cluster)
		cluster_attach(cluster, callbacks->cluster, s);
	return s;
}

void server_reload(struct server *s)
{
	peer_limits_read(&s->comms);
	comms_reload(&s->comms);
	loop_deadline(&s->loop, clock_now());
}

void server_drain(struct server *s, void (*drained)(void *arg), void *arg)
{
	s->draining = true;
	s->drained = drained;
	s->drained_arg = arg;
	scheduler_command(s->scheduler, &(struct command){.kind = COMMAND_QUIET});
}

void server_ping(struct server *s, void (*pong)(void *arg), void *arg)
{
	s->pong = pong;
	s->pong_arg = arg;
	scheduler_command(s->scheduler, &(struct command){.kind = COMMAND_PING});
}

void server_summarize(const struct server *s, struct server_summary *sum)
{
	const struct task_table *t = scheduler_table(s->scheduler);
	sum->sessions = s->sessions.nsessions;
	sum->comms = s->comms.ncomms;
	sum->pending = atomic_load_explicit(&t->pending, memory_order_relaxed);
	sum->completed = atomic_load_explicit(&t->completed, memory_order_relaxed);
	sum->failed = atomic_load_explicit(&t->failed, memory_order_relaxed);
}

static void on_handle_closed(uv_handle_t *handle)
{
	struct server *s = handle->data;
	s->loop.handles--;
}

static void on_listener_closed(uv_handle_t *handle)
{
	struct listener *l = handle->data;
	l->server->loop.handles--;
	close(l->fd);
	free(l);
}

void server_unlisten(struct server *s, bool admin)
{
	struct listener **at = &s->listeners, *l;
	while ((l = *at)) {
		if (l->admin != admin) {
			at = &l->next;
			continue;
		}
		*at = l->next;
		uv_close((uv_handle_t *)&l->poll, on_listener_closed);
	}
}

/* Its events, and the GPUs' workers, are needed until the last session is gone. */
static void let_scheduler_go(struct server *s)
{
	uv_close((uv_handle_t *)&s->events, on_handle_closed);
	uv_close((uv_handle_t *)&s->faults, on_handle_closed);
	uv_close((uv_handle_t *)&s->closed, on_handle_closed);
	sessions_close(&s->sessions);
	remote_close(&s->comms);
	gpu_stop(&s->gpus);
}

void server_close(struct server *s, int reason, const char *text)
{
	struct session *c, *next;
	if (s->loop.closing)
		return;
	/* No SPLIT or JOIN is answered on some ranks only: their sessions continue elsewhere. */
	while (s->comms.own_messages)
		remote_handle_own(&s->comms);
	loop_close(&s->loop);
	watcher_close(&s->watcher);
	comm_close_all(&s->comms, reason);
	DL_FOREACH_SAFE (s->sessions.all, c, next)
		session_end(c, reason, text);
	server_unlisten(s, false);
	server_unlisten(s, true);
	if (!s->sessions.all)
		let_scheduler_go(s);
}

bool server_closed(const struct server *cs)
{
	struct server *s = (struct server *)cs;
	if (!s->loop.closing)
		return false;
	if (!s->sessions.all && !uv_is_closing((uv_handle_t *)&s->events))
		let_scheduler_go(s);
	return !s->loop.handles;
}

void server_destroy(struct server *s)
{
	if (s->scheduler)
		scheduler_destroy(s->scheduler);
	nccl_comm_free_all(&s->gpus);
	plan_free_all(&s->comms);
	comm_redops_free_all(&s->comms);
	comm_free_all(&s->comms);
	remote_free(&s->comms);
	report_close(&s->comms);
	gpu_free(&s->gpus);
	staging_free(&s->gpus);
	recorder_free(&s->recorder);
	accounts_fini(&s->accounts);
	fault_stop();
	if (s->spare_fd >= 0)
		close(s->spare_fd);
	sessions_free(&s->sessions);
	relay_free(s);
	free(s);
}
