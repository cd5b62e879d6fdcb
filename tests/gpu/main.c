/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-gpu-tests: the tests that need GPUs. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mps_server.h"
#include "runner.h"

struct setup setup;

static const struct gpu_test *const tables[] = {
	values_tests,	      random_tests,	  order_tests,	       memory_tests,
	range_tests,	      refused_tests,	  member_tests,	       failure_tests,
	killed_daemon_tests,  nccl_tests,	  nccl_life_tests,     nccl_part_tests,
	nccl_failure_tests,   nccl_redop_tests,	  nccl_newer_tests,    list_tests,
	list_together_tests,  list_world_tests,	  plan_tests,	       creation_tests,
	node_tests,	      node_failure_tests, staged_tests,	       staged_again_tests,
	staged_failure_tests, checkpoint_tests,	  mps_tests,	       reach_tests,
	peer_tests,	      peer_watch_tests,	  kernel_tests,	       kernel_wait_tests,
	kernel_failure_tests, kernel_leave_tests, kernel_stream_tests, kernel_random_tests,
	kernel_message_tests, kernel_group_tests, kernel_nccl_tests,   kernel_message_failure_tests,
	kernel_circle_tests,  peer_message_tests, graph_tests,	       graph_failure_tests,
	graph_beside_tests,   graph_differ_tests, graph_nccl_tests,    nccl_graph_tests,
	graph_eager_tests,    nccl_group_tests,	  memory_freed_tests,  recorder_tests,
	direct_tests,	      copies_tests,	  share_tests,	       memory_most_tests,
	memory_late_tests,    memory_leak_tests,  idle_tests,	       shared_gpu_tests,
	premulsum_tests,      restart_tests,	  peer_resume_tests,   node_restart_tests,
	suspend_tests,	      peer_sleep_tests,
};
#define TABLES (sizeof(tables) / sizeof(tables[0]))

struct options {
	int gpus, times;
	int part, parts; /* run every parts-th test, starting with the part-th */
	bool with_mps, without_mps, list;
	const char *filter;
};

static void usage(FILE *f)
{
	fputs("Usage: ncclsvc-gpu-tests [OPTIONS]\n"
	      "Runs ncclsvcd and processes that use it, on this machine's GPUs.\n"
	      "\n"
	      "  --gpus N       use at most N GPUs\n"
	      "  --no-mps       without MPS (the default)\n"
	      "  --mps          with a private MPS server\n"
	      "  --both         first without MPS, then with an MPS server\n"
	      "  --quick        fewer and shorter tests: under a minute on 2 GPUs\n"
	      "  --filter TEXT  only tests whose name contains TEXT; ^TEXT: starts with TEXT\n"
	      "  --part K/N     every Nth test, starting with the Kth\n"
	      "  --nodes N      N daemons, started by mpirun, divide the GPUs and ranks;\n"
	      "                 tests for one node are skipped\n"
	      "  --repeat N     N rounds of each test that kills processes\n"
	      "  --seed N       seed of the random tests (default: random; printed)\n"
	      "  --list         print the tests' names\n"
	      "  --help\n"
	      "\n"
	      "ncclsvcd and ncclsvc-ctl are those beside this program, or $NCCLSVCD and\n"
	      "$NCCLSVC_CTL; the drop-in is ../lib/ncclsvc/libnccl.so.2, or $NCCLSVC_NCCL.\n"
	      "Exit code: 0 if no test failed, 1 if one did, 2 for invalid options.\n",
	      f);
}

static int number(const char *text)
{
	char *end;
	long n = strtol(text, &end, 10);
	if (end == text || *end || n < 1 || n > 1000000) {
		fprintf(stderr, "ncclsvc-gpu-tests: '%s' is not a number from 1 to 1000000\n",
			text);
		exit(2);
	}
	return (int)n;
}

static void take_part(const char *text, struct options *o)
{
	char of;
	if (sscanf(text, "%d/%d%c", &o->part, &o->parts, &of) == 2 && o->part >= 1 &&
	    o->part <= o->parts)
		return;
	fprintf(stderr, "ncclsvc-gpu-tests: invalid part '%s': use K/N, with K from 1 to N\n",
		text);
	exit(2);
}

static void parse(int argc, char *argv[], struct options *o)
{
	enum { GPUS = 1, NODES, NO_MPS, MPS, BOTH, QUICK, FILTER, PART, REPEAT, SEED, LIST, HELP };
	static const struct option known[] = {
		{"gpus", required_argument, NULL, GPUS},
		{"nodes", required_argument, NULL, NODES},
		{"no-mps", no_argument, NULL, NO_MPS},
		{"mps", no_argument, NULL, MPS},
		{"both", no_argument, NULL, BOTH},
		{"quick", no_argument, NULL, QUICK},
		{"filter", required_argument, NULL, FILTER},
		{"part", required_argument, NULL, PART},
		{"repeat", required_argument, NULL, REPEAT},
		{"seed", required_argument, NULL, SEED},
		{"list", no_argument, NULL, LIST},
		{"help", no_argument, NULL, HELP},
		{NULL, 0, NULL, 0},
	};
	for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
		switch (c) {
		case GPUS:
			o->gpus = number(optarg);
			break;
		case NODES:
			setup.nodes = number(optarg);
			break;
		case NO_MPS:
		case BOTH:
			o->without_mps = true;
			o->with_mps = o->with_mps || c == BOTH;
			break;
		case MPS:
			o->with_mps = true;
			break;
		case QUICK:
			setup.quick = true;
			break;
		case FILTER:
			o->filter = optarg;
			break;
		case PART:
			take_part(optarg, o);
			break;
		case REPEAT:
			setup.repeat = number(optarg);
			break;
		case SEED:
			setup.seed = (uint64_t)number(optarg);
			break;
		case LIST:
			o->list = true;
			break;
		case HELP:
			usage(stdout);
			exit(0);
		default:
			usage(stderr);
			exit(2);
		}
	}
	if (optind < argc) {
		usage(stderr);
		exit(2);
	}
	o->without_mps = o->without_mps || !o->with_mps;
}

/* Finds the programs beside this one, unless the environment names them. */
static void find_programs(void)
{
	static const char *const programs[][2] = {
		{"NCCLSVCD", "ncclsvcd"},
		{"NCCLSVC_CTL", "ncclsvc-ctl"},
		{"NCCLSVC_NCCL", "../lib/ncclsvc/libnccl.so.2"},
	};
	char self[4096], path[4200];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	self[n > 0 ? n : 0] = '\0';
	*(strrchr(self, '/') ? strrchr(self, '/') : self) = '\0';
	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", self, programs[i][1]);
		if (!access(path, R_OK))
			setenv(programs[i][0], path, 0);
	}
	if (!getenv("NCCLSVCD")) {
		fprintf(stderr,
			"ncclsvc-gpu-tests: there is no ncclsvcd in %s: set NCCLSVCD to its path\n",
			self);
		exit(2);
	}
}

static void run_one(const struct gpu_test *t, struct tally *tally)
{
	char why[128] = "";
	if (t->gpus > (unsigned)setup.gpus)
		snprintf(why, sizeof(why), "needs %u GPUs, there %s %d", t->gpus,
			 setup.gpus == 1 ? "is" : "are", setup.gpus);
	else if (t->flags & TEST_REAL && setup.fake)
		snprintf(why, sizeof(why), "needs real GPUs");
	else if (t->flags & TEST_WITHOUT_MPS && setup.mps)
		snprintf(why, sizeof(why), "would end the MPS server");
	else if (t->flags & TEST_ONE_NODE && setup.nodes > 1)
		snprintf(why, sizeof(why), "runs on one node only, or starts its own nodes");
#ifdef __SANITIZE_THREAD__
	else if (strncmp(t->name, "staged/", 7) == 0)
		snprintf(why, sizeof(why),
			 "another process orders the copies, which tsan does not see");
#endif
	if (t->flags & TEST_NCCL)
		setenv("NCCLSVC_PEER", "0", 1);
	else
		unsetenv("NCCLSVC_PEER");
	if (why[0])
		runner_skip(t, why, tally);
	else
		runner_run(t, tally);
}

static bool matches(const char *name, const char *filter)
{
	if (!filter)
		return true;
	if (*filter == '^')
		return !strncmp(name, filter + 1, strlen(filter + 1));
	return strstr(name, filter);
}

static void run_all(const struct options *o, struct tally *tally)
{
	int n = 0;
	for (size_t i = 0; i < TABLES; i++)
		for (const struct gpu_test *t = tables[i]; t->name; t++) {
			if (!matches(t->name, o->filter))
				continue;
			if (setup.quick && !(t->flags & TEST_QUICK))
				continue;
			if (n++ % o->parts != o->part - 1)
				continue;
			if (o->list)
				printf("%s\n", t->name);
			else
				run_one(t, tally);
		}
}

static void run_mode(const struct options *o, bool mps, struct tally *tally)
{
	char text[256];
	setup.mps = mps;
	if (mps && !mps_start(text, sizeof(text))) {
		printf("skip everything with MPS: %s\n", text);
		tally->skipped++;
		return;
	}
	if (!mps)
		mps_avoid();
	printf("== %d %sGPU%s, %s MPS, seed %llu\n", setup.gpus, setup.fake ? "fake " : "",
	       setup.gpus == 1 ? "" : "s", mps ? "with" : "without",
	       (unsigned long long)setup.seed);
	run_all(o, tally);
	if (mps)
		mps_stop();
}

int main(int argc, char *argv[])
{
	struct options o = {.gpus = RANKS_MAX, .part = 1, .parts = 1};
	struct tally tally = {0};
	char text[256];
	setup.seed = now_ns() % 1000000 + 1;
	parse(argc, argv, &o);
	setup.fake = getenv("NCCLSVC_FAKE_GPUS") != NULL;
	setenv("NCCLSVC_REATTACH_MS", "0", 0); /* test_restarts.c sets it */
	if (o.list) {
		run_all(&o, &tally);
		return 0;
	}
	find_programs();
	runner_open();
	mps_avoid();
	setup.gpus = runner_count_gpus(text, sizeof(text));
	if (setup.gpus <= 0) {
		printf("skip everything: %s\n", text[0] ? text : "the driver shows no GPU");
		printf("0 passed, 0 failed, 1 skipped\n");
		return 0;
	}
	if (setup.gpus > o.gpus)
		setup.gpus = o.gpus;
	if (o.without_mps)
		run_mode(&o, false, &tally);
	if (o.with_mps)
		run_mode(&o, true, &tally);
	printf("%d passed, %d failed, %d skipped\n", tally.passed, tally.failed, tally.skipped);
	return tally.failed != 0;
}
