/* SPDX-License-Identifier: Apache-2.0
 * The module ncclsvc-ucx.so between processes of this machine. */
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/timings.h"
#include "channel/carrier.h"

#define PEER	     3 /* each side's number of the other; labels differ, see meet */
#define MESSAGE_MAX  (16 * 1024)
#define WAIT_SECONDS 30

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

static const char *module_path;
static const struct carrier *carrier;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void open_module(void)
{
	char why[512] = "";
	setenv("UCX_ERROR_SIGNALS", "", 0);
	setenv("UCX_HANDLE_ERRORS", "none", 0);
	setenv("UCX_MEM_EVENTS", "n", 0);
	setenv("UCX_LOG_LEVEL", "fatal", 0);
	void *module = dlopen(module_path, RTLD_NOW | RTLD_GLOBAL);
	const struct carrier_module *m = module ? dlsym(module, CARRIER_SYMBOL) : NULL;
	CHECK(m && m->version == CARRIER_VERSION);
	CHECK(!m->open(&(struct carrier_network){NULL}, why, sizeof(why)));
	carrier = &m->carrier;
	CHECK(!carrier->listen(64, MESSAGE_MAX));
}

/* ---- Processes ---- */

/* Exchanges addresses with the other side of the socket, and connects under `number`. */
static void meet(int socket, uint32_t number, uint32_t here, uint32_t there)
{
	static char mine[CARRIER_ADDRESS_MAX], other[CARRIER_ADDRESS_MAX];
	const size_t bytes = carrier->address(mine, sizeof(mine));
	CHECK(bytes && send(socket, mine, bytes, 0) == (ssize_t)bytes);
	const ssize_t n = recv(socket, other, sizeof(other), 0);
	CHECK(n > 0 && !carrier->connect(number, other, (size_t)n, here, there));
}

struct peer {
	pid_t pid;
	int socket;
};

static struct peer start(void (*main)(int socket))
{
	int pair[2];
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
	const pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pair[0]);
		open_module();
		main(pair[1]);
		_exit(0);
	}
	close(pair[1]);
	return (struct peer){pid, pair[0]};
}

static void signal_other(int socket)
{
	CHECK(send(socket, "", 1, 0) == 1);
}

/* Waits for the other side's signal; the carrier continues meanwhile. */
static void await_other(int socket)
{
	struct pollfd p = {.fd = socket, .events = POLLIN};
	size_t bytes;
	int node;
	char c;
	const double end = now() + WAIT_SECONDS;
	while (poll(&p, 1, 0) == 0) {
		carrier->hear(&bytes, &node);
		CHECK(now() < end);
	}
	CHECK(recv(socket, &c, 1, 0) == 1);
}

static void finish_peer(struct peer p)
{
	int status = 0;
	CHECK(waitpid(p.pid, &status, 0) == p.pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(p.socket);
}

static void kill_peer(struct peer p)
{
	int status;
	kill(p.pid, SIGKILL);
	CHECK(waitpid(p.pid, &status, 0) == p.pid);
	close(p.socket);
}

/* ---- Calls ---- */

static struct carrier_done await_done(double seconds)
{
	struct carrier_done done;
	const double end = now() + seconds;
	while (!carrier->poll(&done, 1))
		CHECK(now() < end);
	return done;
}

static const uint32_t *await_message(size_t *bytes, int *node)
{
	const void *m;
	const double end = now() + WAIT_SECONDS;
	while (!(m = carrier->hear(bytes, node)))
		CHECK(now() < end);
	return m;
}

static void say(const void *from, size_t bytes, int node)
{
	const int r = carrier->say(from, bytes, node, (void *)1);
	CHECK(r >= 0);
	if (r == 0)
		CHECK(!await_done(WAIT_SECONDS).failed);
}

static uint8_t *bytes_of(size_t bytes, unsigned seed)
{
	uint8_t *b = malloc(bytes + 1);
	CHECK(b);
	for (size_t i = 0; i < bytes; i++)
		b[i] = (uint8_t)(i * 31 + i / 4093 + seed);
	return b;
}

/* ---- Sizes ---- */

static const size_t sizes[] = {0,     1,       8,	4095,	 4096,		 8193,
			       65536, 1000001, 1 << 20, 8 << 20, (64 << 20) - 1, 64 << 20};
#define NSIZES (sizeof(sizes) / sizeof(sizes[0]))

static void sizes_peer(int socket)
{
	meet(socket, PEER, 7, PEER);
	for (unsigned i = 0; i < NSIZES; i++) {
		uint8_t *b = bytes_of(sizes[i], i);
		await_other(socket); /* its receive is posted */
		CHECK(!carrier->send(b, sizes[i], PEER, CARRIER_TAG_DATA + (int)i, b));
		const struct carrier_done d = await_done(WAIT_SECONDS);
		CHECK(d.cookie == b && !d.failed);
		free(b);
	}
	await_other(socket);
}

static void test_sizes(void)
{
	const struct peer p = start(sizes_peer);
	open_module();
	/* The peer's label for this process is 7, as this one's for the peer is PEER. */
	meet(p.socket, PEER, PEER, 7);
	for (unsigned i = 0; i < NSIZES; i++) {
		uint8_t *want = bytes_of(sizes[i], i), *got = calloc(1, sizes[i] + 1);
		CHECK(!carrier->receive(got, sizes[i], PEER, CARRIER_TAG_DATA + (int)i, got));
		signal_other(p.socket);
		const struct carrier_done d = await_done(WAIT_SECONDS);
		CHECK(d.cookie == got && !d.failed && d.bytes == sizes[i]);
		CHECK(!memcmp(got, want, sizes[i]));
		free(want);
		free(got);
	}
	signal_other(p.socket);
	finish_peer(p);
	carrier->finish(true);
}

/* ---- Messages in order, with many in flight ---- */

#define MESSAGES 3000

static size_t length_of(unsigned i)
{
	return i % 7 == 0 ? MESSAGE_MAX : 4 + i * 5 % 2000;
}

static void order_peer(int socket)
{
	meet(socket, PEER, PEER + CARRIER_NODES, PEER);
	for (unsigned i = 0; i < MESSAGES; i++) {
		uint32_t *m = (uint32_t *)bytes_of(MESSAGE_MAX, i);
		m[0] = i;
		CHECK(carrier->say(m, length_of(i), PEER, m) >= 0); /* its memory stays */
	}
	await_other(socket);
}

static void test_order(void)
{
	const struct peer p = start(order_peer);
	open_module();
	meet(p.socket, PEER, PEER, PEER + CARRIER_NODES);
	for (unsigned i = 0; i < MESSAGES; i++) {
		size_t bytes;
		int node;
		const uint32_t *m = await_message(&bytes, &node);
		CHECK(m[0] == i && node == PEER && bytes == length_of(i));
	}
	signal_other(p.socket);
	finish_peer(p);
	carrier->finish(true);
}

/* ---- A dropped receive ---- */

static void idle_peer(int socket)
{
	meet(socket, PEER, PEER, PEER);
	await_other(socket);
}

static void test_drop(void)
{
	char to[64];
	const struct peer p = start(idle_peer);
	open_module();
	meet(p.socket, PEER, PEER, PEER);
	CHECK(!carrier->receive(to, sizeof(to), PEER, CARRIER_TAG_DATA, to));
	carrier->drop(to);
	const struct carrier_done d = await_done(MPI_DROP_SECONDS + 1);
	CHECK(d.cookie == to && d.failed);
	signal_other(p.socket);
	finish_peer(p);
	carrier->finish(true);
}

/* ---- A killed peer, and another process in its place ---- */

static void hello_peer(int socket)
{
	const uint32_t m = 1;
	meet(socket, PEER, PEER, PEER + CARRIER_NODES);
	say(&m, sizeof(m), PEER);
	await_other(socket);
}

/* It sends the first fragment of a large message, and gets no further. */
static void large_peer(int socket)
{
	const size_t bytes = 64 << 20;
	uint8_t *b = bytes_of(bytes, 0);
	meet(socket, PEER, PEER, PEER);
	await_other(socket);
	CHECK(!carrier->send(b, bytes, PEER, CARRIER_TAG_DATA, b));
	struct carrier_done done;
	for (int i = 0; i < 3; i++)
		carrier->poll(&done, 1);
	signal_other(socket);
	pause();
}

static void test_killed(void)
{
	const size_t bytes = 64 << 20;
	char *to = malloc(bytes), *from = calloc(1, bytes), *said = calloc(1, bytes);
	const struct peer p = start(large_peer), next = start(hello_peer);
	open_module();
	meet(p.socket, PEER, PEER, PEER);
	CHECK(!carrier->receive(to, bytes, PEER, CARRIER_TAG_DATA, to));
	signal_other(p.socket);
	await_other(p.socket);
	CHECK(!carrier->send(from, bytes, PEER, CARRIER_TAG_DATA, from));
	CHECK(!carrier->say(said, bytes, PEER, said));
	kill_peer(p);
	/* The daemon learns of it from its link. */
	carrier->drop(to);
	carrier->drop(from);
	carrier->disconnect(PEER);
	const struct carrier_done d[] = {await_done(MPI_DROP_SECONDS + 2),
					 await_done(MPI_DROP_SECONDS + 2)};
	CHECK(d[0].failed && d[1].failed);
	CHECK((d[0].cookie == to && d[1].cookie == said) ||
	      (d[0].cookie == said && d[1].cookie == to));
	struct carrier_done none;
	CHECK(carrier->poll(&none, 1) == 0);
	CHECK(carrier->say(from, 4, PEER, from) == -1);
	/* The same number, another label: the next process is heard. */
	size_t n;
	int node;
	meet(next.socket, PEER, PEER + CARRIER_NODES, PEER);
	CHECK(await_message(&n, &node)[0] == 1 && n == sizeof(uint32_t) && node == PEER);
	signal_other(next.socket);
	finish_peer(next);
	carrier->finish(true);
	free(to);
	free(from);
	free(said);
}

/* ---- A peer killed while its message is received ---- */

/* With UCX_RNDV_THRESH=0, the receiver has to fetch the message. */
static void unfinished_peer(int socket)
{
	uint8_t *b = bytes_of(MESSAGE_MAX, 0);
	meet(socket, PEER, PEER, PEER);
	say(b, MESSAGE_MAX, PEER); /* this connects */
	await_other(socket);
	CHECK(carrier->say(b, MESSAGE_MAX, PEER, b) >= 0);
	signal_other(socket);
	pause();
}

static void test_unfinished(void)
{
	size_t n;
	int node;
	setenv("UCX_RNDV_THRESH", "0", 1);
	const struct peer p = start(unfinished_peer);
	unsetenv("UCX_RNDV_THRESH");
	const struct peer next = start(hello_peer);
	open_module();
	meet(p.socket, PEER, PEER, PEER);
	await_message(&n, &node);
	signal_other(p.socket);
	struct pollfd ready = {.fd = p.socket, .events = POLLIN};
	CHECK(poll(&ready, 1, WAIT_SECONDS * 1000) == 1);
	kill(p.pid, SIGSTOP);
	for (const double end = now() + 0.2; now() < end;)
		CHECK(!carrier->hear(&n, &node));
	carrier->disconnect(PEER);
	meet(next.socket, PEER, PEER + CARRIER_NODES, PEER);
	CHECK(await_message(&n, &node)[0] == 1 && node == PEER && n == sizeof(uint32_t));
	kill_peer(p);
	for (const double end = now() + 0.2; now() < end;)
		CHECK(!carrier->hear(&n, &node));
	signal_other(next.socket);
	finish_peer(next);
	carrier->finish(true);
}

/* ---- Messages with a label that is gone ---- */

static void stale_peer(int socket)
{
	uint8_t *b = bytes_of(MESSAGE_MAX, 0);
	meet(socket, PEER, PEER, PEER); /* the receiver expects PEER + CARRIER_NODES */
	for (int i = 0; i < 1000; i++)
		CHECK(carrier->say(b, MESSAGE_MAX, PEER, NULL) >= 0);
	signal_other(socket);
	await_other(socket);
}

static void test_stale(void)
{
	const struct peer p = start(stale_peer), next = start(hello_peer);
	size_t bytes;
	int node;
	open_module();
	meet(p.socket, PEER, PEER + CARRIER_NODES, PEER);
	for (const double end = now() + 1; now() < end;)
		CHECK(!carrier->hear(&bytes, &node));
	await_other(p.socket);
	signal_other(p.socket);
	finish_peer(p);
	/* Its number is used again, and the next process has the label that it gave. */
	carrier->disconnect(PEER);
	meet(next.socket, PEER, PEER + CARRIER_NODES, PEER);
	CHECK(await_message(&bytes, &node)[0] == 1 && node == PEER);
	signal_other(next.socket);
	finish_peer(next);
	carrier->finish(true);
}

/* ---- Two peers use the same tag ---- */

static void tagged_peer(int socket)
{
	char label = 0;
	CHECK(recv(socket, &label, 1, 0) == 1);
	meet(socket, PEER, PEER, (uint32_t)label);
	await_other(socket);
	CHECK(!carrier->send(&label, 1, PEER, CARRIER_TAG_DATA, &label));
	CHECK(!await_done(WAIT_SECONDS).failed);
	await_other(socket);
}

static void test_shared_tag(void)
{
	struct peer peers[2];
	char got[2] = {0};
	for (char i = 0; i < 2; i++)
		peers[(int)i] = start(tagged_peer);
	open_module();
	for (int i = 0; i < 2; i++) {
		const char label = (char)(i + 10);
		CHECK(send(peers[i].socket, &label, 1, 0) == 1);
		meet(peers[i].socket, (uint32_t)label, (uint32_t)label, PEER);
		CHECK(!carrier->receive(&got[i], 1, label, CARRIER_TAG_DATA, &got[i]));
	}
	for (int i = 1; i >= 0; i--)
		signal_other(peers[i].socket);
	for (int i = 0; i < 2; i++)
		CHECK(!await_done(WAIT_SECONDS).failed);
	CHECK(got[0] == 10 && got[1] == 11);
	for (int i = 0; i < 2; i++) {
		signal_other(peers[i].socket);
		finish_peer(peers[i]);
	}
	carrier->finish(true);
}

/* Each test has a process of its own, since a process can open the module only once. */
static int run_test(const char *name, void (*test)(void))
{
	int status = 0;
	const pid_t pid = fork();
	if (pid == 0) {
		test();
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return 1;
	printf("%s: %s (status %#x)\n", name, status ? "failed" : "passed", (unsigned)status);
	fflush(stdout);
	return status != 0;
}

int main(int argc, char *argv[])
{
	module_path = argc > 1 ? argv[1] : "ncclsvc-ucx.so";
	return run_test("sizes", test_sizes) + run_test("order", test_order) +
	       run_test("drop", test_drop) + run_test("killed", test_killed) +
	       run_test("unfinished", test_unfinished) + run_test("stale", test_stale) +
	       run_test("shared_tag", test_shared_tag);
}
