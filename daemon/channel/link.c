/* SPDX-License-Identifier: Apache-2.0
 * The connections between daemons, by TLS. Each daemon sends over the connections that it has
 * opened, and receives over those that others have opened; so there may be two between two daemons,
 * and neither has to decide which one stays. If one of them ends, the node is lost. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/timings.h"
#include "frames.h"
#include "proto/wire.h"

#define LINK_MAGIC UINT32_C(0x6e6f6465)
#define CHUNK	   (16 << 10) /* bytes that are read at a time */
#define RTO_MAX	   44	      /* TCP_RTO_MAX_MS, since Linux 6.15 */

/* A message that came before the server existed. */
struct kept_message {
	struct kept_message *prev, *next;
	uint32_t from;
	enum control_kind kind;
	size_t size;
	_Alignas(8) char body[];
};

/* ---- Carriers ---- */

/* A message that one carrier sends before the other is connected would be lost. */
static void update_carried(struct node *n)
{
	n->carried =
		n->connected && ((n->out && n->out->is_carried) || (n->in && n->in->is_carried));
}

/* The other side's carrier reaches this node. */
static void note_carried(struct link *l)
{
	struct cluster *c = l->cluster;
	struct node *n = &c->nodes[l->node];
	const bool before = n->carried;
	l->is_carried = true;
	update_carried(n);
	if (n->carried && !before && c->callbacks)
		c->callbacks->node_ready(c->owner);
}

/* ---- The end of a connection ---- */

static void on_closed(uv_handle_t *handle)
{
	struct link *l = handle->data;
	struct cluster *c = l->cluster;
	DL_DELETE(c->links, l);
	frames_free(l);
	free(l);
}

void link_close(struct link *l)
{
	if (l->closing)
		return;
	l->closing = true;
	uv_close((uv_handle_t *)&l->tcp, on_closed);
	if (l->node == CLUSTER_NO_NODE)
		return;
	struct node *n = &l->cluster->nodes[l->node];
	n->out = n->out == l ? NULL : n->out;
	n->in = n->in == l ? NULL : n->in;
	n->connected &= n->in || n->out; /* its end would not be noticed any more */
	update_carried(n);
}

/* Closes a stranger's connection (accept.c); logs the 1st, 2nd, 4th and so on. */
static void refuse(struct link *l, const char *why)
{
	struct cluster *c = l->cluster;
	if (!c->strangers++ || !(c->strangers & (c->strangers - 1)))
		log_warning("refused a connection to the port for other nodes: %s (%llu so far)",
			    why, (unsigned long long)c->strangers);
	link_close(l);
}

/* Logs attempts 1, 2, 4 and so on: jobs keep trying while a node is down. */
static void log_unreachable(struct node *n, uint32_t node, const char *why)
{
	n->attempts++;
	if (!(n->attempts & (n->attempts - 1)))
		log_error("node %u (%s): cannot connect to its daemon: %s (%u attempts so far)",
			  node, n->shown, why, n->attempts);
}

static void log_lost(const struct cluster *c, uint32_t node, const char *why)
{
	struct node *n = &c->nodes[node];
	if (!n->greeted)
		log_unreachable(n, node, why);
	else if (n->left)
		log_info("node %u (%s): its daemon (pid %d) has exited", node, n->shown,
			 n->info.pid);
	else
		log_error("node %u (%s): the connection to its daemon (pid %d) is lost: %s%s", node,
			  n->shown, n->info.pid, why,
			  c->mpi ? ". Restart the daemons of all nodes" : "");
}

/* again: the node has reconnected, and can be told which epochs are over. returns: as in struct
 * cluster_callbacks. */
static void lose_node(struct cluster *c, uint32_t node, const char *why, bool again, bool returns)
{
	struct node *n = &c->nodes[node];
	if (n->out)
		link_close(n->out);
	if (n->in)
		link_close(n->in);
	n->gone = !again;
	n->connected = n->carried = false;
	n->here += CARRIER_NODES;
	n->lost_ns = clock_now();
	log_lost(c, node, why);
	n->greeted = false;
	if (c->callbacks)
		c->callbacks->node_lost(c->owner, node, returns);
}

void link_lose(struct link *l, const char *why)
{
	if (l->closing)
		return;
	if (l->cluster->closing || l->finished)
		link_close(l);
	else if (l->node == CLUSTER_NO_NODE)
		refuse(l, why);
	else if (l->only_beats && !l->ready && l->cluster->nodes[l->node].in)
		link_close(l); /* no message is lost; the node may still be heard */
	else
		lose_node(l->cluster, l->node, why, false,
			  l->ended || l->cluster->nodes[l->node].left);
}

static void lose_failed(struct cluster *c)
{
	struct link *l;
	DL_FOREACH (c->links, l) /* they leave the list later */
		if (l->failure)
			link_lose(l, l->failure);
}

/* ---- Sending ---- */

/* Tells the other side what a number means that the message names. */
static void tell_node(void *arg, uint32_t *node)
{
	struct link *l = arg;
	struct cluster *c = l->cluster;
	const uint32_t i = *node;
	uint8_t *announced = &c->nodes[l->node].announced[i / 8];
	if (i >= c->n || *announced & 1u << i % 8)
		return;
	struct control_node m = {.number = i, .port = c->nodes[i].info.port};
	memcpy(m.address, c->nodes[i].info.address, sizeof(m.address));
	*announced |= (uint8_t)(1u << i % 8);
	frames_send(l, CONTROL_NODE, &m, sizeof(m));
}

void link_send(struct cluster *c, uint32_t node, enum control_kind kind, const void *body,
	       size_t size)
{
	if (c->closing || node >= c->n)
		return;
	struct node *n = &c->nodes[node];
	struct link *l = n->out ? n->out : n->gone || c->mpi ? NULL : link_open(c, node);
	if (!l)
		return;
	if (!c->mpi && c->callbacks)
		c->callbacks->visit_nodes(kind, (void *)(uintptr_t)body, size, tell_node, l);
	c->sent++;
	l->only_beats = false;
	n->used_ns = clock_now();
	frames_send(l, kind, body, size);
}

bool cluster_reaches(struct cluster *c, uint32_t node)
{
	const struct node *n = &c->nodes[node];
	if (node == c->me || c->mpi || n->carried)
		return true;
	if (!c->closing && !n->out && !n->in && !n->gone)
		link_open(c, node);
	return false;
}

bool link_is_full(const struct cluster *c, uint32_t node)
{
	const struct link *l = c->nodes[node].out;
	return l && frames_unsent(l) > LINK_UNSENT_MAX / 2;
}

/* ---- HELLO ---- */

static void say_hello(struct link *l, uint32_t to)
{
	struct cluster *c = l->cluster;
	const struct node_info *me = &c->nodes[c->me].info;
	struct control_hello h = {.magic = LINK_MAGIC,
				  .protocol_min = c->protocol_min,
				  .protocol_max = c->protocol_max,
				  .incarnation = me->incarnation,
				  .label = c->nodes[to].here,
				  .pid = me->pid,
				  .port = me->port};
	memcpy(h.address, me->address, sizeof(h.address));
	memcpy(h.host, me->host, sizeof(h.host));
	memcpy(h.version, me->version, sizeof(h.version));
	if (!c->mpi)
		h.carrier_bytes = (uint16_t)c->carrier->address(h.carrier, sizeof(h.carrier));
	frames_put(l, CONTROL_HELLO, &h, sizeof(h));
}

/* Messages flow: this node's over a connection that it has opened, the other node's over another.
 * The accepting side's HELLO, and the opening side's first message, mean that the sender's carrier
 * is connected. */
static void begin(struct link *l)
{
	static const struct control_beat alive;
	if (l->closing || l->ready)
		return;
	if (!l->opened)
		say_hello(l, l->node);
	else if (!l->cluster->mpi)
		frames_put(l, CONTROL_BEAT, &alive, sizeof(alive));
	l->ready = true;
	frames_send_queue(l);
}

void cluster_carried(struct cluster *c, uint32_t node, uint32_t here, bool failed)
{
	struct node *n = &c->nodes[node];
	if (here != n->here)
		return; /* that connection was lost meanwhile */
	if (failed && (n->out || n->in))
		lose_node(c, node, "the carrier cannot reach it", false, true);
	if (failed)
		return;
	n->connected = n->in || n->out;
	if (n->in && n->in->greeted)
		begin(n->in);
	if (n->out && n->out->greeted)
		begin(n->out);
	update_carried(n);
	if (n->carried && c->callbacks)
		c->callbacks->node_ready(c->owner);
}

static bool hello_fits(const struct control_hello *h)
{
	return h->magic == LINK_MAGIC && h->carrier_bytes <= sizeof(h->carrier) &&
	       svc_text_ends(h->address, sizeof(h->address)) &&
	       svc_text_ends(h->host, sizeof(h->host)) &&
	       svc_text_ends(h->version, sizeof(h->version)) && h->address[0] && h->port;
}

/* The node that says HELLO; CLUSTER_NO_NODE: it cannot be one of them. */
static uint32_t node_of(struct link *l, const struct control_hello *h)
{
	struct cluster *c = l->cluster;
	const uint32_t i = l->opened ? l->node : cluster_node_at(c, h->address, h->port);
	if (i == CLUSTER_NO_NODE || i == c->me)
		return CLUSTER_NO_NODE;
	if (c->mpi && (c->nodes[i].info.incarnation != h->incarnation || c->nodes[i].gone))
		return CLUSTER_NO_NODE;
	return i;
}

static const char *show_range(uint32_t min, uint32_t max, char *text, size_t size)
{
	if (min == max)
		snprintf(text, size, "%u", min);
	else
		snprintf(text, size, "%u to %u", min, max);
	return text;
}

/* Closes a connection to a daemon without a common version. The accepting side sends HELLO first,
 * so that both sides can log the mismatch. */
static void refuse_protocol(struct link *l, uint32_t node, const struct control_hello *h)
{
	const struct cluster *c = l->cluster;
	const bool other_is_older = h->protocol_max < c->protocol_min;
	char why[384], theirs[32], ours[32];
	snprintf(
		why, sizeof(why),
		"no common protocol version: the daemon at %s port %u (ncclsvc %s) speaks %s, this "
		"daemon (ncclsvc %s) speaks %s. Update %s",
		h->address, h->port, h->version,
		show_range(h->protocol_min, h->protocol_max, theirs, sizeof(theirs)),
		c->nodes[c->me].info.version,
		show_range(c->protocol_min, c->protocol_max, ours, sizeof(ours)),
		other_is_older ? "that daemon" : "this daemon");
	if (!l->opened)
		say_hello(l, node);
	link_lose(l, why);
}

static void note_info(const struct cluster *c, struct node *n, const struct control_hello *h)
{
	n->info.incarnation = h->incarnation;
	n->info.pid = h->pid;
	memcpy(n->info.host, h->host, sizeof(n->info.host));
	memcpy(n->info.version, h->version, sizeof(n->info.version));
	n->there = h->label;
	n->gone = n->left = false;
	n->greeted = true;
	n->attempts = 0;
	n->last_seen_ns = clock_now();
	cluster_show(c, n);
}

/* Over a new connection, the other side says again what its numbers mean. */
static void take_in(struct node *n, struct link *l)
{
	n->in = l;
	free(n->numbers);
	n->numbers = NULL;
}

/* Makes the carrier reach the node that has said HELLO. */
static void carry(struct cluster *c, uint32_t node, const struct control_hello *h)
{
	const struct node *n = &c->nodes[node];
	c->callbacks->carry(c->owner, node, h->carrier, h->carrier_bytes, n->here, n->there);
}

/* The daemon is still starting: handles it when it can. */
static void keep(struct link *l, enum control_kind kind, const void *body, size_t size)
{
	struct cluster *c = l->cluster;
	struct kept_message *m = l->failure ? NULL : malloc(sizeof(*m) + size);
	if (!m) {
		link_fail(l, "out of memory");
		return;
	}
	m->from = l->node;
	m->kind = kind;
	m->size = size;
	memcpy(m->body, body, size);
	DL_APPEND(c->kept_messages, m);
	uv_async_send(&c->kept);
}

/* The first message: checks which node it is. */
static void take_hello(struct link *l, const struct control_hello *h)
{
	struct cluster *c = l->cluster;
	const uint32_t i = hello_fits(h) ? node_of(l, h) : CLUSTER_NO_NODE;
	if (i == CLUSTER_NO_NODE) {
		link_lose(l, "its peer is not a node that this one knows");
		return;
	}
	const uint32_t protocol =
		svc_version_choose((struct svc_versions){c->protocol_min, c->protocol_max},
				   (struct svc_versions){h->protocol_min, h->protocol_max});
	if (!protocol) {
		refuse_protocol(l, i, h);
		return;
	}
	struct node *n = &c->nodes[i];
	const bool other =
		(n->in && n->in != l && !l->opened) ||
		((n->in || n->out) && n->connected && n->info.incarnation != h->incarnation);
	if (other && c->mpi) {
		link_lose(l, "its peer is connected already");
		return;
	}
	/* It has lost this node, or was started again, before this node noticed. */
	if (other)
		lose_node(c, i, "it has restarted, or has lost its connection to this node", true,
			  true);
	if (l->closing)
		return;
	l->node = i;
	l->greeted = true;
	l->is_carried = l->opened;
	if (!l->opened)
		take_in(n, l);
	n->protocol = protocol;
	note_info(c, n, h);
	if (c->mpi)
		begin(l);
	else if (c->callbacks)
		carry(c, i, h);
	else
		keep(l, CONTROL_HELLO, h, sizeof(*h));
}

/* ---- Receiving ---- */

void link_handle_kept(struct cluster *c)
{
	while (c->kept_messages && c->callbacks) {
		struct kept_message *m = c->kept_messages;
		DL_DELETE(c->kept_messages, m);
		if (m->kind == CONTROL_HELLO)
			carry(c, m->from, (const void *)m->body);
		else
			c->callbacks->message(c->owner, m->from, m->kind, m->body, m->size);
		free(m);
	}
}

void link_on_kept(uv_async_t *async)
{
	link_handle_kept(async->data);
	lose_failed(async->data);
}

/* ---- Numbers of nodes ---- */

static void take_number(struct link *l, const struct control_node *m)
{
	struct cluster *c = l->cluster;
	struct node *n = &c->nodes[l->node];
	if (m->number >= CLUSTER_NODES_MAX || !svc_text_ends(m->address, sizeof(m->address))) {
		link_lose(l, "a message breaks the protocol");
		return;
	}
	if (!n->numbers) {
		n->numbers = malloc(CLUSTER_NODES_MAX * sizeof(n->numbers[0]));
		if (!n->numbers) {
			link_lose(l, "out of memory");
			return;
		}
		memset(n->numbers, 0xff, CLUSTER_NODES_MAX * sizeof(n->numbers[0]));
	}
	n->numbers[m->number] = cluster_node_at(c, m->address, m->port);
}

/* From the other node's number to this node's; CLUSTER_NO_NODE: unknown. */
static void translate(void *arg, uint32_t *node)
{
	const struct node *n = arg;
	const bool known = n->numbers && *node < CLUSTER_NODES_MAX;
	*node = known ? n->numbers[*node] : CLUSTER_NO_NODE;
}

static void finish(struct link *l)
{
	l->finished = true;
	link_close(l);
}

static void take_message(struct link *l, enum control_kind kind, char *body, size_t size)
{
	struct cluster *c = l->cluster;
	if (!c->callbacks) {
		keep(l, kind, body, size);
		return;
	}
	if (!c->mpi)
		c->callbacks->visit_nodes(kind, body, size, translate, &c->nodes[l->node]);
	c->callbacks->message(c->owner, l->node, kind, body, size);
}

/* After HELLO. */
static void take_next(struct link *l, const struct control_header *h, char *body)
{
	if (!l->is_carried)
		note_carried(l);
	if (h->kind == CONTROL_NODE && h->length == sizeof(struct control_node))
		take_number(l, (const struct control_node *)(const void *)body);
	else if (h->kind == CONTROL_CLOSE)
		finish(l);
	else
		take_message(l, h->kind, body, h->length);
}

static void take_frame(struct link *l, const struct control_header *h, char *body)
{
	if (!l->greeted && h->kind == CONTROL_HELLO && h->length >= sizeof(struct control_hello))
		take_hello(l, (const struct control_hello *)(const void *)body);
	else if (!l->greeted || l->opened || h->kind == CONTROL_HELLO)
		link_lose(l, "it did not identify itself");
	else
		take_next(l, h, body);
}

static void on_room(uv_handle_t *handle, size_t size, uv_buf_t *buf)
{
	static char chunk[CHUNK]; /* of one loop, and used up in on_read */
	(void)handle;
	(void)size;
	*buf = uv_buf_init(chunk, sizeof(chunk));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
	struct link *l = stream->data;
	if (n < 0) {
		l->ended = n == UV_EOF || n == UV_ECONNRESET;
		link_lose(l, n == UV_EOF ? "its connection ended" : uv_strerror((int)n));
		return;
	}
	if (!n) /* the last read took all there was */
		return;
	if (l->greeted)
		l->cluster->nodes[l->node].last_seen_ns = clock_now();
	const bool was_ready = tls_is_ready(l->tls);
	const char *why = tls_feed(l->tls, buf->base, (size_t)n) ? tls_failure(l->tls) : NULL;
	if (!why && l->opened && !was_ready && tls_is_ready(l->tls))
		say_hello(l, l->node);
	if (!why)
		why = frames_take(l, take_frame);
	if (!l->closing)
		frames_pump(l); /* also an alert, which may say why */
	if (why)
		link_lose(l, why);
}

/* ---- Connecting ---- */

struct link *link_new(struct cluster *c, bool opened)
{
	struct link *l = calloc(1, sizeof(*l));
	if (!l || !(l->tls = tls_new(c->site, !opened))) {
		free(l);
		return NULL;
	}
	l->cluster = c;
	l->node = CLUSTER_NO_NODE;
	l->opened = opened;
	l->since_ns = clock_now();
	l->tcp.data = l;
	uv_tcp_init(c->loop, &l->tcp);
	DL_APPEND(c->links, l);
	return l;
}

static void watch_for_silence(struct link *l)
{
	uv_os_fd_t fd;
	int ms = NODE_UNREACHABLE_MS, one = 1, idle = NODE_IDLE_SECONDS, count = NODE_PROBES;
	int resend = NODE_RESEND_MS;
	uv_tcp_nodelay(&l->tcp, 1);
	if (uv_fileno((uv_handle_t *)&l->tcp, &fd))
		return;
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
	setsockopt(fd, IPPROTO_TCP, RTO_MAX, &resend, sizeof(resend));
}

void link_read(struct link *l)
{
	watch_for_silence(l);
	uv_read_start((uv_stream_t *)&l->tcp, on_room, on_read);
}

static void on_connected(uv_connect_t *request, int status)
{
	struct link *l = request->handle->data;
	struct cluster *c = l->cluster;
	if (status == UV_ECANCELED || l->closing)
		return;
	if (status) {
		c->late |= c->mpi != NULL;
		link_lose(l, uv_strerror(status));
		return;
	}
	link_read(l);
	frames_pump(l);
}

static int connect_to(struct link *l, const struct node_info *to)
{
	struct sockaddr_storage at;
	if (uv_ip4_addr(to->address, to->port, (struct sockaddr_in *)&at) &&
	    uv_ip6_addr(to->address, to->port, (struct sockaddr_in6 *)&at))
		return UV_EINVAL;
	return uv_tcp_connect(&l->connect, &l->tcp, (struct sockaddr *)&at, on_connected);
}

struct link *link_open(struct cluster *c, uint32_t node)
{
	struct node *n = &c->nodes[node];
	struct link *l = link_new(c, true);
	if (!l)
		return NULL;
	l->node = node;
	n->out = l;
	memset(n->announced, 0, sizeof(n->announced));
	const int error = connect_to(l, &n->info);
	if (error)
		link_fail(l, uv_strerror(error));
	return l;
}

/* ---- The end ---- */

void link_close_all(struct cluster *c)
{
	struct link *l;
	static const struct control_beat last = {.last = 1};
	for (uint32_t i = 0; i < c->n; i++)
		if (c->nodes[i].out && c->nodes[i].out->ready)
			frames_put(c->nodes[i].out, CONTROL_BEAT, &last, sizeof(last));
	c->closing = true;
	/* The kernel sends written data before it closes. */
	DL_FOREACH (c->links, l)
		link_close(l);
	while (c->kept_messages) {
		struct kept_message *m = c->kept_messages;
		DL_DELETE(c->kept_messages, m);
		free(m);
	}
	if (!c->mpi)
		uv_close((uv_handle_t *)&c->listener, NULL);
	uv_close((uv_handle_t *)&c->timer, NULL);
	uv_close((uv_handle_t *)&c->kept, NULL);
}
