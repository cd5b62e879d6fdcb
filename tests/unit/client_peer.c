/* SPDX-License-Identifier: Apache-2.0 */
#include "client_peer.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/fdio.h"

/* cmocka's assertions only work in the test's own thread. */
#define REQUIRE(condition)                                                                         \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

static void put(struct peer *p, const struct svc_header *to, int result, const void *body,
		size_t size, const int *fds, unsigned nfds)
{
	unsigned char message[SVC_LIST_MESSAGE_MAX] = {0};
	struct svc_header h = {
		.length = (uint32_t)(sizeof(h) + size),
		.opcode = to->request_id ? to->opcode | SVC_REPLY : to->opcode,
		.request_id = to->request_id,
		.result = result,
	};
	if (p->fault == WRONG_REQUEST_ID)
		h.request_id += 17;
	memcpy(message, &h, sizeof(h));
	if (size)
		memcpy(message + sizeof(h), body, size);
	pthread_mutex_lock(&p->lock);
	svc_send(p->conn, message, h.length, fds, nfds, 0);
	pthread_mutex_unlock(&p->lock);
}

static void refuse(struct peer *p, const struct svc_header *to, int result, const char *text)
{
	struct svc_error e = {.version_min = 7, .version_max = 9};
	snprintf(e.text, sizeof(e.text), "%s", text);
	put(p, to, result, &e, sizeof(e), NULL, 0);
}

/* The version after this library's. */
#define NEXT (SVC_PROTOCOL_MAX + 1)

static void hello(struct peer *p, const struct svc_header *h, const struct svc_hello *theirs)
{
	REQUIRE(theirs->version_min == SVC_PROTOCOL_MIN);
	REQUIRE(theirs->version_max == SVC_PROTOCOL_MAX);
	struct svc_hello_reply reply = {.version = p->fault == CHOOSES_VERSION_0 ? 0
						   : p->fault == CHOOSES_NEXT_VERSION
							   ? NEXT
							   : SVC_PROTOCOL_MAX,
					.version_min = SVC_PROTOCOL_MIN,
					.version_max = NEXT,
					.session = 1,
					.host_ranks = 2,
					.ring_max = 1024};
	reply.mps = p->says.mps;
	memcpy(reply.mps_directory, p->says.mps_directory, sizeof(reply.mps_directory));
	struct svc_event_bye bye = {.reason = NCCLSVC_LIMIT, .text = "too many sessions"};
	int stray = p->listener;
	switch ((int)p->fault) {
	case SAYS_VERSION:
		refuse(p, h, NCCLSVC_VERSION, "no");
		break;
	case SAYS_BYE:
		put(p, &(struct svc_header){.opcode = SVC_EVENT_BYE}, 0, &bye, sizeof(bye), NULL,
		    0);
		break;
	case SAYS_NOTHING:
		break;
	default:
		put(p, h, 0, &reply, sizeof(reply) - (p->fault == SHORT_REPLY ? 8 : 0), &stray,
		    p->fault == STRAY_FD);
	}
}

static void detach(struct peer *p)
{
	if (!p->ring)
		return;
	munmap(p->ring, svc_ring_size(p->entries));
	close(p->doorbell);
	close(p->completion);
	p->ring = NULL;
}

static void attach(struct peer *p, const struct svc_header *h, const struct svc_attach *a)
{
	detach(p);
	p->entries = a->entries;
	size_t size = svc_ring_size(a->entries);
	int fd = p->fault == UNSEALED_RING ? memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING)
					   : svc_memfd_create("ring", size, true);
	REQUIRE(fd >= 0);
	REQUIRE(p->fault != UNSEALED_RING || !ftruncate(fd, (off_t)size));
	p->ring = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	REQUIRE(p->ring != MAP_FAILED);
	p->ring->magic = p->fault == NO_MAGIC ? 0 : SVC_RING_MAGIC;
	p->ring->version = p->fault == OTHER_RING_VERSION ? NEXT : SVC_PROTOCOL_MAX;
	p->ring->entries = a->entries;
	p->ring->timelines = SVC_TIMELINES;
	p->ring->size = size;
	atomic_store(&p->ring->asleep, 1);
	p->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int completion[2];
	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, completion));
	p->completion = completion[0];
	struct svc_attach_reply reply = {.size = size, .entries = a->entries};
	if (p->fault == SMALL_RING)
		reply.size = SVC_PAGE;
	if (p->fault == OTHER_ENTRIES)
		reply.entries *= 2;
	if (p->fault == SPINS_LONG)
		atomic_store(&p->ring->spin_ns, UINT32_MAX);
	int fds[] = {fd, p->doorbell, completion[1]}, broken[2];
	REQUIRE(!pipe2(broken, O_CLOEXEC | O_NONBLOCK));
	close(broken[0]);
	if (p->fault == DOORBELL_PIPE)
		fds[1] = broken[1];
	if (p->fault == DOORBELL_BLOCKS)
		REQUIRE(!fcntl(p->doorbell, F_SETFL, 0));
	if (p->fault == COMPLETION_FILE)
		fds[2] = fd;
	put(p, h, 0, &reply, sizeof(reply), fds, p->fault == NO_RING_FDS ? 0 : 3);
	close(completion[1]);
	close(broken[1]);
	close(fd);
}

static void join(struct peer *p, const struct svc_header *h, const struct svc_join *j)
{
	struct svc_join_reply reply = {
		.comm_uid = 100 + p->joins,
		.comm = ++p->joins,
		.epoch = 1,
		.nranks = j->flags & SVC_JOIN_WORLD ? 2 : j->nranks,
		.rank = j->rank < 0 ? 0 : j->rank,
	};
	p->join_device = j->device;
	p->join_out_of_reach = j->out_of_reach;
	memcpy(reply.id, j->id, sizeof(reply.id));
	snprintf(reply.label, sizeof(reply.label), "%s",
		 j->flags & SVC_JOIN_WORLD ? "world" : j->label);
	if (p->fault == JOIN_RANGE)
		reply.rank = reply.nranks;
	if (p->fault == JOIN_MORE_RANKS)
		reply.nranks++;
	if (p->fault == JOIN_OTHER_RANK)
		reply.rank = !reply.rank;
	put(p, h, 0, &reply, sizeof(reply), NULL, 0);
}

/* Answers with a part of the communicator's own size, with this member as its last rank. */
static void split(struct peer *p, const struct svc_header *h)
{
	struct svc_join_reply reply = {.comm = ++p->joins,
				       .epoch = 1,
				       .nranks = p->split_ranks,
				       .rank = p->split_ranks - 1};
	put(p, h, 0, &reply, sizeof(reply), NULL, 0);
}

static void put_list(struct peer *p, const struct svc_header *h, const struct svc_list_reply *head,
		     const void *records, size_t size)
{
	unsigned char body[4096];
	REQUIRE(sizeof(*head) + size <= sizeof(body));
	memcpy(body, head, sizeof(*head));
	memcpy(body + sizeof(*head), records, size);
	put(p, h, 0, body, sizeof(*head) + size, NULL, 0);
}

/* Three sessions in two chunks, with records of a different length. */
static void list(struct peer *p, const struct svc_header *h, const struct svc_list *l)
{
	char records[2][512];
	const uint32_t n = l->from ? 1 : 2;
	size_t size = sizeof(ncclsvc_session_info);
	struct svc_list_reply reply = {.what = l->what, .count = n, .next = l->from ? 0 : 2};
	if (p->fault == LIST_LONGER)
		size += 40;
	if (p->fault == LIST_SHORTER)
		size = offsetof(ncclsvc_session_info, comms);
	reply.record_size = (uint32_t)size;
	if (p->fault == LIST_OVERFLOWS)
		reply.count = UINT32_MAX;
	if (p->fault == LIST_CUT)
		reply.count++;
	if (p->fault == LIST_CIRCLES)
		reply.next = 2;
	memset(records, 0xee, sizeof(records));
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t at = (uint32_t)l->from + i;
		ncclsvc_session_info info = {
			.session = at + 1, .submitted = 10 * at, .comms = 5 + at};
		memcpy((char *)records + i * size, &info,
		       size < sizeof(info) ? size : sizeof(info));
	}
	put_list(p, h, &reply, records, n * size);
}

static void list_devices(struct peer *p, const struct svc_header *h)
{
	const struct svc_list_reply reply = {
		.what = SVC_LIST_DEVICES,
		.record_size = sizeof(p->devices[0]),
		.count = p->ndevices,
	};
	put_list(p, h, &reply, p->devices, p->ndevices * sizeof(p->devices[0]));
}

static void region_cuda(struct peer *p, const struct svc_header *h, const void *body)
{
	struct svc_region_reply reply = {.region = ++p->regions};
	unsigned i = p->ncuda % 64;
	memcpy(&p->cuda[i], body, sizeof(p->cuda[i]));
	p->cuda_ids[i] = reply.region;
	p->ncuda++;
	put(p, h, 0, &reply, sizeof(reply), NULL, 0);
}

void peer_answer_range(struct peer *p)
{
	struct svc_region_reply reply = {.region = ++p->regions};
	p->range_id = reply.region;
	put(p, &p->held_range, 0, &reply, sizeof(reply), NULL, 0);
}

static void region_range(struct peer *p, const struct svc_header *h, const void *body)
{
	memcpy(&p->range, body, sizeof(p->range));
	p->held_range = *h;
	if (!p->holds_ranges)
		peer_answer_range(p);
}

static void region_del(struct peer *p, const struct svc_header *h, const struct svc_region_del *d)
{
	if (p->busy) {
		refuse(p, h, NCCLSVC_BUSY, "a task uses it");
		return;
	}
	p->deleted[p->ndeleted % 64] = d->region;
	p->ndeleted++;
	put(p, h, 0, NULL, 0, NULL, 0);
}

static void info(struct peer *p, const struct svc_header *h)
{
	struct svc_daemon_info_reply reply = {.info = {.pid = (int)h->request_id}};
	put(p, h, 0, &reply, sizeof(reply), NULL, 0);
}

static void answer(struct peer *p, const struct svc_header *h, const void *body)
{
	struct svc_region_reply region = {.region = p->regions + 1};
	switch (h->opcode) {
	case SVC_HELLO:
		if (p->hang_ups) {
			p->hang_ups--;
			shutdown(p->conn, SHUT_RDWR);
		} else if (p->drains) {
			p->drains--;
			refuse(p, h, NCCLSVC_DRAINING, "the daemon is shutting down");
		} else {
			hello(p, h, body);
		}
		break;
	case SVC_ATTACH:
		attach(p, h, body);
		break;
	case SVC_JOIN:
		join(p, h, body);
		break;
	case SVC_SPLIT:
		split(p, h);
		break;
	case SVC_LIST:
		if (((const struct svc_list *)body)->what == SVC_LIST_DEVICES)
			list_devices(p, h);
		else
			list(p, h, body);
		break;
	case SVC_DAEMON_INFO:
		if (p->fault == UNASKED_REPLY)
			info(p,
			     &(struct svc_header){.opcode = SVC_SUBMIT, .request_id = 0x80000001});
		info(p, h);
		break;
	case SVC_REGION_ADD:
		p->regions++;
		if (p->registers_nothing)
			break;
		put(p, h, 0, &region, sizeof(region), NULL, 0);
		break;
	case SVC_SUBMIT:
		REQUIRE(p->nsubmits < PEER_HELD);
		p->submits[p->nsubmits] = *h;
		memcpy(&p->records[p->nsubmits], body, sizeof(struct svc_record));
		p->nsubmits++;
		break;
	case SVC_REGION_CUDA:
	case SVC_REGION_CUDA_FD:
		region_cuda(p, h, body);
		break;
	case SVC_REGION_RANGE:
		region_range(p, h, body);
		break;
	case SVC_REGION_DEL:
		region_del(p, h, body);
		break;
	case SVC_IDENTIFY:
	case SVC_LEAVE:
		put(p, h, 0, NULL, 0, NULL, 0);
		break;
	default:
		refuse(p, h, NCCLSVC_NOT_FOUND, "nothing of the kind\nhere");
	}
}

static void serve(struct peer *p)
{
	_Alignas(8) unsigned char message[SVC_MESSAGE_MAX];
	int fds[SVC_FDS_MAX];
	unsigned nfds;
	char text[SVC_TEXT_BYTES] = "";
	struct svc_header h;
	ssize_t n = svc_recv(p->conn, message, sizeof(message), fds, &nfds, 0);
	if (n <= 0) {
		close(p->conn);
		p->conn = -1;
		return;
	}
	REQUIRE(svc_check_request(SVC_PROTOCOL_MAX, message, (size_t)n, nfds, &h, text) ==
		SVC_GOOD);
	REQUIRE(h.request_id != 0);
	p->opcodes[h.opcode]++;
	svc_close_fds(fds, nfds);
	if (p->hold && h.opcode == SVC_DAEMON_INFO) {
		p->held[p->nheld++] = h;
		if (p->nheld < p->hold)
			return;
		while (p->nheld)
			info(p, &p->held[--p->nheld]);
		return;
	}
	answer(p, &h, message + sizeof(h));
}

static void *run(void *arg)
{
	struct peer *p = arg;
	for (;;) {
		struct pollfd fds[] = {
			{p->stop[0], POLLIN, 0}, {p->listener, POLLIN, 0}, {p->conn, POLLIN, 0}};
		poll(fds, 3, -1);
		if (fds[0].revents)
			return NULL;
		if (fds[1].revents) {
			pthread_mutex_lock(&p->lock);
			if (p->conn >= 0)
				close(p->conn);
			p->conn = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
			pthread_mutex_unlock(&p->lock);
			p->regions = p->joins = 0;
			if (p->fault == HANGS_UP_UNREAD) {
				struct svc_event_bye bye = {.reason = NCCLSVC_LIMIT,
							    .text = "full"};
				struct pollfd wait = {p->conn, POLLIN, 0};
				poll(&wait, 1, 1000); /* until there is something more to read */
				put(p, &(struct svc_header){.opcode = SVC_EVENT_BYE}, 0, &bye,
				    sizeof(bye), NULL, 0);
				close(p->conn);
				p->conn = -1;
			}
		} else if (fds[2].revents) {
			serve(p);
		}
	}
}

void peer_start(struct peer *p)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	static unsigned count;
	memset(p, 0, sizeof(*p));
	p->conn = -1;
	pthread_mutex_init(&p->lock, NULL);
	snprintf(p->path, sizeof(p->path), "/tmp/ncclsvc-peer-%d-%u", (int)getpid(), count++);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", p->path);
	p->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	REQUIRE(!bind(p->listener, (struct sockaddr *)&a, sizeof(a)) && !listen(p->listener, 8));
	REQUIRE(!pipe2(p->stop, O_CLOEXEC));
	REQUIRE(!pthread_create(&p->thread, NULL, run, p));
}

void peer_stop(struct peer *p)
{
	REQUIRE(write(p->stop[1], "x", 1) == 1);
	pthread_join(p->thread, NULL);
	int fds[] = {p->listener, p->stop[0], p->stop[1], p->conn};
	svc_close_fds(fds, 4);
	detach(p);
	unlink(p->path);
}

ncclsvc_session *peer_session(struct peer *p, bool no_ring, ncclsvc_result *result)
{
	ncclsvc_session *s = NULL;
	ncclsvc_options o = {.size = sizeof(o),
			     .socket = p->path,
			     .ring_entries = p->wants_entries ? p->wants_entries : ENTRIES,
			     .no_ring = no_ring,
			     .timeout_ms = p->fault == SAYS_NOTHING ? 100 : 0};
	*result = ncclsvc_open(&o, &s);
	return s;
}

static ncclsvc_status status_of(uint64_t number, int result)
{
	return (ncclsvc_status){
		.number = number,
		.result = result,
		.field = result == NCCLSVC_MISMATCH ? NCCLSVC_FIELD_COUNT : 0,
		.rank_a = 0,
		.rank_b = 1,
		.pid_a = 12,
		.pid_b = 13,
		.value_a = 8,
		.value_b = 16,
	};
}

void peer_end_task(struct peer *p, uint64_t n, int result)
{
	ncclsvc_status *slot = svc_status_slot(p->ring, p->entries, n);
	ncclsvc_status st = status_of(n, result);
	memcpy((char *)slot + sizeof(n), (char *)&st + sizeof(n), sizeof(st) - sizeof(n));
	svc_number_store(&slot->number, n);
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load(&p->ring->waiters)) {
		atomic_fetch_add(&p->ring->wake, 1);
		syscall(SYS_futex, &p->ring->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	}
	if (atomic_exchange(&p->ring->armed, 0))
		REQUIRE(send(p->completion, "", 1, MSG_NOSIGNAL) == 1);
}

void peer_answer_submit(struct peer *p, unsigned i, int result, bool as_error)
{
	for (int ms = 0; p->nsubmits <= i && ms < 5000; ms++)
		usleep(1000);
	REQUIRE(p->nsubmits > i);
	ncclsvc_status st = status_of(p->records[i].number, result);
	if (as_error)
		refuse(p, &p->submits[i], result, "no such region");
	else
		put(p, &p->submits[i], result, &st, sizeof(st), NULL, 0);
}

static void put_event(struct peer *p, const struct svc_event_comm *e)
{
	put(p, &(struct svc_header){.opcode = SVC_EVENT_COMM}, 0, e,
	    p->fault == SHORT_EVENT ? offsetof(struct svc_event_comm, status) : sizeof(*e), NULL,
	    0);
}

void peer_event_comm(struct peer *p, uint32_t comm, uint32_t epoch, int reason, int rank, int pid)
{
	put_event(
		p,
		&(struct svc_event_comm){
			.comm = comm,
			.epoch = epoch,
			.reason = reason,
			.rank = rank,
			.pid = pid,
			.status = {.result = reason, .rank_a = rank, .pid_a = pid, .rank_b = -1}});
}

void peer_event_node_lost(struct peer *p, uint32_t comm, uint32_t node)
{
	put_event(p, &(struct svc_event_comm){.comm = comm,
					      .epoch = 1,
					      .reason = NCCLSVC_PEER_GONE,
					      .rank = 1,
					      .pid = 77,
					      .status = {.result = NCCLSVC_PEER_GONE,
							 .field = NCCLSVC_FIELD_NODE,
							 .value_a = node,
							 .rank_a = 1,
							 .pid_a = 77}});
}

void peer_hang_up(struct peer *p)
{
	shutdown(p->conn, SHUT_RDWR);
}

void peer_sync(ncclsvc_session *s)
{
	ncclsvc_daemon_info unused;
	assert_int_equal(ncclsvc_daemon(s, &unused), NCCLSVC_OK);
}

struct peer peer;

int setup(void **state)
{
	(void)state;
	alarm(60);
	peer_start(&peer);
	return 0;
}

int teardown(void **state)
{
	(void)state;
	peer_stop(&peer);
	return 0;
}

ncclsvc_session *session(bool no_ring)
{
	ncclsvc_result r;
	ncclsvc_session *s = peer_session(&peer, no_ring, &r);
	assert_int_equal(r, NCCLSVC_OK);
	return s;
}

ncclsvc_comm *world(ncclsvc_session *s)
{
	ncclsvc_comm *comm;
	assert_int_equal(ncclsvc_comm_world(s, -1, WAIT_MS, &comm), NCCLSVC_OK);
	return comm;
}

ncclsvc_task barrier(ncclsvc_comm *comm)
{
	ncclsvc_task task = 0;
	assert_int_equal(ncclsvc_barrier(comm, &task), NCCLSVC_OK);
	assert_true(task > 0);
	return task;
}

void says(const char *part)
{
	if (!strstr(ncclsvc_last_error(), part))
		fail_msg("\"%s\" does not say \"%s\"", ncclsvc_last_error(), part);
}

bool readable(ncclsvc_session *s)
{
	struct pollfd p = {.fd = ncclsvc_get_fd(s), .events = POLLIN};
	return poll(&p, 1, 0) == 1;
}
