/* SPDX-License-Identifier: Apache-2.0
 * GPUs' workers: start, messages, and replacement when they die. */
#include "gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/timings.h"
#include "coord/coord.h"
#include "mps_service.h"
#include "nccl_comm.h"
#include "proto/fdio.h"
#include "proto/names.h"
#include "sched/api/scheduler.h"

static void on_tick(uv_timer_t *timer);
static void on_backoff(uv_timer_t *timer);

uint64_t gpu_patience_ns(const struct gpus *s)
{
	return (uint64_t)s->config->worker_seconds * 1000000000;
}

struct gpu *gpu_find(struct gpus *s, int32_t device)
{
	if (device < 0 || (uint32_t)device >= s->ngpus)
		return NULL;
	struct gpu *g = s->gpu[device];
	return g->info.state == NCCLSVC_DEVICE_FAILED ? NULL : g;
}

static void set_state(struct gpu *g, uint32_t state)
{
	g->info.state = state;
	g->since_ns = clock_now();
}

/* The total progress of its slots. */
static uint64_t work_done(const struct gpu *g)
{
	uint64_t sum = 0;
	for (int i = 0; i < WORKER_COMM_SLOTS; i++)
		sum += atomic_load_explicit(&g->queue->slots[i].completed, memory_order_relaxed);
	return sum;
}

static void start_ticking(struct gpu *g)
{
	g->ticked_ns = clock_now();
	uv_timer_start(&g->timer, on_tick, WORKER_TICK_MS, WORKER_TICK_MS);
}

/* ---- Messages ---- */

static void on_readable(uv_poll_t *poll, int status, int events);

static void drop_message(struct gpu *g, struct gpu_message *o)
{
	DL_DELETE(g->out, o);
	free(o);
}

static void watch(struct gpu *g)
{
	if (!g->poll)
		return;
	uv_poll_start(g->poll, g->out ? UV_READABLE | UV_WRITABLE : UV_READABLE, on_readable);
}

/* A socket can hold as many of this daemon's descriptors as it may open (ETOOMANYREFS). */
static bool is_full(int error)
{
	return error == -EAGAIN || error == -ENOBUFS || error == -ETOOMANYREFS;
}

static void send_message(struct gpu *g, const struct worker_message *m)
{
	int error = g->out ? -EAGAIN : svc_send(g->sock, m, sizeof(*m), NULL, 0, MSG_DONTWAIT);
	if (!error)
		return;
	struct gpu_message *o = is_full(error) ? calloc(1, sizeof(*o)) : NULL;
	if (!o) {
		gpu_kill(g, "its socket failed, or the daemon has no memory to queue a message");
		return;
	}
	o->message = *m;
	DL_APPEND(g->out, o);
	watch(g);
}

/* False: not now. Messages that wait for the socket carry no descriptors. */
static bool send_with_fd(struct gpu *g, const struct worker_message *m, int fd)
{
	int error = g->out ? -EAGAIN : svc_send(g->sock, m, sizeof(*m), &fd, 1, MSG_DONTWAIT);
	if (error && !is_full(error))
		gpu_kill(g, "its socket failed");
	return !error || !is_full(error);
}

static void send_rest(struct gpu *g)
{
	while (g->out) {
		struct gpu_message *o = g->out;
		int error =
			svc_send(g->sock, &o->message, sizeof(o->message), NULL, 0, MSG_DONTWAIT);
		if (is_full(error))
			return;
		drop_message(g, o);
	}
	watch(g);
}

void gpu_tell(struct gpu *g, const struct worker_message *m)
{
	if (g->sock >= 0)
		send_message(g, m);
}

bool gpu_ask(struct gpu *g, const struct worker_message *m, int fd, gpu_done *done, void *arg,
	     uint64_t within_ns)
{
	const bool ends = g->gone && g->alive && m->kind == WORKER_COMM_ABORT;
	struct gpu_call *call = g->sock >= 0 || ends ? calloc(1, sizeof(*call)) : NULL;
	if (!call) {
		done(g, arg, NULL);
		return true;
	}
	struct worker_message keyed = *m;
	keyed.key = ++g->last_key;
	*call = (struct gpu_call){.done = done,
				  .arg = arg,
				  .key = keyed.key,
				  .asked_ns = clock_now(),
				  .within_ns = within_ns,
				  .aborts = m->kind == WORKER_COMM_ABORT,
				  .beside =
					  m->kind == WORKER_RANGE || m->kind == WORKER_REGION_CLOSE,
				  .patient = m->kind == WORKER_COMM_INIT};
	if (!ends && fd >= 0 && !send_with_fd(g, &keyed, fd)) {
		free(call);
		return false;
	}
	DL_APPEND(g->calls, call);
	if (uv_timer_get_repeat(&g->timer) > WORKER_TICK_MS)
		start_ticking(g);
	if (!ends && fd < 0) /* otherwise its end is the answer */
		send_message(g, &keyed);
	return true;
}

static void end_call(struct gpu *g, struct gpu_call *call, const struct worker_message *answer)
{
	DL_DELETE(g->calls, call);
	if (!call->aborts)
		g->heard_ns = clock_now();
	call->done(g, call->arg, answer);
	free(call);
}

void gpu_shorten_deadline(struct gpu *g, const void *arg, uint64_t within_ns)
{
	struct gpu_call *call;
	DL_FOREACH (g->calls, call) {
		if (call->arg != arg || call->within_ns <= within_ns)
			continue;
		call->asked_ns = clock_now();
		call->within_ns = within_ns;
	}
}

/* After it is reaped, another process may get its pid. */
static void kill_process(struct gpu *g)
{
	if (g->alive && uv_is_active((uv_handle_t *)&g->process))
		uv_process_kill(&g->process, SIGKILL);
}

void gpu_kill(struct gpu *g, const char *why)
{
	if (!g->alive || g->gone || g->killed_ns)
		return;
	g->killed_ns = clock_now();
	log_error("gpu%d: the daemon kills worker %d, and starts another: %s", g->index,
		  g->info.pid, why);
	snprintf(g->info.text, sizeof(g->info.text), "killed: %s", why);
	kill_process(g);
}

/* ---- Messages from workers ---- */

static void on_hello(struct gpu *g, const struct worker_message *m)
{
	g->info.memory_bytes = m->device.memory_bytes;
	g->info.worker_bytes = m->device.worker_bytes;
	g->info.driver_version = m->device.driver_version;
	if (!g->gpus->staging)
		g->info.nccl_version = m->device.nccl_version;
	g->info.mps = m->device.mps;
	g->info.mps_server = m->device.mps_server;
	set_state(g, NCCLSVC_DEVICE_READY);
	g->served = true;
	g->done_before = work_done(g);
	char carrier[64] = "staged through host memory";
	if (!g->gpus->staging)
		snprintf(carrier, sizeof(carrier), "NCCL %d.%d.%d", g->info.nccl_version / 10000,
			 g->info.nccl_version % 10000 / 100, g->info.nccl_version % 100);
	log_info("gpu%d: %s, worker %d; %s%s", g->index, g->info.name, g->info.pid, carrier,
		 g->info.mps == NCCLSVC_MPS_ACTIVE ? "; shares the GPU through MPS" : "");
	staging_worker_ready(g);
	gpu_need(g);
	loop_deadline(g->gpus->loop, g->used_ns);
	g->gpus->callbacks->worker_ready(g->gpus->owner, g);
}

static void take_message(struct gpu *g, const struct worker_message *m)
{
	switch (m->kind) {
	case WORKER_HELLO:
		on_hello(g, m);
		break;
	case WORKER_DYING:
		log_error("gpu%d: worker %d: %s", g->index, g->info.pid, m->text);
		snprintf(g->info.text, sizeof(g->info.text), "%.127s", m->text);
		if (m->result == NCCLSVC_UNSUPPORTED)
			g->info.mps = NCCLSVC_MPS_UNKNOWN;
		break;
	case WORKER_COMM_FAILED:
		snprintf(g->info.text, sizeof(g->info.text), "%.127s", m->text);
		nccl_comm_slot_failed(g->gpus, g, m->comm.slot, m->text);
		break;
	default: {
		struct gpu_call *call;
		DL_SEARCH_SCALAR(g->calls, call, key, m->key);
		if (call)
			end_call(g, call, m);
	}
	}
}

static void on_poll_closed(uv_handle_t *handle)
{
	struct gpu *g = handle->data;
	g->gpus->loop->handles--;
	free(handle);
}

static void hang_up(struct gpu *g)
{
	if (g->sock < 0)
		return;
	if (g->poll) {
		uv_poll_stop(g->poll);
		uv_close((uv_handle_t *)g->poll, on_poll_closed);
	}
	g->poll = NULL;
	close(g->sock);
	g->sock = -1;
	while (g->out)
		drop_message(g, g->out);
}

/* Aborts wait until the GPU has finished with the slot. */
static void end_calls(struct gpu *g, bool aborts)
{
	struct gpu_call *call, *next;
	DL_FOREACH_SAFE (g->calls, call, next)
		if (aborts || !call->aborts)
			end_call(g, call, NULL);
}

/* Called when its socket is closed, or when the process is reaped, up to 0.1 s later. Until then
 * its streams may run, and write to trainers' memory and timelines. */
static void worker_gone(struct gpu *g)
{
	if (g->gone)
		return;
	g->gone = true;
	g->of_use = g->served &&
		    (work_done(g) != g->done_before || clock_now() - g->since_ns > STEADY_NS);
	hang_up(g);
	set_state(g, NCCLSVC_DEVICE_LOST);
	if (g->served && g->info.mps == NCCLSVC_MPS_ACTIVE && !g->gpus->loop->closing)
		gpu_mps_worker_lost(g->gpus);
	kill_process(g); /* if it is still alive */
	staging_worker_lost(g);
	nccl_comm_gpu_lost(g->gpus, g);
	end_calls(g, false);
	g->gpus->callbacks->worker_lost(g->gpus->owner, g);
	if (g->calls)
		start_ticking(g);
}

static void read_messages(struct gpu *g)
{
	const uv_poll_t *poll = g->poll;
	struct worker_message m;
	int fds[SVC_FDS_MAX];
	unsigned nfds;
	while (g->sock >= 0 && g->poll == poll) {
		ssize_t n = svc_recv(g->sock, &m, sizeof(m), fds, &nfds, MSG_DONTWAIT);
		if (n == -EAGAIN)
			return;
		if (n != (ssize_t)sizeof(m)) {
			svc_close_fds(fds, nfds < SVC_FDS_MAX ? nfds : SVC_FDS_MAX);
			worker_gone(g);
			return;
		}
		m.text[sizeof(m.text) - 1] = '\0';
		take_message(g, &m);
		svc_close_fds(fds, nfds < SVC_FDS_MAX ? nfds : SVC_FDS_MAX);
	}
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
	struct gpu *g = poll->data;
	if (status < 0)
		return; /* its exit is handled */
	if (events & UV_WRITABLE)
		send_rest(g);
	read_messages(g);
}

/* ---- Start and end of workers ---- */

static void start_later(struct gpu *g)
{
	uv_timer_stop(&g->timer);
	uv_timer_start(&g->timer, on_backoff, g->backoff_ms, 0);
	g->backoff_ms *= 2;
	if (g->backoff_ms < WORKER_AGAIN_MS)
		g->backoff_ms = WORKER_AGAIN_MS;
	if (g->backoff_ms > WORKER_AGAIN_MS_MAX)
		g->backoff_ms = WORKER_AGAIN_MS_MAX;
}

static void on_process_closed(uv_handle_t *handle)
{
	struct gpu *g = handle->data;
	g->gpus->loop->handles--;
	g->alive = false;
	g->info.pid = 0;
	if (g->resting)
		uv_timer_stop(&g->timer);
	else if (!g->gpus->loop->closing)
		start_later(g);
}

static void log_exit(struct gpu *g, int64_t code, int signal)
{
	if (!g->info.text[0] || g->served)
		log_error("gpu%d: worker %d %s %d; epochs with members on this GPU end, and "
			  "the daemon starts another worker",
			  g->index, g->info.pid,
			  signal ? "was ended by signal" : "exited with code",
			  signal ? signal : (int)code);
	if (!g->info.text[0])
		snprintf(g->info.text, sizeof(g->info.text), "the worker %s %d",
			 signal ? "was ended by signal" : "exited with code",
			 signal ? signal : (int)code);
}

static void on_worker_exit(uv_process_t *process, int64_t code, int signal)
{
	struct gpu *g = process->data;
	read_messages(g); /* the worker's last messages */
	worker_gone(g);
	end_calls(g, true);
	if (!g->gpus->loop->closing && !g->rested)
		log_exit(g, code, signal);
	/* A worker that has served tasks is replaced at once. Only workers that never do get
	 * back-off.
	 */
	if (g->of_use || g->rested)
		g->backoff_ms = WORKER_AGAIN_SOON_MS;
	g->info.restarts += !g->rested;
	uv_close((uv_handle_t *)process, on_process_closed);
}

/* The worker may still be busy with an earlier request. */
static bool behind_another(const struct gpu *g, const struct gpu_call *call)
{
	const struct gpu_call *other;
	DL_FOREACH (g->calls, other) {
		if (other == call)
			return false;
		if (other->patient)
			return true;
	}
	return false;
}

/* A worker's deadline starts when it is ready, and restarts with each reply. */
static bool overdue(const struct gpu *g, const struct gpu_call *call, uint64_t now)
{
	if (call->patient && behind_another(g, call))
		return false;
	uint64_t since = call->asked_ns > g->since_ns ? call->asked_ns : g->since_ns;
	if (g->resumed_ns > since)
		since = g->resumed_ns;
	if (!call->aborts && g->heard_ns > since)
		since = g->heard_ns;
	return now > since && now - since > call->within_ns;
}

static void on_pong(struct gpu *g, void *arg, const struct worker_message *answer)
{
	(void)g;
	(void)arg;
	(void)answer; /* the worker reports failures itself */
}

static uint64_t ping_pause(const struct gpu *g)
{
	uint64_t patience = gpu_patience_ns(g->gpus);
	return patience / 4 < WORKER_PING_NS ? patience / 4 : WORKER_PING_NS;
}

/* Detects a worker stuck in the driver even if no request is pending. */
static void ping(struct gpu *g, uint64_t now)
{
	struct gpu_call *call;
	DL_FOREACH (g->calls, call)
		if (!call->aborts && !call->beside && !call->patient)
			return;
	if (now - g->heard_ns >= ping_pause(g))
		gpu_ask(g, &(struct worker_message){.kind = WORKER_PING}, -1, on_pong, NULL,
			gpu_patience_ns(g->gpus));
}

/* This process was not scheduled, so perhaps the worker was not either, and its answers are still
 * unread. Its time starts again. */
static void look_for_pause(struct gpu *g, uint64_t now)
{
	uint64_t period = uv_timer_get_repeat(&g->timer) * 1000000;
	if (now - g->ticked_ns > period + gpu_patience_ns(g->gpus) / 4)
		g->resumed_ns = now;
	g->ticked_ns = now;
}

/* Checks whether an answer is overdue. */
static void on_tick(uv_timer_t *timer)
{
	struct gpu *g = timer->data;
	uint64_t now = clock_now();
	struct gpu_call *call;
	if (!g->alive)
		return;
	if (g->sock < 0) {
		if (now - g->since_ns > WORKER_DIE_NS)
			end_calls(g, true);
		if (g->rested && now - g->since_ns > WORKER_DIE_NS)
			kill_process(g);
		return;
	}
	look_for_pause(g, now);
	if (g->killed_ns) {
		if (now - g->killed_ns < WORKER_DIE_NS)
			return;
		log_error("gpu%d: worker %d did not exit after SIGKILL: it is stuck in the NVIDIA "
			  "driver. The GPU gets another worker when this one has exited; if it "
			  "never does, reset the GPU",
			  g->index, g->info.pid);
		worker_gone(g);
		return;
	}
	if (g->info.state == NCCLSVC_DEVICE_STARTING) {
		if (now - g->since_ns > WORKER_START_NS)
			gpu_kill(g, "it did not start in time");
		return;
	}
	DL_FOREACH (g->calls, call)
		if (overdue(g, call, now)) {
			gpu_kill(g, "it does not answer (worker_seconds)");
			return;
		}
	ping(g, now);
	/* While no request is pending, there is nothing to check before the next ping. */
	uint64_t ms = g->calls ? WORKER_TICK_MS : ping_pause(g) / 1000000 + 1;
	if (uv_timer_get_repeat(timer) != ms)
		uv_timer_start(timer, on_tick, ms, ms);
}

static void on_backoff(uv_timer_t *timer)
{
	struct gpu *g = timer->data;
	if (g->gpus->loop->closing)
		return;
	if (gpu_mps_decided(g->gpus))
		gpu_start_worker(g);
	else
		uv_timer_start(&g->timer, on_backoff, WORKER_AGAIN_SOON_MS, 0);
}

static void on_failed_closed(uv_handle_t *handle)
{
	struct gpu *g = handle->data;
	g->gpus->loop->handles--;
}

/* The system has no process or memory to give now, but may later. */
static void not_started(struct gpu *g)
{
	free(g->poll);
	g->poll = NULL;
	snprintf(g->info.text, sizeof(g->info.text), "the worker could not be started");
	set_state(g, NCCLSVC_DEVICE_LOST);
	start_later(g);
}

void gpu_start_worker(struct gpu *g)
{
	struct gpus *s = g->gpus;
	char name[64], uuid[SVC_UUID_TEXT], spin[16], pinned[24];
	int n = snprintf(name, sizeof(name), "%s%d", WORKER_NAME WORKER_GPU, g->index);
	if (s->coord->n > 1)
		snprintf(name + n, sizeof(name) - (size_t)n, "%s%u", WORKER_NODE, s->coord->me);
	snprintf(spin, sizeof(spin), "%d", s->config->spin_us);
	svc_uuid_text(g->info.uuid, uuid);
	char *argv[] = {name, uuid, spin, NULL, NULL};
	if (s->staging) {
		snprintf(pinned, sizeof(pinned), "%" PRIu64, s->staging->pinned);
		argv[3] = pinned;
	}
	atomic_store(&g->queue->generation, ++g->generation);
	start_ticking(g);
	g->process.data = g;
	g->poll = calloc(1, sizeof(*g->poll));
	g->sock = !g->poll ? -1
			   : gpu_spawn(s, &g->process, argv, g->queue_fd, g->bell, on_worker_exit,
				       on_failed_closed);
	if (g->sock < 0) {
		not_started(g);
		return;
	}
	g->alive = true;
	g->served = g->gone = g->rested = false;
	g->killed_ns = 0;
	g->info.pid = g->process.pid;
	set_state(g, NCCLSVC_DEVICE_STARTING);
	if (uv_poll_init(s->loop->uv, g->poll, g->sock)) {
		free(g->poll);
		g->poll = NULL;
		gpu_kill(g,
			 "the daemon cannot watch its socket: out of memory or file descriptors");
		return;
	}
	g->poll->data = g;
	s->loop->handles++;
	watch(g);
}

/* ---- Rest ---- */

void gpu_need(struct gpu *g)
{
	g->used_ns = clock_now();
	if (!g->resting || g->gpus->loop->closing)
		return;
	g->resting = false;
	set_state(g, NCCLSVC_DEVICE_STARTING);
	log_info("gpu%d: starting a worker, which is needed again", g->index);
	if (!g->alive) /* otherwise when the last one has exited */
		on_backoff(&g->timer);
}

/* The worker frees its memory of the GPU as it exits. Its descriptors of trainers' memory are
 * closed; the supervisor has others. */
static void rest(struct gpu *g)
{
	const struct worker_message end = {.kind = WORKER_END};
	if (svc_send(g->sock, &end, sizeof(end), NULL, 0, MSG_DONTWAIT))
		return; /* it is busy, or about to be replaced */
	log_info("gpu%d: ending worker %d, unused for %d s (worker_idle)", g->index, g->info.pid,
		 g->gpus->config->worker_idle);
	g->gone = g->rested = g->resting = true;
	hang_up(g);
	end_calls(g, true);
	set_state(g, NCCLSVC_DEVICE_READY);
	g->info.worker_bytes = 0;
	g->gpus->callbacks->worker_lost(g->gpus->owner, g);
	start_ticking(g);
}

static bool is_in_use(const struct gpu *g)
{
	const struct gpu_call *call;
	DL_FOREACH (g->calls, call)
		if (call->done != on_pong)
			return true;
	return g->out || nccl_comm_on(g) || !g->gpus->callbacks->may_rest(g->gpus->owner, g);
}

uint64_t gpu_expire(struct gpus *s, uint64_t now)
{
	const uint64_t idle_ns = (uint64_t)s->config->worker_idle * 1000000000;
	uint64_t next = 0;
	for (uint32_t i = 0; idle_ns && !s->staging && !s->loop->closing && i < s->ngpus; i++) {
		struct gpu *g = s->gpu[i];
		if (!gpu_serves(g) || g->sock < 0 || g->killed_ns)
			continue;
		if (is_in_use(g))
			g->used_ns = now;
		if (g->used_ns + idle_ns > now)
			next = earlier(next, g->used_ns + idle_ns);
		else
			rest(g);
	}
	return next;
}

/* ---- The end ---- */

static void on_timer_closed(uv_handle_t *handle)
{
	struct gpu *g = handle->data;
	g->gpus->loop->handles--;
}

void gpu_stop(struct gpus *s)
{
	gpu_mps_stop(s);
	for (uint32_t i = 0; i < s->ngpus; i++) {
		struct gpu *g = s->gpu[i];
		hang_up(g); /* makes it exit; if it cannot: */
		kill_process(g);
		uv_timer_stop(&g->timer);
		uv_close((uv_handle_t *)&g->timer, on_timer_closed);
	}
}

void gpu_free(struct gpus *s)
{
	for (uint32_t i = 0; i < s->ngpus; i++) {
		struct gpu *g = s->gpu[i];
		munmap(g->queue, sizeof(*g->queue));
		close(g->queue_fd);
		close(g->bell);
		free(g);
	}
	s->ngpus = 0;
	gpu_mps_free(s);
}
