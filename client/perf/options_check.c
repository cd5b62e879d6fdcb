/* SPDX-License-Identifier: Apache-2.0
 * Checks which options go together. */
#include <stdio.h>
#include <string.h>

#include "child_process.h"
#include "ncclsvc.h"
#include "options.h"
#include "proto/abi/peer_abi.h"
#include "proto/crossover.h"

int options_refuse(const char *format, const char *what)
{
	complain(format, what);
	fprintf(stderr, "Try 'ncclsvc-perf --help'.\n");
	return EXIT_USAGE;
}

static int check_cuda(struct options *o)
{
	if (o->baseline && o->baseline != BASELINE_NCCL)
		return options_refuse("--device cuda supports only %s as a baseline", "nccl");
	if (o->nodes > 1 && o->spawn_daemon)
		return options_refuse("on GPUs, %s needs running daemons (--socket)", "--nodes");
	if (o->gpus_n && !(o->given & GIVEN_RANKS))
		o->ranks = o->gpus_n;
	if (o->gpus_n && o->gpus_n < o->ranks)
		return options_refuse("%s names fewer GPUs than there are ranks", "--gpus");
	for (int i = 0; !o->gpus_n && i < PERF_RANKS_MAX; i++)
		o->gpus[i] = i;
	if (!(o->given & GIVEN_SYNC))
		o->sync = SYNC_STREAM;
	return -1;
}

static int check_host(struct options *o)
{
	if (o->baseline == BASELINE_NCCL)
		return options_refuse("%s needs --device cuda", "--baseline nccl");
	/* A host rank has no stream. */
	if (o->sync == SYNC_STREAM)
		o->sync = SYNC_LAST;
	/* "all" are those this device knows. */
	if (o->types & ~PERF_GPU_TYPES)
		o->types &= ~PERF_GPU_TYPES;
	if (o->types & PERF_GPU_TYPES)
		return options_refuse("%s need --device cuda", "float8 types");
	return -1;
}

/* "all" are those that the operation knows. */
static int check_types(struct options *o)
{
	if (!work_reduces(o->op))
		return -1;
	if (o->types & ~PERF_MOVED_TYPES)
		o->types &= ~PERF_MOVED_TYPES;
	if (o->types & PERF_MOVED_TYPES)
		return options_refuse("%s cannot be reduced",
				      "bool, int16, uint16, int4 and uint4");
	return -1;
}

/* A plot has one line for each subject. */
static int check_plot(const struct options *o)
{
	if (!o->plot_path)
		return -1;
	if (o->op == NCCLSVC_BARRIER)
		return options_refuse("%s: barriers have no sizes", "--plot");
	if (o->types & (o->types - 1) || (work_reduces(o->op) && o->redops & (o->redops - 1)) ||
	    (work_has_root(o->op) && o->root == ROOT_ALL))
		return options_refuse("%s shows one type, one reduction and one root", "--plot");
	return -1;
}

/* If only one bound is given, and contradicts the other's default, it is the only size. */
static int check_sizes(struct options *o)
{
	if (o->max_bytes < o->min_bytes && !(o->given & GIVEN_MAX))
		o->max_bytes = o->min_bytes;
	if (o->max_bytes < o->min_bytes && !(o->given & GIVEN_MIN))
		o->min_bytes = o->max_bytes;
	if (o->max_bytes < o->min_bytes)
		return options_refuse("%s is smaller than --minbytes", "--maxbytes");
	if (o->step_factor == 1)
		o->step_factor = 0;
	if (!o->step_factor && !o->step_bytes && o->max_bytes > o->min_bytes)
		return options_refuse("%s of 0 never reaches --maxbytes", "--stepbytes");
	if (o->step_factor && o->min_bytes == 0 && o->max_bytes > 0)
		return options_refuse("%s of 0 can't grow by a factor; use -i", "--minbytes");
	return -1;
}

/* Plans, lists and latencies. */
static int check_kinds(const struct options *o)
{
	if (o->planned && o->op != PERF_SENDRECV)
		return options_refuse("%s is for sendrecv only", "--plan");
	if (o->planned && o->no_ring)
		return options_refuse("%s: the plan needs a ring", "--plan and --no-ring");
	if (o->lists && o->op != NCCLSVC_ALL_GATHER)
		return options_refuse("%s is for all_gather only", "--list");
	if (o->lists && o->sync == SYNC_LAST)
		return options_refuse("%s: a list always orders its stream",
				      "--list and --sync last");
	if (o->latency && o->sync != SYNC_EACH)
		return options_refuse("%s needs --sync each", "--latency");
	if (o->graph && (o->planned || o->lists))
		return options_refuse("%s: these cannot be captured",
				      "--graph with --plan or --list");
	if (o->graph && (o->sync == SYNC_LAST || o->latency || o->every_us))
		return options_refuse("%s: a graph is launched as a whole",
				      "--graph with --sync last, --latency or --every");
	if (o->queued && o->nodes > 1)
		return options_refuse("%s is for one node", "--queued");
	return -1;
}

static int check_nodes(const struct options *o)
{
	if (o->spawn_daemon && o->socket)
		return options_refuse("%s contradict each other", "--spawn-daemon and --socket");
	if (o->nodes > o->ranks)
		return options_refuse("%s: each node needs a rank", "--nodes");
	if (o->nodes > 1 && !o->spawn_daemon && (!o->socket || !strstr(o->socket, "%r")))
		return options_refuse("%s needs --spawn-daemon, or a --socket with %%r in it",
				      "--nodes");
	return -1;
}

/* Doubling sizes, on GPUs, with short measurements. */
static void default_crossover(struct options *o)
{
	o->op = NCCLSVC_ALL_REDUCE;
	o->step_factor = 2;
	if (!(o->given & GIVEN_MIN))
		o->min_bytes = 1 << 20;
	if (!(o->given & GIVEN_MAX))
		o->max_bytes = 64 << 20;
	if (!(o->given & GIVEN_CAP))
		o->time_cap_s = 0.5;
	if (!(o->given & GIVEN_RANKS) && !o->gpus_n)
		o->ranks = PEER_RANKS;
}

static int check_crossover(const struct options *o)
{
	if (o->ranks < 2 || o->ranks > PEER_RANKS)
		return options_refuse("%s: kernels support 2 to 8 of them", "--ranks");
	if (o->min_bytes < sizeof(float) || o->max_bytes > CROSSOVER_BYTES)
		return options_refuse("%s: use 4 bytes to 1G", "--minbytes, --maxbytes");
	return o->max_bytes < o->min_bytes
		       ? options_refuse("%s is smaller than --minbytes", "--maxbytes")
		       : -1;
}

int options_check(struct options *o)
{
	const double timeout_ms = o->timeout_s * 1000;
	o->timeout_ms = timeout_ms < 1 ? 1 : (int)timeout_ms;
	o->with_cpu = o->given & GIVEN_EVERY;
	if (o->mode == MODE_JOIN && !o->cuda && !(o->given & GIVEN_RANKS))
		o->ranks = 64;
	if (o->mode == MODE_CROSSOVER)
		default_crossover(o);
	int status = o->cuda ? check_cuda(o) : check_host(o);
	if (status < 0)
		status = check_nodes(o);
	if (status < 0 && o->mode == MODE_CROSSOVER)
		return check_crossover(o);
	if (status >= 0 || o->mode != MODE_COLLECTIVE)
		return status;
	if (o->root >= (int)o->ranks)
		return options_refuse("%s is not a rank: ranks are 0 to --ranks - 1", "--root");
	status = check_types(o);
	if (status < 0)
		status = check_sizes(o);
	if (status < 0)
		status = check_plot(o);
	return status >= 0 ? status : check_kinds(o);
}
