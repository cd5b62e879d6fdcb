/* SPDX-License-Identifier: Apache-2.0
 * Trainers' memory on GPUs: registered by handle, imported by the GPU's worker, and imported again
 * by the worker that replaces it. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/timings.h"
#include "memory.h"
#include "proto/fdio.h"
#include "sched/api/scheduler.h"
#include "session/sessions.h"

#define MIB (UINT64_C(1) << 20)

struct region_call *gpu_region_call(struct memory *s, struct session *c, unsigned opcode,
				    uint32_t request_id, uint32_t region)
{
	struct region_call *call = calloc(1, sizeof(*call));
	if (call)
		*call = (struct region_call){.memory = s,
					     .session_id = c->id,
					     .request_id = request_id,
					     .region = region,
					     .import = ++s->last_import,
					     .opcode = opcode};
	return call;
}

struct gpu *gpu_usable(struct memory *s, struct session *c, unsigned opcode, uint32_t request_id,
		       int32_t device)
{
	struct gpu *g = gpu_find(s->gpus, device);
	if (!g)
		session_error(c, opcode, request_id, NCCLSVC_UNSUPPORTED,
			      "the daemon has no worker for device %d", device);
	else if (g->sock < 0 && !g->rested)
		session_error(c, opcode, request_id, NCCLSVC_WORKER_LOST,
			      "the worker of device %d is being restarted: try again", device);
	return g && (g->sock >= 0 || g->rested) ? g : NULL;
}

static void tell_absent(struct memory *s, const struct session *c, uint32_t region, bool again)
{
	const struct mapping *m = &c->mappings[region];
	scheduler_command(s->scheduler, &(struct command){.kind = COMMAND_REGION_ADD,
							  .session = c->slot,
							  .region = {.region = region,
								     .bytes = m->bytes,
								     .device = m->device,
								     .absent = true,
								     .again = again}});
}

void gpu_region_absent(struct memory *s, struct session *c, uint32_t request_id, uint32_t region,
		       unsigned opcode)
{
	const struct svc_region_reply reply = {.region = region};
	c->mappings[region].pending = false;
	c->mappings[region].absent = true;
	tell_absent(s, c, region, false);
	session_reply(c, opcode, request_id, &reply, sizeof(reply), NULL, 0);
}

static void close_address(struct gpu *g, uint64_t address)
{
	gpu_tell(g,
		 &(struct worker_message){.kind = WORKER_REGION_CLOSE, .region.address = address});
}

static void forget(struct memory *s, struct session *c, struct mapping *m)
{
	s->callbacks->region_gone(s->owner, m);
	if (m->fd >= 0)
		account_close(c->account, &m->fd, 1);
	memory_give(c, m->kind, m->bytes);
	gpu_range_free(m->range);
	handle_unbind(m);
	memory_clear(c, m);
}

static void count_import(struct gpu *g, const struct mapping *m, int by)
{
	if (m->range) /* its parts are counted */
		return;
	g->info.import_bytes += by > 0 ? m->bytes : -m->bytes;
	g->info.imports += (uint32_t)by;
}

/* True: the handle's memory belongs to another user. */
static bool handle_refused(struct memory *s, const struct session *c, struct mapping *m,
			   uint64_t address, struct worker_message *refusal)
{
	*refusal = (struct worker_message){.result = handle_mapped(&s->handles, c, m, address)};
	snprintf(refusal->text, sizeof(refusal->text), "%s", handle_refusal(refusal->result));
	return refusal->result;
}

static void region_answered(struct gpu *g, struct region_call *call,
			    const struct worker_message *answer)
{
	struct memory *s = call->memory;
	struct session *c = sessions_find(s->sessions, call->session_id);
	struct mapping *m = NULL;
	bool good = answer && !answer->result;
	if (c && c->state == SESSION_OPEN && c->mappings[call->region].import == call->import)
		m = &c->mappings[call->region];
	if (!m) { /* it was given up meanwhile */
		if (good)
			close_address(g, answer->region.address);
		free(call);
		return;
	}
	m->pending = false;
	m->absent = m->absent && !answer; /* the worker's successor imports it */
	struct worker_message refusal;
	if (good && m->kind == SVC_REGION_IPC &&
	    handle_refused(s, c, m, answer->region.address, &refusal)) {
		close_address(g, answer->region.address);
		answer = &refusal;
		good = false;
	}
	if (good) {
		m->address = answer->region.address;
		count_import(g, m, 1);
		scheduler_command(
			s->scheduler,
			&(struct command){.kind = COMMAND_REGION_ADD,
					  .session = c->slot,
					  .region = {.region = call->region,
						     .base = (void *)(uintptr_t)m->address,
						     .bytes = m->bytes,
						     .request_id = call->request_id,
						     .device = m->device,
						     .again = call->again}});
		if (call->again) {
			free(call);
			return;
		}
		struct svc_region_reply reply = {.region = call->region};
		session_reply(c, call->opcode, call->request_id, &reply, sizeof(reply), NULL, 0);
	} else if (call->again) {
		if (c->unrestored++)
			log_debug("session %u: GPU memory region %u is lost, too", c->id,
				  call->region);
		else
			log_info("session %u (%s, pid %d): GPU memory region %u is lost: %s", c->id,
				 c->name, c->pid, call->region,
				 answer ? answer->text : "the worker is lost");
	} else {
		session_error(c, call->opcode, call->request_id,
			      answer ? answer->result : NCCLSVC_WORKER_LOST, "gpu%d: %.200s",
			      g->index, answer ? answer->text : "its worker was lost");
		forget(s, c, m);
	}
	free(call);
}

void gpu_region_answered(struct gpu *g, struct region_call *call,
			 const struct worker_message *answer)
{
	struct memory *s = call->memory;
	const uint32_t id = call->session_id;
	const bool again = call->again;
	region_answered(g, call, answer);
	struct session *c = again ? sessions_find(s->sessions, id) : NULL;
	if (!c || --c->restoring || c->state != SESSION_OPEN)
		return;
	if (c->unrestored > 1)
		log_info("session %u (%s, pid %d): %u regions of GPU memory in all are lost", c->id,
			 c->name, c->pid, c->unrestored);
	c->unrestored = 0;
	s->callbacks->restored(s->owner, c);
}

static enum turn asked(bool sent)
{
	return sent ? TURN_ASKED : TURN_LATER;
}

static enum turn import(struct gpu *g, const struct session *c, const struct mapping *m,
			struct region_call *call)
{
	struct worker_message w = {
		.kind = WORKER_IMPORT,
		.region = {.kind = m->kind,
			   .bytes = m->bytes,
			   .buffer_id = m->buffer_id,
			   /* A process in another PID namespace shares its memory with no other. */
			   .pid = c->pid > 0 ? c->pid : -(int32_t)c->id}};
	memcpy(w.region.handle, m->handle, sizeof(w.region.handle));
	return asked(gpu_ask(g, &w, m->fd, turns_answered, call, gpu_patience_ns(g->gpus)));
}

static enum turn tell_session(struct gpu *g, const struct session *c, struct region_call *call)
{
	const struct worker_message w = {.kind = WORKER_SESSION,
					 .session = {.slot = c->slot,
						     .entries = c->entries,
						     .bytes = c->ring_size,
						     .gpu = (uint32_t)g->index}};
	return asked(gpu_ask(g, &w, c->ring_fd, turns_answered, call, gpu_patience_ns(g->gpus)));
}

enum turn gpu_region_ask(struct gpu *g, struct session *c, struct region_call *call)
{
	struct mapping *m = call->region ? &c->mappings[call->region] : NULL;
	if (g->sock < 0 && g->rested) /* until the last worker has exited */
		return TURN_LATER;
	if (!m)
		return tell_session(g, c, call);
	if (m->import != call->import)
		return TURN_GONE;
	if (m->range)
		return gpu_range_map(call->memory, g, c, m, call);
	return import(g, c, m, call);
}

void gpu_memory_add(struct memory *s, struct session *c, uint32_t request_id,
		    const struct svc_region_cuda *r, int fd)
{
	unsigned opcode = fd >= 0 ? SVC_REGION_CUDA_FD : SVC_REGION_CUDA;
	if (fd >= 0 && svc_fd_kind(fd) == SVC_FD_OTHER) {
		session_error(c, opcode, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "the file descriptor is not GPU memory: pass the one that "
			      "cuMemExportToShareableHandle returned");
		return;
	}
	struct gpu *g = gpu_usable(s, c, opcode, request_id, r->device);
	if (!g)
		return;
	if (r->reserved || !r->bytes || r->bytes > SVC_REGION_MAX) {
		session_error(c, opcode, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "a region has 1 to 2^46 bytes, and its reserved field is zero");
		return;
	}
	uint32_t i = memory_next_region(c);
	struct region_call *call = i ? gpu_region_call(s, c, opcode, request_id, i) : NULL;
	if (!call) {
		session_error(c, opcode, request_id, NCCLSVC_LIMIT,
			      "a session has at most %d regions", SVC_SESSION_REGIONS - 1);
		return;
	}
	const uint32_t kind = fd >= 0 ? SVC_REGION_VMM : SVC_REGION_IPC;
	if (!memory_take(c, opcode, request_id, kind, r->bytes)) {
		free(call);
		return;
	}
	const int own = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
	if (own < 0 && fd >= 0) {
		memory_give(c, kind, r->bytes);
		free(call);
		session_error(c, opcode, request_id, NCCLSVC_NO_MEMORY,
			      "the daemon has run out of file descriptors");
		return;
	}
	struct mapping *m = memory_set(c, i,
				       &(struct mapping){.used = true,
							 .pending = true,
							 .import = call->import,
							 .kind = kind,
							 .device = r->device,
							 .bytes = r->bytes,
							 .buffer_id = r->buffer_id,
							 .base_there = r->base,
							 .since_ns = clock_now(),
							 .fd = own});
	memcpy(m->handle, r->handle, sizeof(m->handle));
	const ncclsvc_result bound =
		kind == SVC_REGION_IPC ? handle_bind(&s->handles, c, m) : NCCLSVC_OK;
	if (bound) {
		session_error(c, opcode, request_id, bound, "%s", handle_refusal(bound));
		forget(s, c, m);
		free(call);
		return;
	}
	if (gpu_serves(g)) {
		turns_add(g, c, call);
		return;
	}
	free(call);
	gpu_region_absent(s, c, request_id, i, opcode);
}

void gpu_memory_close(struct memory *s, struct session *c, struct mapping *m)
{
	struct gpu *g = s->gpus->gpu[m->device];
	if (m->address) {
		count_import(g, m, -1);
		close_address(g, m->address);
	}
	forget(s, c, m);
}

static void say_mapped(const struct session *c, const struct mapping *m, const char *why)
{
	log_info("session %u (%s, pid %d): %" PRIu64
		 " MiB of gpu%d that it frees stay allocated: %s",
		 c->id, c->name, c->pid, (m->bytes + MIB - 1) / MIB, m->device, why);
}

/* A REGION_DEL whose worker is closing the import. Until then the user is charged for the region.
 */
struct closing {
	struct memory *memory;
	uint32_t session, request_id, region;
	uint64_t import;
};

static void closed(struct gpu *g, void *arg, const struct worker_message *answer)
{
	struct closing *closing = arg;
	struct session *c = sessions_find(closing->memory->sessions, closing->session);
	if (c && c->state == SESSION_OPEN &&
	    c->mappings[closing->region].import == closing->import) {
		if (answer && answer->result)
			say_mapped(c, &c->mappings[closing->region], answer->text);
		forget(closing->memory, c, &c->mappings[closing->region]);
		if (answer && answer->result)
			session_error(c, SVC_REGION_DEL, closing->request_id, answer->result,
				      "gpu%d: %.200s", g->index, answer->text);
		else /* a lost worker has released everything */
			session_reply(c, SVC_REGION_DEL, closing->request_id, NULL, 0, NULL, 0);
	}
	free(closing);
}

void gpu_memory_close_answered(struct memory *s, struct session *c, struct mapping *m,
			       uint32_t request_id)
{
	struct gpu *g = s->gpus->gpu[m->device];
	const uint64_t wait_ns = m->wait_ms * UINT64_C(1000000);
	const struct worker_message w = {.kind = WORKER_REGION_CLOSE,
					 .region = {.address = m->address, .within_ns = wait_ns}};
	struct closing *closing = nofail_calloc(1, sizeof(*closing), "a region's end");
	*closing = (struct closing){.memory = s,
				    .session = c->id,
				    .request_id = request_id,
				    .region = (uint32_t)(m - c->mappings),
				    .import = m->import = ++s->last_import};
	count_import(g, m, -1);
	m->address = 0;
	m->pending = true;
	gpu_ask(g, &w, -1, closed, closing, wait_ns + gpu_patience_ns(g->gpus));
}

void gpu_memory_lost(struct memory *s, struct gpu *g)
{
	struct session *c;
	DL_FOREACH (s->sessions->all, c)
		for (uint32_t i = 1; i < c->nmappings; i++) {
			struct mapping *m = &c->mappings[i];
			if (!m->address || m->device != g->index)
				continue;
			m->address = 0;
			m->absent = true;
			handle_unmapped(m);
			/* The next worker's memory at that address must not be touched on its
			 * behalf. A pending region is being deleted: the scheduler has forgotten
			 * it. */
			if (c->state == SESSION_OPEN && !m->pending)
				tell_absent(s, c, i, true);
		}
	g->info.imports = 0;
	g->info.import_bytes = 0;
}

static void restore(struct memory *s, struct gpu *g, struct session *c, bool ranges)
{
	for (uint32_t i = 1; i < c->nmappings; i++) {
		struct mapping *m = &c->mappings[i];
		if (!m->used || m->kind == SVC_REGION_MEMFD || m->device != g->index ||
		    m->pending || !m->range == ranges)
			continue;
		struct region_call *call = gpu_region_call(s, c, SVC_REGION_CUDA, 0, i);
		if (!call)
			continue;
		call->again = m->pending = true;
		c->restoring++;
		m->import = call->import;
		turns_add(g, c, call);
	}
}

void gpu_memory_restore(struct memory *s, struct gpu *g)
{
	struct session *c;
	DL_FOREACH (s->sessions->all, c) {
		c->gpu_asked &= ~(1u << g->index);
		c->gpu_known &= ~(1u << g->index);
		if (c->state != SESSION_OPEN)
			continue;
		restore(s, g, c, false);
		restore(s, g, c, true); /* their parts first */
	}
}

/* ---- Timelines ---- */

void gpu_session_answered(struct gpu *g, struct region_call *call,
			  const struct worker_message *answer)
{
	struct memory *s = call->memory;
	struct session *c = sessions_find(s->sessions, call->session_id);
	free(call);
	if (!c || c->state != SESSION_OPEN)
		return;
	if (answer && answer->result) {
		log_error("session %u (%s, pid %d) ends: gpu%d: %s", c->id, c->name, c->pid,
			  g->index, answer->text);
		session_end(c, answer->result, answer->text);
		return;
	}
	if (!answer) {
		c->gpu_asked &= ~(1u << g->index);
		return; /* the next worker will be asked */
	}
	c->gpu_known |= 1u << g->index;
	s->callbacks->session_known(s->owner, c);
}

bool gpu_session_known(struct memory *s, struct gpu *g, struct session *c)
{
	uint32_t bit = 1u << g->index;
	if (!c->ring || c->gpu_known & bit)
		return true;
	if (c->gpu_asked & bit || g->sock < 0)
		return false;
	struct region_call *call = gpu_region_call(s, c, 0, 0, 0);
	if (!call)
		return false;
	c->gpu_asked |= bit;
	turns_add(g, c, call);
	return false;
}

void gpu_session_close(struct memory *s, struct session *c)
{
	turns_forget(c);
	for (uint32_t i = 0; i < s->gpus->ngpus; i++)
		if (c->gpu_asked & 1u << i)
			gpu_tell(s->gpus->gpu[i],
				 &(struct worker_message){.kind = WORKER_SESSION_CLOSE,
							  .session.slot = c->slot});
}
