/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"
#include "node_stand_ins.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "watch.h"

#define WORDS 1000

int ranks_count(void)
{
	return setup.gpus < 4 ? setup.gpus : 4;
}

void rank_prepare(struct rank *r, struct client *c, int gpu)
{
	*r = (struct rank){.c = c, .rank = c->rank, .n = c->nranks, .gpu = gpu};
	stage("opening its session and its GPU");
	r->session = session_open(
		c->daemon); /* before CUDA is initialized, because this may select MPS */
	gpu_use(gpu);
	r->stream = gpu_stream();
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, 0));
}

void rank_join(struct rank *r)
{
	stage("joining");
	CHECK_OK(ncclsvc_comm_join_device(r->session, &r->c->id, r->n, r->rank, r->gpu, WAIT_MS,
					  &r->comm));
	CHECK_EQ(ncclsvc_comm_rank(r->comm), r->rank);
	CHECK_EQ(ncclsvc_comm_size(r->comm), r->n);
	stage("joined");
}

void rank_open(struct rank *r, struct client *c)
{
	rank_prepare(r, c, setup.per_gpu ? c->rank / setup.per_gpu : c->rank);
	rank_join(r);
}

void rank_close(struct rank *r)
{
	stage("leaving");
	CHECK_OK(ncclsvc_comm_leave(r->comm));
	ncclsvc_close(r->session);
	CHECK_CU(cu.cuStreamDestroy(r->stream));
	stage("gone");
}

void rank_wait(struct rank *r, ncclsvc_task task)
{
	wait_for(r->session, task, NCCLSVC_OK);
}

void rank_sync(struct rank *r)
{
	CHECK(gpu_stream_ends(r->stream, 2 * WAIT_MS));
	CHECK_OK(ncclsvc_wait_all(r->session, WAIT_MS));
	CHECK_OK(ncclsvc_comm_error(r->comm));
}

void rank_check_usable(struct rank *r)
{
	CUdeviceptr p;
	ncclsvc_task task;
	CHECK_CU(cu.cuMemAlloc(&p, WORDS * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemsetD32Async(p, (unsigned)r->rank + 1, WORDS, r->stream));
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm,
				    &task));
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	rank_wait(r, task);
	gpu_check(p, (uint32_t)(r->n * (r->n + 1) / 2), WORDS, "the sum over all ranks");
	CHECK_CU(cu.cuMemFree(p));
}

/* ---- The daemon ---- */

void gpu_daemon_start(struct daemon *d)
{
	stage("starting the daemon");
	daemon_start(d, "--device", "cuda", "--log-level", "debug", NULL);
	watch_daemon(d);
}

static ncclsvc_device_info *devices_of(const struct daemon *d, size_t *n)
{
	ncclsvc_device_info *list;
	ncclsvc_session *session = session_open(d);
	CHECK_OK(ncclsvc_list_devices(session, &list, n));
	ncclsvc_close(session);
	return list;
}

static bool workers_hold(const struct daemon *d, char *text, size_t size)
{
	size_t n;
	bool some = false;
	ncclsvc_device_info *list = devices_of(d, &n);
	for (size_t i = 0; i < n && !some; i++) {
		some = list[i].imports;
		snprintf(text, size, "gpu%d still has %u imports", list[i].device, list[i].imports);
	}
	ncclsvc_list_free(list);
	return some;
}

void rank_threads(const struct client *c, void *(*main)(void *rank))
{
	struct client ranks[2] = {*c, *c};
	pthread_t threads[2];
	for (int i = 0; i < 2; i++) {
		ranks[i].rank = i;
		ranks[i].nranks = 2;
		CHECK_EQ(pthread_create(&threads[i], NULL, main, &ranks[i]), 0);
	}
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

void workers_finish(const struct daemon *d)
{
	char text[128];
	uint64_t end = now_ns() + limit_ms(FINISH_MS) * 1000000ull;
	while (workers_hold(d, text, sizeof(text))) {
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "%s", text);
		sleep_ms(10);
	}
}

void gpu_daemon_stop(struct daemon *d)
{
	stage("stopping the daemon");
	workers_finish(d);
	daemon_stop(d);
}

ncclsvc_device_info device_info(ncclsvc_session *session, int device)
{
	ncclsvc_device_info *list, info;
	size_t n;
	CHECK_OK(ncclsvc_list_devices(session, &list, &n));
	if (setup.nodes > 1 && n) /* each daemon numbers its own GPUs */
		device %= (int)n;
	CHECK(device >= 0 && (size_t)device < n);
	info = list[device];
	CHECK_EQ(info.device, device);
	ncclsvc_list_free(list);
	return info;
}

void why_says(const struct daemon *d, const char *text)
{
	char out[8192];
	char *argv[] = {(char *)program("NCCLSVC_CTL"),
			"--socket",
			(char *)d->socket,
			"why",
			"--after",
			"0",
			NULL};
	run_program(argv, out, sizeof(out));
	if (!strstr(out, text))
		check_failed(__FILE__, __LINE__, "why does not say \"%s\": %s", text, out);
}

int open_fds(int pid)
{
	char path[64];
	int n = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	DIR *dir = opendir(path);
	CHECK(dir);
	for (struct dirent *e; (e = readdir(dir));)
		n += e->d_name[0] != '.';
	closedir(dir);
	return n;
}

void worker_fds_note(const struct daemon *d, struct worker_fds *w)
{
	size_t n;
	ncclsvc_device_info *list = devices_of(d, &n);
	*w = (struct worker_fds){0};
	for (size_t i = 0; i < n && w->n < RANKS_MAX; i++) {
		if (!list[i].pid)
			continue;
		w->pid[w->n] = list[i].pid;
		w->fds[w->n++] = open_fds(list[i].pid);
	}
	ncclsvc_list_free(list);
}

void worker_fds_check(const struct daemon *d, const struct worker_fds *before)
{
	uint64_t end = now_ns() + limit_ms(FINISH_MS) * 1000000ull;
	for (;;) {
		struct worker_fds now;
		int worst = -1;
		worker_fds_note(d, &now);
		for (int i = 0; i < now.n && i < before->n; i++)
			if (now.pid[i] == before->pid[i] && now.fds[i] > before->fds[i])
				worst = i;
		if (worst < 0)
			return;
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "worker %d has %d fds open, but had %d",
				     now.pid[worst], now.fds[worst], before->fds[worst]);
		sleep_ms(10);
	}
}

/* ---- Ranks ---- */

void ranks_end(struct client *clients, int n)
{
	stage("waiting for the ranks to end");
	clients_end_within(clients, n, 3600 * 1000);
}

void ranks_run(int n, client_main *main, void *arg)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	if (setup.nodes > 1 && n % setup.nodes == 0) {
		nodes_run(setup.nodes, n / setup.nodes, main, arg);
		return;
	}
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, main, arg);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}
