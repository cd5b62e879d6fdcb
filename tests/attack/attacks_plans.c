/* SPDX-License-Identifier: Apache-2.0
 * Attacks with plans that take long to match. */
#include <string.h>
#include <unistd.h>

#include "attack.h"
#include "conn.h"

enum { SESSIONS = 4, EACH = 1000, RANKS = SESSIONS * EACH, NEIGHBOURS = 58 /* tasks of a rank */ };

struct member {
	uint32_t comm, epoch;
};

/* Reads the answers to each rank's last request; for JOIN, fills in joined. */
static bool read_answers(struct conn conns[SESSIONS], struct member joined[RANKS])
{
	struct answer answer;
	for (int i = 0; i < SESSIONS; i++)
		for (int n = 0; n < EACH;) {
			if (conn_next(&conns[i], &answer, 60000) != 1)
				return false;
			svc_close_fds(answer.fds, answer.nfds);
			if (answer.header.opcode & SVC_REPLY)
				n++;
			if (answer.header.opcode != (SVC_REPLY | SVC_JOIN))
				continue;
			if (answer.header.result)
				return false;
			const struct svc_join_reply *r = &answer.body.join;
			joined[r->rank] = (struct member){r->comm, r->epoch};
		}
	return true;
}

static bool join(struct conn conns[SESSIONS], struct member members[RANKS])
{
	struct svc_join request = {.nranks = RANKS, .device = SVC_DEVICE_HOST};
	random_id(request.id);
	for (request.rank = 0; request.rank < RANKS; request.rank++)
		if (conn_send(&conns[request.rank / EACH], SVC_JOIN, &request, sizeof(request), -1,
			      0))
			return false;
	return read_answers(conns, members);
}

/* Lists to and from the neighbours, with shapes ahead, so all groups are one unit. Rank 0 has one
 * more in a group that never begins; rank 2 waits for it, and all others for rank 2. */
static uint32_t stuck_plan(int rank, struct svc_plan_task tasks[NEIGHBOURS + 1])
{
	uint32_t n = 0;
	for (; n < NEIGHBOURS; n++)
		tasks[n] = (struct svc_plan_task){.op = n % 2 ? NCCLSVC_RECV : NCCLSVC_SEND,
						  .peer = (rank + (n % 2 ? RANKS - 1 : 1)) % RANKS,
						  .count = SVC_PLAN_ANY,
						  .agreement = 1};
	if (rank == 0 || rank == 2)
		tasks[n++] = (struct svc_plan_task){.op = rank ? NCCLSVC_RECV : NCCLSVC_SEND,
						    .group = !rank,
						    .peer = rank ? 0 : 2,
						    .count = SVC_PLAN_ANY,
						    .agreement = 1};
	return n;
}

static bool commit(struct conn *c, int rank, const struct member *m)
{
	struct svc_plan_task tasks[NEIGHBOURS + 1];
	const uint32_t n = stuck_plan(rank, tasks);
	const struct svc_plan_commit request = {
		.comm = m->comm, .epoch = m->epoch, .groups = rank ? 1 : 2, .tasks = n};
	const size_t bytes = n * sizeof(tasks[0]);
	int fd = svc_memfd_create("attack", bytes, true);
	const bool sent = fd >= 0 && pwrite(fd, tasks, bytes, 0) == (ssize_t)bytes &&
			  !conn_send(c, SVC_PLAN_COMMIT, &request, sizeof(request), fd, 0);
	if (fd >= 0)
		close(fd);
	return sent;
}

static bool open_and_join(struct attacker *a, struct conn conns[SESSIONS],
			  struct member members[RANKS])
{
	for (int i = 0; i < SESSIONS; i++)
		if (!conn_open(&conns[i], a->socket))
			return false;
	return join(conns, members);
}

static bool commit_all(struct conn conns[SESSIONS], const struct member members[RANKS])
{
	for (int k = 0; k < RANKS; k++)
		if (!commit(&conns[k / EACH], k, &members[k]))
			return false;
	return true;
}

static void plan_stuck(struct attacker *a)
{
	static struct conn conns[SESSIONS];
	static struct member members[RANKS];
	if (!open_and_join(a, conns, members))
		attack_hold();
	attack_ready(a, "a plan of %d lists on %d ranks", RANKS * NEIGHBOURS, RANKS);
	while (commit_all(conns, members) && read_answers(conns, members)) {
		a->asked += RANKS;
		a->refused += RANKS;
	}
	attack_hold();
}

/* The plan is matched while its members leave. */
static void plan_dies(struct attacker *a)
{
	static struct conn conns[SESSIONS];
	static struct member members[RANKS];
	while (open_and_join(a, conns, members) && commit_all(conns, members)) {
		attack_ready(a, "sessions of %d ranks end with their plan", RANKS);
		a->asked += RANKS;
		for (int i = 0; i < SESSIONS; i++)
			conn_close(&conns[i]);
		a->ended += SESSIONS;
	}
	attack_harms(a, "a new session was refused");
	attack_hold();
}

const struct attack plan_attacks[] = {
	{"plan-stuck", "a plan of 232,000 lists on 4,000 ranks that can never be carried out",
	 .run = plan_stuck},
	{"plan-dies", "the same, and its sessions end at once", .run = plan_dies},
	{0}};
