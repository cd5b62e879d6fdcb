/* SPDX-License-Identifier: Apache-2.0
 * Attacks with communicators: as many as possible, storms of them, plans, a peer's death. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "flood.h"

static void all_comms(struct attacker *a)
{
	enum { SESSIONS = 5 };
	static struct conn c[SESSIONS];
	struct rank rank;
	unsigned n = 0;
	for (unsigned i = 0; i < open_many(a, c, SESSIONS); i++)
		for (int k = 1; k < SVC_SESSION_COMMS && rank_alone(&c[i], &rank); k++)
			n++;
	attack_ready(a, "%u communicators", n);
	attack_hold();
}

static void all_ranks(struct attacker *a)
{
	struct conn c;
	unsigned n = conn_open(&c, a->socket) ? join_unmet(a, &c, 64, 4096, 0) : 0;
	attack_ready(a, "%u communicators of 4096 ranks", n);
	attack_hold();
}

static void join_and_leave(struct attacker *a)
{
	struct conn c;
	struct rank rank;
	struct answer answer;
	for (int i = 0; i < 3; i++)
		if (attack_fork())
			break;
	if (!conn_open(&c, a->socket))
		attack_hold();
	attack_ready(a, "4 sessions");
	while (rank_alone(&c, &rank)) {
		struct svc_leave leave = {.comm = rank.comm};
		a->asked += 2;
		if (conn_call(&c, SVC_LEAVE, &leave, sizeof(leave), -1, &answer))
			break;
	}
	attack_hold();
}

static void join_and_expire(struct attacker *a)
{
	static struct conn c;
	attack_ready(a, "64 JOINs of 4096 ranks, over after 1 ms");
	while (conn_open(&c, a->socket)) {
		for (int i = 0; i < 8; i++)
			join_unmet(a, &c, 64, 4096, 1000000);
		conn_close(&c);
	}
	attack_hold();
}

static bool split(struct conn *c, int n, const struct rank *ranks, int *rounds)
{
	struct answer answer;
	for (int i = 0; i < n; i++) {
		struct svc_split m = {.comm = ranks[i].comm, .colour = i % 2, .key = -i};
		if (conn_send(&c[i], SVC_SPLIT, &m, sizeof(m), -1, 0))
			return false;
	}
	for (int i = 0; i < n; i++) {
		if (conn_next(&c[i], &answer, 10000) != 1 || answer.header.result)
			return false;
		struct svc_leave leave = {.comm = answer.body.join.comm};
		if (conn_call(&c[i], SVC_LEAVE, &leave, sizeof(leave), -1, &answer))
			return false;
	}
	(*rounds)++;
	return true;
}

static void split_and_leave(struct attacker *a)
{
	enum { RANKS = 64 };
	static struct conn c[RANKS];
	struct rank ranks[RANKS];
	int rounds = 0;
	unsigned n = open_many(a, c, RANKS);
	if (!n || !ranks_join(c, (int)n, ranks))
		attack_hold();
	attack_ready(a, "%u ranks", n);
	while (split(c, (int)n, ranks, &rounds))
		a->asked += n;
	attack_hold();
}

/* Each session has 1,000 communicators of one rank, whose members all die with the session. */
static void die_with_comms(struct attacker *a)
{
	attack_ready(a, "4 sessions of 1000 communicators, killed");
	for (;;) {
		for (int i = 0; i < 4; i++)
			if (attack_fork()) {
				struct conn c;
				struct rank rank;
				if (conn_open(&c, a->socket))
					for (int k = 0; k < 1000 && rank_alone(&c, &rank); k++)
						a->asked++;
				_exit(0);
			}
		while (wait(NULL) > 0)
			a->ended++;
	}
}

/* ---- Plans ---- */

static int plan_memfd(uint32_t tasks)
{
	size_t bytes = tasks * sizeof(struct svc_plan_task);
	int fd = svc_memfd_create("attack", bytes, true);
	struct svc_plan_task *t = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (t == MAP_FAILED)
		return -1;
	/* Each group is a Send to the own rank, and its Recv. */
	for (uint32_t i = 0; i < tasks; i++)
		t[i] = (struct svc_plan_task){.group = i / 2,
					      .op = i % 2 ? NCCLSVC_RECV : NCCLSVC_SEND,
					      .type = NCCLSVC_UINT8,
					      .count = 1};
	munmap(t, bytes);
	return fd;
}

static void plans(struct attacker *a)
{
	struct conn c;
	struct rank rank;
	struct answer answer;
	int fd = plan_memfd(SVC_PLAN_TASKS);
	for (int i = 0; i < 3; i++)
		if (attack_fork())
			break;
	if (!conn_open(&c, a->socket) || !rank_alone(&c, &rank))
		attack_hold();
	const struct svc_plan_commit commit = {.comm = rank.comm,
					       .epoch = rank.epoch,
					       .groups = SVC_PLAN_TASKS / 2,
					       .tasks = SVC_PLAN_TASKS};
	attack_ready(a, "4 plans of 65536 tasks");
	for (;;) {
		int result = conn_call(&c, SVC_PLAN_COMMIT, &commit, sizeof(commit), fd, &answer);
		a->asked++;
		a->refused += result != 0;
		if (result == CONN_LOST)
			attack_hold();
		if (result) {
			attack_ready(a, "refused: %.70s", answer.body.error.text);
			pause_ms(1);
			continue;
		}
		struct svc_plan_drop drop = {.comm = rank.comm, .plan = answer.body.plan.plan};
		conn_call(&c, SVC_PLAN_DROP, &drop, sizeof(drop), -1, &answer);
	}
}

/* ---- A peer's death ---- */

enum { COMMON = 1000 };

/* The peer: rank 1 of all communicators, until it is killed. */
static void be_the_peer(struct attacker *a, const uint8_t (*ids)[NCCLSVC_ID_BYTES])
{
	struct conn c;
	struct svc_join join = {.nranks = 2, .rank = 1, .device = SVC_DEVICE_HOST};
	struct answer answer;
	if (!conn_open(&c, a->socket))
		return;
	for (int i = 0; i < COMMON; i++) {
		memcpy(join.id, ids[i], sizeof(join.id));
		conn_call(&c, SVC_JOIN, &join, sizeof(join), -1, &answer);
	}
	attack_hold();
}

/* Reads everything that arrives. Returns how many communicators were reported broken, or CONN_LOST.
 */
static int hear_of_death(struct conn *c)
{
	struct answer answer;
	int told = 0, got = 1;
	for (; told < COMMON && (got = conn_next(c, &answer, 5000)) == 1;)
		told += answer.header.opcode == SVC_EVENT_COMM;
	return got == CONN_LOST ? CONN_LOST : told;
}

static void peer_dies(struct attacker *a)
{
	static uint8_t ids[COMMON][NCCLSVC_ID_BYTES];
	struct svc_join join = {.nranks = 2, .device = SVC_DEVICE_HOST};
	struct answer answer;
	struct conn c;
	int comms = 0, told = 0;
	for (int round = 0; !told || told == comms; round++) {
		for (int i = 0; i < COMMON; i++)
			random_id(ids[i]);
		pid_t peer = fork();
		if (!peer)
			be_the_peer(a, ids);
		if (!conn_open(&c, a->socket))
			break;
		for (comms = 0; comms < COMMON; comms++) {
			memcpy(join.id, ids[comms], sizeof(join.id));
			if (conn_call(&c, SVC_JOIN, &join, sizeof(join), -1, &answer))
				break;
		}
		attack_ready(a, "%d communicators in common", comms);
		kill(peer, SIGKILL);
		pause_ms(50); /* like a trainer that computes */
		told = hear_of_death(&c);
		waitpid(peer, NULL, 0);
		conn_close(&c);
		a->ended++;
	}
	if (told == CONN_LOST)
		attack_harms(a, "the session that read all the time was ended");
	else
		attack_harms(a, "the session heard of %d of %d deaths", told, comms);
	attack_hold();
}

const struct attack comm_attacks[] = {
	{"comms", "as many communicators as the user may have", .run = all_comms},
	{"comms-large", "64 JOINs of 4,096 ranks that no peer joins", .run = all_ranks},
	{"join-storm", "4 sessions JOIN and LEAVE without pause", .run = join_and_leave},
	{"join-expire", "JOINs of 4,096 ranks that time out after a millisecond",
	 .run = join_and_expire},
	{"split-storm", "64 ranks SPLIT and LEAVE without pause", .run = split_and_leave},
	{"comms-die", "sessions with 1,000 communicators end, again and again",
	 .run = die_with_comms},
	{"plans", "4 plans of 65,536 tasks are committed and dropped without pause", .run = plans},
	{"peer-dies", "a peer with 1,000 communicators in common with a session that reads dies",
	 .run = peer_dies},
	{0}};
