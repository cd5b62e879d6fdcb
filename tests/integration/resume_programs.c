/* SPDX-License-Identifier: Apache-2.0 */
#include "resume_programs.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "node_daemons.h"

#define RESTARTS (cluster_nodes() ? 6 : 10)

struct shared_state *shared_state;
char killed;
unsigned progress = 10;
const int all_ranks[RANKS] = {0, 1, 2, 3};

void share_state(void)
{
	shared_state = mmap(NULL, sizeof(*shared_state), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared_state != MAP_FAILED);
	setenv("NCCLSVC_REATTACH_MS", "20000", 1);
}

int32_t value_of(int rank, unsigned round, int i)
{
	return (int32_t)((unsigned)(rank + 1) * 1000 + round * 7 + (unsigned)i);
}

void fill(int32_t *v, int rank, unsigned round)
{
	for (int i = 0; i < COUNT; i++)
		v[i] = value_of(rank, round, i);
}

void check_sum(const int32_t *v, const int *ranks, int n, unsigned round)
{
	for (int i = 0; i < COUNT; i++) {
		int32_t sum = 0;
		for (int k = 0; k < n; k++)
			sum += value_of(ranks[k], round, i);
		CHECK_EQ(v[i], sum);
	}
}

bool is_missed(const struct client *me, ncclsvc_result r)
{
	const bool missed = r == NCCLSVC_DAEMON_LOST && me->arg == &killed && cluster_nodes() &&
			    strstr(ncclsvc_last_error(), "only on other nodes");
	shared_state->missed += missed;
	return missed;
}

/* A daemon was killed while it wrote the result of memory that the library copies. */
static bool is_half_done(const struct client *me, ncclsvc_result r)
{
	return r == NCCLSVC_DAEMON_LOST && me->arg == &killed &&
	       strstr(ncclsvc_last_error(), "in place");
}

bool has_ended(const struct client *me, ncclsvc_session *s, ncclsvc_task task)
{
	const ncclsvc_result r = ncclsvc_wait(s, task, WAIT_MS);
	if (is_missed(me, r) || is_half_done(me, r))
		return false;
	CHECK_OK(r);
	return true;
}

/* Pairs of ranks (of several nodes, on two of them), in descending order. */
static ncclsvc_comm *split(const struct client *me, ncclsvc_comm *comm, int part[RANKS / 2])
{
	ncclsvc_comm *child;
	CHECK_OK(ncclsvc_comm_split(comm, me->rank / 2, -me->rank, WAIT_MS, &child));
	part[0] = me->rank | 1;
	part[1] = me->rank & ~1;
	CHECK_EQ(part[ncclsvc_comm_rank(child)], me->rank);
	return child;
}

struct buffers {
	int32_t *in, *out, *part_out, *sent, *received;
	int32_t plain_in[COUNT], plain_out[COUNT];
};

static void pass_on(const struct client *me, ncclsvc_session *s, ncclsvc_comm *comm,
		    struct buffers *b, unsigned round)
{
	const int next = (me->rank + 1) % RANKS, prev = (me->rank + RANKS - 1) % RANKS;
	ncclsvc_task send, recv;
	fill(b->sent, me->rank, round);
	CHECK_OK(ncclsvc_group_begin(s));
	CHECK_OK(ncclsvc_send(b->sent, COUNT, NCCLSVC_INT32, next, comm, &send));
	CHECK_OK(ncclsvc_recv(b->received, COUNT, NCCLSVC_INT32, prev, comm, &recv));
	CHECK_OK(ncclsvc_group_end(s));
	has_ended(me, s, send);
	if (!has_ended(me, s, recv))
		return;
	for (int i = 0; i < COUNT; i++)
		CHECK_EQ(b->received[i], value_of(prev, round, i));
}

bool agree_to_stop(const struct client *me, ncclsvc_session *s, ncclsvc_comm *comm)
{
	int32_t mine = shared_state->stop, any = 0;
	ncclsvc_task task;
	CHECK_OK(ncclsvc_all_reduce(&mine, &any, 1, NCCLSVC_INT32, NCCLSVC_MAX, comm, &task));
	return has_ended(me, s, task) && any; /* no daemon is killed any more after a stop */
}

static int count_fds(void)
{
	int n = 0;
	DIR *dir = opendir("/proc/self/fd");
	CHECK(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

void work(struct client *me)
{
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	int part[RANKS / 2];
	ncclsvc_comm *child = split(me, comm, part);
	struct buffers *b = calloc(1, sizeof(*b));
	ncclsvc_task tasks[3];
	CHECK(b);
	b->in = shared(s, 5 * sizeof(b->plain_in));
	b->out = b->in + COUNT;
	b->part_out = b->out + COUNT;
	b->sent = b->part_out + COUNT;
	b->received = b->sent + COUNT;
	const int fds = count_fds();
	say(me, READY);
	for (unsigned round = 0; !agree_to_stop(me, s, comm); round++) {
		fill(b->in, me->rank, round);
		fill(b->plain_in, me->rank, round + 1);
		CHECK_OK(ncclsvc_all_reduce(b->in, b->out, COUNT, NCCLSVC_INT32, NCCLSVC_SUM, comm,
					    &tasks[0]));
		CHECK_OK(ncclsvc_all_reduce(b->plain_in, b->plain_out, COUNT, NCCLSVC_INT32,
					    NCCLSVC_SUM, comm, &tasks[1]));
		CHECK_OK(ncclsvc_all_reduce(b->in, b->part_out, COUNT, NCCLSVC_INT32, NCCLSVC_SUM,
					    child, &tasks[2]));
		if (has_ended(me, s, tasks[0]))
			check_sum(b->out, all_ranks, RANKS, round);
		if (has_ended(me, s, tasks[1]))
			check_sum(b->plain_out, all_ranks, RANKS, round + 1);
		if (has_ended(me, s, tasks[2]))
			check_sum(b->part_out, part, RANKS / 2, round);
		pass_on(me, s, comm, b, round);
		/* A killed daemon can answer a split on some ranks only. */
		if (!me->arg && round % 10 == 9) {
			CHECK_OK(ncclsvc_comm_leave(child));
			child = split(me, comm, part);
		}
		shared_state->iterations[me->rank]++;
	}
	CHECK_EQ(count_fds(), fds);
	free(b);
	ncclsvc_close(s);
}

static void await_progress(void)
{
	const uint64_t since = now_ns();
	for (int k = 0; k < RANKS; k++) {
		const unsigned before = shared_state->iterations[k];
		while (shared_state->iterations[k] < before + progress) {
			CHECK(now_ns() - since < WAIT_MS * UINT64_C(1000000));
			sleep_ms(1);
		}
	}
}

static bool restart_node(const struct daemon *d, int signum)
{
	static int turns;
	struct cluster *c = cluster_of(d);
	if (c)
		cluster_restart(c, turns++ % c->n, signum);
	return c;
}

void restart(struct daemon *d)
{
	if (restart_node(d, SIGTERM))
		return;
	daemon_terminate(d);
	daemon_restart(d, NULL);
}

void kill_and_start(struct daemon *d)
{
	if (restart_node(d, SIGKILL))
		return;
	daemon_kill(d);
	daemon_restart(d, NULL);
}

void run(client_main *main, void (*again)(struct daemon *d), void *killed)
{
	struct daemon d;
	struct client clients[RANKS];
	time_limit(240);
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, RANKS, &d, main, killed);
	hear_all(clients, RANKS, READY);
	for (int i = 0; i < RESTARTS; i++) {
		await_progress();
		sleep_ms((unsigned)(i * 3 % 11));
		again(&d);
	}
	await_progress();
	shared_state->stop = 1;
	clients_end(clients, RANKS);
	daemon_stop(&d);
}
