/* SPDX-License-Identifier: Apache-2.0 */
#include "version_relay.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "harness_raw.h"

#define CONNECTIONS 16

/* Two sockets: the client's and the daemon's; -1: free. */
struct connection {
	int ends[2];
};

static void hang_up(struct connection *c)
{
	svc_close_fds(c->ends, 2);
}

static void set_versions(const struct relay *r, unsigned char *message, size_t length)
{
	struct svc_header header;
	struct svc_hello hello;
	if (length != sizeof(header) + sizeof(hello))
		return;
	memcpy(&header, message, sizeof(header));
	if (header.opcode != SVC_HELLO)
		return;
	memcpy(&hello, message + sizeof(header), sizeof(hello));
	hello.version_min = r->version_min;
	hello.version_max = r->version_max;
	memcpy(message + sizeof(header), &hello, sizeof(hello));
}

static void pass_on(const struct relay *r, struct connection *c, int from)
{
	unsigned char message[SVC_LIST_MESSAGE_MAX];
	int fds[SVC_FDS_MAX];
	unsigned nfds = 0;
	const ssize_t n = svc_recv(c->ends[from], message, sizeof(message), fds, &nfds, 0);
	if (n <= 0) {
		hang_up(c);
		return;
	}
	if (from == 0)
		set_versions(r, message, (size_t)n);
	size_t length = (size_t)n;
	if (from == 1 && r->mangle)
		r->mangle(message, &length, fds, &nfds);
	const int error = svc_send(c->ends[!from], message, length, fds, nfds, 0);
	svc_close_fds(fds, nfds);
	if (error)
		hang_up(c);
}

static void take(const struct relay *r, struct connection *c)
{
	struct raw to;
	c->ends[0] = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
	if (raw_try_connect(&to, r->daemon->socket))
		c->ends[1] = to.sock;
	else
		hang_up(c);
}

static void relay_run(struct client *me)
{
	const struct relay *r = me->arg;
	struct connection all[CONNECTIONS];
	for (int i = 0; i < CONNECTIONS; i++)
		all[i] = (struct connection){{-1, -1}};
	for (;;) {
		struct pollfd p[1 + 2 * CONNECTIONS] = {{.fd = r->listener, .events = POLLIN}};
		struct connection *free = NULL;
		for (int i = 0; i < 2 * CONNECTIONS; i++) {
			p[1 + i] = (struct pollfd){all[i / 2].ends[i % 2], POLLIN, 0};
			if (p[1 + i].fd < 0)
				free = &all[i / 2];
		}
		CHECK(free && poll(p, 1 + 2 * CONNECTIONS, -1) > 0);
		for (int i = 0; i < 2 * CONNECTIONS; i++)
			if (p[1 + i].revents && all[i / 2].ends[i % 2] >= 0)
				pass_on(r, &all[i / 2], i % 2);
		if (p[0].revents)
			take(r, free);
	}
}

/* The caller sets all members except the listener, the process, and the socket behind it. */
static void start(struct relay *r, const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	snprintf(r->behind.socket, sizeof(r->behind.socket), "%.64s/%s", r->daemon->dir, name);
	memcpy(address.sun_path, r->behind.socket, sizeof(address.sun_path));
	r->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(r->listener >= 0);
	CHECK_EQ(bind(r->listener, (struct sockaddr *)&address, sizeof(address)), 0);
	CHECK_EQ(listen(r->listener, CONNECTIONS), 0);
	r->process = (struct client){.arg = r, .link = -1};
	client_start(&r->process, relay_run);
	close(r->listener);
}

void relay_start(struct relay *r, const struct daemon *d, unsigned version_min,
		 unsigned version_max)
{
	char name[32];
	*r = (struct relay){.behind = *d,
			    .daemon = d,
			    .version_min = (uint16_t)version_min,
			    .version_max = (uint16_t)version_max};
	snprintf(name, sizeof(name), "relay-%u-%u", version_min, version_max);
	start(r, name);
}

void relay_start_mangling(struct relay *r, const struct daemon *d,
			  void (*mangle)(unsigned char *message, size_t *length, int *fds,
					 unsigned *nfds))
{
	*r = (struct relay){.behind = *d,
			    .daemon = d,
			    .version_min = SVC_PROTOCOL_MIN,
			    .version_max = SVC_PROTOCOL_MAX,
			    .mangle = mangle};
	start(r, "mangling");
}

void relay_stop(struct relay *r)
{
	client_kill(&r->process);
	unlink(r->behind.socket);
}
