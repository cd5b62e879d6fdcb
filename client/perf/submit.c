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

#include "command.h"
#include "modes.h"
#include "process.h"
#include "queue.h"
#include "report.h"
#include "service.h"

#define PING_BYTES    144 /* as long as a task record with its message header */
#define DEFAULT_ITERS 10000
#define BATCH	      16
#define IN_FLIGHT     32

enum path { RING, SOCKET, PINGPONG, QUEUED, PATHS };

/* QUEUED is the ring, while other tasks are queued and listed. */
static const char *const path_names[PATHS] = {"ring", "socket", "pingpong", "queued"};

/* A session with a communicator of one member, and buffers for an AllReduce of 8 bytes. */
struct client {
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	uint64_t *send, *recv;
	int timeout_ms;
};

struct path_times {
	double *samples; /* us of each submission */
	size_t n;
	/* One for each round: */
	double cpu_us[ROUNDS_MAX]; /* of a submission and its wait */
	double rate[ROUNDS_MAX], submit_us[ROUNDS_MAX];
};

struct bench {
	const struct options *options;
	uint64_t iters;
	unsigned paths;
	struct client clients[2]; /* RING and SOCKET */
	int ping_fd;
	pid_t echo;
	struct queue queue;
	struct path_times times[PATHS];
};

/* ---- The ping-pong ---- */

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

static bool ping_pong(struct bench *b)
{
	char message[PING_BYTES] = {0};
	if (send(b->ping_fd, message, sizeof(message), MSG_NOSIGNAL) == PING_BYTES &&
	    recv(b->ping_fd, message, sizeof(message), 0) == PING_BYTES)
		return true;
	if (!caught_signal())
		complain("the ping-pong ended: %s", strerror(errno));
	return false;
}

/* ---- The service ---- */

static bool open_client(struct bench *b, enum path path, const char *socket)
{
	const struct options *o = b->options;
	struct client *c = &b->clients[path];
	const struct service_options service = {.socket = socket,
						.no_ring = path == SOCKET,
						.nranks = 1,
						.timeout_ms = o->timeout_ms};
	ncclsvc_unique_id id;
	void *memory;
	c->timeout_ms = o->timeout_ms;
	if (service_open(&service, &c->session))
		return complain_of("can't attach");
	if (ncclsvc_unique_id_create(&id) ||
	    service_join(c->session, &service, id.bytes, NCCLSVC_DEVICE_HOST, &c->comm))
		return complain_of("can't join");
	if (ncclsvc_mem_alloc(c->session, 4096, &memory))
		return complain_of("can't allocate");
	c->send = memory;
	c->recv = c->send + 64;
	c->send[0] = 0x1234567890abcdef + (uint64_t)path;
	return true;
}

static bool submit(struct client *c, ncclsvc_task *task)
{
	return !ncclsvc_all_reduce(c->send, c->recv, 1, NCCLSVC_UINT64, NCCLSVC_SUM, c->comm,
				   task) ||
	       complain_of("can't submit");
}

static bool wait_for(struct client *c, ncclsvc_task task)
{
	return !ncclsvc_wait(c->session, task, c->timeout_ms + 2000) ||
	       complain_of("a task failed");
}

static bool once(struct bench *b, enum path path)
{
	struct client *c = &b->clients[path == SOCKET];
	ncclsvc_task task;
	return path == PINGPONG ? ping_pong(b) : submit(c, &task) && wait_for(c, task);
}

/* One by one; the time of each goes to samples. */
static bool one_by_one(struct bench *b, enum path path, uint64_t n, double *samples)
{
	uint64_t last = perf_now_ns();
	for (uint64_t i = 0; i < n; i++) {
		if (caught_signal() || !once(b, path))
			return false;
		uint64_t now = perf_now_ns();
		samples[i] = (double)(now - last) / 1e3;
		last = now;
	}
	return true;
}

static bool pipelined(struct client *c, uint64_t n, double *rate)
{
	ncclsvc_task tasks[IN_FLIGHT];
	uint64_t start = perf_now_ns();
	for (uint64_t i = 0; i < n; i++) {
		if (i >= IN_FLIGHT && !wait_for(c, tasks[i % IN_FLIGHT]))
			return false;
		if (caught_signal() || !submit(c, &tasks[i % IN_FLIGHT]))
			return false;
	}
	for (uint64_t i = n < IN_FLIGHT ? 0 : n - IN_FLIGHT; i < n; i++) {
		if (!wait_for(c, tasks[i % IN_FLIGHT]))
			return false;
	}
	*rate = (double)n * 1e9 / (double)(perf_now_ns() - start);
	return true;
}

static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* CPU time of the submitting call alone: nothing is waited for in between. */
static bool time_submits(struct client *c, uint64_t n, double *us)
{
	ncclsvc_task tasks[BATCH];
	uint64_t total = 0, submitted = 0;
	for (; submitted < n; submitted += BATCH) {
		uint64_t start = cpu_ns();
		for (int i = 0; i < BATCH; i++) {
			if (!submit(c, &tasks[i]))
				return false;
		}
		total += cpu_ns() - start;
		for (int i = 0; i < BATCH; i++) {
			if (!wait_for(c, tasks[i]))
				return false;
		}
	}
	*us = (double)total / 1e3 / (double)submitted;
	return true;
}

/* ---- The measurement ---- */

static bool measure_path(struct bench *b, enum path path, unsigned round)
{
	struct path_times *t = &b->times[path];
	struct client *c = &b->clients[path == SOCKET];
	uint64_t n = b->iters, warmup = n / 10 + 1;
	double *samples = t->samples + t->n;
	if (!one_by_one(b, path, warmup < n ? warmup : n, samples))
		return false;
	uint64_t cpu = cpu_ns();
	if (!one_by_one(b, path, n, samples))
		return false;
	t->cpu_us[round] = (double)(cpu_ns() - cpu) / 1e3 / (double)n;
	t->n += n;
	return path == PINGPONG ||
	       (pipelined(c, n, &t->rate[round]) && time_submits(c, n, &t->submit_us[round]));
}

static bool do_path(struct bench *b, enum path path, unsigned round)
{
	if (caught_signal())
		return false;
	if (path != QUEUED)
		return measure_path(b, path, round);
	return queue_fill(&b->queue) && measure_path(b, path, round) && queue_drain(&b->queue);
}

static bool allocate(struct bench *b)
{
	for (unsigned path = 0; path < b->paths; path++) {
		b->times[path].samples = calloc(b->iters * b->options->rounds, sizeof(double));
		if (!b->times[path].samples) {
			complain("out of memory");
			return false;
		}
	}
	return true;
}

static bool measure(struct bench *b, const char *socket)
{
	/* Sessions come after fork. */
	if (!allocate(b) || !start_echo(b) ||
	    (b->paths > QUEUED && !queue_start(&b->queue, b->options, socket)) ||
	    !open_client(b, RING, socket) || !open_client(b, SOCKET, socket))
		return false;
	for (unsigned round = 0; round < b->options->rounds; round++) {
		for (unsigned i = 0; i < b->paths; i++) {
			if (!do_path(b, (round + i) % b->paths, round))
				return false;
		}
	}
	return true;
}

/* ---- What is printed ---- */

static const struct column columns[] = {
	{"path", "", "path", 8, 0, 0},
	{"median", "(us)", "median_us", 12, 2, 0},
	{"p99", "(us)", "p99_us", 11, 2, 0},
	{"cpu", "(us)", "cpu_us", 10, 2, 0},
	{"submit cpu", "(us)", "submit_cpu_us", 13, 2, 0},
	{"pipelined", "(/s)", "rate", 12, 1, 0},
	{"ratio", "", "ratio", 8, 2, 0},
};
#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

static void show_path(struct report *r, struct bench *b, enum path path, double base_us)
{
	struct path_times *t = &b->times[path];
	const unsigned rounds = b->options->rounds;
	const double us = median(t->samples, t->n);
	report_row(r, columns, COLUMNS,
		   (struct value[COLUMNS]){
			   TEXT(path_names[path]),
			   NUMBER(us),
			   NUMBER(percentile(t->samples, t->n, 99)),
			   NUMBER(median(t->cpu_us, rounds)),
			   path == PINGPONG ? UNKNOWN : NUMBER(median(t->submit_us, rounds)),
			   path == PINGPONG ? UNKNOWN : NUMBER(median(t->rate, rounds)),
			   NUMBER(us / base_us),
		   });
}

static int show(struct bench *b)
{
	struct report r;
	uint64_t wrong = 0;
	for (int path = 0; path < 2; path++)
		wrong += b->clients[path].recv[0] != b->clients[path].send[0];
	report_begin(&r, b->options, "submit to done, one member, AllReduce of 8 B");
	report_note(&r,
		    "%" PRIu64 " times in each of %u rounds, in turn; ratio to the ping-pong's "
		    "median",
		    b->iters, b->options->rounds);
	report_note(&r, "cpu: of this client, for a submission and its wait; submit cpu: without "
			"the wait");
	report_set(&r, "wrong", json_integer((json_int_t)wrong));
	report_titles(&r, columns, COLUMNS);
	const struct path_times *base = &b->times[PINGPONG];
	const double base_us = median(base->samples, base->n);
	for (unsigned path = 0; path < b->paths; path++)
		show_path(&r, b, (enum path)path, base_us);
	if (b->paths > QUEUED) {
		report_note(&r,
			    "queued: the ring beside %" PRIu64 " tasks, listed once a second "
			    "in %.1f ms, %.1f ms at worst",
			    b->queue.listed, b->queue.list_ms, b->queue.list_worst_ms);
		report_set(&r, "listed", json_integer((json_int_t)b->queue.listed));
		report_set_number(&r, "list_ms", b->queue.list_ms);
		report_set_number(&r, "list_worst_ms", b->queue.list_worst_ms);
	}
	if (wrong)
		complain("an AllReduce of one member did not return its input");
	return !report_end(&r, true) ? EXIT_ERROR : wrong ? EXIT_WRONG : EXIT_GOOD;
}

int submit_run(const struct options *o, const char *socket)
{
	static struct bench b = {.ping_fd = -1};
	b.options = o;
	b.iters = o->given & GIVEN_ITERS ? o->iters : DEFAULT_ITERS;
	b.paths = o->queued ? PATHS : QUEUED;
	int status = measure(&b, socket) ? show(&b) : EXIT_ERROR;
	for (int path = 0; path < 2; path++)
		ncclsvc_close(b.clients[path].session);
	for (int path = 0; path < PATHS; path++)
		free(b.times[path].samples);
	if (b.ping_fd >= 0)
		close(b.ping_fd);
	if (b.echo > 0)
		stop_child(b.echo, false, 1000);
	queue_stop(&b.queue);
	return status;
}
