/* SPDX-License-Identifier: Apache-2.0 */
#include "conn.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "attack.h"

#define CALL_MS 120000 /* timeout for one answer */

bool conn_connect(struct conn *c, const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	memset(c, 0, sizeof(*c));
	c->doorbell = c->completion = -1;
	strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
	c->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (c->sock >= 0 && connect(c->sock, (struct sockaddr *)&address, sizeof(address)) == 0)
		return true;
	conn_close(c);
	return false;
}

bool conn_open(struct conn *c, const char *path)
{
	struct svc_hello hello = {
		.version_min = SVC_PROTOCOL_MIN, .version_max = SVC_PROTOCOL_MAX, .name = "attack"};
	struct answer a;
	if (!conn_connect(c, path))
		return false;
	if (conn_call(c, SVC_HELLO, &hello, sizeof(hello), -1, &a) == 0)
		return true;
	conn_close(c);
	return false;
}

void conn_close(struct conn *c)
{
	if (c->ring)
		munmap(c->ring, c->ring_size);
	int fds[] = {c->sock, c->doorbell, c->completion};
	svc_close_fds(fds, 3);
	memset(c, 0, sizeof(*c));
	c->sock = c->doorbell = c->completion = -1;
}

int conn_send(struct conn *c, unsigned opcode, const void *body, size_t length, int fd, int flags)
{
	unsigned char message[SVC_MESSAGE_MAX];
	struct svc_header header = {.length = (uint32_t)(sizeof(header) + length),
				    .opcode = (uint16_t)opcode,
				    .request_id = c->request_id + 1};
	memcpy(message, &header, sizeof(header));
	if (length)
		memcpy(message + sizeof(header), body, length);
	int error = svc_send(c->sock, message, header.length, &fd, fd >= 0, flags);
	if (!error)
		c->request_id++;
	return error;
}

int conn_next(struct conn *c, struct answer *a, int timeout_ms)
{
	static unsigned char message[SVC_LIST_MESSAGE_MAX];
	struct pollfd p = {.fd = c->sock, .events = POLLIN};
	if (timeout_ms && poll(&p, 1, timeout_ms) == 0)
		return 0;
	ssize_t n = svc_recv(c->sock, message, sizeof(message), a->fds, &a->nfds, MSG_DONTWAIT);
	if (n == -EAGAIN)
		return 0;
	if (n < (ssize_t)sizeof(a->header))
		return CONN_LOST;
	memcpy(&a->header, message, sizeof(a->header));
	size_t size = (size_t)n - sizeof(a->header);
	memcpy(&a->body, message + sizeof(a->header),
	       size < sizeof(a->body) ? size : sizeof(a->body));
	return 1;
}

int conn_call(struct conn *c, unsigned opcode, const void *body, size_t length, int fd,
	      struct answer *a)
{
	int got;
	if (conn_send(c, opcode, body, length, fd, 0))
		return CONN_LOST;
	while ((got = conn_next(c, a, CALL_MS)) == 1) {
		if (a->header.request_id == c->request_id) {
			if (opcode != SVC_ATTACH)
				svc_close_fds(a->fds, a->nfds);
			return a->header.result;
		}
		svc_close_fds(a->fds, a->nfds);
	}
	return CONN_LOST;
}

bool conn_attach(struct conn *c, uint32_t entries)
{
	struct svc_attach attach = {.entries = entries};
	struct answer a;
	if (conn_call(c, SVC_ATTACH, &attach, sizeof(attach), -1, &a) || a.nfds < 3)
		return false;
	void *p = mmap(NULL, a.body.attach.size, PROT_READ | PROT_WRITE, MAP_SHARED, a.fds[0], 0);
	svc_close_fds(&a.fds[0], 1);
	c->doorbell = a.fds[1];
	c->completion = a.fds[2];
	if (p == MAP_FAILED)
		return false;
	c->ring = p;
	c->ring_size = a.body.attach.size;
	c->entries = entries;
	return true;
}

uint64_t conn_pending(struct conn *c)
{
	struct svc_daemon_info_request request = {0};
	struct answer a;
	if (conn_call(c, SVC_DAEMON_INFO, &request, sizeof(request), -1, &a))
		return 0;
	return a.body.info.info.tasks_pending;
}

uint32_t conn_region(struct conn *c, int memfd, uint64_t bytes)
{
	struct svc_region_add add = {.bytes = bytes, .kind = SVC_REGION_MEMFD};
	struct answer a;
	return conn_call(c, SVC_REGION_ADD, &add, sizeof(add), memfd, &a) ? 0
									  : a.body.region.region;
}

void random_id(uint8_t id[NCCLSVC_ID_BYTES])
{
	if (getrandom(id, NCCLSVC_ID_BYTES, 0) != NCCLSVC_ID_BYTES)
		_exit(1);
}

bool ranks_join(struct conn *conns, int n, struct rank *ranks)
{
	struct svc_join join = {.nranks = n, .device = SVC_DEVICE_HOST};
	random_id(join.id);
	for (int i = 0; i < n; i++) {
		join.rank = i;
		if (conn_send(&conns[i], SVC_JOIN, &join, sizeof(join), -1, 0))
			return false;
	}
	return ranks_joined(conns, n, ranks);
}

bool ranks_joined(struct conn *conns, int n, struct rank *ranks)
{
	struct answer a;
	for (int i = 0; i < n; i++) {
		do {
			if (conn_next(&conns[i], &a, CALL_MS) != 1)
				return false;
		} while (a.header.request_id != conns[i].request_id);
		if (a.header.result)
			return false;
		ranks[i] = (struct rank){&conns[i], a.body.join.comm, a.body.join.epoch,
					 a.body.join.comm_uid};
	}
	return true;
}

bool rank_alone(struct conn *c, struct rank *rank)
{
	return ranks_join(c, 1, rank);
}

struct svc_record rank_record(const struct rank *rank)
{
	return (struct svc_record){
		.comm = rank->comm, .epoch = rank->epoch, .op = NCCLSVC_BARRIER, .peer = -1};
}

void conn_ring_bell(struct conn *c)
{
	uint64_t one = 1;
	ssize_t n = write(c->doorbell, &one, sizeof(one));
	(void)n;
}

void conn_submit(struct conn *c, const struct svc_record *record)
{
	uint64_t n = ++c->last;
	struct svc_record *slot = svc_record_slot(c->ring, c->entries, n);
	memcpy((char *)slot + sizeof(slot->number), (const char *)record + sizeof(record->number),
	       sizeof(*record) - sizeof(record->number));
	svc_number_store(&slot->number, n);
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load(&c->ring->asleep))
		conn_ring_bell(c);
}

int conn_wait(struct conn *c, uint64_t number, int timeout_ms)
{
	const struct timespec pause = {.tv_nsec = 100000};
	ncclsvc_status *slot = svc_status_slot(c->ring, c->entries, number);
	for (uint64_t end = clock_ns() + (uint64_t)timeout_ms * 1000000;
	     svc_number_load(&slot->number) != number; nanosleep(&pause, NULL))
		if (clock_ns() > end || atomic_load(&c->ring->ended))
			return CONN_LOST;
	return slot->result;
}
