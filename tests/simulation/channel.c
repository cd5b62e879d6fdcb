/* SPDX-License-Identifier: Apache-2.0
 * The connections between nodes. Messages from one node to another arrive late, but in order. When
 * a node is lost, some of its messages still arrive; then the others learn of the loss. */
#include "channel/link.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "comm/nodes/node_reports.h"
#include "comm/remote.h"
#include "coord/messages.h"
#include "simulation.h"

static const char *plant_name(unsigned p)
{
	static const char *const names[PLANTS] = {
		[PLANT_NONE] = "none",
		[PLANT_LOSE] = "a message is lost",
		[PLANT_TWICE] = "a message comes twice",
		[PLANT_OVERTAKE] = "a message overtakes one of the same two nodes",
		[PLANT_UNTOLD_LOSS] = "no node tells that it has lost another",
		[PLANT_START_EPOCH] = "a START has another epoch",
		[PLANT_START_MEMBER] = "a START has another member",
		[PLANT_RESULT] = "the result of a plan is another one on one node",
		[PLANT_UNIQUE_ID] = "NCCL's id is another one on one node",
		[PLANT_BREAK_RANK] = "the end of an epoch blames another rank",
	};
	return names[p];
}

const struct simulated simulated = {
	.about = "Runs schedules of several nodes",
	.plants = PLANTS,
	.plant_name = plant_name,
	.scenarios_run = scenarios_run,
};

struct parcel {
	uint32_t from, to;
	uint32_t connection; /* its number, between standalone daemons */
	enum control_kind kind;
	size_t size;
	bool to_itself;
	_Alignas(8) char body[];
};

struct traffic traffic[NODES_MAX];
static uint64_t last[NODES_MAX][NODES_MAX];  /* arrival time of the last message */
static uint64_t until[NODES_MAX][NODES_MAX]; /* for a lost node: later messages are lost too */

/* STARTs and REFUSEs in flight. */
struct sent_answer {
	struct sent_answer *prev, *next;
	uint32_t to;
	uint64_t when;
	uint8_t id[NCCLSVC_ID_BYTES];
};
static struct sent_answer *answers;

bool channel_brings_answer(uint32_t node, const uint8_t *id)
{
	const struct sent_answer *s;
	DL_FOREACH (answers, s)
		if (s->to == node && s->when >= clock_now() && !memcmp(s->id, id, sizeof(s->id)))
			return true;
	return false;
}

static void note_answer(uint32_t to, const void *body, uint64_t when)
{
	struct sent_answer *s = calloc(1, sizeof(*s));
	if (!s)
		abort();
	s->to = to;
	s->when = when;
	memcpy(s->id, body, sizeof(s->id));
	DL_APPEND(answers, s);
}

void channel_end(void)
{
	struct sent_answer *s, *next;
	DL_FOREACH_SAFE (answers, s, next)
		free(s);
	answers = NULL;
}

void channel_begin(void)
{
	memset(last, 0, sizeof(last));
	memset(until, 0, sizeof(until));
	links_begin();
}

static uint64_t delay(void)
{
	return chance(70) ? between(10000, MS) : between(10000, profile.delay);
}

static const char *const kinds[CONTROL_END] = {
	[CONTROL_JOIN] = "JOIN",
	[CONTROL_WITHDRAW] = "WITHDRAW",
	[CONTROL_REFUSE] = "REFUSE",
	[CONTROL_START] = "START",
	[CONTROL_BREAK] = "BREAK",
	[CONTROL_LEFT] = "LEFT",
	[CONTROL_SPLIT] = "SPLIT",
	[CONTROL_PLAN] = "PLAN",
	[CONTROL_RESULT] = "RESULT",
	[CONTROL_NCCL_READY] = "NCCL_READY",
	[CONTROL_NCCL_USE] = "NCCL_USE",
	[CONTROL_NCCL_FREE] = "NCCL_FREE",
	[CONTROL_DESCRIPTION] = "DESCRIPTION",
};

static void trace_parcel(const struct parcel *p, const char *what)
{
	const uint8_t *b = (const uint8_t *)p->body;
	if (!tracing)
		return;
	trace((int)p->to, "%s %s from node %u (%02x%02x)", what, kinds[p->kind], p->from, b[0],
	      b[1]);
}

static void arrive(void *arg)
{
	struct parcel *p = arg;
	if (until[p->from][p->to] && clock_now() > until[p->from][p->to])
		return;
	if (p->connection && !links_bring(p->to, p->from, p->connection))
		return;
	trace_parcel(p, "hears");
	remote_handle(&nodes[p->to].comms, p->from, p->kind, p->body, p->size);
}

/* ---- Planted mistakes ---- */

static void plant_in_start(struct control_start *m)
{
	if (planted == PLANT_START_EPOCH)
		m->epoch++;
	else
		m->members[below(m->nranks)].pid++;
}

static void plant_in_result(struct control_result *m)
{
	if (m->asked == SVC_PLAN_COMMIT)
		m->result = m->result ? 0 : NCCLSVC_MISMATCH;
}

static bool is_planted_in(enum control_kind kind)
{
	switch ((enum plant)planted) {
	case PLANT_LOSE:
	case PLANT_TWICE:
	case PLANT_OVERTAKE:
		return true;
	case PLANT_UNTOLD_LOSS:
		return kind == CONTROL_BREAK;
	case PLANT_START_EPOCH:
	case PLANT_START_MEMBER:
		return kind == CONTROL_START;
	case PLANT_RESULT:
		return kind == CONTROL_RESULT;
	case PLANT_UNIQUE_ID:
		return kind == CONTROL_NCCL_USE;
	case PLANT_BREAK_RANK:
		return kind == CONTROL_BREAK;
	case PLANT_NONE:
	case PLANTS:
		break;
	}
	return false;
}

/* Returns false if the message is lost. */
static bool spoil(struct parcel *p, uint64_t *when)
{
	void *body = p->body;
	struct control_break *b = body;
	switch ((enum plant)planted) {
	case PLANT_LOSE:
		return false;
	case PLANT_OVERTAKE:
		*when = clock_now() + 1000;
		break;
	case PLANT_UNTOLD_LOSS:
		return b->node < 0;
	case PLANT_START_EPOCH:
	case PLANT_START_MEMBER:
		plant_in_start(body);
		break;
	case PLANT_RESULT:
		plant_in_result(body);
		break;
	case PLANT_UNIQUE_ID:
		((struct control_nccl_use *)body)->unique[0]++;
		break;
	case PLANT_BREAK_RANK:
		b->rank = b->rank == 0 ? 1 : 0;
		break;
	default:
		break;
	}
	return true;
}

/* ---- Replaces daemon/channel/link.c ---- */

static void deliver(struct parcel *p, uint64_t when)
{
	if (p->kind == CONTROL_START || p->kind == CONTROL_REFUSE)
		note_answer(p->to, p->body, when);
	at(when, (int)p->to, arrive, p);
}

void link_send(struct cluster *c, uint32_t node, enum control_kind kind, const void *body,
	       size_t size)
{
	const uint32_t from = c->me;
	if (!nodes[from].alive)
		return;
	const uint32_t connection = c->mpi ? 0 : links_carry(from, node);
	if (c->nodes[node].gone || !nodes[node].alive || (!c->mpi && !connection))
		return;
	struct parcel *p = malloc(sizeof(*p) + size), *again = NULL;
	if (!p)
		abort();
	*p = (struct parcel){from, node, connection, kind, size, false};
	memcpy(p->body, body, size);
	uint64_t when = clock_now() + delay();
	if (when <= last[from][node])
		when = last[from][node] + 1;
	traffic[from].sent++;
	traffic[from].bytes += size;
	traffic[node].received++;
	traffic[node].bytes += size;
	trace((int)from, "sends %s to node %u (%02x%02x)", kinds[kind], node,
	      *(const uint8_t *)body, ((const uint8_t *)body)[1]);
	if (is_planted_in(kind) && (planted == PLANT_UNTOLD_LOSS || chance(4))) {
		if (planted == PLANT_TWICE && (again = malloc(sizeof(*p) + size)))
			memcpy(again, p, sizeof(*p) + size);
		if (!spoil(p, &when)) {
			free(p);
			return;
		}
	}
	if (when > last[from][node])
		last[from][node] = when;
	deliver(p, when);
	if (again)
		deliver(again, last[from][node] += 1);
}

bool link_is_full(const struct cluster *c, uint32_t node)
{
	(void)c;
	(void)node;
	return chance(1);
}

/* A message to the node itself, which arrives soon. */
static void on_own(void *arg)
{
	const struct comms *const *s = arg;
	remote_handle_own((struct comms *)*s);
}

int uv_async_init(uv_loop_t *loop, uv_async_t *async, uv_async_cb f)
{
	(void)loop;
	(void)async;
	(void)f;
	return 0;
}

int uv_async_send(uv_async_t *async)
{
	struct comms **s = malloc(sizeof(struct comms *));
	if (!s)
		abort();
	*s = async->data;
	at(clock_now() + between(0, 50000), (int)node_of(*s), on_own, s);
	return 0;
}

void uv_close(uv_handle_t *handle, uv_close_cb f)
{
	(void)handle;
	(void)f;
}

/* ---- A loss ---- */

struct news {
	uint32_t lost, node;
};

static void on_loss(void *arg)
{
	const struct news *news = arg;
	struct node_state *n = &nodes[news->node];
	trace((int)news->node, "hears that node %u is lost", news->lost);
	n->cluster.nodes[news->lost].gone = true;
	remote_node_lost(&n->comms, news->lost, false);
}

void channel_lose(uint32_t node)
{
	if (standalone) {
		links_lose(node);
		return;
	}
	for (uint32_t k = 0; k < nnodes; k++) {
		if (k == node || !nodes[k].alive)
			continue;
		struct news *news = malloc(sizeof(*news));
		if (!news)
			abort();
		*news = (struct news){node, k};
		until[node][k] = clock_now() + (chance(50) ? profile.delay : delay());
		uint64_t when = until[node][k] < last[node][k] ? until[node][k] : last[node][k];
		if (when < clock_now())
			when = clock_now();
		at(when + delay(), (int)k, on_loss, news);
	}
}
