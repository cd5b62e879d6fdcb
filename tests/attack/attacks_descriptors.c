/* SPDX-License-Identifier: Apache-2.0
 * Attacks with file descriptors and futexes that a client shares with the daemon: some are slow to
 * close, some block, some have thousands of waiters to wake. */
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "flood.h"
#include "slow_fds.h"

/* ---- Many ---- */

/* Each answer has three file descriptors, which count against the daemon's user until they are
 * read; and three stay open in the daemon. */
static void attach_unread(struct attacker *a)
{
	enum { SESSIONS = 2000 };
	static struct conn c[SESSIONS];
	const struct svc_hello hello = {
		.version_min = SVC_PROTOCOL_MIN, .version_max = SVC_PROTOCOL_MAX, .name = "attack"};
	const struct svc_attach attach = {.entries = SVC_RING_MIN};
	unsigned n = 0;
	while (n < SESSIONS && conn_connect(&c[n], a->socket) &&
	       !conn_send(&c[n], SVC_HELLO, &hello, sizeof(hello), -1, 0) &&
	       !conn_send(&c[n], SVC_ATTACH, &attach, sizeof(attach), -1, 0))
		n++;
	attack_ready(a, "%u sessions", n);
	attack_hold();
}

/* ---- Slow to close ---- */

/* Sends a descriptor where none is expected, and closes it: the daemon's close is the last one. */
static void pass_and_close(struct attacker *a, int (*make)(void), int processes)
{
	const struct svc_daemon_info_request request = {0};
	struct conn c;
	for (int i = 1; i < processes; i++)
		if (attack_fork())
			break;
	attack_ready(a, "by %d processes", processes);
	while (conn_open(&c, a->socket)) {
		for (int fd; (fd = make()) >= 0; a->asked++) {
			struct answer answer;
			if (conn_send(&c, SVC_DAEMON_INFO, &request, sizeof(request), fd, 0))
				break;
			close(fd);
			if (conn_next(&c, &answer, 10000) != 1)
				break;
		}
		a->ended++;
		conn_close(&c);
	}
	attack_hold();
}

static void pass_lingering(struct attacker *a)
{
	pass_and_close(a, slow_socket, 4);
}

static void pass_large(struct attacker *a)
{
	pass_and_close(a, slow_memfd, 1);
}

static void pass_files(struct attacker *a)
{
	slow_file_serve(a);
	pass_and_close(a, slow_file, 4);
}

/* ---- Blocking ---- */

/* The client makes its completion descriptor blocking, as full as it can, and never reads it. (Both
 * sides would share the flags and the counter of an eventfd.) */
static void full_completion(struct attacker *a)
{
	const uint64_t full = UINT64_MAX - 1;
	struct conn c;
	struct rank rank;
	if (!conn_open(&c, a->socket) || !conn_attach(&c, 1024) || !rank_alone(&c, &rank) ||
	    fcntl(c.completion, F_SETFL, 0))
		attack_hold();
	signal(SIGPIPE, SIG_IGN);
	ssize_t n = write(c.completion, &full, sizeof(full));
	(void)n;
	struct svc_record record = rank_record(&rank);
	attack_ready(a, "one session");
	for (;; pause_ms(10)) {
		atomic_store(&c.ring->armed, 1);
		conn_submit(&c, &record);
		a->asked++;
	}
}

/* The client rings its blocking doorbells and reads them itself at once, so nothing may be left
 * between the daemon's check and its read. */
static void blocking_doorbells(struct attacker *a)
{
	enum { SESSIONS = 32 };
	static struct conn c[SESSIONS];
	uint64_t count;
	const struct iovec iov = {&count, sizeof(count)};
	unsigned n = open_many(a, c, SESSIONS);
	for (unsigned i = 0; i < n; i++)
		if (!conn_attach(&c[i], 1024) || fcntl(c[i].doorbell, F_SETFL, 0))
			n = i;
	bool rings = !attack_fork();
	attack_ready(a, "%u sessions", n);
	for (;; a->asked += n) {
		for (unsigned i = 0; rings && i < n; i++)
			conn_ring_bell(&c[i]);
		for (unsigned i = n; i-- > 0;) {
			ssize_t got = preadv2(c[i].doorbell, &iov, 1, -1, RWF_NOWAIT);
			(void)got;
		}
	}
}

/* ---- Waiters ---- */

static void *wait_for_wake(void *arg)
{
	struct svc_ring *ring = arg;
	for (;;)
		syscall(SYS_futex, &ring->wake, FUTEX_WAIT, atomic_load(&ring->wake), NULL, NULL,
			0);
	return NULL;
}

/* Tasks that end at once, as many as the ring holds; each end wakes the waiters. */
__attribute__((noreturn)) static void end_tasks(struct attacker *a, struct conn *c,
						const struct rank *rank)
{
	struct svc_record record = rank_record(rank);
	for (;; a->asked++) {
		uint64_t next = c->last + 1;
		atomic_store(&c->ring->waiters, 1);
		atomic_store(&c->ring->armed, 1);
		if (next > c->entries)
			while (conn_wait(c, next - c->entries, 100) == CONN_LOST)
				if (atomic_load(&c->ring->ended))
					attack_hold();
		conn_submit(c, &record);
	}
}

static void futex_waiters(struct attacker *a)
{
	enum { THREADS = 2000 };
	struct conn c;
	struct rank rank;
	pthread_attr_t attr;
	pthread_t thread;
	int n = 0;
	if (!conn_open(&c, a->socket) || !conn_attach(&c, 1024) || !rank_alone(&c, &rank))
		attack_hold();
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN);
	while (n < THREADS && !pthread_create(&thread, &attr, wait_for_wake, c.ring))
		n++;
	attack_ready(a, "%d threads", n);
	end_tasks(a, &c, &rank);
}

/* One epoll instance each; none is ever waited for. */
static int watch_often(int fd, int most)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT};
	int n = 0;
	for (; n < most; n++) {
		int ep = epoll_create1(EPOLL_CLOEXEC);
		if (ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) < 0)
			break;
	}
	return n;
}

static void completion_waiters(struct attacker *a)
{
	struct conn c;
	struct rank rank;
	if (!conn_open(&c, a->socket) || !conn_attach(&c, 1024) || !rank_alone(&c, &rank))
		attack_hold();
	attack_ready(a, "%d epolls", watch_often(c.completion, 15000));
	end_tasks(a, &c, &rank);
}

static void socket_waiters(struct attacker *a)
{
	const struct svc_daemon_info_request request = {0};
	struct conn c;
	if (!conn_open(&c, a->socket))
		attack_hold();
	attack_ready(a, "%d epolls", watch_often(c.sock, 15000));
	flood(a, &c, 1, 64, SVC_DAEMON_INFO, &request, sizeof(request));
}

const struct attack descriptor_attacks[] = {
	{"attach-unread", "2,000 sessions ATTACH and read no answer", .run = attach_unread},
	{"attach-unread-4096",
	 "the same, where the daemon is not root's and may have 4,096 file descriptors",
	 .run = attach_unread, .unprivileged = true, .files = 4096},
	{"fd-linger", "passed sockets whose close waits for two seconds", .run = pass_lingering},
	{"fd-fuse", "passed files whose close waits for their server", .run = pass_files,
	 .fuse = true},
	{"fd-large", "passed memfds of 1 GiB whose close frees their pages", .run = pass_large},
	{"completion-full", "a completion that is full, never read, and made to block",
	 .run = full_completion},
	{"doorbell-blocks", "32 doorbells that are made to block, and read by the client",
	 .run = blocking_doorbells},
	{"waiters-futex", "2,000 threads wait for a ring's word, and each task wakes them",
	 .run = futex_waiters},
	{"waiters-completion", "15,000 epolls watch a completion socket",
	 .run = completion_waiters},
	{"waiters-socket", "15,000 epolls watch a session's socket", .run = socket_waiters},
	{0}};
