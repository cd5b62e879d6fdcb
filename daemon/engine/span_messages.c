/* SPDX-License-Identifier: Apache-2.0
 * Communicators on several nodes: the messages between the engines. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "cluster/mpi_api.h"
#include "span.h"

#define MESSAGES_PER_TURN 64
#define DONE_PER_TURN	  32
#define TOGETHER_BYTES	  1000		     /* of messages that go as one */
#define EARLY_MAX	  (64 * 1024 * 1024) /* bytes of messages for communicators to come */

/* One or more, each with a header before it, and up to a multiple of 8 bytes. */
struct message {
	enum in_flight kind; /* first: what MPI gives back */
	struct message *prev, *next;
	int node;
	size_t bytes, room; /* from header on */
	struct span_header header;
	char body[];
};

/* ---- Sending ---- */

/* What did not go is missed by nobody for long: its node's death, or the deadline, tells. */
static void keep_until_sent(struct engine *e, struct message *m, int sent)
{
	if (sent) { /* and over, or not sent */
		free(m);
		return;
	}
	DL_APPEND(e->messages, m);
	e->flights++;
}

static void say(struct engine *e, struct message *m)
{
	DL_DELETE(e->unsaid, m);
	e->unsaid_to[m->node] = NULL;
	keep_until_sent(e, m, e->config.mpi->say(&m->header, m->bytes, m->node, m));
}

void span_say(struct engine *e)
{
	while (e->unsaid)
		say(e, e->unsaid);
}

static size_t padded(size_t bytes)
{
	return (bytes + 7) & ~(size_t)7;
}

/* Room for that many bytes more, behind what the node is to be told anyway. */
static char *message_room(struct engine *e, int node, size_t bytes)
{
	struct message *m = e->unsaid_to[node];
	if (m && m->room - m->bytes < bytes) {
		say(e, m);
		m = NULL;
	}
	if (!m) {
		const size_t room = bytes > TOGETHER_BYTES ? bytes : TOGETHER_BYTES;
		m = malloc(offsetof(struct message, header) + room);
		if (!m)
			abort(); /* the nodes would disagree for good */
		m->kind = FLIES_MESSAGE;
		m->node = node;
		m->bytes = 0;
		m->room = room;
		e->unsaid_to[node] = m;
		DL_APPEND(e->unsaid, m);
	}
	char *at = (char *)&m->header + m->bytes;
	m->bytes += bytes;
	return at;
}

static void send_parts(struct engine *e, int node, const struct span_header *h, const void *body,
		       size_t bytes, const void *more)
{
	char *at = message_room(e, node, sizeof(*h) + padded(h->bytes));
	memcpy(at, h, sizeof(*h));
	at += sizeof(*h);
	if (bytes)
		memcpy(at, body, bytes);
	if (more)
		memcpy(at + bytes, more, h->bytes - bytes);
	memset(at + h->bytes, 0, padded(h->bytes) - h->bytes);
}

void span_send(struct engine *e, struct span *s, uint32_t place, enum span_kind kind,
	       const struct junction_key *key, const void *body, size_t bytes, const void *more,
	       size_t more_bytes)
{
	const struct span_header h = {.magic = SPAN_MAGIC,
				      .kind = (uint16_t)kind,
				      .span = s->id,
				      .key = *key,
				      .bytes = bytes + more_bytes};
	s->sent_messages += kind <= SPAN_CREDIT && !stuck_says(kind, body, bytes);
	send_parts(e, (int)s->nodes[place], &h, body, bytes, more);
}

void span_send_node(struct engine *e, uint32_t node, const struct span_header *h, const void *body)
{
	struct span_header header = *h;
	header.magic = SPAN_MAGIC;
	send_parts(e, (int)node, &header, body, h->bytes, NULL);
}

void span_refuse_credit(struct engine *e, int node, int32_t tag)
{
	struct message *m = malloc(sizeof(*m));
	if (!m)
		abort();
	m->kind = FLIES_MESSAGE;
	m->node = node;
	m->bytes = 0;
	keep_until_sent(e, m, e->config.mpi->send(NULL, 0, node, tag, m));
}

/* ---- Hearing ---- */

static bool has_ended(const struct engine *e, uint64_t id)
{
	uint32_t n = e->nended < ENDED_KEPT ? e->nended : ENDED_KEPT;
	for (uint32_t i = 0; i < n; i++)
		if (e->ended_spans[i] == id)
			return true;
	return false;
}

/* For a communicator that this node is about to hear of. */
static void keep_early(struct engine *e, const struct span_header *h, const char *body, int node)
{
	struct message *m;
	size_t size = sizeof(*m) + h->bytes;
	if (e->early_bytes + size > EARLY_MAX || !(m = malloc(size)))
		return;
	m->node = node;
	m->bytes = size;
	m->header = *h;
	memcpy(m->body, body, h->bytes);
	e->early_bytes += size;
	DL_APPEND(e->early, m);
}

/* Have all members of this node left? */
static bool all_left(const struct span *s)
{
	for (uint32_t i = 0; i < span_local_count(s); i++)
		if (!s->comm->members[span_locals(s)[i]].gone)
			return false;
	return true;
}

static void dispatch(struct engine *e, const struct span_header *h, const char *body, int node)
{
	struct span *s;
	struct credit_note note;
	if (h->kind >= SPAN_WISH) {
		sequence_hear(e, h, body, node);
		return;
	}
	HASH_FIND(hh, e->spans, &h->span, sizeof(h->span), s);
	if (h->kind == SPAN_CREDIT) {
		if (h->bytes != sizeof(note))
			return;
		memcpy(&note, body, sizeof(note));
		if (note.tag < MPI_TAG_DATA)
			return;
	}
	if (!s && !has_ended(e, h->span)) {
		keep_early(e, h, body, node);
		return;
	}
	uint32_t place = s ? span_place(s, node) : UINT32_MAX;
	if (s && stuck_says(h->kind, body, h->bytes))
		stuck_break(e, s, body);
	else if (s)
		s->heard_messages += h->kind <= SPAN_CREDIT;
	if (h->kind == SPAN_CREDIT) {
		if (s && place != UINT32_MAX)
			across_credit(e, s, place, &h->key, &note);
		else
			span_refuse_credit(e, node, note.tag);
		return;
	}
	if (!s || place == UINT32_MAX || place == s->me)
		return;
	if (h->kind == SPAN_OVER) {
		s->overs[place] = true;
		if (s->comm->cuda && !s->over && all_left(s)) /* nobody here will end it */
			span_give_up(e, s->comm, NCCLSVC_CANCELLED, UINT32_MAX);
	}
	if (h->kind == SPAN_OVER || s->comm->ended)
		return;
	if (h->kind > SPAN_OVER)
		stuck_hear(e, s, place, h->kind, &h->key, body, h->bytes);
	else
		junction_hear(e, s, place, h, body);
}

/* What came before this communicator did. */
void span_hear_early(struct engine *e, const struct span *s)
{
	struct message *m, *next;
	uint64_t id = s->id;
	DL_FOREACH_SAFE (e->early, m, next) {
		if (m->header.span != id)
			continue;
		DL_DELETE(e->early, m);
		e->early_bytes -= m->bytes;
		dispatch(e, &m->header, m->body, m->node);
		free(m);
	}
}

/* What came together, one by one. */
static void hear_each(struct engine *e, const char *message, size_t bytes, int node)
{
	struct span_header h;
	while (bytes >= sizeof(h)) {
		memcpy(&h, message, sizeof(h));
		message += sizeof(h);
		bytes -= sizeof(h);
		if (h.magic != SPAN_MAGIC || h.bytes > bytes || padded(h.bytes) > bytes ||
		    h.kind < SPAN_READY || h.kind >= SPAN_END)
			return;
		dispatch(e, &h, message, node);
		message += padded(h.bytes);
		bytes -= padded(h.bytes);
	}
}

bool messages_hear(struct engine *e)
{
	const char *message;
	size_t bytes;
	int node, n = 0;
	for (; n < MESSAGES_PER_TURN && (message = e->config.mpi->hear(&bytes, &node)); n++) {
		if (!n)
			e->now = engine_clock();
		hear_each(e, message, bytes, node);
	}
	return n > 0;
}

bool messages_collect(struct engine *e)
{
	struct mpi_done done[DONE_PER_TURN];
	unsigned n = e->flights ? e->config.mpi->poll(done, DONE_PER_TURN) : 0;
	for (unsigned i = 0; i < n; i++) {
		if (*(enum in_flight *)done[i].cookie == FLIES_FLOW) {
			across_flow_done(e, done[i].cookie, done[i].bytes, done[i].failed);
			continue;
		}
		struct message *m = done[i].cookie;
		DL_DELETE(e->messages, m);
		e->flights--;
		free(m);
	}
	return n > 0;
}

void messages_node_lost(struct engine *e, uint32_t node)
{
	struct message *m = e->unsaid_to[node], *next;
	if (m) {
		DL_DELETE(e->unsaid, m);
		e->unsaid_to[node] = NULL;
		free(m);
	}
	DL_FOREACH_SAFE (e->messages, m, next) {
		if (m->node != (int)node)
			continue;
		e->config.mpi->drop(m);
		DL_DELETE(e->messages, m);
		e->flights--;
		/* Its memory is MPI's for good. */
	}
}

static void free_all(struct message **list)
{
	struct message *m, *next;
	DL_FOREACH_SAFE (*list, m, next) {
		DL_DELETE(*list, m);
		free(m);
	}
}

void messages_finish(struct engine *e)
{
	free_all(&e->early);
	free_all(&e->messages);
	free_all(&e->unsaid);
	free(e->unsaid_to);
}
