/* SPDX-License-Identifier: Apache-2.0
 * Discovery of GPUs, and the start of their workers, which run this program under another name. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/timings.h"
#include "gpu.h"
#include "mps_service.h"
#include "proto/cuda/mps.h"
#include "proto/fdio.h"
#include "sched/api/scheduler.h"

int gpu_spawn(struct gpus *s, uv_process_t *process, char **argv, int queue_fd, int bell,
	      uv_exit_cb exited, uv_close_cb closed)
{
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -1;
	uv_stdio_container_t stdio[7] = {
		{.flags = UV_IGNORE},
		{.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO},
		{.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO},
		{.flags = UV_INHERIT_FD, .data.fd = pair[1]},
		{.flags = UV_INHERIT_FD, .data.fd = queue_fd},
		{.flags = UV_INHERIT_FD, .data.fd = bell},
		{.flags = UV_INHERIT_FD, .data.fd = s->staging ? s->staging->fd : -1},
	};
	uv_process_options_t options = {
		.exit_cb = exited,
		.file = "/proc/self/exe",
		.args = argv,
		.stdio = stdio,
		.stdio_count = queue_fd < 0 ? 4
			       : s->staging ? 7
					    : 6,
	};
	int error = uv_spawn(s->loop->uv, process, &options);
	close(pair[1]);
	s->loop->handles++;
	if (error) {
		log_error("the process \"%s\" cannot be started: %s", argv[0], uv_strerror(error));
		close(pair[0]);
		uv_close((uv_handle_t *)process, closed); /* the loop has its handle already */
		return -1;
	}
	return pair[0];
}

static struct gpu *create(struct gpus *s, const struct worker_message *m)
{
	struct gpu *g = calloc(1, sizeof(*g));
	if (!g)
		return NULL;
	g->gpus = s;
	g->index = (int32_t)s->ngpus;
	g->number = (uint32_t)m->key;
	g->reach = m->device.reach;
	g->info.device_file = m->device.device_file;
	g->sock = -1;
	g->backoff_ms = WORKER_AGAIN_MS;
	g->info.device = g->index;
	memcpy(g->info.uuid, m->device.uuid, sizeof(g->info.uuid));
	memcpy(g->info.name, m->device.name, sizeof(g->info.name));
	g->info.memory_bytes = m->device.memory_bytes;
	g->info.driver_version = m->device.driver_version;
	g->info.nccl_version = m->device.nccl_version;
	g->queue_fd = svc_memfd_create("ncclsvc-queue", sizeof(*g->queue), true);
	g->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	g->queue = g->queue_fd < 0 ? MAP_FAILED
				   : mmap(NULL, sizeof(*g->queue), PROT_READ | PROT_WRITE,
					  MAP_SHARED, g->queue_fd, 0);
	if (g->bell < 0 || g->queue == MAP_FAILED) {
		log_error("gpu%d: out of memory for the queue to its worker: the GPU is not used",
			  g->index);
		int fds[] = {g->queue_fd, g->bell};
		svc_close_fds(fds, 2);
		free(g);
		return NULL;
	}
	uv_timer_init(s->loop->uv, &g->timer);
	g->timer.data = g;
	s->loop->handles++;
	s->gpu[s->ngpus++] = g;
	scheduler_command(s->scheduler,
			  &(struct command){.kind = COMMAND_DEVICE_ADD,
					    .device = {(uint32_t)g->index, g->queue, g->bell}});
	return g;
}

/* ---- The probe ---- */

struct probe {
	uv_process_t process;
	struct gpus *gpus;
	bool over, abandoned;
};

static void on_probe_closed(uv_handle_t *handle)
{
	struct probe *p = handle->data;
	p->over = true;
	if (p->abandoned)
		free(p);
	else
		p->gpus->loop->handles--;
}

static void on_probe_exit(uv_process_t *process, int64_t code, int signal)
{
	(void)code;
	(void)signal;
	uv_close((uv_handle_t *)process, on_probe_closed);
}

/* Waits for a state that a callback sets. With UV_RUN_ONCE, a timer's callback may set it, and the
 * loop sleeps anyway. */
static void run_briefly(uv_loop_t *loop)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};
	uv_run(loop, UV_RUN_NOWAIT);
	nanosleep(&nap, NULL);
}

/* It was killed, but a process that is stuck in the driver does not exit. */
static void await_probe(struct probe *p)
{
	const uint64_t end = clock_now() + WORKER_DIE_NS;
	while (!p->over && clock_now() < end)
		run_briefly(p->gpus->loop->uv);
	if (p->over) {
		free(p);
		return;
	}
	log_error("the process that looks for GPUs did not exit after SIGKILL: it is stuck in the "
		  "NVIDIA "
		  "driver. It exits when the driver releases it, or at the next boot");
	p->abandoned = true; /* the daemon's exit does not wait for it, either */
	p->gpus->loop->handles--;
}

/* Runs the probe and waits for it, since everything depends on it. no_nccl: SVC_TEXT_BYTES, why
 * NCCL is missing. */
static void probe(struct gpus *s, char *text, size_t size, char *no_nccl)
{
	struct probe *p = calloc(1, sizeof(*p));
	struct worker_message m;
	char name[] = WORKER_PROBE;
	char *argv[] = {name, NULL};
	struct timeval limit = {.tv_sec = (time_t)(WORKER_START_NS / 1000000000)};
	if (!p) {
		snprintf(text, size, "there is no memory for the process that looks for GPUs");
		return;
	}
	p->gpus = s;
	p->process.data = p;
	int sock = gpu_spawn(s, &p->process, argv, -1, -1, on_probe_exit, on_probe_closed);
	if (sock < 0) {
		snprintf(text, size, "the probe could not be started");
		p->over = !uv_is_closing((uv_handle_t *)&p->process);
		await_probe(p);
		return;
	}
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	snprintf(text, size, "the driver does not answer");
	int fds[SVC_FDS_MAX];
	unsigned nfds;
	while (svc_recv(sock, &m, sizeof(m), fds, &nfds, 0) == (ssize_t)sizeof(m)) {
		svc_close_fds(fds, nfds < SVC_FDS_MAX ? nfds : SVC_FDS_MAX);
		m.text[sizeof(m.text) - 1] = '\0';
		snprintf(text, size, "%s", m.text);
		if (m.result != NCCLSVC_IN_PROGRESS)
			break;
		snprintf(no_nccl, SVC_TEXT_BYTES, "%s", m.text);
		if (s->ngpus < GPUS_MAX)
			create(s, &m);
	}
	close(sock);
	uv_process_kill(&p->process, SIGKILL);
	await_probe(p);
}

static bool starting(const struct gpus *s)
{
	for (uint32_t i = 0; i < s->ngpus; i++)
		if (s->gpu[i]->info.state == NCCLSVC_DEVICE_STARTING)
			return true;
	return false;
}

int gpu_start(struct gpus *s)
{
	char text[SVC_TEXT_BYTES] = "", no_nccl[SVC_TEXT_BYTES] = "";
	if (s->config->device == CONFIG_DEVICE_HOST)
		return 0;
	mps_leave(); /* a session of the starting process may have set it */
	probe(s, text, sizeof(text), no_nccl);
	if (s->ngpus && staging_choose(s, no_nccl))
		return -1;
	if (s->ngpus)
		gpu_mps_start(s);
	while (!gpu_mps_decided(s))
		run_briefly(s->loop->uv);
	for (uint32_t i = 0; i < s->ngpus; i++)
		gpu_start_worker(s->gpu[i]);
	while (starting(s))
		run_briefly(s->loop->uv);
	bool any = false;
	for (uint32_t i = 0; i < s->ngpus; i++) {
		struct gpu *g = s->gpu[i];
		any = any || g->info.state == NCCLSVC_DEVICE_READY;
		if (g->info.state == NCCLSVC_DEVICE_LOST)
			snprintf(text, sizeof(text), "gpu%d: %s", g->index, g->info.text);
	}
	if (any)
		return 0;
	if (s->config->device == CONFIG_DEVICE_CUDA)
		log_error("device = cuda, but no GPU can be used: %s",
			  text[0] ? text : "the driver finds none");
	else
		log_info("no GPU is used: %s", text[0] ? text : "the driver finds none");
	errno = ENODEV;
	return s->config->device == CONFIG_DEVICE_CUDA ? -1 : 0;
}
