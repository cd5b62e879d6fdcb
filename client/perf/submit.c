/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf submit: what a submission costs, beside the least that two processes can do. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "job.h"
#include "modes.h"
#include "process.h"
#include "report.h"
#include "stat.h"

#define PING_BYTES    144 /* as long as a task record with its message header */
#define DEFAULT_ITERS 10000
#define BATCH	      16

enum path { RING, SOCKET, PINGPONG, PATHS };

static const char *const path_names[PATHS] = {"ring", "socket", "pingpong"};

struct bench {
	const struct options *options;
	uint64_t iters;
	struct client clients[2]; /* RING and SOCKET */
	int ping_fd;
	pid_t echo;
	double *samples[PATHS];
	uint64_t samples_n[PATHS];
	double *cpu_us[PATHS]; /* of one submission and its wait, for each round */
	double *rate[2], *submit_us[2];
};

static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void echo(int fd)
{
	char message[PING_BYTES];
	while (recv(fd, message, sizeof(message), 0) == PING_BYTES &&
	       send(fd, message, sizeof(message), MSG_NOSIGNAL) == PING_BYTES)
		;
}

static bool start_echo(struct bench *b)
{
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		complain("socketpair: %s", strerror(errno));
		return false;
	}
	b->echo = fork_child();
	if (b->echo == 0) {
		close(pair[0]);
		echo(pair[1]);
		_exit(0);
	}
	close(pair[1]);
	b->ping_fd = pair[0];
	if (b->echo < 0)
		complain("fork: %s", strerror(errno));
	return b->echo > 0;
}

static bool ping_pong(struct bench *b, uint64_t n, double *samples)
{
	char message[PING_BYTES] = {0};
	uint64_t last = perf_now_ns();
	for (uint64_t i = 0; i < n; i++) {
		if (send(b->ping_fd, message, sizeof(message), MSG_NOSIGNAL) != PING_BYTES ||
		    recv(b->ping_fd, message, sizeof(message), 0) != PING_BYTES) {
			if (!caught_signal())
				complain("the ping-pong ended: %s", strerror(errno));
			return false;
		}
		uint64_t now = perf_now_ns();
		samples[i] = (double)(now - last) / 1e3;
		last = now;
	}
	return true;
}

static bool exchange(struct bench *b, enum path path, uint64_t n, double *samples)
{
	uint64_t done;
	if (path == PINGPONG)
		return ping_pong(b, n, samples);
	return client_one_by_one(&b->clients[path], n, UINT64_MAX, samples, &done);
}

/* CPU time of the submitting call alone: nothing is waited for in between. */
static bool time_submits(struct client *c, uint64_t n, double *us)
{
	ncclsvc_task tasks[BATCH];
	uint64_t total = 0, submitted = 0;
	while (submitted < n) {
		uint64_t start = cpu_ns();
		for (int i = 0; i < BATCH; i++) {
			if (client_submit(c, &tasks[i]))
				return complain_of("can't submit");
		}
		total += cpu_ns() - start;
		submitted += BATCH;
		for (int i = 0; i < BATCH; i++) {
			if (client_wait(c, tasks[i]))
				return complain_of("a task failed");
		}
	}
	*us = (double)total / 1e3 / (double)submitted;
	return true;
}

static bool do_path(struct bench *b, enum path path, unsigned round)
{
	uint64_t n = b->iters, warmup = n / 10 + 1, done;
	double *samples = b->samples[path] + b->samples_n[path];
	if (!exchange(b, path, warmup < n ? warmup : n, samples))
		return false;
	uint64_t cpu = cpu_ns();
	if (!exchange(b, path, n, samples))
		return false;
	b->cpu_us[path][round] = (double)(cpu_ns() - cpu) / 1e3 / (double)n;
	b->samples_n[path] += n;
	if (path == PINGPONG)
		return true;
	struct client *c = &b->clients[path];
	uint64_t start = perf_now_ns();
	if (!client_pipeline(c, n, UINT64_MAX, &done))
		return false;
	b->rate[path][round] = (double)done * 1e9 / (double)(perf_now_ns() - start);
	return time_submits(c, n, &b->submit_us[path][round]);
}

static bool allocate(struct bench *b)
{
	size_t rounds = b->options->rounds;
	bool good = true;
	for (int path = 0; path < PATHS; path++) {
		good &= (b->samples[path] = calloc(b->iters * rounds, sizeof(double))) != NULL;
		good &= (b->cpu_us[path] = calloc(rounds, sizeof(double))) != NULL;
	}
	for (int path = 0; path < 2; path++) {
		good &= (b->rate[path] = calloc(rounds, sizeof(double))) != NULL;
		good &= (b->submit_us[path] = calloc(rounds, sizeof(double))) != NULL;
	}
	if (!good)
		complain("out of memory");
	return good;
}

static bool measure(struct bench *b, const char *socket)
{
	/* Sessions come after fork. */
	if (!allocate(b) || !start_echo(b) ||
	    !client_open(&b->clients[RING], b->options, socket, false) ||
	    !client_open(&b->clients[SOCKET], b->options, socket, true))
		return false;
	for (int path = 0; path < 2; path++)
		b->clients[path].send[0] = 0x1234567890abcdef + (uint64_t)path;
	for (unsigned round = 0; round < b->options->rounds; round++) {
		for (unsigned i = 0; i < PATHS; i++) {
			if (caught_signal() || !do_path(b, (round + i) % PATHS, round))
				return false;
		}
	}
	return true;
}

static uint64_t wrong_results(const struct bench *b)
{
	uint64_t wrong = 0;
	for (int path = 0; path < 2; path++)
		wrong += b->clients[path].recv[0] != b->clients[path].send[0];
	return wrong;
}

static json_t *row(struct bench *b, enum path path, double base_us)
{
	size_t n = b->samples_n[path], rounds = b->options->rounds;
	double us = median(b->samples[path], n), p99 = percentile(b->samples[path], n, 99);
	bool ours = path != PINGPONG;
	return json_pack("{s:s, s:f, s:f, s:f, s:f, s:o, s:o}", "path", path_names[path],
			 "median_us", us, "p99_us", p99, "cpu_us", median(b->cpu_us[path], rounds),
			 "ratio", us / base_us, "submit_cpu_us",
			 ours ? json_real(median(b->submit_us[path], rounds)) : json_null(), "rate",
			 ours ? json_real(median(b->rate[path], rounds)) : json_null());
}

static double field(const json_t *row, const char *name)
{
	return json_real_value(json_object_get(row, name));
}

static void print_table(const struct bench *b, const json_t *rows)
{
	size_t i;
	json_t *r;
	report_header(b->options, "submit to done, one member, AllReduce of 8 B");
	printf("# %" PRIu64
	       " times in each of %u rounds, in turn; ratio to the ping-pong's median\n",
	       b->iters, b->options->rounds);
	printf("# cpu: of this client, for a submission and its wait; submit cpu: without the "
	       "wait\n#\n");
	printf("# %8s  %10s  %9s  %8s  %15s  %14s  %6s\n", "path", "median(us)", "p99(us)",
	       "cpu(us)", "submit cpu(us)", "pipelined(/s)", "ratio");
	json_array_foreach(rows, i, r)
	{
		char submit[32] = "-", rate[32] = "-";
		if (json_is_real(json_object_get(r, "rate"))) {
			snprintf(submit, sizeof(submit), "%.2f", field(r, "submit_cpu_us"));
			snprintf(rate, sizeof(rate), "%.0f", field(r, "rate"));
		}
		printf("  %8s  %10.2f  %9.2f  %8.2f  %15s  %14s  %6.2f\n",
		       json_string_value(json_object_get(r, "path")), field(r, "median_us"),
		       field(r, "p99_us"), field(r, "cpu_us"), submit, rate, field(r, "ratio"));
	}
}

static int show(struct bench *b)
{
	uint64_t wrong = wrong_results(b);
	double base_us = median(b->samples[PINGPONG], b->samples_n[PINGPONG]);
	json_t *json = report_json_new(b->options), *rows = json_object_get(json, "rows");
	bool good = rows != NULL;
	for (int path = 0; good && path < PATHS; path++)
		good = json_array_append_new(rows, row(b, (enum path)path, base_us)) == 0;
	good = good && json_object_set_new(json, "wrong", json_integer((json_int_t)wrong)) == 0;
	if (!good)
		complain("out of memory");
	if (good && (!b->options->json || b->options->json_path))
		print_table(b, rows);
	if (good && b->options->json)
		good = report_json_write(b->options, json);
	json_decref(json);
	if (good && wrong)
		complain("an AllReduce of one member did not return its input");
	return !good ? EXIT_ERROR : wrong ? EXIT_WRONG : EXIT_GOOD;
}

int submit_run(const struct options *o, const char *socket)
{
	struct bench b = {
		.options = o, .iters = o->iters_given ? o->iters : DEFAULT_ITERS, .ping_fd = -1};
	int status = measure(&b, socket) ? show(&b) : EXIT_ERROR;
	for (int path = 0; path < 2; path++) {
		client_close(&b.clients[path]);
		free(b.rate[path]);
		free(b.submit_us[path]);
	}
	for (int path = 0; path < PATHS; path++) {
		free(b.samples[path]);
		free(b.cpu_us[path]);
	}
	if (b.ping_fd >= 0)
		close(b.ping_fd);
	if (b.echo > 0)
		stop_child(b.echo, false, 1000);
	return status;
}
