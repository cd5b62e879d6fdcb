/* SPDX-License-Identifier: Apache-2.0
 * The help, the defaults, and which options go together. */
#include <stdio.h>
#include <string.h>

#include "ncclsvc.h"
#include "options.h"
#include "process.h"

const char options_help[] =
	"usage: ncclsvc-perf OP [options]\n"
	"       ncclsvc-perf submit [--while-listing] [options]\n"
	"       ncclsvc-perf sessions [--count N] [options]\n"
	"       ncclsvc-perf idle [--seconds S] [options]\n"
	"       ncclsvc-perf join [--ranks N] [options]\n"
	"       ncclsvc-perf cpu|overlap|start|gpu-memory --device cuda [options]\n"
	"\n"
	"OP: all_reduce all_gather reduce_scatter broadcast reduce alltoall gather scatter\n"
	"    sendrecv barrier\n"
	"\n"
	"Which daemon:\n"
	"      --spawn-daemon          start a daemon for this run and stop it at the end\n"
	"      --socket PATH           use the daemon that listens there\n"
	"What to run, as nccl-tests:\n"
	"  -b, --minbytes SIZE         smallest size, with K, M or G (32M)\n"
	"  -e, --maxbytes SIZE         largest size (32M)\n"
	"  -i, --stepbytes SIZE        step between sizes (1M)\n"
	"  -f, --stepfactor N          factor between sizes, instead of a step\n"
	"  -n, --iters N               iterations in a round (20)\n"
	"  -w, --warmup_iters N        iterations before each round (5)\n"
	"  -c, --check N               checks of every element, at each size (1; 0: none)\n"
	"  -d, --datatype NAME         element type, or all (float32)\n"
	"  -o, --op NAME               reduction: sum prod min max avg, or all (sum)\n"
	"  -r, --root RANK             root, or all (0)\n"
	"  -z, --blocking 0|1          1: wait for each operation; 0: submit ahead (1; cuda: 0)\n"
	"How:\n"
	"      --ranks N               client processes (2)\n"
	"      --nodes N               spread them over N daemons, that mpirun starts, or whose\n"
	"                              sockets' paths have %r for the node's number (1)\n"
	"      --rounds N              rounds at each size; the median counts (5)\n"
	"      --every US              an operation every US microseconds (0: one behind the "
	"other),\n"
	"                              and the cores that daemon, workers and ranks use\n"
	"      --time-cap SECONDS      fewer iterations where a size would take longer (2)\n"
	"      --baseline mpi          the same with Open MPI, alternating, and the ratio\n"
	"      --baseline nccl         the same with plain NCCL (--device cuda)\n"
	"      --device host|cuda      where the buffers are (host)\n"
	"      --plan                  sendrecv: by the planned service\n"
	"      --list N                all_gather on GPUs: over lists of N tensors a rank\n"
	"      --plain-memory          buffers from malloc: the staged path\n"
	"      --no-ring               submit over the socket\n"
	"      --timeout SECONDS       the longest to wait for anything (120)\n"
	"      --json [FILE|-]         results as JSON; - is standard output\n"
	"      --count N               sessions: how many; idle: sessions beside (1000; 8)\n"
	"      --seconds S             idle: how long (10); --while-listing: each phase (2)\n"
	"      --queued N              submit --while-listing: queued tasks (100000)\n"
	"On GPUs (--device cuda):\n"
	"      --gpus LIST             the ranks' CUDA devices, as 0,1 (rank i: i)\n"
	"      --memory own|lent|vmm   cuMemAlloc, the daemon's, cuMemCreate (own)\n"
	"      --sync each|stream|last synchronise after each operation; at the end; at the end,\n"
	"                              and only the last operation orders the stream (stream)\n"
	"      --compute-ms MS         overlap: how long the kernels take alone (20)\n"
	"  -h, --help                  this text\n"
	"  -V, --version               the version\n";

int options_refuse(const char *format, const char *what)
{
	complain(format, what);
	fprintf(stderr, "Try 'ncclsvc-perf --help'.\n");
	return EXIT_USAGE;
}

const char *sync_name(const struct options *o)
{
	static const char *const names[] = {"each", "stream", "last"};
	return names[o->sync];
}

const char *memory_name(const struct options *o)
{
	static const char *const names[] = {"own", "lent", "vmm"};
	if (o->cuda)
		return names[o->memory];
	return o->plain_memory ? "plain" : "shared";
}

void options_default(struct options *o)
{
	*o = (struct options){
		.min_bytes = 32 << 20,
		.max_bytes = 32 << 20,
		.step_bytes = 1 << 20,
		.iters = 20,
		.warmup = 5,
		.checks = 1,
		.types = 1u << NCCLSVC_FLOAT32,
		.redops = 1u << NCCLSVC_SUM,
		.ranks = 2,
		.nodes = 1,
		.rounds = 5,
		.time_cap_s = 2,
		.timeout_ms = 120000,
		.queued = 100000,
		.compute_ms = 20,
	};
}

static bool needs_gpus(const struct options *o)
{
	return o->mode == MODE_CPU || o->mode == MODE_OVERLAP || o->mode == MODE_START ||
	       o->mode == MODE_GPU_MEMORY;
}

static int check_cuda(struct options *o)
{
	if (o->mode == MODE_SUBMIT || o->mode == MODE_SESSIONS || o->mode == MODE_JOIN)
		return options_refuse("submit, sessions and join measure the host: %s is not for "
				      "them",
				      "--device cuda");
	if (o->baseline == BASELINE_MPI)
		return options_refuse("--device cuda has %s for a baseline", "nccl");
	if (o->plain_memory)
		return options_refuse("%s is of the host; see --memory", "--plain-memory");
	if (o->memory == GPU_LENT && (o->mode == MODE_START || o->mode == MODE_GPU_MEMORY))
		return options_refuse("start and gpu-memory have buffers before they join: %s "
				      "can't be",
				      "--memory lent");
	if (o->gpus_n && !o->ranks_given)
		o->ranks = o->gpus_n;
	if (o->gpus_n && o->gpus_n < o->ranks)
		return options_refuse("%s names fewer GPUs than there are ranks", "--gpus");
	for (int i = 0; !o->gpus_n && i < PERF_RANKS_MAX; i++)
		o->gpus[i] = i;
	if (!o->sync_given)
		o->sync = SYNC_STREAM;
	return -1;
}

static int check_host(struct options *o)
{
	if (needs_gpus(o))
		return options_refuse("cpu, overlap, start and gpu-memory need %s",
				      "--device cuda");
	if (o->memory_given || o->gpus_n)
		return options_refuse("%s are for --device cuda", "--memory and --gpus");
	if (o->baseline == BASELINE_NCCL)
		return options_refuse("%s needs --device cuda", "--baseline nccl");
	if (o->mode != MODE_COLLECTIVE && o->baseline)
		return options_refuse("%s is for operations only", "--baseline mpi");
	/* -z 0 names no stream here. */
	if (o->sync == SYNC_STREAM)
		o->sync = SYNC_LAST;
	/* "all" are those this device knows. */
	if (o->types & ~PERF_GPU_TYPES)
		o->types &= ~PERF_GPU_TYPES;
	if (o->types & PERF_GPU_TYPES)
		return options_refuse("%s need --device cuda", "float8 types");
	return -1;
}

/* One of the two alone is the only size where the other's default would contradict it. */
static int check_sizes(struct options *o)
{
	if (o->max_bytes < o->min_bytes && !o->max_given)
		o->max_bytes = o->min_bytes;
	if (o->max_bytes < o->min_bytes && !o->bytes_given)
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

int options_check(struct options *o)
{
	if (o->mode == MODE_JOIN && !o->ranks_given)
		o->ranks = 64;
	int status = o->cuda ? check_cuda(o) : check_host(o);
	if (status >= 0)
		return status;
	if (o->spawn_daemon && o->socket)
		return options_refuse("%s contradict each other", "--spawn-daemon and --socket");
	if (o->nodes > 1 && ((o->mode != MODE_COLLECTIVE && o->mode != MODE_JOIN) || o->cuda))
		return options_refuse("%s is for operations on host memory, and for join",
				      "--nodes");
	if (o->nodes > o->ranks)
		return options_refuse("%s: each node needs a rank", "--nodes");
	if (o->nodes > 1 && !o->spawn_daemon && (!o->socket || !strstr(o->socket, "%r")))
		return options_refuse("%s needs --spawn-daemon, or a --socket with %%r in it",
				      "--nodes");
	status = o->mode == MODE_COLLECTIVE ? check_sizes(o) : -1;
	if (status >= 0)
		return status;
	if (o->root >= (int)o->ranks)
		return options_refuse("%s is no rank: they count from 0 to --ranks - 1", "--root");
	if (o->mode == MODE_IDLE && o->baseline)
		return options_refuse("idle looks at the daemon alone: %s is not for it",
				      "--baseline");
	if (o->planned && (o->mode != MODE_COLLECTIVE || o->op != PERF_SENDRECV))
		return options_refuse("%s is for sendrecv only", "--plan");
	if (o->planned && o->no_ring)
		return options_refuse("%s: the plan needs a ring", "--plan and --no-ring");
	if (o->lists && (o->mode != MODE_COLLECTIVE || o->op != NCCLSVC_ALL_GATHER || !o->cuda))
		return options_refuse("%s is for all_gather on GPUs only", "--list");
	if (o->lists && o->sync == SYNC_LAST)
		return options_refuse("%s: a list always orders its stream",
				      "--list and --sync last");
	if (o->every_given && o->mode != MODE_COLLECTIVE)
		return options_refuse("%s is for operations only", "--every");
	if (o->mode != MODE_SUBMIT && o->while_listing)
		return options_refuse("%s is for submit only", "--while-listing");
	return -1;
}
