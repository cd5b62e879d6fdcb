/* SPDX-License-Identifier: Apache-2.0
 * The connections between daemons: each node connects to those with lower numbers. Both sides
 * present the key that MPI distributed. If a connection ends, the node is lost. */
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
#include "link.h"

#define LINK_MAGIC    UINT32_C(0x6e6f6465)
#define STRANGERS_MAX 64	 /* unidentified connections */
#define QUEUE_MAX     (64 << 20) /* bytes that a node has not read */

struct link {
	struct link *prev, *next;
	struct cluster *cluster;
	uv_tcp_t tcp;
	uv_connect_t connect;
	int node; /* -1: not known yet */
	bool hello_sent;
	bool closing;
	const char *failure; /* why it must be lost; NULL: it must not */
	size_t used;	     /* of buffer */
	char buffer[sizeof(struct control_header) + CONTROL_BODY_MAX];
};

struct outgoing_frame {
	uv_write_t request;
	struct control_header header;
	char body[];
};

/* A message that came before the server existed. */
struct kept_message {
	struct kept_message *prev, *next;
	uint32_t from;
	enum control_kind kind;
	size_t size;
	_Alignas(8) char body[];
};

static void on_closed(uv_handle_t *handle)
{
	struct link *l = handle->data;
	struct cluster *c = l->cluster;
	DL_DELETE(c->links, l);
	free(l);
}

static void lose(struct link *l, const char *why)
{
	struct cluster *c = l->cluster;
	if (l->closing)
		return;
	l->closing = true;
	uv_close((uv_handle_t *)&l->tcp, on_closed);
	if (l->node < 0 || c->nodes[l->node].link != l)
		return;
	struct node *n = &c->nodes[l->node];
	n->link = NULL;
	c->connected--;
	if (c->closing)
		return;
	n->gone = true;
	n->lost_ns = clock_now();
	if (n->left)
		log_info("node %d (%s): its daemon (pid %d) has exited", l->node, n->info.host,
			 n->info.pid);
	else
		log_error("node %d (%s): the connection to its daemon (pid %d) is lost: %s. "
			  "Restart the daemons of all nodes",
			  l->node, n->info.host, n->info.pid, why);
	if (c->callbacks)
		c->callbacks->node_lost(c->owner, (uint32_t)l->node);
}

/* ---- Sending ---- */

static void on_written(uv_write_t *request, int status)
{
	struct link *l = request->handle->data;
	free(request);
	if (status < 0 && status != UV_ECANCELED)
		lose(l, uv_strerror(status));
}

/* The sender may be in the middle of work that involves the node, so the node is lost later, from
 * the loop.
 */
static void fail(struct link *l, const char *why)
{
	l->failure = why;
	uv_async_send(&l->cluster->kept);
}

static void lose_failed(struct cluster *c)
{
	struct link *l;
	DL_FOREACH (c->links, l) /* they leave the list later */
		if (l->failure)
			lose(l, l->failure);
}

static void write_frame(struct link *l, enum control_kind kind, const void *body, size_t size)
{
	struct outgoing_frame *f = malloc(sizeof(*f) + size);
	if (!f) {
		fail(l, "out of memory");
		return;
	}
	f->header = (struct control_header){.length = (uint32_t)size, .kind = (uint16_t)kind};
	memcpy(f->body, body, size);
	uv_buf_t buf = uv_buf_init((char *)&f->header, (unsigned)(sizeof(f->header) + size));
	int error = uv_write(&f->request, (uv_stream_t *)&l->tcp, &buf, 1, on_written);
	if (error) {
		free(f);
		fail(l, uv_strerror(error));
	} else if (uv_stream_get_write_queue_size((uv_stream_t *)&l->tcp) > QUEUE_MAX) {
		fail(l, "it does not read");
	}
}

void link_handle_kept(struct cluster *c)
{
	while (c->kept_messages && c->callbacks) {
		struct kept_message *m = c->kept_messages;
		DL_DELETE(c->kept_messages, m);
		c->callbacks->message(c->owner, m->from, m->kind, m->body, m->size);
		free(m);
	}
}

static void on_kept(uv_async_t *async)
{
	link_handle_kept(async->data);
	lose_failed(async->data);
}

static void keep(struct link *l, enum control_kind kind, const void *body, size_t size)
{
	struct cluster *c = l->cluster;
	struct kept_message *m = l->failure ? NULL : malloc(sizeof(*m) + size);
	if (!m) {
		fail(l, "out of memory");
		return;
	}
	m->from = (uint32_t)l->node;
	m->kind = kind;
	m->size = size;
	memcpy(m->body, body, size);
	DL_APPEND(c->kept_messages, m);
	uv_async_send(&c->kept);
}

void link_send(struct cluster *c, uint32_t node, enum control_kind kind, const void *body,
	       size_t size)
{
	if (c->closing)
		return;
	if (!c->nodes[node].link || c->nodes[node].link->failure)
		return;
	c->sent += kind != CONTROL_BEAT;
	write_frame(c->nodes[node].link, kind, body, size);
}

bool link_is_full(const struct cluster *c, uint32_t node)
{
	const struct link *l = c->nodes[node].link;
	return l && uv_stream_get_write_queue_size((const uv_stream_t *)&l->tcp) > QUEUE_MAX / 2;
}

static void say_hello(struct link *l)
{
	struct cluster *c = l->cluster;
	struct control_hello h = {.magic = LINK_MAGIC, .node = c->me};
	memcpy(h.key, c->nodes[0].info.key, sizeof(h.key));
	l->hello_sent = true;
	write_frame(l, CONTROL_HELLO, &h, sizeof(h));
}

/* ---- Receiving ---- */

static bool same_key(const uint8_t *a, const uint8_t *b)
{
	uint8_t differs = 0;
	for (int i = 0; i < CLUSTER_KEY_BYTES; i++)
		differs |= a[i] ^ b[i];
	return !differs;
}

/* The first message: checks which node it is, and its key. */
static void take_hello(struct link *l, const struct control_hello *h)
{
	struct cluster *c = l->cluster;
	bool expected = l->hello_sent ? h->node < c->me && l->connect.data == &c->nodes[h->node]
				      : h->node > c->me && h->node < c->n;
	if (h->magic != LINK_MAGIC || !expected || !same_key(h->key, c->nodes[0].info.key) ||
	    c->nodes[h->node].link || c->nodes[h->node].gone) {
		log_warning("refused a connection to the cluster's port: its peer is not a node of "
			    "this cluster");
		lose(l, "its peer is not a node of this cluster");
		return;
	}
	l->node = (int)h->node;
	c->nodes[h->node].link = l;
	c->nodes[h->node].last_seen_ns = clock_now();
	c->connected++;
	if (!l->hello_sent)
		say_hello(l);
}

static void take_frame(struct link *l, const struct control_header *h, const char *body)
{
	if (l->node >= 0 && !l->cluster->callbacks)
		keep(l, h->kind, body, h->length);
	else if (l->node >= 0)
		l->cluster->callbacks->message(l->cluster->owner, (uint32_t)l->node, h->kind, body,
					       h->length);
	else if (h->kind == CONTROL_HELLO && h->length == sizeof(struct control_hello))
		take_hello(l, (const struct control_hello *)(const void *)body);
	else
		lose(l, "it did not identify itself");
}

static void take_frames(struct link *l)
{
	size_t at = 0;
	struct control_header h;
	while (!l->closing && l->used - at >= sizeof(h)) {
		memcpy(&h, l->buffer + at, sizeof(h));
		size_t most = l->node < 0 ? sizeof(struct control_hello) : CONTROL_BODY_MAX;
		if (h.length > most || h.reserved) {
			lose(l, "a message breaks the protocol");
			return;
		}
		if (l->used - at - sizeof(h) < h.length)
			break;
		/* Bodies are read in place, so each must be aligned. */
		_Alignas(8) char small[1024];
		char *body = small, *big = NULL;
		if (h.length > sizeof(small)) {
			big = malloc(h.length);
			if (!big) {
				lose(l, "out of memory");
				return;
			}
			body = big;
		}
		memcpy(body, l->buffer + at + sizeof(h), h.length);
		at += sizeof(h) + h.length;
		take_frame(l, &h, body);
		free(big);
	}
	if (l->closing)
		return;
	memmove(l->buffer, l->buffer + at, l->used - at);
	l->used -= at;
}

static void on_room(uv_handle_t *handle, size_t size, uv_buf_t *buf)
{
	struct link *l = handle->data;
	(void)size;
	*buf = uv_buf_init(l->buffer + l->used, (unsigned)(sizeof(l->buffer) - l->used));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
	struct link *l = stream->data;
	(void)buf;
	if (n < 0) {
		lose(l, n == UV_EOF ? "its connection ended" : uv_strerror((int)n));
		return;
	}
	if (l->node >= 0)
		l->cluster->nodes[l->node].last_seen_ns = clock_now();
	l->used += (size_t)n;
	take_frames(l);
}

/* ---- Connecting ---- */

static struct link *new_link(struct cluster *c)
{
	struct link *l = calloc(1, sizeof(*l));
	if (!l)
		return NULL;
	l->cluster = c;
	l->node = -1;
	l->tcp.data = l;
	uv_tcp_init(c->loop, &l->tcp);
	DL_APPEND(c->links, l);
	return l;
}

static void watch_for_silence(struct link *l)
{
	uv_os_fd_t fd;
	int ms = NODE_UNREACHABLE_MS, one = 1, idle = NODE_IDLE_SECONDS, count = NODE_PROBES;
	uv_tcp_nodelay(&l->tcp, 1);
	if (uv_fileno((uv_handle_t *)&l->tcp, &fd))
		return;
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

/* A node identifies itself at once. If too many connections have not, the oldest is closed. */
static void limit_strangers(struct cluster *c)
{
	struct link *l, *oldest = NULL;
	unsigned strangers = 0;
	DL_FOREACH (c->links, l) {
		if (l->node >= 0 || l->closing || l->connect.data)
			continue;
		oldest = oldest ? oldest : l;
		strangers++;
	}
	if (strangers > STRANGERS_MAX)
		lose(oldest, "too many connections");
}

static void on_connection(uv_stream_t *listener, int status)
{
	struct cluster *c = listener->data;
	struct link *l = status < 0 ? NULL : new_link(c);
	if (!l)
		return;
	if (uv_accept(listener, (uv_stream_t *)&l->tcp)) {
		lose(l, "it cannot be accepted");
		return;
	}
	limit_strangers(c);
	watch_for_silence(l);
	uv_read_start((uv_stream_t *)&l->tcp, on_room, on_read);
}

static void on_connected(uv_connect_t *request, int status)
{
	struct link *l = request->handle->data;
	struct node *n = request->data;
	if (status == UV_ECANCELED || l->closing)
		return;
	if (status) {
		log_error("cannot connect to node %d (%s, port %u): %s",
			  (int)(n - l->cluster->nodes), n->info.address, n->info.port,
			  uv_strerror(status));
		n->gone = true;
		l->cluster->late = true;
		lose(l, "");
		return;
	}
	watch_for_silence(l);
	uv_read_start((uv_stream_t *)&l->tcp, on_room, on_read);
	say_hello(l);
}

static int connect_to(struct cluster *c, struct node *n)
{
	struct sockaddr_storage at;
	struct link *l = new_link(c);
	if (!l)
		return -1;
	l->connect.data = n;
	if (uv_ip4_addr(n->info.address, n->info.port, (struct sockaddr_in *)&at) &&
	    uv_ip6_addr(n->info.address, n->info.port, (struct sockaddr_in6 *)&at)) {
		log_error("node %d reports the address '%s', which is not an IP address",
			  (int)(n - c->nodes), n->info.address);
		return -1;
	}
	return uv_tcp_connect(&l->connect, &l->tcp, (struct sockaddr *)&at, on_connected);
}

int link_listen(struct cluster *c, const char *address)
{
	struct sockaddr_storage at;
	struct node_info *info = &c->nodes[c->me].info;
	int size = sizeof(at), error;
	c->listener.data = c->timer.data = c->kept.data = c;
	uv_tcp_init(c->loop, &c->listener);
	uv_timer_init(c->loop, &c->timer);
	uv_async_init(c->loop, &c->kept, on_kept);
	if (uv_ip4_addr(address, 0, (struct sockaddr_in *)&at) &&
	    uv_ip6_addr(address, 0, (struct sockaddr_in6 *)&at)) {
		log_error("cluster_interface: '%s' is not an IP address", address);
		return -1;
	}
	error = uv_tcp_bind(&c->listener, (struct sockaddr *)&at, 0);
	if (!error)
		error = uv_listen((uv_stream_t *)&c->listener, 128, on_connection);
	if (!error)
		error = uv_tcp_getsockname(&c->listener, (struct sockaddr *)&at, &size);
	if (error) {
		log_error("cannot listen on %s for the other nodes: %s", address,
			  uv_strerror(error));
		return -1;
	}
	info->port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
						    : ((struct sockaddr_in *)&at)->sin_port);
	snprintf(info->address, sizeof(info->address), "%s", address);
	return 0;
}

static void on_deadline(uv_timer_t *timer)
{
	struct cluster *c = timer->data;
	c->late = true;
}

/* All nodes are connected, and none reconnects, so the port can be closed. */
static void stop_listening(struct cluster *c)
{
	struct link *l;
	uv_close((uv_handle_t *)&c->listener, NULL);
	DL_FOREACH (c->links, l)
		if (l->node < 0)
			lose(l, "");
}

int link_all(struct cluster *c)
{
	for (uint32_t i = 0; i < c->me; i++)
		if (connect_to(c, &c->nodes[i]))
			return -1;
	uv_timer_start(&c->timer, on_deadline, NODES_CONNECT_MS, 0);
	while (c->connected < c->n - 1 && !c->late)
		uv_run(c->loop, UV_RUN_ONCE);
	uv_timer_stop(&c->timer);
	if (c->connected == c->n - 1) {
		stop_listening(c);
		return 0;
	}
	for (uint32_t i = 0; i < c->n; i++)
		if (i != c->me && !c->nodes[i].link)
			log_error("no connection with node %u (%s, %s port %u) within %d s", i,
				  c->nodes[i].info.host, c->nodes[i].info.address,
				  c->nodes[i].info.port, NODES_CONNECT_MS / 1000);
	return -1;
}

/* ---- Keep-alives ---- */

static void on_beat(uv_timer_t *timer)
{
	struct cluster *c = timer->data;
	const uint64_t now = clock_now(), passed = now - c->beat_ns;
	/* While this process was stopped, it could not receive the others' messages. */
	const bool slept = passed > 2 * NODE_BEAT_MS * UINT64_C(1000000);
	for (uint32_t i = 0; i < c->n; i++) {
		c->nodes[i].last_seen_ns += slept ? passed : 0;
		if (i != c->me)
			link_send(c, i, CONTROL_BEAT, &(struct control_beat){0},
				  sizeof(struct control_beat));
	}
	c->beat_ns = now;
}

void link_start_beats(struct cluster *c)
{
	c->beat_ns = clock_now();
	uv_timer_start(&c->timer, on_beat, NODE_BEAT_MS, NODE_BEAT_MS);
}

/* ---- The end ---- */

void link_close_all(struct cluster *c)
{
	struct link *l;
	for (uint32_t i = 0; i < c->n; i++)
		if (c->nodes[i].link)
			write_frame(c->nodes[i].link, CONTROL_BEAT,
				    &(struct control_beat){.last = 1}, sizeof(struct control_beat));
	c->closing = true;
	/* The kernel sends written data before it closes. */
	DL_FOREACH (c->links, l)
		lose(l, "");
	while (c->kept_messages) {
		struct kept_message *m = c->kept_messages;
		DL_DELETE(c->kept_messages, m);
		free(m);
	}
	uv_close((uv_handle_t *)&c->timer, NULL);
	uv_close((uv_handle_t *)&c->kept, NULL);
}
