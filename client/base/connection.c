/* SPDX-License-Identifier: Apache-2.0
 * Connecting: connect, HELLO, IDENTIFY, ATTACH, one exchange after the other. No other thread can
 * see the connection yet. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "connection.h"
#include "deadline_clock.h"
#include "error.h"
#include "fork.h"
#include "frame.h"
#include "proto/fdio.h"
#include "trust.h"

#define RETRY_MS 20

static ncclsvc_result connect_error(const char *path)
{
	struct stat st;
	switch (errno) {
	case ECONNREFUSED:
		if (!stat(path, &st) && !S_ISSOCK(st.st_mode))
			return error_set(
				NCCLSVC_DAEMON_LOST,
				"%s is not a socket: set NCCLSVC_SOCKET to ncclsvcd's socket",
				path);
		__attribute__((fallthrough));
	case ENOENT:
		return error_set(NCCLSVC_DAEMON_LOST,
				 "no daemon listens at %s: start ncclsvcd, or set NCCLSVC_SOCKET "
				 "to its socket",
				 path);
	case EACCES:
	case EPERM:
		return error_set(NCCLSVC_PERMISSION, "no permission to connect to %s", path);
	case EPROTOTYPE:
		return error_set(NCCLSVC_PROTOCOL, "%s is not ncclsvcd's socket", path);
	default:
		return error_set(NCCLSVC_SYSTEM, "cannot connect to %s: %m", path);
	}
}

static void nap(uint64_t deadline)
{
	int left = deadline_left_ms(deadline);
	poll(NULL, 0, left < 0 || left > RETRY_MS ? RETRY_MS : left);
}

static ncclsvc_result connect_to(const struct connection_options *o, uint64_t deadline, int *sock)
{
	for (;;) {
		*sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (*sock < 0)
			return error_set(NCCLSVC_SYSTEM, "cannot create a socket: %m");
		if (!connect(*sock, (const struct sockaddr *)&o->address, sizeof(o->address)))
			return NCCLSVC_OK;
		int error = errno;
		int fd = *sock;
		*sock = -1; /* Clear it first: a child forked now must not close a reused number. */
		close(fd);
		errno = error;
		/* EAGAIN: the daemon's backlog is full. */
		bool nobody = error == ENOENT || error == ECONNREFUSED;
		if (error != EAGAIN && error != EINTR && !(nobody && o->retry))
			return connect_error(o->address.sun_path);
		if (now_ns() >= deadline) {
			if (nobody)
				return connect_error(o->address.sun_path);
			return error_set(NCCLSVC_TIMEOUT,
					 "the daemon at %s is not accepting connections",
					 o->address.sun_path);
		}
		nap(deadline);
	}
}

struct answer {
	struct svc_header header;
	_Alignas(8) unsigned char body[SVC_MESSAGE_MAX];
	int fds[SVC_FDS_MAX];
	unsigned nfds;
};

static ncclsvc_result refused(const struct answer *a)
{
	char text[SVC_TEXT_BYTES];
	struct svc_error e;
	memcpy(&e, a->body, sizeof(e));
	if (a->header.result == NCCLSVC_VERSION)
		return error_set(NCCLSVC_VERSION,
				 "the daemon speaks protocol versions %u to %u, this library %u to "
				 "%u: install matching versions",
				 e.version_min, e.version_max, SVC_PROTOCOL_MIN, SVC_PROTOCOL_MAX);
	frame_error_text(a->body, a->header.result, text);
	return error_set((ncclsvc_result)a->header.result, "%s", text);
}

static ncclsvc_result said_bye(const struct answer *a)
{
	char text[SVC_TEXT_BYTES];
	const int reason = frame_bye(a->body, text);
	return error_set(reason < 0 ? (ncclsvc_result)reason : NCCLSVC_DAEMON_LOST,
			 "the daemon hung up: %s", text);
}

static ncclsvc_result receive(const struct connection *c, uint64_t deadline, struct answer *a)
{
	unsigned char message[SVC_MESSAGE_MAX];
	char text[SVC_TEXT_BYTES];
	struct pollfd p = {.fd = c->sock, .events = POLLIN};
	for (;;) {
		int ready = poll(&p, 1, deadline_left_ms(deadline));
		if (ready == 0)
			return error_set(NCCLSVC_TIMEOUT, "the daemon does not answer");
		if (ready < 0 && errno != EINTR)
			return error_set(NCCLSVC_SYSTEM, "poll: %m");
		ssize_t n = frame_receive(c, message, sizeof(message), a->fds, &a->nfds);
		if (n == -EAGAIN)
			continue;
		if (n == -EMSGSIZE)
			return error_set(NCCLSVC_PROTOCOL,
					 "the daemon sent a message that is too long");
		if (n <= 0)
			return error_set(NCCLSVC_DAEMON_LOST, "the daemon hung up");
		if (!frame_check(c, message, (size_t)n, a->nfds, &a->header, text)) {
			svc_close_fds(a->fds, a->nfds < SVC_FDS_MAX ? a->nfds : SVC_FDS_MAX);
			return error_set(NCCLSVC_PROTOCOL, "the daemon broke the protocol: %s",
					 text);
		}
		memcpy(a->body, message + sizeof(a->header), sizeof(message) - sizeof(a->header));
		return NCCLSVC_OK;
	}
}

/* fd: goes with the request; -1: none. */
static ncclsvc_result exchange(const struct connection *c, unsigned opcode, const void *body,
			       int fd, uint64_t deadline, struct answer *a)
{
	/* The first messages of a connection always fit into its buffer. */
	int sent = frame_send(c, opcode, opcode, body, fd);
	if (sent < 0 && sent != -EPIPE && sent != -ECONNRESET) {
		errno = -sent;
		return error_set(NCCLSVC_SYSTEM, "cannot send to the daemon: %m");
	}
	for (;;) {
		ncclsvc_result r = receive(c, deadline, a);
		if (r)
			return r;
		if (a->header.opcode == SVC_EVENT_BYE)
			return said_bye(a);
		if (!(a->header.opcode & SVC_REPLY))
			continue;
		if (a->header.opcode != (opcode | SVC_REPLY) || a->header.request_id != opcode) {
			svc_close_fds(a->fds, a->nfds);
			return error_set(NCCLSVC_PROTOCOL,
					 "the daemon answered a different request");
		}
		return a->header.result ? refused(a) : NCCLSVC_OK;
	}
}

/* PROTOCOL: the answer is invalid. */
static ncclsvc_result take_mps_advice(struct connection *c, const struct svc_hello_reply *reply)
{
	const size_t n = strnlen(reply->mps_directory, sizeof(reply->mps_directory));
	if (reply->mps == SVC_MPS_JOIN &&
	    (reply->mps_directory[0] != '/' || n > NCCLSVC_MPS_DIRECTORY_MAX))
		return error_set(NCCLSVC_PROTOCOL, "the daemon sent an MPS directory that is %s",
				 n > NCCLSVC_MPS_DIRECTORY_MAX ? "too long"
							       : "not an absolute path");
	c->mps = (enum svc_mps_advice)reply->mps;
	if (reply->mps == SVC_MPS_JOIN)
		memcpy(c->mps_directory, reply->mps_directory, n + 1);
	return NCCLSVC_OK;
}

static ncclsvc_result hello(struct connection *c, const struct connection_options *o,
			    uint64_t deadline, uint32_t *ring_max)
{
	struct svc_hello hello = {
		.version_min = SVC_PROTOCOL_MIN,
		.version_max = SVC_PROTOCOL_MAX,
	};
	struct svc_hello_reply reply;
	struct answer a;
	memcpy(hello.name, o->name, sizeof(hello.name));
	ncclsvc_result r = exchange(c, SVC_HELLO, &hello, -1, deadline, &a);
	if (r)
		return r;
	memcpy(&reply, a.body, sizeof(reply));
	if (reply.version < SVC_PROTOCOL_MIN || reply.version > SVC_PROTOCOL_MAX)
		return error_set(NCCLSVC_PROTOCOL,
				 "the daemon chose protocol version %u, outside %u to %u",
				 reply.version, SVC_PROTOCOL_MIN, SVC_PROTOCOL_MAX);
	c->version = reply.version;
	c->session = reply.session;
	*ring_max = reply.ring_max;
	return take_mps_advice(c, &reply);
}

static ncclsvc_result identify(struct connection *c, const struct connection_options *o,
			       uint64_t deadline)
{
	struct svc_identify request;
	struct answer a;
	if (!o->job[0])
		return NCCLSVC_OK;
	memcpy(request.job, o->job, sizeof(request.job));
	return exchange(c, SVC_IDENTIFY, &request, -1, deadline, &a);
}

static ncclsvc_result map_ring(struct connection *c, const struct svc_attach_reply *reply, int fd)
{
	char text[SVC_TEXT_BYTES];
	if (reply->entries != c->entries || reply->size < svc_ring_size(reply->entries) ||
	    reply->size > svc_ring_size(SVC_RING_MAX))
		return error_set(NCCLSVC_PROTOCOL,
				 "the daemon sent a ring of %u entries in %llu bytes",
				 reply->entries, (unsigned long long)reply->size);
	if (!svc_memfd_trusted(fd, reply->size, text))
		return error_set(NCCLSVC_PROTOCOL, "the session memory cannot be trusted: %s",
				 text);
	void *map = mmap(NULL, reply->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return error_set(NCCLSVC_NO_MEMORY, "cannot map the session memory: %m");
	c->ring = map;
	c->ring_size = reply->size;
	if (c->ring->magic != SVC_RING_MAGIC || c->ring->entries != c->entries)
		return error_set(NCCLSVC_PROTOCOL, "the session memory has no ring");
	if (c->ring->version != c->version)
		return error_set(NCCLSVC_PROTOCOL,
				 "the session memory has protocol version %u, the session %u",
				 c->ring->version, c->version);
	return NCCLSVC_OK;
}

/* Writing to any other kind of file could block or raise SIGPIPE. */
static bool is_eventfd(int fd)
{
	struct stat st;
	const int flags = fcntl(fd, F_GETFL);
	return !fstat(fd, &st) && !(st.st_mode & S_IFMT) && flags >= 0 && flags & O_NONBLOCK;
}

static bool is_socket(int fd)
{
	struct stat st;
	return !fstat(fd, &st) && S_ISSOCK(st.st_mode);
}

static bool is_same_file(int a, int b)
{
	struct stat x, y;
	return !fstat(a, &x) && !fstat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static ncclsvc_result attach(struct connection *c, const struct connection *previous,
			     uint64_t deadline)
{
	struct svc_attach request = {.entries = c->entries};
	struct svc_attach_reply reply;
	struct answer a;
	ncclsvc_result r = exchange(c, previous ? SVC_ATTACH_AGAIN : SVC_ATTACH, &request,
				    previous ? previous->memory : -1, deadline, &a);
	if (r)
		return r;
	memcpy(&reply, a.body, sizeof(reply));
	c->memory = a.fds[0];
	c->doorbell = a.fds[1];
	c->completion = a.fds[2];
	r = map_ring(c, &reply, c->memory);
	if (!r && previous && !is_same_file(c->memory, previous->memory))
		r = error_set(NCCLSVC_PROTOCOL, "the daemon returned other session memory");
	if (!r && (!is_eventfd(c->doorbell) || !is_socket(c->completion)))
		r = error_set(NCCLSVC_PROTOCOL, "the daemon sent a doorbell that is not an "
						"eventfd, or a completion fd that is not a socket");
	return r;
}

static ncclsvc_result open_once(const struct connection_options *o, uint64_t deadline,
				struct connection **connection)
{
	uint32_t ring_max = 0;
	struct connection *c = calloc(1, sizeof(*c));
	if (!c)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	*c = (struct connection){.refs = 1,
				 .sock = -1,
				 .version = SVC_PROTOCOL_MIN,
				 .doorbell = -1,
				 .completion = -1,
				 .memory = -1,
				 .entries = o->entries};
	fork_watch(c);
	ncclsvc_result r = connect_to(o, deadline, &c->sock);
	if (!r)
		r = trust_check(c->sock, o->address.sun_path);
	if (!r)
		r = hello(c, o, deadline, &ring_max);
	if (!r)
		r = identify(c, o, deadline);
	if (!r && !o->no_ring) {
		if (!o->entries_required && svc_ring_entries_valid(ring_max) &&
		    ring_max < c->entries)
			c->entries = ring_max;
		r = attach(c, o->previous, deadline);
	}
	if (r) {
		connection_unref(c);
		return r;
	}
	*connection = c;
	return NCCLSVC_OK;
}

ncclsvc_result connection_open(const struct connection_options *o, uint64_t deadline,
			       struct connection **connection)
{
	for (;;) {
		ncclsvc_result r = open_once(o, deadline, connection);
		/* A daemon that is shutting down may still be listening: wait for its successor. */
		bool going = r == NCCLSVC_DAEMON_LOST || r == NCCLSVC_DRAINING;
		if (!going || !o->retry)
			return r;
		nap(deadline);
		if (now_ns() >= deadline)
			return r;
	}
}

struct connection *connection_ref(struct connection *connection)
{
	atomic_fetch_add_explicit(&connection->refs, 1, memory_order_relaxed);
	return connection;
}

void connection_unref(struct connection *c)
{
	if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1)
		return;
	if (c->ring)
		munmap(c->ring, c->ring_size);
	fork_unwatch(c);
	free(c);
}
