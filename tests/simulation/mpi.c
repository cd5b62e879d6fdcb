/* SPDX-License-Identifier: Apache-2.0
 * Replaces MPI. Messages from one node to another arrive late, but in order. Each transfer of bytes
 * has its own delay. Some of a lost node's messages still arrive. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "schedulers.h"

#define HEADER sizeof(struct internode_header)

struct message {
	struct message *prev, *next;
	uint32_t from, to;
	size_t bytes;
	_Alignas(8) char body[];
};

/* A receive, or a send in flight. */
struct transfer {
	struct transfer *prev, *next;
	uint32_t from, to;
	int tag;
	void *at;
	const void *source;
	size_t bytes;
	void *cookie;
	uint64_t request_id;
};

static uint64_t last[NODES_MAX][NODES_MAX];  /* arrival time of the last message */
static uint64_t until[NODES_MAX][NODES_MAX]; /* when a node is lost; later messages are lost */
static uint64_t late[NODES_MAX][NODES_MAX];  /* additional delay of all messages */
static struct message *inbox[NODES_MAX], *given[NODES_MAX];
static struct transfer *receives, *sends;
static uint64_t request_ids;
static struct {
	struct carrier_done done[64];
	uint32_t n;
} over[NODES_MAX];

uint64_t mpi_delay_ns;

static bool any_lost(void)
{
	for (uint32_t k = 0; k < nnodes; k++)
		if (!nodes[k].alive)
			return true;
	return false;
}

static bool arrives(uint32_t from, uint32_t to)
{
	const uint64_t end = until[from][to];
	return nodes[to].alive && (!end || now_ns <= end);
}

static uint64_t delay(void)
{
	return chance(70) ? between(1000, MS) : between(1000, mpi_delay_ns);
}

/* ---- Messages ---- */

/* An event frees its argument, but the message is read later. */
static void arrive(void *arg)
{
	struct message *m = *(struct message **)arg;
	if (!arrives(m->from, m->to)) {
		free(m);
		return;
	}
	DL_APPEND(inbox[m->to], m);
	node_turn(m->to);
}

static void say_one(const struct internode_header *h, const char *body, uint32_t node)
{
	struct message *m = make(sizeof(*m) + HEADER + h->bytes), **arg;
	uint64_t *to = &last[node_now][node], when = now_ns + late[node_now][node] + delay();
	m->from = node_now;
	m->to = node;
	m->bytes = HEADER + h->bytes;
	memcpy(m->body, h, HEADER);
	memcpy(m->body + HEADER, body, h->bytes);
	when = when <= *to ? *to + 1 : when;
	if (!program_message((struct internode_header *)m->body, m->body + HEADER, &when)) {
		free(m);
		return;
	}
	*to = when > *to ? when : *to;
	arg = make(sizeof(struct message *));
	*arg = m;
	at(when, -1, arrive, arg);
}

/* A packet's messages arrive one by one, perhaps not all of them. */
static int say(const void *from, size_t bytes, int node, void *cookie)
{
	struct internode_header h;
	const char *at = from, *body;
	(void)cookie;
	while ((body = internode_next(&at, &bytes, &h)))
		say_one(&h, body, (uint32_t)node);
	if (bytes)
		abort();
	return 1;
}

static const void *hear(size_t *bytes, int *node)
{
	struct message *m = inbox[node_now];
	free(given[node_now]);
	given[node_now] = m;
	if (!m)
		return NULL;
	DL_DELETE(inbox[node_now], m);
	*bytes = m->bytes;
	*node = (int)m->from;
	return m->body;
}

/* ---- Bytes ---- */

static void is_over(uint32_t node, void *cookie, size_t bytes, bool failed)
{
	if (over[node].n == sizeof(over[node].done) / sizeof(over[node].done[0]))
		abort();
	over[node].done[over[node].n++] = (struct carrier_done){cookie, bytes, failed};
}

static void move_bytes(void *arg)
{
	struct transfer *f, *r;
	DL_SEARCH_SCALAR(sends, f, request_id, *(uint64_t *)arg);
	if (!f || !arrives(f->from, f->to)) /* the transfer was forgotten, or is lost */
		return;
	DL_FOREACH (receives, r)
		if (r->from == f->from && r->to == f->to && r->tag == f->tag)
			break;
	if (!r) {
		if (!any_lost())
			fail("node %u sends bytes that node %u does not wait for", f->from, f->to);
		return;
	}
	if (f->bytes)
		memcpy(r->at, f->source, f->bytes < r->bytes ? f->bytes : r->bytes);
	is_over(r->to, r->cookie, f->bytes, false);
	is_over(f->from, f->cookie, f->bytes, false);
	const uint32_t from = f->from, to = f->to;
	DL_DELETE(receives, r);
	DL_DELETE(sends, f);
	free(r);
	free(f);
	node_turn(to);
	if (nodes[from].alive)
		node_turn(from);
}

static int send_bytes(const void *from, size_t bytes, int node, int tag, void *cookie)
{
	struct transfer *f = make(sizeof(*f));
	uint64_t *arg = make(sizeof(*arg));
	*f = (struct transfer){.from = node_now,
			       .to = (uint32_t)node,
			       .tag = tag,
			       .source = from,
			       .bytes = bytes,
			       .cookie = cookie,
			       .request_id = ++request_ids};
	DL_APPEND(sends, f);
	*arg = f->request_id;
	at(now_ns + delay(), -1, move_bytes, arg);
	return 0;
}

static int receive_bytes(void *to, size_t bytes, int node, int tag, void *cookie)
{
	struct transfer *r = make(sizeof(*r));
	*r = (struct transfer){.from = (uint32_t)node,
			       .to = node_now,
			       .tag = tag,
			       .at = to,
			       .bytes = bytes,
			       .cookie = cookie};
	DL_APPEND(receives, r);
	return 0;
}

static unsigned poll_bytes(struct carrier_done *done, unsigned max)
{
	const uint32_t n = over[node_now].n < max ? over[node_now].n : max;
	memcpy(done, over[node_now].done, n * sizeof(*done));
	over[node_now].n -= n;
	memmove(over[node_now].done, over[node_now].done + n, over[node_now].n * sizeof(*done));
	return n;
}

static void drop(void *cookie)
{
	struct transfer *f;
	DL_SEARCH_SCALAR(receives, f, cookie, cookie);
	if (f) {
		is_over(f->to, cookie, 0, true);
		DL_DELETE(receives, f);
		free(f);
	}
	DL_SEARCH_SCALAR(sends, f, cookie, cookie);
	if (f) {
		DL_DELETE(sends, f);
		free(f);
	}
}

const struct carrier mpi_simulated = {
	.name = "test",
	.send = send_bytes,
	.say = say,
	.receive = receive_bytes,
	.poll = poll_bytes,
	.drop = drop,
	.hear = hear,
};

/* ---- Beginning and end ---- */

void mpi_begin(void)
{
	memset(last, 0, sizeof(last));
	memset(until, 0, sizeof(until));
	memset(over, 0, sizeof(over));
}

void mpi_lose(uint32_t node)
{
	for (uint32_t k = 0; k < nnodes; k++)
		if (!until[node][k])
			until[node][k] = now_ns + between(0, mpi_delay_ns);
}

void mpi_cut(uint32_t a, uint32_t b)
{
	until[a][b] = now_ns + between(0, mpi_delay_ns);
	until[b][a] = now_ns + between(0, mpi_delay_ns);
}

void mpi_delay(uint32_t from, uint32_t to, uint64_t by)
{
	late[from][to] = by;
}

static void free_all(struct transfer **list)
{
	while (*list) {
		struct transfer *f = *list;
		DL_DELETE(*list, f);
		free(f);
	}
}

void mpi_end(void)
{
	for (uint32_t k = 0; k < NODES_MAX; k++) {
		struct message *m, *next;
		DL_FOREACH_SAFE (inbox[k], m, next)
			free(m);
		free(given[k]);
		inbox[k] = given[k] = NULL;
	}
	free_all(&receives);
	free_all(&sends);
	memset(late, 0, sizeof(late));
}
