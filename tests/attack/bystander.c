/* SPDX-License-Identifier: Apache-2.0 */
#include "bystander.h"

#include <grp.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ncclsvc.h"

#define START_MS   20000
#define PATIENCE   600000 /* ms; a bystander that gives up measures nothing */
#define REDUCE_MS  1	  /* between two AllReduces */
#define REQUEST_MS 5	  /* between two requests */
#define NEWCOMER   10	  /* one in this many requests is a whole session */

/* ---- Gauges ---- */

static unsigned bucket_of(uint64_t ns)
{
	double b = ns ? log2((double)ns) * 8 : 0;
	return b < BUCKETS - 1 ? (unsigned)b : BUCKETS - 1;
}

void gauge_begin(struct gauge *g, const char *name)
{
	g->now_of = name;
	g->begun = clock_ns();
}

static void gauge_worst(struct gauge *g, uint64_t took)
{
	if (took <= g->worst)
		return;
	g->worst = took;
	snprintf(g->worst_of, sizeof(g->worst_of), "%s", g->now_of);
}

void gauge_end(struct gauge *g)
{
	uint64_t took = clock_ns() - g->begun;
	g->buckets[bucket_of(took)]++;
	g->done++;
	gauge_worst(g, took);
	g->begun = 0;
}

bool gauge_close(struct gauge *g)
{
	uint64_t begun = g->begun, took = begun ? clock_ns() - begun : 0;
	bool longest = took > g->worst;
	g->closed = true;
	gauge_worst(g, took);
	return longest;
}

double gauge_percentile_ms(const struct gauge *g, double part)
{
	uint64_t total = 0, n = 0;
	for (unsigned i = 0; i < BUCKETS; i++)
		total += g->buckets[i];
	for (unsigned i = 0; i < BUCKETS; i++)
		if ((n += g->buckets[i]) && (double)n >= part * (double)total)
			return exp2((i + 0.5) / 8) / 1e6;
	return 0;
}

void gauge_fail(struct gauge *g, int result, const char *text)
{
	if (!g->closed && !g->failure[0])
		snprintf(g->failure, sizeof(g->failure), "%s: %s: %.100s", g->now_of,
			 ncclsvc_result_name(result), text);
}

static void fail(struct gauge *g, ncclsvc_result result)
{
	gauge_fail(g, result, ncclsvc_last_error());
}

/* True if the call succeeded; otherwise the gauge keeps its error. */
#define SUCCEEDS(gauge, name, call)                                                                \
	({                                                                                         \
		(gauge)->now_of = (name);                                                          \
		ncclsvc_result result_ = (call);                                                   \
		if (result_)                                                                       \
			fail(gauge, result_);                                                      \
		result_ == NCCLSVC_OK;                                                             \
	})

/* The same, and the gauge measures the call. */
#define MEASURED(gauge, name, call)                                                                \
	({                                                                                         \
		gauge_begin(gauge, name);                                                          \
		bool good_ = SUCCEEDS(gauge, name, call);                                          \
		gauge_end(gauge);                                                                  \
		good_;                                                                             \
	})

/* ---- The processes ---- */

static ncclsvc_result open_session(const struct bystanders *b, ncclsvc_session **session)
{
	ncclsvc_options options = {.size = sizeof(options),
				   .socket = b->socket,
				   .name = "bystander",
				   .ring_entries = 64,
				   .timeout_ms = PATIENCE};
	return ncclsvc_open(&options, session);
}

static ncclsvc_result reduce(ncclsvc_session *s, ncclsvc_comm *comm, float *v)
{
	ncclsvc_task task;
	ncclsvc_result result =
		ncclsvc_all_reduce(v, v, 4, NCCLSVC_FLOAT32, NCCLSVC_SUM, comm, &task);
	return result ? result : ncclsvc_wait(s, task, PATIENCE);
}

/* Rank 0 measures, rank 1 always participates. */
static void reduces(struct bystanders *b, int rank)
{
	ncclsvc_session *s;
	ncclsvc_comm *comm;
	ncclsvc_unique_id id;
	struct gauge *g = &b->reduce;
	void *v;
	memcpy(id.bytes, b->id, sizeof(id.bytes));
	if (!SUCCEEDS(g, "open", open_session(b, &s)) ||
	    !SUCCEEDS(g, "JOIN", ncclsvc_comm_join(s, &id, 2, rank, PATIENCE, &comm)) ||
	    !SUCCEEDS(g, "REGION_ADD", ncclsvc_mem_alloc(s, 16, &v)))
		return;
	memset(v, 0, 16);
	b->ready++;
	if (rank == 1) {
		ncclsvc_result result;
		while ((result = reduce(s, comm, v)) == NCCLSVC_OK)
			;
		g->now_of = "AllReduce (rank 1)";
		fail(g, result);
		return;
	}
	while (MEASURED(g, "AllReduce", reduce(s, comm, v)))
		pause_ms(REDUCE_MS);
}

/* Checks that a whole session works: it can join, get memory and submit. */
static bool whole_session(struct bystanders *b)
{
	struct gauge *g = &b->request;
	ncclsvc_session *s;
	ncclsvc_comm *comm;
	ncclsvc_unique_id id;
	void *v = NULL;
	if (ncclsvc_unique_id_create(&id) || !MEASURED(g, "open", open_session(b, &s)))
		return false;
	bool good = MEASURED(g, "JOIN", ncclsvc_comm_join(s, &id, 1, 0, PATIENCE, &comm)) &&
		    MEASURED(g, "REGION_ADD", ncclsvc_mem_alloc(s, 16, &v));
	if (good) {
		memset(v, 0, 16);
		good = MEASURED(g, "task", reduce(s, comm, v)) &&
		       MEASURED(g, "LEAVE", ncclsvc_comm_leave(comm));
	}
	ncclsvc_close(s);
	return good;
}

static void asks(struct bystanders *b)
{
	ncclsvc_session *s = NULL;
	ncclsvc_daemon_info info;
	while (open_session(b, &s))
		pause_ms(10);
	b->ready++;
	for (unsigned i = 0;; i++) {
		if (i % NEWCOMER == 0)
			whole_session(b);
		else if (b->gpus && i % NEWCOMER == NEWCOMER / 2)
			gpu_session(b, (int)(i / NEWCOMER % 2));
		else if (!MEASURED(&b->request, "DAEMON_INFO", ncclsvc_daemon(s, &info)))
			pause_ms(50);
		pause_ms(REQUEST_MS);
	}
}

static void become_bystander(void)
{
	if (setgroups(0, NULL) || setresgid(BYSTANDER_UID, BYSTANDER_UID, BYSTANDER_UID) ||
	    setresuid(BYSTANDER_UID, BYSTANDER_UID, BYSTANDER_UID))
		_exit(1);
	setenv("NCCLSVC_DAEMON_USER", DAEMON_NAME, 1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void reduces_first(struct bystanders *b)
{
	reduces(b, 0);
}

static void reduces_second(struct bystanders *b)
{
	reduces(b, 1);
}

bool bystanders_start(struct bystanders *b, struct target *t, bool gpus)
{
	void (*const host[BYSTANDERS])(struct bystanders *) = {reduces_first, reduces_second, asks};
	void (*const on_gpus[BYSTANDERS])(struct bystanders *) = {gpu_reduces, gpu_waits, asks};
	ncclsvc_unique_id id;
	memset(b, 0, sizeof(*b));
	b->socket = t->socket;
	b->gpus = gpus;
	if (ncclsvc_unique_id_create(&id))
		return false;
	memcpy(b->id, id.bytes, sizeof(id.bytes));
	fflush(NULL);
	for (int i = 0; i < BYSTANDERS; i++) {
		pid_t pid = fork();
		if (pid) {
			b->pids[i] = pid;
			continue;
		}
		become_bystander();
		(gpus ? on_gpus : host)[i](b);
		_exit(0);
	}
	for (uint64_t end = clock_ns() + START_MS * UINT64_C(1000000);
	     b->ready < BYSTANDERS || b->reduce.done < 10 || b->request.done < 10; pause_ms(2)) {
		target_watch(t, false); /* unread heartbeats would block the daemon */
		if (clock_ns() > end || b->reduce.failure[0] || b->request.failure[0]) {
			fprintf(stderr,
				"the bystanders do not start: %u of 3 ready, %lu AllReduces, %lu "
				"requests; %s%s\n",
				(unsigned)b->ready, (unsigned long)b->reduce.done,
				(unsigned long)b->request.done, b->reduce.failure,
				b->request.failure);
			return false;
		}
	}
	return true;
}

static bool held_up(const struct gauge *g, uint64_t before_ns)
{
	uint64_t begun = g->begun;
	return begun && begun < before_ns && !g->failure[0];
}

bool bystanders_held_up(const struct bystanders *b, uint64_t before_ns)
{
	return held_up(&b->reduce, before_ns) || held_up(&b->request, before_ns);
}

static void reset(struct gauge *g)
{
	for (unsigned i = 0; i < BUCKETS; i++)
		g->buckets[i] = 0;
	g->done = g->worst = 0;
}

void bystanders_reset(struct bystanders *b)
{
	reset(&b->reduce);
	reset(&b->request);
}

void bystanders_stop(struct bystanders *b)
{
	for (int i = 0; i < BYSTANDERS; i++)
		if (b->pids[i] > 0)
			kill(b->pids[i], SIGKILL);
	for (int i = 0; i < BYSTANDERS; i++)
		if (b->pids[i] > 0)
			waitpid(b->pids[i], NULL, 0);
}
