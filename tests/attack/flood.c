/* SPDX-License-Identifier: Apache-2.0 */
#include "flood.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define RING_ENTRIES 16384

unsigned open_many(struct attacker *a, struct conn *conns, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (!conn_open(&conns[i], a->socket))
			return i;
	return n;
}

/* Reads everything that has arrived. False: the session is over. */
static bool read_answers(struct attacker *a, struct conn *c)
{
	struct answer answer;
	int got;
	while ((got = conn_next(c, &answer, 0)) == 1) {
		svc_close_fds(answer.fds, answer.nfds);
		if (!answer.header.request_id)
			continue;
		c->outstanding -= c->outstanding > 0;
		a->refused += answer.header.result != 0;
		if (answer.header.opcode == (SVC_LIST | SVC_REPLY) && !answer.header.result)
			c->from = answer.body.list.next;
	}
	return got == 0;
}

/* False: the session is over. */
static bool ask(struct attacker *a, struct conn *c, unsigned depth, unsigned opcode,
		const void *body, size_t length)
{
	while (!depth || c->outstanding < depth) {
		struct svc_list chunk;
		if (opcode == SVC_LIST) {
			memcpy(&chunk, body, sizeof(chunk));
			chunk.from = c->from;
			body = &chunk;
		}
		int error = conn_send(c, opcode, body, length, -1, MSG_DONTWAIT);
		if (error)
			return error == -EAGAIN;
		c->outstanding++;
		a->asked++;
	}
	return true;
}

void flood(struct attacker *a, struct conn *conns, unsigned n, unsigned depth, unsigned opcode,
	   const void *body, size_t length)
{
	struct pollfd *polls = calloc(n, sizeof(*polls));
	for (;;) {
		for (unsigned i = 0; i < n; i++) {
			struct conn *c = &conns[i];
			bool good = c->sock >= 0 && (!depth || read_answers(a, c)) &&
				    ask(a, c, depth, opcode, body, length);
			if (!good) {
				a->ended += c->sock >= 0;
				conn_close(c);
				conn_open(c, a->socket);
			}
			polls[i] =
				(struct pollfd){.fd = c->sock, .events = depth ? POLLIN : POLLOUT};
		}
		poll(polls, n, 10);
	}
}

/* Writes up to n waiting tasks to one ring. Returns how many. */
static uint64_t fill_ring(struct attacker *a, uint64_t n, uint64_t timeout_ns)
{
	/* Only one of the communicator's two ranks submits, so the tasks wait. */
	struct conn *pair = calloc(2, sizeof(*pair));
	struct rank ranks[2];
	if (open_many(a, pair, 2) < 2 || !conn_attach(&pair[0], RING_ENTRIES) ||
	    !ranks_join(pair, 2, ranks))
		return 0;
	struct svc_record record = rank_record(&ranks[0]);
	record.timeout_ns = timeout_ns;
	uint64_t room = RING_ENTRIES - 4;
	for (uint64_t i = 0; i < n && i < room; i++)
		conn_submit(&pair[0], &record);
	return n < room ? n : room;
}

uint64_t queue_tasks(struct attacker *a, uint64_t n, uint64_t timeout_ns)
{
	struct conn observer;
	uint64_t sent = 0, more;
	if (!conn_open(&observer, a->socket))
		return 0;
	while (sent < n && (more = fill_ring(a, n - sent, timeout_ns)))
		sent += more;
	/* As many as the daemon takes; it may refuse some. */
	uint64_t taken = 0;
	for (int still = 0; still < 10 && taken < n; still++) {
		uint64_t before = taken;
		pause_ms(10);
		taken = conn_pending(&observer);
		if (taken > before)
			still = 0;
	}
	conn_close(&observer);
	return taken;
}

/* Refusals arrive before the answer to this request. Returns how many requests were refused. */
static unsigned count_refusals(struct conn *c)
{
	struct svc_daemon_info_request request = {0};
	struct answer answer;
	unsigned refused = 0;
	if (conn_send(c, SVC_DAEMON_INFO, &request, sizeof(request), -1, 0))
		return 0;
	while (conn_next(c, &answer, 60000) == 1 && answer.header.request_id != c->request_id)
		refused += answer.header.result != 0;
	return refused;
}

unsigned join_unmet(struct attacker *a, struct conn *c, unsigned n, int ranks, uint64_t timeout_ns)
{
	enum { BATCH = 64 }; /* so that the refusals find room in the socket */
	struct svc_join join = {
		.nranks = ranks, .device = SVC_DEVICE_HOST, .timeout_ns = timeout_ns};
	unsigned refused = 0;
	for (unsigned i = 0; i < n; i++) {
		random_id(join.id);
		if (conn_send(c, SVC_JOIN, &join, sizeof(join), -1, 0))
			return 0;
		a->asked++;
		if (i % BATCH == BATCH - 1 || i == n - 1)
			refused += count_refusals(c);
	}
	a->refused += refused;
	return n - refused;
}
