/* SPDX-License-Identifier: Apache-2.0
 * Attacks that use one user's whole share at once: parts of the world, JOINs that expire together,
 * a SPLIT into thousands of parts, sessions that end together, sessions that do not read. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "flood.h"

/* ---- The world ---- */

enum { WORLD = 4 };

static bool join_world(struct conn *c, struct rank *ranks)
{
	const struct svc_join join = {
		.flags = SVC_JOIN_WORLD, .rank = -1, .device = SVC_DEVICE_HOST};
	struct answer answer;
	for (int i = 0; i < WORLD; i++)
		if (conn_send(&c[i], SVC_JOIN, &join, sizeof(join), -1, 0))
			return false;
	for (int i = 0; i < WORLD; i++) {
		if (conn_next(&c[i], &answer, 10000) != 1 || answer.header.result)
			return false;
		ranks[i] = (struct rank){&c[i], answer.body.join.comm, answer.body.join.epoch,
					 answer.body.join.comm_uid};
	}
	return true;
}

/* Creates one part per rank. Returns the number of parts; last: rank 0's last one. */
static int split_world(struct conn *c, const struct rank *ranks, struct svc_join_reply *last)
{
	struct answer answer;
	int parts = 0;
	for (int i = 0; i < WORLD; i++) {
		const struct svc_split m = {.comm = ranks[i].comm, .colour = i};
		if (conn_send(&c[i], SVC_SPLIT, &m, sizeof(m), -1, 0))
			return 0;
	}
	for (int i = 0; i < WORLD; i++) {
		if (conn_next(&c[i], &answer, 10000) != 1)
			return 0;
		if (!answer.header.result && i == 0)
			*last = answer.body.join;
		parts += !answer.header.result;
	}
	return parts;
}

/* Uses a part like a trainer: cancels its operations, leaves, and joins again. */
static void use_part(struct attacker *a, struct conn *c, const struct svc_join_reply *part)
{
	struct answer answer;
	const struct svc_cancel cancel = {.kind = SVC_CANCEL_COMM, .id = part->comm_uid};
	const struct svc_leave leave = {.comm = part->comm};
	struct svc_join join = {.nranks = part->nranks, .device = SVC_DEVICE_HOST};
	memcpy(join.id, part->id, sizeof(join.id));
	if (conn_call(c, SVC_CANCEL, &cancel, sizeof(cancel), -1, &answer))
		attack_harms(a, "CANCEL of an own part: %.100s", answer.body.error.text);
	else if (conn_call(c, SVC_LEAVE, &leave, sizeof(leave), -1, &answer) ||
		 conn_call(c, SVC_JOIN, &join, sizeof(join), -1, &answer))
		attack_harms(a, "JOIN of an own part: %.100s", answer.body.error.text);
}

static void world_parts(struct attacker *a)
{
	static struct conn c[WORLD], more[4];
	struct rank ranks[WORLD], rank;
	struct svc_join_reply first = {0}, last;
	int parts = 0, n, alone = 0;
	if (open_many(a, c, WORLD) < WORLD || !join_world(c, ranks))
		attack_hold();
	while ((n = split_world(c, ranks, &last)) > 0) {
		if (!parts)
			first = last;
		parts += n;
	}
	const unsigned others = open_many(a, more, 4);
	for (unsigned i = 0; i < others; i++)
		for (int k = 1; k < SVC_SESSION_COMMS && rank_alone(&more[i], &rank); k++)
			alone++;
	attack_ready(a, "%d parts of the world, %d communicators", parts, alone);
	use_part(a, &c[0], &first);
	attack_hold();
}

/* ---- Thousands of ranks in one process ---- */

enum { WIDE = 4096 };

/* Joins ranks 0..n-1 of a new communicator of WIDE ranks, by several sessions. */
static bool join_wide(struct attacker *a, struct conn *c, unsigned sessions, int n,
		      uint64_t timeout_ns)
{
	struct svc_join join = {
		.nranks = WIDE, .device = SVC_DEVICE_HOST, .timeout_ns = timeout_ns};
	random_id(join.id);
	for (join.rank = 0; join.rank < n; join.rank++, a->asked++)
		if (conn_send(&c[(unsigned)join.rank % sessions], SVC_JOIN, &join, sizeof(join), -1,
			      0))
			return false;
	return true;
}

/* 4,095 of 4,096 ranks, of 16 communicators, whose deadlines pass at the same time. */
static void joins_late(struct attacker *a)
{
	enum { COMMS = 16, SESSIONS = 5 };
	static struct conn c[SESSIONS];
	attack_ready(a, "%d JOINs of %d communicators", COMMS * (WIDE - 1), COMMS);
	for (;;) {
		for (int k = 0; k < COMMS; k++)
			if (attack_fork()) {
				if (open_many(a, c, SESSIONS) == SESSIONS &&
				    join_wide(a, c, SESSIONS, WIDE - 1, 800000000))
					pause_ms(1500);
				_exit(0);
			}
		while (wait(NULL) > 0)
			a->ended++;
	}
}

/* Most of a user's share waits for peers; one JOIN after the other passes its deadline. */
static void joins_wide(struct attacker *a)
{
	static struct conn c, more[3], d;
	unsigned wide = 0, small = 0;
	if (conn_open(&c, a->socket))
		wide = join_unmet(a, &c, 62, WIDE, 0);
	const unsigned others = open_many(a, more, 3);
	for (unsigned i = 0; i < others; i++)
		small += join_unmet(a, &more[i], 900, 2, 0);
	attack_ready(a, "%u communicators of %d ranks, %u of 2", wide, WIDE, small);
	while (conn_open(&d, a->socket)) {
		struct answer answer;
		struct svc_join join = {
			.nranks = 2, .device = SVC_DEVICE_HOST, .timeout_ns = 1000000};
		random_id(join.id);
		for (int result = NCCLSVC_TIMEOUT; result == NCCLSVC_TIMEOUT; a->asked++)
			result = conn_call(&d, SVC_JOIN, &join, sizeof(join), -1, &answer);
		a->refused++;
		conn_close(&d);
	}
	attack_hold();
}

/* Each deadline is earlier than all previous ones, so the loop's timer is reset each time. */
static void joins_earlier(struct attacker *a)
{
	enum { CROWD = 1500, EACH = 8, STEP_NS = 4000 };
	static struct conn c[CROWD];
	struct answer answer;
	struct svc_join join = {.nranks = 2, .device = SVC_DEVICE_HOST};
	const unsigned n = open_many(a, c, CROWD);
	attack_ready(a, "%u sessions", n);
	for (uint64_t at = 0;;) {
		for (unsigned i = 0; i < n; i++)
			for (int k = 0; k < EACH; k++) {
				const uint64_t now = clock_ns();
				if (at < now + 100000000)
					at = now + UINT64_C(1000000000);
				random_id(join.id);
				join.timeout_ns = at - now;
				if (conn_send(&c[i], SVC_JOIN, &join, sizeof(join), -1, 0))
					attack_hold();
				const struct svc_join_cancel cancel = {.request_id =
									       c[i].request_id};
				conn_send(&c[i], SVC_JOIN_CANCEL, &cancel, sizeof(cancel), -1, 0);
				at -= STEP_NS;
				a->asked += 2;
			}
		for (unsigned i = 0; i < n; i++)
			while (conn_next(&c[i], &answer, 0) == 1)
				a->refused += answer.header.result != 0;
	}
}

static void read_all(struct conn *c, unsigned n, unsigned each, unsigned opcode)
{
	struct answer answer;
	for (unsigned i = 0; i < n; i++)
		for (unsigned k = 0; k < each;)
			if (conn_next(&c[i], &answer, 10000) != 1)
				return;
			else
				k += answer.header.opcode == (opcode | SVC_REPLY);
}

static void split_apart(struct attacker *a)
{
	enum { SESSIONS = 16, EACH = WIDE / SESSIONS };
	static struct conn c[SESSIONS];
	for (;; a->ended += SESSIONS) {
		if (open_many(a, c, SESSIONS) < SESSIONS || !join_wide(a, c, SESSIONS, WIDE, 0))
			attack_hold();
		read_all(c, SESSIONS, EACH, SVC_JOIN);
		attack_ready(a, "%d ranks", WIDE);
		/* The second time, the user has no room for parts. */
		for (int turn = 0; turn < 2; turn++) {
			for (int k = 0; k < WIDE; k++, a->asked++) {
				const struct svc_split m = {.comm = 1 + (uint32_t)k / SESSIONS,
							    .colour = k};
				conn_send(&c[k % SESSIONS], SVC_SPLIT, &m, sizeof(m), -1, 0);
			}
			read_all(c, SESSIONS, EACH, SVC_SPLIT);
		}
		for (int i = 0; i < SESSIONS; i++)
			conn_close(&c[i]);
	}
}

/* ---- Sessions ---- */

/* Each has a long answer in its socket, and another one waiting behind it. */
static void ask_unread(struct conn *c, unsigned n)
{
	const struct svc_list list = {.what = SVC_LIST_SESSIONS};
	for (unsigned i = 0; i < n; i++)
		for (int k = 0; k < 2; k++)
			conn_send(&c[i], SVC_LIST, &list, sizeof(list), -1, 0);
}

static void answers_unread(struct attacker *a)
{
	static struct conn c[2040];
	const unsigned n = open_many(a, c, 2040);
	ask_unread(c, n);
	pause_ms(500); /* time for the last answers */
	attack_ready(a, "%u sessions", n);
	attack_hold();
}

static void be_crowd(struct attacker *a, unsigned sessions, unsigned comms)
{
	static struct conn c[250];
	struct rank rank;
	sessions = open_many(a, c, sessions);
	for (unsigned i = 0; i < sessions; i++)
		for (unsigned k = 0; k < comms; k++)
			rank_alone(&c[i], &rank);
	ask_unread(c, sessions);
	attack_hold();
}

static void crowd_dies(struct attacker *a)
{
	attack_ready(a, "1,000 sessions, 3,000 communicators");
	for (;; a->ended += 1000) {
		if (attack_fork()) {
			for (int i = 0; i < 4; i++)
				if (attack_fork())
					be_crowd(a, 250, 3);
			pause_ms(700);
			_exit(0); /* and its children with it */
		}
		wait(NULL);
	}
}

const struct attack share_attacks[] = {
	{"world-parts", "the world is SPLIT as often as can be, and its parts are used",
	 .run = world_parts, .ranks = WORLD},
	{"joins-late", "65,520 JOINs pass their deadlines at one time", .run = joins_late},
	{"joins-wide", "JOINs pass their deadlines beside 250,000 ranks that wait",
	 .run = joins_wide, .cpu_percent = 40},
	{"joins-earlier",
	 "1,500 sessions JOIN and take it back, each time with an earlier deadline",
	 .run = joins_earlier},
	{"split-apart", "4,096 ranks SPLIT into as many parts", .run = split_apart},
	{"crowd-dies", "1,000 sessions with 3,000 communicators and answers unread end at once",
	 .run = crowd_dies},
	{"answers-unread", "2,040 sessions let two long answers wait", .run = answers_unread,
	 .cpu_percent = 20},
	{0}};
