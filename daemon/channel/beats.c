/* SPDX-License-Identifier: Apache-2.0
 * What happens at intervals: keep-alives, and the end of connections that are idle or late. */
#include <utlist.h>

#include "base/clock.h"
#include "base/timings.h"
#include "frames.h"

static const struct control_beat alive;

/* Nothing needs the connection, and the node has long been told nothing. */
static bool is_idle(const struct cluster *c, uint32_t node)
{
	const struct node *n = &c->nodes[node];
	return !c->mpi && n->out && n->out->ready && clock_now() - n->used_ns > LINK_IDLE_NS &&
	       !c->callbacks->needs(c->owner, node);
}

/* The node has opened a connection to this one, which it will not hear until this one opens one. */
static bool is_silent(const struct cluster *c, uint32_t node)
{
	const struct node *n = &c->nodes[node];
	return !c->mpi && !c->closing && n->in && n->in->ready && !n->out &&
	       c->callbacks->needs(c->owner, node);
}

static void open_for_beats(struct cluster *c, uint32_t node)
{
	struct link *l = link_open(c, node);
	if (l)
		l->only_beats = true;
}

static void close_idle(struct cluster *c, uint32_t node)
{
	struct link *l = c->nodes[node].out;
	frames_put(l, CONTROL_CLOSE, NULL, 0);
	l->finished = true;
	link_close(l);
}

/* A connection whose other side has not said HELLO in time is a stranger's, or hangs. */
static void end_late_hellos(struct cluster *c, uint64_t now)
{
	struct link *l;
	DL_FOREACH (c->links, l)
		if (!l->ready && !l->closing && now - l->since_ns > LINK_HELLO_NS)
			link_lose(l, "it does not answer");
}

static void on_beat(uv_timer_t *timer)
{
	struct cluster *c = timer->data;
	const uint64_t now = clock_now(), passed = now - c->beat_ns;
	/* While this process was stopped, it could not receive the others' messages. */
	const bool slept = passed > 2 * NODE_BEAT_MS * UINT64_C(1000000);
	struct link *l;
	for (uint32_t i = 0; i < c->n; i++) {
		struct node *n = &c->nodes[i];
		n->last_seen_ns += slept ? passed : 0;
		if (is_idle(c, i))
			close_idle(c, i);
		else if (is_silent(c, i))
			open_for_beats(c, i);
		else if (n->out && n->out->ready)
			frames_send(n->out, CONTROL_BEAT, &alive, sizeof(alive));
	}
	DL_FOREACH (c->links, l)
		l->since_ns = slept ? now : l->since_ns;
	end_late_hellos(c, clock_now()); /* a connection may have been opened meanwhile */
	link_accept_again(c);
	c->beat_ns = now;
}

void link_start_beats(struct cluster *c)
{
	c->beat_ns = clock_now();
	uv_timer_start(&c->timer, on_beat, NODE_BEAT_MS, NODE_BEAT_MS);
}
