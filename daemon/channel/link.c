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
#include "link.h"
#include "tls.h"

#define LINK_MAGIC    UINT32_C(0x6e6f6465)
#define LINK_PROTOCOL 1
#define STRANGERS_MAX 64	 /* unidentified connections */
#define QUEUE_MAX     (64 << 20) /* bytes that a node has not read */
#define CHUNK	      (16 << 10) /* bytes that are encrypted, or read, at a time */

struct frame {
	struct frame *prev, *next;
	size_t size;
	char bytes[];
};

struct link {
	struct link *prev, *next;
	struct cluster *cluster;
	uv_tcp_t tcp;
	uv_connect_t connect;
	struct tls *tls;
	uint32_t node; /* CLUSTER_NO_NODE: not known yet */
	bool opened;   /* by this node */
	bool greeted;  /* the other side's HELLO has come */
	bool ready;    /* both sides have said HELLO */
	bool closing;
	bool finished;	     /* the other side no longer needs it */
	const char *failure; /* why it must be lost; NULL: it must not */
	uint64_t since_ns;
	struct frame *queue; /* what is to be sent once it is ready */
	size_t queued;
	size_t used, room; /* of buffer */
	char *buffer;
};

struct write {
	uv_write_t request;
	char bytes[];
};

/* A message that came before the server existed. */
struct kept_message {
	struct kept_message *prev, *next;
	uint32_t from;
	enum control_kind kind;
	size_t size;
	_Alignas(8) char body[];
};

/* ---- The end of a connection ---- */

static void drop_queue(struct link *l)
{
	while (l->queue) {
		struct frame *f = l->queue;
		DL_DELETE(l->queue, f);
		free(f);
	}
	l->queued = 0;
}

static void on_closed(uv_handle_t *handle)
{
	struct link *l = handle->data;
	struct cluster *c = l->cluster;
	DL_DELETE(c->links, l);
	drop_queue(l);
	tls_free(l->tls);
	free(l->buffer);
	free(l);
}

static void close_link(struct link *l)
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
	n->carried &= n->in || n->out; /* its end would not be noticed any more */
}

/* A stranger costs others nothing, and may come often. */
static void refuse(struct link *l, const char *why)
{
	struct cluster *c = l->cluster;
	if (!c->strangers++ || !(c->strangers & (c->strangers - 1)))
		log_warning("refused a connection to the port for other nodes: %s (%llu so far)",
			    why, (unsigned long long)c->strangers);
	close_link(l);
}

static void log_lost(const struct cluster *c, uint32_t node, const char *why)
{
	const struct node *n = &c->nodes[node];
	if (n->left)
		log_info("node %u (%s): its daemon (pid %d) has exited", node, n->shown,
			 n->info.pid);
	else
		log_error("node %u (%s): the connection to its daemon (pid %d) is lost: %s%s", node,
			  n->shown, n->info.pid, why,
			  c->mpi ? ". Restart the daemons of all nodes" : "");
}

static void lose_node(struct cluster *c, uint32_t node, const char *why)
{
	struct node *n = &c->nodes[node];
	if (n->out)
		close_link(n->out);
	if (n->in)
		close_link(n->in);
	n->gone = true;
	n->carried = false;
	n->here += CARRIER_NODES;
	n->lost_ns = clock_now();
	log_lost(c, node, why);
	if (c->callbacks)
		c->callbacks->node_lost(c->owner, node);
}

static void lose(struct link *l, const char *why)
{
	if (l->closing)
		return;
	if (l->cluster->closing || l->finished)
		close_link(l);
	else if (l->node == CLUSTER_NO_NODE)
		refuse(l, why);
	else
		lose_node(l->cluster, l->node, why);
}

/* The sender may be in the middle of work that involves the node, so the node is lost later, from
 * the loop. */
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

/* ---- Sending ---- */

static void on_written(uv_write_t *request, int status)
{
	struct link *l = request->handle->data;
	free(request);
	if (status < 0 && status != UV_ECANCELED)
		lose(l, uv_strerror(status));
}

static void write_bytes(struct link *l, const char *bytes, size_t size)
{
	struct write *w = malloc(sizeof(*w) + size);
	if (!w) {
		fail(l, "out of memory");
		return;
	}
	memcpy(w->bytes, bytes, size);
	uv_buf_t buf = uv_buf_init(w->bytes, (unsigned)size);
	int error = uv_write(&w->request, (uv_stream_t *)&l->tcp, &buf, 1, on_written);
	if (error) {
		free(w);
		fail(l, uv_strerror(error));
	} else if (uv_stream_get_write_queue_size((uv_stream_t *)&l->tcp) > QUEUE_MAX) {
		fail(l, "it does not read");
	}
}

/* Writes what TLS has to send. */
static void pump(struct link *l)
{
	char chunk[CHUNK];
	size_t n;
	while (!l->closing && !l->failure && (n = tls_take(l->tls, chunk, sizeof(chunk))))
		write_bytes(l, chunk, n);
}

static void put_frame(struct link *l, enum control_kind kind, const void *body, size_t size)
{
	const struct control_header h = {.length = (uint32_t)size, .kind = (uint16_t)kind};
	if (tls_write(l->tls, &h, sizeof(h)) || (size && tls_write(l->tls, body, size)))
		fail(l, tls_failure(l->tls));
	pump(l);
}

static void queue_frame(struct link *l, enum control_kind kind, const void *body, size_t size)
{
	const struct control_header h = {.length = (uint32_t)size, .kind = (uint16_t)kind};
	struct frame *f = malloc(sizeof(*f) + sizeof(h) + size);
	if (!f || l->queued + sizeof(h) + size > QUEUE_MAX) {
		free(f);
		fail(l, f ? "it does not answer" : "out of memory");
		return;
	}
	f->size = sizeof(h) + size;
	memcpy(f->bytes, &h, sizeof(h));
	memcpy(f->bytes + sizeof(h), body, size);
	DL_APPEND(l->queue, f);
	l->queued += f->size;
}

static void send_queue(struct link *l)
{
	struct frame *f, *next;
	DL_FOREACH_SAFE (l->queue, f, next)
		if (tls_write(l->tls, f->bytes, f->size))
			fail(l, tls_failure(l->tls));
	drop_queue(l);
	pump(l);
}

static void send_over(struct link *l, enum control_kind kind, const void *body, size_t size)
{
	if (l->failure)
		return;
	if (l->ready)
		put_frame(l, kind, body, size);
	else
		queue_frame(l, kind, body, size);
}

/* Tells the other side what a number means that the message names. */
static void tell_node(void *arg, uint32_t *node)
{
	struct link *l = arg;
	struct cluster *c = l->cluster;
	const uint32_t i = *node;
	uint8_t *told = &c->nodes[l->node].told[i / 8];
	if (i >= c->n || *told & 1u << i % 8)
		return;
	struct control_node m = {.number = i, .port = c->nodes[i].info.port};
	memcpy(m.address, c->nodes[i].info.address, sizeof(m.address));
	*told |= (uint8_t)(1u << i % 8);
	send_over(l, CONTROL_NODE, &m, sizeof(m));
}

static struct link *open_link(struct cluster *c, uint32_t node);

void link_send(struct cluster *c, uint32_t node, enum control_kind kind, const void *body,
	       size_t size)
{
	if (c->closing || node >= c->n)
		return;
	struct node *n = &c->nodes[node];
	struct link *l = n->out ? n->out : n->gone || c->mpi ? NULL : open_link(c, node);
	if (!l)
		return;
	if (!c->mpi && c->callbacks)
		c->callbacks->visit_nodes(kind, (void *)(uintptr_t)body, size, tell_node, l);
	c->sent++;
	n->used_ns = clock_now();
	send_over(l, kind, body, size);
}

bool cluster_reaches(struct cluster *c, uint32_t node)
{
	const struct node *n = &c->nodes[node];
	if (node == c->me || c->mpi || n->carried)
		return true;
	if (!c->closing && !n->out && !n->in && !n->gone)
		open_link(c, node);
	return false;
}

bool link_is_full(const struct cluster *c, uint32_t node)
{
	const struct link *l = c->nodes[node].out;
	return l && l->queued + uv_stream_get_write_queue_size((const uv_stream_t *)&l->tcp) >
			    QUEUE_MAX / 2;
}

/* ---- HELLO ---- */

static void say_hello(struct link *l)
{
	struct cluster *c = l->cluster;
	const struct node_info *me = &c->nodes[c->me].info;
	struct control_hello h = {.magic = LINK_MAGIC,
				  .protocol = LINK_PROTOCOL,
				  .incarnation = me->incarnation,
				  .label = c->nodes[l->node].here,
				  .pid = me->pid,
				  .port = me->port};
	memcpy(h.address, me->address, sizeof(h.address));
	memcpy(h.host, me->host, sizeof(h.host));
	memcpy(h.version, me->version, sizeof(h.version));
	if (!c->mpi)
		h.carrier_bytes = (uint16_t)c->carrier->address(h.carrier, sizeof(h.carrier));
	put_frame(l, CONTROL_HELLO, &h, sizeof(h));
}

/* Messages flow: this node's over a connection that it has opened, the other node's over another.
 */
static void begin(struct link *l)
{
	if (l->closing || l->ready)
		return;
	if (!l->opened)
		say_hello(l);
	l->ready = true;
	send_queue(l);
}

void cluster_carried(struct cluster *c, uint32_t node, uint32_t here, bool failed)
{
	struct node *n = &c->nodes[node];
	if (here != n->here)
		return; /* that connection was lost meanwhile */
	if (failed && (n->out || n->in))
		lose_node(c, node, "the carrier cannot reach it");
	if (failed)
		return;
	n->carried = n->out || n->in;
	if (n->in && n->in->greeted)
		begin(n->in);
	if (n->out && n->out->greeted)
		begin(n->out);
	if (n->carried && c->callbacks)
		c->callbacks->node_ready(c->owner);
}

static bool text_fits(const char *text, size_t size)
{
	return memchr(text, '\0', size) != NULL;
}

static bool hello_fits(const struct control_hello *h)
{
	return h->magic == LINK_MAGIC && h->carrier_bytes <= sizeof(h->carrier) &&
	       text_fits(h->address, sizeof(h->address)) && text_fits(h->host, sizeof(h->host)) &&
	       text_fits(h->version, sizeof(h->version)) && h->address[0] && h->port;
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

static void note_info(const struct cluster *c, struct node *n, const struct control_hello *h)
{
	n->info.incarnation = h->incarnation;
	n->info.pid = h->pid;
	memcpy(n->info.host, h->host, sizeof(n->info.host));
	memcpy(n->info.version, h->version, sizeof(n->info.version));
	n->there = h->label;
	n->gone = n->left = false;
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

/* The first message: checks which node it is. */
static void take_hello(struct link *l, const struct control_hello *h)
{
	struct cluster *c = l->cluster;
	const uint32_t i = hello_fits(h) ? node_of(l, h) : CLUSTER_NO_NODE;
	if (i != CLUSTER_NO_NODE && h->protocol != LINK_PROTOCOL) {
		log_warning("node %s: its daemon is of version %s, this one is of version %s",
			    h->host, h->version, c->nodes[c->me].info.version);
		lose(l, "its daemon's version is another one");
		return;
	}
	if (i == CLUSTER_NO_NODE) {
		lose(l, "its peer is not a node that this one knows");
		return;
	}
	struct node *n = &c->nodes[i];
	const bool other =
		(n->in && n->in != l && !l->opened) ||
		((n->in || n->out) && n->carried && n->info.incarnation != h->incarnation);
	if (other && c->mpi) {
		lose(l, "its peer is connected already");
		return;
	}
	/* It has lost this node, or was started again, before this node noticed. */
	if (other)
		lose_node(c, i, "it was started again, or has lost this node");
	if (l->closing)
		return;
	l->node = i;
	l->greeted = true;
	if (!l->opened)
		take_in(n, l);
	note_info(c, n, h);
	if (c->mpi)
		begin(l);
	else if (c->callbacks)
		c->callbacks->carry(c->owner, i, h->carrier, h->carrier_bytes, n->here, n->there);
}

/* ---- Receiving ---- */

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
	m->from = l->node;
	m->kind = kind;
	m->size = size;
	memcpy(m->body, body, size);
	DL_APPEND(c->kept_messages, m);
	uv_async_send(&c->kept);
}

/* ---- Numbers of nodes ---- */

static void take_number(struct link *l, const struct control_node *told)
{
	struct cluster *c = l->cluster;
	struct node *n = &c->nodes[l->node];
	if (told->number >= CLUSTER_NODES_MAX || !text_fits(told->address, sizeof(told->address))) {
		lose(l, "a message breaks the protocol");
		return;
	}
	if (!n->numbers) {
		n->numbers = malloc(CLUSTER_NODES_MAX * sizeof(n->numbers[0]));
		if (!n->numbers) {
			lose(l, "out of memory");
			return;
		}
		memset(n->numbers, 0xff, CLUSTER_NODES_MAX * sizeof(n->numbers[0]));
	}
	n->numbers[told->number] = cluster_node_at(c, told->address, told->port);
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
	close_link(l);
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

static void take_frame(struct link *l, const struct control_header *h, char *body)
{
	if (!l->greeted && h->kind == CONTROL_HELLO && h->length == sizeof(struct control_hello))
		take_hello(l, (const struct control_hello *)(const void *)body);
	else if (!l->greeted || l->opened || h->kind == CONTROL_HELLO)
		lose(l, "it did not identify itself");
	else if (h->kind == CONTROL_NODE && h->length == sizeof(struct control_node))
		take_number(l, (const struct control_node *)(const void *)body);
	else if (h->kind == CONTROL_CLOSE)
		finish(l);
	else
		take_message(l, h->kind, body, h->length);
}

/* Strangers get a small buffer. */
static bool make_room(struct link *l)
{
	const size_t size = sizeof(struct control_header) +
			    (l->greeted ? CONTROL_BODY_MAX : sizeof(struct control_hello));
	if (l->room == size)
		return true;
	char *buffer = realloc(l->buffer, size);
	if (!buffer)
		return false;
	l->buffer = buffer;
	l->room = size;
	return true;
}

/* Returns how many bytes the first frame takes; 0: it is not complete, or the link is closing. */
static size_t take_first(struct link *l)
{
	struct control_header h;
	if (l->closing || l->used < sizeof(h))
		return 0;
	memcpy(&h, l->buffer, sizeof(h));
	const size_t most = l->greeted ? CONTROL_BODY_MAX : sizeof(struct control_hello);
	if (h.length > most || h.reserved) {
		lose(l, "a message breaks the protocol");
		return 0;
	}
	if (l->used - sizeof(h) < h.length)
		return 0;
	/* The body is read in place; a later one may not be aligned. */
	_Alignas(8) char small[1024];
	char *body = h.length > sizeof(small) ? malloc(h.length) : small;
	if (!body) {
		lose(l, "out of memory");
		return 0;
	}
	memcpy(body, l->buffer + sizeof(h), h.length);
	take_frame(l, &h, body);
	if (body != small)
		free(body);
	return sizeof(h) + h.length;
}

static void take_frames(struct link *l)
{
	size_t taken;
	while ((taken = take_first(l))) {
		memmove(l->buffer, l->buffer + taken, l->used - taken);
		l->used -= taken;
	}
}

/* Handles what TLS has decrypted. */
static void take_plain(struct link *l)
{
	long n = 1;
	while (!l->closing && n > 0) {
		if (!make_room(l)) {
			lose(l, "out of memory");
			return;
		}
		n = tls_read(l->tls, l->buffer + l->used, l->room - l->used);
		l->used += n > 0 ? (size_t)n : 0;
		take_frames(l);
	}
	if (n < 0 && !l->closing)
		lose(l, tls_ended(l->tls) ? "its connection ended" : tls_failure(l->tls));
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
		lose(l, n == UV_EOF ? "its connection ended" : uv_strerror((int)n));
		return;
	}
	if (!n) /* the last read took all there was */
		return;
	if (l->greeted)
		l->cluster->nodes[l->node].last_seen_ns = clock_now();
	const bool was_ready = tls_is_ready(l->tls);
	if (tls_feed(l->tls, buf->base, (size_t)n)) {
		pump(l); /* an alert may say why */
		lose(l, tls_failure(l->tls));
		return;
	}
	if (l->opened && !was_ready && tls_is_ready(l->tls))
		say_hello(l);
	take_plain(l);
	if (!l->closing)
		pump(l);
}

/* ---- Connecting ---- */

static struct link *new_link(struct cluster *c, bool opened)
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
		if (l->greeted || l->closing || l->opened)
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
	struct link *l = status < 0 ? NULL : new_link(c, false);
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
	struct cluster *c = l->cluster;
	if (status == UV_ECANCELED || l->closing)
		return;
	if (status) {
		c->late |= c->mpi != NULL;
		lose(l, uv_strerror(status));
		return;
	}
	watch_for_silence(l);
	uv_read_start((uv_stream_t *)&l->tcp, on_room, on_read);
	pump(l);
}

static int connect_to(struct link *l, const struct node_info *to)
{
	struct sockaddr_storage at;
	if (uv_ip4_addr(to->address, to->port, (struct sockaddr_in *)&at) &&
	    uv_ip6_addr(to->address, to->port, (struct sockaddr_in6 *)&at))
		return UV_EINVAL;
	return uv_tcp_connect(&l->connect, &l->tcp, (struct sockaddr *)&at, on_connected);
}

/* NULL: there is no memory. Other failures are told later. */
static struct link *open_link(struct cluster *c, uint32_t node)
{
	struct node *n = &c->nodes[node];
	struct link *l = new_link(c, true);
	if (!l)
		return NULL;
	l->node = node;
	n->out = l;
	memset(n->told, 0, sizeof(n->told));
	const int error = connect_to(l, &n->info);
	if (error)
		fail(l, uv_strerror(error));
	return l;
}

static void choose_port(struct sockaddr_storage *at, uint16_t port)
{
	if (at->ss_family == AF_INET6)
		((struct sockaddr_in6 *)at)->sin6_port = htons(port);
	else
		((struct sockaddr_in *)at)->sin_port = htons(port);
}

int link_listen(struct cluster *c, const char *address, uint16_t port)
{
	struct sockaddr_storage at = {.ss_family = AF_INET};
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
	choose_port(&at, port);
	error = uv_tcp_bind(&c->listener, (struct sockaddr *)&at, 0);
	if (!error)
		error = uv_listen((uv_stream_t *)&c->listener, 128, on_connection);
	if (!error)
		error = uv_tcp_getsockname(&c->listener, (struct sockaddr *)&at, &size);
	if (error) {
		log_error("cannot listen on %s port %u for the other nodes: %s", address, port,
			  uv_strerror(error));
		return -1;
	}
	info->port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
						    : ((struct sockaddr_in *)&at)->sin_port);
	snprintf(info->address, sizeof(info->address), "%s", address);
	return 0;
}

/* ---- All nodes, at the start ---- */

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
		if (!l->greeted)
			close_link(l);
}

static bool all_are_connected(const struct cluster *c)
{
	for (uint32_t i = 0; i < c->n; i++)
		if (i != c->me && (!c->nodes[i].in || !c->nodes[i].out || !c->nodes[i].out->ready))
			return false;
	return true;
}

int link_all(struct cluster *c)
{
	for (uint32_t i = 0; i < c->n; i++)
		if (i != c->me && !open_link(c, i))
			return -1;
	uv_timer_start(&c->timer, on_deadline, NODES_CONNECT_MS, 0);
	while (!all_are_connected(c) && !c->late)
		uv_run(c->loop, UV_RUN_ONCE);
	uv_timer_stop(&c->timer);
	if (all_are_connected(c)) {
		stop_listening(c);
		return 0;
	}
	for (uint32_t i = 0; i < c->n; i++)
		if (i != c->me && (!c->nodes[i].out || !c->nodes[i].out->ready))
			log_error("no connection with node %u (%s, %s port %u) within %d s", i,
				  c->nodes[i].info.host, c->nodes[i].info.address,
				  c->nodes[i].info.port, NODES_CONNECT_MS / 1000);
	return -1;
}

/* ---- Keep-alives ---- */

static const struct control_beat alive, last_beat = {.last = 1};

/* Nothing needs the connection, and the node has long been told nothing. */
static bool is_idle(const struct cluster *c, uint32_t node)
{
	const struct node *n = &c->nodes[node];
	return !c->mpi && n->out && n->out->ready && clock_now() - n->used_ns > LINK_IDLE_NS &&
	       !c->callbacks->needs(c->owner, node);
}

static void close_idle(struct cluster *c, uint32_t node)
{
	struct link *l = c->nodes[node].out;
	put_frame(l, CONTROL_CLOSE, NULL, 0);
	l->finished = true;
	close_link(l);
}

/* A connection whose other side has not said HELLO in time is a stranger's, or hangs. */
static void end_late_hellos(struct cluster *c, uint64_t now)
{
	struct link *l;
	DL_FOREACH (c->links, l)
		if (!l->ready && !l->closing && now - l->since_ns > LINK_HELLO_NS)
			lose(l, "it does not answer");
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
		else if (n->out && n->out->ready)
			send_over(n->out, CONTROL_BEAT, &alive, sizeof(alive));
	}
	DL_FOREACH (c->links, l)
		l->since_ns = slept ? now : l->since_ns;
	end_late_hellos(c, now);
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
		if (c->nodes[i].out && c->nodes[i].out->ready)
			put_frame(c->nodes[i].out, CONTROL_BEAT, &last_beat, sizeof(last_beat));
	c->closing = true;
	/* The kernel sends written data before it closes. */
	DL_FOREACH (c->links, l)
		close_link(l);
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
