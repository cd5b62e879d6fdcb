/* SPDX-License-Identifier: Apache-2.0 */
#include "harness_raw.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/names.h"
#include "proto/operation.h"

bool raw_try_connect(struct raw *r, const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	memset(r, 0, sizeof(*r));
	r->doorbell = r->completion = -1;
	CHECK(strlen(path) < sizeof(address.sun_path));
	strcpy(address.sun_path, path);
	r->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(r->sock >= 0);
	if (connect(r->sock, (struct sockaddr *)&address, sizeof(address)) == 0)
		return true;
	close(r->sock);
	r->sock = -1;
	return false;
}

void raw_connect(struct raw *r, const struct daemon *d)
{
	CHECK(raw_try_connect(r, d->socket));
}

void raw_close(struct raw *r)
{
	if (r->ring)
		munmap(r->ring, r->ring_size);
	int fds[] = {r->sock, r->doorbell, r->completion};
	svc_close_fds(fds, 3);
	memset(r, 0, sizeof(*r));
	r->sock = r->doorbell = r->completion = -1;
}

int raw_send_bytes(struct raw *r, const void *bytes, size_t length, const int *fds, unsigned nfds)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * 253)];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov = {(void *)bytes, length};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	if (nfds) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * nfds);
	}
	return sendmsg(r->sock, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

uint32_t raw_send(struct raw *r, unsigned opcode, const void *body, size_t length, const int *fds,
		  unsigned nfds)
{
	unsigned char message[SVC_MESSAGE_MAX];
	struct svc_header header = {.length = (uint32_t)(sizeof(header) + length),
				    .opcode = (uint16_t)opcode,
				    .request_id = ++r->request_id};
	CHECK(sizeof(header) + length <= sizeof(message));
	memcpy(message, &header, sizeof(header));
	if (length)
		memcpy(message + sizeof(header), body, length);
	CHECK_EQ(raw_send_bytes(r, message, header.length, fds, nfds), 0);
	return header.request_id;
}

bool raw_next(struct raw *r, struct raw_reply *reply)
{
	unsigned char message[SVC_LIST_MESSAGE_MAX];
	struct pollfd p = {.fd = r->sock, .events = POLLIN};
	memset(reply, 0, sizeof(*reply));
	int ready = poll(&p, 1, WAIT_MS);
	if (ready != 1)
		check_failed(__FILE__, __LINE__, "the daemon does not answer");
	ssize_t n = svc_recv(r->sock, message, sizeof(message), reply->fds, &reply->nfds, 0);
	/* The daemon closed the connection with requests unread; what it sent before can still be
	 * read. */
	if (n == -ECONNRESET)
		n = svc_recv(r->sock, message, sizeof(message), reply->fds, &reply->nfds, 0);
	if (n == 0)
		return false;
	if (n < 0)
		check_failed(__FILE__, __LINE__, "recv: %s", strerror((int)-n));
	CHECK((size_t)n >= sizeof(reply->header));
	memcpy(&reply->header, message, sizeof(reply->header));
	CHECK_EQ(reply->header.length, n);
	CHECK_EQ(reply->header.reserved, 0);
	reply->body = (size_t)n - sizeof(reply->header);
	memcpy(reply->bytes, message + sizeof(reply->header), reply->body);
	return true;
}

void raw_reply_to(struct raw *r, uint32_t request_id, struct raw_reply *reply)
{
	for (;;) {
		if (!raw_next(r, reply))
			check_failed(__FILE__, __LINE__, "the daemon hung up instead of a reply");
		if (reply->header.request_id == request_id)
			break;
		CHECK_EQ(reply->header.request_id, 0);
		CHECK_EQ(reply->nfds, 0);
	}
	CHECK(reply->header.opcode & SVC_REPLY);
	unsigned opcode = reply->header.opcode & (SVC_REPLY - 1);
	const struct svc_shape *shape = svc_shape_of(SVC_PROTOCOL_MAX, opcode);
	if (reply->header.result == 0) {
		CHECK(shape);
		const size_t records =
			opcode == SVC_LIST ? reply->list.count * reply->list.record_size : 0;
		CHECK_EQ(reply->body, shape->reply + records);
		CHECK_EQ(reply->nfds, shape->reply_fds);
		return;
	}
	CHECK(reply->header.result < 0);
	CHECK_EQ(reply->nfds, 0);
	if (opcode == SVC_SUBMIT && reply->body == sizeof(struct svc_submit_reply))
		return;
	CHECK_EQ(reply->body, sizeof(struct svc_error));
	CHECK(svc_text_ends(reply->error.text, SVC_TEXT_BYTES));
	CHECK(reply->error.text[0]);
	CHECK_EQ(reply->error.version_min, SVC_PROTOCOL_MIN);
	CHECK(reply->error.version_max >= SVC_PROTOCOL_MAX);
}

void raw_call(struct raw *r, unsigned opcode, const void *body, size_t length, const int *fds,
	      unsigned nfds, struct raw_reply *reply)
{
	raw_reply_to(r, raw_send(r, opcode, body, length, fds, nfds), reply);
	CHECK_EQ(reply->header.opcode, (opcode | SVC_REPLY) & 0xffff);
}

void raw_refused(struct raw *r, unsigned opcode, const void *body, size_t length, const int *fds,
		 unsigned nfds, ncclsvc_result result, const char *why)
{
	struct raw_reply reply;
	raw_call(r, opcode, body, length, fds, nfds, &reply);
	if (reply.header.result != (int)result)
		check_failed(__FILE__, __LINE__, "opcode %u with %u fds gives %s, not %s: %s",
			     opcode, nfds, svc_result_name(reply.header.result),
			     svc_result_name(result), reply.header.result ? reply.error.text : "");
	if (!strstr(reply.error.text, why))
		check_failed(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", reply.error.text,
			     why);
}

void raw_ends(struct raw *r, ncclsvc_result reason)
{
	struct raw_reply reply;
	bool bye = false;
	while (raw_next(r, &reply)) {
		CHECK(!bye);
		svc_close_fds(reply.fds, reply.nfds);
		if (reply.header.opcode != SVC_EVENT_BYE)
			continue;
		bye = true;
		CHECK_EQ(reply.header.request_id, 0);
		CHECK_EQ(reply.body, sizeof(struct svc_event_bye));
		CHECK_EQ(reply.bye.reason, reason);
		CHECK(svc_text_ends(reply.bye.text, SVC_TEXT_BYTES) && reply.bye.text[0]);
	}
	CHECK(bye);
}

void raw_hello(struct raw *r)
{
	struct svc_hello hello = {
		.version_min = SVC_PROTOCOL_MIN, .version_max = SVC_PROTOCOL_MAX, .name = "raw"};
	struct raw_reply reply;
	raw_call(r, SVC_HELLO, &hello, sizeof(hello), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK_EQ(reply.hello.version, SVC_PROTOCOL_MAX);
	CHECK_EQ(reply.hello.version_min, SVC_PROTOCOL_MIN);
	CHECK(reply.hello.version_max >= SVC_PROTOCOL_MAX); /* the daemon may be of another build */
	CHECK(reply.hello.session != 0);
	r->session = reply.hello.session;
}

void raw_open(struct raw *r, const struct daemon *d)
{
	raw_connect(r, d);
	raw_hello(r);
}

void raw_attach(struct raw *r, uint32_t entries)
{
	struct svc_attach attach = {.entries = entries};
	struct raw_reply reply;
	raw_call(r, SVC_ATTACH, &attach, sizeof(attach), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
	CHECK_EQ(reply.attach.entries, entries);
	CHECK(reply.attach.size >= svc_ring_size(entries));
	r->ring =
		mmap(NULL, reply.attach.size, PROT_READ | PROT_WRITE, MAP_SHARED, reply.fds[0], 0);
	CHECK(r->ring != MAP_FAILED);
	/* The client must not be able to truncate the memfd that the daemon has mapped. */
	CHECK(ftruncate(reply.fds[0], SVC_PAGE) < 0 && errno == EPERM);
	close(reply.fds[0]);
	r->ring_size = reply.attach.size;
	r->entries = entries;
	r->doorbell = reply.fds[1];
	r->completion = reply.fds[2];
	r->last = 0;
	CHECK_EQ(r->ring->magic, SVC_RING_MAGIC);
	CHECK_EQ(r->ring->version, SVC_PROTOCOL_MAX);
	CHECK_EQ(r->ring->entries, entries);
	CHECK_EQ(r->ring->timelines, SVC_TIMELINES);
}

struct raw_region raw_region(struct raw *r, size_t bytes)
{
	struct svc_region_add add = {.bytes = bytes, .kind = SVC_REGION_MEMFD};
	struct raw_region region = {.bytes = bytes};
	struct raw_reply reply;
	region.fd = svc_memfd_create("raw", bytes, true);
	CHECK(region.fd >= 0);
	region.base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region.fd, 0);
	CHECK(region.base != MAP_FAILED);
	CHECK_EQ(svc_populate(region.base, bytes), 0);
	raw_call(r, SVC_REGION_ADD, &add, sizeof(add), &region.fd, 1, &reply);
	if (reply.header.result)
		check_failed(__FILE__, __LINE__, "REGION_ADD: %s", reply.error.text);
	region.id = reply.region.region;
	CHECK(region.id != 0);
	return region;
}

void raw_region_close(struct raw_region *region)
{
	munmap(region->base, region->bytes);
	close(region->fd);
}

struct svc_join raw_join_request(const ncclsvc_unique_id *id, int nranks, int rank)
{
	struct svc_join join = {.nranks = nranks, .rank = rank, .device = SVC_DEVICE_HOST};
	memcpy(join.id, id->bytes, sizeof(join.id));
	return join;
}

struct svc_join_reply raw_join_alone(struct raw *r)
{
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	struct svc_join join = raw_join_request(&id, 1, 0);
	struct raw_reply reply;
	raw_call(r, SVC_JOIN, &join, sizeof(join), NULL, 0, &reply);
	if (reply.header.result)
		check_failed(__FILE__, __LINE__, "JOIN: %s", reply.error.text);
	CHECK(reply.join.comm != 0);
	CHECK_EQ(reply.join.nranks, 1);
	CHECK_EQ(reply.join.rank, 0);
	return reply.join;
}

ncclsvc_status raw_submit_wait(struct raw *r, struct svc_record record)
{
	struct raw_reply reply;
	raw_call(r, SVC_SUBMIT, &record, sizeof(record), NULL, 0, &reply);
	if (reply.body != sizeof(struct svc_submit_reply))
		check_failed(__FILE__, __LINE__, "SUBMIT: %s: %s",
			     svc_result_name(reply.header.result), reply.error.text);
	CHECK_EQ(reply.header.result, reply.submit.status.result);
	return reply.submit.status;
}

uint64_t raw_ring_submit(struct raw *r, struct svc_record record)
{
	uint64_t n = ++r->last, one = 1;
	struct svc_record *slot = svc_record_slot(r->ring, r->entries, n);
	memcpy((char *)slot + sizeof(slot->number), (char *)&record + sizeof(record.number),
	       sizeof(record) - sizeof(record.number));
	svc_number_store(&slot->number, n);
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load(&r->ring->asleep))
		CHECK_EQ(write(r->doorbell, &one, sizeof(one)), sizeof(one));
	return n;
}

ncclsvc_status raw_ring_wait(struct raw *r, uint64_t number)
{
	ncclsvc_status *slot = svc_status_slot(r->ring, r->entries, number), status;
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;
	     svc_number_load(&slot->number) != number; sleep_ms(1))
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "task %llu does not end",
				     (unsigned long long)number);
	memcpy(&status, slot, sizeof(status));
	if (!status.result)
		memset((char *)&status + SVC_HALF, 0, SVC_HALF);
	return status;
}
