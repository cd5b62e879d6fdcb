/* SPDX-License-Identifier: Apache-2.0
 * How several daemons form a cluster: MPI starts them, and exchanges the information that they need
 * about each other. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "base/config.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/timings.h"
#include "build_config.h"
#include "cluster.h"
#include "frames.h"
#include "module.h"
#include "reach.h"
#include "tls.h"

#define NODE_INFO_MAGIC UINT32_C(0x63617264)
#define MODULE		"ncclsvc-mpi.so"

/* ---- Is this one of several? ---- */

static long number_of(char *const envp[], const char *name)
{
	const char *text = paths_env(envp, name);
	return text ? strtol(text, NULL, 10) : 0;
}

/* The number started by the launcher, mpirun or srun. Slurm's variables about the job, not the
 * step, also apply to programs that a batch script starts by itself. */
static long started_together(char *const envp[])
{
	if (paths_env(envp, "OMPI_COMM_WORLD_SIZE"))
		return number_of(envp, "OMPI_COMM_WORLD_SIZE");
	return number_of(envp, "SLURM_STEP_NUM_TASKS");
}

/* Does the launcher say that all of them are on this machine? */
static bool on_one_machine(char *const envp[])
{
	const long n = number_of(envp, "OMPI_COMM_WORLD_SIZE");
	if (n)
		return number_of(envp, "OMPI_COMM_WORLD_LOCAL_SIZE") == n;
	return number_of(envp, "SLURM_STEP_NUM_NODES") == 1;
}

/* A launcher's variables may have been inherited by accident: a daemon meant to be alone would
 * silently wait for others. */
static void tell_cluster(const struct config *config, char *const envp[], long n)
{
	const char *variable = paths_env(envp, "OMPI_COMM_WORLD_SIZE") ? "OMPI_COMM_WORLD_SIZE"
								       : "SLURM_STEP_NUM_TASKS";
	log_info("%s=%ld: this daemon and %ld others form a cluster; it waits up to %d s for them. "
		 "For a daemon of one node, set cluster_bootstrap = none",
		 variable, n, n - 1, config->cluster_seconds);
}

bool cluster_unwanted(const struct config *config, char *const envp[])
{
	return config->cluster_bootstrap == CONFIG_BOOTSTRAP_NONE || started_together(envp) == 1;
}

int cluster_wanted(const struct config *config, char *const envp[])
{
	long n = started_together(envp);
	if (config->cluster_bootstrap != CONFIG_BOOTSTRAP_AUTO)
		return config->cluster_bootstrap == CONFIG_BOOTSTRAP_MPI;
	if (n < 2)
		return 0;
	if (paths_env(envp, "OMPI_COMM_WORLD_SIZE") || paths_env(envp, "PMIX_RANK") ||
	    paths_env(envp, "PMI_RANK")) {
		tell_cluster(config, envp, n);
		return 1;
	}
	log_error(
		"Slurm started %ld tasks without PMIx, which daemons need to find each other: use "
		"srun --mpi=pmix; or, if each daemon should be alone, --cluster-bootstrap none",
		n);
	return -1;
}

/* ---- A deadline for blocking calls ---- */

struct watchdog {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool done;
	int seconds;
	const char *what; /* NULL: a timeout is no failure */
	int code;
};

static void *watch(void *arg)
{
	struct watchdog *w = arg;
	struct timespec end;
	int error = 0;
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += w->seconds;
	pthread_mutex_lock(&w->lock);
	while (!w->done && !error)
		error = pthread_cond_timedwait(&w->cond, &w->lock, &end);
	if (!w->done && !w->what)
		_exit(w->code);
	if (!w->done) {
		log_error("%s took more than %d s (cluster_seconds)", w->what, w->seconds);
		log_flush();
		_exit(EXIT_FAILURE);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static bool watchdog_start(struct watchdog *w, int seconds, const char *what)
{
	*w = (struct watchdog){.seconds = seconds, .what = what};
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->cond, NULL);
	return pthread_create(&w->thread, NULL, watch, w) == 0;
}

static void watchdog_stop(struct watchdog *w)
{
	pthread_mutex_lock(&w->lock);
	w->done = true;
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->cond);
	pthread_mutex_destroy(&w->lock);
}

static int exchange_node_info(struct cluster *c, const struct config *config)
{
	struct node_info *mine = &c->nodes[c->me].info;
	struct node_info *all = calloc(c->n, sizeof(*all));
	mine->magic = NODE_INFO_MAGIC;
	if (!all || node_info_fill(mine, config) ||
	    getrandom(mine->key, sizeof(mine->key), 0) != sizeof(mine->key) ||
	    cluster_new_id(c, mine->world) || c->mpi->allgather(mine, all, sizeof(*mine))) {
		log_error("MPI: the nodes could not exchange their addresses");
		free(all);
		return -1;
	}
	for (uint32_t i = 0; i < c->n; i++) {
		c->nodes[i].info = all[i];
		cluster_show(c, &c->nodes[i]);
		if (all[i].magic == NODE_INFO_MAGIC && !strcmp(all[i].version, mine->version))
			continue;
		log_error("node %u runs ncclsvcd '%.47s', this node %s: all nodes must run the "
			  "same version",
			  i, all[i].magic == NODE_INFO_MAGIC ? all[i].version : "?", mine->version);
		free(all);
		return -1;
	}
	free(all);
	return 0;
}

/* ---- Connections to all nodes ---- */

static void on_deadline(uv_timer_t *timer)
{
	struct cluster *c = timer->data;
	c->late = true;
}

/* All nodes are connected, and none reconnects, so the port can be closed. */
static void stop_listening(struct cluster *c)
{
	struct link *l;
	uv_close((uv_handle_t *)&c->listener, NULL);
	DL_FOREACH (c->links, l)
		if (!l->greeted)
			link_close(l);
}

static bool all_are_connected(const struct cluster *c)
{
	for (uint32_t i = 0; i < c->n; i++)
		if (i != c->me && (!c->nodes[i].in || !c->nodes[i].out || !c->nodes[i].out->ready))
			return false;
	return true;
}

static int connect_all(struct cluster *c)
{
	for (uint32_t i = 0; i < c->n; i++)
		if (i != c->me && !link_open(c, i))
			return -1;
	uv_timer_start(&c->timer, on_deadline, NODES_CONNECT_MS, 0);
	while (!all_are_connected(c) && !c->late)
		uv_run(c->loop, UV_RUN_ONCE);
	uv_timer_stop(&c->timer);
	if (all_are_connected(c)) {
		stop_listening(c);
		return 0;
	}
	for (uint32_t i = 0; i < c->n; i++)
		if (i != c->me && (!c->nodes[i].out || !c->nodes[i].out->ready))
			log_error("no connection with node %u (%s, %s port %u) within %d s", i,
				  c->nodes[i].info.host, c->nodes[i].info.address,
				  c->nodes[i].info.port, NODES_CONNECT_MS / 1000);
	return -1;
}

/* ---- Beginning and end ---- */

static int start_mpi(struct cluster *c, const struct config *config, char *const envp[])
{
	const long together = started_together(envp);
	const bool mpirun = paths_env(envp, "OMPI_COMM_WORLD_SIZE");
	const bool one_machine = on_one_machine(envp);
	const struct reach reach = reach_choose(config, one_machine);
	const struct mpi_network network = {one_machine,
					    reach.interface[0] ? reach.interface : NULL};
	char why[512];
	/* Open MPI aborts a process that it cannot initialize. */
	if (together > 1 && !mpirun && !paths_env(envp, "PMIX_RANK"))
		log_warning("Slurm provides no PMIx for this step. If Open MPI aborts now, use "
			    "srun --mpi=pmix");
	if (c->mpi->start(&network, &c->place, why, sizeof(why))) {
		log_error("MPI: %s", why);
		return -1;
	}
	if (together < 2 || c->place.nodes > 1)
		return 0;
	log_error("%ld daemons were started together, but MPI sees only this one: use %s", together,
		  mpirun ? "the mpirun of the Open MPI that " MODULE " was built with"
			 : "srun --mpi=pmix, or mpirun");
	return -1;
}

static int connect_nodes(struct cluster *c, const struct config *config, char *const envp[])
{
	struct watchdog w;
	if (!watchdog_start(&w, config->cluster_seconds,
			    "connecting to the other nodes through MPI"))
		return -1;
	if (start_mpi(c, config, envp)) {
		watchdog_stop(&w);
		return -1;
	}
	c->me = (uint32_t)c->place.node;
	c->n = (uint32_t)c->place.nodes;
	log_set_node(c->me);
	c->nodes = c->n <= CLUSTER_NODES_MAX ? calloc(c->n, sizeof(*c->nodes)) : NULL;
	int error = -1;
	if (!c->nodes) {
		log_error("%u nodes: a cluster can have at most %d", c->n, CLUSTER_NODES_MAX);
	} else {
		const struct reach reach = reach_choose(config, c->place.locals == c->place.nodes);
		if (!link_listen(c, reach.address, 0) && !exchange_node_info(c, config))
			error = c->carrier->listen(CARRIER_SLOTS, CARRIER_MESSAGE_MAX);
	}
	watchdog_stop(&w);
	return error;
}

static const struct mpi_start *open_mpi(void **module)
{
	char why[512];
	const struct mpi_start *mpi =
		module_open(MODULE, MPI_START_SYMBOL, module, why, sizeof(why));
	if (mpi && mpi->version == CARRIER_VERSION)
		return mpi;
	log_error("a cluster of several nodes needs the module " MODULE
		  ", beside the daemon or in " NCCLSVC_LIBEXECDIR ": %s",
		  mpi ? "it has a different version" : why);
	return NULL;
}

/* All nodes use node 0's key. */
static int share_key(struct cluster *c)
{
	char why[512];
	const struct tls_config tls = {.key = c->nodes[0].info.key, .key_bytes = CLUSTER_KEY_BYTES};
	c->site = tls_site_create(&tls, why, sizeof(why));
	if (c->site)
		return 0;
	log_error("%s", why);
	return -1;
}

struct cluster *cluster_create(uv_loop_t *loop, const struct config *config, char *const envp[])
{
	struct cluster *c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->loop = loop;
	c->mpi = open_mpi(&c->module);
	c->carrier = c->mpi ? &c->mpi->carrier : NULL;
	if (!c->mpi || connect_nodes(c, config, envp) || share_key(c) || connect_all(c)) {
		log_flush();
		/* MPI's own threads and its launcher must not wait for the others. */
		_exit(EXIT_FAILURE);
	}
	log_info("node %u of %u (%d of %d on this machine), %s, control on %s port %u", c->me, c->n,
		 c->place.local, c->place.locals, c->place.library, c->nodes[c->me].info.address,
		 c->nodes[c->me].info.port);
	return c;
}

void cluster_attach(struct cluster *c, const struct cluster_callbacks *callbacks, void *owner)
{
	c->callbacks = callbacks;
	c->owner = owner;
	link_handle_kept(c);
	link_start_beats(c);
}

void cluster_close(struct cluster *c)
{
	if (!c->closing)
		link_close_all(c);
}

void cluster_destroy(struct cluster *c, int code)
{
	struct watchdog w;
	tls_site_free(c->site);
	/* Daemons that continue make MPI_Finalize wait, which is no failure. */
	log_flush();
	if (watchdog_start(&w, MPI_FINISH_SECONDS, NULL)) {
		w.code = code;
		c->carrier->finish(false);
		watchdog_stop(&w);
	}
	for (uint32_t i = 0; i < c->n; i++)
		free(c->nodes[i].numbers);
	free(c->nodes);
	free(c);
}

int cluster_fill_path(const struct cluster *c, char *path, size_t size)
{
	char out[PATH_MAX];
	size_t n = 0;
	for (const char *p = path; *p; p++) {
		if (p[0] == '%' && p[1] == 'r') {
			n += (size_t)snprintf(out + n, sizeof(out) - n, "%u", c->me);
			p++;
		} else if (n < sizeof(out) - 1) {
			out[n++] = *p;
		}
		if (n >= size)
			return -1;
	}
	out[n] = '\0';
	memcpy(path, out, n + 1);
	return 0;
}
