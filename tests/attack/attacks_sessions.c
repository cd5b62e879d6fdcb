/* SPDX-License-Identifier: Apache-2.0
 * Attacks with connections, rings and small requests. */
#include <stdlib.h>

#include "flood.h"

static void does_nothing(struct attacker *a)
{
	attack_ready(a, "for comparison");
	attack_hold();
}

static void connect_and_close(struct attacker *a)
{
	struct conn c;
	for (int i = 0; i < 3; i++)
		if (attack_fork())
			break;
	attack_ready(a, "4 processes");
	for (;;) {
		a->asked++;
		if (conn_connect(&c, a->socket))
			conn_close(&c);
		else
			a->refused++;
	}
}

/* More connections than the user may have; refused ones are retried. */
static void silent_connections(struct attacker *a)
{
	enum { CROWD = 2500 };
	static struct conn c[CROWD];
	struct answer answer;
	for (unsigned i = 0; i < CROWD; i++)
		conn_connect(&c[i], a->socket);
	attack_ready(a, "%d connections", CROWD);
	for (;;)
		for (unsigned i = 0; i < CROWD; i++) {
			if (c[i].sock >= 0 && conn_next(&c[i], &answer, 0) == 0)
				continue;
			a->ended++;
			conn_close(&c[i]);
			conn_connect(&c[i], a->socket);
		}
}

static void requests(struct attacker *a, unsigned sessions, unsigned depth)
{
	static struct conn c[2048];
	const struct svc_daemon_info_request request = {0};
	unsigned n = open_many(a, c, sessions);
	attack_ready(a, "%u sessions", n);
	flood(a, c, n, depth, SVC_DAEMON_INFO, &request, sizeof(request));
}

static void info_by_2000(struct attacker *a)
{
	requests(a, 2000, 4);
}

static void info_unread(struct attacker *a)
{
	requests(a, 64, 0);
}

static void bad_messages(struct attacker *a)
{
	static struct conn c[16];
	unsigned n = open_many(a, c, 16);
	attack_ready(a, "%u sessions", n);
	flood(a, c, n, 32, 1234, NULL, 0);
}

/* Tasks submitted by socket, on a communicator that does not exist: one answer each. */
static void bad_submits(struct attacker *a)
{
	static struct conn c[16];
	const struct svc_record record = {.comm = 77, .op = NCCLSVC_BARRIER, .peer = -1};
	unsigned n = open_many(a, c, 16);
	attack_ready(a, "%u sessions", n);
	flood(a, c, n, 0, SVC_SUBMIT, &record, sizeof(record));
}

static void ring_bells(struct attacker *a)
{
	static struct conn c[16];
	unsigned n = open_many(a, c, 16);
	for (unsigned i = 0; i < n; i++)
		if (!conn_attach(&c[i], 16))
			n = i;
	attack_fork();
	attack_ready(a, "%u rings, 2 processes", n);
	for (;; a->asked += n)
		for (unsigned i = 0; i < n; i++)
			conn_ring_bell(&c[i]);
}

static void scribble(struct attacker *a)
{
	struct conn c;
	unsigned seed = 1;
	attack_ready(a, "without pause");
	for (; conn_open(&c, a->socket); conn_close(&c), a->ended++) {
		struct rank rank;
		if (!conn_attach(&c, 1024) || !rank_alone(&c, &rank))
			continue;
		struct svc_record record = rank_record(&rank);
		for (int i = 0; i < 64; i++)
			conn_submit(&c, &record);
		for (size_t i = 0; i < c.ring_size; i++)
			((volatile unsigned char *)c.ring)[i] = (unsigned char)rand_r(&seed);
		conn_ring_bell(&c);
	}
	attack_hold();
}

const struct attack session_attacks[] = {
	{"none", "no attack", .run = does_nothing},
	{"connect", "4 processes connect and hang up without pause", .run = connect_and_close},
	{"connect-silent", "2,500 connections that say nothing, made again when they are refused",
	 .run = silent_connections},
	{"info", "2,000 sessions ask DAEMON_INFO, 4 times each at once", .run = info_by_2000},
	{"info-unread", "64 sessions ask DAEMON_INFO and read no answer", .run = info_unread},
	{"messages-bad", "16 sessions send messages that there are not", .run = bad_messages},
	{"submits-bad", "16 sessions SUBMIT by socket to no communicator and read no answer",
	 .run = bad_submits},
	{"doorbells", "16 doorbells are rung without pause", .run = ring_bells},
	{"scribble", "rings are scribbled over without pause", .run = scribble},
	{0}};
