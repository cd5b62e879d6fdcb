/* SPDX-License-Identifier: Apache-2.0
 *
 * Two whole sessions of a real server, in this process, driven by a script of actions. Each starts
 * with a byte:
 *
 *   0 HELLO of the highest version       4 a task into the ring: 128 bytes of record
 *   1 a request: opcode, fds, fd kind,   5 bytes into the session memory: offset, length, bytes
 *     body of the right length           6 the other session acts from here on
 *   2 a datagram: length, fds, bytes     7 the session hangs up; the next action opens a new one
 *   3 read what the server says          8 into the plans' file: place, number, entries
 *                                        9 HELLO of the lowest version
 *
 * The two sessions belong to different users. The scheduler runs in this thread, which also closes
 * descriptors, so each input is deterministic. After any input everything is closed: no fd is left,
 * no user holds a share, and another user's request is answered.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "callbacks.h"
#include "proto/abi/worker_queue.h"
#include "proto/fdio.h"
#include "proto/ring.h"
#include "server/server_state.h"
#include "threadless_scheduler.h"

#define REQUIRE(condition)                                                                         \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

#define ACTIONS_MAX 256
#define REGION	    65536
#define FD_KINDS    7
#define FDS	    256	 /* number of descriptors checked; a session has a few */
#define FIRST_UID   1000 /* uid of peers[0]; peers[1] and the bystander have the next two */
#define PUMPS_MAX   1000

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct peer {
	int sock; /* -1: none */
	struct svc_ring *ring;
	size_t ring_size;
	uint32_t entries;
	int doorbell;
	uint64_t last;
	uint32_t request_id;
	struct svc_join_reply comm; /* the last one joined */
	uint32_t plan;		    /* the last one committed */
};

struct input {
	const uint8_t *at;
	size_t left;
};

static uv_loop_t loop;
static struct server *server;
static struct config config;
static uint32_t next_uid; /* uid of the next process to connect */
static struct peer bystander;
static int kinds[FD_KINDS];
static int fds_at_rest, pipes_at_rest;
static uint64_t held_at_rest[SHARES];

static uint8_t take_byte(struct input *in)
{
	if (!in->left)
		return 0;
	in->left--;
	return *in->at++;
}

/* Fills dst, with zeros past the end of the input. */
static void take_bytes(struct input *in, void *dst, size_t n)
{
	size_t have = n < in->left ? n : in->left;
	memset(dst, 0, n);
	memcpy(dst, in->at, have);
	in->at += have;
	in->left -= have;
}

/* Counts the open descriptors: poll quickly marks the closed ones with POLLNVAL. */
static int all_fds(void)
{
	struct pollfd fds[FDS];
	int n = 0;
	for (int i = 0; i < FDS; i++)
		fds[i] = (struct pollfd){.fd = i};
	REQUIRE(poll(fds, FDS, 0) >= 0);
	for (int i = 0; i < FDS; i++)
		n += !(fds[i].revents & POLLNVAL);
	return n;
}

/* Counts the pipes. They belong to libFuzzer, which opens some to its symbolizer; no session has
 * any. */
static int pipes(void)
{
	int n = 0;
	for (int i = 0; i < FDS; i++) {
		char path[32], target[8];
		snprintf(path, sizeof(path), "/proc/self/fd/%d", i);
		n += readlink(path, target, sizeof(target)) >= 5 && !memcmp(target, "pipe:", 5);
	}
	return n;
}

/* ---- Replaced system calls ---- */

int __real_getsockopt(int fd, int level, int option, void *value, socklen_t *size);
int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *size);

int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *size)
{
	const int error = __real_getsockopt(fd, level, option, value, size);
	if (!error && level == SOL_SOCKET && option == SO_PEERCRED)
		((struct ucred *)value)->uid = next_uid;
	return error;
}

/* ---- The server ---- */

/* Runs until the server has read all messages sent and its scheduler has processed them. */
static void pump(void)
{
	int n = 0;
	uv_run(&loop, UV_RUN_NOWAIT);
	do {
		fuzz_settle();
		server_handle_events(server);
		REQUIRE(++n < PUMPS_MAX);
	} while (fuzz_has_more());
}

static uint32_t sessions(void)
{
	struct server_summary sum;
	server_summarize(server, &sum);
	return sum.sessions;
}

/* ---- A client ---- */

static void peer_open(struct peer *p, uint32_t uid)
{
	int pair[2];
	REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	*p = (struct peer){.sock = pair[0], .doorbell = -1};
	next_uid = uid;
	server_adopt(server, pair[1], false);
}

static void peer_close(struct peer *p)
{
	if (p->ring)
		munmap(p->ring, p->ring_size);
	if (p->doorbell >= 0)
		close(p->doorbell);
	if (p->sock >= 0)
		close(p->sock);
	*p = (struct peer){.sock = -1, .doorbell = -1};
}

static void peer_send(struct peer *p, const void *message, size_t length, unsigned nfds,
		      unsigned kind)
{
	int fds[SVC_FDS_MAX];
	for (unsigned i = 0; i < SVC_FDS_MAX; i++)
		fds[i] = kinds[(kind + i) % FD_KINDS];
	svc_send(p->sock, message, length, fds, nfds, MSG_DONTWAIT);
}

static void peer_take_ring(struct peer *p, const struct svc_attach_reply *r, int *fds)
{
	p->ring = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	REQUIRE(p->ring != MAP_FAILED);
	p->ring_size = r->size;
	p->entries = r->entries;
	p->doorbell = fds[1];
	fds[1] = -1;
}

static void peer_read(struct peer *p)
{
	unsigned char m[SVC_MESSAGE_MAX];
	int fds[SVC_FDS_MAX];
	unsigned nfds;
	struct svc_header h;
	for (;;) {
		ssize_t n = svc_recv(p->sock, m, sizeof(m), fds, &nfds, MSG_DONTWAIT);
		if (n <= 0)
			return;
		/* Every message from the server must be well formed. */
		REQUIRE((size_t)n >= sizeof(h) && nfds <= SVC_FDS_MAX);
		memcpy(&h, m, sizeof(h));
		REQUIRE(h.length == (size_t)n && h.reserved == 0);
		if (h.opcode == (SVC_ATTACH | SVC_REPLY) && h.result == 0) {
			struct svc_attach_reply r;
			REQUIRE(nfds == 3 && !p->ring);
			memcpy(&r, m + sizeof(h), sizeof(r));
			peer_take_ring(p, &r, fds);
		}
		if ((h.opcode == (SVC_JOIN | SVC_REPLY) || h.opcode == (SVC_SPLIT | SVC_REPLY)) &&
		    h.result == 0)
			memcpy(&p->comm, m + sizeof(h), sizeof(p->comm));
		if (h.opcode == (SVC_PLAN_COMMIT | SVC_REPLY) && h.result == 0) {
			struct svc_plan_reply r;
			memcpy(&r, m + sizeof(h), sizeof(r));
			p->plan = r.plan;
		}
		svc_close_fds(fds, nfds);
	}
}

/* ---- Actions ---- */

static void do_hello(struct peer *p)
{
	struct {
		struct svc_header h;
		struct svc_hello b;
	} m = {{sizeof(m), SVC_HELLO, 0, ++p->request_id, 0},
	       {.version_min = SVC_PROTOCOL_MIN, .version_max = SVC_PROTOCOL_MAX, .name = "fuzz"}};
	peer_send(p, &m, sizeof(m), 0, 0);
}

static void fill_in(const struct peer *p, struct svc_record *r)
{
	if (!r->comm) {
		r->comm = p->comm.comm;
		r->epoch = p->comm.epoch;
	}
	if (r->flags & SVC_TASK_PLAN && !r->plan)
		r->plan = p->plan;
}

/* Writes entries to the plan's file, at an index taken from the input. */
static void do_plan_file(struct input *in)
{
	struct svc_plan_task tasks[4];
	uint8_t at = take_byte(in) % 32, n = take_byte(in) % 5;
	take_bytes(in, tasks, n * sizeof(tasks[0]));
	ssize_t written =
		pwrite(kinds[6], tasks, n * sizeof(tasks[0]), (off_t)(at * sizeof(tasks[0])));
	REQUIRE(written == (ssize_t)(n * sizeof(tasks[0])));
}

static void do_request(struct peer *p, struct input *in)
{
	struct {
		struct svc_header h;
		unsigned char body[SVC_MESSAGE_MAX - sizeof(struct svc_header)];
	} m;
	unsigned opcode = take_byte(in) % (SVC_OPCODE_END + 1);
	unsigned nfds = take_byte(in) % (SVC_FDS_MAX + 1), kind = take_byte(in);
	const struct svc_shape *shape = svc_shape_of(SVC_PROTOCOL_MAX, opcode);
	size_t length = shape ? shape->request : 8;
	take_bytes(in, m.body, length);
	/* Valid values replace zeros, to spare the fuzzer guesses. */
	if (opcode == SVC_SUBMIT)
		fill_in(p, (struct svc_record *)m.body);
	if (opcode == SVC_PLAN_COMMIT) {
		struct svc_plan_commit *r = (struct svc_plan_commit *)m.body;
		r->comm = r->comm ? r->comm : p->comm.comm;
		r->epoch = r->epoch ? r->epoch : p->comm.epoch;
	}
	if (opcode == SVC_PLAN_DROP) {
		struct svc_plan_drop *r = (struct svc_plan_drop *)m.body;
		r->comm = r->comm ? r->comm : p->comm.comm;
		r->plan = r->plan ? r->plan : p->plan;
	}
	m.h = (struct svc_header){(uint32_t)(sizeof(m.h) + length), (uint16_t)opcode, 0,
				  ++p->request_id, 0};
	/* An even kind sends as many fds as the opcode's shape requires. */
	if (shape && kind % 2 == 0)
		nfds = shape->request_fds;
	peer_send(p, &m, m.h.length, nfds, kind / 2);
}

static void do_datagram(struct peer *p, struct input *in)
{
	unsigned char m[SVC_MESSAGE_MAX + 64];
	size_t length = take_byte(in) * 3;
	unsigned nfds = take_byte(in) % (SVC_FDS_MAX + 1);
	if (length > sizeof(m))
		length = sizeof(m);
	take_bytes(in, m, length);
	peer_send(p, m, length, nfds, nfds);
}

static void ring_bell(struct peer *p)
{
	const uint64_t one = 1;
	ssize_t n = write(p->doorbell, &one, sizeof(one));
	(void)n;
}

static void do_ring_task(struct peer *p, struct input *in)
{
	struct svc_record r;
	take_bytes(in, &r, sizeof(r));
	if (!p->ring)
		return;
	fill_in(p, &r);
	struct svc_record *slot = svc_record_slot(p->ring, p->entries, ++p->last);
	memcpy((char *)slot + sizeof(r.number), (char *)&r + sizeof(r.number),
	       sizeof(r) - sizeof(r.number));
	/* Mostly the right number. */
	svc_number_store(&slot->number, r.number > 0xff00 ? r.number : p->last);
	ring_bell(p);
}

static void do_scribble(struct peer *p, struct input *in)
{
	unsigned char bytes[64];
	size_t at = take_byte(in) << 8;
	at |= take_byte(in);
	size_t n = take_byte(in) % sizeof(bytes);
	take_bytes(in, bytes, sizeof(bytes));
	if (!p->ring)
		return;
	at %= p->ring_size - sizeof(bytes);
	memcpy((char *)p->ring + at, bytes, n);
	ring_bell(p);
}

static void act(struct peer *peers, unsigned *who, struct input *in)
{
	struct peer *p = &peers[*who];
	unsigned action = take_byte(in) % 9;
	if (action == 6) {
		*who ^= 1;
		return;
	}
	if (action == 8) {
		do_plan_file(in);
		return;
	}
	if (p->sock < 0)
		peer_open(p, FIRST_UID + *who);
	/* The server reads several messages at once, but always before an action that depends on
	 * them. */
	if (action == 3 || action == 5 || action == 7)
		pump();
	switch (action) {
	case 0:
		do_hello(p);
		break;
	case 1:
		do_request(p, in);
		break;
	case 2:
		do_datagram(p, in);
		break;
	case 3:
		peer_read(p);
		return;
	case 4:
		do_ring_task(p, in);
		break;
	case 5:
		do_scribble(p, in);
		break;
	case 7:
		peer_close(p);
		break;
	}
}

/* ---- Beginning and end ---- */

static int memfd(size_t bytes, bool sealed)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	REQUIRE(fd >= 0 && posix_fallocate(fd, 0, (off_t)bytes) == 0);
	REQUIRE(!sealed || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	return fd;
}

static void stop(void)
{
	peer_close(&bystander);
	server_close(server, 0, NULL);
	while (!server_closed(server)) {
		fuzz_settle();
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	server_destroy(server);
	uv_loop_close(&loop);
	for (int i = 0; i < FD_KINDS; i++)
		close(kinds[i]);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	log_init(LOG_TARGET_STDERR, LOG_LEVEL_ERROR);
	config = (struct config){
		.device = CONFIG_DEVICE_HOST,
		.ranks = 2,
		.host_threads = 1,
		.spin_us = 0,
		.sessions_max = 64,
		.ring_max = 64,
		.comms_max = 64,
		.tasks_max = 4096,
		.user_tasks_max = 4096,
		.user_region_bytes = UINT64_C(1) << 30,
		.user_comms_max = 48,
		.user_nccl_comms_max = WORKER_COMM_SLOTS,
		.user_sessions_max = 64,
		.access = CONFIG_ACCESS_ANY,
		.comm_idle_seconds = 0,
		.hello_seconds = 3600,
		.drain_seconds = 1,
		.keepalive_seconds = 3600,
	};
	kinds[0] = memfd(REGION, true);
	kinds[1] = memfd(100, true);
	kinds[2] = memfd(REGION, false);
	kinds[3] = open("/dev/null", O_RDWR | O_CLOEXEC);
	kinds[4] = eventfd(0, EFD_CLOEXEC);
	kinds[5] = dup(kinds[0]);
	kinds[6] = memfd(REGION, true);
	REQUIRE(uv_loop_init(&loop) == 0);
	server = server_create(&loop, &config, "/nonexistent", NULL, &daemon_callbacks);
	REQUIRE(server);
	atexit(stop);
	return 0;
}

static void ask(struct peer *p, uint16_t opcode, const void *body, size_t length)
{
	struct {
		struct svc_header h;
		unsigned char body[sizeof(struct svc_hello)];
	} m = {.h = {(uint32_t)(sizeof(m.h) + length), opcode, 0, ++p->request_id, 0}};
	memcpy(m.body, body, length);
	REQUIRE(svc_send(p->sock, &m, m.h.length, NULL, 0, MSG_DONTWAIT) == 0);
	pump();
	unsigned char reply[SVC_MESSAGE_MAX];
	int fds[SVC_FDS_MAX];
	unsigned nfds;
	struct svc_header h;
	REQUIRE(svc_recv(p->sock, reply, sizeof(reply), fds, &nfds, MSG_DONTWAIT) > 0);
	memcpy(&h, reply, sizeof(h));
	REQUIRE(h.opcode == (opcode | SVC_REPLY) && !h.result && !nfds);
}

static void bystander_comes(void)
{
	const struct svc_hello hello = {.version_min = SVC_PROTOCOL_MAX,
					.version_max = SVC_PROTOCOL_MAX,
					.name = "bystander"};
	peer_open(&bystander, FIRST_UID + 2);
	ask(&bystander, SVC_HELLO, &hello, sizeof(hello));
}

/* Pretends that much time has passed, so that the server drops the state it retains for a while. */
static void pass_time(void)
{
	server->loop.expire(server->loop.arg, clock_now() + UINT64_C(1000000000));
	pump();
}

static bool at_rest(void)
{
	return sessions() == 1 &&
	       !memcmp(server->accounts.held, held_at_rest, sizeof(held_at_rest));
}

static void rest(void)
{
	if (!fds_at_rest) {
		bystander_comes();
		fds_at_rest = all_fds();
		pipes_at_rest = pipes();
		memcpy(held_at_rest, server->accounts.held, sizeof(held_at_rest));
	}
	for (int n = 0; !at_rest(); n++) {
		pump();
		pass_time();
		REQUIRE(n < PUMPS_MAX);
	}
	const struct svc_daemon_info_request request = {0};
	ask(&bystander, SVC_DAEMON_INFO, &request, sizeof(request));
	const int now = all_fds();
	if (now == fds_at_rest)
		return;
	const int more = pipes() - pipes_at_rest;
	if (now != fds_at_rest + more) {
		fprintf(stderr, "%d fds are open, %d were before\n", now - more, fds_at_rest);
		abort();
	}
	fds_at_rest += more;
	pipes_at_rest += more;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	struct peer peers[2] = {{.sock = -1, .doorbell = -1}, {.sock = -1, .doorbell = -1}};
	unsigned who = 0;
	if (!fds_at_rest)
		rest();
	for (int i = 0; in.left && i < ACTIONS_MAX; i++)
		act(peers, &who, &in);
	pump();
	peer_close(&peers[0]);
	peer_close(&peers[1]);
	rest();
	return 0;
}
