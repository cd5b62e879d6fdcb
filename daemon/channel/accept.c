/* SPDX-License-Identifier: Apache-2.0
 * Incoming connections. Those of strangers, which have not identified themselves as daemons, can be
 * many and from anywhere; they must not slow down the other nodes. */
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <utlist.h>

#include "base/log.h"
#include "frames.h"

#define STRANGERS_MAX 64

static bool is_stranger(const struct link *l)
{
	return !l->greeted && !l->closing && !l->opened;
}

/* Counts the strangers from the same network. */
static unsigned count_like(const struct link *one)
{
	const struct link *l;
	unsigned n = 0;
	DL_FOREACH (one->cluster->links, l)
		n += is_stranger(l) && !memcmp(l->network, one->network, sizeof(l->network));
	return n;
}

/* Over the limit, closes the oldest stranger of the network with the most, so that those from other
 * networks have time to identify themselves. */
static void limit_strangers(struct cluster *c)
{
	struct link *l, *refused = NULL;
	unsigned strangers = 0, most = 0;
	DL_FOREACH (c->links, l)
		strangers += is_stranger(l);
	if (strangers <= STRANGERS_MAX)
		return;
	DL_FOREACH (c->links, l) {
		const unsigned n = is_stranger(l) ? count_like(l) : 0;
		if (n <= most)
			continue;
		most = n;
		refused = l;
	}
	link_lose(refused, "too many connections");
}

static void note_network(struct link *l)
{
	struct sockaddr_storage at = {0};
	int size = sizeof(at);
	if (uv_tcp_getpeername(&l->tcp, (struct sockaddr *)&at, &size))
		return;
	if (at.ss_family == AF_INET6)
		memcpy(l->network, &((struct sockaddr_in6 *)&at)->sin6_addr, sizeof(l->network));
	else
		memcpy(l->network, &((struct sockaddr_in *)&at)->sin_addr, sizeof(struct in_addr));
}

/* libuv reports no more connections until this one is accepted. */
static void on_connection(uv_stream_t *listener, int status)
{
	struct cluster *c = listener->data;
	if (status < 0)
		return;
	struct link *l = link_new(c, false);
	c->unaccepted = !l;
	if (!l)
		return;
	if (uv_accept(listener, (uv_stream_t *)&l->tcp)) {
		link_lose(l, "it cannot be accepted");
		return;
	}
	note_network(l);
	limit_strangers(c);
	link_read(l);
}

void link_accept_again(struct cluster *c)
{
	if (c->unaccepted)
		on_connection((uv_stream_t *)&c->listener, 0);
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
	c->protocol_min = LINK_PROTOCOL_MIN;
	c->protocol_max = LINK_PROTOCOL_MAX;
	c->listener.data = c->timer.data = c->kept.data = c;
	uv_tcp_init(c->loop, &c->listener);
	uv_timer_init(c->loop, &c->timer);
	uv_async_init(c->loop, &c->kept, link_on_kept);
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
