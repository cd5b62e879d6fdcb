/* SPDX-License-Identifier: Apache-2.0 */
#include "mps_service.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/timings.h"
#include "gpu.h"
#include "mps_control.h"
#include "proto/cuda/mps.h"
#include "sched/api/scheduler.h"
#include "session/session.h"

struct gpu_mps {
	ncclsvc_mps_source source;
	bool starting, closing;
	struct mps_control control;		 /* OWN */
	char found[NCCLSVC_MPS_DIRECTORY_BYTES]; /* where another user's is, or is expected; empty:
						    none */
	char why[128];				 /* NOBODY: the reason */
	uint64_t since_ns;
	uint64_t again_ms; /* before the next attempt; 0: at once */
	uint32_t starts, losses;
	uv_timer_t timer;
	uv_poll_t *end; /* of the control daemon; NULL: none is watched */
};

static void on_timer(uv_timer_t *timer);

static const char *directory(const struct gpu_mps *p)
{
	return p->source == NCCLSVC_MPS_FOUND ? p->found : p->control.directory;
}

/* ---- The daemon's own control daemon ---- */

static void try_later(struct gpus *s)
{
	struct gpu_mps *p = s->mps;
	const uint64_t next = p->again_ms ? p->again_ms * 2 : MPS_AGAIN_MS;
	uv_timer_start(&p->timer, on_timer, p->again_ms, 0);
	p->again_ms = next < MPS_AGAIN_MS_MAX ? next : MPS_AGAIN_MS_MAX;
}

static void without(struct gpu_mps *p, const char *why)
{
	p->source = NCCLSVC_MPS_NOBODY;
	p->starting = false;
	snprintf(p->why, sizeof(p->why), "%.*s", (int)sizeof(p->why) - 1, why);
}

static void on_watch_closed(uv_handle_t *handle)
{
	struct gpus *s = handle->data;
	s->loop->handles--;
	free(handle);
}

static void unwatch(struct gpu_mps *p)
{
	if (p->end)
		uv_close((uv_handle_t *)p->end, on_watch_closed);
	p->end = NULL;
}

/* Their contexts have ended with it, and an idle worker would notice only late. */
static void end_workers(struct gpus *s)
{
	for (uint32_t i = 0; i < s->ngpus; i++)
		if (s->gpu[i]->alive && s->gpu[i]->info.mps == NCCLSVC_MPS_ACTIVE)
			gpu_kill(s->gpu[i], "its MPS control daemon has ended");
}

static void on_end(uv_poll_t *poll, int status, int events)
{
	struct gpus *s = poll->data;
	struct gpu_mps *p = s->mps;
	char how[256], text[384];
	const pid_t pid = p->control.pid;
	const bool steady = clock_now() - p->since_ns > STEADY_NS;
	(void)status;
	(void)events;
	unwatch(p);
	mps_control_reap(&p->control, how, sizeof(how));
	snprintf(text, sizeof(text), "the MPS control daemon (pid %d) %s", pid, how);
	without(p, text);
	log_error("%s: workers and trainers that used it lose their CUDA contexts. The "
		  "daemon starts it and its workers again; start these trainers again",
		  text);
	end_workers(s);
	if (steady)
		p->again_ms = 0;
	try_later(s);
}

static bool watch(struct gpus *s)
{
	struct gpu_mps *p = s->mps;
	p->end = calloc(1, sizeof(*p->end));
	if (!p->end || uv_poll_init(s->loop->uv, p->end, p->control.pid_fd)) {
		free(p->end);
		p->end = NULL;
		return false;
	}
	s->loop->handles++;
	p->end->data = s;
	uv_poll_start(p->end, UV_READABLE, on_end);
	return true;
}

static void begin(struct gpus *s, bool starting)
{
	struct gpu_mps *p = s->mps;
	p->source = NCCLSVC_MPS_OWN;
	p->starting = starting;
	p->since_ns = clock_now();
	if (!watch(s)) {
		without(p, "no memory to watch the MPS control daemon");
		mps_control_kill(&p->control);
	}
}

static void start_own(struct gpus *s)
{
	struct gpu_mps *p = s->mps;
	char text[128];
	int error = mps_control_start(&p->control);
	if (error) {
		snprintf(text, sizeof(text), "the MPS control daemon could not be started: %s",
			 strerror(-error));
		log_warning("%s", text);
		without(p, text);
		try_later(s);
		return;
	}
	p->starts++;
	begin(s, true);
	uv_timer_start(&p->timer, on_timer, MPS_LOOK_MS, MPS_LOOK_MS);
}

static void look_whether_ready(struct gpus *s)
{
	struct gpu_mps *p = s->mps;
	if (mps_control_ready(&p->control)) {
		uv_timer_stop(&p->timer);
		p->starting = false;
		log_info("MPS: started control daemon %d, in %s", p->control.pid,
			 p->control.directory);
	} else if (clock_now() - p->since_ns > MPS_START_NS) {
		uv_timer_stop(&p->timer);
		log_error("MPS: control daemon %d accepts no connections after %d s: the daemon "
			  "kills it, and starts another",
			  p->control.pid, (int)(MPS_START_NS / 1000000000));
		p->starting = false;
		mps_control_kill(&p->control); /* its end is handled like any other */
	}
}

static void on_timer(uv_timer_t *timer)
{
	struct gpus *s = timer->data;
	if (s->mps->closing)
		return;
	if (s->mps->starting)
		look_whether_ready(s);
	else
		start_own(s);
}

static void choose_own(struct gpus *s)
{
	struct gpu_mps *p = s->mps;
	if (mps_control_open(&p->control, s->path, p->why, sizeof(p->why))) {
		log_warning(
			"no MPS: %s. Trainers' compute and communication take turns on the GPUs "
			"(mps in ncclsvcd.conf(5))",
			p->why);
		p->control.directory[0] = '\0';
		return;
	}
	if (!mps_control_adopt(&p->control)) {
		start_own(s);
		return;
	}
	begin(s, false);
	log_info("MPS: using control daemon %d, in %s, which an earlier ncclsvcd started",
		 p->control.pid, p->control.directory);
}

/* ---- An existing control daemon ---- */

static bool answers(const char *found)
{
	struct mps m;
	mps_look_at(&m, found);
	return m.state == MPS_RUNNING;
}

static void take(struct gpu_mps *p, const char *found)
{
	p->source = NCCLSVC_MPS_FOUND;
	p->since_ns = clock_now();
	snprintf(p->found, sizeof(p->found), "%s", found);
	log_info("MPS: using the control daemon in %s", p->found);
}

/* Where CUDA would look by default. MPS serves one user at a time, so a directory that nobody has
 * configured must at least belong to this user. */
static bool find_one(struct gpu_mps *p)
{
	const char *chosen = mps_chosen();
	struct mps m;
	mps_look_at(&m, chosen ? chosen : MPS_DEFAULT_DIRECTORY);
	if (m.state != MPS_RUNNING || strlen(m.directory) > NCCLSVC_MPS_DIRECTORY_MAX ||
	    (!chosen && m.uid != geteuid()))
		return false;
	take(p, m.directory);
	return true;
}

static void choose_given(struct gpu_mps *p, const char *given)
{
	take(p, given);
	if (!answers(given))
		log_warning(
			"MPS: no control daemon answers in %s (mps in ncclsvcd.conf(5)); until one "
			"does, workers are started without MPS",
			given);
}

/* ---- For the rest of the daemon ---- */

void gpu_mps_start(struct gpus *s)
{
	const char *wanted = s->config->mps;
	struct gpu_mps *p = calloc(1, sizeof(*p));
	if (!p)
		return;
	s->mps = p;
	p->control.lock_fd = p->control.pid_fd = -1;
	uv_timer_init(s->loop->uv, &p->timer);
	p->timer.data = s;
	s->loop->handles++;
	if (!strcmp(wanted, "off"))
		snprintf(p->why, sizeof(p->why), "mps = off");
	else if (wanted[0])
		choose_given(p, wanted);
	else if (!find_one(p))
		choose_own(s);
	if (*directory(p))
		mps_lead(directory(p)); /* for child processes, mainly workers */
}

bool gpu_mps_decided(const struct gpus *s)
{
	const struct gpu_mps *p = s->mps;
	if (!p || p->closing)
		return true;
	if (p->source == NCCLSVC_MPS_OWN)
		return !p->starting && mps_control_alive(&p->control);
	/* It is about to be restarted. */
	return !uv_is_active((const uv_handle_t *)&p->timer) || p->again_ms > MPS_AGAIN_MS;
}

void gpu_mps_worker_lost(struct gpus *s)
{
	if (s->mps)
		s->mps->losses++;
}

enum svc_mps_advice gpu_mps_advise(const struct gpus *s, const struct tenant *tenant,
				   char to[NCCLSVC_MPS_DIRECTORY_BYTES])
{
	const struct gpu_mps *p = s->mps;
	const bool coming = !gpu_mps_decided(s);
	if (!p || (p->source == NCCLSVC_MPS_NOBODY && !coming) ||
	    (p->source == NCCLSVC_MPS_FOUND && !answers(p->found)))
		return SVC_MPS_NONE;
	if (!tenant_is_own(tenant))
		return SVC_MPS_OTHER_TENANT;
	snprintf(to, NCCLSVC_MPS_DIRECTORY_BYTES, "%s", directory(p));
	return SVC_MPS_JOIN;
}

ncclsvc_mps gpu_mps_of(struct gpus *s, const struct session *c)
{
	const struct gpu *g = gpu_find(s, c->mps_device);
	const bool both = g && g->info.mps == NCCLSVC_MPS_ACTIVE && c->mps == NCCLSVC_MPS_ACTIVE;
	return both && c->mps_server != g->info.mps_server ? NCCLSVC_MPS_OTHER : c->mps;
}

void gpu_mps_joined(struct gpus *s, struct session *c, const struct svc_join *join)
{
	const struct gpu *g = gpu_find(s, join->device);
	const bool first = c->mps == NCCLSVC_MPS_UNKNOWN;
	if (!g)
		return;
	c->mps = join->mps;
	c->mps_server = join->mps_server;
	c->mps_device = join->device;
	/* Once, so that a client that reports a different value each time does not fill the log. A
	 * worker may be on its way to the server that the trainer uses already. */
	if (!first || g->info.state != NCCLSVC_DEVICE_READY || g->info.mps != NCCLSVC_MPS_ACTIVE)
		return;
	const ncclsvc_mps how = gpu_mps_of(s, c);
	if (how == NCCLSVC_MPS_NONE || how == NCCLSVC_MPS_OTHER)
		log_warning("session %u (%s, pid %d) uses gpu%d %s: its compute and its "
			    "communication take turns there (ncclsvc-ctl doctor)",
			    c->id, c->name, c->pid, g->index,
			    how == NCCLSVC_MPS_OTHER ? "through another MPS server than the worker"
						     : "without MPS, and the worker through it");
}

void gpu_mps_describe(const struct gpus *s, ncclsvc_daemon_info *info)
{
	const struct gpu_mps *p = s->mps;
	if (!p) {
		snprintf(info->mps_text, sizeof(info->mps_text), "no GPU is used");
		return;
	}
	info->mps = p->source;
	info->mps_starts = p->starts;
	info->mps_losses = p->losses;
	if (p->source == NCCLSVC_MPS_FOUND && !answers(p->found)) {
		info->mps = NCCLSVC_MPS_NOBODY;
		snprintf(info->mps_text, sizeof(info->mps_text), "none answers in %s", p->found);
		return;
	}
	snprintf(info->mps_text, sizeof(info->mps_text), "%s",
		 p->source == NCCLSVC_MPS_NOBODY ? p->why : directory(p));
	if (p->source == NCCLSVC_MPS_NOBODY)
		return;
	info->mps_pid = p->source == NCCLSVC_MPS_OWN ? p->control.pid : 0;
	info->mps_age_ns = clock_now() - p->since_ns;
}

/* ---- The end ---- */

static void on_timer_closed(uv_handle_t *handle)
{
	struct gpus *s = handle->data;
	s->loop->handles--;
}

void gpu_mps_stop(struct gpus *s)
{
	struct gpu_mps *p = s->mps;
	if (!p || p->closing)
		return;
	p->closing = true;
	unwatch(p);
	uv_close((uv_handle_t *)&p->timer, on_timer_closed);
}

void gpu_mps_free(struct gpus *s)
{
	if (!s->mps)
		return;
	pid_t left = mps_control_close(&s->mps->control);
	if (left)
		log_warning("MPS: other processes still use control daemon %d: it accepts no new "
			    "processes, and exits with the last of these",
			    left);
	free(s->mps);
	s->mps = NULL;
}
