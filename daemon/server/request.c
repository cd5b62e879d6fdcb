/* SPDX-License-Identifier: Apache-2.0
 * Handles each message. The frame has been checked: the body has the right length, and the number
 * of fds is right. The caller closes the fds that are still in the array on return.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"
#include "base/log.h"
#include "base/nofail.h"
#include "build_config.h"
#include "comm/comm.h"
#include "comm/comm_gpus.h"
#include "comm/nodes/describe.h"
#include "comm/peer/comm_peer.h"
#include "comm/peer/share_log.h"
#include "comm/peer/sleep.h"
#include "comm/remote.h"
#include "comm/report.h"
#include "comm/requests.h"
#include "gpu/gpu.h"
#include "gpu/mps_service.h"
#include "memory/memory.h"
#include "proto/names.h"
#include "proto/printable.h"
#include "server_state.h"

/* True, after telling the session: the reserve for admitted requests is incomplete. */
static bool refused_memory(struct session *c, unsigned opcode, uint32_t request_id)
{
	if (nofail_reserve_fill())
		return false;
	session_error(c, opcode, request_id, NCCLSVC_NO_MEMORY,
		      "the daemon is out of memory: try again later");
	return true;
}

/* Requests that query, or release something, are accepted even then. */
static bool takes_memory(unsigned opcode)
{
	switch (opcode) {
	case SVC_IDENTIFY:
	case SVC_REGION_DEL:
	case SVC_REDOP_DEL:
	case SVC_JOIN_CANCEL:
	case SVC_LEAVE:
	case SVC_ABORT:
	case SVC_PLAN_DROP:
	case SVC_LIST:
	case SVC_DAEMON_INFO:
	case SVC_WORLD:
	case SVC_SHARED:
	case SVC_DRAIN:
	case SVC_CANCEL: /* for a session; cancellations of tasks are refused later */
		return false;
	default:
		return true;
	}
}

/* May a session for administration send this request? */
static bool administers(unsigned opcode)
{
	switch (opcode) {
	case SVC_HELLO:
	case SVC_IDENTIFY:
	case SVC_LIST:
	case SVC_DAEMON_INFO:
	case SVC_WORLD:
	case SVC_CANCEL:
	case SVC_DRAIN:
		return true;
	default:
		return false;
	}
}

/* True, after sending an error: the daemon was drained, and this would be a new job. A further
 * process of a job that already uses the daemon is no new job. */
static bool refused_job(struct server *s, struct session *c, unsigned opcode, uint32_t request_id)
{
	if (!s->refuses_jobs || (opcode != SVC_ATTACH && opcode != SVC_JOIN) || c->comms ||
	    c->account->held[SHARE_RING_BYTES])
		return false;
	session_error(c, opcode, request_id, NCCLSVC_DRAINING,
		      "the daemon was drained, and takes no new jobs");
	return true;
}

static void hello(struct server *s, struct session *c, uint32_t request_id,
		  const struct svc_hello *m)
{
	if (c->state != SESSION_NEW) {
		session_error(c, SVC_HELLO, request_id, NCCLSVC_PROTOCOL,
			      "the session has already sent HELLO");
		return;
	}
	c->version_min = m->version_min;
	c->version_max = m->version_max;
	const unsigned version =
		svc_version_choose((struct svc_versions){SVC_PROTOCOL_MIN, SVC_PROTOCOL_MAX},
				   (struct svc_versions){m->version_min, m->version_max});
	if (!version) {
		session_error(c, SVC_HELLO, request_id, NCCLSVC_VERSION,
			      "the client speaks protocol versions %u to %u, this daemon %d to %d",
			      m->version_min, m->version_max, SVC_PROTOCOL_MIN, SVC_PROTOCOL_MAX);
		session_end(c, NCCLSVC_VERSION, "no common protocol version");
		return;
	}
	if (m->reserved || !svc_text_ends(m->name, sizeof(m->name))) {
		session_error(c, SVC_HELLO, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "the name is not terminated, or a reserved field is not zero");
		return;
	}
	if (c->refused) {
		session_error(c, SVC_HELLO, request_id, NCCLSVC_PERMISSION,
			      "user %u may not use this daemon (access)", c->uid);
		session_end(c, NCCLSVC_PERMISSION, "this user may not use this daemon");
		return;
	}
	if (s->draining) {
		session_error(c, SVC_HELLO, request_id, NCCLSVC_DRAINING,
			      "the daemon is shutting down");
		session_end(c, NCCLSVC_DRAINING, "the daemon is shutting down");
		return;
	}
	memcpy(c->name, m->name, sizeof(c->name));
	svc_make_printable(c->name, sizeof(c->name));
	c->version = (uint16_t)version;
	session_opened(c);
	scheduler_command(s->scheduler,
			  &(struct command){.kind = COMMAND_SESSION_ADD,
					    .session = c->slot,
					    .session_add = {c->id, c->pid, c->uid, c->fd,
							    &c->counts, c->account->number}});
	struct svc_hello_reply r = {
		.version = c->version,
		.version_min = SVC_PROTOCOL_MIN,
		.version_max = SVC_PROTOCOL_MAX,
		.session = c->id,
		.host_ranks = (uint32_t)s->config->ranks,
		.ring_max = (uint32_t)s->config->ring_max,
		.region_bytes_max = s->config->user_region_bytes,
		.daemon_version = NCCLSVC_VERSION_STRING,
	};
	r.mps = gpu_mps_advise(&s->gpus, &c->account->tenant, r.mps_directory);
	session_reply(c, SVC_HELLO, request_id, &r, sizeof(r), NULL, 0);
	log_debug("session %u: %s, pid %d, user %u, protocol version %u", c->id, c->name, c->pid,
		  c->uid, c->version);
}

static void identify(struct session *c, uint32_t request_id, const struct svc_identify *m)
{
	if (!svc_label_ok(m->job, sizeof(m->job))) {
		session_error(c, SVC_IDENTIFY, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "the job's name is not printable ASCII of at most %zu characters",
			      sizeof(m->job) - 1);
		return;
	}
	memcpy(c->job, m->job, sizeof(c->job));
	session_reply(c, SVC_IDENTIFY, request_id, NULL, 0, NULL, 0);
}

static void cancel_session(struct server *s, struct session *c, uint32_t request_id, uint64_t id)
{
	struct session *target =
		id <= UINT32_MAX ? sessions_find(&s->sessions, (uint32_t)id) : NULL;
	if (!target || target->state != SESSION_OPEN) {
		session_error(c, SVC_CANCEL, request_id, NCCLSVC_NOT_FOUND,
			      "there is no session %llu", (unsigned long long)id);
		return;
	}
	if (!session_allows(c, &target->account->tenant)) {
		session_error(c, SVC_CANCEL, request_id, NCCLSVC_PERMISSION,
			      "session %u belongs to user %s", target->id, target->account->owner);
		return;
	}
	struct svc_cancel_reply r = {.cancelled = atomic_load(&target->counts.submitted) -
						  atomic_load(&target->counts.completed)};
	char text[SVC_TEXT_BYTES];
	snprintf(text, sizeof(text), "session ended on request of pid %d", c->pid);
	session_reply(c, SVC_CANCEL, request_id, &r, sizeof(r), NULL, 0);
	session_end(target, NCCLSVC_CANCELLED, text);
}

static void cancel(struct server *s, struct session *c, uint32_t request_id,
		   const struct svc_cancel *m)
{
	uint64_t id = m->id;
	if (m->reserved || m->kind < SVC_CANCEL_TASK || m->kind > SVC_CANCEL_SESSION) {
		session_error(c, SVC_CANCEL, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "unknown kind of cancellation, or reserved is not 0");
		return;
	}
	if (m->kind == SVC_CANCEL_SESSION) {
		cancel_session(s, c, request_id, id);
		return;
	}
	if (refused_memory(c, SVC_CANCEL, request_id))
		return;
	if (c->cancels >= SVC_CANCELS) {
		session_error(c, SVC_CANCEL, request_id, NCCLSVC_BUSY,
			      "%d cancellations of this session are in progress", SVC_CANCELS);
		return;
	}
	struct communicator *comm = NULL;
	if (m->kind == SVC_CANCEL_COMM) {
		for (uint32_t i = 0; i < SVC_COMMS_MAX && !comm; i++)
			if (s->comms.comm_by_slot[i] && s->comms.comm_by_slot[i]->uid == id)
				comm = s->comms.comm_by_slot[i];
		if (!comm) {
			session_error(c, SVC_CANCEL, request_id, NCCLSVC_NOT_FOUND,
				      "there is no communicator %llu", (unsigned long long)id);
			return;
		}
		if (!session_allows(c, &comm->account->tenant)) {
			session_error(c, SVC_CANCEL, request_id, NCCLSVC_PERMISSION,
				      "communicator %llu belongs to user %s",
				      (unsigned long long)id, comm->account->owner);
			return;
		}
		id = comm->slot;
	}
	const uint32_t kernels = comm ? peer_pending(comm) : 0;
	c->cancels++;
	scheduler_command(
		s->scheduler,
		&(struct command){
			.kind = COMMAND_CANCEL,
			.cancel = {.kind = m->kind,
				   .id = id,
				   .asker = c->id,
				   .request_id = request_id,
				   .uid = c->uid,
				   .tenant = c->account->tenant.confined ? c->account->number : 0,
				   .any_user = c->admin,
				   .pid = c->pid,
				   .kernels = kernels},
		});
	if (kernels)
		peer_cancel(comm, c->pid);
}

static void drain(struct server *s, struct session *c, uint32_t request_id,
		  const struct svc_drain *m)
{
	if (m->reserved || m->on > 1) {
		session_error(c, SVC_DRAIN, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "on is neither 0 nor 1, or reserved is not 0");
		return;
	}
	if (!c->admin) {
		session_error(c, SVC_DRAIN, request_id, NCCLSVC_PERMISSION,
			      "only the socket for administration can drain the daemon");
		return;
	}
	if (s->refuses_jobs != (m->on != 0))
		log_info("on request of pid %d, the daemon takes %s", c->pid,
			 m->on ? "no new jobs" : "new jobs again");
	s->refuses_jobs = m->on != 0;
	session_reply(c, SVC_DRAIN, request_id, NULL, 0, NULL, 0);
}

static void make_id(struct server *s, struct session *c, uint32_t request_id)
{
	struct svc_id_reply r;
	if (cluster_new_id(s->cluster, r.id))
		session_error(c, SVC_ID, request_id, NCCLSVC_SYSTEM, "getrandom: %s",
			      strerror(errno));
	else
		session_reply(c, SVC_ID, request_id, &r, sizeof(r), NULL, 0);
}

static void submit(struct server *s, struct session *c, uint32_t request_id,
		   const struct svc_record *r)
{
	struct command cmd = {.kind = COMMAND_TASK, .session = c->slot};
	cmd.task.request_id = request_id;
	cmd.task.record = *r;
	scheduler_command(s->scheduler, &cmd);
}

static void resume(struct server *s, struct session *c, uint32_t request_id,
		   const struct svc_resume *m)
{
	const bool comm = m->kind == SVC_RESUME_COMM, region = m->kind == SVC_RESUME_REGION;
	const bool left = m->kind == SVC_RESUME_LEFT, plan = m->kind == SVC_RESUME_PLAN;
	const bool task = m->kind == SVC_RESUME_TASK, not = m->kind == SVC_RESUME_NOT;
	if (m->kind < SVC_RESUME_SESSION || m->kind > SVC_RESUME_TASKS || m->reserved ||
	    (!task && !m->number != !(comm || region || plan || not )) ||
	    !m->lineage != !(comm || left) || (task && m->number > 1) ||
	    (m->done && !comm && !task) || m->lineage & SVC_LINEAGE_RESUMED || !c->ring) {
		session_error(c, SVC_RESUME, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "unknown kind, a field is out of range, or the session has no ring");
		return;
	}
	/* Epochs have begun with sessions that do not survive. */
	if (m->kind == SVC_RESUME_SESSION && c->comms) {
		session_error(c, SVC_RESUME, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "the session has joined communicators already");
		return;
	}
	if (m->kind == SVC_RESUME_SESSION) {
		/* mpirun restarts no daemon. */
		c->resumes = !cluster_is_together(s->cluster);
		if (c->resumes)
			scheduler_command(s->scheduler,
					  &(struct command){.kind = COMMAND_SESSION_RESUMES,
							    .session = c->slot});
	} else if (region) {
		c->next_region = *m;
	} else if (plan) {
		c->next_plan = *m;
	} else if (m->kind >= SVC_RESUME_TASK) {
		scheduler_command(
			s->scheduler,
			&(struct command){.kind = COMMAND_HELD, .session = c->slot, .held = *m});
	} else {
		c->next_join = *m;
	}
	if (comm && !c->resumed)
		log_info("session %u (%s, pid %d) continues from the previous daemon", c->id,
			 c->name, c->pid);
	c->resumed = c->resumed || comm;
	session_reply(c, SVC_RESUME, request_id, NULL, 0, NULL, 0);
}

/* The daemon shuts down, and the session will send the request to its successor: it is not
 * answered. */
static bool is_for_successor(const struct server *s, const struct session *c, unsigned opcode)
{
	return s->draining && c->resumes &&
	       (opcode == SVC_JOIN || opcode == SVC_SPLIT || opcode == SVC_PLAN_COMMIT ||
		opcode == SVC_RESUME || opcode == SVC_CONTROLS || opcode == SVC_SUBMIT);
}

/* Checks the reserved field of the small requests, 4 bytes after their one argument. */
static bool reserved_is_zero(struct session *c, const struct svc_header *h, uint32_t reserved)
{
	if (!reserved)
		return true;
	session_error(c, h->opcode, h->request_id, NCCLSVC_INVALID_ARGUMENT,
		      "a reserved field is not zero");
	return false;
}

static void handle(struct server *s, struct session *c, const struct svc_header *h,
		   const void *body, int *fds)
{
	if (c->state == SESSION_NEW && h->opcode != SVC_HELLO) {
		session_error(c, h->opcode, h->request_id, NCCLSVC_PROTOCOL,
			      "the first message must be HELLO");
		return;
	}
	/* These events precede this request, and may end the session. */
	server_handle_events(s);
	remote_handle_own(&s->comms);
	if (c->state == SESSION_CLOSING)
		return;
	if (c->admin && !administers(h->opcode)) {
		session_error(c, h->opcode, h->request_id, NCCLSVC_PERMISSION,
			      "this socket is only for inspection and cancellation: jobs use %s, "
			      "and a session for administration is opened with no_ring",
			      s->path);
		return;
	}
	if (refused_job(s, c, h->opcode, h->request_id) || is_for_successor(s, c, h->opcode))
		return;
	if (takes_memory(h->opcode) && refused_memory(c, h->opcode, h->request_id))
		return;
	switch (h->opcode) {
	case SVC_HELLO:
		hello(s, c, h->request_id, body);
		break;
	case SVC_IDENTIFY:
		identify(c, h->request_id, body);
		break;
	case SVC_ATTACH:
	case SVC_ATTACH_AGAIN:
		memory_attach(&s->memory, c, h->opcode, h->request_id, body, fds[0]);
		break;
	case SVC_REGION_ADD:
		memory_add(&s->memory, c, h->request_id, body, fds[0]);
		break;
	case SVC_REGION_DEL:
		memory_remove(&s->memory, c, h->request_id, body);
		break;
	case SVC_REGION_CUDA:
		gpu_memory_add(&s->memory, c, h->request_id, body, -1);
		break;
	case SVC_REGION_CUDA_FD:
		gpu_memory_add(&s->memory, c, h->request_id, body, fds[0]);
		break;
	case SVC_REDOP_ADD:
		comm_redop_add(&s->comms, c, h->request_id, body);
		break;
	case SVC_REDOP_DEL:
		comm_redop_del(&s->comms, c, h->request_id, body);
		break;
	case SVC_REGION_RANGE:
		gpu_range_add(&s->memory, c, h->request_id, body);
		break;
	case SVC_JOIN:
		comm_join(&s->comms, c, h->request_id, body);
		break;
	case SVC_JOIN_CANCEL: {
		const struct svc_join_cancel *m = body;
		if (reserved_is_zero(c, h, m->reserved))
			comm_join_cancel(c, h->request_id, m->request_id);
		break;
	}
	case SVC_LEAVE: {
		const struct svc_leave *m = body;
		if (reserved_is_zero(c, h, m->reserved))
			comm_leave(c, h->request_id, m->comm);
		break;
	}
	case SVC_ABORT:
		comm_abort(c, h->request_id, body);
		break;
	case SVC_DESCRIBE: {
		const struct svc_describe *m = body;
		if (reserved_is_zero(c, h, m->reserved))
			comm_describe(c, h->request_id, m);
		break;
	}
	case SVC_REFUSED: {
		const struct svc_refused *m = body;
		if (reserved_is_zero(c, h, m->reserved[0] | m->reserved[1] | m->reserved[2]))
			report_refusal(c, h->request_id, m);
		break;
	}
	case SVC_STAGING:
		peer_staging_give(c, h->request_id, body);
		break;
	case SVC_SHARES: {
		const struct svc_shares *m = body;
		if (reserved_is_zero(c, h, m->reserved[0] | m->reserved[1]))
			shares_bell_give(c, h->request_id);
		break;
	}
	case SVC_SHARE:
		shares_add(c, h->request_id, body);
		break;
	case SVC_SHARED:
		shares_read(c, h->request_id, body);
		break;
	case SVC_SHARED_PART:
		shares_part(c, h->request_id, body);
		break;
	case SVC_RESUME:
		resume(s, c, h->request_id, body);
		break;
	case SVC_CONTROLS: {
		const struct svc_controls *m = body;
		if (reserved_is_zero(c, h, m->reserved[0] | m->reserved[1]))
			peer_controls_note(c, h->request_id, fds[0]);
		break;
	}
	case SVC_SLEEP:
		comm_sleep(c, h->request_id, body);
		break;
	case SVC_SPLIT:
		comm_split(c, h->request_id, body);
		break;
	case SVC_PLAN_COMMIT:
		plan_commit(c, h->request_id, body, fds[0]);
		break;
	case SVC_PLAN_DROP:
		plan_terminate(&s->comms, c, h->request_id, body);
		break;
	case SVC_SUBMIT:
		submit(s, c, h->request_id, body);
		break;
	case SVC_CAPTURED_GROUP_DEL: {
		struct command cmd = {.kind = COMMAND_CAPTURED_GROUP_DEL, .session = c->slot};
		cmd.captured_group = *(const struct svc_captured_group_del *)body;
		scheduler_command(s->scheduler, &cmd);
		session_reply(c, h->opcode, h->request_id, NULL, 0, NULL, 0);
		break;
	}
	case SVC_LIST:
		list_send(s, c, h->request_id, body);
		break;
	case SVC_DAEMON_INFO: {
		const struct svc_daemon_info_request *m = body;
		if (reserved_is_zero(c, h, m->reserved != 0))
			list_daemon(s, c, h->request_id);
		break;
	}
	case SVC_WORLD: {
		const struct svc_world *m = body;
		if (reserved_is_zero(c, h, m->reserved != 0))
			world_tell(&s->comms, c, h->request_id);
		break;
	}
	case SVC_CANCEL:
		cancel(s, c, h->request_id, body);
		break;
	case SVC_DRAIN:
		drain(s, c, h->request_id, body);
		break;
	case SVC_ID:
		if (reserved_is_zero(c, h, ((const struct svc_id *)body)->reserved != 0))
			make_id(s, c, h->request_id);
		break;
	}
}

static bool registers_memory(unsigned opcode)
{
	return opcode == SVC_REGION_ADD || opcode == SVC_REGION_CUDA ||
	       opcode == SVC_REGION_CUDA_FD || opcode == SVC_REGION_RANGE;
}

void request_handle(struct server *s, struct session *c, const struct svc_header *h,
		    const void *body, int *fds)
{
	handle(s, c, h, body, fds);
	if (c->waiting.asked) /* it will be handled again */
		return;
	/* Also if the request was refused: what RESUME says is not for a later one. */
	if (registers_memory(h->opcode))
		c->next_region = (struct svc_resume){0};
	if (h->opcode == SVC_PLAN_COMMIT)
		c->next_plan = (struct svc_resume){0};
	if (h->opcode == SVC_JOIN) {
		c->next_join = (struct svc_resume){0};
		peer_controls_forget(c);
	}
}
