/* SPDX-License-Identifier: Apache-2.0 */
#include "node_stand_ins.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "watch.h"

/* Appends the GPU as it is named in CUDA_VISIBLE_DEVICES, or else its number. */
static void add_visible(char *text, size_t size, int gpu)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	size_t used = strlen(text);
	if (used)
		text[used++] = ',';
	if (!list) {
		snprintf(text + used, size - used, "%d", gpu);
		return;
	}
	for (; gpu; gpu--) {
		list = strchr(list, ',');
		CHECK(list);
		list++;
	}
	snprintf(text + used, size - used, "%.*s", (int)strcspn(list, ","), list);
}

/* Several daemons need MPI: mpirun, and the daemon's module. */
static bool mpi_is_here(void)
{
	static const char *const places[] = {"", "../libexec/ncclsvc/"};
	const char *daemon = program("NCCLSVCD"), *slash = strrchr(daemon, '/');
	char path[4200];
	bool module = false;
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%.*s%sncclsvc-mpi.so",
			 slash ? (int)(slash - daemon + 1) : 0, daemon, places[i]);
		module = module || !access(path, R_OK);
	}
	return module && !system("command -v mpirun >/dev/null 2>&1");
}

void nodes_start(struct nodes *w, int n, int each)
{
	char visible[CLUSTER_NODES][80] = {{0}};
	const char *gpus[CLUSTER_NODES];
	if (!cluster_is_linked() && !mpi_is_here())
		skip_test("several daemons need mpirun, and ncclsvc-mpi.so beside ncclsvcd");
	stage("starting %d daemons", n);
	w->n = n;
	w->each = each;
	for (int i = 0; i < n; i++) {
		for (int k = 0; k < each; k++)
			add_visible(visible[i], sizeof(visible[i]), i * each + k);
		gpus[i] = visible[i];
	}
	cluster_start_gpus(&w->c, n, gpus, "--log-level", "debug", NULL);
	watch_daemon(&w->c.nodes[0]);
}

void nodes_stop(struct nodes *w)
{
	stage("stopping the daemons");
	for (int i = 0; i < w->n; i++)
		if (w->c.nodes[i].pid)
			workers_finish(&w->c.nodes[i]);
	cluster_stop(&w->c);
}

struct daemon *node_of(struct nodes *w, int gpu)
{
	return &w->c.nodes[gpu / w->each];
}

void nodes_clients(struct nodes *w, struct client *clients, client_main *main, void *arg)
{
	const int nranks = w->n * w->each;
	cluster_clients(clients, nranks, &w->c, IN_BLOCKS, main, arg);
}

void nodes_run(int n, int each, client_main *main, void *arg)
{
	struct nodes w;
	struct client ranks[RANKS_MAX];
	CHECK(n <= CLUSTER_NODES);
	nodes_start(&w, n, each);
	nodes_clients(&w, ranks, main, arg);
	ranks_end(ranks, n * each);
	nodes_stop(&w);
}

/* The number of creations logged so far: mpirun passes on the daemons' logs with a delay. */
static int inits(const struct nodes *w, int nranks)
{
	char line[512], text[64];
	int n = 0;
	FILE *f = fopen(w->c.log, "r");
	CHECK(f);
	snprintf(text, sizeof(text), " of %d\n", nranks);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "NCCL communicator") && strstr(line, ": created in") &&
		     strstr(line, text);
	fclose(f);
	return n;
}

void nodes_check_inits(const struct nodes *w, int nranks, int n)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; inits(w, nranks) < n; sleep_ms(5))
		CHECK(now_ns() < end);
	sleep_ms(20);
	CHECK_EQ(inits(w, nranks), n);
}
